// Runs the calls of a group: over the ring of one host (torch/communicator.h), or the rings of
// several and the engine between them (hosts/torch_communicator.h).
#pragma once

#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "comm/agreement.h"
#include "p2p/engine.h"
#include "torch/callers.h"
#include "torch/choice.h"
#include "torch/on_fault.h"
#include "torch/work.h"

namespace ringkern::torch_ext {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;

// Options of a call.
struct CallOptions {
  WayRequest request{};
  bool async_op = false;
  Milliseconds timeout{0};              // for each wait; 0: the communicator's
  std::optional<c10::Stream> stream{};  // of an asynchronous call on CUDA
  bool has_work = true;                 // false: nobody asks for the work of a synchronous call
};

// A group's collectives.
class Runner {
 public:
  virtual ~Runner() = default;

  // Takes over what is known of the ranks already; before the first call.
  virtual void set_roster(Roster roster) = 0;
  // Sets what becomes of the process when a ring fails; before the first call.
  virtual void set_on_fault(OnFault policy) = 0;
  // Throws the error of a call that was enqueued on a device, as far as devices have shown.
  virtual void check_enqueued() = 0;
  // Sets the function that finds ring orders on rank 0; before the first call.
  virtual void set_orders(FindOrders find) = 0;
  // Before the first call on such a device.
  virtual void set_table(const std::string& device, const WayTables::Lists& lists) = 0;
  // Runs the tasks of a call; every collective comes here, but for all_reduce_now(). Synchronous on
  // a CPU: returns when the call is done; on CUDA: when it is enqueued on the current stream, or,
  // asynchronous, on that of the options.
  virtual WorkPtr submit(Call call, const CallOptions& options) = 0;

  // The calls of Python; a synchronous one returns null.
  WorkPtr all_reduce(const at::Tensor& tensor, const c10d::ReduceOp& op, const WayRequest& request,
                     bool async_op);
  WorkPtr reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                         const c10d::ReduceOp& op, const WayRequest& request, bool async_op);
  WorkPtr all_gather(const at::Tensor& output, const at::Tensor& input, const WayRequest& request,
                     bool async_op);
  // Returns the sum of `x` over all ranks, contiguous; on CUDA on one host perhaps with `norm`.
  virtual at::Tensor sum_of(const at::Tensor& x, const WayRequest& request, RowNorm* norm) = 0;
  // Returns the nanoseconds that each of so many all-reduces took.
  std::vector<int64_t> time_all_reduce(const at::Tensor& tensor, int64_t calls,
                                       const WayRequest& request);

  // Returns the lists that calls on this kind of device are chosen from: rank 0's once the ranks of
  // a ring are connected, until then this rank's.
  virtual WayTables::Lists table(const std::string& device) = 0;
  // Returns the two parts of SharedMemory, on its GPU.
  virtual std::pair<std::string, std::vector<std::string>> shared_memory() = 0;
  virtual int rank() const = 0;
  virtual int ranks() const = 0;
  virtual double timeout_s() const = 0;
  virtual Callers& callers() = 0;
  virtual bool failed() = 0;
  virtual void abort(const std::string& reason) = 0;
  virtual void close(double patience_s) = 0;
  // Ends the calls that a signal interrupts.
  Abort aborter() {
    return [this](const std::string& reason) { abort(reason); };
  }

 protected:
  // Runs a call of one task that nobody needs the work of, unless it is asynchronous.
  WorkPtr submit_one(c10d::OpType type, const at::Tensor& output, Prepared task,
                     const WayRequest& request, bool async_op);
  // Runs an all-reduce at once, or does nothing and returns false: submit() has to do it.
  virtual bool all_reduce_now(const at::Tensor& /*out*/, const at::Tensor& /*in*/, Op /*op*/,
                              const WayRequest& /*request*/) {
    return false;
  }
};

// A mover of messages between pairs of ranks: between processes of one host (p2p/torch_p2p.cpp),
// or between hosts, too (hosts/torch_p2p.cpp).
class P2pRunner {
 public:
  virtual ~P2pRunner() = default;

  // Returns at once; the work is complete when all transfers of the call have arrived (CPU), or are
  // enqueued (CUDA). `tag`: what the two ends of each have alike.
  virtual WorkPtr post(Call call, uint64_t tag, const WayRequest& request,
                       Milliseconds timeout) = 0;
  virtual void abort(const std::string& reason) = 0;
  virtual void close(Milliseconds patience) = 0;
  // On CUDA, what is posted between the two is launched together, by the second.
  virtual void hold() {}
  virtual void release() {}
  // Waits until CUDA has done the collectives. Leaves out links whose last call is a message of the
  // user's: its other end may be posted after the barrier that calls this.
  virtual void wait_for_exchanges() = 0;
  // The same as the runner's.
  virtual void set_on_fault(OnFault policy) = 0;
  virtual void check_enqueued() {}
};

// A roster in the form that Python gives it: `departures`, each rank's process, and seconds that
// this rank has waited.
using RosterParts = std::tuple<std::string, std::vector<std::pair<int64_t, uint64_t>>, double>;

Roster roster_of(const RosterParts& parts);

}  // namespace ringkern::torch_ext
