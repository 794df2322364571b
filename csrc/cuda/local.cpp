#include "cuda/local.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>

#include "cuda/device.h"
#include "cuda/executor.h"
#include "cuda/prober.h"
#include "cuda/residency.h"

namespace ringkern::cuda {
namespace {

int64_t segment_pitch(const Geometry& g, int ranks) {
  return align_up(segment_bytes(g, ranks), 256);
}

// Enables peer access for the life of the process, because others, such as torch, may rely on it.
// Returns false if there is none.
bool enable_access(int from, int to) {
  if (from == to) return true;
  int possible = 0;
  check(cudaDeviceCanAccessPeer(&possible, from, to), "cudaDeviceCanAccessPeer");
  if (!possible) return false;
  const OnDevice guard(from);
  const cudaError_t error = cudaDeviceEnablePeerAccess(to, 0);
  if (error != cudaSuccess) (void)cudaGetLastError();  // or a later call would report it
  return error == cudaSuccess || error == cudaErrorPeerAccessAlreadyEnabled;
}

}  // namespace

bool reach_each_other(const std::vector<int>& devices) {
  for (const int from : devices)
    for (const int to : devices) {
      int possible = from == to;
      if (!possible) check(cudaDeviceCanAccessPeer(&possible, from, to), "cudaDeviceCanAccessPeer");
      if (!possible || memory_choice == MemoryChoice::host) return false;
    }
  return true;
}

bool carry_lines(const std::vector<int>& devices) {
  for (size_t r = 0; r < devices.size(); ++r) {
    const int from = devices[r], to = devices[(r + 1) % devices.size()];
    if (!reach_each_other({from, to}) || !carries_lines(from, to)) return false;
  }
  return true;
}

LocalRing::LocalRing(const std::vector<int>& devices, Milliseconds timeout,
                     const RingOrders& orders, bool apart)
    : ranks_(int(devices.size())), orders_(orders), geometry_(default_geometry()) {
  if (ranks_ < 1 || ranks_ > kMaxRanks)
    throw UsageError("a local ring has 1 to " + std::to_string(kMaxRanks) + " ranks, not " +
                     std::to_string(ranks_));
  check_orders(orders_, ranks_);
  for (int r = 0; r < ranks_; ++r) {
    const int device = devices[size_t(r)];
    auto part = std::find_if(parts_.begin(), parts_.end(),
                             [&](const Part& p) { return p.device == device && !apart; });
    if (part == parts_.end()) {
      part = parts_.emplace(parts_.end());
      part->device = device;
    }
    part->ranks.push_back(r);
  }
  for (const Part& part : parts_)
    if (part.ranks.size() > size_t(kMaxLocalRanks))
      throw UsageError("a local ring has 1 to " + std::to_string(kMaxLocalRanks) +
                       " ranks on a device, not " + std::to_string(part.ranks.size()) +
                       " as on device " + std::to_string(part.device));
  geometry_.channels = kMaxChannels;
  for (const Part& part : parts_) {
    check_device(part.device);
    const OnDevice guard(part.device);
    const auto sharing = int(std::ranges::count(devices, part.device));
    const int channels = channels_of(resident_blocks(part.device), sharing);
    geometry_.channels = std::clamp(channels, 1, geometry_.channels);  // 0: the launcher says why
  }
  choose_memory();
  try {
    if (ranks_ > 1) claim_memory();
    if (parts_.size() > 1) probe(timeout);
    make_launchers(timeout);
  } catch (...) {
    release();
    throw;
  }
}

// Takes host memory for the ranks whose devices do not both have access to each other's memory.
void LocalRing::choose_memory() {
  on_host_.assign(size_t(ranks_), 0);
  for (const Part& here : parts_)
    for (const Part& there : parts_) {
      if (enable_access(here.device, there.device) && memory_choice != MemoryChoice::host) continue;
      if (ranks_ > kMostOnHost)
        throw TransportError(
            "device " + std::to_string(here.device) + " and device " +
            std::to_string(there.device) +
            " have no access to each other's memory, and host memory serves at most " +
            std::to_string(kMostOnHost) + " ranks, not " + std::to_string(ranks_) +
            ": use devices that have (see nvidia-smi topo -p2p r), or fewer ranks");
      for (const int a : here.ranks)
        for (const int b : there.ranks)
          if (a != b)
            on_host_[size_t(a)] |= uint32_t(1) << b, on_host_[size_t(b)] |= uint32_t(1) << a;
    }
}

void LocalRing::claim_memory() {
  for (Part& part : parts_) {
    const OnDevice guard(part.device);
    const size_t bytes = size_t(segment_pitch(geometry_, ranks_)) * part.ranks.size();
    part.memory = allocate(bytes, ("Device " + std::to_string(part.device) + " needs " +
                                   std::to_string(bytes >> 20) + " MiB for the FIFOs of its " +
                                   std::to_string(part.ranks.size()) +
                                   " ranks; free some, or use fewer ranks")
                                      .c_str());
    clear(part.device, part.memory, bytes);
    if (std::ranges::all_of(part.ranks, [&](int r) { return on_host_[size_t(r)] == 0; })) continue;
    check(cudaHostAlloc(&part.host, bytes, cudaHostAllocMapped | cudaHostAllocPortable),
          "cudaHostAlloc", "Raise the limit of locked memory (ulimit -l), or use fewer ranks");
    std::memset(part.host, 0, bytes);
  }
}

// Probes the links over device memory.
void LocalRing::probe(Milliseconds timeout) {
  std::vector<ProbedDevice> devices;
  for (const Part& part : parts_)
    devices.push_back({part.device, part.ranks.front(), static_cast<std::byte*>(part.memory)});
  const auto reaches = [](int from, int to) { return reach_each_other({from, to}); };
  probe_devices(devices, geometry_, reaches, timeout);
}

void LocalRing::make_launchers(Milliseconds timeout) {
  std::vector<Segments> own(static_cast<size_t>(ranks_));
  for (const Part& part : parts_)
    for (size_t i = 0; i < part.ranks.size() && part.memory != nullptr; ++i) {
      Segments& of = own[size_t(part.ranks[i])];
      const int64_t offset = int64_t(i) * segment_pitch(geometry_, ranks_);
      of.mine = static_cast<std::byte*>(part.memory) + offset;
      of.host = part.host == nullptr ? nullptr : static_cast<std::byte*>(part.host) + offset;
      of.on_host = on_host_[size_t(part.ranks[i])];
      of.orders = orders_;
    }
  for (Part& part : parts_) {
    std::vector<Seat> seats;
    for (const int r : part.ranks) {
      Segments segments = own[size_t(r)];
      for (const Segments& other : own) segments.all.push_back(other.written_by(r));
      segments.next = segments.all[size_t((r + 1) % ranks_)];
      segments.prev = segments.all[size_t((r + ranks_ - 1) % ranks_)];
      seats.push_back({r, std::move(segments)});
    }
    part.launcher = std::make_unique<Launcher>(part.device, std::move(seats), ranks_, geometry_,
                                               timeout, /*one_process=*/true);
  }
}

LocalRing::~LocalRing() { release(); }

void LocalRing::release() noexcept {
  // All kernels have ended before any memory goes: they write to each other's.
  for (Part& part : parts_) part.launcher.reset();
  for (Part& part : parts_) {
    try {
      const OnDevice guard(part.device);
      (void)cudaFree(part.memory);
      if (part.host != nullptr) (void)cudaFreeHost(part.host);
    } catch (const Error&) {
      // The driver has shut down before us, at exit.
    }
  }
}

bool LocalRing::run(std::span<const Task> tasks) {
  if (int(tasks.size()) != ranks_)
    throw UsageError("a ring of " + std::to_string(ranks_) +
                     " ranks needs one task for each rank, not " + std::to_string(tasks.size()));
  for (Part& part : parts_) part.launcher->check_task(tasks.front());
  // With two rings on the same devices, used by two threads, launches in a different order on
  // different devices could make each ring wait behind the other.
  static std::mutex order;
  std::unique_lock turn(order, std::defer_lock);
  const bool several = parts_.size() > 1;
  if (several) turn.lock();
  bool under_way = true, waiting = false;
  try {
    if (several) throw_if_failed(tasks.front());  // before any is launched; each checks only itself
    for (Part& part : parts_) {
      std::array<Task, kMaxLocalRanks> seated;
      for (size_t i = 0; i < part.ranks.size(); ++i) {
        seated[i] = tasks[size_t(part.ranks[i])];
        seated[i].seq = tasks.front().seq;
      }
      under_way = part.launcher->run({seated.data(), part.ranks.size()}, tasks) && under_way;
      waiting = waiting || !part.launcher->captured();
    }
  } catch (Error& e) {
    e.facts.refused = e.facts.refused && !waiting;
    // Kernels on other devices must not wait for missing launches.
    if (!e.facts.refused) abort();
    throw;
  } catch (...) {
    abort();
    throw;
  }
  return under_way;
}

void LocalRing::throw_if_failed(const Task& task) {
  // First the cause of those that were aborted, on whatever device it is.
  for (Part& part : parts_) part.launcher->throw_if(Verdict::timed_out);
  for (Part& part : parts_) part.launcher->throw_if_failed(task);
}

void LocalRing::abort() {
  for (Part& part : parts_) part.launcher->abort();
}

Executor::Progress LocalRing::progress() const {
  Executor::Progress all = parts_.front().launcher->progress();
  for (const Part& part : parts_) all = joined(all, part.launcher->progress());
  return all;
}

bool LocalRing::drain(Milliseconds patience) {
  const bool endless = patience == Milliseconds::max();
  const auto end = endless ? Clock::time_point::max() : Clock::now() + patience;
  for (Part& part : parts_) {
    const auto left = std::chrono::duration_cast<Milliseconds>(end - Clock::now());
    if (!part.launcher->drain(endless ? patience : std::max(left, Milliseconds(0)))) return false;
  }
  return true;
}

}  // namespace ringkern::cuda
