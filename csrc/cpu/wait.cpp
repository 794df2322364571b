#include "cpu/wait.h"

#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "core/lookout.h"

namespace ringkern::cpu {
namespace {

// About 50 us of polling before the first yield: longer than it takes to wake a rank. With less,
// two ranks of which one has slept once would never be awake together again: each would find the
// other asleep, wake it, and sleep when the answer comes.
constexpr int kPauses = 2000;
constexpr int kYields = 100;
// A yield that took longer gave the core to a thread outside of the ring. The next yield comes only
// after a multiple of that time, which bounds the share of time that a rank gives away.
constexpr std::chrono::nanoseconds kLongYield = std::chrono::microseconds(500);
constexpr int kRarity = 100;
// If ranks share cores, that thread is more often a rank at other work; a rank that then slept long
// would make the small calls after that work ten times as slow.
constexpr int kRarityOnSharedCores = 1;
// A yield that took longer gave the core to another thread.
constexpr std::chrono::nanoseconds kSwitch = std::chrono::microseconds(2);
// The longest wait that a rank yields through, if its waits have lately been so long: some times as
// long as it takes to be woken.
constexpr std::chrono::nanoseconds kLongestYielding = std::chrono::microseconds(500);
// The longest sleep without a ring: bounds the harm of a neighbour that died between publishing and
// ringing, and the delay until a deadline is noticed.
constexpr std::chrono::nanoseconds kLongestSleep = std::chrono::milliseconds(50);

// The least that Linux takes.
constexpr uint64_t kShortestSlice = 100'000;  // ns

// struct sched_attr of Linux: libc has neither it nor its two calls before glibc 2.41.
struct SchedulingOf {
  uint32_t size = sizeof(SchedulingOf), policy = 0;
  uint64_t flags = 0;
  int32_t nice = 0;
  uint32_t priority = 0;
  uint64_t slice = 0, deadline = 0, period = 0;  // ns
};
static_assert(sizeof(SchedulingOf) == 48);

// Sets the time slice of this thread; its policy and nice value stay. Returns the slice before; 0:
// it is not set, because the system does not know it or forbids the call.
uint64_t set_slice(uint64_t ns) {
  SchedulingOf mine;
  if (syscall(SYS_sched_getattr, 0, &mine, sizeof mine, 0) != 0) return 0;
  if (mine.policy != SCHED_OTHER && mine.policy != SCHED_BATCH) return 0;
  const uint64_t before = std::exchange(mine.slice, ns);  // 0 before Linux 6.12
  if (before == 0 || syscall(SYS_sched_setattr, 0, &mine, 0) != 0) return 0;
  return before;
}

// Processes share the segment, so the private futex operations do not work.
void futex_wait(uint32_t& word, uint32_t expected, std::chrono::nanoseconds at_most) {
  const timespec t{at_most.count() / 1'000'000'000, at_most.count() % 1'000'000'000};
  syscall(SYS_futex, &word, FUTEX_WAIT, expected, &t, nullptr, 0);
}

void futex_wake(uint32_t& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));  // it can be a futex

std::atomic_ref<uint32_t> atomic(uint32_t& word) { return std::atomic_ref<uint32_t>(word); }

// Returns the socket of a processor; -1: unknown.
int socket_of(size_t processor) {
  char path[96];
  std::snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%zu/topology/physical_package_id",
                processor);
  std::FILE* const file = std::fopen(path, "re");
  if (file == nullptr) return -1;
  int socket = -1;
  if (std::fscanf(file, "%d", &socket) != 1) socket = -1;
  std::fclose(file);
  return socket;
}

}  // namespace

void notify(Bell& bell) {
  atomic(bell.rung).fetch_add(1, std::memory_order_release);
  futex_wake(bell.rung);
}

void abort_waits(Bell& bell) {
  atomic(bell.aborted).store(1, std::memory_order_release);
  notify(bell);
}

void sleep_while(std::atomic<uint32_t>& word, uint32_t value) {
  while (word.load(std::memory_order_acquire) == value)
    syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}

void wake_all(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

int pauses_for(int ranks, int processors) {
  // A rank that spins on a processor that its neighbour needs delays its own data.
  return ranks <= processors ? kPauses : 0;
}

Processors my_processors() {
  Processors mine{};
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0)
    for (size_t i = 0; i < 64 * mine.size() && i < CPU_SETSIZE; ++i)
      if (CPU_ISSET(i, &set)) mine[i / 64] |= uint64_t(1) << i % 64;
  return mine;
}

int my_socket() {
  const Processors mine = my_processors();
  int found = -1;
  for (size_t i = 0; i < 64 * mine.size(); ++i) {
    if ((mine[i / 64] >> i % 64 & 1) == 0) continue;
    const int socket = socket_of(i);
    if (socket < 0 || (found >= 0 && socket != found)) return -1;
    found = socket;
  }
  return found;
}

Wait::Ladder::Ladder(Wait& wait)
    : wait_(wait), start_(Clock::now()), now_(start_),
      yields_(start_ < wait.history_.yield_from ? 0 : kYields),
      yield_until_(yields_ > 0 && wait.learns_ ? start_ + wait.history_.lately : start_) {
  wait.begin_rest();
}

Wait::Ladder::~Ladder() {
  if (slice_ > 0) set_slice(slice_);
}

void Wait::Ladder::yield() {
  --yields_;
  sched_yield();
  const auto took = Clock::now() - now_;
  now_ += took;
  last_yield_ = took;
  // If ranks share cores, a rank of this ring may have run, at work on the awaited data.
  if (took >= kLongYield && wait_.pauses_ > 0) sleep_from_now_on();
}

void Wait::Ladder::sleep_from_now_on() {
  yields_ = 0;
  yield_until_ = start_;
  const int rarity = wait_.pauses_ > 0 ? kRarity : kRarityOnSharedCores;
  wait_.history_.yield_from = now_ + rarity * std::exchange(last_yield_, {});
}

Verdict Wait::Ladder::rest() {
  Bell& bell = wait_.bell_;
  look_out();
  if (aborted(bell)) return Verdict::aborted;
  if (last_yield_ >= kLongYield) sleep_from_now_on();  // and the awaited data has not come
  if (yields_ > 0 || now_ < yield_until_) {
    yield();
    return Verdict::ok;
  }
  const auto waited = Clock::now() - start_;
  if (waited >= wait_.timeout_) return Verdict::timed_out;
  if (announced_) {
    if (slice_ == 0) slice_ = set_slice(kShortestSlice);
    futex_wait(bell.rung, rung_,
               std::min<std::chrono::nanoseconds>(kLongestSleep, wait_.timeout_ - waited));
  }
  rung_ = atomic(bell.rung).load(std::memory_order_acquire);
  atomic(bell.asleep).store(1, std::memory_order_relaxed);
  publish_barrier();  // the poll that follows must not be older than the announcement
  announced_ = true;
  return Verdict::ok;
}

void Wait::Ladder::leave(Verdict verdict) {
  if (verdict == Verdict::ok && !announced_ && last_yield_ >= kSwitch) wait_.shared_a_core_ = true;
  if (announced_) atomic(wait_.bell_.asleep).store(0, std::memory_order_relaxed);
  if (!wait_.learns_) return;
  // Twice as long as this wait covers most of the next ones; a few short waits between them, or a
  // single long one, change little.
  std::chrono::nanoseconds& lately = wait_.history_.lately;
  const std::chrono::nanoseconds waited = Clock::now() - start_;
  if (waited > kLongestYielding) lately -= lately / 4;
  else
    lately =
        std::clamp<std::chrono::nanoseconds>(2 * waited, lately - lately / 8, kLongestYielding);
}

}  // namespace ringkern::cpu
