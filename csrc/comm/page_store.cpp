#include "comm/page_store.h"

#include <algorithm>
#include <atomic>
#include <span>
#include <thread>
#include <utility>

namespace ringkern {
namespace {

constexpr std::chrono::microseconds kFirstPause{50}, kLongestPause{2000};
// The interval at which a rank checks whether the others are alive.
constexpr Milliseconds kLookEvery{5};

uint64_t load(const uint64_t& word) {
  return std::atomic_ref(const_cast<uint64_t&>(word)).load(std::memory_order_acquire);
}
void store(uint64_t& word, uint64_t value) {
  std::atomic_ref(word).store(value, std::memory_order_release);
}

size_t words_of(size_t bytes) { return (bytes + 7) / 8; }

// Another rank may read while these words are written: it discards what it has read.
void write(std::span<uint64_t> to, const std::string& text) {
  for (size_t i = 0; i < words_of(text.size()); ++i) {
    uint64_t word = 0;
    std::memcpy(&word, text.data() + 8 * i, std::min<size_t>(8, text.size() - 8 * i));
    std::atomic_ref(to[i]).store(word, std::memory_order_relaxed);
  }
}
std::string read(std::span<const uint64_t> from, size_t bytes) {
  std::string text(8 * words_of(bytes), 0);
  for (size_t i = 0; i < words_of(bytes); ++i) {
    const uint64_t word = load(from[i]);
    std::memcpy(text.data() + 8 * i, &word, 8);
  }
  text.resize(bytes);
  return text;
}

// FNV-1a. Never 0, which marks a counter that is not in use.
uint64_t hash_of(const std::string& key, uint64_t round) {
  uint64_t hash = 0xcbf29ce484222325 ^ round;
  for (const char c : key) hash = (hash ^ uint8_t(c)) * 0x100000001b3;
  return hash | 1;
}

}  // namespace

PageStore::PageStore(std::shared_ptr<Control> control, Regroup::Round round)
    : control_(std::move(control)), round_(std::move(round)), regroup_(*control_) {
  if (control_->ranks == 1) return;
  RegroupNotes& own = control_->notes_of(control_->rank);
  store(own.round, 0);
  store(own.used, 0);
  store(own.round, round_.number + 1);
}

void PageStore::check_round() {
  const bool closer = Clock::now() >= next_look_;
  if (closer) next_look_ = Clock::now() + kLookEvery;
  regroup_.check(round_, closer);
}

void PageStore::set(const std::string& key, const std::string& value) {
  std::lock_guard lock(mutex_);
  RegroupNotes& own = control_->notes_of(control_->rank);
  const uint64_t used = load(own.used),
                 end = used + 1 + words_of(key.size()) + words_of(value.size());
  if (end > RegroupNotes::kWords)
    throw RendezvousError("'" + key + "', " + std::to_string(value.size()) +
                          " bytes, does not fit on the page on which " +
                          control_->names.text(control_->rank) + " tells it to the others");
  const std::span<uint64_t> words(own.words);
  std::atomic_ref(words[used]).store(uint64_t(key.size()) << 32 | value.size());
  write(words.subspan(used + 1), key);
  write(words.subspan(used + 1 + words_of(key.size())), value);
  store(own.used, end);
}

std::optional<std::string> PageStore::find_in(int rank, const std::string& key) const {
  const RegroupNotes& notes = control_->notes_of(rank);
  const std::span<const uint64_t> words(notes.words,
                                        std::min<uint64_t>(load(notes.used), RegroupNotes::kWords));
  for (size_t at = 0; at < words.size();) {
    const uint64_t sizes = load(words[at]);
    const size_t key_bytes = sizes >> 32, bytes = sizes & 0xffffffff;
    const size_t value_at = at + 1 + words_of(key_bytes), end = value_at + words_of(bytes);
    if (end > words.size()) return {};  // its rank has begun anew
    if (key_bytes == key.size() && read(words.subspan(at + 1), key_bytes) == key) {
      std::string value = read(words.subspan(value_at), bytes);
      if (load(notes.round) != round_.number + 1) return {};
      return value;
    }
    at = end;
  }
  return {};
}

std::optional<std::string> PageStore::find(const std::string& key) {
  std::lock_guard lock(mutex_);
  check_round();
  for (const int rank : round_.members)
    if (auto found = find_in(rank, key)) return found;
  return {};
}

std::string PageStore::get(const std::string& key, Milliseconds timeout) {
  const auto end = Clock::now() + timeout;
  for (auto pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
    if (auto found = find(key)) return *std::move(found);
    const auto now = Clock::now();
    if (now >= end) throw TimeoutError("no rank has told '" + key + "' within the time");
    std::this_thread::sleep_for(std::min<Clock::duration>(pause, end - now));
  }
}

uint64_t& PageStore::counter(const std::string& key) {
  const uint64_t hash = hash_of(key, round_.number);
  const std::span<RegroupCounter> counters = control_->counters_of(round_.proposer);
  for (size_t i = 0; i < counters.size(); ++i) {
    RegroupCounter& at = counters[(hash + i) % counters.size()];
    uint64_t found = load(at.key);
    if (found == 0 && std::atomic_ref(at.key).compare_exchange_strong(found, hash)) return at.sum;
    if (found == hash) return at.sum;
  }
  throw RendezvousError("the ranks that are left have begun again too often");
}

int64_t PageStore::add(const std::string& key, int64_t amount) {
  std::lock_guard lock(mutex_);
  check_round();
  return int64_t(std::atomic_ref(counter(key)).fetch_add(uint64_t(amount)) + uint64_t(amount));
}

}  // namespace ringkern
