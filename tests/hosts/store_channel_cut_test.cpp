// Records while the store blocks or throws, for example when the network is cut, or the process
// that keeps the store has died.
#include <latch>

#include "hosts/store_channel.h"
#include "hosts/store_channel_stores.h"

using namespace ringkern;
using namespace ringkern::test;

namespace {

// No caller waits longer than its own timeout.
TEST_CASE("a store that blocks delays no caller") {
  Group group;
  Gate gate;
  gate.shut();
  group.stores[0]->use = [&](const std::string&) { gate.pass(); };
  CHECK(group[0].store_answers());
  group[0].watch(call_at(5));
  until([&] { return gate.waiting() == 1; });
  CHECK(!group[0].heard());
  CHECK_EQ(text_of(group[0].tell(lost(0, 3), Milliseconds(10))),
           std::string("rank 3 on host b died"));
  (void)group[0].tell(lost(0, 1), Milliseconds(10));  // the worker is busy with this one
  CHECK(!group[0].hear(Milliseconds(10)));
  const auto places = group[0].query_status(Milliseconds(10));
  CHECK(places[0] && !places[1] && !places[2] && !places[3]);
  until([&] { return !group[0].store_answers(); });
  group[0].watch(call_at(6));
  group[0].rest();
  CHECK(!group[2].hear(Milliseconds(200)));
  // When the store answers again, pending records are written, also after the wait has ended.
  gate.shut(false);
  CHECK_EQ(group[2].hear(kForEver)->rank, 3);
  until([&] { return group[0].heard() && group[0].store_answers(); });
}

// The destructor does not wait either: it leaves a thread behind with all that it needs. The thread
// ends once it can.
TEST_CASE("a store channel ends although its store blocks") {
  const int threads = threads_of_this_process();
  const auto gate = std::make_shared<Gate>();  // shared, because the remaining thread needs it
  gate->shut();
  std::weak_ptr<Store> store;
  const auto memory = std::make_shared<MemoryStore>();
  {
    Group group;
    const auto odd = std::make_shared<OddStore>(memory);
    odd->use = [gate](const std::string&) { gate->pass(); };
    store = odd;
    group.ranks[0] = group.channel(
        0, [held = std::shared_ptr<Store>(odd)] { return held; },
        [](const Fault&) { FAIL("it is over, and hears something"); });
    const StoreChannel::Listening listening(group[0], call_at(1));
    until([&] { return gate->waiting() == 1; });
    group[0].tell(lost(0, 3), Milliseconds(10));
  }
  CHECK_EQ(threads_of_this_process(), threads + 1);
  CHECK(!store.expired());
  CHECK_EQ(gate->waiting(), 1);
  memory->set("group/channel/word/1", "4 0 1 17\nx\ntoo late");
  memory->add("group/channel/bell", 1);
  gate->shut(false);
  until([&] { return store.expired() && threads_of_this_process() == threads; });
}

// The same without even a connection.
TEST_CASE("a connection that blocks delays no caller") {
  const int threads = threads_of_this_process();
  const auto gate = std::make_shared<Gate>();
  gate->shut();
  {
    Group group;
    group.ranks[0] = group.channel(0, [gate]() -> std::shared_ptr<Store> {
      gate->pass();
      return nullptr;
    });
    CHECK_EQ(group[0].tell(lost(0, 3), Milliseconds(10)).rank, 3);
    until([&] { return gate->waiting() == 1 && !group[0].store_answers(); });
  }
  gate->shut(false);
  until([&] { return threads_of_this_process() == threads; });
}

// A connection is retried for as long as a caller wants an answer.
TEST_CASE("a connection that fails is tried again") {
  Group group;
  std::atomic<int> tries{0};
  group.ranks[0] = group.channel(0, [&]() -> std::shared_ptr<Store> {
    const int n = ++tries;
    if (n == 1) throw std::runtime_error("refused");
    if (n == 2) return nullptr;
    return group.stores[0];
  });
  CHECK_EQ(group[0].tell(lost(0, 3), kForEver).rank, 3);
  CHECK_EQ(tries, 3);
  CHECK(group[0].store_answers());
  CHECK_EQ(group[2].hear(kForEver)->rank, 3);
}

// At each point where the store can throw: nothing is lost, and nothing is written twice.
TEST_CASE("a store that throws is asked again") {
  for (int n = 1; n <= 8; ++n) {  // the n-th question, the first that gets, and that sets
    Group group;
    std::atomic<int> asked{0}, connected{0};
    group.stores[0]->use = [&](const std::string& how) {
      if (n > 6 && how != (n == 7 ? "get" : "set")) return;
      if (++asked == (n > 6 ? 1 : n)) throw std::runtime_error("reset by peer");
    };
    group.ranks[0] = group.channel(0, [&] { return ++connected, group.stores[0]; });
    group[2].watch(call_at(2));
    CHECK(group[0].query_status(kForEver)[2].has_value());
    CHECK_EQ(group[0].tell(lost(0, 3), kForEver).rank, 3);
    CHECK_EQ(connected, 2);
    CHECK_EQ(group.count("counter") % (int64_t(1) << 32), int64_t(1));
    until([&] { return group[2].heard().has_value(); });
    CHECK(group[0].store_answers());
  }
}

TEST_CASE("a store that throws for good does not answer") {
  Group group;
  for (auto& store : group.stores)
    store->use = [](const std::string&) { throw std::runtime_error("reset by peer"); };
  group[0].watch(call_at(1));
  until([&] { return !group[0].store_answers(); });
  CHECK_EQ(group[0].tell(lost(0, 3), Milliseconds(300)).rank, 3);
  CHECK(!group[0].hear(Milliseconds(10)));
  CHECK(!group[0].query_status(Milliseconds(300))[2]);
  CHECK(!group[0].heard());
  group.ranks[0].reset();
}

// A rank announces a record and loses the store before it writes it: the others read the next one,
// and this rank does, too.
TEST_CASE("an announced record may be lost") {
  Group group;
  Gate gate;
  gate.shut();
  group.stores[0]->use = [&](const std::string& how) {
    if (how == "set") gate.pass();
  };
  std::thread first([&] {
    CHECK_EQ(text_of(group[0].tell(lost(0, 3, "the first"), Milliseconds(100))),
             std::string("the first"));
  });
  until([&] { return gate.waiting() == 1; });
  CHECK_EQ(text_of(group[2].tell(lost(2, 1, "the second"), kForEver)), std::string("the second"));
  CHECK_EQ(text_of(*group[3].hear(kForEver)), std::string("the second"));
  first.join();
  gate.shut(false);
}

}  // namespace
