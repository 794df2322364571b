// A wait yields while that helps, and sleeps where a yield gives the core to another program. A
// sleeper is woken, and a task is told before its wait rests.
#include "cpu/wait.h"

#include <dlfcn.h>
#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <random>
#include <thread>

#include "check.h"
#include "core/lookout.h"

using namespace ringkern;
using namespace std::chrono_literals;

namespace {

std::atomic<int> yields{0};
// Duration of a yield, like on a busy core; kIdle: it returns at once, like on an idle one.
constexpr std::chrono::nanoseconds kIdle{-1};
std::atomic<std::chrono::nanoseconds> away{0ns};
std::atomic<int> sleeps_begun{0}, settings{0};  // `settings`: of a thread's scheduling
// Called with the word if a sleep ended without a ring.
std::atomic<void (*)(const uint32_t* word, uint32_t expected)> overslept{nullptr};

}  // namespace

// Replaces libc's for everything linked into this program.
extern "C" int sched_yield() noexcept {
  ++yields;
  static const auto libc = reinterpret_cast<int (*)()>(::dlsym(RTLD_NEXT, "sched_yield"));
  if (away.load() == kIdle) return 0;
  if (away.load() == 0ns) return libc();
  timespec left{0, std::chrono::nanoseconds(away.load()).count()};
  while (nanosleep(&left, &left) != 0 && errno == EINTR) continue;
  return 0;
}

extern "C" long syscall(long number, ...) noexcept {
  static const auto libc = reinterpret_cast<long (*)(long, ...)>(::dlsym(RTLD_NEXT, "syscall"));
  va_list list;
  va_start(list, number);
  long a[6];
  for (long& x : a) x = va_arg(list, long);
  va_end(list);
  const bool waits = number == SYS_futex && (a[1] & FUTEX_CMD_MASK) == FUTEX_WAIT;
  sleeps_begun += waits;
  settings += number == SYS_sched_setattr;
  const long result = libc(number, a[0], a[1], a[2], a[3], a[4], a[5]);
  if (waits && result == -1 && errno == ETIMEDOUT)
    if (const auto tell = overslept.load())
      tell(reinterpret_cast<const uint32_t*>(a[0]), uint32_t(a[2]));
  return result;
}

namespace {

// The wait of a rank that must not yield now: it sleeps at once.
cpu::Wait sleeping_wait(cpu::Bell& bell) {
  static cpu::WaitHistory no_yields{std::chrono::steady_clock::time_point::max()};
  return {bell, /*pauses=*/0, 60s, no_yields};
}

TEST_CASE("quick yields come before a sleep") {
  cpu::Bell bell{};
  cpu::WaitHistory history;
  yields = 0;
  for (int i = 0; i < 3; ++i) {
    cpu::Wait wait(bell, /*pauses=*/0, 60s, history);
    int polls = 0;
    CHECK(wait.until([&] { return ++polls == 20; }) == Verdict::ok);
  }
  CHECK(yields > 0);
}

// Returns how often a wait yields, each time for long. The data is there after the first yield, or,
// if yields bring nothing, when the wait is about to sleep.
int slow_yields(int pauses, bool bring, cpu::WaitHistory& history) {
  cpu::Bell bell{};
  cpu::Wait wait(bell, pauses, 60s, history);
  const int before = yields;
  away = 20ms;
  CHECK(wait.until([&] { return (bring && yields > before) || cpu::asleep(bell); }) == Verdict::ok);
  away = 0ns;
  return yields - before;
}

// A rank that lost its core to another program sleeps, for a hundred times as long as that took.
// Where there are more ranks than cores, it may have lost it to one of them, which has done its
// part; if not, it sleeps for as long.
TEST_CASE("slow yields are rare") {
  using Clock = std::chrono::steady_clock;
  constexpr int kOwnCore = 10, kSharedCore = 0;  // pauses
  cpu::WaitHistory history;
  Clock::time_point start = Clock::now();
  CHECK_EQ(slow_yields(kOwnCore, true, history), 1);
  CHECK(history.yield_from >= start + 20ms + 100 * 20ms);
  history = {};
  for (int i = 0; i < 5; ++i) CHECK_EQ(slow_yields(kSharedCore, true, history), 1);
  CHECK(history.yield_from == Clock::time_point{});
  start = Clock::now();
  CHECK_EQ(slow_yields(kSharedCore, false, history), 1);
  CHECK(history.yield_from >= start + 20ms + 20ms);
  history.yield_from = Clock::now() + 1h;
  for (const int pauses : {kOwnCore, kSharedCore}) {
    CHECK_EQ(slow_yields(pauses, true, history), 0);
    CHECK_EQ(slow_yields(pauses, false, history), 0);
  }
}

// A core that two ranks share, although there are enough, shows by a yield that brings the data;
// not by data that comes by itself, nor after a time in which another program had the core.
TEST_CASE("a core that two ranks share is found") {
  const auto found = [](std::chrono::nanoseconds takes, auto&& ready) {
    cpu::Bell bell{};
    cpu::WaitHistory history;
    cpu::Wait wait(bell, /*pauses=*/10, 60s, history);
    away = takes;
    const int before = yields;
    CHECK(wait.until([&] { return ready(bell, before); }) == Verdict::ok);
    away = 0ns;
    return wait.shared_a_core();
  };
  const auto after_a_yield = [](const cpu::Bell&, int before) { return yields > before; };
  bool ever = false;  // the system may have taken the core away for longer
  for (int i = 0; i < 20; ++i) ever = ever || found(50us, after_a_yield);
  CHECK(ever);
  CHECK(!found(20ms, after_a_yield));
  CHECK(!found(50us, [](const cpu::Bell&, int) { return true; }));
  CHECK(!found(50us, [](const cpu::Bell& bell, int) { return cpu::asleep(bell); }));
}

// Returns the time for which later waits yield, after a wait that takes at least this long and
// began with `lately`.
std::chrono::nanoseconds learned(std::chrono::nanoseconds lately, std::chrono::nanoseconds takes,
                                 int pauses = 1) {
  cpu::Bell bell{};
  cpu::WaitHistory history{{}, lately};
  cpu::Wait wait(bell, pauses, 60s, history);
  wait.learn();
  int polls = 0;
  CHECK(wait.until([&] {
    if (++polls == 10) std::this_thread::sleep_for(takes);
    return polls == 10;
  }) == Verdict::ok);
  return history.lately;
}

TEST_CASE("waits teach the next ones how long to yield") {
  // The system may take the core away for longer.
  const auto end = std::chrono::steady_clock::now() + 60s;
  bool ever = false;
  while (!ever && std::chrono::steady_clock::now() < end) ever = learned(0us, 100us) >= 200us;
  CHECK(ever);
  for (const auto takes : {0us, 100us, 240us})
    for (const auto before : {0us, 100us, 500us}) {
      const auto after = learned(before, takes);
      CHECK(after <= 500us);
      CHECK(after >= before / 4 * 3);
    }
  CHECK(learned(400us, 600us) == 300us);  // in vain
  CHECK(learned(400us, 100us, /*pauses=*/0) == 400us);
}

TEST_CASE("a rank that has learned to yield does not sleep early") {
  // Returns whether the rank sleeps before it has polled two hundred times.
  const auto sleeps = [](std::chrono::nanoseconds lately, std::chrono::nanoseconds each) {
    cpu::Bell bell{};
    cpu::WaitHistory history{{}, lately};
    cpu::Wait wait(bell, /*pauses=*/1, 60s, history);
    wait.learn();
    int polls = 0;
    bool slept = false;
    away = each;
    CHECK(wait.until([&] {
      slept = slept || cpu::asleep(bell);
      return slept || ++polls == 200;
    }) == Verdict::ok);
    away = 0ns;
    return slept;
  };
  CHECK(sleeps(0us, kIdle));
  bool ever = false;  // the system may have taken the core away
  for (int i = 0; i < 20; ++i) ever = ever || !sleeps(1h, kIdle);
  CHECK(ever);
  CHECK(sleeps(1h, 20ms));  // another program takes the core
}

TEST_CASE("a rank stops polling after several waits on a shared core, and tries again") {
  cpu::Polling polling;
  const auto note = [&](int calls, bool waited, bool shared) {
    for (int i = 0; i < calls; ++i) polling.note(waited, shared);
    return polling.on();
  };
  CHECK(note(3, true, true));
  CHECK(note(1, true, false));  // a slow yield that was an accident
  CHECK(note(3, true, true));
  CHECK(note(1, false, false));  // data that was there tells nothing
  CHECK(!note(1, true, true));
  CHECK(!note(999, true, false));
  CHECK(note(1, true, false));
  CHECK(note(3, true, true));
  CHECK(!note(1, true, true));
  CHECK(note(1000, false, false));
  CHECK(!note(1, true, true));  // still shared
}

// The policy, nice value and time slice of a thread: the kernel's struct sched_attr.
struct SchedulingOf {
  uint32_t size = 0, policy = 0;
  uint64_t flags = 0;
  int32_t nice = 0;
  uint32_t priority = 0;
  uint64_t slice = 0, deadline = 0, period = 0;
  bool operator==(const SchedulingOf&) const = default;
};
SchedulingOf scheduling_of(long thread) {
  SchedulingOf found{};
  CHECK_EQ(syscall(SYS_sched_getattr, thread, &found, sizeof found, 0), 0);
  return found;
}

// Beside a program that keeps its core busy a sleeper with the usual slice would get the core some
// milliseconds after it was woken. Before Linux 6.12 threads have no slice of their own: it is 0.
TEST_CASE("a rank sleeps with the shortest time slice, and then has its own again") {
  for (const uint32_t policy : {SCHED_OTHER, SCHED_BATCH, SCHED_IDLE, SCHED_DEADLINE}) {
    cpu::Bell bell{};
    uint64_t value = 0;
    std::atomic<long> thread{0};
    SchedulingOf before{}, after{};
    std::thread sleeper([&] {
      SchedulingOf own{.size = sizeof own, .policy = policy, .nice = 3};
      if (policy == SCHED_DEADLINE)  // there it is the time that a thread may run
        own = {.size = sizeof own, .policy = policy, .slice = 10'000'000, .deadline = 20'000'000};
      const bool has_it = syscall(SYS_sched_setattr, 0, &own, 0) == 0;
      CHECK(has_it || policy == SCHED_DEADLINE);  // which needs a privilege
      before = scheduling_of(0);
      sleeps_begun = settings = 0;
      thread = syscall(SYS_gettid);
      CHECK(sleeping_wait(bell).until([&] { return cpu::load_acquire(value) == 1; }) ==
            Verdict::ok);
      after = scheduling_of(0);
    });
    while (thread == 0) std::this_thread::yield();
    SchedulingOf expected = before;
    const bool has_slices = before.policy == SCHED_OTHER || before.policy == SCHED_BATCH;
    if (before.slice > 0 && has_slices) expected.slice = 100'000;
    const auto end = std::chrono::steady_clock::now() + 60s;
    while (sleeps_begun < 2 || scheduling_of(thread) != expected) {
      cpu::notify(bell);  // in vain, so that it sleeps again
      REQUIRE(std::chrono::steady_clock::now() < end);
      std::this_thread::sleep_for(1ms);
    }
    cpu::store_release(value, 1);
    cpu::wake(bell);
    sleeper.join();
    CHECK(after == before);
    CHECK_EQ(settings, expected == before ? 0 : 2);
  }
}

// A task is told of its rest once, before the first; never if all data was there in time.
TEST_CASE("a rank is told before its wait rests") {
  for (const bool sleeps : {false, true}) {
    cpu::Bell bell{};
    cpu::WaitHistory history;
    if (sleeps) history.yield_from = std::chrono::steady_clock::time_point::max();
    cpu::Wait wait(bell, /*pauses=*/200, 60s, history);
    int told = 0;
    wait.on_rest([](void* with) { ++*static_cast<int*>(with); }, &told);
    yields = 0;
    CHECK(wait.until([] { return true; }) == Verdict::ok);
    int polls = 0;
    CHECK(wait.until([&] { return ++polls == 200; }) == Verdict::ok);
    CHECK_EQ(told, 0);
    CHECK_EQ(yields, 0);
    for (int i = 0; i < 3; ++i) {
      polls = 0;
      CHECK(wait.until([&] {
        CHECK_EQ(told, i > 0 || ++polls > 201 ? 1 : 0);
        CHECK(told == 1 || (yields == 0 && !cpu::asleep(bell)));
        polls += i > 0;
        return polls == 203;
      }) == Verdict::ok);
      CHECK_EQ(told, 1);
    }
  }
  cpu::Bell bell{};  // not observed
  cpu::Wait wait = sleeping_wait(bell);
  int polls = 0;
  CHECK(wait.until([&] { return ++polls == 3; }) == Verdict::ok);
}

// A lookout of this thread may end the wait without a ring.
TEST_CASE("a lookout may end a wait") {
  cpu::Bell bell{};
  const Lookout gives_up{[](void* with) { cpu::abort_waits(*static_cast<cpu::Bell*>(with)); },
                         &bell};
  lookout = &gives_up;
  const Verdict verdict = sleeping_wait(bell).until([] { return false; });
  lookout = nullptr;
  CHECK(verdict == Verdict::aborted);
}

// ---- a sleeper and its waker --------------------------------------------------------------------

cpu::Bell the_bell{};
std::atomic<uint64_t> wanted{0}, woken{0};

// The sleeper's data is there, and its publisher believed that it was awake, or woken; and it has
// not rung.
void check_not_forgotten(const uint32_t* word, uint32_t expected) {
  if (word != &the_bell.rung || woken.load() < wanted.load()) return;
  REQUIRE(std::atomic_ref(the_bell.rung).load() != expected);
}

// The two meet at any distance of some hundred instructions. Without the fence of either, a wake is
// lost sooner or later, in most runs of this test.
TEST_CASE("no wake-up is lost") {
  overslept = check_not_forgotten;
  constexpr uint64_t kTimes = 60'000;
  uint64_t value = 0;
  std::thread sleeper([&] {
    for (uint64_t i = 1; i <= kTimes; ++i) {
      cpu::Wait wait = sleeping_wait(the_bell);
      wanted = i;
      CHECK(wait.until([&] { return cpu::load_acquire(value) >= i; }) == Verdict::ok);
    }
  });
  std::mt19937 random(1);
  for (uint64_t i = 1; i <= kTimes; ++i) {
    while (wanted.load() < i) std::this_thread::yield();
    for (unsigned n = random() % 300; n > 0; --n)
      std::atomic_signal_fence(std::memory_order_seq_cst);
    cpu::store_release(value, i);
    cpu::publish_barrier();
    cpu::notify_if_asleep(the_bell);
    woken = i;
  }
  sleeper.join();
  overslept = nullptr;
}

}  // namespace
