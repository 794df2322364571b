// A rank's membership in a ring: finds its neighbours on first use of a device, runs collectives in
// call order, and ends in an orderly way.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/agreement.h"
#include "comm/enqueued.h"
#include "comm/interfaces.h"
#include "comm/page_store.h"
#include "comm/regroup.h"
#include "comm/rendezvous.h"
#include "comm/watch.h"
#include "comm/worker.h"

namespace ringkern {

// A kind of memory, with everything needed to build a ring over it. Filled in by the caller, which
// knows the backends.
struct Device {
  std::string name;  // "cpu", "cuda:1": this rank's
  Terms terms;       // must be equal on all ranks
  WayTable ways;     // this rank's table; all ranks use rank 0's
  ProbeRoom probe;   // where the links are probed; determined by the geometry
  // Returns the order of the ranks, given their devices; called on rank 0. May be null.
  std::function<RingOrders(const std::vector<std::string>& buses)> orders;
  // `room` returns the capacity of the device. `fit` gets the capacities of all ranks, by rank, and
  // adapts the terms and everything that depends on them. Called when a ring is made; null if all
  // devices hold enough.
  std::function<DeviceRoom()> room = nullptr;
  std::function<void(Device& fitted, const std::vector<DeviceRoom>& rooms, const RankNames& names)>
      fit = nullptr;
  bool in_place = false;  // this process has tensors that other ranks can access in place
  std::function<std::unique_ptr<Transport>()> make_transport;
  std::function<std::unique_ptr<Executor>(const Segments&)> make_executor;
  // Called when a ring of this device has failed, on a thread of the library; `here`: this rank
  // aborted it. May end the process. May be null.
  std::function<void(const Fault& why, bool here)> after_fault = nullptr;
};

// Throw the error of a call, or of close(), inside a callback: it would wait for itself.
[[noreturn]] void throw_call_in_callback();
[[noreturn]] void throw_close_in_callback(const std::string& communicator);

// A rank's membership in the rings of a group, one per device. The devices passed to it must
// outlive it.
class Communicator {
 public:
  // `name` is the same on all ranks and may be used again for a later communicator. `timeout`
  // bounds the rendezvous and each wait inside a collective.
  // `names`: the names of the ranks in errors.
  Communicator(std::shared_ptr<Store> store, std::string name, int rank, int ranks,
               Milliseconds timeout, RankNames names = {});
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // Runs a task after all earlier calls, and returns when the executor returns. Returns 0, or the
  // task's number on its ring if it continues on the device. `before`, if any, is called at this
  // task's turn.
  uint64_t run(const Device& device, const Task& task,
               const std::function<void()>& before = nullptr);
  // Runs a task if no other call is in progress and the last one was on this device. Otherwise does
  // nothing and returns none. Never waits for a lock. Writes algorithm, protocol and number
  // into the caller's task, because a copy would lengthen small calls.
  std::optional<uint64_t> run_now(const Device& device, Task& task);
  // Returns at once. `before` and `done` are called on the communicator's thread, `done` with the
  // error or null. `done` may make asynchronous calls.
  void run_async(const Device& device, const Task& task,
                 std::function<void(std::exception_ptr)> done,
                 std::function<void()> before = nullptr);
  // Throw if no call can be made: in a forked child, after close, and one also after a failure.
  void check_open();
  void check_callable();
  // Returns true if a call on this device needs no rendezvous.
  bool connected(const Device& device);
  // Connects the ranks on this device, as the first call on it would. All ranks must call it.
  void connect_on(const Device& device);
  // Returns the names of the devices on which the ranks are connected.
  std::vector<std::string> devices();
  // See Regroup. Wait until the calls of this rank have ended, with an error if the communicator
  // has failed. Throw UsageError if the ranks were never connected.
  Regroup::Round gather(const std::vector<int>& excluded, Milliseconds patience,
                        const Regroup::Propose& propose);
  bool conclude(const Regroup::Round& round, bool joined, Milliseconds patience);
  // Makes the tensors of this process inaccessible to a rank that is none of `members` and may
  // still run. Throws TimeoutError or SharedMemoryError.
  void shut_out(const std::vector<int>& members, Milliseconds patience);
  // Returns the store in which the members of a round meet.
  std::shared_ptr<PageStore> meeting_of(const Regroup::Round& round);
  // Takes over the records of the ranks; before the first call.
  void set_roster(Roster roster);
  // Returns the calls enqueued on this device; null before the first call, and on a CPU. While
  // `before` of a call runs, `last_seq_on` is the number of that call.
  std::shared_ptr<EnqueuedCalls> enqueued_on(const Device& device);
  uint64_t last_seq_on(const Device& device);
  // Throws the error of an enqueued call that is known to have failed.
  void check_enqueued();
  // Returns the table from which calls are chosen; before the ranks are connected, this rank's own.
  WayTable ways_on(const Device& device);
  // Returns the geometry; before the ranks are connected, this rank's own.
  Geometry geometry_on(const Device& device);
  // Returns the others' memory that this rank uses; empty before the ranks are connected.
  SharedMemory memory_on(const Device& device);

  // Ends every wait of this rank and of the other ranks. May be called from any thread, any number
  // of times.
  void abort(const std::string& reason);
  // Like abort(), for a reason from outside this ring. All ranks of the ring raise the class that
  // `why.cause` stands for, with its message, unless they have failed for another reason. Ranks
  // that are still connecting raise a RendezvousError that quotes it.
  void give_up(const Fault& why);
  // Returns true if the communicator was aborted or has failed; it is then unusable.
  bool failed();
  // Returns the reason of a failure, from the ranks' pages or from this rank's own failure. Works
  // at any time, also without a call in progress. Takes a lock that is never held long.
  std::optional<Fault> trouble();
  // Finishes all calls, then releases everything. Aborts calls that have not finished after
  // `patience`. May be called any number of times.
  void close(Milliseconds patience = Milliseconds::max());
  // Returns true inside `done` of one of its calls, where it can be neither closed nor destroyed.
  bool in_callback() const;

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  const std::string& name() const { return name_; }
  Milliseconds timeout() const { return timeout_; }

 private:
  // One device's ring. Members are destroyed last to first: earlier ones must outlive later ones.
  struct Ring {
    Neighbours neighbours;
    std::shared_ptr<Control> control;
    std::unique_ptr<Transport> transport;
    std::unique_ptr<Executor> executor;
    std::shared_ptr<EnqueuedCalls> enqueued;  // null if the executor does not enqueue
    std::unique_ptr<Watch> watch;
    bool enqueues = false;
    WayTable ways;
    Geometry geometry;
  };

  void check_healthy();  // throws if the communicator has failed
  // Runs a call on a connected ring. An exception makes this communicator unusable, unless the task
  // was refused and has no `before`. A task with `before` has a work, which may be queried after
  // the next call, so its number is never reused.
  uint64_t run_on(Ring& ring, Task& task, const std::function<void()>& before = nullptr);
  [[noreturn]] void fail(Ring& ring, const Fault* mine, const Error& here);
  void end_waits(Ring& ring, const Fault& why) const;
  uint64_t execute(const Device& device, Task task, const std::function<void()>& before = nullptr);
  Ring& ready_ring(const Device& device);
  Ring& ring_on(const Device& device);
  Ring& first_ring();
  // Returns the function by which a local abort() ends the waits of Regroup.
  std::function<void()> look_for_abort();
  Ring connect(Device& device);
  void dissolve(Ring& ring, Milliseconds patience) const;
  void poison(const Fault& why);       // the first reason stays
  bool take_reason(const Fault& why);  // with the lock; returns false if there was a reason already
  void end_all(Fault why);             // ends all waits on all rings
  void tell(const Fault& why) const;
  bool forked() const;

  std::shared_ptr<Store> store_;  // null after close()
  const std::string name_;
  const int rank_, ranks_;
  const Milliseconds timeout_;
  const RankNames names_;
  const int born_in_;     // pid
  const int generation_;  // of forks: differs in a forked child

  std::timed_mutex turn_;           // one collective at a time
  std::atomic<bool> usable_{true};  // neither failed nor closed
  // The ring of the last collective, guarded by the turn.
  const Device* last_device_ = nullptr;
  Ring* last_ring_ = nullptr;
  std::atomic<int> aborts_{0};  // calls of abort() and give_up() on this rank
  std::mutex state_;            // guards the members below; never held while a collective runs
  std::map<std::string, Ring> rings_;
  std::optional<Fault> poisoned_;  // why this communicator is unusable
  Clock::time_point poisoned_at_;
  bool closed_ = false;
  Roster roster_;
  std::unique_ptr<Worker> worker_;
};

}  // namespace ringkern
