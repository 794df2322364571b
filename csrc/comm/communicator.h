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

#include "comm/agreement.h"
#include "comm/enqueued.h"
#include "comm/ports.h"
#include "comm/rendezvous.h"
#include "comm/watch.h"
#include "comm/worker.h"

namespace ringkern {

// What it takes to build a ring over one kind of memory. Filled in by whoever knows the backends.
struct Device {
  std::string name;  // "cpu", "cuda:1": this rank's
  Terms terms;       // what all ranks must have alike
  WayTable ways;     // what this rank would choose by; all choose by rank 0's
  ProbeRoom probe;   // where the links are probed; follows from the geometry
  // In which orders the ranks are to stand, whose devices are there; asked on rank 0. May be null.
  std::function<RingOrders(const std::vector<std::string>& buses)> arrange;
  // `room`: its capacity. `fit` is told those of all ranks, by rank, and changes the terms and
  // whatever follows from them. Asked when a ring is made; null where all devices hold enough.
  std::function<DeviceRoom()> room = nullptr;
  std::function<void(Device& fitted, const std::vector<DeviceRoom>& rooms, const RankNames& names)>
      fit = nullptr;
  bool in_place = false;  // this process has tensors that the other ranks can take where they are
  std::function<std::unique_ptr<Transport>()> make_transport;
  std::function<std::unique_ptr<Executor>(const Segments&)> make_executor;
  // Called once a ring of it has failed, on a thread of the library; `here`: this rank has aborted
  // it. May end the process. May be null.
  std::function<void(const Fault& why, bool here)> after_fault = nullptr;
};

// Devices that are given to it outlive it.
class Communicator {
 public:
  // `name` is the same on all ranks and may be used again for a later communicator. `timeout`
  // bounds the rendezvous and each wait inside a collective.
  // `names`: of the ranks in errors.
  Communicator(std::shared_ptr<Store> store, std::string name, int rank, int ranks,
               Milliseconds timeout, RankNames names = {});
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // Runs after everything that was called before it; returns when the executor does. `before`, if
  // any, is called when it is this task's turn.
  void run(const Device& device, const Task& task, const std::function<void()>& before = nullptr);
  // The same where nothing is in its way: no other call is in progress, and the last one was with
  // this device. Otherwise nothing happens, and the answer is false. Takes no lock but an open one.
  bool run_now(const Device& device, const Task& task);
  // Returns at once; `done` is called on the communicator's thread with the error, or null, and may
  // make asynchronous calls of its own; so is `before`.
  void run_async(const Device& device, const Task& task,
                 std::function<void(std::exception_ptr)> done,
                 std::function<void()> before = nullptr);
  // Throws where no call can be made: in a forked child, closed, failed.
  void check_callable();
  // Whether a call on this device would find its neighbours at once.
  bool connected(const Device& device);
  // Takes over what is known of the ranks already; before the first call.
  void set_roster(Roster roster);
  // Returns the calls that were enqueued on this device; null before the first, and on a CPU. In
  // `before` of a call `last_seq_on` is its number.
  std::shared_ptr<EnqueuedCalls> enqueued_on(const Device& device);
  uint64_t last_seq_on(const Device& device);
  // Throws the error of a call that was enqueued and has failed, as far as devices have shown.
  void check_enqueued();
  // What calls there are chosen from; before the ranks are connected, as far as this rank knows.
  WayTable ways_on(const Device& device);
  // The same of the geometry.
  Geometry geometry_on(const Device& device);
  // None before the ranks are connected.
  SharedMemory memory_on(const Device& device);

  // Ends every wait of this rank and, hop by hop, of the whole ring. Any thread, any number of
  // times.
  void abort(const std::string& reason);
  // The same for a reason that lies outside this ring, and is given to it: all its ranks raise the
  // class that `why.cause` stands for, with its sentence, unless they have failed for another one;
  // ranks that are just connecting, a RendezvousError that quotes it.
  void give_up(const Fault& why);
  // Whether it was aborted or has failed, and is unusable therefore.
  bool failed();
  // Why, as far as this rank can see, whether or not it makes a call: what the ranks of a ring have
  // written on their pages, or what this rank has failed for. Takes a lock that nobody holds long.
  std::optional<Fault> trouble();
  // Finishes what was called, then gives everything back; what has not finished after `patience` is
  // aborted. Any number of times.
  void close(Milliseconds patience = Milliseconds::max());
  // Whether this is `done` of one of its calls: there it can be neither closed nor destroyed.
  bool in_callback() const;

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  const std::string& name() const { return name_; }
  Milliseconds timeout() const { return timeout_; }

 private:
  // One device's ring. What is first outlives what is last.
  struct Ring {
    Neighbours neighbours;
    std::unique_ptr<Control> control;
    std::unique_ptr<Transport> transport;
    std::unique_ptr<Executor> executor;
    std::shared_ptr<EnqueuedCalls> enqueued;  // where it enqueues; else null
    std::unique_ptr<Watch> watch;
    bool enqueues = false;
    WayTable ways;
    Geometry geometry;
  };

  void check_healthy();  // not failed
  // A call on a ring that is there; what it throws makes this communicator unusable, unless the
  // task was refused. One with `before` has a work, which may be looked at after the next call.
  void run_on(Ring& ring, const Task& task, const std::function<void()>& before = nullptr);
  [[noreturn]] void fail(Ring& ring, const Fault* mine, const Error& here);
  void end_waits(Ring& ring, const Fault& why) const;
  void execute(const Device& device, const Task& task,
               const std::function<void()>& before = nullptr);
  Ring& ring_on(const Device& device);
  Ring connect(Device& device);
  void dissolve(Ring& ring, Milliseconds patience) const;
  void poison(const Fault& why);       // the first reason stays
  bool take_reason(const Fault& why);  // with the lock; if the first
  void end_all(Fault why);             // all waits on all rings
  void tell(const Fault& why) const;
  bool forked() const;

  const std::shared_ptr<Store> store_;
  const std::string name_;
  const int rank_, ranks_;
  const Milliseconds timeout_;
  const RankNames names_;
  const int born_in_;     // pid
  const int generation_;  // of forks: differs in a forked child

  std::timed_mutex turn_;           // one collective at a time
  std::atomic<bool> usable_{true};  // neither failed nor closed
  // Where the last collective ran. Belongs to whoever runs the next.
  const Device* last_device_ = nullptr;
  Ring* last_ring_ = nullptr;
  std::mutex state_;  // guards what follows; never held while a collective runs
  std::map<std::string, Ring> rings_;
  std::optional<Fault> poisoned_;  // why this communicator is unusable
  Clock::time_point poisoned_at_;
  bool closed_ = false;
  Roster roster_;
  std::unique_ptr<Worker> worker_;
};

}  // namespace ringkern
