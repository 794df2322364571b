// The findings of the simulated machine: each kind of failure, planted; and that a run depends only
// on the seed.
#include "check.h"
#include "cuda/ptx.cuh"

using namespace simt;
using namespace ringkern::cuda;

namespace {

// A rank of one block, or two ranks of one each, all of whose threads run `kernel`.
struct Trial {
  int ranks = 1, threads = kWarpSize;
  uint64_t seed = 1;
  std::function<void(std::byte* shared, std::byte* own)> kernel = {};
};

uint64_t run(const Trial& trial) {
  Settings s;
  s.seed = trial.seed;
  s.most_steps = 100'000;
  s.clock_jump = 1000;
  s.memory.stale = 64;
  Machine& m = machine();
  m.reset(s, trial.ranks, 1, trial.threads);
  std::byte* shared = m.memory().add("shared", Kind::shared, -1, 256);
  std::byte* own = m.memory().add("own", Kind::own, 0, 64);
  Launch launch;
  for (int r = 0; r < trial.ranks; ++r) launch.ranks.push_back(r);
  launch.threads = trial.threads;
  launch.kernel = [&] { trial.kernel(shared, own); };
  m.start(launch);
  m.run();
  return m.steps();
}

std::string failure_of(const Trial& trial) {
  try {
    run(trial);
  } catch (const Failure& f) {
    return f.what();
  }
  return "none";
}

template <class F>
void expect(const char* failure, Trial trial, F kernel) {
  trial.kernel = kernel;
  CHECK_CONTAINS(failure_of(trial), failure);
}

uint64_t* word(std::byte* p, int i = 0) { return reinterpret_cast<uint64_t*>(p) + i; }
bool first() { return thread_index() == 0 && block_index() == 0; }
bool second() { return thread_index() == 0 && block_index() == 1; }

TEST_CASE("accesses out of bounds and misaligned ones are found") {
  expect("out of bounds: rank 0 channel 0 thread 0: a load of 8 bytes at byte 64 of own", {},
         [](std::byte*, std::byte* own) {
           if (first()) ld_weak<8>(own + 64);
         });
  expect("out of bounds", {}, [](std::byte*, std::byte* own) {
    if (first()) st_weak<1>(own - 1, 0);
  });
  expect("out of bounds", {}, [](std::byte* shared, std::byte*) {
    if (first()) st_relaxed16(shared + 256, {});
  });
  expect("misaligned", {}, [](std::byte* shared, std::byte*) {
    if (first()) ld_weak16(shared + 8);
  });
}

TEST_CASE("accesses to another rank's own memory are found") {
  expect("not its own", {2}, [](std::byte*, std::byte* own) {
    if (second()) ld_weak<8>(own);
  });
  expect("not its own", {2}, [](std::byte*, std::byte* own) {
    if (second()) st_weak<8>(own, 1);
  });
}

TEST_CASE("races are found") {
  const Trial two{2};
  const auto both = [](auto f, auto g) {
    return [=](std::byte* shared, std::byte* own) {
      if (first()) f(shared, own);
      if (second()) g(shared, own);
    };
  };
  const auto weak = [](std::byte* shared, std::byte*) { st_weak<8>(shared, 1); };
  expect("race", two, both(weak, weak));
  expect("race", two, both(weak, [](std::byte* shared, std::byte*) { ld_weak<8>(shared); }));
  expect("race", two, both(weak, [](std::byte* shared, std::byte*) { ld_acquire(word(shared)); }));
  const auto strong = [](std::byte* shared, std::byte*) { st_relaxed(word(shared), 1); };
  expect("none", two, both(strong, strong));
  const auto look = [](std::byte* shared, std::byte*) { ld_relaxed(word(shared)); };
  expect("none", two, both(strong, look));
  // Published: the data of one rank, read by the other.
  const auto publish = [](std::byte* shared, std::byte*) {
    st_weak<8>(shared, 7);
    fence_acq_rel();
    st_relaxed(word(shared, 16), 1);
  };
  const auto receive = [](std::byte* shared, std::byte*) {
    if (ld_acquire(word(shared, 16)) == 1) CHECK_EQ(ld_weak<8>(shared), uint64_t(7));
  };
  expect("none", two, both(publish, receive));
  // Shared memory of a block: ordered by a barrier, or not.
  const auto share = [](bool wait) {
    return [=](std::byte*, std::byte*) {
      RK_SHARED(uint64_t, cell);
      if (thread_index() == 0) st_shared(&cell, 5);
      if (wait) barrier_or(0, thread_count(), false);
      CHECK(ld_shared(&cell) == 5 || !wait);
    };
  };
  expect("none", {1, 64}, share(true));
  expect("race: rank 0 channel 0 thread", {1, 64}, share(false));
}

// A line that was read may be overwritten when its writer knows of that.
TEST_CASE("a line's reuse is a race unless its reader has told") {
  const auto ring = [](bool credit) {
    return [=](std::byte* shared, std::byte*) {
      std::byte* line = shared + 16 * (thread_index() % 8);
      if (thread_index() >= kWarp) return;
      if (block_index() == 0) {
        st_relaxed16(line, {1, 1});
        bool back = false;
        for (int i = 0; i < 40 && !back; ++i) back = ld_acquire(word(shared, 31)) == 1;
        if (all_lanes(back || !credit)) st_relaxed16(line, {2, 2});
      } else {
        bool seen = false;
        for (int i = 0; i < 40 && !seen; ++i) seen = all_lanes(ld_relaxed16(line).lo == 1);
        if (!seen) return;
        syncwarp();
        if (credit && thread_index() == 0) fence_acq_rel(), st_relaxed(word(shared, 31), 1);
      }
    };
  };
  std::string without;
  for (uint64_t seed = 1; seed <= 1000; ++seed) {
    Trial trial{2, kWarpSize, seed};
    trial.kernel = ring(true);
    CHECK_EQ(failure_of(trial), std::string("none"));
    trial.kernel = ring(false);
    if (const std::string f = failure_of(trial); f != "none") without = f;
  }
  CHECK_CONTAINS(without, "a strong store to");
}

TEST_CASE("threads that miss a barrier are found") {
  expect("divergent", {}, [](std::byte*, std::byte*) {
    if (first()) syncwarp();
  });
  expect("divergent", {}, [](std::byte*, std::byte*) {
    if (thread_index() % 2 == 0) syncwarp();
    else all_lanes(true);
  });
  expect("divergent", {1, 64}, [](std::byte*, std::byte*) { barrier_or(0, 33, false); });
  expect("divergent", {1, 64}, [](std::byte*, std::byte*) {
    if (thread_index() % 2 == 0) barrier_or(0, 64, false);
    else syncwarp();
  });
  expect("divergent: rank 0", {}, [](std::byte* shared, std::byte*) {
    syncwarp();
    ld_weak<8>(shared + 128);
    ld_line16(shared + 16 * (thread_index() % 8));
  });
  expect("none", {1, 64}, [](std::byte*, std::byte*) {
    CHECK(barrier_or(1, 64, thread_index() == 40));
    CHECK(!barrier_or(1, 64, false));
    CHECK_EQ(from_lane(uint32_t(thread_index()), 3), uint32_t(thread_index() / 32 * 32 + 3));
    CHECK(!all_lanes(thread_index() != 5 && thread_index() != 37));
  });
}

// A deadlock is detected at once; if some thread reads the clock, time passes.
TEST_CASE("deadlocks are found, and waits with a clock time out") {
  const auto poll = [](bool timed) {
    return [=](std::byte* shared, std::byte*) {
      const uint64_t start = timed ? nanoseconds() : 0;
      for (;;) {
        if (all_lanes(ld_acquire(word(shared)) == 1)) return;
        if (timed && all_lanes(nanoseconds() - start > 500)) return;
        rest(1);
      }
    };
  };
  expect("deadlock: nobody can go on\n  rank 0 channel 0 warp 0 polls\n    byte 0 of shared", {},
         poll(false));
  expect("none", {}, poll(true));
  expect("deadlock: nobody can go on\n  rank 0 channel 0 warp 0: 32 lanes at a barrier", {1, 64},
         [](std::byte*, std::byte*) {
           if (thread_index() < kWarp) barrier_or(0, 64, false);
         });
  expect("livelock", {}, [](std::byte* shared, std::byte*) {
    while (ld_relaxed(word(shared)) == 0) continue;
  });
  // Events that wake polling threads.
  expect("none", {2}, [&](std::byte* shared, std::byte* own) {
    if (block_index() == 0) return poll(false)(shared, own);
    if (thread_index() == 0) st_relaxed(word(shared), 1);
  });
}

// The values that the loads of all threads return, in order; they identify a run.
TEST_CASE("a run is the same for the same seed") {
  const auto values = [](uint64_t seed) {
    std::string all;
    Trial trial{2, 64, seed};
    trial.kernel = [&](std::byte* shared, std::byte*) {
      for (uint64_t i = 1; i <= 10; ++i) {
        st_relaxed(word(shared, thread_index() % 4), i);
        all += char('0' + ld_relaxed(word(shared, (thread_index() + 1) % 4)));
      }
    };
    run(trial);
    return all;
  };
  CHECK_EQ(values(1), values(1));
  CHECK(values(1) != values(2));
}

}  // namespace
