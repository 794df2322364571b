// Compares the simulated machine's memory with the PTX memory model by litmus tests: small programs
// and the outcome that tells models apart. Outcomes that PTX forbids are never seen; outcomes that
// it allows are seen, except for the marked shapes; docs/design/simulation.md has the differences.
#include "check.h"
#include "cuda/ptx.cuh"

using namespace simt;
using namespace ringkern::cuda;

namespace {

constexpr int kSeeds = 4000;

// The memory of a litmus test: two words, a line, and what the threads saw.
struct Arena {
  uint64_t* x;
  uint64_t* y;
  std::byte* line;
};
uint64_t seen[8];         // by loads
uint64_t last_x, last_y;  // in the end

// Bytes that are whole of a 16-byte access, and of a warp's line.
struct Atoms {
  int vector = 8, line = 128;
};

using Program = std::function<void(const Arena&)>;

// Runs each program as lane 0 of a block of its own; `together`: in one block, each in a warp.
void run_once(uint64_t seed, const std::vector<Program>& programs, bool together,
              const Atoms& atoms) {
  Settings s;
  s.seed = seed;
  s.memory.atom = atoms.vector;
  s.memory.line_atom = atoms.line;
  s.memory.races = Races::none;
  Random random(seed * 31);
  s.memory.stale = uint32_t(random.one_of({0, 64, 200}));
  s.switch_every = int(random.one_of({1, 2, 8}));
  s.drain_every = int(random.one_of({1, 4, 32}));
  const int n = int(programs.size());
  Machine& m = machine();
  m.reset(s, together ? 1 : n, 1, together ? n * kWarpSize : kWarpSize);
  const Arena arena{reinterpret_cast<uint64_t*>(m.memory().add("x", Kind::shared, -1, 8)),
                    reinterpret_cast<uint64_t*>(m.memory().add("y", Kind::shared, -1, 8)),
                    m.memory().add("lines", Kind::shared, -1, 512)};
  std::fill(std::begin(seen), std::end(seen), 0);
  Launch launch;
  for (int i = 0; i < (together ? 1 : n); ++i) launch.ranks.push_back(i);
  launch.threads = together ? n * kWarpSize : kWarpSize;
  launch.kernel = [&] {
    const auto& program = programs[size_t(together ? thread_index() / kWarp : block_index())];
    program(arena);
  };
  m.start(launch);
  m.run();
  m.memory().read(arena.x, &last_x, 8);
  m.memory().read(arena.y, &last_y, 8);
}

struct Shape {
  const char* name;
  std::vector<Program> programs;
  std::function<bool()> outcome;
  enum Expected { never, sometimes, allowed_but_never } expected;
  bool together = false;
  Atoms atoms = {};
};

void check_shape(const Shape& shape) {
  int found = 0;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    run_once(seed, shape.programs, shape.together, shape.atoms);
    found += shape.outcome();
  }
  std::printf("%-44s %5d of %d\n", shape.name, found, kSeeds);
  if ((found > 0) != (shape.expected == Shape::sometimes))
    FAIL_CHECK(std::string(shape.name) + " was seen " + std::to_string(found) + " times");
}

auto set(uint64_t* Arena::* p, uint64_t v) {
  return [=](const Arena& w) { st_relaxed(w.*p, v); };
}
auto fence() {
  return [](const Arena&) { fence_acq_rel(); };
}
auto fence_sc() {
  return [](const Arena&) { machine().fence_sc(); };
}
auto set_release(uint64_t* Arena::* p, uint64_t v) {
  return [=](const Arena& w) { machine().store(w.*p, &v, 8, Order::release); };
}
auto get(int i, uint64_t* Arena::* p) {
  return [=](const Arena& w) { seen[i] = ld_relaxed(w.*p); };
}
auto get_acquire(int i, uint64_t* Arena::* p) {
  return [=](const Arena& w) { seen[i] = ld_acquire(w.*p); };
}

auto count(int i, uint64_t* Arena::* p, uint32_t last = 9, bool ordered = true) {
  return [=](const Arena& w) {
    seen[i] = machine().count_round(reinterpret_cast<uint32_t*>(w.*p), last, ordered);
  };
}

template <class... F>
Program program(F... f) {
  return [=](const Arena& w) {
    if (thread_index() % kWarp == 0) (f(w), ...);
  };
}

constexpr auto x = &Arena::x, y = &Arena::y;

bool stale_message() { return seen[0] == 1 && seen[1] == 0; }

TEST_CASE("loads and stores are ordered as PTX says") {
  using enum Shape::Expected;
  const Shape shapes[] = {
      {"MP relaxed",
       {program(set(x, 1), set(y, 1)), program(get(0, y), get(1, x))},
       stale_message,
       sometimes},
      {"MP release, relaxed",
       {program(set(x, 1), set_release(y, 1)), program(get(0, y), get(1, x))},
       stale_message,
       sometimes},
      {"MP relaxed, acquire",
       {program(set(x, 1), set(y, 1)), program(get_acquire(0, y), get(1, x))},
       stale_message,
       sometimes},
      {"MP release, acquire",
       {program(set(x, 1), set_release(y, 1)), program(get_acquire(0, y), get(1, x))},
       stale_message,
       never},
      {"MP fence relaxed, acquire",
       {program(set(x, 1), fence(), set(y, 1)), program(get_acquire(0, y), get(1, x))},
       stale_message,
       never},
      {"MP fence relaxed, relaxed fence",
       {program(set(x, 1), fence(), set(y, 1)), program(get(0, y), fence(), get(1, x))},
       stale_message,
       never},
      {"SB relaxed",
       {program(set(x, 1), get(0, y)), program(set(y, 1), get(1, x))},
       [] { return seen[0] == 0 && seen[1] == 0; },
       sometimes},
      {"SB fence.acq_rel",
       {program(set(x, 1), fence(), get(0, y)), program(set(y, 1), fence(), get(1, x))},
       [] { return seen[0] == 0 && seen[1] == 0; },
       sometimes},
      {"SB fence.sc",
       {program(set(x, 1), fence_sc(), get(0, y)), program(set(y, 1), fence_sc(), get(1, x))},
       [] { return seen[0] == 0 && seen[1] == 0; },
       never},
      {"LB relaxed",
       {program(get(0, x), set(y, 1)), program(get(1, y), set(x, 1))},
       [] { return seen[0] == 1 && seen[1] == 1; },
       allowed_but_never},
      {"LB release",
       {program(get(0, x), set_release(y, 1)), program(get(1, y), set_release(x, 1))},
       [] { return seen[0] == 1 && seen[1] == 1; },
       allowed_but_never},
      {"CoRR", {program(set(x, 1)), program(get(0, x), get(1, x))}, stale_message, never},
      {"CoWW CoRR",
       {program(set(x, 1), set(x, 2)), program(get(0, x), get(1, x))},
       [] { return seen[0] == 2 && seen[1] == 1; },
       never},
      {"CoWR", {program(set(x, 1), get(0, x))}, [] { return seen[0] != 1; }, never},
      {"WRC relaxed",
       {program(set(x, 1)), program(get(2, x), set(y, 1)), program(get(0, y), get(1, x))},
       [] { return seen[2] == 1 && stale_message(); },
       sometimes},
      {"WRC relaxed, release, acquire",
       {program(set(x, 1)), program(get(2, x), set_release(y, 1)),
        program(get_acquire(0, y), get(1, x))},
       [] { return seen[2] == 1 && stale_message(); },
       never},
      {"WRC release, acquire",
       {program(set_release(x, 1)), program(get_acquire(2, x), set_release(y, 1)),
        program(get_acquire(0, y), get(1, x))},
       [] { return seen[2] == 1 && stale_message(); },
       never},
      {"2+2W relaxed",
       {program(set(x, 1), set(y, 2)), program(set(y, 1), set(x, 2))},
       [] { return last_x == 1 && last_y == 1; },
       sometimes},
      {"IRIW relaxed",
       {program(set(x, 1)), program(set(y, 1)), program(get(0, x), get(1, y)),
        program(get(2, y), get(3, x))},
       [] { return stale_message() && seen[2] == 1 && seen[3] == 0; },
       sometimes},
      {"IRIW acquire",
       {program(set_release(x, 1)), program(set_release(y, 1)),
        program(get_acquire(0, x), get_acquire(1, y)),
        program(get_acquire(2, y), get_acquire(3, x))},
       [] { return stale_message() && seen[2] == 1 && seen[3] == 0; },
       sometimes},
      {"IRIW fence.sc",
       {program(set(x, 1)), program(set(y, 1)), program(get(0, x), fence_sc(), get(1, y)),
        program(get(2, y), fence_sc(), get(3, x))},
       [] { return stale_message() && seen[2] == 1 && seen[3] == 0; },
       never},
  };
  for (const Shape& s : shapes) check_shape(s);
}

// The end of a launch: the last block to count knows all that the others did.
TEST_CASE("a counter's reader knows the counted actions") {
  using enum Shape::Expected;
  const Program first = program(set(x, 1), count(2, y));
  const Shape shapes[] = {
      {"count, count", {first, program(count(0, y), get(1, x))}, stale_message, never},
      {"count relaxed, count",
       {program(set(x, 1), count(2, y, 9, false)), program(count(0, y), get(1, x))},
       stale_message,
       sometimes},
      {"count, count relaxed",
       {first, program(count(0, y, 9, false), get(1, x))},
       stale_message,
       sometimes},
      {"count, count, count",
       {first, program(count(3, y)), program(count(0, y), get(1, x))},
       [] { return seen[0] == 2 && seen[1] == 0; },
       never},
      {"three count to 1",
       {program(count(0, y, 1)), program(count(1, y, 1)), program(count(2, y, 1))},
       [] { return seen[0] + seen[1] + seen[2] != 1 || last_y != 1; },
       never},
      {"two count to 1",
       {program(count(0, y, 1)), program(count(1, y, 1))},
       [] { return seen[0] + seen[1] != 1 || last_y != 0; },
       never},
  };
  for (const Shape& s : shapes) check_shape(s);
}

// A store by one thread of a block, published by another: what the poster of the links does.
TEST_CASE("a thread may publish another one's stores") {
  using enum Shape::Expected;
  const auto meet = [] { barrier_or(0, 2 * kWarp, false); };
  const auto store_x = [](const Arena& w) {
    if (thread_index() == 0) st_weak<8>(w.x, 1);
  };
  const auto post = [](const Arena& w, bool fenced) {
    if (thread_index() != kWarp) return;
    if (fenced) fence_acq_rel();
    st_relaxed(w.y, 1);
  };
  const auto look = [](const Arena& w) {
    for (int i = 0; thread_index() == 2 * kWarp && seen[0] == 0 && i < 50; ++i)
      seen[0] = ld_acquire(w.y);
  };
  // The third warp is another block's as far as the barrier is concerned: it is not among those.
  const auto load_x = [](const Arena& w) {
    if (thread_index() == 2 * kWarp) seen[1] = ld_relaxed(w.x);
  };
  const Program reader = [=](const Arena& w) { look(w), load_x(w); };
  const Shape shapes[] = {
      {"barrier, fence by another, relaxed",
       {[=](const Arena& w) { store_x(w), meet(); }, [=](const Arena& w) { meet(), post(w, true); },
        reader},
       stale_message,
       never,
       true},
      {"barrier, no fence, relaxed",
       {[=](const Arena& w) { store_x(w), meet(); },
        [=](const Arena& w) { meet(), post(w, false); }, reader},
       stale_message,
       sometimes,
       true},
      {"fence by another, no barrier",
       {[=](const Arena& w) { store_x(w); }, [=](const Arena& w) { post(w, true); }, reader},
       stale_message,
       sometimes,
       true},
  };
  for (const Shape& s : shapes) check_shape(s);
}

TEST_CASE("accesses are atomic as PTX says") {
  using enum Shape::Expected;
  constexpr uint64_t kBoth = 0x00000001'00000001u;
  const Program store_pair = [](const Arena& w) {
    if (thread_index() == 0) st_relaxed16(w.line, {kBoth, kBoth});
  };
  const Program load_pair = [](const Arena& w) {
    if (thread_index() != 0) return;
    const Words v = ld_relaxed16(w.line);
    seen[0] = v.lo, seen[1] = v.hi;
  };
  const Program store_line = [](const Arena& w) {
    syncwarp();
    st_line16(w.line + 16 * thread_index(), {1, 1});
  };
  // Once one lane has seen its part of the line, all see theirs.
  const Program load_line = [](const Arena& w) {
    const std::byte* p = w.line + 16 * thread_index();
    syncwarp();
    if (ld_line16(p).lo != 0 && thread_index() < 8) seen[0] = 1;
    syncwarp();
    const bool late = ld_line16(p).lo == 0;
    if (late && seen[0] == 1 && thread_index() < 8) seen[1] = 1;
  };
  const auto torn_line = [] { return seen[1] == 1; };
  const auto torn_pair = [] { return seen[0] != seen[1]; };
  const auto torn_word = [] { return seen[0] != 0 && seen[0] != kBoth; };
  const std::vector<Program> pair = {store_pair, load_pair}, line = {store_line, load_line};
  const Shape shapes[] = {
      {"words of a pair, atoms of 4", pair, torn_word, sometimes, false, {4, 128}},
      {"words of a pair, atoms of 8", pair, torn_word, never, false, {8, 128}},
      {"pair, atoms of 8", pair, torn_pair, sometimes, false, {8, 128}},
      {"pair, atoms of 16", pair, torn_pair, never, false, {16, 128}},
      {"line, atoms of 8", line, torn_line, sometimes, false, {8, 8}},
      {"line, atoms of 16", line, torn_line, sometimes, false, {8, 16}},
      {"line, atoms of 128", line, torn_line, never, false, {8, 128}},
  };
  for (const Shape& s : shapes) check_shape(s);
}

}  // namespace
