// The memory of shared tensors: allocation of its parts, memory taken from the system and given
// back, and mappings by other processes.
#include "cpu/arena.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "check.h"
#include "cpu/executor.h"
#include "cpu/rest.h"

using namespace ringkern;
using namespace ringkern::cpu;
using namespace ringkern::test;

namespace {

constexpr int64_t kMiB = 1 << 20;

struct Block {
  std::byte* at;
  int64_t bytes;
  unsigned char value;
};

TEST_CASE("blocks never overlap and all memory comes back") {
  Arena arena(64 * kMiB);
  std::mt19937 random(1);
  std::vector<Block> blocks;
  for (int i = 0; i < 4000; ++i) {
    if (blocks.size() > 30 || (!blocks.empty() && random() % 2 == 0)) {
      const size_t which = random() % blocks.size();
      const Block b = blocks[which];
      for (int64_t j = 0; j < b.bytes; j += 61) CHECK_EQ(int(b.at[j]), int(b.value));
      arena.free(b.at);
      blocks.erase(blocks.begin() + ptrdiff_t(which));
    } else {
      const int64_t bytes = int64_t(random() % (random() % 8 == 0 ? 3 * kMiB : 5000));
      auto* const at = static_cast<std::byte*>(arena.allocate(bytes));
      CHECK_EQ(reinterpret_cast<uintptr_t>(at) % 128, 0u);
      CHECK(arena.place_of(at, bytes) >= 0);
      blocks.push_back({at, bytes, static_cast<unsigned char>(i)});
      std::memset(at, i, size_t(bytes));
    }
  }
  for (const Block& b : blocks) arena.free(b.at);
  CHECK_EQ(arena.bytes_in_use(), 0);
  // In one piece, from the start.
  auto* const whole = arena.allocate(64 * kMiB);
  CHECK_EQ(arena.place_of(whole, 64 * kMiB), 0);
  CHECK_THROWS(SharedMemoryError, "Free shared tensors", arena.allocate(1));
  arena.free(whole);
}

TEST_CASE("only memory inside the arena has a place") {
  Arena arena(4 * kMiB);
  auto* const first = static_cast<std::byte*>(arena.allocate(1000));
  auto* const second = static_cast<std::byte*>(arena.allocate(1000));
  CHECK_EQ(arena.place_of(second, 1) - arena.place_of(first, 1), second - first);
  int elsewhere = 0;
  CHECK_EQ(arena.place_of(&elsewhere, 4), -1);
  CHECK_EQ(arena.place_of(nullptr, 4), -1);
  CHECK_EQ(arena.place_of(first - 1, 4), -1);
  CHECK_EQ(arena.place_of(first + 4 * kMiB - 4, 4), 4 * kMiB - 4);
  CHECK_EQ(arena.place_of(first + 4 * kMiB - 4, 5), -1);
}

TEST_CASE("memory that is freed goes back to the system") {
  Arena arena(256 * kMiB);
  CHECK_EQ(arena.bytes_committed(), 0);
  void* const large = arena.allocate(100 * kMiB);
  CHECK_EQ(arena.bytes_committed(), 100 * kMiB);
  arena.free(large);
  CHECK_EQ(arena.bytes_committed(), 32 * kMiB);  // some is kept
  void* const again = arena.allocate(100 * kMiB);
  CHECK(again == large);
  CHECK_EQ(arena.bytes_committed(), 100 * kMiB);
  arena.free(again);
}

TEST_CASE("another process sees present and later blocks") {
  Arena arena(256 * kMiB);
  auto* const word = static_cast<int*>(arena.allocate(sizeof(int)));
  *word = 41;
  const auto peer = PeerArena::of(1, arena.file()->fd(), arena.bytes());
  CHECK(PeerArena::of(1, arena.file()->fd(), arena.bytes()) == peer);  // one for all groups
  const PeerArena::View small = peer->view(4);
  CHECK(small.base != static_cast<void*>(word));
  CHECK_EQ(*reinterpret_cast<int*>(small.base + arena.place_of(word, 4)), 41);
  auto* const far = static_cast<std::byte*>(arena.allocate(200 * kMiB)) + 200 * kMiB - 1;
  const int64_t place = arena.place_of(far, 1);
  const PeerArena::View large = peer->view(place + 1);
  CHECK(large.bytes > place);
  large.base[place] = std::byte{7};
  CHECK_EQ(int(*far), 7);
  *reinterpret_cast<int*>(small.base) = 42;  // the first view stays valid
  CHECK_EQ(*word, 42);
  CHECK_THROWS(TransportError, "does not have", peer->view(arena.bytes() + 1));
}

TEST_CASE("a file of another size is refused") {
  Arena arena(4 * kMiB);
  CHECK_THROWS(TransportError, "rank 3", PeerArena::of(3, arena.file()->fd(), 8 * kMiB));
}

TEST_CASE("a child frees nothing of its parent") {
  Arena arena(4 * kMiB);
  void* const at = arena.allocate(1000);
  const pid_t child = ::fork();
  if (child == 0) {
    arena.free(at);
    ::_exit(arena.bytes_in_use() > 0 && &Arena::mine() != &arena ? 0 : 1);
  }
  int status = 0;
  CHECK(::waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  CHECK(arena.bytes_in_use() > 0);
  arena.free(at);
}

TEST_CASE("a process that has mapped the arena before cannot write to it after it was renewed") {
  Arena arena(64 * kMiB);
  auto* const word = static_cast<int*>(arena.allocate(sizeof(int)));
  auto* const far = static_cast<std::byte*>(arena.allocate(20 * kMiB)) + 20 * kMiB - 1;
  arena.free(arena.allocate(8 * kMiB));
  *word = 41;
  *far = std::byte{7};
  const auto file = arena.file();
  const auto peer = PeerArena::of(1, file->fd(), arena.bytes());
  std::byte* const theirs = peer->view(arena.bytes()).base;
  arena.renew(Milliseconds(0));
  CHECK_EQ(*word, 41);
  CHECK_EQ(int(*far), 7);
  *reinterpret_cast<int*>(theirs + arena.place_of(word, 4)) = 1;
  theirs[arena.place_of(far, 1)] = std::byte{1};
  CHECK_EQ(*word, 41);
  CHECK_EQ(int(*far), 7);
  CHECK(!arena.is_in(file) && arena.is_in(arena.file()));
  CHECK_EQ(arena.bytes_committed(), 22 * kMiB);  // only what is in use
  const auto later = PeerArena::of(1, arena.file()->fd(), arena.bytes());
  CHECK_EQ(*reinterpret_cast<int*>(later->view(4).base + arena.place_of(word, 4)), 41);
  *static_cast<int*>(arena.allocate(sizeof(int))) = 5;
}

TEST_CASE("an arena is not renewed while a call accesses tensors in it") {
  constexpr int64_t kCount = 1000;
  ThreadRing ring(2, default_geometry(), std::chrono::seconds(60), 4 * kMiB);
  const auto errors = ring.on_threads([&](int rank) {
    auto* const data = static_cast<float*>(ring.arena(rank).allocate(kCount * sizeof(float)));
    std::fill_n(data, kCount, float(rank + 1));
    Task task;
    task.algorithm = Algorithm::two_shot;
    task.in = task.out = data;
    task.count = kCount;
    if (rank == 1) {
      const std::atomic_ref round(ring.board(0).arrival.round);
      while (round.load() == 0) std::this_thread::yield();  // rank 0 waits for this one
      const auto file = ring.arena(0).file();
      CHECK_THROWS(TimeoutError, "in use by calls of other communicators",
                   ring.arena(0).renew(Milliseconds(10)));
      CHECK(ring.arena(0).is_in(file));
    }
    ring.engine(rank).run(task);
    CHECK(std::all_of(data, data + kCount, [](float x) { return x == 3; }));
    if (rank == 0) ring.arena(0).renew(Milliseconds(1000));
  });
  CHECK(!errors[0] && !errors[1]);
}

TEST_CASE("without memory for a copy, the tensors stay as they are") {
  Arena arena(4 * kMiB);
  auto* const word = static_cast<int*>(arena.allocate(sizeof(int)));
  *word = 41;
  const auto file = arena.file();
  rlimit limits;
  CHECK(::getrlimit(RLIMIT_AS, &limits) == 0);
  const rlimit less{4 * kMiB, limits.rlim_max};  // which the process has mapped already
  CHECK(::setrlimit(RLIMIT_AS, &less) == 0);
  CHECK_THROWS(SharedMemoryError, "mmap", arena.renew(Milliseconds(10)));
  CHECK(::setrlimit(RLIMIT_AS, &limits) == 0);
  CHECK(arena.is_in(file));
  CHECK_EQ(*word, 41);
  CHECK_EQ(arena.bytes_committed(), 2 * kMiB);
}

enum class Kept { in_arenas, elsewhere, renewed };

// Two ranks with tensors in arenas of their own; those of rank 1 may be elsewhere, or in an arena
// that was renewed. Checks the result, and whether the ranks have staged.
void tensors_are_staged_unless_all_are_in_arenas(Kept kept) {
  constexpr int kRanks = 2;
  constexpr int64_t kCount = 10'000;
  const Geometry geometry = default_geometry();
  const auto bytes = size_t(segment_bytes(geometry));
  Arena arenas[kRanks] = {Arena(4 * kMiB), Arena(4 * kMiB)};
  const std::shared_ptr<MemoryFile> files[kRanks] = {arenas[0].file(), arenas[1].file()};
  if (kept == Kept::renewed) arenas[1].renew(Milliseconds(0));
  std::vector<std::unique_ptr<void, void (*)(void*)>> memory;
  std::vector<void*> all;
  for (int r = 0; r < kRanks; ++r) {
    void* const at = std::aligned_alloc(4096, size_t(align_up(int64_t(bytes), 4096)));
    memory.emplace_back(at, std::free);
    std::memset(memory.back().get(), 0, bytes);
    all.push_back(memory.back().get());
  }
  std::vector<float> elsewhere(kCount);
  float* tensors[kRanks];
  std::vector<std::thread> threads;
  for (int r = 0; r < kRanks; ++r) {
    tensors[r] = r == 1 && kept == Kept::elsewhere
                     ? elsewhere.data()
                     : static_cast<float*>(arenas[r].allocate(kCount * sizeof(float)));
    std::fill_n(tensors[r], kCount, float(r + 1));
  }
  for (int r = 0; r < kRanks; ++r)
    threads.emplace_back([&, r] {
      auto known = std::make_shared<Arenas>();
      known->mine = &arenas[r];
      known->file = files[r];
      for (const Arena& arena : arenas)
        known->of.push_back(std::make_shared<PeerArena>(::dup(arena.file()->fd()), arena.bytes()));
      CpuExecutor engine({all[size_t(r)], all[size_t(1 - r)], all[size_t(1 - r)], all}, geometry, r,
                         kRanks, std::chrono::seconds(60), known);
      Task task;
      task.algorithm = Algorithm::two_shot;
      task.in = task.out = tensors[r];
      task.count = kCount;
      engine.run(task);
    });
  for (std::thread& thread : threads) thread.join();
  for (int r = 0; r < kRanks; ++r) {
    CHECK(std::all_of(tensors[r], tensors[r] + kCount, [](float x) { return x == 3; }));
    auto* const board =
        reinterpret_cast<Board*>(static_cast<std::byte*>(all[size_t(r)]) + mesh_offset(geometry));
    CHECK_EQ(board->staged.rounds > 0, kept != Kept::in_arenas);
  }
}

// Rank 1 has shown its tensor, and rests before rank 0 has. So rank 0 proceeds to the wait for rank
// 1's part, and sleeps there. Without a ring of its bell it would wake up by itself, later.
TEST_CASE("a rank that sleeps for a part is rung") {
  constexpr int64_t kCount = 1000;
  ThreadRing ring(2, default_geometry(), std::chrono::seconds(60), 4 * kMiB);
  Rest rest;
  const auto errors = ring.on_threads([&](int rank) {
    auto* const data = static_cast<char*>(ring.arena(rank).allocate(kCount));
    std::fill_n(data, kCount, char(rank + 1));
    Task task;
    task.algorithm = Algorithm::two_shot;
    task.reduction = Reduction::of(Op::sum, DType::i8, 2);
    task.in = task.out = data;
    task.count = kCount;
    ring.engine(rank).run(rest.until_the_other_sleeps(ring, rank, task));
    CHECK(std::all_of(data, data + kCount, [](char x) { return x == 3; }));
  });
  CHECK(!errors[0] && !errors[1]);
  for (const int rank : {0, 1}) CHECK_EQ(ring.board(rank).staged.rounds, uint64_t(0));
  CHECK(times_rung(ring, 0) != rest.rung);
}

TEST_CASE("tensors are staged unless all are in arenas") {
  for (const Kept kept : {Kept::in_arenas, Kept::elsewhere, Kept::renewed})
    tensors_are_staged_unless_all_are_in_arenas(kept);
}

}  // namespace
