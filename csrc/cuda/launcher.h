// Launches the kernels for one or several ranks of this process on one device.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <span>
#include <vector>

#include "comm/interfaces.h"
#include "core/tree.h"
#include "cuda/launch.h"
#include "cuda/launch_order.h"
#include "cuda/messages.h"
#include "cuda/regions.h"

namespace ringkern {
namespace cuda {
class Launcher;
}

// Messages that are launched together, each from its own launcher, all on one device. A task that
// names a batch is added to it and not launched.
struct LaunchBatch {
  static constexpr int kMost = cuda::kMostMessages;

  explicit LaunchBatch(void* on) : stream(static_cast<cudaStream_t>(on)) {}
  // Launches the added messages. Throws TransportError; then all its launchers are aborted.
  void launch();

  const cudaStream_t stream;
  int beside = 0;        // blocks of messages that have not ended
  bool at_once = false;  // launched as soon as one message was added
  int blocks = 0;
  int threads = 0;
  std::vector<cuda::Launcher*> of;
  cuda::MessagesArgs args;
};

}  // namespace ringkern

namespace ringkern::cuda {

// The part of a rank's segment behind the FIFOs and the mesh.
struct SegmentTail {
  alignas(kCacheLine) uint32_t failed;
  uint32_t ended;
  uint64_t last;  // the number of the last message that has ended
};
constexpr int64_t tail_offset(const Geometry& g, int ranks) {
  return g.bytes() + MeshGeometry::make(ranks, g.channels).bytes();
}
constexpr int64_t segment_bytes(const Geometry& g, int ranks) {
  return tail_offset(g, ranks) + int64_t(sizeof(SegmentTail));
}

// A rank of this process, and the segments that it uses. If there are more ranks than a mesh has,
// the segments of ranks that are its neighbours on no ring may be null: they are out of reach.
struct Seat {
  int rank = 0;
  Segments segments;
};

// Returns the common progress of two: the lesser number, and of two failures the passed deadline,
// which is the cause.
Executor::Progress joined(const Executor::Progress& a, const Executor::Progress& b);

// `run` does not allocate or synchronise, and takes only the lock of the device.
class Launcher {
 public:
  // The seats have the same orders. `one_process`: all ranks are in it, and `run` is given all
  // tasks. `regions`: those of the other processes' ranks, or none. Throws UsageError or
  // TransportError, in particular if the blocks of the seats cannot all be resident at once:
  // resident blocks would wait for ever for the others.
  Launcher(int device, std::vector<Seat> seats, int ranks, const Geometry& geometry,
           Milliseconds timeout, bool one_process = false, PeerRegions* regions = nullptr);
  ~Launcher();
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

  // Launches one task for each seat; the tasks differ in `in` and `out` only. `all`: the tasks of
  // all ranks, in one process. Throws the error of an earlier launch as soon as it is known. After
  // a launch that CUDA refuses (Facts::refused) the next one may follow; after any other failure
  // none can. Returns true if the number of the call will be posted. It is not posted for an empty
  // call, by a ring of one, by one launch with the tensors of all ranks, or in a graph, which may
  // be replayed often or never.
  bool run(std::span<const Task> tasks, std::span<const Task> all = {});
  // Throws UsageError if these ranks have no kernel for the task.
  void check_task(const Task& task) const;
  // Throws if a wait of an earlier launch is known to have ended with this verdict.
  void throw_if(Verdict verdict);
  // The same for any failure, abort() included; `task`: the task that cannot start because of it.
  void throw_if_failed(const Task& task);
  void abort();
  // Returns true when all launches have ended, which each does by its deadline; false if they have
  // not ended within `patience`.
  bool drain(Milliseconds patience);
  bool captured() const { return order_.capturing(); }  // true if a graph took the last launch
  // Returns the progress of all seats that the device has posted; takes no lock and does not query
  // the device.
  Executor::Progress progress() const;

 private:
  Fault fault_of(size_t seat) const;
  void claim_memory();
  void check_geometry() const;
  void check_resident() const;
  bool start(std::span<const Task> tasks, std::span<const Task> all);
  bool works() const;
  // Returns true if the ranks are added in another order than from rank 0 up.
  bool is_by_tree(const Reduction& reduction) const {
    return reduction.tree && !ShardTree{ranks_}.is_from_first_to_last();
  }
  void run_alone(const Task& task);
  void run_in_place(const Task& task, const Tensors& tensors);
  AcrossArgs across_arguments(std::span<const Task> tasks, std::span<const Task> all,
                              int channels) const;
  template <class Args, class P>
  Args arguments(std::span<const Task> tasks, const P& plan) const;
  // Returns true if the number of the call will be posted.
  template <class Args>
  bool launch(const void* kernel, Args args, int threads, cudaStream_t stream);
  bool add_to(LaunchBatch& batch, MessageArgs args, int threads);
  void note_launch(cudaStream_t stream);
  friend LaunchBatch;
  void claim_tables();
  void check_neighbours() const;
  void poison_others();
  void release() noexcept;

  const int device_;
  const std::vector<Seat> seats_;
  const int ranks_;
  const RingOrders orders_;
  const Geometry geometry_;
  const MeshGeometry mesh_;
  const Milliseconds timeout_;
  const bool one_process_;
  PeerRegions* const regions_;

  Mailbox* mailboxes_ = nullptr;  // one for each seat; host memory that the device sees
  uint64_t* poison_ = nullptr;    // kPoisoned, once for each channel; host memory
  // All ranks' segments for each seat, by rank; in device memory, because a launch has no room for
  // them.
  std::byte** tables_ = nullptr;
  std::atomic<bool> aborted_{false};

  std::vector<cudaLaunchAttribute> attributes_;  // of all launches but in_place and alone
  int resident_ = 0;                             // blocks that the device holds at once
  LaunchOrder order_;
  uint64_t added_ = 0;  // the number of the last call that was added to a batch
  cudaStream_t abort_stream_ = nullptr;
};

}  // namespace ringkern::cuda
