// Events: in order, bounded, ended by close(), requested by a signal, and not inherited by a child.
#include "comm/event_queue.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "check.h"

namespace ringkern {
namespace {

std::string next_text(EventQueue& queue) {
  const auto event = queue.next();
  return event ? event->text : "nothing";
}

TEST_CASE("events are taken in the order in which they came") {
  EventQueue queue;
  queue.post(EventKind::warning, "one");
  queue.post(EventKind::failure, "two");
  const auto one = queue.next(), two = queue.next();
  CHECK(one && one->kind == EventKind::warning && one->text == "one");
  CHECK(two && two->kind == EventKind::failure && two->text == "two");
}

TEST_CASE("events that nobody takes are dropped, the oldest first") {
  EventQueue queue;
  for (int i = 0; i < 1500; ++i) queue.post(EventKind::warning, std::to_string(i));
  for (int i = 500; i < 1500; ++i) CHECK_EQ(next_text(queue), std::to_string(i));
  queue.close();
  CHECK_EQ(next_text(queue), std::string("nothing"));
}

TEST_CASE("close ends the wait and loses nothing") {
  EventQueue queue;
  std::atomic<int> taken{0};
  std::thread reader([&] {
    while (queue.next()) ++taken;
  });
  queue.post(EventKind::warning, "before");
  queue.post(EventKind::warning, "before");
  queue.close();
  reader.join();
  CHECK_EQ(taken.load(), 2);
  queue.post(EventKind::warning, "after");
  CHECK_EQ(next_text(queue), std::string("after"));
  CHECK_EQ(next_text(queue), std::string("nothing"));
  CHECK_EQ(next_text(queue), std::string("nothing"));
  queue.open();
  std::thread late([&] { CHECK_EQ(next_text(queue), std::string("late")); });
  queue.post(EventKind::warning, "late");
  late.join();
}

TEST_CASE("events of many threads arrive") {
  EventQueue queue;
  std::thread posting[4];
  for (std::thread& t : posting)
    t = std::thread([&] {
      for (int i = 0; i < 200; ++i) queue.post(EventKind::warning, "x");
    });
  for (int i = 0; i < 800; ++i) CHECK_EQ(next_text(queue), std::string("x"));
  for (std::thread& t : posting) t.join();
}

TEST_CASE("a signal asks for a dump") {
  EventQueue& queue = EventQueue::all();
  struct sigaction action{};
  action.sa_handler = [](int) { EventQueue::ask_for_dump(); };
  CHECK(::sigaction(SIGUSR2, &action, nullptr) == 0);
  // Also while the reader sleeps, and in the reading thread itself.
  std::thread sender([] { CHECK(::kill(::getpid(), SIGUSR2) == 0); });
  const auto event = queue.next();
  sender.join();
  CHECK(event && event->kind == EventKind::dump);
  CHECK(::raise(SIGUSR2) == 0);
  CHECK(::raise(SIGUSR2) == 0);
  queue.post(EventKind::warning, "then");
  CHECK(queue.next()->kind == EventKind::dump);  // both of them
  CHECK_EQ(next_text(queue), std::string("then"));
}

TEST_CASE("a forked child has an event queue of its own") {
  EventQueue& queue = EventQueue::all();
  queue.post(EventKind::warning, "of the parent");
  // Locked at the fork, and in the child forever: the possible state of its parent's queue.
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    while (!stop) queue.post(EventKind::warning, "of the parent");
  });
  for (int i = 0; i < 20; ++i) {
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      EventQueue::ask_for_dump();  // the handler is inherited: there is no queue yet, and no harm
      ::alarm(20);
      EventQueue::all().post(EventKind::failure, "of the child");
      const auto event = EventQueue::all().next();
      ::_exit(event && event->text == "of the child" ? 0 : 1);
    }
    int status = 0;
    CHECK(::waitpid(child, &status, 0) == child);
    CHECK_EQ(status, 0);
  }
  stop = true;
  busy.join();
  CHECK_EQ(next_text(queue), std::string("of the parent"));
}

}  // namespace
}  // namespace ringkern
