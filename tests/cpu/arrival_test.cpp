// The announced place of a rank's tensor is checked against its memory: an invalid place is an
// error, and never an access outside of the memory.
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "check.h"
#include "cpu/mesh.h"

using namespace ringkern;
using namespace ringkern::cpu;

namespace {

constexpr int64_t kOffset = 4096, kArenaBytes = 16 << 20, kCount = 1000;

// Two ranks of one process; rank 1 has joined a call and rank 0 has not.
struct Pair {
  Arena arena{kArenaBytes};
  std::shared_ptr<Arenas> arenas = std::make_shared<Arenas>();
  std::vector<std::unique_ptr<std::byte[], void (*)(std::byte*)>> memory;
  Segments segments;

  Pair() {
    arenas->mine = &arena;
    arenas->file = arena.file();
    const size_t bytes = size_t(align_up(kOffset + MeshGeometry::bytes(), 4096));
    for (int r = 0; r < 2; ++r) {
      memory.emplace_back(static_cast<std::byte*>(std::aligned_alloc(4096, bytes)),
                          [](std::byte* p) { std::free(p); });
      std::memset(memory.back().get(), 0, bytes);
      segments.all.push_back(memory.back().get());
      arenas->of.push_back(PeerArena::of(r, arena.file()->fd(), arena.bytes()));
    }
    CHECK(run(1) == Verdict::timed_out);
  }

  Arrival& arrival_of(int rank) {
    return reinterpret_cast<Board*>(memory[size_t(rank)].get() + kOffset)->arrival;
  }
  Verdict run(int rank) {
    Task task;
    task.algorithm = Algorithm::two_shot;
    task.count = kCount;
    task.reduction = Reduction::of(Op::sum, DType::i64, 2);
    task.in = task.out = arena.allocate(kCount * 8);
    Mesh mesh(segments, kOffset, rank, arenas, /*socket=*/-1);
    WaitHistory history;
    Wait wait(*static_cast<Bell*>(segments.all[size_t(rank)]), 0, std::chrono::milliseconds(20),
              history);
    WaitReport report;
    return mesh.run(task, Reducer(task.reduction), wait, report);
  }
};

TEST_CASE("a place outside of a rank's file is refused") {
  for (const int64_t place : {int64_t(-1), std::numeric_limits<int64_t>::min()}) {
    Pair pair;
    pair.arrival_of(1).place = place;
    CHECK_THROWS(TransportError, "rank 1 names memory that it has not offered", pair.run(0));
  }
  for (const int64_t below : {int64_t(0), int64_t(1), kCount * 8 - 1}) {
    Pair pair;  // the end of such a tensor overflows
    pair.arrival_of(1).place = std::numeric_limits<int64_t>::max() - below;
    CHECK_THROWS(TransportError, "rank 1 names memory that it has not offered", pair.run(0));
  }
  for (const int64_t place : {kArenaBytes - kCount * 8 + 1, kArenaBytes, int64_t(1) << 60}) {
    Pair pair;
    pair.arrival_of(1).place = place;
    CHECK_THROWS(TransportError, "a rank names memory that it does not have", pair.run(0));
  }
}

TEST_CASE("a place inside of a rank's file is taken") {
  Pair pair;
  pair.arrival_of(1).place = kArenaBytes - kCount * 8;
  CHECK(pair.run(0) == Verdict::timed_out);  // rank 1 has left, and reduces nothing
}

}  // namespace
