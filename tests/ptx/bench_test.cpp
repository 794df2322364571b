// The kernels of bench/gpu, from their PTX: the measurements of `make gpu` are true on a machine
// with known values.
#include <cstring>

#include "check.h"
#include "cuda/launch.h"
#include "ptx/kernels.h"
#include "simt/machine.h"

using namespace simt;

namespace {

Machine& m() { return machine(); }

Settings settings(uint64_t seed) {
  Settings s;
  s.seed = seed;
  s.switch_every = 4;
  s.memory.stale = 64;
  s.memory.races = Races::none;  // they are what is looked for
  return s;
}

// Every argument is a word of 8 bytes, or comes before padding.
Launch launch(const std::string& kernel, const std::vector<uint64_t>& arguments, int rank,
              int blocks, int threads) {
  const ptx::Program& program = *ptx::kernel_named(kernel).program;
  const auto bytes = size_t(program.entry().param_bytes);
  REQUIRE((bytes + 7) / 8 == arguments.size());
  return {[&program, arguments, bytes] { program.run(arguments.data(), bytes); },
          {rank},
          blocks,
          threads,
          nullptr,
          0};
}

uint64_t address(const void* at) { return reinterpret_cast<uint64_t>(at); }

// The same as in litmus.cu.
struct Counts {
  uint64_t loads = 0, changes = 0, mixed = 0, stale = 0;
};

// A block that stores numbers from another GPU, and one that loads them.
Counts litmus(const std::string& test, MemorySettings memory, int threads) {
  Counts all;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Settings s = settings(seed);
    s.memory.atom = memory.atom, s.memory.line_atom = memory.line_atom;
    m().reset(s, 2, 1, threads);
    const Counts none;
    std::byte* words = m().memory().add("the memory", Kind::shared, 0, 1 << 14);
    std::byte* counts = m().memory().add("the counts", Kind::device, 0, sizeof none);
    m().memory().write(counts, &none, sizeof none);
    constexpr uint64_t kLast = 20, kRounds = 100;
    Launch reads =
        launch(test + "_reader", {address(words), kLast, kRounds, address(counts)}, 0, 1, threads);
    Launch writes = launch(test + "_writer", {address(words), kLast}, 1, 1, threads);
    m().start(reads);
    m().start(writes);
    m().run();
    Counts found;
    m().memory().read(counts, &found, sizeof found);
    all.loads += found.loads, all.changes += found.changes;
    all.mixed += found.mixed, all.stale += found.stale;
  }
  CHECK(all.changes > 0);  // it has met numbers on their way
  return all;
}

TEST_CASE("litmus line: sees whether the parts of a line come together") {
  Counts c = litmus("line", {.line_atom = 128}, 32);
  CHECK(c.mixed > 0);  // a lane may load before its neighbour does
  CHECK_EQ(c.stale, 0u);
  c = litmus("line", {.line_atom = 16}, 32);
  CHECK(c.stale > 0);
}

TEST_CASE("litmus word: sees whether the halves of a word come together") {
  Counts c = litmus("word", {.atom = 8}, 32);
  CHECK(c.mixed > 0);  // as it may
  CHECK_EQ(c.stale, 0u);
  c = litmus("word", {.atom = 4}, 32);
  CHECK(c.stale > 0);
}

TEST_CASE("litmus publish: what a counter publishes is there") {
  const Counts c = litmus("publish", {}, 64);
  CHECK_EQ(c.stale, 0u);
}

TEST_CASE("limits: flags go to and fro until the last") {
  int kinds = 0;
  for (const auto& [name, kernel] : ptx::kernels()) {
    const size_t begin = name.find("ping_pong<");
    if (begin == std::string::npos) continue;
    ++kinds;
    m().reset(settings(7), 1, 3, 32);
    std::byte* words = m().memory().add("the memory", Kind::shared, 0, 1 << 12);
    std::byte* missing = m().memory().add("whether one is missing", Kind::own, 0, 8);
    const std::string of = name.substr(begin, name.rfind('(') - begin);
    Launch l =
        launch(of, {address(words), /*partner=*/2, /*rounds=*/20, address(missing)}, 0, 3, 32);
    m().start(l);
    m().run();
    uint32_t lost;
    m().memory().read(missing, &lost, sizeof lost);
    CHECK_EQ(lost, 0u);
  }
  CHECK_EQ(kinds, 6);
}

TEST_CASE("limits: the copy copies") {
  constexpr uint32_t kTiles = 3;
  constexpr int64_t kBytes = kTiles * 512 * 4 * 16;
  m().reset(settings(1), 1, 2, 512);
  std::vector<uint64_t> words(kBytes / 8);
  for (size_t i = 0; i < words.size(); ++i) words[i] = i;
  std::byte* from = m().memory().add("from", Kind::own, 0, kBytes);
  std::byte* to = m().memory().add("to", Kind::own, 0, kBytes);
  m().memory().write(from, words.data(), kBytes);
  const uint64_t passes = 2;
  Launch l = launch("copy", {address(to), address(from), passes << 32 | kTiles}, 0, 2, 512);
  m().start(l);
  m().run();
  std::vector<uint64_t> found(words.size());
  m().memory().read(to, found.data(), kBytes);
  CHECK(found == words);
}

TEST_CASE("no kernel of bench/gpu is left out") {
  m().reset(settings(1), 1, 1, 256);
  std::byte* memory = m().memory().add("memory", Kind::own, 0, 1 << 14);
  const uint64_t words = (1 << 13) / 16, to = address(memory), from = to + (1 << 13);
  for (Launch l : {launch("nothing", {}, 0, 1, 32),
                   launch("nothing_with_arguments",
                          std::vector<uint64_t>(sizeof(ringkern::cuda::LaunchArgs) / 8), 0, 1, 32),
                   launch("fill_kernel", {to, words, /*seed=*/3}, 0, 1, 32),
                   launch("noise", {to, from, words, /*rounds=*/2}, 0, 1, 256)}) {
    m().start(l);
    m().run();
  }
  for (const auto& [name, kernel] : ptx::kernels())
    if (kernel.program == nullptr && name != "bench::pause_kernel()")  // no warp: one thread alone
      FAIL_CHECK(name + " was not run");
}

}  // namespace
