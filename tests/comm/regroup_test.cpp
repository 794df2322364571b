// The agreement on the ranks that go on, with ranks that are threads and share control pages.
#include "comm/regroup.h"

#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "comm/page_store.h"
#include "fault/errors.h"

using namespace ringkern;

namespace {

constexpr Milliseconds kLong{20'000}, kShort{300};

// The control pages of a ring.
struct Pages {
  std::vector<std::shared_ptr<Control>> of;

  explicit Pages(int ranks) {
    for (int r = 0; r < ranks; ++r) of.push_back(std::make_shared<Control>(r, ranks, "pages"));
    for (int r = 0; r < ranks; ++r)
      for (int peer = 0; peer < ranks; ++peer)
        if (peer != r) of[size_t(r)]->map(peer, of[size_t(peer)]->fd());
  }
  int ranks() const { return int(of.size()); }
};

Regroup::Propose named_after(int rank) {
  return [rank](const std::vector<int>&) {
    return Regroup::Proposal{"by " + std::to_string(rank), rank};
  };
}

// The outcome on one rank.
struct Told {
  Regroup::Round round;
  bool formed = false;
  std::string kind, text;
};

using Act = std::function<void(Regroup&, int rank, Told&)>;

std::vector<Told> on_threads(Pages& pages, const std::vector<int>& ranks, const Act& act) {
  std::vector<Told> told(pages.of.size());
  std::vector<std::thread> threads;
  for (const int r : ranks)
    threads.emplace_back([&, r] {
      Regroup regroup(*pages.of[size_t(r)]);
      Told& mine = told[size_t(r)];
      try {
        act(regroup, r, mine);
      } catch (const AbortedError& e) {
        mine.kind = "aborted", mine.text = e.what();
      } catch (const MismatchError& e) {
        mine.kind = "mismatch", mine.text = e.what();
      } catch (const TimeoutError& e) {
        mine.kind = "timeout", mine.text = e.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return told;
}

// Gathers and joins.
Act go_on(std::vector<int> excluded = {}, Milliseconds patience = kLong) {
  return [=](Regroup& regroup, int r, Told& told) {
    const Regroup::Calls mine{uint64_t(10 + r), uint64_t(20 + r)};
    told.round = regroup.gather(excluded, mine, patience, named_after(r));
    told.formed = regroup.conclude(told.round, true, kLong);
  };
}

TEST_CASE("all ranks that arrive take one proposal, that of the lowest") {
  Pages pages(4);
  const auto told = on_threads(pages, {0, 1, 2, 3}, go_on());
  for (const Told& t : told) {
    CHECK(t.formed && t.kind.empty());
    CHECK(t.round.members == std::vector<int>({0, 1, 2, 3}));
    CHECK(t.round.proposal.address == "by 0");
    CHECK(t.round.proposal.joiners == 0);
    for (size_t r = 0; r < 4; ++r) {
      CHECK(t.round.calls[r].completed == 10 + r && t.round.calls[r].begun == 20 + r);
      CHECK(t.round.processes[r].pid == ::getpid());
    }
  }
}

TEST_CASE("a rank that has left is not waited for, and neither is rank 0") {
  Pages pages(3);
  pages.of[0]->depart();
  const auto told = on_threads(pages, {1, 2}, go_on());
  for (const int r : {1, 2}) {
    CHECK(told[size_t(r)].formed);
    CHECK(told[size_t(r)].round.members == std::vector<int>({1, 2}));
    CHECK(told[size_t(r)].round.proposal.address == "by 1");
    CHECK(told[size_t(r)].round.proposal.joiners == 1);
  }
}

TEST_CASE("a rank that the others saw die is left out, even if it comes") {
  Pages pages(3);
  pages.of[0]->fail(fault_of(Event::died_in_call, 0, 2));
  const auto told = on_threads(pages, {0, 1, 2}, go_on());
  for (const int r : {0, 1}) CHECK(told[size_t(r)].round.members == std::vector<int>({0, 1}));
  CHECK(told[2].kind == "aborted");
  CHECK(told[2].text.find("ranks 0, 1 of communicator 'pages' went on without rank 2, which did "
                          "not come in time") != std::string::npos);
}

TEST_CASE("excluded ranks are not waited for, and are told") {
  Pages pages(3);
  const auto told = on_threads(pages, {0, 2}, go_on({1}));
  CHECK(told[0].formed && told[2].formed);
  CHECK(told[0].round.members == std::vector<int>({0, 2}));
  const auto late = on_threads(pages, {1}, go_on());
  CHECK(late[1].kind == "aborted");
  CHECK(late[1].text.find("rank 1, which they excluded") != std::string::npos);
}

TEST_CASE("a rank that does not come is left out when the time is over, and told when it comes") {
  Pages pages(3);
  const auto told = on_threads(pages, {0, 1}, go_on({}, kShort));
  CHECK(told[0].formed && told[1].formed);
  CHECK(told[1].round.members == std::vector<int>({0, 1}));
  const auto late = on_threads(pages, {2}, go_on());
  CHECK(late[2].kind == "aborted" && !late[2].formed);
}

TEST_CASE("ranks that exclude different ranks are told, all of them") {
  Pages pages(4);
  CHECK(on_threads(pages, {0, 1, 2}, go_on({3}, kShort))[0].formed);
  Pages others(4);
  const auto differ = on_threads(others, {0, 1, 2}, [](Regroup& regroup, int r, Told& t) {
    const std::vector<int> excluded = r == 1 ? std::vector<int>{} : std::vector<int>{3};
    go_on(excluded, kShort)(regroup, r, t);
  });
  for (const int r : {0, 1, 2}) {
    CHECK(differ[size_t(r)].kind == "mismatch");
    CHECK(differ[size_t(r)].text.find("rank 0 excludes rank 3, rank 1 excludes no rank") == 0);
  }
  CHECK(on_threads(others, {2}, go_on({3}, kShort))[2].kind == "mismatch");
}

TEST_CASE("if a member cannot join, the next round has those that are left") {
  Pages pages(4);
  const auto told = on_threads(pages, {0, 1, 2, 3}, [&](Regroup& regroup, int r, Told& t) {
    t.round = regroup.gather({}, {}, kLong, named_after(r));
    if (r == 2) {
      t.formed = regroup.conclude(t.round, false, kLong);
      pages.of[2]->depart();
      return;
    }
    t.formed = regroup.conclude(t.round, true, kLong);
    if (!t.formed) go_on()(regroup, r, t);  // else this rank saw the second round only
  });
  CHECK(!told[2].formed);
  for (const int r : {0, 1, 3}) {
    CHECK(told[size_t(r)].formed && told[size_t(r)].round.number == 1);
    CHECK(told[size_t(r)].round.members == std::vector<int>({0, 1, 3}));
  }
}

TEST_CASE("a member that leaves before it has joined ends the round; one that joined does not") {
  Pages pages(3);
  const auto told = on_threads(pages, {0, 1, 2}, [&](Regroup& regroup, int r, Told& t) {
    t.round = regroup.gather({}, {}, kLong, named_after(r));
    if (r == 1) return pages.of[1]->depart();
    t.formed = regroup.conclude(t.round, true, kLong);
    if (!t.formed) go_on()(regroup, r, t);
    pages.of[size_t(r)]->depart();  // the other may still look
  });
  CHECK(told[0].formed && told[2].formed);
  CHECK(told[0].round.members == std::vector<int>({0, 2}));
}

TEST_CASE("a member that never joins is waited for until the time is over") {
  Pages pages(2);
  const auto told = on_threads(pages, {0, 1}, [](Regroup& regroup, int r, Told& t) {
    t.round = regroup.gather({}, {}, kLong, named_after(r));
    if (r == 0) t.formed = regroup.conclude(t.round, true, kShort);
  });
  CHECK(told[0].round.members.size() == 2 && !told[0].formed);
}

TEST_CASE("a rank whose look throws no longer takes part") {
  Pages pages(3);
  std::atomic<int> looks{0};
  const auto told = on_threads(pages, {0, 1}, [&](Regroup& regroup, int r, Told& t) {
    if (r == 1) return go_on({}, kShort)(regroup, r, t);
    Regroup impatient(*pages.of[0], [&] {
      if (++looks > 20) throw AbortedError("enough");
    });
    go_on()(impatient, r, t);
  });
  CHECK(told[0].kind == "aborted" && told[0].text == "enough");
  CHECK(told[1].formed);
  CHECK(told[1].round.members == std::vector<int>{1});
}

TEST_CASE("a member that cannot join, and stays, ends the round at once") {
  Pages pages(2);
  const auto told = on_threads(pages, {0, 1}, [](Regroup& regroup, int r, Told& t) {
    t.round = regroup.gather({}, {}, kLong, named_after(r));
    if (t.round.number == 0) regroup.conclude(t.round, r == 0, kLong);
    else t.formed = regroup.conclude(t.round, true, kLong);
    if (!t.formed) go_on()(regroup, r, t);
  });
  for (const Told& t : told) CHECK(t.formed && t.round.number == 1);
}

TEST_CASE("an excluded rank that comes all the same is no member") {
  Pages pages(3);
  const auto told = on_threads(pages, {0, 1, 2}, [](Regroup& regroup, int r, Told& t) {
    if (r == 2) return go_on()(regroup, r, t);
    std::this_thread::sleep_for(Milliseconds(50));
    go_on({2})(regroup, r, t);
  });
  CHECK(told[0].round.members == std::vector<int>({0, 1}));
  CHECK(told[0].formed && told[1].formed && told[2].kind == "aborted");
}

TEST_CASE("another rank proposes if the lowest takes too long") {
  Pages pages(2);
  const auto told = on_threads(pages, {0, 1}, [](Regroup& regroup, int r, Told& t) {
    t.round = regroup.gather({}, {}, kLong, [r](const auto&) -> Regroup::Proposal {
      if (r == 0) std::this_thread::sleep_for(Milliseconds(2500));
      return {"by " + std::to_string(r), 0};
    });
    t.formed = regroup.conclude(t.round, true, kLong);
  });
  for (const Told& t : told) CHECK(t.formed && t.round.proposal.address == "by 1");
}

TEST_CASE("a rank that comes while the others join waits for the outcome") {
  Pages pages(3);
  const auto told = on_threads(pages, {0, 1, 2}, [](Regroup& regroup, int r, Told& t) {
    if (r == 2) {
      std::this_thread::sleep_for(Milliseconds(450));
      return go_on()(regroup, r, t);
    }
    t.round = regroup.gather({}, {}, kShort, named_after(r));
    std::this_thread::sleep_for(Milliseconds(400));
    t.formed = regroup.conclude(t.round, true, kLong);
  });
  CHECK(told[0].formed && told[1].formed && told[2].kind == "aborted");
}

TEST_CASE("a member whose look throws ends the round") {
  Pages pages(2);
  const auto start = Clock::now();
  const auto told = on_threads(pages, {0, 1}, [&](Regroup& regroup, int r, Told& t) {
    t.round = regroup.gather({}, {}, kLong, named_after(r));
    if (r == 0)
      Regroup(*pages.of[0], [] { throw AbortedError("enough"); }).conclude(t.round, true, kLong);
    std::this_thread::sleep_for(Milliseconds(100));
    t.formed = regroup.conclude(t.round, true, kLong);
    if (!t.formed) go_on({}, kShort)(regroup, r, t);
  });
  CHECK(told[0].kind == "aborted");
  CHECK(told[1].formed && told[1].round.members == std::vector<int>{1});
  CHECK(Clock::now() - start < kLong);  // rank 1 did not wait for rank 0
}

TEST_CASE("an error of the rank that proposes is its own; another rank proposes") {
  Pages pages(2);
  std::atomic<bool> thrown{false};
  const auto told = on_threads(pages, {0, 1}, [&](Regroup& regroup, int r, Told& t) {
    if (r == 1) return go_on({}, kShort)(regroup, r, t);
    try {
      regroup.gather({}, {}, kLong, [](const auto&) -> Regroup::Proposal {
        throw std::runtime_error("no store");
      });
    } catch (const std::runtime_error&) {
      thrown = true;
      pages.of[0]->depart();
    }
  });
  CHECK(thrown && told[1].formed);
  CHECK(told[1].round.members == std::vector<int>{1});
}

// ---- the store in which the members meet

// Gathers all ranks on threads, calls `act` with each one's store, and joins.
std::vector<Told> meet(Pages& pages, const std::vector<int>& ranks,
                       const std::function<void(PageStore&, int rank)>& act) {
  return on_threads(pages, ranks, [&](Regroup& regroup, int r, Told& t) {
    for (;;) {
      t.round = regroup.gather({}, {}, kLong, named_after(r));
      bool met = false;
      try {
        PageStore store(pages.of[size_t(r)], t.round);
        act(store, r);
        met = true;
      } catch (const PeerLostError& e) {
        t.kind = "lost", t.text = e.what();
      } catch (const RendezvousError& e) {
        t.kind = "rendezvous", t.text = e.what();
      }
      if ((t.formed = regroup.conclude(t.round, met, kLong))) return;
    }
  });
}

TEST_CASE("members read what any of them has set, and count together") {
  Pages pages(4);
  std::atomic<int64_t> sums{0};
  const std::string lots(30'000, 'x');
  const auto told = meet(pages, {0, 1, 2, 3}, [&](PageStore& store, int r) {
    CHECK(!store.find("never"));
    CHECK_THROWS(TimeoutError, "no rank has told 'never'", store.get("never", Milliseconds(2)));
    store.set("lots " + std::to_string(r), lots);
    store.set("of " + std::to_string(r), std::string("\0 and ", 7) + std::to_string(r));
    store.set("", "an empty key");
    for (int i = 0; i < 100; ++i) sums += store.add("sum", 1);
    for (const int other : {0, 1, 2, 3}) {
      CHECK(store.get("of " + std::to_string(other), kLong) ==
            std::string("\0 and ", 7) + std::to_string(other));
      CHECK(store.get("lots " + std::to_string(other), kLong) == lots);
    }
    CHECK(store.find("") == "an empty key");
    CHECK_EQ(store.add("another", r == 0 ? -5 : 0) <= 0, true);
    CHECK_THROWS(RendezvousError, "60000 bytes, does not fit", store.set("more", lots + lots));
  });
  for (const Told& t : told) CHECK(t.formed && t.kind.empty());
  CHECK_EQ(sums.load(), int64_t(400 * 401 / 2));  // each sum was returned once
}

TEST_CASE("a member that leaves ends the meeting of the others, who then meet without it") {
  Pages pages(4);
  std::atomic<int> begun{0};
  const auto start = Clock::now();
  const auto told = meet(pages, {0, 1, 2, 3}, [&](PageStore& store, int r) {
    store.set("old", "value");
    if (++begun == 4) pages.of[2]->depart();
    if (begun <= 4) store.get("of rank 2", kLong);  // which never comes
    CHECK_EQ(store.add("sum", 0), 0);
    store.set("of " + std::to_string(r), "new");
    if (r != 2) CHECK(store.get("of 0", kLong) == "new");
  });
  CHECK(Clock::now() - start < kLong);
  for (const int r : {0, 1, 3}) {
    CHECK(told[size_t(r)].formed && told[size_t(r)].round.members == std::vector<int>({0, 1, 3}));
    CHECK(told[size_t(r)].kind == "lost" || told[size_t(r)].kind == "rendezvous");
  }
}

TEST_CASE("what was told in an earlier round is gone in the next") {
  Pages pages(2);
  std::atomic<bool> failed{false};
  const auto told = meet(pages, {0, 1}, [&](PageStore& store, int r) {
    const bool second = failed;
    if (!second) {
      store.set("key", "first");
      store.add("sum", 1);
      store.get("key", kLong);
      while (store.add("sum", 0) < 2) std::this_thread::yield();
      failed = true;
      if (r == 1) throw RendezvousError("cannot");
      store.get("never", kLong);
    }
    CHECK(!store.find("key"));
    CHECK_EQ(store.add("sum", 0), 0);
  });
  for (const Told& t : told) CHECK(t.formed && t.round.number == 1 && t.kind == "rendezvous");
}

TEST_CASE("the keys of a rank that is late for this round are not those of the last one") {
  Pages pages(2);
  std::atomic<bool> read{false}, looked{false};
  on_threads(pages, {0, 1}, [&](Regroup& regroup, int r, Told& t) {
    t.round = regroup.gather({}, {}, kLong, named_after(r));
    PageStore first(pages.of[size_t(r)], t.round);
    if (r == 1) first.set("key", "old");
    if (r == 0) CHECK(first.get("key", kLong) == "old");
    if (r == 0) read = true;
    while (!read) std::this_thread::yield();
    CHECK(!regroup.conclude(t.round, false, kLong));
    CHECK_THROWS(RendezvousError, "begin again", first.add("sum", 0));
    t.round = regroup.gather({}, {}, kLong, named_after(r));
    while (r == 1 && !looked) std::this_thread::yield();
    PageStore second(pages.of[size_t(r)], t.round);
    if (r == 0) CHECK(!second.find("key"));
    looked = true;
    CHECK(regroup.conclude(t.round, true, kLong));
  });
}

TEST_CASE("sizes that another rank has spoilt are not believed") {
  Pages pages(2);
  on_threads(pages, {0, 1}, [&](Regroup& regroup, int r, Told& t) {
    t.round = regroup.gather({}, {}, kLong, named_after(r));
    PageStore store(pages.of[size_t(r)], t.round);
    RegroupNotes& own = pages.of[size_t(r)]->notes_of(r);
    own.words[0] = uint64_t(1) << 32 | 0x7fffffff;
    own.words[1] = 'k';
    std::atomic_ref(own.used).store(r == 0 ? 3 : ~uint64_t(0));
    CHECK(!store.find("k"));
    CHECK(regroup.conclude(t.round, true, kLong));
  });
}

TEST_CASE("the store outlives the ranks' agreement, but counters have an end") {
  Pages pages(2);
  std::vector<std::unique_ptr<PageStore>> stores(2);
  on_threads(pages, {0, 1}, [&](Regroup& regroup, int r, Told& t) {
    t.round = regroup.gather({}, {}, kLong, named_after(r));
    stores[size_t(r)] = std::make_unique<PageStore>(pages.of[size_t(r)], t.round);
    CHECK(regroup.conclude(t.round, true, kLong));
    pages.of[size_t(r)]->depart();
  });
  stores[0]->set("late", "value");
  CHECK(stores[1]->get("late", kLong) == "value");
  CHECK_THROWS(RendezvousError, "begun again too often", [&] {
    for (int i = 0; i < 2000; ++i) stores[0]->add(std::to_string(i), 1);
  }());
}

// All that return formed have one round and its members; the rest have left.
TEST_CASE("ranks that leave at random moments leave one ring of the rest") {
  std::mt19937 random(7);
  for (int trial = 0; trial < 60; ++trial) {
    const int ranks = 2 + int(random() % 7);
    Pages pages(ranks);
    std::vector<int> all, leaves(size_t(ranks), 0), pause(size_t(ranks), 0);
    for (int r = 0; r < ranks; ++r) {
      all.push_back(r);
      leaves[size_t(r)] = random() % 3 == 0 ? 1 + int(random() % 3) : 0;
      pause[size_t(r)] = int(random() % 2000);
    }
    const auto told = on_threads(pages, all, [&](Regroup& regroup, int r, Told& t) {
      const auto leave = [&] { pages.of[size_t(r)]->depart(); };
      std::this_thread::sleep_for(std::chrono::microseconds(pause[size_t(r)]));
      const int at = leaves[size_t(r)];
      if (at == 1) return leave();
      for (int rounds = 0;; ++rounds) {
        t.round = regroup.gather({}, {}, kLong, named_after(r));
        if (at == 2) return leave();
        const bool can_join = at != 3 || rounds > 0;
        t.formed = regroup.conclude(t.round, can_join, kLong);
        if (t.formed) return;
      }
    });
    std::vector<int> formed;
    for (int r = 0; r < ranks; ++r)
      if (told[size_t(r)].formed) formed.push_back(r);
    for (const int r : formed) {
      CHECK(told[size_t(r)].round.number == told[size_t(formed[0])].round.number);
      CHECK(told[size_t(r)].round.proposal.address ==
            told[size_t(formed[0])].round.proposal.address);
      CHECK(told[size_t(r)].round.members == formed);
    }
    for (int r = 0; r < ranks; ++r)
      CHECK(told[size_t(r)].formed == (leaves[size_t(r)] == 0 || leaves[size_t(r)] == 3));
  }
}

}  // namespace
