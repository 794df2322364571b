// The interface that runs the calls of a group: over the ring of one host (torch/communicator.h),
// or over the rings of several and the engine between them (hosts/torch_communicator.h).
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

  // Sets what is known about the ranks already; before the first call.
  virtual void set_roster(Roster roster) = 0;
  // Sets what becomes of the process when a ring fails; after the first call, only to `raise`.
  virtual void set_on_fault(OnFault policy) = 0;
  // Sets how many threads of each rank of a host run a large collective of CPU tensors; before the
  // first call. The same on all ranks of the host.
  virtual void set_threads(int threads) = 0;
  // Throws the error of an enqueued call that has failed, if its device has shown that.
  virtual void check_enqueued() = 0;
  // Sets the function that finds ring orders on rank 0; before the first call.
  virtual void set_orders(FindOrders find) = 0;
  // Sets the lists of a kind of device; before the first call on it.
  virtual void set_table(const std::string& device, const WayTables::Lists& lists) = 0;
  // Runs the tasks of a call. Every collective but those of all_reduce_now() comes here. On a CPU,
  // a synchronous call returns when it is done. On CUDA, a call returns when it is enqueued: on the
  // current stream, or, if it is asynchronous, on the stream of the options.
  virtual WorkPtr submit(Call call, const CallOptions& options) = 0;

  // The calls of Python; a synchronous one returns null.
  WorkPtr all_reduce(const at::Tensor& tensor, const c10d::ReduceOp& op, const WayRequest& request,
                     bool async_op);
  WorkPtr reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                         const c10d::ReduceOp& op, const WayRequest& request, bool async_op);
  WorkPtr all_gather(const at::Tensor& output, const at::Tensor& input, const WayRequest& request,
                     bool async_op);
  WorkPtr broadcast(const at::Tensor& tensor, int64_t root, bool async_op);
  // Returns the sum of `x` over all ranks, contiguous. On CUDA on one host, may also compute
  // `norm`; `norm->done` tells.
  virtual at::Tensor sum_of(const at::Tensor& x, const WayRequest& request, RowNorm* norm) = 0;
  // Returns the nanoseconds that each of this many all-reduces took.
  std::vector<int64_t> time_all_reduce(const at::Tensor& tensor, int64_t calls,
                                       const WayRequest& request);

  // Returns the lists from which the ways of calls on this kind of device are chosen: rank 0's once
  // the ranks of a ring are connected, until then this rank's.
  virtual WayTables::Lists table(const std::string& device) = 0;
  // Returns `device` and `host` of the SharedMemory of this rank's GPU; empty if there is none.
  virtual std::pair<std::string, std::vector<std::string>> shared_memory() = 0;
  virtual int rank() const = 0;
  virtual int ranks() const = 0;
  virtual double timeout_s() const = 0;
  virtual Callers& callers() = 0;
  virtual bool failed() = 0;
  // Returns the reason of a failure, if there is one.
  virtual std::optional<Fault> trouble() = 0;
  // Makes the tensors of this process inaccessible to a rank that is none of `members` and may
  // still run. Waits for the call in progress. Throws TimeoutError or SharedMemoryError.
  virtual void shut_out(const std::vector<int>& members, Milliseconds patience) = 0;
  virtual void abort(const std::string& reason) = 0;
  virtual void close(double patience_s) = 0;
  // Returns a function that ends the calls that a signal interrupts.
  Abort aborter() {
    return [this](const std::string& reason) { abort(reason); };
  }

 protected:
  // Runs a call of one task. Returns null unless it is asynchronous, because nobody needs its work.
  WorkPtr submit_one(c10d::OpType type, const at::Tensor& output, Prepared task,
                     const WayRequest& request, bool async_op);
  // Runs an all-reduce at once, or does nothing and returns false if submit() must run it.
  virtual bool all_reduce_now(const at::Tensor& /*out*/, const at::Tensor& /*in*/, Op /*op*/,
                              const WayRequest& /*request*/) {
    return false;
  }
};

// The interface that sends and receives messages between pairs of ranks: between processes of one
// host (p2p/torch_p2p.cpp), or also between hosts (hosts/torch_p2p.cpp).
class P2pRunner {
 public:
  virtual ~P2pRunner() = default;

  // Returns at once. The work is complete when all transfers of the call have arrived (CPU), or are
  // enqueued (CUDA). `tag`: a number that is the same on both ends of each transfer.
  virtual WorkPtr post(Call call, uint64_t tag, const WayRequest& request,
                       Milliseconds timeout) = 0;
  virtual void abort(const std::string& reason) = 0;
  virtual void close(Milliseconds patience) = 0;
  // On CUDA, release() launches all calls together that were posted since hold().
  virtual void hold() {}
  virtual void release() {}
  // Waits until CUDA has done the collectives between pairs. Leaves out links whose last call is a
  // message of the user's, because its other end may be posted after the barrier that calls this.
  virtual void wait_for_exchanges() = 0;
  // The same as Runner's functions.
  virtual void set_on_fault(OnFault policy) = 0;
  virtual void check_enqueued() {}
};

// A roster as Python gives it: `departures`, (pid, start) of each rank's process, and the seconds
// that this rank has waited.
using RosterParts = std::tuple<std::string, std::vector<std::pair<int64_t, uint64_t>>, double>;

Roster roster_of(const RosterParts& parts);

}  // namespace ringkern::torch_ext
