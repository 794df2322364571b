// Faults during a ring's life, and the invariants at the end.
#include <algorithm>

#include "cuda/model.h"
#include "ring.h"

namespace simt {

void Ring::run() {
  if (wish_.verbose) print();
  plan_trouble();
  next_call_.assign(size_t(ranks_), 0);
  completed_.assign(size_t(ranks_), 0);
  posted_.assign(size_t(ranks_), 0);
  seen_.assign(size_t(ranks_), 0);
  for (int seat = 0; seat < (together_ ? 1 : ranks_); ++seat) start_next(seat);
  machine().run();
  if (wish_.trouble == Trouble::none) check_results();
  else check_survivors();
}

// ---- Faults

void Ring::plan_trouble() {
  if (*wish_.trouble == Trouble::none) return;
  if (*wish_.trouble == Trouble::aborted && !together_ && random_.one_in(2))
    other_ = (victim_ + 1 + int(random_.below(uint64_t(ranks_ - 1)))) % ranks_;
  if (*wish_.direct && other_ >= 0 && ranks_ >= 4 && random_.one_in(2)) {
    other_ = next_of(0, victim_);
    third_ = prev_of(0, victim_);
  }
  // At the start, early, or any time.
  uint64_t step = random_.below(random_.one_of<uint64_t>({1, 500, 5000, 50000}));
  if (*wish_.late) step = ~uint64_t(0);  // when all wait
  machine().when_stuck = [this](int rank) { check_sleeper(rank); };
  machine().at_step(step, [this] { return make_trouble(); });
}

// A rank that has given up has no block that waits. No block waits for a neighbour that has given
// up, in the same call or one before. In a direct all-reduce none waits for any rank that gave up
// in one, or that the host has aborted behind its last call.
void Ring::check_sleeper(int rank) const {
  const auto late = [&](const std::string& why) {
    throw Failure("late", "rank " + std::to_string(rank) + " waits though " + why);
  };
  if (told_.contains(rank)) late("the host has aborted it");
  if (machine().holds(rank)) return;
  if (gave_up(rank)) late("it has given up");
  if (*wish_.trouble == Trouble::corrupted) return;  // the word of it may have been written over
  const size_t call = completed_[size_t(rank)];
  if (all_told_ && is_direct(call)) late("the host has aborted another rank");
  for (int other = 0; other < ranks_; ++other) {
    const bool near = other == next_of(0, rank) || other == prev_of(0, rank);
    if (!near && !(is_direct(call) && is_direct(completed_[size_t(other)]))) continue;
    // With several channels, one may have ended where another has not.
    if (gave_up(other) && !stopped(other) && !machine().holds(other) && geometry_.channels == 1 &&
        completed_[size_t(other)] <= call)
      late("rank " + std::to_string(other) + " has given up");
  }
}

uint64_t Ring::make_trouble() {
  const bool first = ++events_ == 1;
  switch (*wish_.trouble) {
    case Trouble::none: return 0;
    case Trouble::killed:
      if (first) machine().kill(victim_);
      break;
    case Trouble::aborted:
      if (first && third_ >= 0) machine().kill(third_);
      if (first && other_ >= 0) machine().kill(other_);
      else if (first || other_ >= 0) abort_next();
      break;
    case Trouble::corrupted: corrupt(); break;
  }
  look_at_report();
  for (int r = 0; r < ranks_; ++r) look_at_progress(r);
  // A rank that has ended forwards no notice: where one has stopped, the host may have to abort
  // them all, one after the other, when no thread can continue.
  const int living = ranks_ - 1 - int(third_ >= 0);
  if (other_ >= 0 && !first && int(told_.size()) < living) return ~uint64_t(0);
  if (!(first && other_ >= 0) && random_.one_in(32)) return 0;
  return machine().steps() + 1 + random_.below(random_.one_of<uint64_t>({20, 200, 5000}));
}

// The host aborts a rank, from the victim on round the ring. Like Launcher::abort, it tells the
// rank's launches and, behind the last one, the others, which may wait for launches that will not
// come.
void Ring::abort_next() {
  int rank = (victim_ + int(told_.size())) % ranks_;
  const int living = ranks_ - int(third_ >= 0 ? 2 : 0);
  if ((told_.contains(rank) && third_ < 0) || int(told_.size()) == living) return;
  if (third_ >= 0)
    while (told_.contains(rank) || stopped(rank)) rank = (rank + 1) % ranks_;
  else if (rank == other_) rank = (victim_ + ranks_ - 1) % ranks_;
  told_.insert(rank);
  const uint32_t one = 1;
  auto* mailbox = reinterpret_cast<Mailbox*>(mailboxes_[size_t(rank)]);
  memory().store(memory().host(), &mailbox->aborted, &one, sizeof one, Order::release);
  if (next_call_[size_t(together_ ? 0 : rank)] > calls_.size()) poison_others(rank);
}

void Ring::poison_others(int rank) {
  const uint32_t one = 1;
  Agent& host = memory().host();
  memory().store(host, failed_[size_t(rank)], &one, sizeof one, Order::release);
  const auto put = [&](uint64_t* at) {
    memory().store(host, at, &kPoisoned, sizeof kPoisoned, Order::release);
  };
  all_told_ = true;
  for (int c = 0; c < geometry_.channels; ++c) {
    for (int p = 0; p < kProtocols; ++p) {
      put(&counters(next_of(c, rank), c, Protocol(p))->tail.value);
      put(head(prev_of(c, rank), c, Protocol(p)));
    }
    for (int other = 0; *wish_.direct && other < ranks_; ++other)
      put(&mesh_counters(other, c, rank)->poisoned.value);
  }
}

// Garbage that a faulty rank could write.
void Ring::corrupt() {
  const int c = int(random_.below(uint64_t(geometry_.channels)));
  const auto p = Protocol(random_.below(kProtocols));
  LinkCounters* l = counters(victim_, c, p);
  const uint64_t step = first_step_ + random_.below(8);
  const uint64_t junk[] = {random_.next(),
                           0,
                           kPoisoned,
                           step,
                           step + 1,
                           ll128_flag(step),
                           uint64_t(ll_flag(step)) << 32 | random_.below(9)};
  const uint64_t word = random_.one_of(junk);
  void* at = random_.one_in(2) ? &l->tail.value : head(victim_, c, p);
  if (random_.one_in(2))
    at = segment(victim_, prev_of(c, victim_)) + geometry_.fifo_offset(c, p) +
         8 * int64_t(random_.below(uint64_t(geometry_.fifo_bytes(p)) / 8));
  if (*wish_.direct && random_.one_in(2)) {
    // All but what the rank itself keeps there.
    const int64_t words = mesh_.channel_bytes() / 8, own = kCacheLine / 8;
    at = mesh(victim_, c, next_of(c, victim_)) +
         8 * (own + int64_t(random_.below(uint64_t(words - own))));
    if (random_.one_in(4))
      at = peer_counter(victim_, c,
                        (victim_ + 1 + int(random_.below(uint64_t(ranks_ - 1)))) % ranks_);
  }
  memory().write(at, &word, sizeof word);
}

// ---- Invariants at the end

// Called by the host, at any time: the verdict comes last, after all other fields of the report.
WaitReport Ring::report_of(int rank) {
  Agent& host = memory().host();
  const auto* at = &reinterpret_cast<Mailbox*>(mailboxes_[size_t(rank)])->report;
  WaitReport r;
  memory().load(host, &at->verdict, &r.verdict, sizeof r.verdict, Order::acquire);
  if (r.verdict == Verdict::ok) return r;
  memory().load(host, &at->what, &r.what, sizeof r.what, Order::weak);
  memory().load(host, &at->protocol, &r.protocol, sizeof r.protocol, Order::weak);
  memory().load(host, &at->channel, &r.channel, sizeof r.channel, Order::weak);
  memory().load(host, &at->peer, &r.peer, sizeof r.peer, Order::weak);
  memory().load(host, &at->wanted, &r.wanted, sizeof r.wanted, Order::weak);
  memory().load(host, &at->seen, &r.seen, sizeof r.seen, Order::weak);
  memory().load(host, &at->seq, &r.seq, sizeof r.seq, Order::weak);
  memory().load(host, &at->timeout_ns, &r.timeout_ns, sizeof r.timeout_ns, Order::weak);
  return r;
}

void Ring::look_at_report() {
  const int rank = int(random_.below(uint64_t(ranks_)));
  const WaitReport r = report_of(rank);
  if (r.verdict == Verdict::ok) return;
  check_report(rank, r);
}

// Takes note that a launch of the rank has ended, and checks that it has told the number of its
// call, if that has one, unless the rank gave up; and that the next launch counts blocks from 0.
void Ring::end_call(size_t call, int rank) {
  const auto r = size_t(rank);
  const bool well = !gave_up(rank);
  if (well) ++completed_[r];
  if (well && calls_[call].seq != 0) posted_[r] = calls_[call].seq;
  const uint64_t done = read(&reinterpret_cast<Mailbox*>(mailboxes_[r])->done);
  const std::string who = "rank " + std::to_string(rank) + ", call " + std::to_string(call) + ": ";
  if (done != posted_[r])
    throw Failure("progress", who + "the host reads number " + std::to_string(done) + ", not " +
                                  std::to_string(posted_[r]));
  if (well && read(reinterpret_cast<uint32_t*>(ended_[r])) != 0)
    throw Failure("progress", who + "the blocks of the next launch are not counted from 0");
  look_at_progress(rank);
}

// Looks as the host may at any time: with the number comes all that the call has written.
void Ring::look_at_progress(int rank) {
  const auto r = size_t(rank);
  Agent& host = memory().host();
  uint64_t done = 0;
  memory().load(host, &reinterpret_cast<Mailbox*>(mailboxes_[r])->done, &done, sizeof done,
                Order::acquire);
  if (done == seen_[r] || *wish_.trouble == Trouble::corrupted) return;
  seen_[r] = done;
  if (done == 0 || done > calls_.size())
    throw Failure("progress", "there is no call " + std::to_string(done));
  const Call& call = calls_[done - 1];
  const auto check = [&](const std::byte* out, const std::vector<std::byte>& expected) {
    std::vector<std::byte> found(out == nullptr ? 0 : expected.size());
    for (size_t i = 0; i < found.size();) {
      const std::byte* at = out + i;
      const int n = found.size() - i >= 8 && uint64_t(at) % 8 == 0 ? 8 : 1;
      memory().load(host, at, &found[i], n, Order::weak);
      i += size_t(n);
    }
    if (!std::equal(found.begin(), found.end(), expected.begin()))
      throw Failure("progress", "rank " + std::to_string(rank) + " has told that call " +
                                    std::to_string(done) +
                                    " has ended, and its output is not there");
  };
  check(call.out[r], call.expected[r]);
  if (call.by_rows) check(call.normalised[r], call.norms[r]);
  cover("progress", "seen");
}

// A rank that has given up has announced it: on the ring to its neighbours, in every protocol; in a
// direct all-reduce, to all. On one channel at least.
void Ring::check_word(int rank) const {
  const auto check = [&](const std::string& whom, auto&& at) {
    bool told = false;
    for (int c = 0; c < geometry_.channels; ++c) told = told || read(at(c)) == kPoisoned;
    if (!told)
      throw Failure("unsaid", "rank " + std::to_string(rank) + " gave up and did not tell " + whom);
  };
  for (int p = 0; p < kProtocols; ++p) {
    check("its next",
          [&](int c) { return &counters(next_of(c, rank), c, Protocol(p))->tail.value; });
    check("its previous", [&](int c) { return head(prev_of(c, rank), c, Protocol(p)); });
  }
  for (int other = 0; other < ranks_ && is_direct(completed_[size_t(rank)]); ++other)
    check("rank " + std::to_string(other),
          [&](int c) { return &mesh_counters(other, c, rank)->poisoned.value; });
}

// Nobody hears of a rank, where that one writes, but from itself.
void Ring::check_hearsay() const {
  for (int r = 0; r < ranks_; ++r)
    for (int c = 0; c < geometry_.channels; ++c)
      for (int p = 0; p < kProtocols; ++p) {
        LinkCounters* l = counters(r, c, Protocol(p));
        for (const auto& [counter, writer] : {std::pair(&l->tail.value, prev_of(c, r)),
                                              std::pair(head(r, c, Protocol(p)), next_of(c, r))})
          if (read(counter) == kPoisoned && !gave_up(writer))
            throw Failure("hearsay", "rank " + std::to_string(r) + " is told that rank " +
                                         std::to_string(writer) + " gave up, which has not");
      }
}

void Ring::check_report(int rank, const WaitReport& report) const {
  check_peer(rank, report);
  const Call& call = calls_.at(completed_[size_t(rank)]);
  if (report.seq != call.seq || report.timeout_ns != timeout_ns_ ||
      report.protocol != call.plan.protocol || report.channel < 0 ||
      report.channel >= call.plan.channels)
    throw Failure("report",
                  "rank " + std::to_string(rank) + " says that call " + std::to_string(report.seq) +
                      " failed after " + std::to_string(report.timeout_ns) + " ns, over " +
                      name_of(report.protocol) + " on channel " + std::to_string(report.channel));
  if (*wish_.trouble != Trouble::corrupted) check_seen(rank, report);
}

// The step before had been reached. But a rank that finds at its start that the next rank has given
// up does not see that rank's progress.
void Ring::check_seen(int rank, const WaitReport& r) const {
  const bool unknown = r.what == WaitFor::credit && r.peer < 0 && r.seen == 0 &&
                       read(head(rank, r.channel, r.protocol)) == kPoisoned;
  if (r.wanted != r.seen + 1 && !unknown)
    throw Failure("report", "rank " + std::to_string(rank) + " says it wanted step " +
                                std::to_string(r.wanted) + " and saw " + std::to_string(r.seen));
}

// In a direct all-reduce, all are told of each round that a rank has finished before it waits; and
// of a meeting when it comes, until it gives up.
void Ring::check_round(int rank, const WaitReport& report) const {
  if (calls_.at(completed_[size_t(rank)]).across) {
    if (read(peer_counter(report.peer, report.channel, rank, MeshCount::meetings)) != kPoisoned)
      throw Failure("unsaid", "rank " + std::to_string(rank) + " gave up, and its count goes on");
    return;
  }
  const int64_t ahead = report.what == WaitFor::data ? 0 : mesh_.slots;
  const uint64_t finished = read(peer_counter(report.peer, report.channel, rank));
  if (report.wanted + uint64_t(ahead) != finished + 1)
    throw Failure("report", "rank " + std::to_string(rank) + " says that it wanted round " +
                                std::to_string(report.wanted) + ", having finished round " +
                                std::to_string(finished));
}

// Only a direct all-reduce names a rank: one that may be waited for.
void Ring::check_peer(int rank, const WaitReport& report) const {
  const auto direct = [](const Call& call) { return call.direct.has_value(); };
  const bool all = std::all_of(calls_.begin(), calls_.end(), direct);
  const bool any = std::any_of(calls_.begin(), calls_.end(), direct);
  const bool named = report.peer >= 0;
  if (report.peer < -1 || report.peer >= ranks_ || report.peer == rank || (named && !any) ||
      (!named && all))
    throw Failure("report", "rank " + std::to_string(rank) + " says it waited for rank " +
                                std::to_string(report.peer));
  // With one round, ranks wait only for the one that has stopped.
  const bool alone = *wish_.trouble == Trouble::killed && timeout_ns_ == kTimeout &&
                     calls_.size() == 1 && all && !calls_[0].across &&
                     calls_[0].direct->rounds == 1 &&
                     calls_[0].direct->algorithm == Algorithm::one_shot;
  if (alone && rank != victim_ && report.peer != victim_)
    throw Failure("report", "rank " + std::to_string(rank) + " says it waited for rank " +
                                std::to_string(report.peer) + ", but rank " +
                                std::to_string(victim_) + " had stopped");
}

// Returns true if it was stopped, or will be.
bool Ring::stopped(int rank) const {
  return (*wish_.trouble == Trouble::killed && rank == victim_) || rank == other_ || rank == third_;
}

bool Ring::gave_up(int rank) const {
  return read(reinterpret_cast<uint32_t*>(failed_[size_t(rank)])) != 0;
}

void Ring::compare(size_t call, int rank, const char* what, const std::byte* at,
                   const std::vector<std::byte>& expected) const {
  if (at == nullptr) return;
  std::vector<std::byte> found(expected.size());
  memory().read(at, found.data(), int64_t(found.size()));
  if (found == expected) return;
  const auto wrong = std::mismatch(found.begin(), found.end(), expected.begin()).first;
  throw Failure("mismatch", "call " + std::to_string(call) + ", rank " + std::to_string(rank) +
                                ": the " + what + " is wrong from byte " +
                                std::to_string(wrong - found.begin()) + " of " +
                                std::to_string(found.size()));
}

void Ring::check_output(size_t call, int rank) const {
  const auto r = size_t(rank);
  compare(call, rank, "output", calls_[call].out[r], calls_[call].expected[r]);
  if (calls_[call].by_rows)
    compare(call, rank, "norm", calls_[call].normalised[r], calls_[call].norms[r]);
}

// It stays, but where an output is written in its place.
void Ring::check_input(size_t i, int rank) const {
  const Call& call = calls_[i];
  if (call.in_place && test::writes(call.plan, rank)) return;
  compare(i, rank, "input", call.in[size_t(rank)], call.input[size_t(rank)]);
}

void Ring::check_results() {
  for (int r = 0; r < ranks_; ++r) {
    if (gave_up(r)) throw Failure("gave up", "rank " + std::to_string(r));
    for (size_t i = 0; i < calls_.size(); ++i) check_output(i, r), check_input(i, r);
  }
  for (const Call& call : calls_)
    if (!call.rows.empty()) check_timeline(call, size_t(&call - calls_.data()));
  check_counters();
  if (*wish_.direct) check_mesh_counters();
}

// Where each link stands, and that its two ends agree.
void Ring::check_counters() {
  for (int c = 0; c < geometry_.channels; ++c)
    for (int p = 0; p < kProtocols; ++p)
      for (int r = 0; r < ranks_; ++r) {
        const LinkCounters* mine = counters(r, c, Protocol(p));
        const LinkCounters* next = counters(next_of(c, r), c, Protocol(p));
        const uint64_t sent = read(&mine->sent.value);
        if (Protocol(p) == Protocol::ll)
          cover("LL flags wrapped", int(sent / kLLFlagPeriod != first_step_ / kLLFlagPeriod));
        const bool simple = Protocol(p) == Protocol::simple;
        // The others' slots go back by the half of a FIFO.
        const auto slots = uint64_t(geometry_.slots);
        const uint64_t read_of = sent % slots, half = slots / 2;
        const uint64_t kept = simple ? 0 : read_of < half ? read_of : read_of - half;
        const uint64_t head = std::max<uint64_t>(first_step_, sent - kept);
        if (sent != read(&next->received.value) || head != read(this->head(r, c, Protocol(p))) ||
            (simple && sent != read(&next->tail.value)))
          throw Failure("counters", "the ends of a link differ: rank " + std::to_string(r) +
                                        " channel " + std::to_string(c) + " " +
                                        name_of(Protocol(p)));
      }
}

// Two a piece; where a rank stages, there may be several pieces, and one more behind the last.
uint64_t Ring::meetings_of(const Call& call) const {
  if (std::ranges::count(call.places, uint64_t(0)) == 0) return 2;
  const int64_t piece = call.plan.channels * geometry_.fifo_bytes(Protocol::simple);
  const int64_t bytes = call.plan.count * size_of(call.reduction.dtype);
  return 2 * std::max<uint64_t>(1, uint64_t(div_up(bytes, piece))) + 1;
}

// All have finished the same rounds, and know it of each other, but for the last round of a launch.
void Ring::check_mesh_counters() {
  for (int c = 0; c < geometry_.channels; ++c) {
    uint64_t finished = first_step_, told = first_step_, met = first_step_;
    for (const Call& call : calls_)
      if (call.across) {
        met += c < call.plan.channels ? meetings_of(call) : 0;
      } else if (call.direct && c < call.direct->channels) {
        const auto rounds = uint64_t(call.direct->rounds);
        told = finished + std::max<uint64_t>(rounds, 1) - 1;
        finished += rounds;
      }
    cover("mesh flags wrapped", int(finished / kLLFlagPeriod != first_step_ / kLLFlagPeriod));
    for (int r = 0; r < ranks_; ++r)
      for (int p = 0; p < ranks_; ++p)
        if (p == r ? finished != read(&mesh_counters(r, c, r)->count[0].value) ||
                         met != read(&mesh_counters(r, c, r)->count[1].value)
                   : told != read(peer_counter(r, c, p)) ||
                         met != read(peer_counter(r, c, p, MeshCount::meetings)))
          throw Failure("counters",
                        "rank " + std::to_string(r) + " channel " + std::to_string(c) +
                            " has another number of finished rounds or meetings of rank " +
                            std::to_string(p));
  }
}

// Results from before a rank gave up are right, memory that it must not write is unchanged, and a
// rank that gave up reports the reason.
void Ring::check_survivors() {
  machine().synchronise_host();
  memory().drain(memory().host());
  bool timed_out = false, any = false;
  if (*wish_.trouble != Trouble::corrupted) check_hearsay();
  for (int r = 0; r < ranks_; ++r) {
    for (size_t i = 0; i < calls_.size(); ++i) {
      const bool right = i < completed_[size_t(r)] && *wish_.trouble != Trouble::corrupted;
      if (right || !test::writes(calls_[i].plan, r)) check_output(i, r);
      if (!calls_[i].chained) check_input(i, r);
    }
    if (stopped(r)) continue;
    const WaitReport report = report_of(r);
    if (report.verdict != Verdict::ok) {
      check_report(r, report);
      cover(report.peer >= 0 ? "direct report" : "report",
            report.what == WaitFor::data ? "data" : "credit");
    }
    // The host sets the word of the rank that it aborts; its wait may have had no part in it.
    if (!told_.contains(r) && gave_up(r) != (report.verdict != Verdict::ok))
      throw Failure("report", "rank " + std::to_string(r) +
                                  " gave up and left no report, or the other way round");
    if (!gave_up(r) && completed_[size_t(r)] < calls_.size())
      throw Failure("report", "rank " + std::to_string(r) + " neither ended nor gave up");
    if (gave_up(r) && *wish_.trouble != Trouble::corrupted) {
      check_word(r);
      if (report.verdict != Verdict::ok && report.peer >= 0) check_round(r, report);
      // So has the block whose wait is reported, on its channel.
      const int c = report.channel;
      if (report.verdict != Verdict::ok &&
          read(&counters(next_of(c, r), c, report.protocol)->tail.value) != kPoisoned)
        throw Failure("report", "rank " + std::to_string(r) + " says it gave up on channel " +
                                    std::to_string(c) + ", which did not");
    }
    timed_out = timed_out || report.verdict == Verdict::timed_out;
    any = any || gave_up(r);
  }
  // The one that stopped may have been the first whose deadline passed.
  if (*wish_.trouble == Trouble::killed && any && !timed_out && !gave_up(victim_))
    throw Failure("report", "ranks gave up and none because of its deadline");
}

std::string Ring::place_of(const void* at) const {
  for (int r = 0; r < ranks_; ++r) {
    const auto* const byte = static_cast<const std::byte*>(at);
    const int64_t whole = geometry_.bytes() + mesh_.bytes();
    std::byte* const host = hosts_[size_t(r)];
    const bool on_host = host != nullptr && byte >= host && byte < host + whole;
    const int64_t offset = byte - (on_host ? host : segments_[size_t(r)]);
    if (offset < 0 || offset >= whole) continue;
    if (offset >= geometry_.bytes()) return place_in_mesh(r, offset - geometry_.bytes());
    for (int c = 0; c < geometry_.channels; ++c)
      for (int p = 0; p < kProtocols; ++p) {
        const std::string where = " of rank " + std::to_string(r) + ", channel " +
                                  std::to_string(c) + ", " + name_of(Protocol(p));
        const int64_t counter = offset - geometry_.counters_offset(c, Protocol(p));
        const std::string prev = std::to_string(prev_of(c, r));
        const std::string next = std::to_string(next_of(c, r));
        const std::string names[] = {"tail" + where + ", which rank " + prev + " writes",
                                     "head" + where + ", which rank " + next + " writes",
                                     "sent" + where, "received" + where};
        if (counter >= 0 && counter < int64_t(sizeof(LinkCounters)))
          return names[counter / int64_t(sizeof(StepCounter))];
        const int64_t in_fifo = offset - geometry_.fifo_offset(c, Protocol(p));
        const int64_t slot = geometry_.slot_bytes[p];
        if (in_fifo >= 0 && in_fifo < geometry_.slots * slot)
          return "byte " + std::to_string(in_fifo % slot) + " of slot " +
                 std::to_string(in_fifo / slot) + where + ", which rank " + prev + " writes";
      }
  }
  return "";
}

std::string Ring::place_in_mesh(int rank, int64_t offset) const {
  const std::string where = " of rank " + std::to_string(rank) + ", channel " +
                            std::to_string(offset / mesh_.channel_bytes()) + ", direct";
  offset %= mesh_.channel_bytes();
  const char* names[] = {"rounds", "meetings", "poisoned"};
  if (offset < int64_t(sizeof(MeshCounters)))
    return names[offset / int64_t(sizeof(StepCounter))] + where;
  const auto written_by = [&](int64_t index) {
    return ", which rank " + std::to_string(index < rank ? index : index + 1) + " writes";
  };
  const int64_t slots = offset - mesh_.peer_slots_offset();
  if (slots < 0)
    return names[0] + where +
           written_by((offset - int64_t(sizeof(MeshCounters))) / int64_t(sizeof(StepCounter)));
  if (const int64_t meetings = offset - mesh_.meetings_offset(0); meetings >= 0)
    return names[1] + where + written_by(meetings / int64_t(sizeof(PeerMeetings)));
  return "byte " + std::to_string(slots % mesh_.slot_bytes) + " of slot " +
         std::to_string(slots / mesh_.slot_bytes % mesh_.slots) + where +
         written_by(slots / mesh_.peer_slots_bytes());
}

}  // namespace simt
