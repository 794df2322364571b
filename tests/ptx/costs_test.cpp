// The cost of a step to a thread, counted while the kernels' PTX runs: a rank alone, whose
// neighbours have sent all that it waits for, moves full slots of each protocol, and those of a small
// message: a line a thread of LL, a unit a warp of LL128. The counts depend on nothing but the
// compiler's work; one that is larger than in the table fails.
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
    std::set<std::string> loaded;  // registers that nobody has used yet
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

// A rank whose neighbours have done their part. `full`: its slots are; else a small message's.
class Rank {
 public:
  Rank(Protocol protocol, bool full) : protocol_(protocol), full_(full) {
    simt::Settings settings;
    settings.memory.races = simt::Races::none;  // nobody but this rank is there
    simt::machine().reset(settings, 1, 1, kThreads);
    mine_ = memory().add("my segment", simt::Kind::shared, 0, geometry_.bytes());
    next_ = memory().add("next's segment", simt::Kind::shared, 1, geometry_.bytes());
    prev_ = memory().add("prev's segment", simt::Kind::shared, 2, geometry_.bytes());
    mailbox_ = memory().add("the mailbox", simt::Kind::shared, 0, sizeof(Mailbox));
    words_ = memory().add("words", simt::Kind::device, 0, 2 * kCacheLine);
    const Mailbox empty{};
    memory().write(mailbox_, &empty, sizeof empty);
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
    // One loop of whole chunks, or of a line a worker, a unit for each of ten warps.
    const int64_t small = protocol_ == Protocol::ll ? 8 * kPlanWorkers : 10 * 960;
    const int64_t chunk = full_ ? plan(1 << 30).chunk : small / 4;
    const int64_t count = chunk * (shards ? 1 : kRanks);
    LaunchArgs args;
    args.plan = plan(count);
    args.geometry = geometry_;
    args.reduction = Reduction::of(Op::sum, DType::f32, kRanks);
    args.seq = 1;
    const int64_t bytes = count * 4 * (shards ? kRanks : 1);
    args.ranks[0] = {0,
                     memory().add("in", simt::Kind::own, 0, bytes),
                     memory().add("out", simt::Kind::own, 0, bytes),
                     mine_,
                     next_,
                     prev_,
                     nullptr,
                     reinterpret_cast<Mailbox*>(mailbox_),
                     reinterpret_cast<uint32_t*>(words_),
                     reinterpret_cast<uint32_t*>(words_ + kCacheLine)};
    Meter meter;
    simt::Launch launch{simt::call_of(kernel_for(protocol_, DType::f32, Combine::sum), args),
                        {0},
                        1,
                        kThreads,
                        nullptr,
                        0};
    simt::machine().start(launch);
    simt::machine().run();
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
  static simt::Memory& memory() { return simt::machine().memory(); }
  int64_t slot_bytes() const { return geometry_.slot_bytes[int(protocol_)]; }

  // The worker that does most: the first warp, which waits for slots, or another.
  Row row(const Meter& meter, std::string verb, size_t step) const {
    const bool small = protocol_ != Protocol::simple && !full_;
    Row r{std::string(name_of(protocol_)) + (small ? "_small" : ""), std::move(verb)};
    for (const int worker : {0, 1, 32}) {
      const Step& s = meter.steps(worker).at(step);
      r.worker = std::max(r.worker, s.instructions);
      r.in_flight = std::max(r.in_flight, s.in_flight);
      r.votes = std::max(r.votes, s.votes);
      r.barriers = std::max(r.barriers, s.barriers);
    }
    const Step& poster = meter.steps(kThreads - 1).at(step);
    r.poster = poster.instructions;
    r.fences = poster.fences;
    return r;
  }

  const Geometry geometry_ = default_geometry();
  const Protocol protocol_;
  const bool full_;
  std::byte *mine_, *next_, *prev_, *mailbox_, *words_;
};

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
        if (full || Protocol(p) != Protocol::simple)
          for (const Row& r : Rank(Protocol(p), full).measure(c)) add(r);
  return all;
}

constexpr const char* kHead =
    "# The cost of steps as PTX has it, for sums of float32 by 384 threads on sm_90: of full "
    "slots, and\n"
    "# of those of a small message, a line a thread of LL and a unit a warp of LL128. Those of LL "
    "and\n"
    "# LL128 are counted until slots go back. Instructions of a worker (of those that do most) and "
    "of\n"
    "# the poster; bytes that a worker has loaded when it first uses some of them; barriers, votes "
    "and\n"
    "# fences. begin: until the first verb; end: behind the last. Another compiler has other "
    "counts.\n"
    "#     build/dev/tests_ptx_costs_test --update tests/cuda/costs.txt\n";

std::string text_of(std::vector<Row> rows) {
  std::ostringstream text;
  text << kHead << "# nvcc " << RK_NVCC_VERSION << "\n";
  char line[128];
  std::snprintf(line, sizeof line, "%-13s%-45s%7s%8s%11s%10s%7s%8s\n", "protocol", "verb", "worker",
                "poster", "in_flight", "barriers", "votes", "fences");
  text << line;
  for (Row& r : rows) {
    std::snprintf(line, sizeof line, "%-13s%-45s%7d%8d%11d%10d%7d%8d\n", r.protocol.c_str(),
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
  std::ifstream file(RK_SOURCES "/tests/cuda/costs.txt");
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
    if (known.verb.empty()) FAIL_CHECK(r.key() + " is not in tests/cuda/costs.txt");
    const auto now = r.counts(), before = known.counts();
    for (size_t i = 0; i < now.size(); ++i) {
      const bool worse = i == 2 ? *now[i] < *before[i] : *now[i] > *before[i];
      if (worse)
        FAIL_CHECK(r.key() + " costs more than tests/cuda/costs.txt says:\n" + text_of({r}));
    }
  }
}

}  // namespace
