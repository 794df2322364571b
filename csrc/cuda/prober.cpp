#include "cuda/prober.h"

#include <algorithm>
#include <memory>
#include <thread>
#include <vector>

#include "comm/probe.h"
#include "cuda/device.h"

namespace ringkern::cuda {
namespace {

static_assert(kMostLinks >= kMostProbed);
// The answer comes to the first word behind the data of a slot. In this rank's spare slot, the
// scratch lies behind as many bytes.
constexpr int64_t kAnswerBytes = kCacheLine;

constexpr Milliseconds kLookEvery{100};

ProbeScratch* scratch_of(const ProbedLink& link) {
  return reinterpret_cast<ProbeScratch*>(link.spare + link.words + kAnswerBytes / 8);
}

}  // namespace

Prober::Prober(int device) : device_(device) {
  const OnDevice guard(device);
  load(probe_kernel());
  // A stream of its own: on another it would wait for kernels that wait for their peers.
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
}

// Waits for the kernel, which ends by its deadline: it writes to others' memory, which may be
// unmapped next.
Prober::~Prober() {
  try {
    const OnDevice guard(device_);
    if (launched_) (void)has_ended(Clock::now() + 3 * patience_, [] {});
    (void)cudaStreamDestroy(stream_);
  } catch (const Error&) {
    // The driver has shut down before us, at exit, or the kernel has failed.
  }
}

void Prober::stage(std::span<const ProbedLink> links) {
  const OnDevice guard(device_);
  for (const ProbedLink& link : links)
    check(cudaMemcpyAsync(link.second_spare, link.sends, size_t(link.words + 1) * 8,
                          cudaMemcpyDefault, stream_),
          "cudaMemcpyAsync");
}

void Prober::launch(std::span<const ProbedLink> links, Milliseconds patience) {
  if (links.empty()) return;
  const OnDevice guard(device_);
  ProbeArgs args;
  args.words = links.front().words;
  args.timeout_ns = uint64_t(std::chrono::nanoseconds(patience).count());
  for (size_t i = 0; i < links.size(); ++i) {
    const ProbedLink& link = links[i];
    args.links[i] = {link.theirs, link.second_spare, link.mine, link.spare, scratch_of(link)};
  }
  launch_kernel(probe_kernel(), unsigned(links.size()), kProbeThreads, &args, stream_);
  launched_ = true;
  patience_ = patience;
}

// Does not use cudaStreamSynchronize, which would wait for as long as the device has no room.
bool Prober::has_ended(Clock::time_point deadline, const std::function<void()>& look) {
  auto next_look = Clock::now() + kLookEvery;
  for (cudaError_t error; (error = cudaStreamQuery(stream_)) != cudaSuccess;) {
    if (error != cudaErrorNotReady) check(error, "the kernel that probes the links");
    const auto now = Clock::now();
    if (now >= deadline) return false;
    if (now >= next_look) {
      look();
      next_look = now + kLookEvery;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  launched_ = false;
  return true;
}

void Prober::finish(std::span<ProbedLink> links, Milliseconds patience,
                    const std::function<void()>& look) {
  const OnDevice guard(device_);
  if (launched_ && !has_ended(Clock::now() + 3 * patience, look))
    throw TransportError("device " + std::to_string(device_) +
                         " did not run the kernel that probes the "
                         "links: other kernels occupy it and do not end. Wait for them first");
  const auto fetch = [&](uint64_t* to, const uint64_t* from, int words) {
    check(cudaMemcpyAsync(to, from, size_t(words) * 8, cudaMemcpyDefault, stream_),
          "cudaMemcpyAsync");
    check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  };
  for (ProbedLink& link : links) {
    if (link.mine == nullptr) continue;
    fetch(link.receives, link.spare, link.words);
    if (link.receives[link.words - 1] == 0) {
      // The kernel gave up: these words are for the report.
      fetch(link.receives, link.mine, link.words);
      link.receives[link.words - 1] = 0;
    } else if (link.theirs != nullptr) {
      uint64_t answer = 0;
      fetch(&answer, &scratch_of(link)->answer, 1);
      link.answered = answer != 0;
    }
  }
}

std::string Prober::place(int device) {
  const std::string name = "cuda:" + std::to_string(device);
  const std::string bus = bus_of(device);
  return bus.empty() ? name : name + ", PCI " + bus;
}

std::string Prober::remedy() {
  return "CUDA says that the two GPUs reach each other's memory, and data do not. Most often an "
         "IOMMU or PCIe access control (ACS) is in the way: boot with iommu=pt or without an "
         "IOMMU, switch ACS off on the bridges (lspci -vvv shows ACSCtl), look at nvidia-smi topo "
         "-p2p r, and give all ranks one container with --ipc=host --pid=host. Until then leave "
         "one of the two out by CUDA_VISIBLE_DEVICES";
}

void probe_devices(const std::vector<ProbedDevice>& devices, const Geometry& geometry,
                   const std::function<bool(int from, int to)>& reaches, Milliseconds timeout) {
  const int n = int(devices.size());
  const ProbeSlots slots{probe_room(geometry), n};
  const int words = slots.words();
  if (n < 2 || words < 1) return;
  int ranks = 0;
  for (const ProbedDevice& d : devices) ranks = std::max(ranks, d.rank + 1);
  const ProbeWords pattern(probe_seed(random_id()), ranks);
  const Milliseconds patience = std::min(kProbePatience, timeout / 2);
  const auto at = [&](int owner, int writer, int spare = 0) {
    return reinterpret_cast<uint64_t*>(devices[size_t(owner)].segment +
                                       slots.offset(writer, owner, spare));
  };
  std::vector<std::vector<ProbedLink>> links(devices.size());
  std::vector<std::vector<uint64_t>> sent, received;
  sent.reserve(size_t(n) * size_t(n)), received.reserve(size_t(n) * size_t(n));
  for (int d = 0; d < n; ++d)
    for (int peer = 0; peer < n; ++peer) {
      if (peer == d) continue;
      ProbedLink link;
      const ProbedDevice &here = devices[size_t(d)], &there = devices[size_t(peer)];
      link.peer = there.rank;
      link.words = words;
      if (reaches(here.device, there.device)) link.theirs = at(peer, d);
      if (reaches(there.device, here.device)) link.mine = at(d, peer);
      link.sends = sent.emplace_back(pattern.words(here.rank, there.rank, words + 1)).data();
      link.receives = received.emplace_back(std::vector<uint64_t>(size_t(words), 0)).data();
      link.spare = at(d, peer, 1);
      link.second_spare = at(d, peer, 2);
      links[size_t(d)].push_back(link);
    }
  std::vector<std::unique_ptr<Prober>> probers;
  for (int d = 0; d < n; ++d) {
    probers.push_back(std::make_unique<Prober>(devices[size_t(d)].device));
    probers.back()->stage(links[size_t(d)]);
  }
  for (int d = 0; d < n; ++d) probers[size_t(d)]->launch(links[size_t(d)], patience);
  for (int d = 0; d < n; ++d) probers[size_t(d)]->finish(links[size_t(d)], patience, [] {});
  const auto named = [&](int rank) {
    const auto is_it = [&](const ProbedDevice& d) { return d.rank == rank; };
    const int device = std::find_if(devices.begin(), devices.end(), is_it)->device;
    return rank_text(rank) + " (" + Prober::place(device) + ")";
  };
  for (int d = 0; d < n; ++d)
    for (const ProbedLink& link : links[size_t(d)]) {
      const int rank = devices[size_t(d)].rank;
      check_probed(link, pattern, rank, patience,
                   {named(rank), named(link.peer), Prober::remedy()});
    }
}

}  // namespace ringkern::cuda
