// Mutual checks of ranks, and the handling of peers that are not ranks or not of this ring.
#include "comm/handshake.h"

#include <sys/socket.h>

#include <cstring>
#include <random>

#include "comm/agreement.h"
#include "comm/ring_of_threads.h"

using namespace ringkern;
using namespace ringkern::test;

namespace {

AROUND_EACH_CASE(run) {
  const int fds = open_files();
  run();
  CHECK_EQ(open_files(), fds);
}

// A field in which rank 2 of 3 differs, and the others' error.
TEST_CASE("a different field is named") {
  const auto check = [](const std::string& text, const std::function<void(Terms&)>& change) {
    const std::vector<Outcome> outcomes = join_all(3, [&](Joiner& joiner) {
      if (joiner.place.rank == 2) change(joiner.terms);
    });
    check_all(outcomes, "RendezvousError", text);
    // Each rank's error has both values and both ranks, the lower rank first.
    const std::string field = text.substr(0, text.find(' '));
    for (const Outcome& o : outcomes) {
      const size_t found = o.text.find(field), second = o.text.find(", rank 2 has");
      CHECK(o.text.find("rank 0 has " + field) != std::string::npos ||
            o.text.find("rank 1 has " + field) != std::string::npos);
      CHECK(found != std::string::npos && found < second);
    }
  };
  const std::string version = std::to_string(kWireVersion);
  check("ringkern wire version " + version + ", rank 2 has 8: install the same",
        [](Terms& t) { t.version = 8; });
  check("device cpu, rank 2 has cuda: all ranks of a group", [](Terms& t) { t.device = "cuda"; });
  check("channels 1, rank 2 has 2", [](Terms& t) { t.geometry.channels = 2; });
  check("slots 8, rank 2 has 4", [](Terms& t) { t.geometry.slots = 4; });
  for (int p = 0; p < kProtocols; ++p)
    check(std::string("slot_bytes of ") + name_of(Protocol(p)) + " 1024, rank 2 has 256",
          [p](Terms& t) { t.geometry.slot_bytes[p] = 256; });
  check("segment bytes 4096, rank 2 has 8192", [](Terms& t) { t.segment_bytes = 8192; });
  check("workers 1, rank 2 has 2", [](Terms& t) { t.workers = 2; });
}

TEST_CASE("a different group size is named") {
  const std::vector<Outcome> outcomes = join_all(2, [](Joiner& joiner) {
    if (joiner.place.rank == 1) joiner.place.size = 3;
  });
  check_all(outcomes, "RendezvousError", "rank 0 has group size 2, rank 1 has 3");
}

TEST_CASE("a malformed address is refused") {
  const Terms terms;
  const Address mine = my_address(terms, random_id());
  const std::string bytes = to_bytes(mine), version = std::to_string(kWireVersion);
  CHECK_EQ(read_address(bytes, 1, mine, 0).pid, mine.pid);
  CHECK_THROWS(RendezvousError, "the store holds no ringkern address of rank 1, but 0 other bytes",
               read_address("", 1, mine, 0));
  CHECK_THROWS(RendezvousError, "of rank 1, but 7 other bytes",
               read_address("garbage", 1, mine, 0));
  CHECK_THROWS(RendezvousError, "no ringkern address of rank 1",
               read_address(std::string(4096, 'x'), 1, mine, 0));
  CHECK_THROWS(RendezvousError, "of rank 1 has 159 bytes, expected 224",
               read_address(bytes.substr(1).insert(0, 1, bytes[0]).substr(0, 159), 1, mine, 0));
  CHECK_THROWS(RendezvousError, "of rank 1 has 225 bytes", read_address(bytes + "x", 1, mine, 0));
  Address newer = mine;
  newer.version = 9;
  CHECK_THROWS(RendezvousError, "rank 0 has ringkern wire version 9, rank 1 has " + version,
               read_address(to_bytes(newer), 0, mine, 1));
  CHECK_THROWS(RendezvousError, "rank 0 has ringkern wire version " + version + ", rank 1 has 9",
               read_address(to_bytes(newer).substr(0, 8), 1, mine, 0));  // and another size
}

TEST_CASE("garbage in the store fails the ring") {
  MemoryStore store;
  store.set("ring/rank/1", "garbage");
  check_all(on_threads(1, [&](int) { return Joiner{store, "ring", place_of(0, 2)}.join(); }),
            "RendezvousError", "the store holds no ringkern address of rank 1, but 7 other bytes");
}

TEST_CASE("ranks that cannot reach each other are told why") {
  const Terms terms;
  const Address mine = my_address(terms, random_id());
  check_reachable(mine, 0, mine, 1);
  Address other_host = mine, other_network = mine, unknown = mine;
  std::strcpy(other_host.boot, "another\nboot");
  std::strcpy(other_host.host, "node\x1b[2J7");
  other_network.network = 7;
  unknown.boot[0] = 0;
  unknown.network = 0;
  if (mine.boot[0] != 0) {
    CHECK_THROWS(TransportError, "rank 1 is on host node?[2J7 (boot another boot)",
                 check_reachable(mine, 0, other_host, 1));
    std::memset(other_host.host, 'h', sizeof other_host.host);  // without a terminating zero
    std::memset(other_host.boot, 'b', sizeof other_host.boot);
    CHECK_THROWS(TransportError, "inside one host", check_reachable(mine, 0, other_host, 1));
  }
  if (mine.network != 0)
    CHECK_THROWS(TransportError, "rank 1 in 7: the Unix sockets of ringkern do not cross",
                 check_reachable(mine, 0, other_network, 1));
  check_reachable(mine, 0, unknown, 1);
}

TEST_CASE("a neighbour's greeting is checked") {
  const Terms terms = some_terms();
  const Id session = random_id();
  const Hello mine = my_hello(terms, session, 3, 0, 1), theirs = my_hello(terms, session, 3, 1, 0);
  const auto sent = [](Hello h, const std::string& offer, int announced) {
    h.offer_bytes = uint32_t(announced);
    return to_bytes(h) + offer;
  };
  CHECK_EQ(read_greeting(sent(theirs, "offer", 5), mine, 1).offer, "offer");
  for (const int announced : {0, 4, 6, -1})
    CHECK_THROWS(RendezvousError, "the greeting of rank 1 has 133 bytes, which differs",
                 read_greeting(sent(theirs, "offer", announced), mine, 1));
  CHECK_THROWS(RendezvousError, "the greeting of rank 1 has 127 bytes",
               read_greeting(to_bytes(theirs).substr(0, 127), mine, 1));
  CHECK_THROWS(RendezvousError, "does not belong to this ring", read_greeting("", mine, 1));
  Hello unidentified = theirs;
  unidentified.session[15] ^= 1;
  CHECK(!is_greeting(to_bytes(unidentified), session));
  CHECK_THROWS(RendezvousError, "does not belong", read_greeting(to_bytes(unidentified), mine, 1));
  CHECK_THROWS(RendezvousError, "a greeting of rank 2 to rank 0, expected one of rank 1 to rank 0",
               read_greeting(to_bytes(my_hello(terms, session, 3, 2, 0)), mine, 1));
  Hello unprintable = theirs;
  std::memset(unprintable.device, '\x1b', sizeof unprintable.device);
  CHECK_THROWS(RendezvousError, "rank 1 has ????????????????: all ranks",
               read_greeting(to_bytes(unprintable), mine, 1));
  CHECK_EQ(printable(std::string(5000, 'x')).size(), size_t(1000));
}

TEST_CASE("offers that are passed on are checked") {
  const Terms terms = some_terms();
  const Id session = random_id();
  const Hello mine = my_hello(terms, session, 4, 0, 3);
  const std::string good = passed_on(terms, session, /*owner=*/2, "offer");
  CHECK_EQ(read_passed_on(good, mine, 2, 3), "offer");
  CHECK_EQ(read_passed_on(passed_on(terms, session, 2, ""), mine, 2, 3), "");
  const auto refused = [&](const std::string& bytes, int owner) {
    CHECK_THROWS(RendezvousError,
                 "rank 3 had to pass the offer of rank " + std::to_string(owner) +
                     " to rank 0, but sent other bytes",
                 (void)read_passed_on(bytes, mine, owner, 3));
  };
  refused(good, 1);  // another rank's
  refused(good.substr(0, good.size() - 1), 2);
  refused(good + "x", 2);
  refused(good.substr(0, sizeof(PassedOn) - 1), 2);
  refused("", 2);
  refused(passed_on(terms, random_id(), 2, "offer"), 2);  // of another ring
  refused(to_bytes(my_hello(terms, session, 4, 3, 0)), 2);
}

// Every message is accepted or refused with a named reason; a sanitizer watches for other effects.
TEST_CASE("random bytes are refused") {
  std::mt19937 random(1);
  const Terms terms = some_terms();
  const Id session = random_id();
  const Hello mine = my_hello(terms, session, 3, 0, 1);
  const Address address = my_address(terms, session);
  const std::string valid[] = {to_bytes(my_hello(terms, session, 3, 1, 0)), to_bytes(address),
                               passed_on(terms, session, 2, "some bytes")};
  for (int i = 0; i < 30000; ++i) {
    std::string bytes = valid[i % 3];
    for (unsigned n = random() % 4; n > 0; --n) bytes[random() % bytes.size()] = char(random());
    if (random() % 4 == 0) bytes.resize(random() % 400, char(random()));
    try {
      if (i % 3 == 2) {
        CHECK(read_passed_on(bytes, mine, 2, 1).size() <= bytes.size());
      } else if (i % 3 == 0) {
        if (is_greeting(bytes, session)) (void)read_greeting(bytes, mine, 1);
      } else {
        check_reachable(address, 0, read_address(bytes, 1, address, 0), 1);
      }
    } catch (const RendezvousError&) {
    } catch (const TransportError&) {
    }
  }
}

// A process that knows rank 0's address and runs the test's function there.
std::vector<Outcome> with_visitor(const std::function<void(const Address&, MemoryStore&)>& visit,
                                  bool rank_1_comes) {
  MemoryStore store;
  return on_threads(rank_1_comes ? 3 : 2, [&](int thread) -> Neighbours {
    if (thread == 0) return Joiner{store, "ring", place_of(0, 2)}.join();
    const std::string note = store.get("ring/rank/0", Milliseconds(20000));
    const Address address = read_address(note, 0, my_address(some_terms(), Id{}), 1);
    if (thread == 1) {
      visit(address, store);
      store.set("visited", "");
      return {};
    }
    store.get("visited", Milliseconds(20000));
    return Joiner{store, "ring", place_of(1, 2)}.join();
  });
}

Fd connect(const Address& to) {
  auto socket = connect_to(socket_name(to.socket));
  REQUIRE(socket.has_value());
  return std::move(*socket);
}

TEST_CASE("unidentified peers do not disturb the handshake") {
  std::vector<Fd> sockets;
  const auto visit = [&](const Address& rank_0, MemoryStore&) {
    const Terms terms = some_terms();
    const auto unidentified = [&](const std::string& bytes, std::span<const int> fds = {}) {
      sockets.push_back(connect(rank_0));
      send_message(sockets.back(), bytes, fds);
    };
    sockets.push_back(connect(rank_0));                             // sends nothing and stays
    connect(rank_0);                                                // sends nothing and disconnects
    unidentified(to_bytes(my_hello(terms, random_id(), 2, 1, 0)));  // of another ring
    unidentified("garbage", std::array{sockets[0].get()});          // and a descriptor
    unidentified(std::string(3 * kMaxMessage, 'x'));
    for (int i = 0; i < 40; ++i) sockets.push_back(connect(rank_0));  // more than are kept waiting
  };
  const int fds = open_files();
  check_all(with_visitor(visit, /*rank_1_comes=*/true), "", "");
  sockets.clear();
  CHECK_EQ(open_files(), fds);
}

// The peer takes the place of rank 1, with a greeting that `send` corrupts.
void check_bad_rank(const std::string& text, const std::function<void(const Fd&, Hello)>& send) {
  const int fds = open_files();
  const auto visit = [&](const Address& rank_0, MemoryStore& store) {
    const Terms terms = some_terms();
    const Address mine = my_address(terms, random_id());
    const Fd listener = listen_on(socket_name(mine.socket));
    store.add("ring/stage/1", 1);
    store.set("ring/rank/1", to_bytes(mine));
    const Fd socket = connect(rank_0);
    send(socket, my_hello(terms, rank_0.session, 2, 1, 0));
    store.get("ring/verdict", Milliseconds(20000));
  };
  check_outcome(with_visitor(visit, /*rank_1_comes=*/false)[0], "RendezvousError", text);
  CHECK_EQ(open_files(), fds);
}

TEST_CASE("bad messages of a rank fail the ring") {
  const std::string broken = "the greeting of rank 1 did not arrive whole";
  check_bad_rank(broken, [](const Fd& socket, const Hello& hello) {
    send_message(socket, to_bytes(hello) + std::string(kMaxMessage, 'x'));
  });
  check_bad_rank(broken, [](const Fd& socket, const Hello& hello) {
    send_with_too_many_fds(socket, to_bytes(hello));
  });
  check_bad_rank("bytes, which differs from its header", [](const Fd& socket, Hello hello) {
    hello.offer_bytes = 99;
    send_message(socket, to_bytes(hello));
  });
  check_bad_rank("give all ranks the same order", [](const Fd& socket, Hello hello) {
    hello.from = 7;
    send_message(socket, to_bytes(hello));
  });
}

TEST_CASE("a rank that ends while others wait is named") {
  const auto visit = [&](const Address&, MemoryStore& store) {
    const Address mine = my_address(some_terms(), random_id());  // no listener there
    store.add("ring/stage/1", 1);
    store.set("ring/rank/1", to_bytes(mine));
  };
  const Outcome outcome = std::move(with_visitor(visit, /*rank_1_comes=*/false)[0]);
  check_outcome(outcome, "TransportError", "rank 0 cannot connect to rank 1 (pid ");
  check_outcome(outcome, "TransportError", "Connection refused. Either that process has ended, or");
}

TEST_CASE("an offer that is too long is refused") {
  const std::vector<Outcome> outcomes = join_all(2, [](Joiner& joiner) {
    if (joiner.place.rank == 0)
      joiner.make_offer = [] { return Offer{std::string(kMaxMessage, 'x')}; };
  });
  check_outcome(outcomes[0], "TransportError", "an offer of 4096 bytes does not fit");
  check_outcome(outcomes[1], "RendezvousError", "rank 0 could not join the ring: an offer of 4096");
}

}  // namespace
