// The worker runs tasks in order, and continues while a callback waits for the next.
#include "comm/worker.h"

#include <sys/resource.h>

#include <atomic>
#include <future>
#include <system_error>

#include "check.h"

using ringkern::Worker;

namespace {

constexpr std::chrono::seconds kLimit{20};

void check_soon(std::future<void> future) {
  REQUIRE(future.wait_for(kLimit) == std::future_status::ready);
}

// A sanitizer needs address space.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// Leaves no room for the stack of a thread.
class NoMoreThreads {
 public:
  NoMoreThreads() {
    REQUIRE(::getrlimit(RLIMIT_AS, &before_) == 0);
    const rlimit none{1 << 20, before_.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_AS, &none) == 0);
  }
  ~NoMoreThreads() { CHECK(::setrlimit(RLIMIT_AS, &before_) == 0); }

 private:
  rlimit before_;
};

// Runs first: a stack that a thread has left would be reused.
TEST_CASE("nothing is posted where no thread can be made") {
  Worker worker;
  bool refused = false;
  {
    const NoMoreThreads here;
    try {
      worker.post([] {}, [] {});
    } catch (const std::system_error&) {
      refused = true;
    }
  }
  CHECK(refused);
  CHECK(!worker.busy());
  worker.drain();  // returns
  // With one thread, and no second one for tasks that arrive during a callback.
  std::promise<void> first, limited, ran;
  worker.post([] {},
              [&] {
                first.set_value();
                limited.get_future().wait();
              });
  check_soon(first.get_future());
  {
    const NoMoreThreads here;
    worker.post([&] { ran.set_value(); }, [] {});
    limited.set_value();
    check_soon(ran.get_future());
  }
  worker.drain();
  // The same thread runs a task that was posted while another ran, after its callback.
  std::promise<void> go, second;
  worker.post([&] { go.get_future().wait(); }, [] {});
  worker.post([&] { second.set_value(); }, [] {});
  {
    const NoMoreThreads here;
    go.set_value();
    check_soon(second.get_future());
  }
}
#endif

void one_at_a_time_in_order() {
  Worker worker;
  std::vector<int> ran;  // not locked: ThreadSanitizer sees whether two run at once
  std::atomic<int> told{0};
  for (int i = 0; i < 1000; ++i) worker.post([&ran, i] { ran.push_back(i); }, [&told] { ++told; });
  worker.drain();
  CHECK(told == 1000);
  for (int i = 0; i < 1000; ++i) CHECK(ran[size_t(i)] == i);
}

void one_who_is_told_waits_for_what_it_posts() {
  Worker worker;
  std::promise<void> inner, innermost, outer;
  worker.post([] {},
              [&] {
                worker.post([] {},
                            [&] {
                              worker.post([&] { innermost.set_value(); }, [] {});
                              check_soon(innermost.get_future());
                              inner.set_value();
                            });
                check_soon(inner.get_future());
                outer.set_value();
              });
  check_soon(outer.get_future());
  worker.drain();
}

void one_who_is_told_waits_for_what_was_posted_before() {
  Worker worker;
  std::promise<void> go, second, told;
  auto started = go.get_future();
  worker.post([&] { started.wait(); },
              [&] {
                check_soon(second.get_future());
                told.set_value();
              });
  worker.post([&] { second.set_value(); }, [] {});
  go.set_value();
  check_soon(told.get_future());
}

void one_who_is_told_waits_for_what_another_thread_posts() {
  Worker worker;
  std::promise<void> first, second, told;
  worker.post([] {},
              [&] {
                first.set_value();
                check_soon(second.get_future());
                told.set_value();
              });
  check_soon(first.get_future());
  worker.post([&] { second.set_value(); }, [] {});
  check_soon(told.get_future());
}

void stopping_runs_what_was_posted() {
  std::atomic<int> ran{0};
  {
    Worker worker;
    worker.post([] {},
                [&] {
                  for (int i = 0; i < 10; ++i) worker.post([&] { ++ran; }, [&] { ++ran; });
                });
    worker.stop();
  }
  CHECK(ran == 20);
}

TEST_CASE("draining waits no longer than its timeout") {
  Worker worker;
  std::promise<void> go;
  auto future = go.get_future();
  worker.post([&] { future.wait(); }, [] {});
  CHECK(!worker.drain(std::chrono::milliseconds(1)));
  go.set_value();
  CHECK(worker.drain(kLimit));
}

constexpr int kTimes = 50;

TEST_CASE("tasks run one at a time, in order") {
  for (int i = 0; i < kTimes; ++i) one_at_a_time_in_order();
}

TEST_CASE("a callback waits for the task that it posts") {
  for (int i = 0; i < kTimes; ++i) one_who_is_told_waits_for_what_it_posts();
}

TEST_CASE("a callback waits for a task that was posted before") {
  for (int i = 0; i < kTimes; ++i) one_who_is_told_waits_for_what_was_posted_before();
}

TEST_CASE("a callback waits for a task that another thread posts") {
  for (int i = 0; i < kTimes; ++i) one_who_is_told_waits_for_what_another_thread_posts();
}

TEST_CASE("stopping runs the tasks that were posted") {
  for (int i = 0; i < kTimes; ++i) stopping_runs_what_was_posted();
}

}  // namespace
