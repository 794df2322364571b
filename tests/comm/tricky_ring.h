// Ranks whose memory misbehaves while their links are probed.
#pragma once

#include <cstddef>
#include <functional>
#include <thread>
#include <vector>

#include "comm/communicator.h"
#include "comm/ring_of_threads.h"
#include "cpu/executor.h"
#include "cpu/shm.h"

namespace ringkern::test {

inline constexpr Milliseconds kLong{20000};
inline constexpr Milliseconds kShort{3000};  // more than half of it is the probe's wait

inline Geometry small() {
  Geometry g;
  for (int p = 0; p < kProtocols; ++p) g.slot_bytes[p] = 8192;
  return g;
}

// Changes to the data that one rank writes and maps.
struct Tricks {
  // Called before the rank writes; may change the data and its place.
  std::function<void(std::vector<ProbedLink>&)> writes{};
  std::function<void(std::vector<ProbedLink>&)> reads{};
  // Called with all memory that the rank has mapped, by rank, and its own.
  std::function<void(std::vector<void*>&)> maps{};
  Milliseconds late{0};
  bool reads_others = true;
  std::string place{}, remedy = "Mend it";
};

// Shared memory with faults. The rank's pointer to a peer's memory is decided when all are mapped,
// so it goes through a table.
class TrickyTransport final : public Transport {
 public:
  TrickyTransport(int rank, int ranks, int64_t bytes, Tricks tricks)
      : shm_(bytes), rank_(rank), mapped_(size_t(ranks), nullptr), tricks_(std::move(tricks)) {}
  ~TrickyTransport() override {
    if (writer_.joinable()) writer_.join();
  }

  void* mine() override { return shm_.mine(); }
  Offer offer() override { return shm_.offer(); }
  void* map(const Offer& offer, int peer) override {
    return mapped_[size_t(peer)] = shm_.map(offer, peer);
  }

  void begin_probe(std::span<ProbedLink> links) override {
    if (tricks_.maps) move(links);
    std::vector<ProbedLink> changed(links.begin(), links.end());
    if (tricks_.writes) tricks_.writes(changed);
    if (tricks_.late == Milliseconds(0)) return Transport::begin_probe(changed);
    for (ProbedLink& link : changed) {  // this rank may be done earlier
      sends_.emplace_back(link.sends, link.sends + link.words);
      link.sends = sends_.back().data();
    }
    writer_ = std::thread([this, changed]() mutable {
      std::this_thread::sleep_for(tricks_.late);
      Transport::begin_probe(changed);
    });
  }
  void end_probe(std::span<ProbedLink> links, Milliseconds patience,
                 const std::function<void()>& look) override {
    std::vector<ProbedLink> changed(links.begin(), links.end());
    if (tricks_.reads) tricks_.reads(changed);
    Transport::end_probe(changed, patience, look);
    for (size_t i = 0; i < changed.size(); ++i) links[i].answered = changed[i].answered;
  }
  bool reads_others() const override { return tricks_.reads_others; }
  std::string place() const override { return tricks_.place; }
  std::string remedy() const override { return tricks_.remedy; }

 private:
  // Behaves as if map() had returned other pointers.
  void move(std::span<ProbedLink> links) {
    std::vector<void*> before = mapped_;
    before[size_t(rank_)] = shm_.mine();
    std::vector<void*> after = before;
    tricks_.maps(after);
    for (ProbedLink& link : links) {
      const ptrdiff_t by = static_cast<std::byte*>(after[size_t(link.peer)]) -
                           static_cast<std::byte*>(before[size_t(link.peer)]);
      const auto moved = [&](auto*& at) {
        if (at != nullptr) at += by / ptrdiff_t(sizeof *at);
      };
      moved(link.theirs), moved(link.shown);
    }
  }

  cpu::ShmTransport shm_;
  const int rank_;
  std::vector<void*> mapped_;
  const Tricks tricks_;
  std::vector<std::vector<uint64_t>> sends_;
  std::thread writer_;
};

struct NoExecutor final : Executor {
  RunResult run(const Task&) override { return {}; }
  void abort() override {}
};

// Returns the outcome of each rank's first call; calls `looks` with its segments before that.
inline std::vector<Outcome> make_ring(
    int ranks, const std::function<Tricks(int)>& tricks, Milliseconds timeout = kLong,
    const std::function<void(int, const Segments&)>& looks = nullptr) {
  const auto store = std::make_shared<MemoryStore>();
  return on_threads(ranks, [&](int rank) -> Neighbours {
    Device device;
    Segments segments;
    device.name = device.terms.device = "cpu";
    device.terms.geometry = small();
    device.terms.segment_bytes = cpu::segment_bytes(small());
    device.probe = cpu::probe_room(small());
    device.make_transport = [&] {
      return std::make_unique<TrickyTransport>(rank, ranks, device.terms.segment_bytes,
                                               tricks(rank));
    };
    device.make_executor = [&](const Segments& s) {
      segments = s;
      return std::make_unique<NoExecutor>();
    };
    Communicator comm(store, "ring", rank, ranks, timeout);
    comm.run(device, Task{});
    if (looks) looks(rank, segments);
    return {};
  });
}

}  // namespace ringkern::test
