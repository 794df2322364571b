#include "cuda/launcher.h"

#include <algorithm>

#include "cuda/device.h"
#include "cuda/failure.h"
#include "cuda/residency.h"
#include "cuda/shape.h"

namespace ringkern::cuda {
Launcher::Launcher(int device, std::vector<Seat> seats, int ranks, const Geometry& geometry,
                   Milliseconds timeout, bool one_process, PeerRegions* regions)
    : device_(device), seats_(std::move(seats)), ranks_(ranks),
      orders_(seats_.empty() ? RingOrders{} : seats_.front().segments.orders), geometry_(geometry),
      mesh_(MeshGeometry::make(ranks, geometry.channels)), timeout_(timeout),
      one_process_(one_process), regions_(regions) {
  check_geometry();
  check_orders(orders_, ranks);
  if (seats_.empty() || int(seats_.size()) > kMaxLocalRanks)
    throw UsageError("one launch serves 1 to " + std::to_string(kMaxLocalRanks) + " ranks, not " +
                     std::to_string(seats_.size()));
  if (ranks > 1) check_neighbours();
  check_device(device);
  const OnDevice guard(device);
  try {
    resident_ = resident_blocks(device);
    check_resident();
    attributes_ = attributes_of_waiting(device, int(seats_.size()) == ranks);
    claim_memory();
  } catch (...) {
    release();
    throw;
  }
}

// ---- Refusals, before anything is launched -----------------------------------------------------

void Launcher::check_geometry() const {
  const Geometry& g = geometry_;
  const int64_t unit = kLL128Unit * line_bytes(Protocol::ll128);
  bool ok = g.valid() && g.slot_bytes[int(Protocol::ll128)] % unit == 0;
  for (const int64_t bytes : g.slot_bytes) ok = ok && bytes <= 1 << 29;  // offsets in it are ints
  if (!ok)
    throw UsageError("CUDA takes 1 to " + std::to_string(kMaxChannels) +
                     " channels, at least two slots of at most 512 MiB, and LL128 slots of whole " +
                     std::to_string(unit) + " bytes");
}

// The kernels find the neighbours in a table of all ranks, which then always exists.
void Launcher::check_neighbours() const {
  static_assert(RingOrders::kMostRanks <= MeshGeometry::kMostRanks);
  for (const Seat& seat : seats_)
    for (int channel = 0; channel < orders_.count; ++channel)
      for (const int peer :
           {orders_.next(channel, seat.rank, ranks_), orders_.prev(channel, seat.rank, ranks_)})
        if (size_t(peer) >= seat.segments.all.size() || seat.segments.all[size_t(peer)] == nullptr)
          throw TransportError(seat.segments.names.text(seat.rank) + " and " +
                               seat.segments.names.text(peer) +
                               " are neighbours on a ring, and device " + std::to_string(device_) +
                               " of " + seat.segments.names.text(seat.rank) +
                               " has no access to the memory of " + seat.segments.names.text(peer) +
                               ". Give an order of the ranks in which neighbours "
                               "have access (see nvidia-smi topo -p2p r)");
}

void Launcher::check_resident() const {
  const int needed = int(seats_.size()) * geometry_.channels;
  if (ranks_ > 1 && needed > resident_)
    throw UsageError(std::to_string(seats_.size()) + " ranks of " +
                     std::to_string(geometry_.channels) + " channels need " +
                     std::to_string(needed) + " blocks resident at once, and device " +
                     std::to_string(device_) + " holds " + std::to_string(resident_) +
                     ": use fewer ranks or channels on it, or a larger GPU");
}

void Launcher::check_task(const Task& task) const {
  if (ranks_ > 1) check_wide(task);
  const Reduction& r = task.reduction;
  if (task.timeline != nullptr &&
      (task.algorithm != Algorithm::ring || r.dtype != DType::f32 || r.combine != Combine::sum))
    throw UsageError(std::string("kernels with a clock exist only for sums of float32 by ring, "
                                 "not for ") +
                     name_of(task.collective) + " by " + name_of(task.algorithm) + " of " +
                     name_of(r.dtype) + ": trace such a call");
  if (task.collective == Collective::send_recv && orders_.count > 1)
    throw UsageError("a message goes from the root to the next rank, and this ring has " +
                     std::to_string(orders_.count) +
                     " orders of the ranks: send it over a ring with one order");
  if (task.algorithm == Algorithm::ring) return;
  const std::string what = name_of(task.algorithm);
  if (task.collective != Collective::all_reduce || !direct_runs_over(task.algorithm, task.protocol))
    throw UsageError(
        std::string(name_of(task.collective)) + " by " + what + " over " + name_of(task.protocol) +
        " does not exist on CUDA, where all_reduce has one_shot over ll, and two_shot over ll and "
        "simple. Use protocol ll, or algorithm ring");
  if (is_in_place(task.algorithm, task.protocol) && int(seats_.size()) == ranks_) return;
  if (ranks_ > 1 && !mesh_.possible())
    throw UsageError(what + " on CUDA takes at most " + std::to_string(MeshGeometry::kMostRanks) +
                     " ranks, not " + std::to_string(ranks_) + ": use algorithm ring");
}

// ---- Memory ------------------------------------------------------------------------------------

void Launcher::claim_memory() {
  const unsigned flags = cudaHostAllocMapped | cudaHostAllocPortable;
  void* host = nullptr;
  check(cudaHostAlloc(&host, seats_.size() * sizeof(Mailbox), flags), "cudaHostAlloc");
  mailboxes_ = static_cast<Mailbox*>(host);
  std::fill_n(mailboxes_, seats_.size(), Mailbox{});
  check(cudaHostAlloc(&host, size_t(geometry_.channels) * sizeof(uint64_t), flags),
        "cudaHostAlloc");
  poison_ = static_cast<uint64_t*>(host);
  std::fill_n(poison_, geometry_.channels, kPoisoned);
  check(cudaStreamCreateWithFlags(&abort_stream_, cudaStreamNonBlocking), "cudaStreamCreate");
  const int most = int(seats_.size()) * geometry_.channels;
  order_.claim(device_, resident_, ranks_ > 1 ? most : 0, abort_stream_);
  if (mesh_.possible()) claim_tables();
}

// Puts the tables in memory that no other rank can write to, unlike the segments.
void Launcher::claim_tables() {
  std::vector<void*> tables;
  for (const Seat& seat : seats_) {
    tables.insert(tables.end(), seat.segments.all.begin(), seat.segments.all.end());
    tables.resize(size_t(&seat - seats_.data() + 1) * size_t(ranks_), nullptr);
  }
  const size_t bytes = tables.size() * sizeof tables[0];
  tables_ = static_cast<std::byte**>(allocate(bytes));
  check(cudaMemcpyAsync(tables_, tables.data(), bytes, cudaMemcpyHostToDevice, abort_stream_),
        "cudaMemcpyAsync");
  check(cudaStreamSynchronize(abort_stream_), "cudaStreamSynchronize");
}

void Launcher::release() noexcept {
  if (abort_stream_ != nullptr) (void)cudaStreamDestroy(abort_stream_);
  order_.release();
  if (tables_ != nullptr) (void)cudaFree(tables_);
  if (poison_ != nullptr) (void)cudaFreeHost(poison_);
  if (mailboxes_ != nullptr) (void)cudaFreeHost(mailboxes_);
}

Launcher::~Launcher() {
  try {
    const OnDevice guard(device_);
    drain(Milliseconds::max());
    release();
  } catch (const Error&) {
    // The driver has shut down before us, at exit.
  }
}

// ---- Launches ----------------------------------------------------------------------------------

bool Launcher::run(std::span<const Task> tasks, std::span<const Task> all) {
  const Task& task = tasks.front();
  throw_if_failed(task);
  check_task(task);
  if (task.count == 0) return false;
  const OnDevice guard(device_);
  try {
    return start(tasks, all);
  } catch (Error& e) {
    if (!works()) abort();  // the others must not wait for a lost device
    e.facts.refused = !aborted_;
    throw;
  } catch (...) {
    abort();
    throw;
  }
}

// Tells a refused launch, such as in an invalid capture or on a stream of another device, from an
// error after which every call fails.
bool Launcher::works() const {
  const BesideCaptures beside;
  const cudaError_t error = cudaStreamQuery(abort_stream_);
  (void)cudaGetLastError();  // or a later call of someone else would report it
  return error == cudaSuccess || error == cudaErrorNotReady;
}

bool Launcher::start(std::span<const Task> tasks, std::span<const Task> all) {
  const Task& task = tasks.front();
  if (ranks_ == 1) {
    run_alone(task);
    return false;
  }
  const bool in_place = is_in_place(task.algorithm, task.protocol);
  if (in_place && int(seats_.size()) == ranks_) {
    run_in_place(task, tensors_of(tasks));
    return false;
  }
  const Shape shape = shape_of(task, ranks_, geometry_);
  const auto stream = static_cast<cudaStream_t>(task.stream);
  const DType dtype = task.reduction.dtype;
  const Combine combine = task.reduction.combine;
  const bool tree = is_by_tree(task.reduction);
  if (task.algorithm == Algorithm::ring) {
    Plan plan = Plan::make(task.collective, task.protocol, ranks_, task.count, size_of(dtype),
                           kPlanWorkers, geometry_, shape.channels, task.root);
    plan.orders = orders_;
    if (task.batch != nullptr)
      return add_to(*task.batch, arguments<MessageArgs>(tasks, plan), shape.threads);
    if (task.timeline != nullptr)
      return launch(timed_kernel_for(task.protocol), arguments<TimedArgs>(tasks, plan),
                    shape.threads, stream);
    return launch(kernel_for(task.protocol, dtype, combine), arguments<LaunchArgs>(tasks, plan),
                  shape.threads, stream);
  }
  if (in_place)
    return launch(across_kernel(dtype, combine, tree), across_arguments(tasks, all, shape.channels),
                  shape.threads, stream);
  if (task.norm != nullptr) {
    const RowPlan plan =
        RowPlan::make(task.algorithm, ranks_, task.count, task.norm->row, size_of(dtype),
                      mesh_.chunk_bytes(task.algorithm), shape.channels);
    const bool under_way =
        launch(norm_kernel_for(dtype), arguments<NormArgs>(tasks, plan), shape.threads, stream);
    for (const Task& each : tasks) each.norm->done = true;
    return under_way;
  }
  const DirectPlan plan =
      DirectPlan::make(task.algorithm, ranks_, task.count, size_of(dtype),
                       mesh_.chunk_bytes(task.algorithm), shape.channels, /*ahead=*/0);
  return launch(direct_kernel_for(dtype, combine, tree), arguments<DirectArgs>(tasks, plan),
                shape.threads, stream);
}

template <class Args>
bool Launcher::launch(const void* kernel, Args args, int threads, cudaStream_t stream) {
  const auto blocks = unsigned(args.plan.channels) * unsigned(seats_.size());
  const auto turn = order_.follow_last(stream, int(blocks));
  if (order_.capturing()) args.seq = 0;
  else if (regions_ != nullptr) regions_->exchange();
  if constexpr (std::is_same_v<Args, AcrossArgs>)
    if (regions_ != nullptr) args.plan.place = regions_->place_in(args);
  launch_kernel(kernel, blocks, threads, &args, stream, attributes_);
  try {
    order_.note_last(stream);
  } catch (...) {
    if (!order_.capturing()) abort();  // the next launch would run beside this one
    throw;
  }
  if (aborted_) poison_others();  // by another thread, which may not have seen this launch
  return args.seq > 0;
}

// Between processes a rank's launch has only its own tensor.
AcrossArgs Launcher::across_arguments(std::span<const Task> tasks, std::span<const Task> all,
                                      int channels) const {
  AcrossPlan plan{channels, tensors_of(one_process_ ? all : tasks)};
  plan.tensors.ranks = ranks_;
  plan.told = !one_process_;
  if (regions_ != nullptr) plan.regions = regions_->table();
  return arguments<AcrossArgs>(tasks, plan);
}

template <class Args, class P>
Args Launcher::arguments(std::span<const Task> tasks, const P& plan) const {
  const Task& task = tasks.front();
  const std::chrono::nanoseconds timeout = task.timeout.count() > 0 ? task.timeout : timeout_;
  Args args;
  args.plan = plan;
  args.geometry = geometry_;
  args.reduction = task.reduction;
  args.timeout_ns = uint64_t(timeout.count());
  args.seq = task.seq;
  if constexpr (requires { args.mesh; }) args.orders = orders_, args.mesh = mesh_;
  if constexpr (std::is_same_v<Args, NormArgs>) args.rows = plan, args.eps = task.norm->eps;
  for (size_t i = 0; i < seats_.size(); ++i) {
    const Segments& s = seats_[i].segments;
    auto* mine = static_cast<std::byte*>(s.mine);
    auto* tail = reinterpret_cast<SegmentTail*>(mine + tail_offset(geometry_, ranks_));
    args.ranks[i] = {seats_[i].rank,
                     s.on_host,
                     static_cast<const std::byte*>(tasks[i].in),
                     static_cast<std::byte*>(tasks[i].out),
                     mine,
                     static_cast<std::byte*>(s.host),
                     static_cast<std::byte*>(s.next),
                     static_cast<std::byte*>(s.prev),
                     tables_ + i * size_t(ranks_),
                     &mailboxes_[i],
                     &tail->failed,
                     &tail->ended};
    if constexpr (std::is_same_v<Args, TimedArgs>)
      if (tasks[i].timeline != nullptr) args.timelines[i] = *tasks[i].timeline;
    if constexpr (std::is_same_v<Args, NormArgs>)
      args.norms[i] = {tasks[i].norm->residual, tasks[i].norm->weight, tasks[i].norm->normalised};
  }
  return args;
}

// This launch waits for nobody and touches no segment. It has its place among the launches for
// `drain`, and none in a graph, where it would cost two nodes.
void Launcher::run_in_place(const Task& task, const Tensors& tensors) {
  InPlaceArgs args{task.reduction, tensors};
  const bool tree = is_by_tree(task.reduction);
  const int threads = in_place_threads(tensors.bytes, tree);
  const auto blocks = unsigned(div_up(tensors.bytes, int64_t(tree ? 8 : 16) * threads));
  const auto stream = static_cast<cudaStream_t>(task.stream);
  const void* kernel = in_place_kernel(task.reduction.dtype, task.reduction.combine, tree);
  if (capture_of(stream) != 0) return launch_kernel(kernel, blocks, threads, &args, stream);
  const auto turn = order_.follow_last(stream, /*blocks=*/0);
  launch_kernel(kernel, blocks, threads, &args, stream);
  order_.note_last(stream);
}

void Launcher::run_alone(const Task& task) {
  const auto stream = static_cast<cudaStream_t>(task.stream);
  const DType dtype = task.reduction.dtype;
  if (task.reduction.scale == Reduction::Scale::multiply_input) {
    AloneArgs args{static_cast<const std::byte*>(task.in), static_cast<std::byte*>(task.out),
                   task.count, task.reduction};
    const auto blocks =
        unsigned(std::clamp(div_up(task.count, 4 * kMaxThreads), int64_t(1), int64_t(1024)));
    launch_kernel(alone_kernel(dtype), blocks, kMaxThreads, &args, stream);
  } else if (task.in != task.out) {
    check(cudaMemcpyAsync(task.out, task.in, size_t(task.count * size_of(dtype)),
                          cudaMemcpyDeviceToDevice, stream),
          "cudaMemcpyAsync");
  }
}

void Launcher::throw_if(Verdict verdict) {
  for (size_t i = 0; i < seats_.size(); ++i) {
    WaitReport& r = mailboxes_[i].report;
    if (std::atomic_ref<Verdict>(r.verdict).load(std::memory_order_acquire) != verdict) continue;
    abort();
    throw_wait(fault_of(i));
  }
}

// Returns the report of the seat.
Fault Launcher::fault_of(size_t seat) const {
  const Segments& segments = seats_[seat].segments;
  return fault_in(mailboxes_[seat].report, seats_[seat].rank, ranks_, orders_, segments.names);
}

void Launcher::throw_if_failed(const Task& task) {
  throw_if(Verdict::timed_out);  // the cause of those that were aborted
  throw_if(Verdict::aborted);
  if (aborted_)
    throw AbortedError("the communicator was aborted before " +
                       std::string(name_of(task.collective)) + "; make a new one.");
}

void Launcher::abort() {
  if (aborted_.exchange(true) || ranks_ == 1) return;
  for (size_t i = 0; i < seats_.size(); ++i)
    std::atomic_ref<uint32_t>(mailboxes_[i].aborted).store(1, std::memory_order_release);
  try {
    const OnDevice guard(device_);
    poison_others();
  } catch (const Error&) {
    // The device is lost: the others' deadlines will tell them.
  }
}

// Ends the waits for launches that will not come: of the neighbours on the ring, and in a direct
// all-reduce of all ranks. Uses copies, because a kernel might find no room beside those that wait.
// They follow the last launch, because it still posts until it sees the poison.
void Launcher::poison_others() {
  order_.let_follow(abort_stream_);
  for (const Seat& seat : seats_) {
    const auto put = [&](void* at, size_t pitch, size_t bytes, int rows) {
      (void)cudaMemcpy2DAsync(at, pitch, poison_, sizeof *poison_, bytes, size_t(rows),
                              cudaMemcpyDefault, abort_stream_);  // host memory, too
    };
    auto* mine = static_cast<std::byte*>(seat.segments.mine);
    put(&reinterpret_cast<SegmentTail*>(mine + tail_offset(geometry_, ranks_))->failed,
        sizeof *poison_, sizeof(uint32_t), 1);
    for (void* other : seat.segments.all)
      if (mesh_.possible() && other != nullptr)
        put(&reinterpret_cast<MeshCounters*>(static_cast<std::byte*>(other) + geometry_.bytes())
                 ->poisoned.value,
            size_t(mesh_.channel_bytes()), sizeof *poison_, geometry_.channels);
    // Handles all channels of one order at once: they have the same neighbours.
    const Segments& s = seat.segments;
    const int period = std::min(orders_.period(), geometry_.channels);
    const auto pitch = size_t(period * geometry_.channel_bytes());
    for (int channel = 0; channel < period; ++channel) {
      const bool numbered = orders_.count == 0;
      const auto segment = [&](int of) { return s.all[size_t(of)]; };
      void* next = numbered ? s.next : segment(orders_.next(channel, seat.rank, ranks_));
      void* prev = numbered ? s.prev : segment(orders_.prev(channel, seat.rank, ranks_));
      const int rows = int(div_up(geometry_.channels - channel, period));
      for (int p = 0; p < kProtocols; ++p) {
        const auto counters = [&](void* segment) {
          return reinterpret_cast<LinkCounters*>(static_cast<std::byte*>(segment) +
                                                 geometry_.counters_offset(channel, Protocol(p)));
        };
        put(&counters(next)->tail, pitch, sizeof *poison_, rows);
        put(&counters(prev)->head, pitch, sizeof *poison_, rows);
      }
    }
  }
}

Executor::Progress joined(const Executor::Progress& a, const Executor::Progress& b) {
  const bool cause = b.failed && b.failed->cause == Cause::timed_out;
  return {std::min(a.done, b.done), cause || !a.failed ? b.failed : a.failed};
}

Executor::Progress Launcher::progress() const {
  const auto of = [this](size_t seat) {
    Mailbox& mailbox = mailboxes_[seat];
    Executor::Progress p;
    p.done = std::atomic_ref(mailbox.done).load(std::memory_order_acquire);
    const Verdict verdict = std::atomic_ref(mailbox.report.verdict).load(std::memory_order_acquire);
    if (verdict != Verdict::ok) p.failed = fault_of(seat);
    return p;
  };
  Executor::Progress all = of(0);
  for (size_t i = 1; i < seats_.size(); ++i) all = joined(all, of(i));
  return all;
}

bool Launcher::drain(Milliseconds patience) {
  const OnDevice guard(device_);
  if (!order_.drain(patience)) return false;
  if (abort_stream_ != nullptr) (void)cudaStreamSynchronize(abort_stream_);
  return true;
}

}  // namespace ringkern::cuda
