#include "comm/control.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "comm/agreement.h"
#include "comm/process.h"

namespace ringkern {
namespace {

constexpr size_t kMostPlace = 64;
constexpr uint64_t kShown = uint64_t(1) << 63;

template <class T>
T load(const T& word, std::memory_order order = std::memory_order_relaxed) {
  return std::atomic_ref(const_cast<T&>(word)).load(order);
}
template <class T>
void store(T& word, T value, std::memory_order order = std::memory_order_relaxed) {
  std::atomic_ref(word).store(value, order);
}

// Each rank adds to about four counters in a round, and each death can begin another one.
int64_t counters_among(int ranks) { return std::max(1024, 64 * ranks); }

template <size_t N>
void write_text(char (&to)[N], const std::string& text) {
  std::memcpy(to, text.data(), std::min(text.size(), N - 1));
}
template <size_t N>
std::string read_text(const char (&from)[N]) {
  return printable(std::string(from, ::strnlen(from, N)), N);
}

}  // namespace

// A fault is written before its rank is named as the first to fail, and never again.
struct Control::Page {
  Process process;
  uint64_t pid_namespace;
  alignas(kCacheLine) int64_t last_beat;
  alignas(kCacheLine) uint64_t departed;       // 0: not yet; otherwise 1 + the number of its last
                                               // call
  alignas(kCacheLine) uint64_t first_to_fail;  // on rank 0's page: 0: no rank; otherwise 1 + the
                                               // rank
  struct Probe {
    uint64_t begun;         // written last
    uint64_t out_of_reach;  // one bit per rank
    char place[kMostPlace];
  };
  alignas(kCacheLine) Probe probe;
  uint64_t mapped;  // ranks whose memory is mapped, one bit each, and kShown
  RegroupPage regrouping;
  Fault fault;
  CallLine calls[kCallLines];
};

Control::Control(int my_rank, int of_ranks, std::string its_name, RankNames their_names)
    : rank(my_rank), ranks(of_ranks), name(std::move(its_name)), names(std::move(their_names)),
      pages_(size_t(of_ranks), nullptr) {
  Page* mine;
  if (ranks == 1) {
    mine = alone_ = new Page{};
  } else {
    file_.emplace(bytes());
    file_->allocate(0, sizeof(Page));
    mine = static_cast<Page*>(mappings_.map(file_->fd(), 0, bytes()));
  }
  mine->process = this_process();
  mine->pid_namespace = ringkern::pid_namespace();
  pages_[size_t(rank)] = mine;
  lines_ = mine->calls;
  beat();
  if (rank == 0) first_to_fail_ = &mine->first_to_fail;
}

Control::~Control() { delete alone_; }

int64_t Control::bytes() const {
  return int64_t(sizeof(Page) + sizeof(RegroupNotes)) +
         counters_among(ranks) * int64_t(sizeof(RegroupCounter));
}

void Control::map(int peer, int fd) {
  check_memory_of(peer, fd, bytes(), names);
  pages_[size_t(peer)] = static_cast<Page*>(
      mappings_.map(fd, 0, bytes(), "mmap of the control page of " + names.text(peer)));
  if (peer == 0) first_to_fail_ = &pages_[0]->first_to_fail;
}

const CallLine* Control::calls_of(int peer) const {
  return pages_[size_t(peer)] == nullptr ? nullptr : pages_[size_t(peer)]->calls;
}

std::optional<CallRecord> Control::call(int of, uint64_t seq) const {
  const CallLine& line = pages_[size_t(of)]->calls[seq % kCallLines];
  if (load(line.seq, std::memory_order_acquire) != seq || seq == 0) return {};
  CallRecord call{seq,
                  {load(line.what), load(line.count)},
                  load(line.started),
                  load(line.ended),
                  load(line.history),
                  {load(line.whole_what), load(line.whole_count)}};
  std::atomic_thread_fence(std::memory_order_acquire);
  if (load(line.seq) != seq) return {};
  return call;
}

std::vector<CallRecord> Control::last_calls(int of, size_t most) const {
  std::vector<CallRecord> calls;
  for (const CallLine& line : pages_[size_t(of)]->calls)
    if (const auto found = call(of, load(line.seq))) calls.push_back(*found);
  std::sort(calls.begin(), calls.end(),
            [](const CallRecord& a, const CallRecord& b) { return a.seq < b.seq; });
  if (calls.size() > most) calls.erase(calls.begin(), calls.end() - ptrdiff_t(most));
  return calls;
}

void Control::end_through(uint64_t seq, int64_t now) {
  for (int i = 0; i < kCallLines; ++i) {
    CallLine& line = lines_[i];
    const uint64_t found = load(line.seq, std::memory_order_acquire);
    int64_t open = 0;
    if (found == 0 || found > seq ||
        !std::atomic_ref(line.ended).compare_exchange_strong(open, now))
      continue;
    // A later call may have taken the line in the meantime.
    int64_t mine = now;
    if (load(line.seq, std::memory_order_seq_cst) != found)
      std::atomic_ref(line.ended).compare_exchange_strong(mine, 0);
  }
}

std::optional<CallRecord> Control::open_call(int of) const {
  for (const CallRecord& call : last_calls(of))
    if (call.ended == 0) return call;
  return {};
}

void Control::beat() {
  now_.store(coarse_now(), std::memory_order_relaxed);
  store(pages_[size_t(rank)]->last_beat, now_.load(std::memory_order_relaxed));
}
int64_t Control::last_beat_of(int of) const { return load(pages_[size_t(of)]->last_beat); }

Process Control::process_of(int of) const {
  const Page &theirs = *pages_[size_t(of)], &mine = *pages_[size_t(rank)];
  return theirs.pid_namespace == mine.pid_namespace ? theirs.process : Process{};
}

RegroupPage& Control::regrouping(int of) const { return pages_[size_t(of)]->regrouping; }

void Control::allocate_notes() {
  if (file_) file_->allocate(sizeof(Page), bytes() - int64_t(sizeof(Page)));
}
RegroupNotes& Control::notes_of(int of) const {
  return *reinterpret_cast<RegroupNotes*>(pages_[size_t(of)] + 1);
}
std::span<RegroupCounter> Control::counters_of(int of) const {
  return {reinterpret_cast<RegroupCounter*>(&notes_of(of) + 1), size_t(counters_among(ranks))};
}

void Control::show_mapped(uint32_t of) {
  store(pages_[size_t(rank)]->mapped, kShown | of, std::memory_order_release);
}
std::optional<uint32_t> Control::mapped_by(int of) const {
  const uint64_t word = load(pages_[size_t(of)]->mapped, std::memory_order_acquire);
  if ((word & kShown) == 0) return {};
  return uint32_t(word);
}

void Control::begin_probe(const std::vector<bool>& out_of_reach, const std::string& place) {
  Page::Probe& mine = pages_[size_t(rank)]->probe;
  static_assert(kMostProbed <= 64);
  uint64_t bits = 0;
  for (size_t peer = 0; peer < out_of_reach.size() && peer < kMostProbed; ++peer)
    bits |= uint64_t(out_of_reach[peer]) << peer;
  store(mine.out_of_reach, bits);
  write_text(mine.place, place);
  store(mine.begun, uint64_t(1), std::memory_order_release);
}
bool Control::has_begun_probe(int of) const {
  return load(pages_[size_t(of)]->probe.begun, std::memory_order_acquire) != 0;
}
bool Control::reaches(int of, int peer) const {
  if (peer >= kMostProbed) return true;
  return (load(pages_[size_t(of)]->probe.out_of_reach) >> peer & 1) == 0;
}
std::string Control::place_of(int of) const { return read_text(pages_[size_t(of)]->probe.place); }

void Control::depart() {
  store(pages_[size_t(rank)]->departed, last_seq() + 1, std::memory_order_release);
}

std::optional<uint64_t> Control::departed_after(int of) const {
  const uint64_t word = load(pages_[size_t(of)]->departed, std::memory_order_acquire);
  if (word == 0) return {};
  return word - 1;
}

bool Control::fail(const Fault& fault) {
  std::lock_guard lock(failing_);
  Fault& mine = pages_[size_t(rank)]->fault;
  if (mine.event == Event::none) mine = fault;
  uint64_t nobody = 0;
  return std::atomic_ref(pages_[0]->first_to_fail)
      .compare_exchange_strong(nobody, uint64_t(rank) + 1, std::memory_order_acq_rel);
}

std::optional<Fault> Control::failure() const {
  const uint64_t first = load(pages_[0]->first_to_fail, std::memory_order_acquire);
  if (first == 0 || first > uint64_t(ranks)) return {};
  return checked(pages_[size_t(first) - 1]->fault);
}

}  // namespace ringkern
