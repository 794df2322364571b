// How a ring comes about from its seed, and its calls are launched.
#include "ring.h"

#include <algorithm>
#include <cstdio>

#include "core/schedule.h"
#include "cuda/model.h"
#include "orders.h"

namespace simt {

namespace {

constexpr int kThreads[] = {32, 32, 32, 32, 64, 64, 96, 96, 128, 256};
constexpr int kShippedThreads[] = {cuda::kMaxThreads, cuda::kMaxThreads, 96, 256};
template <class T>
std::vector<std::byte> bytes_of(const std::vector<T>& x) {
  const auto* p = reinterpret_cast<const std::byte*>(x.data());
  return {p, p + x.size() * sizeof(T)};
}

}  // namespace

Ring::Ring(uint64_t seed, const Wish& wish, Coverage& coverage)
    : random_(seed), kinds_(~seed), norms_(~seed + 2), coverage_(coverage), wish_(wish) {
  using enum Trouble;
  const auto trouble = random_.one_of({none, none, none, none, killed, aborted, corrupted});
  if (!wish_.trouble) wish_.trouble = trouble;
  const bool mixed = random_.one_in(4);
  const auto protocol = Protocol(random_.below(kProtocols));
  if (!wish_.protocol && !wish_.mixed) wish_.mixed = mixed, wish_.protocol = protocol;
  // Without a request the seeds give the runs of the version without this option.
  if (!wish_.direct) wish_.direct = random_.one_in(3);
  cover("trouble", name_of(*wish_.trouble));
  if (wish_.shipped) choose_shipped_sizes();
  else choose_sizes();
  choose_start();
  choose_late(seed);
  if (*wish_.direct) choose_mesh(seed);
  choose_orders(seed);
  choose_hosts(seed);
  choose_machine(seed);
  make_segments();
  many_ = random_.one_in(8) && !*wish_.late;
  int calls = 1 + int(random_.below(*wish_.late ? 12 : !many_ ? 4 : *wish_.direct ? 40 : 12));
  if (wish_.operands) calls = 1, many_ = false;
  for (int i = 0; i < calls; ++i) add_call();
}

void Ring::cover(const char* what, const std::string& value) { ++coverage_[what + (" " + value)]; }
void Ring::cover(const char* what, int64_t value) { cover(what, std::to_string(value)); }

// Most runs are small, so that there are many; a few are as large as they get.
void Ring::choose_sizes() {
  const int most_threads = random_.one_in(512) ? 4096 : random_.one_in(24) ? 512 : 256;
  threads_ = random_.one_of(kThreads);
  if (wish_.late == true) threads_ = std::max(threads_, 96);
  do {
    ranks_ = wish_.ranks.value_or(2 + int(random_.below(random_.one_in(4) ? 7 : 3)));
    geometry_.channels = wish_.channels.value_or(random_.one_in(4) ? 2 : 1);
  } while (ranks_ * geometry_.channels * threads_ >
           std::max(most_threads, wish_.ranks.value_or(2) * 2 * threads_));
  most_bytes_ = random_.one_in(64) ? 48 << 10 : random_.one_in(8) ? 6 << 10 : 1 << 10;
  most_bytes_ = std::max(most_bytes_, wish_.most_bytes.value_or(0));
  const int slots[] = {2, 2, 3, ranks_, 8};
  geometry_.slots = wish_.slots.value_or(random_.one_of(slots));
  geometry_.slot_bytes[int(Protocol::simple)] = random_.one_of({64, 256, 1024, 2048, 4096});
  geometry_.slot_bytes[int(Protocol::ll)] = 16 * random_.one_of({2, 4, 32, 33, 70});
  geometry_.slot_bytes[int(Protocol::ll128)] = 1024 * random_.one_of({1, 1, 2});
  channels_ = geometry_.channels;
}

void Ring::choose_shipped_sizes() {
  geometry_ = default_geometry();
  threads_ = cuda::kMaxThreads;
  ranks_ = wish_.ranks.value_or(random_.one_of({2, 4, 8}));
  channels_ = 4096 / (ranks_ * threads_);  // more threads are slow: a clock has a time for each
  most_bytes_ = random_.one_in(8) ? 256 << 10 : 96 << 10;
}

void Ring::choose_start() {
  victim_ = int(random_.below(uint64_t(ranks_)));
  together_ = wish_.trouble != Trouble::killed && random_.one_in(3);
  const uint64_t starts[] = {0,
                             0,
                             7,
                             kLLFlagPeriod - 1,
                             (uint64_t(1) << 32) - 3,
                             (uint64_t(1) << 40) * kLLFlagPeriod - 2,
                             uint64_t(1) << 63};
  first_step_ = random_.one_of(starts);
  cover("ranks", ranks_);
  cover("channels", geometry_.channels);
  cover("threads", threads_);
  cover("slots", geometry_.slots == ranks_ ? "as many as ranks" : std::to_string(geometry_.slots));
  cover("launches", together_ ? "of all ranks" : "of each rank");
}

// Others then wait for its posts, and only the right event may end their wait. Uses a random stream
// of its own, like the orders.
void Ring::choose_late(uint64_t seed) {
  Random random(~seed + 1);
  const bool late = random.one_in(8);
  if (!wish_.late) wish_.late = late;
  cover("late", int(*wish_.late));
  if (!*wish_.late) return;
  // The others then wait for the one that stops.
  const bool killed = *wish_.trouble == Trouble::killed;
  settings_.late_rank = killed ? victim_ : int(random.below(uint64_t(ranks_)));
  // The first channel can then come to the end of a call that the last one does not end.
  settings_.late_channel = random.one_in(4) ? 0 : channels_ - 1;
  settings_.late_from = random.below(random.one_of<uint64_t>({500, 2000, 10000}));
}

void Ring::choose_mesh(uint64_t seed) {
  if (wish_.shipped) {
    mesh_ = MeshGeometry::make(ranks_, geometry_.channels);
  } else {
    mesh_.ranks = ranks_;
    mesh_.channels = geometry_.channels;
    mesh_.slots = wish_.slots.value_or(random_.one_of({2, 2, 3}));
    mesh_.slot_bytes = MeshGeometry::kSlotGrain * random_.one_of({1, 1, 2, 5});
  }
  mixed_in_ = random_.one_in(3) || wish_.chains;
  // Uses a random stream of its own, like the orders.
  across_ = wish_.across.value_or(Random(~seed + 2).one_in(3));
  cover("mesh slots", mesh_.slots);
}

// In half of the seeds the ranks stand in the order of their numbers. Uses a random stream of its
// own: the rest of a seed is the same with orders and without.
void Ring::choose_orders(uint64_t seed) {
  std::mt19937_64 random(~seed);
  const int counts[] = {0, 0, 0, 1, 2, 2};
  const int count = wish_.orders.value_or(counts[random() % std::size(counts)]);
  orders_ = test::drawn_orders(count, ranks_, random);
  cover("orders", orders_.count);
  const bool alike =
      geometry_.channels == 1 || orders_.count < 2 || orders_.ranks[0] == orders_.ranks[1];
  cover("channels", alike ? "of one order" : "of different orders");
}

// The pairs that have host memory in common, and no device memory: in a third of the seeds, some.
// Calls over the tensors themselves need device memory.
void Ring::choose_hosts(uint64_t seed) {
  Random random(~seed + 3);
  const bool some = random.one_in(3) && !across_;
  on_host_.assign(size_t(ranks_), 0);
  if (!wish_.hosts.value_or(some)) return cover("host memory", "of none");
  across_ = false;
  const bool all = random.one_in(3);
  for (int a = 0; a < ranks_; ++a)
    for (int b = 0; b < a; ++b)
      if (all || random.one_in(2)) {
        on_host_[size_t(a)] |= uint32_t(1) << b;
        on_host_[size_t(b)] |= uint32_t(1) << a;
      }
  cover("host memory", all ? "of all" : "of some");
}

void Ring::choose_machine(uint64_t seed) {
  settings_.seed = seed;
  settings_.polls_per_look = kPollsPerLook;
  settings_.memory.open = across_;
  settings_.most_steps = wish_.most_steps.value_or(settings_.most_steps);
  settings_.memory.atom = wish_.atom.value_or(8);
  settings_.memory.line_atom = wish_.line_atom.value_or(128);
  // Ranks that have given up leave data half-written; their neighbours may read it, and give up.
  if (wish_.trouble != Trouble::none) settings_.memory.races = Races::mixed;
  if (!wish_.find_races) settings_.memory.races = Races::none;
  settings_.memory.stale = random_.one_of({0u, 16u, 128u, 224u});
  settings_.switch_every = random_.one_of({1, 4, 16, 64});
  settings_.drain_every = random_.one_of({1, 4, 16, 64});
  settings_.starved_rank = random_.one_in(2) ? int(random_.below(uint64_t(ranks_))) : -1;
  // Its previous rank then waits for it to give back slots.
  if (wish_.trouble == Trouble::aborted && random_.one_in(2))
    settings_.starved_rank = next_of(0, victim_);
  if (wish_.trouble == Trouble::killed || wish_.trouble == Trouble::corrupted) {
    // A short one passes while the others still work, and for each block at a time of its own.
    timeout_ns_ = random_.one_of({kTimeout, kTimeout, kTimeout / 30'000, kTimeout / 250'000});
    settings_.clock_jump = timeout_ns_ / random_.one_of<uint64_t>({1, 4, 8});
  }
  machine().reset(settings_, ranks_, channels_, threads_);
}

void Ring::make_segments() {
  const Mailbox empty{};
  for (int r = 0; r < ranks_; ++r) {
    const std::string of = " of rank " + std::to_string(r);
    const int64_t bytes = geometry_.bytes() + mesh_.bytes();
    segments_.push_back(memory().add("the segment" + of, Kind::shared, r, bytes));
    hosts_.push_back(on_host_[size_t(r)] == 0
                         ? nullptr
                         : memory().add("the segment on the host" + of, Kind::shared, r, bytes));
    mailboxes_.push_back(memory().add("the mailbox" + of, Kind::shared, r, sizeof(Mailbox)));
    memory().write(mailboxes_.back(), &empty, sizeof empty);
    failed_.push_back(memory().add("the word 'failed'" + of, Kind::device, r, sizeof(uint32_t)));
    ended_.push_back(memory().add("the word 'ended'" + of, Kind::device, r, sizeof(uint32_t)));
  }
  for (int r = 0; first_step_ != 0 && r < ranks_; ++r)
    for (int c = 0; c < geometry_.channels; ++c)
      for (int p = 0; p < kProtocols; ++p) {
        LinkCounters* l = counters(r, c, Protocol(p));
        for (uint64_t* word :
             {&l->tail.value, head(r, c, Protocol(p)), &l->sent.value, &l->received.value})
          memory().write(word, &first_step_, sizeof first_step_);
      }
  for (int r = 0; (*wish_.direct || orders_.count > 0) && r < ranks_; ++r) {
    const int64_t bytes = ranks_ * int64_t(sizeof(std::byte*));
    tables_.push_back(memory().add("the table of rank " + std::to_string(r), Kind::own, r, bytes));
    std::vector<std::byte*> theirs;
    for (int p = 0; p < ranks_; ++p) theirs.push_back(segment(p, r));
    memory().write(tables_.back(), theirs.data(), bytes);
    for (int c = 0; *wish_.direct && first_step_ != 0 && c < geometry_.channels; ++c)
      for (const MeshCount of : {MeshCount::rounds, MeshCount::meetings}) {
        memory().write(&mesh_counters(r, c, r)->count[int(of)], &first_step_, sizeof first_step_);
        for (int p = 0; p < ranks_; ++p)
          if (p != r) memory().write(peer_counter(r, c, p, of), &first_step_, sizeof first_step_);
      }
  }
  for (int r = 0; across_ && r < ranks_; ++r)
    regions_.push_back(
        memory().add("the regions that rank " + std::to_string(r) + " has mapped", Kind::own, r,
                     ranks_ * RegionPlace::kMostRegions * int64_t(sizeof(PeerRegion))));
  memory().name_of_place = [this](const void* at) { return place_of(at); };
}

// Around the sizes at which something changes.
int64_t Ring::choose_count(int64_t chunk, int64_t chunks, int64_t loop, int element, int parts) {
  if (wish_.operands) return int64_t(wish_.operands(0).size()) / element;
  // With several channels, the last one should have work in some seeds.
  const int64_t bytes =
      loop * element <= 8 << 10 && random_.one_in(3) ? loop * element + 16 : most_bytes_;
  const int64_t most = bytes / element / parts;
  if (random_.one_in(8)) return int64_t(random_.below(2));
  const int64_t spans[] = {chunk, chunk, chunks, loop, (2 + int64_t(random_.below(4))) * loop};
  const int64_t near = random_.one_of(spans) + int64_t(random_.below(3)) - 1;
  if (near <= most && !random_.one_in(4)) return near;
  return 1 + int64_t(random_.below(uint64_t(std::max<int64_t>(most, 1))));
}

// Draws the size first, and among dtypes of a size by numbers of their own: another dtype in the
// table leaves all that a seed draws as it was, and the mutants that it catches.
DType Ring::draw_dtype() {
  constexpr int kBytes[] = {4, 8, 2, 2, 1, 1, 4, 8, 1, 1};
  const int bytes = random_.one_of(kBytes);
  for (;;)
    if (const auto dtype = DType(kinds_.below(kDTypes)); size_of(dtype) == bytes) return dtype;
}

void Ring::add_call() {
  Call call;
  const auto protocol = wish_.mixed ? Protocol(random_.below(kProtocols)) : *wish_.protocol;
  auto collective =
      random_.one_in(2) ? Collective::all_reduce : Collective(random_.below(kCollectives));
  if (wish_.chains && !is_chain(collective)) collective = Collective::broadcast;
  // A message goes to the next rank, and with two orders there would be two.
  if (collective == Collective::send_recv && orders_.count > 1) collective = Collective::broadcast;
  if (wish_.operands) collective = Collective::all_reduce;
  // A wish takes the place of what was drawn, so that the rest of the seed stays.
  const DType drawn = draw_dtype(), dtype = wish_.dtype.value_or(drawn);
  auto op = random_.one_in(2) ? Op::sum : Op(random_.below(kOps));
  op = wish_.op.value_or(op);
  if (!accepts(op, kind_of(dtype))) op = Op::sum;
  call.reduction = Reduction::of(op, dtype, ranks_, 0.75);
  const int root = is_chain(collective) ? int(random_.below(uint64_t(ranks_))) : 0;
  // The plan must be the same on all ranks, whatever threads each of them launches.
  const auto plan = [&](int64_t count) {
    Plan p = Plan::make(collective, protocol, ranks_, count, size_of(dtype), workers_of(threads_),
                        geometry_, 1 + int(random_.below(uint64_t(channels_))), root);
    p.orders = orders_;
    return p;
  };
  call.plan = plan(1);
  if (*wish_.direct && !(mixed_in_ && random_.one_in(2))) {
    choose_direct(call, size_of(dtype));
    // Not a matter of the seed: what it chooses next stays what it was.
    const bool wide = wish_.operands ? wish_.wide : call.plan.count % 2 == 0;
    const bool tree = wish_.tree.value_or(call.plan.count % 4 > 1);
    call.reduction = Reduction::of(op, dtype, ranks_, 0.75, wide, tree);
    if (call.reduction.wide) cover("wide", name_of(op));
    if (call.reduction.tree)
      cover(call.across ? "tree across" : "tree over lines", ranks_ > 4 ? "many" : "few");
  } else {
    const Plan& one = call.plan;
    const bool shards =
        collective == Collective::reduce_scatter || collective == Collective::all_gather;
    call.plan = plan(choose_count(one.chunk, one.chunk * one.parts(), one.loop_span(),
                                  size_of(dtype), shards ? ranks_ : 1));
  }
  call.in_place = random_.one_in(2);
  call.chained = take_outputs(call, size_of(dtype));
  if (call.chained) cover("across", "chained");
  call.nulls = is_chain(call.plan.collective) && random_.one_in(2);
  const Plan& p = call.plan;
  if (!call.direct) cover(name_of(collective), name_of(protocol));
  cover("dtype", name_of(dtype));
  cover("op", name_of(op));
  cover("in place", int(call.in_place));
  if (is_chain(p.collective)) {
    cover("root", root == 0 ? "0" : root == ranks_ - 1 ? "last" : "other");
    cover("null", int(call.nulls));
  }
  // Not a matter of the seed's draws, either.
  if ((settings_.seed + calls_.size()) % 5 != 0) call.seq = calls_.size() + 1;
  cover("number", int(call.seq != 0));
  if (!calls_.empty() && calls_.back().plan.channels != p.channels)
    cover("channels", p.channels == 1 ? "fewer than before" : "more than before");
  if (p.count <= 1) cover("count", p.count);
  if (!call.direct) {
    if (p.count == p.chunk - 1) cover("count", "chunk - 1");
    if (p.count == p.chunk) cover("count", "chunk");
    if (p.count == p.chunk + 1) cover("count", "chunk + 1");
    if (p.loops > 1) cover("loops", p.loops == 2 ? "2" : "more");
  }
  with_dtype(dtype, [&](auto tag) { fill<typename decltype(tag)::type>(call); });
  if (call.told) show_regions(call);
  choose_norm(call);
  choose_clock(call);
  calls_.push_back(std::move(call));
}

void Ring::choose_direct(Call& call, int element) {
  const auto algorithm = random_.one_in(2) ? Algorithm::one_shot : Algorithm::two_shot;
  const auto plan = [&](int64_t count) {
    return DirectPlan::make(algorithm, ranks_, count, element, mesh_.chunk_bytes(algorithm),
                            call.plan.channels, /*ahead=*/0);
  };
  // The most that a round moves.
  const DirectPlan large = plan(int64_t(1) << 40);
  // Where there are many, most are short: the flags of lines that they do not need come back.
  const int64_t count =
      many_ && !random_.one_in(4)
          ? int64_t(random_.below(9))
          : choose_count(large.part, large.chunk, large.chunk * large.channels, element, 1);
  call.direct = plan(count);
  call.plan.collective = Collective::all_reduce;
  call.plan.root = 0;
  call.plan.protocol = Protocol::ll;
  call.plan.count = count;
  if (across_ && (wish_.across || (settings_.seed + calls_.size()) % 3 != 0)) {
    call.across = true;
    // The ranks of one launch have one plan.
    call.told = !together_ && (settings_.seed / 3 + calls_.size()) % 2 == 0;
    call.plan.protocol = Protocol::simple;
    call.direct->algorithm = Algorithm::two_shot;
    cover("across", call.plan.count > 0 ? "some" : "none");
    return;
  }
  const int64_t rounds = call.direct->rounds;
  cover(name_of(algorithm), rounds < 3 ? std::to_string(rounds) + " rounds" : "more rounds");
}

// Tells if the inputs of a call over tensors are to be the outputs of the call before, where these
// are as long and aligned: what a rank alone has written, the others then read without having heard
// of it.
bool Ring::take_outputs(Call& call, int element) const {
  if (!call.across || calls_.empty() || wish_.operands) return false;
  const Call& before = calls_.back();
  const int64_t bytes = call.plan.count * element;
  for (size_t r = 0; r < size_t(ranks_); ++r)
    if (before.out[r] == nullptr || !test::writes(before.plan, int(r)) ||
        int64_t(before.expected[r].size()) < bytes || uint64_t(before.out[r]) % element != 0)
      return false;
  call.in_place = false;
  return true;
}

// Numbers that could be taken for the flags of the steps to come, among others.
template <class T>
std::vector<T> Ring::numbers(int64_t count, std::mt19937_64& random) const {
  std::vector<T> x(static_cast<size_t>(count));
  for (T& value : x) value = test::sample<T>(random);
  constexpr size_t each = 8 / sizeof(T);
  if (random() % 2 == 0) return x;
  for (size_t i = 0; i + each <= x.size(); i += each) {
    const uint64_t step = first_step_ + random() % 8;
    const uint64_t twice = uint64_t(ll_flag(step)) << 32 | ll_flag(step);
    const uint64_t word = random() % 2 == 0 ? ll128_flag(step) : twice;
    std::memcpy(&x[i], &word, sizeof word);
  }
  return x;
}

template <class T>
void Ring::fill(Call& call) {
  const auto e = int64_t(sizeof(T));
  const int64_t n = call.plan.count;
  const bool scatters = call.plan.collective == Collective::reduce_scatter;
  const bool gathers = call.plan.collective == Collective::all_gather;
  const int64_t in_count = scatters ? n * ranks_ : n, out_count = gathers ? n * ranks_ : n;
  std::mt19937_64 random(random_.next());
  const auto offset = [&] { return e * int64_t(random() % 16); };
  const bool aligned = random_.one_in(2);
  cover("aligned", int(aligned));
  std::vector<std::vector<T>> in, out;
  for (int r = 0; r < ranks_; ++r) {
    in.push_back(numbers<T>(in_count, random));
    if (wish_.operands)
      std::memcpy(in.back().data(), wish_.operands(r).data(), size_t(in_count * e));
    const std::string of =
        " of rank " + std::to_string(r) + ", call " + std::to_string(calls_.size());
    // Other ranks read and write them, too, where a call takes them themselves.
    const Kind kind = across_ ? Kind::common : Kind::own;
    const auto add = [&](const char* what, int64_t count) {
      return memory().add(what + of, kind, r, count * e, aligned ? 0 : offset(), 0xEE);
    };
    // In place, as torch does it: the smaller tensor is this rank's part of the larger one.
    std::byte* whole = call.in_place ? add("the tensor", std::max(in_count, out_count)) : nullptr;
    call.in.push_back(whole == nullptr ? add("the input", in_count)
                                       : whole + (gathers ? r * n * e : 0));
    call.out.push_back(whole == nullptr ? add("the output", out_count)
                                        : whole + (scatters ? r * n * e : 0));
    if (call.chained) {
      const Call& before = calls_.back();
      call.in.back() = before.out[size_t(r)];
      std::memcpy(in.back().data(), before.expected[size_t(r)].data(), size_t(in_count * e));
    } else {
      memory().write(call.in.back(), in.back().data(), in_count * e);
    }
    call.input.push_back(bytes_of(in.back()));
    out.emplace_back(size_t(out_count));
    memory().read(call.out.back(), out.back().data(), out_count * e);
    if (call.nulls && !test::reads(call.plan, r)) call.in.back() = nullptr;
    if (call.nulls && !test::writes(call.plan, r)) call.out.back() = nullptr;
  }
  for (const auto& x : call.direct ? test::direct_model(call.reduction, in)
                                   : test::model(call.plan, call.reduction, in, out))
    call.expected.push_back(bytes_of(x));
}

// Lets the other ranks have mapped the tensors of some ranks, and those know so.
void Ring::show_regions(Call& call) {
  Random random(settings_.seed * 64 + calls_.size());
  const int64_t bytes = call.plan.count * size_of(call.reduction.dtype);
  const bool factors = call.reduction.scale == Reduction::Scale::multiply_input;
  const int some = random.one_of({0, 1, 1, 2});
  for (size_t r = 0; r < size_t(ranks_); ++r) {
    const bool shown = call.in_place && !factors &&
                       !random.one_in(some == 0   ? 1
                                      : some == 1 ? 64
                                                  : 2);
    const auto before = int64_t(uint64_t(call.out[r]) % 256);
    const PeerRegion region{call.out[r] - before, before + bytes};
    const RegionPlace place{int(calls_.size()), before};
    for (std::byte* table : regions_)
      memory().write(table + sizeof region * (r * RegionPlace::kMostRegions + calls_.size()),
                     &region, sizeof region);
    call.places.push_back(shown ? place.word() : 0);
    cover("told", shown ? "a place" : "none");
  }
}

AcrossPlan Ring::across_plan(const Call& call, int rank) const {
  AcrossPlan plan{call.plan.channels, {call.plan.count * size_of(call.reduction.dtype), ranks_}};
  if (call.told) {
    plan.told = true;
    plan.place = call.places[size_t(rank)];
    plan.regions = reinterpret_cast<const PeerRegion*>(regions_[size_t(rank)]);
    return plan;
  }
  uint64_t places = 0;
  for (size_t r = 0; r < size_t(ranks_); ++r) {
    plan.tensors.in[r] = call.in[r];
    plan.tensors.out[r] = call.out[r];
    places |= uint64_t(call.in[r]) | uint64_t(call.out[r]);
  }
  plan.tensors.aligned = places % 16 == 0;
  return plan;
}

template <class Args>
Args Ring::arguments(const Call& call, const std::vector<int>& ranks) const {
  Args args;
  if constexpr (std::is_same_v<Args, TimedArgs>)
    for (size_t i = 0; i < ranks.size(); ++i)
      args.timelines[i] = {reinterpret_cast<TimedVerb*>(call.rows[size_t(ranks[i])]), call.room};
  if constexpr (std::is_same_v<Args, NormArgs>) {
    args.rows = *call.by_rows, args.eps = kEps;
    for (size_t i = 0; i < ranks.size(); ++i) {
      const auto r = size_t(ranks[i]);
      args.norms[i] = {call.residual[r], call.weight[r], call.normalised[r]};
    }
  }
  constexpr bool direct = requires { args.mesh; };
  if constexpr (direct) args.mesh = mesh_, args.orders = orders_;
  if constexpr (std::is_same_v<Args, AcrossArgs>) args.plan = across_plan(call, ranks.front());
  else if constexpr (direct) args.plan = *call.direct;
  else args.plan = call.plan;
  const bool numbered = orders_.count == 0;
  args.geometry = geometry_;
  args.reduction = call.reduction;
  args.timeout_ns = timeout_ns_;
  args.seq = call.seq;
  for (size_t i = 0; i < ranks.size(); ++i) {
    const auto r = size_t(ranks[i]);
    const auto theirs = [&](int rank) { return numbered ? segment(rank, int(r)) : nullptr; };
    args.ranks[i] = {int(r),
                     on_host_[r],
                     call.in[r],
                     call.out[r],
                     segments_[r],
                     hosts_[r],
                     theirs(next_of(0, int(r))),
                     theirs(prev_of(0, int(r))),
                     direct || !numbered ? reinterpret_cast<std::byte**>(tables_[r]) : nullptr,
                     reinterpret_cast<Mailbox*>(mailboxes_[r]),
                     reinterpret_cast<uint32_t*>(failed_[r]),
                     reinterpret_cast<uint32_t*>(ended_[r])};
  }
  return args;
}

void Ring::start_next(int seat) {
  const size_t i = next_call_[size_t(seat)]++;
  if (i >= calls_.size()) {
    for (const int r : told_)
      if (together_ || seat == r) poison_others(r);
    return;
  }
  const Call& call = calls_[i];
  Launch& launch = launches_.emplace_back();
  if (together_)
    for (int r = 0; r < ranks_; ++r) launch.ranks.push_back(r);
  else launch.ranks = {seat};
  const auto of = [&]<class Args>(const void* kernel, std::deque<Args>& all) {
    return call_of(kernel, all.emplace_back(arguments<Args>(call, launch.ranks)));
  };
  const auto [dtype, combine] = std::pair(call.reduction.dtype, call.reduction.combine);
  const bool tree = call.reduction.tree;
  if (call.across) launch.kernel = of(across_kernel(dtype, combine, tree), across_arguments_);
  else if (call.by_rows) launch.kernel = of(norm_kernel_for(dtype), norm_arguments_);
  else if (call.direct)
    launch.kernel = of(direct_kernel_for(dtype, combine, tree), direct_arguments_);
  else if (!call.rows.empty())
    launch.kernel = of(timed_kernel_for(call.plan.protocol), timed_arguments_);
  else launch.kernel = of(kernel_for(call.plan.protocol, dtype, combine), arguments_);
  launch.channels = call.plan.channels;
  // A poster has a warp of its own, otherwise the rest of its block could not continue without it.
  const int fewest = *wish_.late ? std::min(96, threads_) : 0;
  do launch.threads = random_.one_of(kThreads);
  while (launch.threads > threads_ || launch.threads < fewest);
  if (wish_.shipped) launch.threads = random_.one_of(kShippedThreads);
  // A pack is a thread's by how many threads there are, which so is the same for all ranks.
  if (call.across) launch.threads = std::min(threads_, kMostAcrossThreads);
  launch.done = [this, i, seat, &launch] {
    for (const int r : launch.ranks) end_call(i, r);
    start_next(seat);
  };
  machine().start(launch);
}

void Ring::print() const {
  std::printf(
      "trouble: %s; %d ranks%s, %d channels of up to %d threads, %d slots of %ld, %ld, %ld "
      "bytes, from step %lu\n",
      name_of(*wish_.trouble), ranks_, together_ ? " in one launch" : "", geometry_.channels,
      threads_, geometry_.slots, long(geometry_.slot_bytes[0]), long(geometry_.slot_bytes[1]),
      long(geometry_.slot_bytes[2]), static_cast<unsigned long>(first_step_));
  for (int i = 0; i < orders_.count; ++i) {
    std::printf("  ring of channels %d, %d, ...:", i, i + orders_.count);
    for (int p = 0; p < ranks_; ++p) std::printf(" %d", orders_.rank_at(i, p));
    std::printf("\n");
  }
  for (const Call& c : calls_) {
    if (const auto& d = c.direct)
      std::printf("  %s %s[%ld] over %d channels%s, chunk %ld, %ld rounds\n",
                  !c.across ? name_of(d->algorithm)
                  : c.told  ? "across, told"
                            : "across",
                  name_of(c.reduction.dtype), long(d->count), d->channels,
                  c.in_place ? ", in place" : "", long(d->chunk), long(d->rounds));
    if (c.by_rows)
      std::printf("    and a norm of rows of %ld, in %ld rounds each\n", long(c.by_rows->row),
                  long(c.by_rows->pieces));
    if (c.direct) continue;
    std::printf("  %s %s %s[%ld] over %d channels%s, root %d, chunk %ld, %ld loops\n",
                name_of(c.plan.collective), name_of(c.plan.protocol), name_of(c.reduction.dtype),
                long(c.plan.count), c.plan.channels, c.in_place ? ", in place" : "", c.plan.root,
                long(c.plan.chunk), long(c.plan.loops));
  }
}

}  // namespace simt
