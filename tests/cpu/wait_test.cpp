// A wait yields while that helps, and sleeps where a yield gives the core to another program.
#include "cpu/wait.h"

#include <errno.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "cpu/local.h"

using namespace ringkern;
using namespace std::chrono_literals;

namespace {

std::atomic<int> yields{0};
std::atomic<std::chrono::nanoseconds> away{0ns};  // how long a yield takes, as if the core was busy

}  // namespace

// In place of libc's, for whatever is linked into this program.
extern "C" int sched_yield() noexcept {
  ++yields;
  if (away.load() == 0ns) return int(syscall(SYS_sched_yield));
  timespec left{0, std::chrono::nanoseconds(away.load()).count()};
  while (nanosleep(&left, &left) != 0 && errno == EINTR) continue;
  return 0;
}

namespace {

void quick_yields_come_before_sleep() {
  cpu::Bell bell{};
  std::chrono::steady_clock::time_point yield_from;
  yields = 0;
  for (int i = 0; i < 3; ++i) {
    cpu::Wait wait(bell, /*pauses=*/0, 60s, yield_from);
    int polls = 0;
    CHECK(wait.until([&] { return ++polls == 20; }) == Verdict::ok);
  }
  CHECK(yields > 0);
}

// Each yield of a rank that lost its core is followed by a hundred times as long without one.
void slow_yields_are_rare() {
  constexpr auto kAway = 20ms;
  for (const int ranks : {2, 8}) {
    std::vector<float> memory(size_t(ranks) * 100);
    std::vector<Task> tasks(static_cast<size_t>(ranks));
    for (int r = 0; r < ranks; ++r) {
      Task& task = tasks[size_t(r)];
      task.reduction = Reduction::of(Op::sum, DType::f32, ranks);
      task.in = task.out = memory.data() + r * 100;
      task.count = 100;
    }
    cpu::LocalRing ring(ranks, Milliseconds(60'000));
    yields = 0;
    away = kAway;
    const auto start = std::chrono::steady_clock::now();
    for (int call = 0; call < 20; ++call) ring.run(tasks);
    const auto took = std::chrono::steady_clock::now() - start;
    away = 0ns;
    CHECK(yields <= ranks * (1 + took / (100 * kAway)));
  }
}

}  // namespace

int main() {
  quick_yields_come_before_sleep();
  slow_yields_are_rare();
}
