#include "cuda/local.h"

#include <algorithm>
#include <array>
#include <mutex>

#include "cuda/device.h"
#include "cuda/engine.h"
#include "cuda/prober.h"
#include "cuda/residency.h"

namespace ringkern::cuda {
namespace {

int64_t segment_pitch(const Geometry& g, int ranks) {
  return align_up(segment_bytes(g, ranks), 256);
}

// For the life of the process: others, torch among them, may have come to rely on it since. False
// where there is none to enable; only neighbours on a ring must have it.
bool enable_access(int from, int to, bool neighbours) {
  if (from == to) return true;
  int possible = 0;
  check(cudaDeviceCanAccessPeer(&possible, from, to), "cudaDeviceCanAccessPeer");
  const std::string pair = "device " + std::to_string(from) + " and device " + std::to_string(to);
  if (!possible && neighbours)
    throw TransportError(pair +
                         " are neighbours in the ring and have no access to each other's "
                         "memory. Put the ranks in an order in which neighbours have (see "
                         "nvidia-smi topo -p2p r), or on one device");
  if (!possible) return false;
  const OnDevice guard(from);
  const cudaError_t error = cudaDeviceEnablePeerAccess(to, 0);
  const bool enabled = error == cudaSuccess || error == cudaErrorPeerAccessAlreadyEnabled;
  if (!enabled && neighbours) check(error, ("cudaDeviceEnablePeerAccess between " + pair).c_str());
  if (error != cudaSuccess) (void)cudaGetLastError();  // or a later call would report it
  return enabled;
}

}  // namespace

bool reach_each_other(const std::vector<int>& devices) {
  for (const int from : devices)
    for (const int to : devices) {
      int possible = from == to;
      if (!possible) check(cudaDeviceCanAccessPeer(&possible, from, to), "cudaDeviceCanAccessPeer");
      if (!possible) return false;
    }
  return true;
}

bool carry_lines(const std::vector<int>& devices) {
  for (size_t r = 0; r < devices.size(); ++r)
    if (!carries_lines(devices[r], devices[(r + 1) % devices.size()])) return false;
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
  for (int channel = 0; channel < orders_.period(); ++channel)
    for (int r = 0; r < ranks_; ++r) {
      const int device = devices[size_t(r)];
      const int next = devices[size_t(orders_.next(channel, r, ranks_))];
      enable_access(device, next, /*neighbours=*/true);
      enable_access(next, device, /*neighbours=*/true);
    }
  try {
    if (ranks_ > 1) claim_memory();
    if (parts_.size() > 1) probe(timeout);
    make_launchers(devices, timeout);
  } catch (...) {
    release();
    throw;
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
  }
}

void LocalRing::probe(Milliseconds timeout) {
  std::vector<ProbedDevice> devices;
  for (const Part& part : parts_)
    devices.push_back({part.device, part.ranks.front(), static_cast<std::byte*>(part.memory)});
  probe_devices(
      devices, geometry_, [](int from, int to) { return enable_access(from, to, false); }, timeout);
}

void LocalRing::make_launchers(const std::vector<int>& devices, Milliseconds timeout) {
  std::vector<std::byte*> segments(devices.size(), nullptr);
  for (const Part& part : parts_)
    for (size_t i = 0; i < part.ranks.size() && part.memory != nullptr; ++i)
      segments[size_t(part.ranks[i])] =
          static_cast<std::byte*>(part.memory) + int64_t(i) * segment_pitch(geometry_, ranks_);
  const auto segment = [&](int rank) { return segments[size_t((rank + ranks_) % ranks_)]; };
  for (Part& part : parts_) {
    std::vector<void*> all;
    for (int r = 0; r < ranks_; ++r)
      all.push_back(enable_access(part.device, devices[size_t(r)], false) ? segment(r) : nullptr);
    std::vector<Seat> seats;
    for (const int r : part.ranks)
      seats.push_back({r, {segment(r), segment(r + 1), segment(r - 1), all, {}, orders_}});
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
    } catch (const Error&) {
      // The driver has shut down before us, at exit.
    }
  }
}

void LocalRing::run(std::span<const Task> tasks) {
  if (int(tasks.size()) != ranks_)
    throw UsageError("a ring of " + std::to_string(ranks_) + " ranks takes as many tasks, not " +
                     std::to_string(tasks.size()));
  for (const Task& task : tasks) task.under_way = task.refused = false;
  for (Part& part : parts_) part.launcher->check_task(tasks.front());
  // Two rings on the same devices, used by two threads: were they launched in one order here and in
  // another there, each could wait behind the other.
  static std::mutex order;
  std::unique_lock turn(order, std::defer_lock);
  const bool several = parts_.size() > 1;
  if (several) turn.lock();
  bool under_way = true, waiting = false, refused = false;
  try {
    if (several) throw_if_failed(tasks.front());  // before any is launched; a launcher looks itself
    for (Part& part : parts_) {
      std::array<Task, kMaxLocalRanks> seated;
      for (size_t i = 0; i < part.ranks.size(); ++i) {
        seated[i] = tasks[size_t(part.ranks[i])];
        seated[i].seq = tasks.front().seq;
      }
      try {
        part.launcher->run({seated.data(), part.ranks.size()}, tasks);
      } catch (...) {
        refused = seated[0].refused && !waiting;
        throw;
      }
      under_way = under_way && seated[0].under_way;
      waiting = waiting || !part.launcher->captured();
    }
  } catch (...) {
    tasks.front().refused = refused;
    if (!refused) abort();  // kernels on other devices must not wait for what was not launched
    throw;
  }
  for (const Task& task : tasks) task.under_way = under_way;
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
