#include "p2p/connector.h"

#include "p2p/party.h"

using namespace ringkern;
using namespace ringkern::test;

namespace {

// ---- meeting ------------------------------------------------------------------------------------

// Runs in rounds, so that a descriptor leaked in one round is not mistaken for a permanent one.
AROUND_EACH_CASE(run) {
  for (int round = 0; round < 3; ++round) {
    const int fds = open_files();
    run();
    CHECK_EQ(open_files(), fds);
  }
}

TEST_CASE("one rank connects and both have met") {
  const auto store = new_store();
  Party zero(store, 0, 3), one(store, 1, 3), two(store, 2, 3);
  zero.connector->connect_to_peer(1);
  zero.wait_met(1);
  one.wait_met(0);
  CHECK(!two.met(0) && !two.met(1) && !zero.met(2));
  for (Party* p : {&zero, &one, &two}) p->check_nothing_lost();
}

void all_connect_at_once(int ranks) {
  const auto store = new_store();
  std::vector<std::unique_ptr<Party>> parties;
  for (int r = 0; r < ranks; ++r) parties.push_back(std::make_unique<Party>(store, r, ranks));
  for (int r = 0; r < ranks; ++r)
    for (int to = 0; to < ranks; ++to)
      if (to != r) parties[size_t(r)]->connector->connect_to_peer(to);
  for (int r = 0; r < ranks; ++r)
    for (int to = 0; to < ranks; ++to)
      if (to != r) parties[size_t(r)]->wait_met(to);
  for (const auto& party : parties) party->check_nothing_lost();
}

TEST_CASE("a peer may come late") {
  const auto store = new_store();
  Party zero(store, 0, 3), one(store, 1, 3);
  for (const int peer : {2, 1}) zero.connector->connect_to_peer(peer);
  zero.wait_met(1);  // does not wait for an absent rank
  CHECK(!zero.met(2));
  Party two(store, 2, 3);
  zero.wait_met(2);
  two.wait_met(0);
  for (Party* p : {&zero, &one, &two}) p->check_nothing_lost();
}

TEST_CASE("groups of one name do not mix") {
  const auto store = new_store();
  {
    Party zero(store, 0, 2);  // rank 1 of this group never comes
  }
  Party zero(store, 0, 2);
  Party one_of_the_first(store, 1, 2);
  one_of_the_first.connector->connect_to_peer(0);
  CHECK_CONTAINS(one_of_the_first.lost(0), "rank 1 cannot connect to rank 0 (pid ");
  Party one(store, 1, 2);
  zero.connector->connect_to_peer(1);
  zero.wait_met(1);
  CHECK(!one_of_the_first.met(0));
}

// A waiting rank polls the store now and then.
TEST_CASE("waiting for a peer costs little") {
  struct Counting final : Store {
    MemoryStore store;
    std::atomic<int> calls{0};
    void set(const std::string& k, const std::string& v) override { store.set(k, v); }
    std::string get(const std::string& k, Milliseconds t) override { return store.get(k, t); }
    int64_t add(const std::string& key, int64_t amount) override {
      ++calls;
      return store.add(key, amount);
    }
  };
  const auto store = std::make_shared<Counting>();
  Party zero(store, 0, 2);
  zero.connector->connect_to_peer(1);
  std::this_thread::sleep_for(Milliseconds(500));
  CHECK(store->calls > 2 && store->calls < 40);
}

// ---- the end ------------------------------------------------------------------------------------

TEST_CASE("the end of a peer is seen") {
  const auto store = new_store();
  Party zero(store, 0, 3), one(store, 1, 3), two(store, 2, 3);
  zero.connector->connect_to_peer(1);
  two.connector->connect_to_peer(0);
  zero.wait_met(1);
  zero.wait_met(2);
  one.connector.reset();
  CHECK_EQ(zero.lost(1), std::string("gone"));
  two.connector.reset();
  CHECK_EQ(zero.lost(2), std::string("gone"));
}

TEST_CASE("a rank that has left cannot be met") {
  const auto store = new_store();
  Party zero(store, 0, 2);
  Party(store, 1, 2).connector.reset();
  zero.connector->connect_to_peer(1);
  const std::string text = "PeerLostError rank 0 cannot connect to rank 1 (pid " +
                           std::to_string(::getpid()) + "): connect: Connection refused";
  CHECK_CONTAINS(zero.lost(1), text);
}

TEST_CASE("all ranks are told the reason of an end") {
  const std::string said = "aborted by rank 0: enough ?";
  const auto store = new_store();
  Party zero(store, 0, 4), one(store, 1, 4), two(store, 2, 4), three(store, 3, 4);
  const Fd unidentified = connect_silently(store, 0, 4);  // connects before rank 2
  zero.connector->connect_to_peer(1);
  two.connector->connect_to_peer(0);
  zero.wait_met(1);
  zero.wait_met(2);
  one.wait_met(0);
  two.wait_met(0);
  zero.connector->tell_all(aborted_by(0, "enough\n\x01"));
  zero.connector->tell_all(aborted_by(0, "and again"));
  CHECK_EQ(one.told(0), said);
  CHECK_EQ(two.told(0), said);
  three.connector->connect_to_peer(0);  // connects later
  CHECK_EQ(three.told(0), said);
  Message nothing;
  CHECK(receive_message(unidentified, nothing) == Received::nothing_yet);
  zero.connector.reset();
  CHECK_EQ(one.lost(0), std::string("gone"));
}

// ---- failures -----------------------------------------------------------------------------------

void lack_of_memory_is_told_to_both(bool on_connecting_rank) {
  const auto store = new_store();
  const auto fails = [](int) { throw SharedMemoryError("no room\nhere"); };
  Party zero(store, 0, 3, some_terms(), on_connecting_rank ? fails : std::function<void(int)>());
  Party one(store, 1, 3, some_terms(), on_connecting_rank ? std::function<void(int)>() : fails);
  zero.connector->connect_to_peer(1);
  if (on_connecting_rank) {
    CHECK_EQ(zero.lost(1), std::string("SharedMemoryError no room\nhere"));
  } else {
    CHECK_EQ(zero.lost(1), std::string("SharedMemoryError rank 1 cannot exchange messages with "
                                       "rank 0: no room here"));
    CHECK_EQ(one.lost(0), std::string("SharedMemoryError no room\nhere"));
  }
  CHECK(!zero.met(1) && !one.met(0));
  Party two(store, 2, 3);  // the others are not affected
  two.connector->connect_to_peer(on_connecting_rank ? 1 : 0);
  two.wait_met(on_connecting_rank ? 1 : 0);
}

void memory_that_is_refused_is_told(bool by_connecting_rank) {
  const auto store = new_store();
  const auto refuses = [](int) { throw TransportError("refused"); };
  const std::function<void(int)> nothing;
  Party zero(store, 0, 2, some_terms(), nothing, by_connecting_rank ? refuses : nothing);
  Party one(store, 1, 2, some_terms(), nothing, by_connecting_rank ? nothing : refuses);
  zero.connector->connect_to_peer(1);
  if (by_connecting_rank) {
    CHECK_EQ(zero.lost(1), std::string("TransportError refused"));
    CHECK_EQ(one.lost(0), std::string("gone"));
  } else {
    CHECK_CONTAINS(zero.lost(1), "rank 1 cannot exchange messages with rank 0: refused");
    CHECK_EQ(one.lost(0), std::string("TransportError refused"));
  }
}

TEST_CASE("two ranks that disagree both learn of it") {
  const auto store = new_store();
  Terms other = some_terms();
  other.geometry.slots = 4;
  Party zero(store, 0, 2), one(store, 1, 2, other);
  zero.connector->connect_to_peer(1);
  const std::string text = "RendezvousError rank 0 has slots 8, rank 1 has 4: all ranks";
  CHECK_CONTAINS(zero.lost(1), text);
  CHECK_CONTAINS(one.lost(0), text);
}

TEST_CASE("a peer's address is checked") {
  {
    const auto store = new_store();
    Party zero(store, 0, 2);
    forged_address(*store, [](Address& a) { std::strcpy(a.boot, "another"); });
    zero.connector->connect_to_peer(1);
    CHECK_CONTAINS(zero.lost(1), "TransportError rank 0 is on host ");
  }
  {
    const auto store = new_store();
    Party zero(store, 0, 2);
    forged_address(*store, [](Address& a) { a.version = 77; });
    zero.connector->connect_to_peer(1);
    CHECK_CONTAINS(zero.lost(1), "RendezvousError rank 0 has ringkern wire version");
  }
}

TEST_CASE("all ranks may connect at once") {
  for (const int ranks : {2, 3, 8}) all_connect_at_once(ranks);
}

TEST_CASE("both ranks are told that one has no memory to offer") {
  for (const bool on_connecting_rank : {false, true})
    lack_of_memory_is_told_to_both(on_connecting_rank);
}

TEST_CASE("a rank is told that its memory was refused") {
  for (const bool by_connecting_rank : {false, true})
    memory_that_is_refused_is_told(by_connecting_rank);
}

}  // namespace
