// A rank that greets both neighbours correctly, and then does not pass on the offers.

#include "comm/agreement.h"
#include "comm/ring_of_threads.h"

using namespace ringkern;
using namespace ringkern::test;

namespace {

constexpr int kRanks = 5, kBad = 2;
constexpr Milliseconds kLong{20000};

// The bad rank's state when all have been greeted.
struct Met {
  Fd next, prev;
  Id session;
};

// Plays rank 2 until offers are passed round; then `then` runs.
void play(MemoryStore& store, const std::function<void(const Met&)>& then) {
  const Terms terms = some_terms();
  const Address mine = my_address(terms, random_id());
  const Fd listener = listen_on(socket_name(mine.socket));
  store.add("ring/stage/" + std::to_string(kBad), 1);
  store.set("ring/rank/" + std::to_string(kBad), to_bytes(mine));
  const auto address_of = [&](int rank) {
    return read_address(store.get("ring/rank/" + std::to_string(rank), kLong), rank, mine, kBad);
  };
  Met met;
  met.session = address_of(0).session;
  const auto greet = [&](const Fd& socket, int to) {
    send_message(socket, to_bytes(my_hello(terms, met.session, kRanks, kBad, to)));
  };
  const auto hear = [](const Fd& socket) {
    Message message;
    pollfd watched{socket.get(), POLLIN, 0};
    REQUIRE(readable({&watched, 1}, kLong));
    CHECK(receive_message(socket, message) == Received::message);
  };
  while (!met.next)
    if (auto socket = connect_to(socket_name(address_of(kBad + 1).socket)))
      met.next = std::move(*socket);
  greet(met.next, kBad + 1);
  while (!met.prev) {
    pollfd watched{listener.get(), POLLIN, 0};
    REQUIRE(readable({&watched, 1}, kLong));
    if (auto socket = accept_from(listener)) met.prev = std::move(*socket);
  }
  hear(met.prev);
  greet(met.prev, kBad - 1);
  hear(met.next);
  then(met);
}

// The text of all others, whichever of them has noticed.
void check_bad_rank(const std::string& text, const std::function<void(const Met&)>& then,
                    Milliseconds timeout = kLong) {
  const int fds = open_files();
  MemoryStore store;
  const std::vector<Outcome> outcomes = on_threads(kRanks, [&](int rank) -> Neighbours {
    if (rank == kBad) {
      play(store, [&](const Met& met) {
        then(met);
        store.get("ring/verdict", kLong);
      });
      return {};
    }
    Joiner joiner{store, "ring", place_of(rank, kRanks)};
    joiner.timeout = timeout;
    return joiner.join();
  });
  for (int rank = 0; rank < kRanks; ++rank)
    if (rank != kBad) check_outcome(outcomes[size_t(rank)], "RendezvousError", text);
  CHECK_EQ(open_files(), fds);
}

TEST_CASE("a malformed offer is refused") {
  const Terms terms = some_terms();
  const std::string refused =
      "rank 2 had to pass the offer of rank 1 to rank 3, but sent other bytes";
  check_bad_rank(refused, [&](const Met& m) { send_message(m.next, "garbage"); });
  check_bad_rank(refused, [&](const Met& m) {  // of the rank before the right one
    send_message(m.next, passed_on(terms, m.session, 0, "some bytes"));
  });
  check_bad_rank(refused, [&](const Met& m) {  // of another ring
    send_message(m.next, passed_on(terms, random_id(), 1, "some bytes"));
  });
  check_bad_rank(refused, [&](const Met& m) {  // not as announced
    send_message(m.next, passed_on(terms, m.session, 1, "some bytes") + "x");
  });
  check_bad_rank(refused, [&](const Met& m) {  // a second greeting
    send_message(m.next, to_bytes(my_hello(terms, m.session, kRanks, kBad, kBad + 1)));
  });
  // The first is right, the second is not.
  check_bad_rank("rank 2 had to pass the offer of rank 0 to rank 3", [&](const Met& m) {
    send_message(m.next, passed_on(terms, m.session, 1, "some bytes"));
    send_message(m.next, passed_on(terms, m.session, 1, "some bytes"));
  });
  // Longer than any message, and with too many descriptors.
  check_bad_rank("rank 2 did not arrive whole", [&](const Met& m) {
    send_message(m.next, passed_on(terms, m.session, 1, std::string(2 * kMaxMessage, 'x')));
  });
  check_bad_rank("rank 2 did not arrive whole", [&](const Met& m) {
    send_with_too_many_fds(m.next, passed_on(terms, m.session, 1, "some bytes"));
  });
}

// Closes its sockets, like the system does for a process that dies.
TEST_CASE("a rank that dies is named") {
  const int fds = open_files();
  MemoryStore store;
  const std::vector<Outcome> outcomes = on_threads(kRanks, [&](int rank) -> Neighbours {
    if (rank == kBad) {
      play(store, [](const Met&) {});
      return {};
    }
    return Joiner{store, "ring", place_of(rank, kRanks)}.join();
  });
  for (int rank = 0; rank < kRanks; ++rank) {
    if (rank == kBad) continue;
    const std::string& text = outcomes[size_t(rank)].text;
    CHECK_EQ(outcomes[size_t(rank)].kind, "PeerLostError");
    CHECK_EQ(outcomes[size_t(rank)].lost, kBad);
    // The neighbour that noticed first may be either.
    CHECK(text.find("rank 2 ended before it") != std::string::npos ||
          (text.find("cannot pass the offer of rank ") != std::string::npos &&
           text.find(" to rank 2: ") != std::string::npos));
  }
  CHECK_EQ(open_files(), fds);
}

// It sends nothing more, and lives: all wait until their timeout.
TEST_CASE("a rank that keeps an offer ends the wait") {
  const std::string text = "came but did not finish connecting: rank";
  check_bad_rank(text, [](const Met&) {}, Milliseconds(300));
}

}  // namespace
