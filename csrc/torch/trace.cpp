// An all-reduce round the ring with a clock, for Python: the start and the end of each verb.

#include <string>
#include <tuple>
#include <vector>

#include "core/timeline.h"
#include "core/trace.h"
#include "torch/bindings.h"
#include "torch/communicator.h"
#include "torch/plan.h"

namespace ringkern::torch_ext {
namespace {

// The most rows of a rank: more than anybody looks at, and 1 MiB.
constexpr int64_t kMostVerbs = 1 << 14;

// (channel, loop, step, verb, owner, offset, count, start, end, wait for prev, wait for next)
using TimedRow = std::tuple<int, int64_t, int, std::string, int, int64_t, int64_t, int64_t, int64_t,
                            int64_t, int64_t>;

// Throws if the call cannot be traced. Called before anything is sent, so that all ranks refuse the
// call alike.
void check_traceable(const Prepared& call, const Plan& plan) {
  const int64_t verbs = plan.channels * verbs_of(plan);
  if (verbs > kMostVerbs)
    throw py::value_error("all_reduce of " + std::to_string(plan.count) + " elements over " +
                          name_of(plan.protocol) + " takes " + std::to_string(verbs) +
                          " verbs on each rank, and " + std::to_string(kMostVerbs) +
                          " are traced at most; trace a smaller tensor");
  if (!call.device.is_cpu() && call.task.reduction.dtype != DType::f32)
    throw py::type_error(std::string("an all_reduce of ") + name_of(call.task.reduction.dtype) +
                         " on CUDA cannot be traced: only kernels of float32 are there with a "
                         "clock; trace a float32 tensor of as many bytes");
}

std::vector<TimedRow> rows_of(const at::Tensor& memory, const Plan& plan) {
  const int64_t room = verbs_of(plan);
  const int each = steps(plan.collective, plan.ranks);
  std::vector<TimedRow> rows;
  rows.reserve(size_t(plan.channels * room));
  const auto* row = static_cast<const TimedVerb*>(memory.const_data_ptr());
  for (int channel = 0; channel < plan.channels; ++channel)
    for (int64_t i = 0; i < room; ++i, ++row) {
      if (row->number != i + 1)  // kernels say why only when the next ones are launched
        throw AbortedError("the traced call ended before verb " + std::to_string(i + 1) + " of " +
                           std::to_string(room) + " on channel " + std::to_string(channel) +
                           "; the next call says why");
      const int64_t loop = i / each, at = row->offset - loop * plan.loop_span();
      const auto owner = int(at / plan.chunk_in_loop(loop) - int64_t(channel) * plan.parts());
      rows.emplace_back(channel, loop, int(i % each), name_of(Verb(row->verb)), owner, row->offset,
                        row->count, row->start, row->end, row->wait_prev, row->wait_next);
    }
  return rows;
}

// Sums a tensor over all ranks, in place round the ring. Returns this rank's verbs when the call is
// done here.
std::vector<TimedRow> record_all_reduce(TorchCommunicator& c, const at::Tensor& tensor,
                                        const std::string& protocol) {
  Prepared prepared = prepare_all_reduce(tensor, op_of(c10d::ReduceOp::SUM), c.ranks());
  const WayRequest request{Algorithm::ring, parse<Protocol>(protocol, kProtocols, "protocol")};
  apply_request(prepared.task, request, prepared.device.type());
  const Plan plan =
      ring_plan(prepared.device.type(), prepared.task, c.ranks(), c.geometry_on(prepared.device));
  check_traceable(prepared, plan);
  // Zeros, so that a row that nobody wrote is found; on CUDA on the stream of the call.
  const at::Tensor memory =
      at::zeros({plan.channels * verbs_of(plan), int64_t(sizeof(TimedVerb) / sizeof(int64_t))},
                at::TensorOptions().dtype(at::kLong).device(prepared.device));
  const Timeline timeline{static_cast<TimedVerb*>(memory.mutable_data_ptr()), verbs_of(plan)};
  prepared.task.timeline = &timeline;
  Call call;
  call.type = c10d::OpType::ALLREDUCE;
  call.device = prepared.device;
  call.outputs = {tensor};
  call.tasks.push_back(std::move(prepared));
  c.submit(std::move(call), {.request = request, .has_work = false});
  at::Tensor rows;
  {
    const WithoutGil no_gil;
    rows = memory.cpu();  // waits for the stream
  }
  return rows_of(rows, plan);
}

}  // namespace

// Called after bind_communicator().
void bind_trace(py::module_& m) {
  py::class_<TorchCommunicator>(m.attr("Communicator"))
      .def("record_all_reduce", &record_all_reduce, py::arg("tensor"), py::arg("protocol"));
}

}  // namespace ringkern::torch_ext
