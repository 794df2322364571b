// Runs the calls of a group: over the ring of one host (torch/communicator.h), or the rings of
// several and the engine between them (hosts/torch_communicator.h).
#pragma once

#include <optional>
#include <string>

#include "comm/agreement.h"
#include "p2p/engine.h"
#include "torch/choice.h"
#include "torch/on_fault.h"
#include "torch/work.h"

namespace ringkern::torch_ext {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;

class Runner {
 public:
  virtual ~Runner() = default;

  // Takes over what is known of the ranks already; before the first call.
  virtual void set_roster(Roster roster) = 0;
  // Sets what becomes of the process when a ring fails; before the first call.
  virtual void set_on_fault(OnFault policy) = 0;
  // Throws the error of a call that was enqueued on a device, as far as devices have shown.
  virtual void check_enqueued() = 0;
  // Before the first call on such a device.
  virtual void set_table(const std::string& device, const WayTables::Lists& lists) = 0;
  // Runs the tasks of a call; `timeout`: for each wait; 0: the communicator's. Synchronous on a
  // CPU: returns when it is done; on CUDA: when it is enqueued on the current stream, or,
  // asynchronous, on `stream`.
  virtual WorkPtr launch(Call call, const Wish& wish, bool async_op, Milliseconds timeout,
                         std::optional<c10::Stream> stream) = 0;
  virtual bool failed() = 0;
  virtual void abort(const std::string& reason) = 0;
  virtual void close(double patience_s) = 0;
};

// A mover of messages between pairs of ranks: between processes of one host (p2p/torch_p2p.cpp),
// or between hosts, too (hosts/torch_p2p.cpp).
class P2pRunner {
 public:
  virtual ~P2pRunner() = default;

  // Returns at once; the work is complete when all transfers of the call have arrived (CPU), or are
  // enqueued (CUDA). `tag`: what the two ends of each have alike.
  virtual WorkPtr post(Call call, uint64_t tag, const Wish& wish, Milliseconds timeout) = 0;
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

}  // namespace ringkern::torch_ext
