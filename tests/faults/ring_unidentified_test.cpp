// Peers that connect to a new ring without belonging to it: another user with a valid message, and
// recorded messages of an earlier ring.
#include "comm/processes.h"
#include "faults/shared.h"

using namespace ringkern;
using namespace ringkern::test;
using faults::end_of;
using faults::start;

namespace {

constexpr Milliseconds kLong{20'000};
constexpr uid_t kNobody = 65534;

Address address_in(Store& store, const std::string& ring, int rank) {
  return read_address(store.get(ring + "/rank/" + std::to_string(rank), kLong), rank,
                      my_address(some_terms(), random_id()), rank + 1);
}

void publish(Store& store, const std::string& ring, int rank, const Address& address) {
  store.add(ring + "/stage/" + std::to_string(rank), 1);
  store.set(ring + "/rank/" + std::to_string(rank), to_bytes(address));
}

// Sends it to a rank, lets the other ranks of the ring come, and is disconnected without an answer.
void be_disconnected(Store& store, const Address& at, const Hello& hello) {
  const auto socket = connect_to(socket_name(at.socket));
  REQUIRE(socket.has_value());
  send_message(*socket, to_bytes(hello));  // kept for the rank until it listens
  store.set("visited", "");
  pollfd watched{socket->get(), POLLIN, 0};
  REQUIRE(readable({&watched, 1}, kLong));
  Message answer;
  CHECK(receive_message(*socket, answer) == Received::closed);
}

void become_nobody() { CHECK(::setgid(kNobody) == 0 && ::setuid(kNobody) == 0); }

bool may_become_nobody() {
  if (::geteuid() == 0) return true;
  std::puts("another user: only root can become one, left out");
  return false;
}

// Both ranks of a ring; rank 1 comes after the foreign peer.
void check_ring_is_made(Store& store, const std::string& ring) {
  check_all(on_threads(2,
                       [&](int rank) {
                         if (rank == 1) store.get("visited", kLong);
                         return Joiner{store, ring, place_of(rank, 2)}.join();
                       }),
            "", "");
}

AROUND_EACH_CASE(run) {
  const int fds = open_files();
  run();
  CHECK_EQ(open_files(), fds);
}

TEST_CASE("another user who connects is refused") {
  if (!may_become_nobody()) return;
  SharedStore store;
  const pid_t visitor = start(
      [&] {
        become_nobody();
        const Address zero = address_in(store, "ring", 0);
        be_disconnected(store, zero, my_hello(some_terms(), zero.session, 2, 1, 0));
      },
      30);
  check_ring_is_made(store, "ring");
  CHECK_EQ(end_of(visitor, 30'000), 0);
}

TEST_CASE("another user who listens gets no greeting") {
  if (!may_become_nobody()) return;
  SharedStore store;
  const pid_t host = start(
      [&] {
        become_nobody();
        const Address mine = my_address(some_terms(), random_id());
        const Fd listener = listen_on(socket_name(mine.socket));
        publish(store, "ring", 1, mine);
        pollfd watched{listener.get(), POLLIN, 0};
        REQUIRE(readable({&watched, 1}, kLong));
        const auto socket = accept_from(listener);
        pollfd said{socket->get(), POLLIN, 0};
        REQUIRE(readable({&said, 1}, kLong));
        Message nothing;
        CHECK(receive_message(*socket, nothing) == Received::closed);
      },
      30);
  const std::vector<Outcome> outcomes =
      on_threads(1, [&](int) { return Joiner{store, "ring", place_of(0, 2)}.join(); });
  check_outcome(outcomes[0], "TransportError",
                "rank 0 runs as user 0, rank 1 (pid " + std::to_string(host) +
                    ") as user 65534: memory is shared between processes of one user only; start "
                    "all ranks as the same user, in one user namespace");
  CHECK_EQ(end_of(host, 30'000), 0);
}

// Makes a ring of two ranks before the one that is tested.
void make_first_ring(Store& store) {
  check_all(
      on_threads(2, [&](int rank) { return Joiner{store, "first", place_of(rank, 2)}.join(); }), "",
      "");
}

// The session of an earlier ring of the same ranks, and its greeting, are invalid now.
TEST_CASE("a replayed greeting is refused") {
  SharedStore store;
  make_first_ring(store);
  const Id replayed = address_in(store, "first", 0).session;
  const pid_t visitor = start(
      [&] {
        const Address zero = address_in(store, "second", 0);
        CHECK(!equal(zero.session, replayed));
        be_disconnected(store, zero, my_hello(some_terms(), replayed, 2, 1, 0));
      },
      30);
  check_ring_is_made(store, "second");
  CHECK_EQ(end_of(visitor, 30'000), 0);
}

// Its address is unused: no listener is there any more.
TEST_CASE("a replayed address leads nowhere") {
  SharedStore store;
  make_first_ring(store);
  publish(store, "second", 1, address_in(store, "first", 1));
  const std::vector<Outcome> outcomes =
      on_threads(1, [&](int) { return Joiner{store, "second", place_of(0, 2)}.join(); });
  check_outcome(outcomes[0], "TransportError", "rank 0 cannot connect to rank 1 (pid ");
  check_outcome(outcomes[0], "TransportError", "Connection refused");
}

}  // namespace
