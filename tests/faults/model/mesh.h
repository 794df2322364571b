// The mesh, csrc/core/direct.h and csrc/cpu/mesh.cpp: a slot has no credit, and is reused when the
// counters of later rounds show that no rank can still need it. On several sockets also
// csrc/cpu/mesh_sockets.h.
#pragma once

#include "faults/model/bell.h"

#include "cpu/mesh.h"
#include "cpu/mesh_sockets.h"

namespace model {

// `calls` all-reduces of `rounds` rounds each, every one different from the one before. `near`:
// ranks of a socket, whose calls are a one_shot and this one in turn; 0: there is one socket.
template <Algorithm algorithm, Protocol protocol, int ranks, int calls, int rounds, int near = 0>
struct Slots : rl::test_suite<Slots<algorithm, protocol, ranks, calls, rounds, near>, ranks> {
  static constexpr bool kLines = protocol == Protocol::ll;
  static constexpr int64_t kOffset = 4096;
  static constexpr int kLinesUsed = 2;  // of a slot
  static constexpr int64_t kRoundBytes =
      kLines ? kLinesUsed * int64_t(sizeof(cpu::DirectLine::data)) : cpu::MeshGeometry::kSlotBytes;
  static constexpr int64_t kCount = rounds * kRoundBytes / 8;
  // Only a block's first element is moved, and a rank of three stages adjacent parts.
  static_assert(ranks == 2 || near == 2 || algorithm == Algorithm::one_shot);
  static_assert(!kLines || rounds == 1);

  static char* segment(int rank) {
    alignas(4096) static char memory[ranks][kOffset + cpu::MeshGeometry::bytes()];
    return memory[rank];
  }
  static int64_t* tensor(int rank, bool out) {
    alignas(64) static int64_t memory[2][ranks][kCount];
    return memory[out][rank];
  }
  static cpu::Board& board(int rank) {
    return *reinterpret_cast<cpu::Board*>(segment(rank) + kOffset);
  }
  static Algorithm algorithm_of(int call) {
    return near > 0 && call % 2 == 0 ? Algorithm::one_shot : algorithm;
  }
  static DirectPlan plan(Algorithm a = algorithm) {
    if (near > 0 && a == Algorithm::two_shot) return cpu::MeshSockets::plan(near, kCount, 8);
    return DirectPlan::make(a, ranks, kCount, 8,
                            kLines ? cpu::MeshGeometry::line_slot_data()
                                   : cpu::MeshGeometry::kSlotBytes,
                            1, kLines ? cpu::MeshGeometry::kLineAhead : cpu::MeshGeometry::kAhead);
  }
  // Position in the tensor of a move.
  template <class F>
  static void for_each_block(Algorithm a, F&& f) {
    const DirectPlan p = plan(a);
    for (int64_t i = 0; i < p.rounds; ++i)
      for (int part = 0; part < p.parts(); ++part) {
        const Span chunk = p.chunk_of(0, i), span = p.part_of(chunk, part);
        f(chunk.first + span.first, i);
      }
  }

  std::optional<cpu::Mesh> mesh[ranks];

  void before() {
    begin();
    check(plan().rounds == rounds, "as many rounds as were meant");
    for (int r = 0; r < ranks; ++r) {
      cpu::Board& b = board(r);
      auto* const lines = reinterpret_cast<cpu::DirectLine*>(&b + 1);
      char* const slots = reinterpret_cast<char*>(lines) + cpu::MeshGeometry::lines_bytes();
      std::memset(segment(r), 0, size_t(slots - segment(r)));
      know_bell(*reinterpret_cast<cpu::Bell*>(segment(r)));
      words.begin("staged");
      (void)cpu::load_acquire(b.staged.rounds);
      words.begin("call");
      for (uint64_t& call : b.staged.calls) (void)cpu::load_acquire(call);
      words.begin("reduced");
      (void)cpu::load_acquire(b.reduced.value);
      words.begin("flag");
      for (int slot = 0; kLines && slot < DirectPlan::slots(cpu::MeshGeometry::kLineAhead); ++slot)
        for (int line = 0; line < kLinesUsed; ++line) {
          cpu::DirectLine& l = lines[slot * cpu::MeshGeometry::kLines + line];
          (void)cpu::load_acquire(l.flag);
          data.add(l.data);
        }
      for (int slot = 0; !kLines && slot < DirectPlan::slots(cpu::MeshGeometry::kAhead); ++slot)
        for (int part = 0; part < plan().parts(); ++part)
          data.add(slots + slot * cpu::MeshGeometry::kSlotBytes + part * plan().part * 8);
    }
    words.begin("processors");
    Segments all;
    for (int r = 0; r < ranks; ++r) all.all.push_back(segment(r));
    for (int r = 0; r < ranks; ++r)
      mesh[r].emplace(all, kOffset, r, nullptr, near > 0 ? r / near : -1);
    words.end();
    for (int r = 0; r < ranks; ++r)
      for_each_block(algorithm, [&](int64_t at, int64_t) { tensor(r, false)[at] = value(r, at); });
  }
  void after() { end(); }

  static int64_t value(int rank, int64_t at) { return (rank + 1) * 1'000'000 + at; }

  void thread(unsigned index) {
    const int rank = int(index);
    Task task;
    task.protocol = protocol;
    task.in = tensor(rank, false);
    task.out = tensor(rank, true);
    task.count = kCount;
    const Reducer reducer((Reduction()));
    for (int call = 0; call < calls; ++call) {
      task.algorithm = algorithm_of(call);
      task.reduction.combine = Combine(call % kCombines);  // a name only: the stand-in always adds
      cpu::WaitHistory no_yields{cpu::Wait::Clock::time_point::max()};
      cpu::Wait wait(*reinterpret_cast<cpu::Bell*>(segment(rank)), 0, std::chrono::hours(1000),
                     no_yields);
      WaitReport report;
      for_each_block(task.algorithm, [&](int64_t at, int64_t) { tensor(rank, true)[at] = 0; });
      check(mesh[rank]->run(task, reducer, wait, report) == Verdict::ok, "a call ends in ok");
      for_each_block(task.algorithm, [&](int64_t at, int64_t) {
        int64_t sum = 0;
        for (int r = 0; r < ranks; ++r) sum += value(r, at);
        check(tensor(rank, true)[at] == sum, "the result is right");
      });
    }
  }
};

}  // namespace model

// The model has no tensors that ranks share in place.
inline ringkern::cpu::PeerArena::View ringkern::cpu::PeerArena::view(int64_t) { return {}; }
inline ringkern::cpu::PeerArena::~PeerArena() = default;
