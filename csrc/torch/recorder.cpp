// The recorded calls and the news for Python: `ringkern.recorder` and `ringkern.news`.

#include <signal.h>

#include <chrono>
#include <optional>
#include <vector>

#include "comm/event_queue.h"
#include "comm/watch.h"
#include "fault/render.h"
#include "torch/bindings.h"
#include "torch/errors.h"

namespace ringkern::torch_ext {
namespace {

py::object text_of_peer(const std::string& text) {
  auto decoded = py::reinterpret_steal<py::object>(as_text(text));
  if (!decoded) throw py::error_already_set();
  return decoded;
}

py::object fault_for_python(const Fault& fault) {
  auto dict = py::reinterpret_steal<py::object>(as_dict(fault));
  if (!dict) throw py::error_already_set();
  return dict;
}

// Returns the difference from CLOCK_MONOTONIC to the time since 1970, in ns.
int64_t unix_time_offset() {
  using std::chrono::nanoseconds;
  return nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count() -
         nanoseconds(Clock::now().time_since_epoch()).count();
}

py::dict call_for_python(const CallRecord& call, int64_t offset) {
  using namespace py::literals;
  const CallNames names = names_of(call.words.what);
  return py::dict("seq"_a = call.seq, "collective"_a = names.collective, "op"_a = names.op,
                  "dtype"_a = names.dtype, "count"_a = elements_of(call.words),
                  "algorithm"_a = names.algorithm, "protocol"_a = names.protocol,
                  "root"_a = fields_of(call.words.what).root,
                  "started_ns"_a = call.started + offset,
                  "ended_ns"_a = call.ended == 0 ? 0 : call.ended + offset);
}

// Returns a dict for each ring, with its calls in the list `calls`, the oldest first. Times in ns
// since 1970; 0: not yet.
py::list recorded_calls_for_python() {
  using namespace py::literals;
  std::vector<RingRecord> records;
  {
    const py::gil_scoped_release no_gil;
    records = recorded_calls();
  }
  const int64_t offset = unix_time_offset();
  py::list rings;
  for (const RingRecord& r : records) {
    py::list calls;
    for (const CallRecord& call : r.calls) calls.append(call_for_python(call, offset));
    rings.append(py::dict("name"_a = r.name, "device"_a = r.device, "rank"_a = r.rank,
                          "ranks"_a = r.ranks, "timeout_ms"_a = r.timeout_ms,
                          "failure"_a = r.failure ? fault_for_python(*r.failure) : py::none(),
                          "key"_a = r.key, "calls"_a = calls));
  }
  return rings;
}

const char* kind_name(EventKind kind) {
  switch (kind) {
    case EventKind::warning: return "warning";
    case EventKind::failure: return "failure";
    case EventKind::report: return "report";
    case EventKind::dump: return "dump";
  }
  return "?";
}

// Waits for the next event, and returns its kind and text, or None when there will be no more.
py::object next_news() {
  std::optional<QueuedEvent> news;
  {
    const py::gil_scoped_release no_gil;
    news = EventQueue::all().next();
  }
  if (!news) return py::none();
  return py::make_tuple(kind_name(news->kind), text_of_peer(news->text));
}

// Makes the signal ask for a dump from now on, unless it has a handler already or is ignored.
// Returns true if it does. The handler is in C, because one in Python would wait for the main
// thread to come back from the very call that somebody wants to know about.
bool dump_on(int number) {
  const auto ask = [](int) { EventQueue::ask_for_dump(); };
  struct sigaction found{};
  if (::sigaction(number, nullptr, &found) != 0) return false;
  if ((found.sa_flags & SA_SIGINFO) != 0) return false;
  if (found.sa_handler == +ask) return true;
  if (found.sa_handler != SIG_DFL) return false;
  (void)EventQueue::all();  // made here, because a handler cannot make it
  struct sigaction ours{};
  ours.sa_handler = ask;
  ours.sa_flags = SA_RESTART;
  sigemptyset(&ours.sa_mask);
  return ::sigaction(number, &ours, nullptr) == 0;
}

}  // namespace

void bind_recorder(py::module_& m) {
  m.def("recorded_calls", &recorded_calls_for_python);
  m.def("next_news", &next_news);
  m.def("open_news", [] { EventQueue::all().open(); });
  m.def("close_news", [] { EventQueue::all().close(); });
  m.def("dump_on", &dump_on, py::arg("signal"));
}

}  // namespace ringkern::torch_ext
