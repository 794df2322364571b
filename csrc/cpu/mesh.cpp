#include "cpu/mesh.h"

#include <bit>
#include <cstring>
#include <string>
#include <utility>

namespace ringkern::cpu {

Mesh::Mesh(const Segments& segments, int64_t offset, int rank,
           std::shared_ptr<const Arenas> arenas)
    : rank_(rank), arenas_(std::move(arenas)) {
  for (void* segment : segments.all) {
    auto* const at = static_cast<std::byte*>(segment) + offset;
    auto* const lines = at + sizeof(Board);
    peers_.push_back({static_cast<Bell*>(segment), reinterpret_cast<Board*>(at),
                      reinterpret_cast<DirectLine*>(lines), lines + MeshGeometry::lines_bytes(),
                      {}});
  }
  if (peers_.empty()) return;
  const Processors mine = my_processors();
  for (size_t word = 0; word < mine.size(); ++word)
    std::atomic_ref(peers_[size_t(rank)].board->processors[word])
        .store(mine[word], std::memory_order_relaxed);
}

int Mesh::processors() const {
  int count = 0;
  for (size_t word = 0; word < Processors{}.size(); ++word) {
    uint64_t all = 0;
    for (const Peer& peer : peers_)
      all |= std::atomic_ref(peer.board->processors[word]).load(std::memory_order_relaxed);
    count += std::popcount(all);
  }
  return count;
}

namespace {

// What ranks must have alike, exact, in a word. The factor of a scale is a rank's own business.
uint64_t call_word(const Task& task) {
  return reduction_bits(task.reduction) | uint64_t(task.algorithm) << kReductionBits |
         uint64_t(task.count) << (kReductionBits + 2);
}
// The same of a round of a one_shot over lines, in fewer bits: how long its chunk is, and whether
// it is the last one. Calls whose rounds are all alike in that are of the same size.
constexpr int kLineCallBits = kReductionBits + 12;
uint64_t line_call_bits(uint64_t reduction, const DirectPlan& plan, const Span& chunk, int64_t i) {
  constexpr int64_t kMost = MeshGeometry::line_slot_data();
  static_assert(kMost + kMost / DirectPlan::kGrainBytes < 1 << (kLineCallBits - kReductionBits));
  const int64_t size = i + 1 == plan.rounds ? chunk.count : kMost + chunk.count / plan.grain;
  return reduction | uint64_t(size) << kReductionBits;
}

}  // namespace

// One call.
struct Mesh::Context {
  std::vector<Peer>& peers;
  const int rank, ranks;
  const uint64_t base;  // rounds of earlier calls
  uint64_t flag;        // of lines, of the round at hand: kLineAhead is 0
  const Reducer& reducer;
  const std::byte* const in;
  std::byte* const out;
  Wait& wait;
  WaitReport& report;

  int64_t bytes(int64_t elements) const { return elements * reducer.element_bytes(); }

  // To be called after everything that somebody may sleep for.
  void wake_all() const {
    publish_barrier();
    for (int p = 0; p < ranks; ++p)
      if (p != rank) ring_if_asleep(*peers[size_t(p)].bell);
  }

  // `seen`: where the step that was last seen can be read, for the report.
  template <class Ready, class Seen>
  Verdict await(int peer, Protocol protocol, uint64_t wanted, Ready&& ready, Seen&& seen) {
    const Verdict verdict = wait.until(ready);
    if (verdict == Verdict::ok) [[likely]] return verdict;
    report = {verdict, WaitFor::data, protocol, 0, peer, wanted, seen()};
    return verdict;
  }
};

// ---- LL, one_shot -------------------------------------------------------------------------------

class Mesh::Lines {
 public:
  Lines(Context& context, const Task& task)
      : x_(context), reduction_(reduction_bits(task.reduction)) {}

  Verdict stage(const DirectPlan& plan, const Span& chunk, int64_t i) {
    x_.flag = (x_.base + uint64_t(i) + 1) << kLineCallBits |  // 0 is fresh memory
              line_call_bits(reduction_, plan, chunk, i);
    const int64_t total = x_.bytes(chunk.count);
    const std::byte* in = x_.in + x_.bytes(chunk.first);
    if (x_.reducer.scales_input()) {
      x_.reducer.input(mine_, in, chunk.count);
      in = mine_;
    }
    DirectLine* line = slot(x_.rank, i);
    int64_t done = 0;
    for (; done + kData <= total; done += kData, ++line) {
      std::memcpy(line->data, in + done, kData);
      store_release(line->flag, x_.flag);
    }
    if (done < total) {
      std::memcpy(line->data, in + done, size_t(total - done));
      store_release(line->flag, x_.flag);
    }
    x_.wake_all();
    return Verdict::ok;
  }

  Verdict reduce(const DirectPlan&, const Span& chunk, int64_t i) {
    if (x_.reducer.widens(x_.ranks)) return reduce_wide(chunk, i);
    const int64_t total = x_.bytes(chunk.count);
    const std::byte* const mine = mine_of(chunk);
    const void* sum = nullptr;
    for (int p = 0; p < x_.ranks; ++p) {
      const std::byte* theirs = mine;
      if (p != x_.rank) {
        const Verdict verdict = unpack(p, i, total);
        if (verdict != Verdict::ok) return verdict;
        theirs = incoming_;
      }
      const bool last = p + 1 == x_.ranks;
      void* const to = last ? x_.out + x_.bytes(chunk.first) : sum_;
      if (sum == nullptr) {
        // The next one to be unpacked would overwrite it.
        if (theirs == incoming_ && x_.ranks > 2) std::memcpy(sum_, incoming_, size_t(total));
        sum = theirs == incoming_ && x_.ranks > 2 ? sum_ : theirs;
      } else {
        x_.reducer.combine(to, nullptr, sum, theirs, chunk.count, last);
        sum = to;
      }
    }
    return Verdict::ok;
  }

  Verdict collect(const DirectPlan&, const Span&, int64_t) { return Verdict::ok; }

 private:
  static constexpr int64_t kData = sizeof(DirectLine::data);

  DirectLine* slot(int peer, int64_t i) const {
    const uint64_t place = (x_.base + uint64_t(i)) % DirectPlan::slots(MeshGeometry::kLineAhead);
    return x_.peers[size_t(peer)].lines + int64_t(place) * MeshGeometry::kLines;
  }

  const std::byte* mine_of(const Span& chunk) const {
    return x_.reducer.scales_input() ? mine_ : x_.in + x_.bytes(chunk.first);
  }

  // Not inlined: so much of the stack is for those who need it.
  [[gnu::noinline]] Verdict reduce_wide(const Span& chunk, int64_t i) {
    alignas(64) float sum[MeshGeometry::line_slot_data() + kPartialRoom];
    for (int p = 0; p < x_.ranks; ++p) {
      if (p != x_.rank) {
        const Verdict verdict = unpack(p, i, x_.bytes(chunk.count));
        if (verdict != Verdict::ok) return verdict;
      }
      x_.reducer.add_wide(sum, p == x_.rank ? mine_of(chunk) : incoming_, chunk.count, p == 0);
    }
    x_.reducer.narrow(x_.out + x_.bytes(chunk.first), sum, chunk.count);
    return Verdict::ok;
  }

  // A whole line is copied, also where less is wanted of the last one.
  Verdict unpack(int peer, int64_t i, int64_t bytes) {
    DirectLine* line = slot(peer, i);
    for (int64_t done = 0; done < bytes; done += kData, ++line) {
      const auto ready = [&] { return load_acquire(line->flag) == x_.flag; };
      if (!ready()) [[unlikely]] {
        const Verdict verdict =
            x_.await(peer, Protocol::ll, x_.flag >> kLineCallBits, ready,
                     [&] { return load_acquire(line->flag) >> kLineCallBits; });
        if (verdict != Verdict::ok) return verdict;
      }
      std::memcpy(incoming_ + done, line->data, kData);
    }
    return Verdict::ok;
  }

  Context& x_;
  const uint64_t reduction_;
  alignas(64) std::byte mine_[MeshGeometry::line_slot_data()];
  alignas(64) std::byte incoming_[MeshGeometry::line_slot_data()];
  alignas(64) std::byte sum_[MeshGeometry::line_slot_data()];
};

// `out` is this rank's; the others, where `give`, get the result at `theirs`. What takes more than
// one step goes block by block, so that what is half done stays at hand.
template <class VersionOf, class Theirs>
void Mesh::reduce_versions(const Context& x, std::byte* out, bool give, VersionOf&& version_of,
                           Theirs&& theirs, int64_t count) {
  const bool widens = x.reducer.widens(x.ranks);
  if (x.ranks == 2 && !widens)
    return x.reducer.combine(out, give ? theirs(1 - x.rank) : nullptr, version_of(0),
                             version_of(1), count, true);
  constexpr int64_t kBlockBytes = 4096;  // stays in the first-level cache
  alignas(64) std::byte sum[kBlockBytes];
  alignas(64) float wide_sum[kBlockBytes / sizeof(float) + kPartialRoom];
  const int64_t some = kBlockBytes / (widens ? int64_t(sizeof(float)) : x.reducer.element_bytes());
  for (int64_t done = 0; done < count; done += some) {
    const int64_t n = min64(some, count - done), at = x.bytes(done);
    if (widens) {
      for (int p = 0; p < x.ranks; ++p)
        x.reducer.add_wide(wide_sum, version_of(p) + at, n, p == 0);
      x.reducer.narrow(out + at, wide_sum, n);
    } else {
      const std::byte* first = version_of(0) + at;
      for (int p = 1; p < x.ranks; ++p) {
        const bool last = p + 1 == x.ranks;
        std::byte* const to = last ? out + at : sum;
        x.reducer.combine(to, nullptr, first, version_of(p) + at, n, last);
        first = to;
      }
    }
    for (int p = 0; p < x.ranks && give; ++p)
      if (p != x.rank) copy_one(theirs(p) + at, out + at, x.bytes(n));
  }
}

// ---- Simple -------------------------------------------------------------------------------------

class Mesh::Slots {
 public:
  Slots(Context& context, const Task& task) : x_(context), call_(call_word(task)) {}

  Verdict stage(const DirectPlan& plan, const Span& chunk, int64_t i) {
    std::byte* const to = slot(x_.rank, i);
    const std::byte* const in = x_.in + x_.bytes(chunk.first);
    if (plan.algorithm == Algorithm::one_shot || x_.reducer.scales_input()) {
      x_.reducer.input(to, in, chunk.count);
    } else {  // my own part is wanted by nobody
      const Span mine = plan.part_of(chunk, x_.rank);
      const int64_t before = min64(mine.first, chunk.count), after = before + mine.count;
      x_.reducer.input(to, in, before);
      x_.reducer.input(to + x_.bytes(after), in + x_.bytes(after), chunk.count - after);
    }
    Staged& staged = board(x_.rank).staged;
    // Who polls `rounds` may take the line away between the two stores. So a slot that is of the
    // same call as before is not marked again.
    std::atomic_ref call(staged.calls[place(i)]);
    if (call.load(std::memory_order_relaxed) != call_) call.store(call_, std::memory_order_relaxed);
    publish(staged.rounds, i);
    return Verdict::ok;
  }

  Verdict reduce(const DirectPlan& plan, const Span& chunk, int64_t i) {
    for (int p = 0; p < x_.ranks; ++p) {
      const Verdict verdict = await_staged(p, i);
      if (verdict != Verdict::ok) return verdict;
    }
    const bool two_shot = plan.algorithm == Algorithm::two_shot;
    const Span span = two_shot ? plan.part_of(chunk, x_.rank) : Span{0, chunk.count};
    const int64_t at = x_.bytes(chunk.first + span.first);
    const auto theirs = [&](int p) { return slot(p, i) + x_.bytes(span.first); };
    const auto version_of = [&](int p) -> const std::byte* {
      return p == x_.rank && !x_.reducer.scales_input() ? x_.in + at : theirs(p);
    };
    reduce_versions(x_, x_.out + at, two_shot, version_of, theirs, span.count);
    if (two_shot) publish(board(x_.rank).reduced.value, i);
    return Verdict::ok;
  }

  Verdict collect(const DirectPlan& plan, const Span& chunk, int64_t i) {
    for (int j = 1; j < x_.ranks; ++j) {
      const int p = (x_.rank + j) % x_.ranks;
      uint64_t& reduced = board(p).reduced.value;
      const auto ready = [&] { return load_acquire(reduced) >= round(i); };
      const Verdict verdict = await(p, reduced, i, ready);
      if (verdict != Verdict::ok) return verdict;
      const Span part = plan.part_of(chunk, p);
      copy_one(x_.out + x_.bytes(chunk.first + part.first), slot(x_.rank, i) + x_.bytes(part.first),
           x_.bytes(part.count));
    }
    return Verdict::ok;
  }

 private:
  Board& board(int peer) const { return *x_.peers[size_t(peer)].board; }
  uint64_t round(int64_t i) const { return x_.base + uint64_t(i) + 1; }
  uint64_t place(int64_t i) const {
    return (x_.base + uint64_t(i)) % DirectPlan::slots(MeshGeometry::kAhead);
  }
  std::byte* slot(int peer, int64_t i) const {
    return x_.peers[size_t(peer)].slots + int64_t(place(i)) * MeshGeometry::kSlotBytes;
  }

  void publish(uint64_t& rounds, int64_t i) const {
    store_release(rounds, round(i));
    x_.wake_all();
  }
  Verdict await_staged(int peer, int64_t i) {
    if (peer == x_.rank) return Verdict::ok;
    Staged& staged = board(peer).staged;
    std::atomic_ref call(staged.calls[place(i)]);
    return await(peer, staged.rounds, i, [&] {
      return load_acquire(staged.rounds) >= round(i) &&
             call.load(std::memory_order_relaxed) == call_;
    });
  }
  template <class Ready>
  Verdict await(int peer, uint64_t& rounds, int64_t i, Ready&& ready) {
    return x_.await(peer, Protocol::simple, round(i), ready, [&] { return load_acquire(rounds); });
  }

  Context& x_;
  const uint64_t call_;
};

// ---- in place -----------------------------------------------------------------------------------

// A two_shot of tensors that are all in arenas. Whether they are, each rank knows of its own; so it
// shows where its tensor is, and looks at what the others do in this call. If one stages, all do.
class Mesh::InPlace {
 public:
  InPlace(Context& context, const Task& task)
      : x_(context), call_(call_word(task)), count_(task.count) {}

  // Whether all are in place, if `ok`.
  Verdict meet(int64_t place, bool& all) {
    Arrival& mine = x_.peers[size_t(x_.rank)].board->arrival;
    std::atomic_ref(mine.place).store(place, std::memory_order_relaxed);
    std::atomic_ref(mine.call).store(call_, std::memory_order_relaxed);
    store_release(mine.round, x_.base + 1);
    x_.wake_all();
    all = true;
    for (int p = 0; p < x_.ranks; ++p) {
      if (p == x_.rank) continue;
      Board& board = *x_.peers[size_t(p)].board;
      const std::atomic_ref call(board.arrival.call);
      const auto ready = [&] {
        return (load_acquire(board.arrival.round) > x_.base &&
                call.load(std::memory_order_relaxed) == call_) ||
               load_acquire(board.staged.rounds) > x_.base;
      };
      const Verdict verdict = x_.await(p, Protocol::simple, x_.base + 1, ready,
                                       [&] { return load_acquire(board.staged.rounds); });
      if (verdict != Verdict::ok) return verdict;
      all = all && load_acquire(board.arrival.round) > x_.base;
    }
    return Verdict::ok;
  }

  Verdict reduce(const Arenas& arenas) {
    const DirectPlan plan =
        DirectPlan::make(Algorithm::two_shot, x_.ranks, count_, int(x_.bytes(1)),
                         /*slot_bytes=*/x_.bytes(count_) + kMostPadding, /*channels=*/1, 0);
    const Span mine = plan.part_of(plan.chunk_of(0, 0), x_.rank);
    const int64_t at = x_.bytes(mine.first);
    std::byte* tensors[kMaxRanks];
    for (int p = 0; p < x_.ranks; ++p) tensors[p] = tensor_of(p, arenas) + at;
    const auto theirs = [&](int p) { return tensors[p]; };
    reduce_versions(x_, x_.out + at, true, theirs, theirs, mine.count);
    store_release(x_.peers[size_t(x_.rank)].board->reduced.value, x_.base + 1);
    x_.wake_all();
    for (int p = 0; p < x_.ranks; ++p) {
      if (p == x_.rank) continue;
      uint64_t& reduced = x_.peers[size_t(p)].board->reduced.value;
      const auto ready = [&] { return load_acquire(reduced) > x_.base; };
      const Verdict verdict = x_.await(p, Protocol::simple, x_.base + 1, ready,
                                       [&] { return load_acquire(reduced); });
      if (verdict != Verdict::ok) return verdict;
    }
    return Verdict::ok;
  }

 private:
  static constexpr int64_t kMostPadding = DirectPlan::kGrainBytes * kMaxRanks;

  std::byte* tensor_of(int p, const Arenas& arenas) {
    if (p == x_.rank) return x_.out;
    Peer& peer = x_.peers[size_t(p)];
    const int64_t bytes = x_.bytes(count_);
    // Read once: it is another's, who may write it again after it was checked.
    const int64_t place =
        std::atomic_ref(peer.board->arrival.place).load(std::memory_order_relaxed);
    if (place < 0 || place > INT64_MAX - bytes || p >= int(arenas.of.size()) ||
        arenas.of[size_t(p)] == nullptr)
      throw TransportError("rank " + std::to_string(p) + " names memory that it has not offered");
    if (place + bytes > peer.arena.bytes)
      peer.arena = arenas.of[size_t(p)]->view(place + bytes);
    return peer.arena.base + place;
  }

  Context& x_;
  const uint64_t call_;
  const int64_t count_;
};

// -------------------------------------------------------------------------------------------------

Verdict Mesh::run(const Task& task, const Reducer& reducer, Wait& wait, WaitReport& report) {
  const bool lines = task.protocol == Protocol::ll;
  const int ranks = int(peers_.size());
  uint64_t& rounds = lines ? line_rounds_ : rounds_;
  const DirectPlan plan = DirectPlan::make(
      task.algorithm, ranks, task.count, int(reducer.element_bytes()),
      lines ? MeshGeometry::line_slot_data() : MeshGeometry::kSlotBytes, /*channels=*/1,
      lines ? MeshGeometry::kLineAhead : MeshGeometry::kAhead);
  Context context{peers_, rank_, ranks, rounds, /*flag=*/0, reducer,
                  static_cast<const std::byte*>(task.in), static_cast<std::byte*>(task.out), wait,
                  report};
  // Counted before it is known which way the call goes: it is the same number for all.
  rounds += uint64_t(plan.rounds);
  const int64_t place = arenas_ == nullptr || arenas_->mine == nullptr ||
                                task.algorithm != Algorithm::two_shot || task.in != task.out ||
                                reducer.scales_input() || plan.rounds == 0
                            ? -1
                            : arenas_->mine->place_of(task.out, context.bytes(task.count));
  if (place >= 0) {
    InPlace mesh(context, task);
    bool all = false;
    const Verdict verdict = mesh.meet(place, all);
    if (verdict != Verdict::ok) return verdict;
    if (all) return mesh.reduce(*arenas_);
  }
  if (lines) {
    Lines mesh(context, task);
    return run_direct(plan, 0, mesh);
  }
  Slots mesh(context, task);
  return run_direct(plan, 0, mesh);
}

}  // namespace ringkern::cpu
