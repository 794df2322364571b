// Records that ranks of several hosts exchange through a store that answers. Stores that do
// not answer are in store_channel_cut_test.cpp.
#include "hosts/store_channel.h"

#include <sys/wait.h>
#include <unistd.h>

#include "hosts/store_channel_stores.h"

using namespace ringkern;
using namespace ringkern::test;

namespace {

// Runs first, while no other thread runs. The child has no worker thread, and its parent's lock may
// be held.
TEST_CASE("a forked child disconnects from its store channel") {
  Group group;
  group[0].watch(call_at(1));
  until([&] { return group.stores[0]->questions > 0; });
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::alarm(20);
    group.ranks[0].reset();
    ::_exit(0);
  }
  int status = 0;
  CHECK_EQ(::waitpid(child, &status, 0), child);
  CHECK_EQ(status, 0);
  group[2].tell(lost(2, 1), kForEver);
  until([&] { return group[0].heard().has_value(); });
}

TEST_CASE("a record arrives as it was written") {
  Group group;
  CHECK(!group[2].heard());
  group[2].watch(call_at(17));
  const Fault told = group[0].tell(lost(0, 3), kForEver);
  CHECK_EQ(text_of(told), std::string("rank 3 on host b died"));
  until([&] { return group[2].heard().has_value(); });
  const Fault heard = *group[2].heard();
  CHECK(heard.cause == Cause::peer_lost);
  CHECK(heard.from_outside);
  CHECK_EQ(heard.reporter, 0);
  CHECK_EQ(heard.rank, 3);
  CHECK_EQ(heard.seq, uint64_t(17));
  CHECK_EQ(text_of(heard), text_of(told));
}

// A rank that waits for a better reason than its own need not be in a long wait.
TEST_CASE("a rank that listens reads a record") {
  Group group;
  CHECK(!group[3].hear(Milliseconds(1)));
  std::thread teller([&] { group[1].tell(lost(1, 2), kForEver); });
  CHECK_EQ(group[3].hear(kForEver)->rank, 2);
  teller.join();
  CHECK_EQ(group[3].hear(kForEver)->rank, 2);  // reads it again, at once
}

TEST_CASE("the first of many records counts") {
  for (int i = 0; i < 20; ++i) {
    Group group({0, 0, 0, 1, 1, 1});
    std::vector<Fault> said(6);
    std::vector<std::thread> threads;
    for (int r = 0; r < 6; ++r)
      threads.emplace_back([&, r] {
        said[size_t(r)] = group[r].tell(lost(r, r, "word of rank " + std::to_string(r)), kForEver);
      });
    for (std::thread& thread : threads) thread.join();
    for (int r = 0; r < 6; ++r) {
      CHECK_EQ(text_of(said[size_t(r)]), text_of(said[0]));
      CHECK_EQ(said[size_t(r)].reporter, said[0].reporter);
      CHECK_EQ(text_of(group[r].tell(lost(r, r, "once more"), kForEver)), text_of(said[0]));
    }
    CHECK_EQ(text_of(said[0]), "word of rank " + std::to_string(said[0].reporter));
  }
}

// A rank without need neither queries the store nor waits for it.
TEST_CASE("a rank that does not wait does not ask the store") {
  const int threads = threads_of_this_process();
  {
    Group group;
    CHECK(!group[2].heard());
    CHECK(group[2].store_answers());
    group[2].rest();
    CHECK_EQ(threads_of_this_process(), threads);
    CHECK_EQ(group.stores[2]->questions, 0);
    group[2].watch(call_at(1));
    until([&] { return group.stores[2]->questions > 2; });
    group[2].rest();
    std::this_thread::sleep_for(Milliseconds(300));  // the thread may be in a last poll
    const int questions = group.stores[2]->questions;
    group[0].tell(lost(0, 3), kForEver);
    std::this_thread::sleep_for(Milliseconds(500));
    CHECK_EQ(group.stores[2]->questions, questions);
    CHECK(!group[2].heard());
    group[2].watch(call_at(2));  // the record was there before: the first poll finds it
    until([&] { return group[2].heard().has_value(); });
  }
  CHECK_EQ(threads_of_this_process(), threads);
}

// Short calls are not queried. A long call answers a status query like a wait for other hosts.
TEST_CASE("a call listens when it is long") {
  const int threads = threads_of_this_process();
  Group group;
  std::atomic<int> heard{0};
  group.ranks[2] =
      group.channel(2, [store = group.stores[2]] { return store; }, [&](const Fault&) { ++heard; });
  for (int i = 0; i < 1000; ++i) {
    const StoreChannel::Listening listening(group[2], call_at(1));
  }
  std::this_thread::sleep_for(Milliseconds(300));
  CHECK_EQ(group.stores[2]->questions, 0);
  CHECK_EQ(threads_of_this_process(), threads + 1);
  std::this_thread::sleep_for(Milliseconds(1200));  // the thread sleeps until the next call
  std::optional<StoreChannel::Listening> listening(std::in_place, group[2], call_at(1));
  std::make_unique<StoreChannel::Listening>(group[2]).reset();  // another wait, which has ended
  until([&] { return group.stores[2]->questions > 0; });
  CHECK(group[0].query_status(Milliseconds(1500))[2] == call_at(1));
  CHECK_EQ(heard, 0);
  group[0].tell(lost(0, 3), kForEver);
  until([&] { return heard == 1; });  // although it asks for nothing
  CHECK(group[2].heard().has_value());
  CHECK(listening->heard().has_value());
  listening.reset();
  std::this_thread::sleep_for(Milliseconds(300));
  const int questions = group.stores[2]->questions;
  std::this_thread::sleep_for(Milliseconds(300));
  CHECK_EQ(group.stores[2]->questions, questions);
  CHECK_EQ(heard, 1);
}

// The record is written, although the program ended at once.
TEST_CASE("last records are written before the program ends") {
  Group group;
  group[0].tell(lost(0, 3), Milliseconds(0));
  group.ranks[0].reset();
  CHECK_EQ(group[2].hear(kForEver)->rank, 3);
}

TEST_CASE("records are bounded and printable") {
  Group group;
  const Fault told =
      group[0].tell(lost(0, 3, "a\nb\x1b[2J\xff" + std::string(1 << 20, 'x')), kForEver);
  const Fault heard = *group[2].hear(kForEver);
  CHECK_EQ(text_of(heard).size(), sizeof heard.evidence - 1);
  CHECK_CONTAINS(text_of(heard), "a b?[2J?xxx");
  CHECK_EQ(text_of(told), text_of(heard));  // the same on all ranks
}

// ---- status queries -----------------------------------------------------------------------------

TEST_CASE("the first to report does not wait for the store to confirm it") {
  Gate gate;
  Group group;
  gate.shut();
  group.stores[0]->use = [&](const std::string& how) {
    if (how == "look" || how == "get") gate.pass();
  };
  const Fault first = group[0].tell(lost(0, 3), kForEver);
  CHECK(first.rank == 3 && first.from_outside);
  gate.shut(false);
}

TEST_CASE("a rank that waits answers a status query") {
  Group group({0, 0, 1, 1, 2});
  group[1].watch(call_at(4));
  group[3].watch(call_at(5, 100));
  group[4].watch(call_at(6));
  group[2].watch(call_at(3));
  group[2].rest();
  const auto places = group[1].query_status(kForEver);  // because ranks of all hosts wait
  REQUIRE(places.size() == 5);
  CHECK(!places[0] && !places[2]);
  CHECK_EQ(places[1]->seq, uint64_t(4));  // its own
  CHECK(places[3] == call_at(5, 100));
  CHECK(places[4] == call_at(6));
}

TEST_CASE("an answer to a status query has the rank's last calls") {
  Group group({0, 1});
  for (uint64_t seq = 1; seq <= 20; ++seq) group[1].watch(call_at(seq, int64_t(100 + seq)));
  group[0].watch(call_at(7));
  const auto places = group[0].query_status(kForEver);
  REQUIRE(places[1].has_value());
  CHECK_EQ(places[1]->seq, uint64_t(20));
  for (uint64_t seq = 5; seq <= 20; ++seq) {
    REQUIRE(places[1]->find(seq) != nullptr);
    CHECK(*places[1]->find(seq) == call_at(seq, int64_t(100 + seq)));
  }
  CHECK(places[1]->find(4) == nullptr);  // too long ago
  CHECK(places[1]->find(21) == nullptr);
  CHECK(places[0]->find(7) != nullptr && places[0]->find(0) == nullptr);
}

TEST_CASE("a rank that does not wait is missing in a status query") {
  Group group({0, 0, 1, 1, 2});
  group[3].watch(call_at(5));
  const auto places = group[0].query_status(Milliseconds(1500));
  CHECK(!places[0] && !places[1] && !places[2] && places[3] && !places[4]);
  CHECK(group[0].store_answers());
  // An answer belongs to one query only.
  group[3].rest();
  std::this_thread::sleep_for(Milliseconds(300));
  CHECK(!group[0].query_status(Milliseconds(500))[3]);
  group[3].watch(call_at(7));
  CHECK_EQ(group[0].query_status(Milliseconds(1500))[3]->seq, uint64_t(7));
}

// Like when all time out together: each answers the others.
TEST_CASE("all ranks may start a status query at once") {
  Group group({0, 0, 1, 1, 2, 2});
  std::vector<std::thread> threads;
  for (int r = 0; r < 6; ++r)
    threads.emplace_back([&, r] {
      group[r].watch(call_at(uint64_t(r + 1)));
      const auto places = group[r].query_status(kForEver);
      CHECK_EQ(places[size_t(r)]->seq, uint64_t(r + 1));
      for (int host = 0; host < 3; ++host)
        CHECK(places[size_t(2 * host)] || places[size_t(2 * host + 1)]);
      for (size_t other = 0; other < 6; ++other)
        if (places[other]) CHECK_EQ(places[other]->seq, uint64_t(other + 1));
    });
  for (std::thread& thread : threads) thread.join();
}

TEST_CASE("threads of a rank share a status query") {
  Group group;
  group[2].watch(call_at(3));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] { CHECK_EQ(group[0].query_status(kForEver)[2]->seq, uint64_t(3)); });
  for (std::thread& thread : threads) thread.join();
}

// A caller that has its answers needs no more. Until then all are queried; one rank of a host is
// not enough.
TEST_CASE("a caller that has its answers asks no more") {
  Group group;
  std::atomic<int> asked{0};
  const auto places = group[0].query_status(kForEver, [&] { return ++asked >= 3; });
  CHECK_EQ(asked, 3);
  CHECK(!places[2]);
  group[2].watch(call_at(3));  // the next one is another query
  std::thread late([&] {
    std::this_thread::sleep_for(Milliseconds(300));
    group[1].watch(call_at(4));
    group[3].watch(call_at(5));
  });
  const auto all = group[0].query_status(kForEver, [] { return false; });
  late.join();
  for (size_t rank = 1; rank < 4; ++rank) CHECK(all[rank].has_value());
}

// No rank needs the answers then.
TEST_CASE("a record ends a status query") {
  Group group;
  std::thread caller([&] { CHECK(!group[0].query_status(kForEver)[2]); });
  until([&] { return group.count("counter") != 0; });
  group[3].tell(lost(3, 1), kForEver);
  caller.join();
  CHECK(group[0].heard().has_value());
  CHECK(!group[0].query_status(kForEver)[2]);
}

// ---- contents of a store ------------------------------------------------------------------------

std::string garbage_heard(const std::string& word) {
  Group group;
  group.write("record/1", word);
  group.count("counter", 1);
  const Fault heard = *group[2].hear(kForEver);
  CHECK(heard.cause == Cause::failed);
  CHECK_EQ(heard.rank, -1);
  return text_of(heard);
}

TEST_CASE("a malformed record is a failure all the same") {
  const std::string good = to_bytes(lost(0, 1));
  for (size_t n = 0; n < good.size(); n += 7)
    CHECK_CONTAINS(garbage_heard(good.substr(0, n)), "cannot be read: '");
  Fault other = lost(0, 1);
  other.size += 8;
  CHECK_CONTAINS(garbage_heard(to_bytes(other)),
                 "Install the same version of ringkern for all ranks.");
  CHECK_CONTAINS(garbage_heard("\x1b[2J\n\xff" + std::string(1 << 20, 'x')),
                 "cannot be read: '?[2J ?xxx");
  CHECK(garbage_heard(std::string(1 << 20, 'x')).size() < 300);
}

// A number that another process has written must not be used as an index.
TEST_CASE("a record about a rank that does not exist names nobody") {
  for (const int rank : {4, -1, INT32_MIN, INT32_MAX}) {
    Group group;
    group.write("record/1", to_bytes(lost(rank, rank)));
    group.count("counter", 1);
    const Fault heard = *group[2].hear(kForEver);
    CHECK(heard.cause == Cause::peer_lost);
    CHECK_EQ(heard.rank, -1);
    CHECK_EQ(heard.reporter, -1);
  }
}

TEST_CASE("a malformed answer to a status query is ignored") {
  const std::string good(sizeof(int64_t) + sizeof(CallsAt), '\1');
  for (const std::string& answer : {std::string(), good.substr(1), good + "x"}) {
    Group group;
    group.write("at/2", answer);
    group.count("answers", -3);
    CHECK(!group[0].query_status(Milliseconds(300))[2]);
  }
  Group group;
  group.write("at/2", good);
  group.count("answers", 1);
  const CallAt place = *group[0].query_status(kForEver)[2];
  CHECK_CONTAINS(text_of(place.seq, place.words), "seq=72340172838076673 ");
}

TEST_CASE("the counter of records may have any value") {
  for (const int64_t bell : {int64_t(-1), INT64_MIN, INT64_MAX / 2, -(int64_t(1) << 32)}) {
    Group group;
    group.count("counter", bell);
    group[2].watch(call_at(1));
    until([&] { return group.stores[2]->questions > 3; });
    (void)group[0].query_status(Milliseconds(200));
    (void)group[0].tell(lost(0, 3), Milliseconds(200));
  }
}

// A rank that announces a record may die before it writes it.
TEST_CASE("an announced record may never come") {
  Group group;
  group.count("counter", 1);
  const Fault unsaid = *group[2].hear(kForEver);
  CHECK(unsaid.event == Event::unsaid && unsaid.from_outside && unsaid.rank == -1);
  Group of_two;
  of_two.count("counter", 1);
  CHECK_EQ(of_two[0].tell(lost(0, 3), kForEver).rank, 3);
  CHECK_EQ(of_two[2].hear(kForEver)->rank, 3);
  Group twice;
  twice.count("counter", 1);
  twice[0].tell(lost(0, 3, "what it said first"), Milliseconds(200));
  CHECK_EQ(text_of(twice[0].tell(lost(0, 3, "another"), kForEver)),
           std::string("what it said first"));
  Group late;
  late.count("counter", 2);
  late.write("record/2", to_bytes(lost(0, 1, "the second")));
  std::thread writer([&] {
    until([&] { return late.stores[2]->questions > 2; });
    late.write("record/1", to_bytes(lost(0, 1, "the first")));
  });
  CHECK_EQ(text_of(*late[2].hear(kForEver)), std::string("the first"));
  writer.join();
}

// ---- processes ----------------------------------------------------------------------------------

}  // namespace
