#include "cpu/executor.h"

#include <string>
#include <utility>

#include "cpu/ll.h"
#include "cpu/ll128.h"
#include "cpu/simple.h"
#include "cpu/timed.h"

namespace ringkern::cpu {
namespace {

Bell& bell_of(void* segment) { return *static_cast<Bell*>(segment); }

// Returns the segments with the neighbours in the order of the ring.
Segments in_ring_order(Segments s, int rank, int ranks, int channel) {
  check_orders(s.orders, ranks);
  if (ranks == 1 || s.orders.count == 0) return s;
  s.next = s.all.at(size_t(s.orders.next(channel, rank, ranks)));
  s.prev = s.all.at(size_t(s.orders.prev(channel, rank, ranks)));
  return s;
}

template <class Link>
Verdict run_link(const LinkContext& context, const Plan& plan, int rank, int channel) {
  Link link(context);
  return run_schedule(plan, rank, channel, link);
}

Verdict run_protocol(const LinkContext& context, const Plan& plan, int rank, int channel,
                     const Timeline* timeline) {
  if (timeline != nullptr) [[unlikely]]
    return run_timed(context, plan, rank, *timeline);
  switch (plan.protocol) {
    case Protocol::simple: return run_link<SimpleLink>(context, plan, rank, channel);
    case Protocol::ll: return run_link<LLLink>(context, plan, rank, channel);
    case Protocol::ll128: return run_link<LL128Link>(context, plan, rank, channel);
  }
  throw UsageError("unknown protocol");
}

std::string no_such_way(const Task& task) {
  return std::string("a CPU has no ") + name_of(task.algorithm) + " " + name_of(task.collective) +
         " over " + name_of(task.protocol) +
         "; all_reduce has one_shot over ll and simple, and two_shot over simple: use one of "
         "these, or algorithm ring";
}

}  // namespace

Geometry default_geometry() {
  Geometry g;
  g.slot_bytes[int(Protocol::simple)] = 64 << 10;
  g.slot_bytes[int(Protocol::ll)] = 16 << 10;
  g.slot_bytes[int(Protocol::ll128)] = 64 << 10;
  return g;
}

CpuExecutor::CpuExecutor(const Segments& segments, const Geometry& geometry, int rank, int ranks,
                         std::chrono::nanoseconds timeout, std::shared_ptr<const Arenas> arenas,
                         int channel, int channels, int socket)
    : rank_(rank), ranks_(ranks), channel_(channel), threads_(channel == 0 ? 1 : channels),
      segments_(in_ring_order(segments, rank, ranks, channel)), geometry_(geometry),
      timeout_(timeout), mesh_(segments, mesh_offset(geometry), rank, std::move(arenas), socket) {
  if (!geometry.valid() || geometry.channels != 1)
    throw UsageError("a CPU needs one channel and at least two slots of 16 bytes, not " +
                     std::to_string(geometry.channels) + " channels and " +
                     std::to_string(geometry.slots) + " slots");
}

RunResult CpuExecutor::run(const Task& task) {
  if (ranks_ == 1) {
    run_alone(task);
    return {};
  }
  if (task.algorithm != Algorithm::ring && (task.collective != Collective::all_reduce ||
                                            !direct_runs_over(task.algorithm, task.protocol)))
    throw UsageError(no_such_way(task));
  check_wide(task);
  Bell& bell = bell_of(segments_.mine);
  if (aborted(bell)) {
    abort();  // another neighbour may still wait for this rank
    throw AbortedError("a neighbour has aborted the communicator");
  }
  const std::chrono::nanoseconds timeout = task.timeout.count() > 0 ? task.timeout : timeout_;
  const Reducer reducer(task.reduction);
  if (pauses_ < 0) pauses_ = pauses_for(ranks_ * threads_, mesh_.processors());
  Wait wait(bell, polling_.on() ? pauses_ : 0, timeout, history_);
  wait.on_rest(task.rests, task.with);
  wait.learn();
  WaitReport report;
  Verdict verdict;
  try {
    verdict = task.algorithm == Algorithm::ring ? run_ring(task, reducer, wait, report)
                                                : mesh_.run(task, reducer, wait, report);
  } catch (...) {
    abort();  // the others must not wait for a rank that has failed
    throw;
  }
  polling_.note(wait.rested(), wait.shared_a_core());
  if (verdict != Verdict::ok) [[unlikely]]
    fail(task, timeout, report);
  return {.rested = wait.rested()};
}

Verdict CpuExecutor::run_ring(const Task& task, const Reducer& reducer, Wait& wait,
                              WaitReport& report) {
  Geometry geometry = geometry_;
  geometry.channels = task.channels;  // all cut alike
  Plan plan =
      Plan::make(task.collective, task.protocol, ranks_, task.count, size_of(task.reduction.dtype),
                 /*workers=*/1, geometry, task.channels, task.root);
  if (segments_.orders.count > 0) plan.orders = segments_.orders;  // a copy takes some ns
  const auto prev = size_t(plan.prev(channel_, rank_));
  const CallLine* prev_calls = prev < segments_.calls.size() ? segments_.calls[prev] : nullptr;
  const LinkContext context{Ends(segments_, geometry_, task.protocol),
                            wait,
                            reducer,
                            static_cast<const std::byte*>(task.in),
                            static_cast<std::byte*>(task.out),
                            report,
                            SameCall(prev_calls, task.seq, task.words, task.history)};
  return run_protocol(context, plan, rank_, channel_, task.timeline);
}

void CpuExecutor::abort() {
  for (void* segment : segments_.all) abort_waits(bell_of(segment));
}

void CpuExecutor::fail(const Task& task, std::chrono::nanoseconds timeout, const WaitReport& r) {
  abort();
  const bool data = r.what == WaitFor::data;
  const RingOrders& orders = segments_.orders;
  const int neighbour =
      data ? orders.prev(channel_, rank_, ranks_) : orders.next(channel_, rank_, ranks_);
  const int peer = r.peer >= 0 ? r.peer : neighbour;
  const Fault fault = failed_wait(r, rank_, peer, task.seq, words_of(task),
                                  std::chrono::nanoseconds(timeout).count(), segments_.names);
  throw_wait(fault);
}

void run_alone(const Task& task) {
  // No other rank: the result is the input, scaled by the op.
  const Reducer reducer(task.reduction);
  if (task.in != task.out || task.reduction.scale != Reduction::Scale::none)
    reducer.input(task.out, task.in, task.count);
}

void rethrow_cause(const std::vector<std::exception_ptr>& errors) {
  std::exception_ptr first;
  for (const std::exception_ptr& error : errors) {
    if (!error) continue;
    if (!first) first = error;
    try {
      std::rethrow_exception(error);
    } catch (const AbortedError&) {
    } catch (...) {
      throw;
    }
  }
  if (first) std::rethrow_exception(first);
}

}  // namespace ringkern::cpu
