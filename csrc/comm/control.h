// The control page of a rank, mapped by all ranks of the ring. It holds everything that ranks share
// besides data: recent calls, heartbeat, departure, and the first failure.
//
// Only its own rank writes a page. The exception is the word on rank 0's page that names the first
// rank to fail: the first rank to claim it wins, so that all ranks give the same reason. Pages
// outlive their ranks: the record of a dead rank can still be read.
#pragma once

#include <time.h>

#include <atomic>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/memory_file.h"
#include "comm/process.h"
#include "core/call.h"
#include "core/config.h"
#include "fault/fault.h"

namespace ringkern {

// A call of a rank, as read from its page.
struct CallRecord {
  uint64_t seq = 0;
  CallWords words;
  int64_t started = 0, ended = 0;  // as in CallLine
  uint64_t history = 0;
  CallWords part_of{};  // as in Task

  bool alike(const CallRecord& other) const {
    return words == other.words && history == other.history;
  }
};

// Returns CLOCK_MONOTONIC in ns, up to some milliseconds old. Five times as fast as the exact
// clock.
inline int64_t coarse_now() {
  timespec t;
  ::clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
  return t.tv_sec * 1'000'000'000 + t.tv_nsec;
}

// The most ranks whose memory can be marked as unreachable.
inline constexpr int kMostProbed = 64;

// The part of a page by which ranks agree who goes on (comm/regroup.h).
struct alignas(kCacheLine) RegroupPage {
  static constexpr int kWords = kMaxRanks / 64;
  static constexpr size_t kMostAddress = 64;

  uint64_t state;  // on rank 0's page
  // A bit for each rank that this one excludes; its calls; 1 + the last round in which it arrived,
  // which is written after these, and in which it joined the new ring.
  uint64_t excluded[kWords];
  uint64_t completed, begun;
  uint64_t arrived, joined;
  // Its last proposal.
  uint64_t members[kWords];
  int64_t joiners;
  char address[kMostAddress];
};

// The keys of a PageStore, behind the page of a rank; allocated only when ranks agree who goes on.
struct RegroupNotes {
  static constexpr size_t kWords = 8190;

  uint64_t round;  // 1 + the round of these values; 0: none
  uint64_t used;   // words
  // For each key: the sizes of key and value, in the upper and the lower half; both, padded.
  uint64_t words[kWords];
};
// An entry of a hash table behind the notes, on the page of the rank that proposed a round. It is
// never used again: a rank that comes late may still add to it.
struct RegroupCounter {
  uint64_t key, sum;
};

class Control {
 public:
  // Throws SharedMemoryError, as does map(). A ring of one rank has no descriptor. `name` and
  // `names` (of the communicator and its ranks) are for messages.
  Control(int rank, int ranks, std::string name = {}, RankNames names = {});
  ~Control();
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  int fd() const { return file_ ? file_->fd() : -1; }
  // Does not keep the descriptor. Throws TransportError if it is not a control page.
  void map(int peer, int fd);
  // Returns a rank's lines; null until its page is mapped.
  const CallLine* calls_of(int rank) const;

  // Begins a call of this rank and returns its number. One thread at a time. `part_of`: as in Task.
  uint64_t begin(const CallWords& words, const CallWords& part_of = {}) {
    const uint64_t seq = seq_.load(std::memory_order_relaxed) + 1;
    CallLine& line = lines_[seq % kCallLines];
    const auto set = [](auto& word, auto value, std::memory_order order) {
      std::atomic_ref(word).store(value, order);
    };
    set(line.seq, uint64_t(0), std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
    set(line.what, words.what, std::memory_order_relaxed);
    set(line.count, words.count, std::memory_order_relaxed);
    set(line.started, ranks == 1 ? coarse_now() : now_.load(std::memory_order_relaxed),
        std::memory_order_relaxed);  // a ring of one rank has no watch that updates now_
    set(line.ended, int64_t(0), std::memory_order_relaxed);
    if (part_of.what != 0 || line.whole_what != 0) {  // avoids two stores in most calls
      set(line.whole_what, part_of.what, std::memory_order_relaxed);
      set(line.whole_count, part_of.count, std::memory_order_relaxed);
    }
    if (part_of.what != 0) history_ = history_of(history_, part_of);
    history_ = history_of(history_, words);
    set(line.history, history_, std::memory_order_relaxed);
    set(line.seq, seq, std::memory_order_release);
    seq_.store(seq, std::memory_order_release);
    return seq;
  }
  // Undoes the last begin(): the next call gets its number, as on the other ranks. `history`: its
  // value before that call.
  void withdraw(uint64_t history) {
    const uint64_t seq = seq_.load(std::memory_order_relaxed);
    std::atomic_ref(lines_[seq % kCallLines].seq).store(0, std::memory_order_release);
    history_ = history;
    seq_.store(seq - 1, std::memory_order_release);
  }
  uint64_t history() const { return history_; }  // includes the last begun call
  // Ends the call. `now`: coarse_now(), or 0 if the call was too short to read the clock.
  void end(int64_t now) {
    CallLine& line = lines_[seq_.load(std::memory_order_relaxed) % kCallLines];
    std::atomic_ref(line.ended).store(now != 0 ? now : line.started, std::memory_order_release);
  }

  // Ends all calls up to `seq`, which a device has completed. Called on the watch's thread.
  void end_through(uint64_t seq, int64_t now);

  // The functions below may be called from any thread.
  uint64_t last_seq() const { return seq_.load(std::memory_order_acquire); }
  // Returns the call `seq`, unless kCallLines calls have followed it.
  std::optional<CallRecord> call(int rank, uint64_t seq) const;
  // Returns the first call on a rank's page that has not ended.
  std::optional<CallRecord> open_call(int rank) const;
  // Returns the last calls, the oldest first. May lack a call that is being written.
  std::vector<CallRecord> last_calls(int rank, size_t most = kCallLines) const;

  // Records that this rank is alive and updates its clock; called periodically.
  void beat();
  int64_t last_beat_of(int rank) const;  // CLOCK_MONOTONIC, in ns
  // The process of a rank; 0 if it is not visible from here.
  Process process_of(int rank) const;
  int64_t pid_of(int rank) const { return process_of(rank).pid; }
  // Returns the part of a rank's page; only comm/regroup.cpp writes to it.
  RegroupPage& regrouping(int rank) const;
  // Only comm/page_store.cpp uses these, in rings of several ranks. Each rank allocates its own
  // before it tells the others that it has arrived, and throws SharedMemoryError if it cannot.
  void allocate_notes();
  RegroupNotes& notes_of(int rank) const;
  std::span<RegroupCounter> counters_of(int rank) const;
  // show_mapped() publishes the ranks whose own memory this rank has mapped, one bit each.
  // mapped_by() returns this set of another rank; nothing until it is published.
  void show_mapped(uint32_t ranks);
  std::optional<uint32_t> mapped_by(int rank) const;
  // Publishes that this rank has begun to probe its links. `out_of_reach`, by rank: ranks whose
  // memory it does not write to. `place`: where its own memory is.
  void begin_probe(const std::vector<bool>& out_of_reach, const std::string& place);
  bool has_begun_probe(int rank) const;
  // Valid for a rank that has begun to probe.
  bool reaches(int rank, int peer) const;
  std::string place_of(int rank) const;

  // Records that this rank leaves in an orderly way and makes no further call.
  void depart();
  // Returns the number of the last call of a rank that has left.
  std::optional<uint64_t> departed_after(int rank) const;

  // Records why the ring fails, unless a rank already has; returns true if this reason was
  // recorded. All ranks see the first reason.
  bool fail(const Fault& fault);
  bool failed() const {
    return first_to_fail_ != nullptr &&
           std::atomic_ref(*first_to_fail_).load(std::memory_order_acquire) != 0;
  }
  std::optional<Fault> failure() const;

  const int rank, ranks;
  const std::string name;
  const RankNames names;

 private:
  struct Page;

  int64_t bytes() const;

  std::optional<MemoryFile> file_;
  Mappings mappings_;
  Page* alone_ = nullptr;  // of a ring of one rank
  std::vector<Page*> pages_;
  uint64_t* first_to_fail_ = nullptr;  // on rank 0's page; null while that is not mapped
  CallLine* lines_ = nullptr;          // this rank's
  std::atomic<int64_t> now_{coarse_now()};
  std::atomic<uint64_t> seq_{0};
  uint64_t history_ = 0;
  std::mutex failing_;
};

}  // namespace ringkern
