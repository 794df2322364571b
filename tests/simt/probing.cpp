// Probes of links: writes arrive whole on any schedule, both sides confirm it, and a wait for a
// missing write ends.
#include "probing.h"

#include <deque>

#include "cuda/probe.h"
#include "machine.h"

namespace simt {

using namespace ringkern;
using namespace ringkern::cuda;

namespace {

constexpr int kWords = 48, kTailWords = int(kCacheLine + sizeof(ProbeScratch)) / 8;
constexpr int kSlot = (kWords + kTailWords) * 8;
static_assert(kSlot % kCacheLine == 0);

// The memory of comm/probe.h: a slot for each writer, and two spares, which no other rank uses.
struct Rings {
  std::vector<std::byte*> segments, spares;
  std::deque<ProbeArgs> args;
  int ranks;

  uint64_t* at(int owner, int writer, int spare = 0) const {
    const auto rank = size_t(owner);
    return reinterpret_cast<uint64_t*>(spare == 0
                                           ? segments[rank] + writer * kSlot
                                           : spares[rank] + ((spare - 1) * ranks + writer) * kSlot);
  }
};

void need(bool holds, const char* what) {
  if (!holds) throw Failure("probe", what);
}

uint64_t word(int writer, int reader, int i) {
  return uint64_t(writer + 1) << 40 | uint64_t(reader + 1) << 20 | uint64_t(i + 1);
}

// A short one passes while all work, and for each warp at a time of its own.
uint64_t timeout_of(const ProbeTrial& trial) { return trial.hasty ? 500 : 1'000'000; }

ProbeArgs arguments(const Rings& rings, const ProbeTrial& trial, int rank) {
  ProbeArgs args;
  args.words = kWords;
  args.timeout_ns = timeout_of(trial);
  int links = 0;
  for (int peer = 0; peer < trial.ranks; ++peer) {
    if (peer == rank) continue;
    ProbeEnds& link = args.links[links++];
    if (trial.apart != std::pair(rank, peer)) link.theirs = rings.at(peer, rank);
    if (trial.apart != std::pair(peer, rank)) link.mine = rings.at(rank, peer);
    link.receives = rings.at(rank, peer, 1);
    link.scratch = reinterpret_cast<ProbeScratch*>(link.receives + kWords + kCacheLine / 8);
    link.sends = rings.at(rank, peer, 2);
    for (int i = 0; i <= kWords; ++i) {
      const uint64_t sent = word(rank, peer, i);
      machine().memory().write(rings.at(rank, peer, 2) + i, &sent, 8);
    }
  }
  return args;
}

void check_link(const Rings& rings, const ProbeTrial& trial, int rank, int peer) {
  const auto read = [](const void* at, auto& to) { machine().memory().read(at, &to, sizeof to); };
  uint64_t found[kWords], answer;
  read(rings.at(rank, peer, 1), found);
  const auto* scratch =
      reinterpret_cast<const ProbeScratch*>(rings.at(rank, peer, 1) + kWords + kCacheLine / 8);
  read(&scratch->answer, answer);
  WaitReport report;
  read(&scratch->mailbox.report, report);
  // Words of a rank that has stopped may have come, or too late.
  const bool stopped = peer == trial.killed || trial.hasty;
  const bool comes = peer != trial.absent && trial.apart != std::pair(peer, rank);
  const bool arrives = stopped ? found[kWords - 1] != 0 : comes;
  const bool answered = stopped ? answer != 0 : arrives && trial.apart != std::pair(rank, peer);
  for (int i = 0; i < kWords; ++i)
    need(found[i] == (arrives ? word(peer, rank, i) : 0), "a word is not what was sent");
  need(answer == (answered ? word(peer, rank, kWords) : 0), "the answer is not the other side's");
  const bool in_vain = peer == trial.absent || (stopped && !answered);
  if (!in_vain) return need(report.verdict == Verdict::ok, "who got its answer has a report");
  need(report.verdict == Verdict::timed_out && report.timeout_ns == timeout_of(trial) &&
           report.seq == 0 && report.what == WaitFor::data && report.protocol == Protocol::simple &&
           report.channel == 0 && report.wanted == 1 && report.seen == 0,
       "who waited in vain has left another report");
}

}  // namespace

void run_probe(uint64_t seed, const ProbeTrial& trial) {
  Random random(seed);
  Settings s;
  s.seed = seed;
  s.memory.stale = uint32_t(random.one_of({0, 16, 128, 224}));
  s.memory.races = trial.absent < 0 && trial.killed < 0 && !trial.hasty ? Races::all : Races::mixed;
  s.switch_every = int(random.one_of({1, 4, 16}));
  s.drain_every = int(random.one_of({1, 4, 32}));
  s.starved_rank = int(random.below(uint64_t(trial.ranks)));
  s.clock_jump = 300'000;
  s.polls_per_look = kPollsPerLook;
  s.most_steps = 2'000'000;
  Machine& m = machine();
  const int threads = int(random.one_of({32, 64, kProbeThreads}));
  m.reset(s, trial.ranks, trial.ranks - 1, threads);
  Rings rings;
  rings.ranks = trial.ranks;
  for (int r = 0; r < trial.ranks; ++r) {
    const std::string of = " of rank " + std::to_string(r);
    const int bytes = trial.ranks * kSlot;
    rings.segments.push_back(m.memory().add("the segment" + of, Kind::shared, r, bytes));
    rings.spares.push_back(m.memory().add("the spares" + of, Kind::device, r, 2 * bytes));
  }
  std::deque<Launch> launches;
  for (int r = 0; r < trial.ranks; ++r) {
    const ProbeArgs& args = rings.args.emplace_back(arguments(rings, trial, r));
    if (r == trial.absent) continue;
    Launch& launch = launches.emplace_back();
    launch.kernel = call_of(probe_kernel(), args);
    launch.ranks = {r};
    launch.channels = trial.ranks - 1;
    launch.threads = threads;
    m.start(launch);
  }
  if (trial.killed >= 0)
    m.at_step(random.below(random.one_of<uint64_t>({2000, 20'000})), [&] {
      m.kill(trial.killed);
      return uint64_t(0);
    });
  m.run();
  for (int r = 0; r < trial.ranks; ++r)
    for (int peer = 0; peer < trial.ranks; ++peer)
      if (r != peer && r != trial.absent && r != trial.killed) check_link(rings, trial, r, peer);
}

}  // namespace simt
