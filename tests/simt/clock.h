// The happens-before order: vector clocks.
//
// Each thread counts its own time, which advances when it releases something (a barrier, a fence).
// A thread's knowledge is, for each other thread, the time up to which all of its actions happened
// before. Threads that left the same barrier have equal knowledge, so the vector is shared and
// never changed; a thread's own time is kept beside it.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

namespace simt {

using Tid = uint32_t;
inline constexpr int kMaxThreads = 8192;  // the host's included

// A point in the time of one thread. The default one precedes everything.
class Epoch {
 public:
  Epoch() = default;
  Epoch(Tid tid, uint32_t time) : bits_(tid << kTimeBits | time) {}
  Tid tid() const { return bits_ >> kTimeBits; }
  uint32_t time() const { return bits_ & kMaxTime; }
  bool happened() const { return bits_ != 0; }
  bool operator==(const Epoch&) const = default;

  static constexpr int kTimeBits = 19;
  static constexpr uint32_t kMaxTime = (1 << kTimeBits) - 1;

 private:
  uint32_t bits_ = 0;
};
static_assert(kMaxThreads <= 1 << (32 - Epoch::kTimeBits));

// Vectors of one length, counted and reused.
class ClockPool {
 public:
  struct Vector {
    uint32_t users = 0;
    ClockPool* pool = nullptr;
    std::vector<uint32_t> times;
  };
  ~ClockPool() {
    for (Vector* v : all_) delete v;
  }
  // Sets the number of threads; no vector may be in use.
  void reset(int threads) { threads_ = size_t(threads); }
  size_t threads() const { return threads_; }
  Vector* take() {
    if (free_.empty()) {
      all_.push_back(new Vector);
      all_.back()->pool = this;
      free_.push_back(all_.back());
    }
    Vector* v = free_.back();
    free_.pop_back();
    v->times.resize(threads_);
    return v;
  }
  void give(Vector* v) { free_.push_back(v); }

 private:
  size_t threads_ = 0;
  std::vector<Vector*> all_, free_;
};

// A shared, unchanging vector. Null: nothing is known.
class Clock {
 public:
  Clock() = default;
  explicit Clock(ClockPool::Vector* v) : v_(v) { ++v_->users; }
  Clock(const Clock& other) : v_(other.v_) {
    if (v_ != nullptr) ++v_->users;
  }
  Clock(Clock&& other) noexcept : v_(other.v_) { other.v_ = nullptr; }
  Clock& operator=(Clock other) noexcept {
    std::swap(v_, other.v_);
    return *this;
  }
  ~Clock() {
    if (v_ != nullptr && --v_->users == 0) v_->pool->give(v_);
  }
  uint32_t at(Tid tid) const { return v_ == nullptr ? 0 : v_->times[tid]; }
  bool operator==(const Clock& other) const { return v_ == other.v_; }
  explicit operator bool() const { return v_ != nullptr; }

 private:
  friend class Join;
  ClockPool::Vector* v_ = nullptr;
};

// The knowledge that a released value carries: all that its writer knew, and the writer's own time.
struct Message {
  Clock known;
  Epoch own;
  bool operator==(const Message&) const = default;
  explicit operator bool() const { return own.happened(); }
};

// Builds the union of several clocks.
class Join {
 public:
  explicit Join(ClockPool& pool) : pool_(pool) {}

  void add(const Clock& c) {
    if (!c || c == last_ || c == first_) return;
    if (!sum_ && !first_) {
      first_ = c;  // copied only when needed
      return;
    }
    last_ = c;
    own_copy();
    uint32_t* to = times();
    const uint32_t* from = c.v_->times.data();
    for (size_t i = 0, n = pool_.threads(); i < n; ++i) to[i] = to[i] > from[i] ? to[i] : from[i];
  }
  void add(Epoch e) {
    if (!e.happened() || (!sum_ && first_ && first_.at(e.tid()) >= e.time())) return;
    own_copy();
    uint32_t& t = times()[e.tid()];
    if (t < e.time()) t = e.time();
  }
  void add(const Message& m) { add(m.known), add(m.own); }

  Clock result() { return sum_ ? sum_ : first_; }

 private:
  uint32_t* times() { return sum_.v_->times.data(); }
  void own_copy() {
    if (sum_) return;
    sum_ = Clock(pool_.take());
    if (first_) std::memcpy(times(), first_.v_->times.data(), pool_.threads() * sizeof(uint32_t));
    else std::memset(times(), 0, pool_.threads() * sizeof(uint32_t));
  }

  ClockPool& pool_;
  Clock first_, last_, sum_;
};

}  // namespace simt
