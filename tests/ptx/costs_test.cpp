// The cost of a step to a thread, counted while the kernels' PTX runs: a rank alone, whose
// neighbours have sent all that it waits for, moves full slots of each protocol, and those of a
// small message: a tile a warp of Simple, a line a thread of LL, a unit a warp of LL128. From the
// two, ringkern/tools/model/one_gpu.py has what a step costs, and what more data does. The counts
// depend on nothing but the compiler's work; one that is larger than in the table fails.
#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>
#include <utility>

#include "check.h"
#include "core/trace.h"
#include "cuda/launch.h"
#include "ptx/kernels.h"
#include "simt/machine.h"

using namespace ringkern;
using namespace ringkern::cuda;

namespace {

constexpr int kRanks = 3, kThreads = kMaxThreads;
constexpr uint64_t kLongAgo = 1 << 20;  // steps: all data has come, and all credit

// From one barrier of the block to the next: of LL and LL128, until slots go back.
struct Step {
  int instructions = 0, in_flight = 0, barriers = 0, votes = 0, fences = 0;
};

// A counter of one block's instructions.
class Meter final : public ptx::Observer {
 public:
  Meter() { ptx::observer = this; }
  ~Meter() { ptx::observer = nullptr; }

  void see(const ptx::Frame& frame, const ptx::Instruction& i, const ptx::Statement& s) override {
    Thread& t = threads_[size_t(simt::machine().self().index)];
    if (t.steps.empty()) t.steps.emplace_back();
    Step& step = t.steps.back();
    if (i.skips) return;  // a part of the next one
    ++step.instructions;
    step.votes += s.opcode.starts_with("vote.");
    step.fences += s.opcode.starts_with("fence.");
    look_at_loads(t, step, s);
    if (!s.opcode.starts_with("barrier.")) return;
    ++step.barriers;
    if (frame.slots[i.from[0]] == 0) t.steps.emplace_back();
  }
  const std::vector<Step>& steps(int thread) const { return threads_[size_t(thread)].steps; }

 private:
  struct Thread {
    std::vector<Step> steps;
    std::set<std::string> loaded;  // registers not used yet
    int bytes = 0;                 // of what is in them
  };

  static void look_at_loads(Thread& t, Step& step, const ptx::Statement& s) {
    const bool loads = s.opcode.starts_with("ld.") && s.opcode.find(".global") != std::string::npos;
    bool used = t.loaded.contains(s.guard);
    for (size_t n = loads ? 1 : 0; n < s.operands.size(); ++n)
      for (const ptx::Operand& o : s.operands[n]) used = used || t.loaded.contains(o.text);
    if (used) {
      step.in_flight = std::max(step.in_flight, t.bytes);
      t.loaded.clear();
      t.bytes = 0;
    }
    if (!loads) return;
    const int bits = std::atoi(s.opcode.substr(s.opcode.rfind('.') + 2).c_str());
    for (const ptx::Operand& o : s.operands[0]) t.loaded.insert(o.text), t.bytes += bits / 8;
  }

  Thread threads_[kThreads];
};

struct Row {
  std::string protocol, verb;
  int worker = 0, poster = 0, in_flight = 0, barriers = 0, votes = 0, fences = 0;

  std::string key() const { return protocol + " " + verb; }
  auto counts() { return std::array{&worker, &poster, &in_flight, &barriers, &votes, &fences}; }
};

simt::Memory& memory() { return simt::machine().memory(); }

void reset(int threads) {
  simt::Settings settings;
  settings.memory.races = simt::Races::none;  // only one rank is there
  simt::machine().reset(settings, 1, 1, threads);
}

template <class Args>
void run(const void* kernel, const Args& args, int threads) {
  simt::Launch launch{simt::call_of(kernel, args), {0}, 1, threads, nullptr, 0};
  simt::machine().start(launch);
  simt::machine().run();
}

// Rank 0, with a tensor of this many bytes and words of its own.
RankArgs rank_of(int64_t bytes, std::byte* mine, std::byte* next, std::byte* prev,
                 std::byte* const* all) {
  std::byte* mailbox = memory().add("the mailbox", simt::Kind::shared, 0, sizeof(Mailbox));
  std::byte* words = memory().add("words", simt::Kind::device, 0, 2 * kCacheLine);
  const Mailbox empty{};
  memory().write(mailbox, &empty, sizeof empty);
  return {0,
          0,
          memory().add("in", simt::Kind::own, 0, bytes),
          memory().add("out", simt::Kind::own, 0, bytes),
          mine,
          nullptr,
          next,
          prev,
          all,
          reinterpret_cast<Mailbox*>(mailbox),
          reinterpret_cast<uint32_t*>(words),
          reinterpret_cast<uint32_t*>(words + kCacheLine)};
}

// The worker that does most: the first warp, which waits for slots, or another.
Row row_of(const Meter& meter, std::string protocol, std::string verb, size_t step, int threads) {
  Row r{std::move(protocol), std::move(verb)};
  for (const int worker : {0, 1, 32}) {
    if (worker >= workers_of(threads)) continue;
    const Step& s = meter.steps(worker).at(step);
    r.worker = std::max(r.worker, s.instructions);
    r.in_flight = std::max(r.in_flight, s.in_flight);
    r.votes = std::max(r.votes, s.votes);
    r.barriers = std::max(r.barriers, s.barriers);
  }
  const Step& poster = meter.steps(threads - 1).at(step);
  r.poster = poster.instructions;
  r.fences = poster.fences;
  return r;
}

// A rank whose neighbours have done their part. `full`: its slots are; else a small message's.
class Rank {
 public:
  Rank(Protocol protocol, bool full) : protocol_(protocol), full_(full) {
    reset(kThreads);
    mine_ = memory().add("my segment", simt::Kind::shared, 0, geometry_.bytes());
    next_ = memory().add("next's segment", simt::Kind::shared, 1, geometry_.bytes());
    prev_ = memory().add("prev's segment", simt::Kind::shared, 2, geometry_.bytes());
    auto* counters =
        reinterpret_cast<LinkCounters*>(mine_ + geometry_.counters_offset(0, protocol));
    memory().write(&counters->tail.value, &kLongAgo, 8);
    memory().write(&counters->head.value, &kLongAgo, 8);
    std::byte* fifo = mine_ + geometry_.fifo_offset(0, protocol);
    for (int64_t at = 8; at < geometry_.slots * slot_bytes(); at += 8) {
      const auto slot = uint64_t(at / slot_bytes());
      const uint64_t flag =
          protocol == Protocol::ll ? uint64_t(ll_flag(slot)) << 32 : ll128_flag(slot);
      if (protocol == Protocol::ll || at % 128 == 120) memory().write(fifo + at, &flag, 8);
      if (protocol == Protocol::ll && at == 8) memory().write(fifo, &flag, 8);
    }
  }

  // A row each for the start, the verbs of the collective, and the end.
  std::vector<Row> measure(Collective collective) {
    const bool shards = collective != Collective::all_reduce;
    const auto plan = [&](int64_t elements) {
      return Plan::make(collective, protocol_, kRanks, elements, 4, kPlanWorkers, geometry_, 1, 0);
    };
    // One loop of whole chunks, or of half a slot, a line a worker, a unit for each of ten warps.
    const int64_t small = protocol_ == Protocol::simple ? slot_bytes() / 2
                          : protocol_ == Protocol::ll   ? 8 * kPlanWorkers
                                                        : 10 * 960;
    const int64_t chunk = full_ ? plan(1 << 30).chunk : small / 4;
    const int64_t count = chunk * (shards ? 1 : kRanks);
    LaunchArgs args;
    args.plan = plan(count);
    args.geometry = geometry_;
    args.reduction = Reduction::of(Op::sum, DType::f32, kRanks);
    args.seq = 1;
    const int64_t bytes = count * 4 * (shards ? kRanks : 1);
    args.ranks[0] = rank_of(bytes, mine_, next_, prev_, nullptr);
    Meter meter;
    run(kernel_for(protocol_, DType::f32, Combine::sum), args, kThreads);
    std::vector<Row> rows = {row(meter, "begin", 0)};
    size_t step = 1;
    int received = 0;
    std::string verbs;
    for (const TraceEntry& e : trace(args.plan, 0, 0)) {
      verbs += (verbs.empty() ? "" : "+") + std::string(name_of(e.verb));
      received += receives(e.verb);
      const int half = geometry_.slots / 2;
      if (protocol_ != Protocol::simple && (!receives(e.verb) || received % half != 0)) continue;
      rows.push_back(row(meter, std::exchange(verbs, ""), step));
      step += size_t(e.slices);
    }
    CHECK(verbs.empty());
    if (protocol_ != Protocol::simple) rows.push_back(row(meter, "all_meet", step++));
    rows.push_back(row(meter, "end", step));
    CHECK_EQ(meter.steps(0).size(), step + 1);
    return rows;
  }

 private:
  int64_t slot_bytes() const { return geometry_.slot_bytes[int(protocol_)]; }

  Row row(const Meter& meter, std::string verb, size_t step) const {
    const std::string name = std::string(name_of(protocol_)) + (full_ ? "" : "_small");
    return row_of(meter, name, std::move(verb), step, kThreads);
  }

  const Geometry geometry_ = default_geometry();
  const Protocol protocol_;
  const bool full_;
  std::byte *mine_, *next_, *prev_;
};

// A rank of an all-reduce without the ring, by one round of one block of a small number of threads.
std::vector<Row> measure_direct(Algorithm algorithm, int ranks, bool two_lines) {
  constexpr int threads = 96;
  reset(threads);
  const Geometry geometry = default_geometry();
  const auto mesh = MeshGeometry::make(ranks, 1);
  DirectArgs args;
  args.plan = DirectPlan::make(algorithm, ranks, (two_lines ? 2 : 1) * workers_of(threads) * 2, 4,
                               mesh.chunk_bytes(algorithm), 1, 0);
  REQUIRE(args.plan.rounds == 1);
  args.geometry = geometry;
  args.mesh = mesh;
  args.reduction = Reduction::of(Op::sum, DType::f32, ranks);
  args.seq = 1;
  std::byte* table = memory().add("the segments", simt::Kind::device, 0, ranks * 8);
  std::vector<std::byte*> all;
  for (int r = 0; r < ranks; ++r)
    all.push_back(
        memory().add("a segment", simt::Kind::shared, r, geometry.bytes() + mesh.bytes()));
  memory().write(table, all.data(), ranks * 8);
  const uint64_t flag = uint64_t(ll_flag(0)) << 32;
  std::byte* slots = all[0] + geometry.bytes() + mesh.peer_slots_offset();
  for (int64_t at = 0; at < (ranks - 1) * mesh.peer_slots_bytes(); at += 8)
    memory().write(slots + at, &flag, 8);
  const int64_t bytes = args.plan.chunk * 4;
  args.ranks[0] =
      rank_of(bytes, all[0], all[1], all.back(), reinterpret_cast<std::byte* const*>(table));
  Meter meter;
  run(direct_kernel_for(DType::f32, Combine::sum), args, threads);
  const std::string name = std::string(name_of(algorithm)) + (two_lines ? "" : "_small");
  const auto row = [&](const char* part, size_t step) {
    return row_of(meter, name, part + std::to_string(ranks), step, threads);
  };
  return {row("begin", 0), row("round", 1), row("end", 2)};
}

// A whole all-reduce over the tensors themselves, by one thread, with this many ranks.
Row measure_in_place(int ranks) {
  constexpr int threads = 32;
  reset(threads);
  InPlaceArgs args;
  args.reduction = Reduction::of(Op::sum, DType::f32, ranks);
  args.tensors.bytes = 16 * threads;
  args.tensors.ranks = ranks;
  args.tensors.aligned = true;
  for (int r = 0; r < ranks; ++r)
    args.tensors.in[r] = args.tensors.out[r] =
        memory().add("a tensor", simt::Kind::own, 0, args.tensors.bytes);
  Meter meter;
  run(in_place_kernel(DType::f32, Combine::sum), args, threads);
  return row_of(meter, "in_place", "all" + std::to_string(ranks), 0, threads);
}

// The same with ranks in several launches of one process, a pack for each thread, without waits.
std::vector<Row> measure_across(int ranks) {
  constexpr int threads = 64;
  reset(threads);
  AcrossArgs args;
  args.geometry = default_geometry();
  args.mesh = MeshGeometry::make(ranks, 1);
  args.reduction = Reduction::of(Op::sum, DType::f32, ranks);
  args.seq = 1;
  Tensors& tensors = args.plan.tensors;
  tensors.bytes = int64_t(16) * threads * ranks;
  tensors.ranks = ranks;
  tensors.aligned = true;
  std::vector<std::byte*> all;
  for (int r = 0; r < ranks; ++r) {
    all.push_back(memory().add("a segment", simt::Kind::shared, r,
                               args.geometry.bytes() + args.mesh.bytes()));
    tensors.in[r] = tensors.out[r] = memory().add("a tensor", simt::Kind::own, 0, tensors.bytes);
    if (r > 0)
      memory().write(all[0] + args.geometry.bytes() + args.mesh.meetings_offset(r - 1), &kLongAgo,
                     8);
  }
  std::byte* table = memory().add("the segments", simt::Kind::device, 0, ranks * 8);
  memory().write(table, all.data(), ranks * 8);
  args.ranks[0] =
      rank_of(16, all[0], all[1], all.back(), reinterpret_cast<std::byte* const*>(table));
  Meter meter;
  run(across_kernel(DType::f32, Combine::sum), args, threads);
  CHECK_EQ(meter.steps(0).size(), size_t(6));
  const auto row = [&](const char* part, size_t step) {
    return row_of(meter, "across", part + std::to_string(ranks), step, threads);
  };
  return {row("begin", 0), row("first_meet", 2), row("reduce", 3), row("meet", 4), row("end", 5)};
}

std::vector<Row> measured() {
  std::vector<Row> all;
  const auto add = [&](const Row& r) {
    if (std::none_of(all.begin(), all.end(), [&](const Row& o) { return o.key() == r.key(); }))
      all.push_back(r);
  };
  for (int p = 0; p < kProtocols; ++p)
    for (const bool full : {true, false})
      for (const Collective c :
           {Collective::all_reduce, Collective::reduce_scatter, Collective::all_gather})
        for (const Row& r : Rank(Protocol(p), full).measure(c)) add(r);
  for (const Algorithm a : {Algorithm::one_shot, Algorithm::two_shot})
    for (const bool two_lines : {true, false})
      for (const int ranks : {2, 8})
        for (const Row& r : measure_direct(a, ranks, two_lines)) add(r);
  for (const int ranks : {2, 8}) {
    add(measure_in_place(ranks));
    for (const Row& r : measure_across(ranks)) add(r);
  }
  return all;
}

constexpr const char* kHead =
    R"(# The cost of steps as PTX has it, for sums of float32 by 384 threads on sm_90: of full
# slots, and of those of a small message, half a slot of Simple, a line a thread of LL and a unit a
# warp of LL128. Those of LL and LL128 are counted until slots go back. Instructions of a worker
# (of those that do most) and of the poster; bytes that a worker has loaded when it first uses some
# of them; barriers, votes and fences. begin: until the first verb; end: behind the last. one_shot
# and two_shot over LL: of 2 and of 8 ranks, with two lines a thread or (small) one; in_place: all
# that a thread does; across: a pack a thread, and what the poster's warp does when ranks meet.
# Another compiler has other counts.
#     build/dev/tests_ptx_costs_test --update ringkern/tools/model/costs.txt
)";

std::string text_of(std::vector<Row> rows) {
  std::ostringstream text;
  text << kHead << "# nvcc " << RK_NVCC_VERSION << "\n";
  char line[128];
  std::snprintf(line, sizeof line, "%-15s%-45s%7s%8s%11s%10s%7s%8s\n", "protocol", "verb", "worker",
                "poster", "in_flight", "barriers", "votes", "fences");
  text << line;
  for (Row& r : rows) {
    std::snprintf(line, sizeof line, "%-15s%-45s%7d%8d%11d%10d%7d%8d\n", r.protocol.c_str(),
                  r.verb.c_str(), r.worker, r.poster, r.in_flight, r.barriers, r.votes, r.fences);
    text << line;
  }
  return text.str();
}

TAKES_OPTIONS;

TEST_CASE("a step costs no more than in the table") {
  const auto& words = test::arguments();
  std::vector<Row> rows = measured();
  if (words.size() == 3 && std::string(words[1]) == "--update") {
    std::ofstream(words[2]) << text_of(rows);
    return;
  }
  std::ifstream file(RK_SOURCES "/ringkern/tools/model/costs.txt");
  std::ostringstream found;
  found << file.rdbuf();
  const std::string table = found.str();
  if (table.find(std::string("# nvcc ") + RK_NVCC_VERSION + "\n") == std::string::npos) {
    std::printf("the table is of another nvcc: there is nothing to test\n");
    return;
  }
  for (Row& r : rows) {
    std::istringstream lines(table);
    Row known;
    for (std::string line; known.verb.empty() && std::getline(lines, line);) {
      std::istringstream cells(line);
      Row one;
      cells >> one.protocol >> one.verb;
      for (int* n : one.counts()) cells >> *n;
      if (one.key() == r.key() && cells) known = one;
    }
    if (known.verb.empty()) FAIL_CHECK(r.key() + " is not in costs.txt");
    const auto now = r.counts(), before = known.counts();
    for (size_t i = 0; i < now.size(); ++i) {
      const bool worse = i == 2 ? *now[i] < *before[i] : *now[i] > *before[i];
      if (worse) FAIL_CHECK(r.key() + " costs more than costs.txt says:\n" + text_of({r}));
    }
  }
}

}  // namespace
