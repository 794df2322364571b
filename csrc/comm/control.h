// What the ranks of a ring tell each other besides data, each on a page of its own that all have
// mapped: their last calls, that they are alive, that they have left, and who was first to fail.
//
// A word has one writer, its rank; but the one that says who was first to fail, on rank 0's page,
// goes to whoever comes first, so that all ranks give the same reason. The pages outlive their
// ranks: what a rank wrote before it died can be read.
#pragma once

#include <time.h>

#include <atomic>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/memory_file.h"
#include "core/call.h"
#include "fault/fault.h"

namespace ringkern {

// A call of a rank, as far as it can be read.
struct Call {
  uint64_t seq = 0;
  CallWords words;
  int64_t started = 0, ended = 0;  // as in CallLine
  uint64_t history = 0;
  CallWords part_of{};  // as in Task

  bool alike(const Call& other) const { return words == other.words && history == other.history; }
};

// CLOCK_MONOTONIC, in ns, some milliseconds behind: five times as quick as the exact one.
inline int64_t coarse_now() {
  timespec t;
  ::clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
  return t.tv_sec * 1'000'000'000 + t.tv_nsec;
}

// So many ranks' memory can be marked as out of reach.
inline constexpr int kMostProbed = 64;

class Control {
 public:
  // Throws SharedMemoryError, as map(). A ring of one rank has no descriptor.
  // `name`: the communicator's, and `names`: its ranks', for messages.
  Control(int rank, int ranks, std::string name = {}, RankNames names = {});
  ~Control();
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  int fd() const { return file_ ? file_->fd() : -1; }
  // Does not keep the descriptor. Throws TransportError unless it is a page.
  void map(int peer, int fd);
  // A rank's lines; null while it has not been mapped.
  const CallLine* calls_of(int rank) const;

  // A call of this rank begins, and is over; returns its number. One thread at a time. `part_of`:
  // as in Task.
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
        std::memory_order_relaxed);  // alone it has no watch
    set(line.ended, int64_t(0), std::memory_order_relaxed);
    if (part_of.what != 0 || line.whole_what != 0) {  // most calls: two stores less
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
  // The call that has begun last was not made: the next one has its number, as on the other ranks.
  // `history`: from before it.
  void withdraw(uint64_t history) {
    const uint64_t seq = seq_.load(std::memory_order_relaxed);
    std::atomic_ref(lines_[seq % kCallLines].seq).store(0, std::memory_order_release);
    history_ = history;
    seq_.store(seq - 1, std::memory_order_release);
  }
  uint64_t history() const { return history_; }  // of the call that has begun last
  // `now`: coarse_now(), or 0: it has taken no time that is worth a look at the clock.
  void end(int64_t now) {
    CallLine& line = lines_[seq_.load(std::memory_order_relaxed) % kCallLines];
    std::atomic_ref(line.ended).store(now != 0 ? now : line.started, std::memory_order_release);
  }

  // The same for calls up to that one, which a device has shown to be done. The watch's thread.
  void end_through(uint64_t seq, int64_t now);

  // The rest from any thread.
  uint64_t last_seq() const { return seq_.load(std::memory_order_acquire); }
  // That call, unless kCallLines have followed.
  std::optional<Call> call(int rank, uint64_t seq) const;
  // The first call that a rank has not ended, of those that it shows.
  std::optional<Call> open_call(int rank) const;
  // The last calls, the oldest first; may lack what is just being written.
  std::vector<Call> last_calls(int rank, size_t most = kCallLines) const;

  // Now and then, to show that this rank is alive, and to know the time.
  void beat();
  int64_t last_beat_of(int rank) const;  // CLOCK_MONOTONIC, in ns
  int64_t pid_of(int rank) const;        // 0 where it is no process that this one can see
  // Shows whose own memory this rank has mapped, a bit for each; returns what another one shows,
  // once it does.
  void show_mapped(uint32_t ranks);
  std::optional<uint32_t> mapped_by(int rank) const;
  // This rank has begun to probe its links; `out_of_reach`, by rank: those whose memory it does not
  // write to. `place`: where its own is.
  void begin_probe(const std::vector<bool>& out_of_reach, const std::string& place);
  bool has_begun_probe(int rank) const;
  // Of a rank that has.
  bool reaches(int rank, int peer) const;
  std::string place_of(int rank) const;

  // This rank leaves in an orderly way: it makes no call after its last.
  void depart();
  // The last call of a rank that has departed.
  std::optional<uint64_t> departed_after(int rank) const;

  // Posts why the ring fails, unless a rank has; returns whether it did. All ranks see the first.
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

  std::optional<MemoryFile> file_;
  Mappings mappings_;
  Page* alone_ = nullptr;  // of a ring of one rank
  std::vector<Page*> pages_;
  uint64_t* first_to_fail_ = nullptr;  // on rank 0's page; null while that is not mapped
  CallLine* lines_ = nullptr;          // mine
  std::atomic<int64_t> now_{coarse_now()};
  std::atomic<uint64_t> seq_{0};
  uint64_t history_ = 0;
  std::mutex failing_;
};

}  // namespace ringkern
