// The library's own sources on Relacy: `std::atomic_ref`, fences, futexes and copies of shared data
// become Relacy's. It runs ranks as threads in every requested order, lets a load return any value
// that the C++ memory model allows, and reports races, deadlocks and failed checks.
//
// Include it before any header of the library. All other code of these sources, such as private
// words and arithmetic, runs unchanged: Relacy's threads are fibers of one thread.
#pragma once

// The standard headers of the sources, included before their names are redefined.
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wall"
#pragma GCC diagnostic ignored "-Wextra"
#pragma GCC diagnostic ignored "-Wpedantic"
// Relacy replaces operator new to follow the heap, which is not under test here; this answers that
// no model runs.
#include <relacy/base.hpp>
#include <relacy/thread_local_ctx.hpp>

#include <relacy/context_base.hpp>
namespace rl {
inline bool follows_heap() { return false; }
}  // namespace rl
#define is_ctx follows_heap
// Relacy's own threads and semaphores are off, too: they are macros with the system's names.
#define RL_PTHREAD_HPP
#define RL_WINDOWS_HPP
#include <relacy/relacy.hpp>
#undef is_ctx
#pragma GCC diagnostic pop
#undef new
#undef delete
#undef malloc
#undef calloc
#undef realloc
#undef free
#undef assert
#undef errno
#undef memory_order_relaxed
#undef memory_order_consume
#undef memory_order_acquire
#undef memory_order_release
#undef memory_order_acq_rel
#undef memory_order_seq_cst

namespace model {

// Weakens one place of the code, to check that the model detects it.
struct Plant {
  enum Kind {
    none,
    relaxed_store,
    relaxed_load,
    no_store,
    no_comparison,
    no_fence,
    no_wake
  } kind = none;
  std::string word;  // the word that is stored or loaded
  int thread = -1;   // only in this thread; -1: in all
};
inline Plant plant;
inline bool planted(Plant::Kind kind, const char* word = "") {
  return plant.kind == kind && plant.word == word &&
         (plant.thread < 0 || plant.thread == int(rl::thread_index()));
}

inline rl::debug_info at(const char* file, int line) { return {"", file, unsigned(line)}; }

// A word that several threads access atomically. Everything is recreated for each run.
class Words {
 public:
  static constexpr size_t kMost = 1024;

  // From now on, an access creates the word that it meets, with this name.
  void begin(const char* name) {
    name_ = name;
    making_ = true;
  }
  void end() { making_ = false; }
  void clear() {
    for (size_t i = 0; i < count_; ++i) std::destroy_at(value(i));
    count_ = 0;
  }
  // Called after a failed run, whose words belong to a destroyed Relacy.
  void forget() { count_ = 0; }

  struct Word {
    const void* place;
    const char* name;
    rl::atomic<uint64_t>* value;
  };
  Word find(const void* place, uint64_t now) {
    for (size_t i = 0; i < count_; ++i)
      if (places_[i] == place) return {place, names_[i], value(i)};
    if (!making_ || count_ == kMost)
      rl::ctx().fail_test("a word that the model does not know", rl::test_result_user_assert_failed,
                          RL_INFO);
    places_[count_] = place;
    names_[count_] = name_;
    ::new (value(count_)) rl::atomic<uint64_t>;
    value(count_)->store(now, rl::mo_relaxed, RL_INFO);
    return {place, name_, value(count_++)};
  }

 private:
  rl::atomic<uint64_t>* value(size_t i) {
    return reinterpret_cast<rl::atomic<uint64_t>*>(memory_ + i * sizeof(rl::atomic<uint64_t>));
  }

  const void* places_[kMost];
  const char* names_[kMost];
  alignas(64) char memory_[kMost * sizeof(rl::atomic<uint64_t>)];
  size_t count_ = 0;
  const char* name_ = "";
  bool making_ = false;
};
inline Words words;

// Shared data that is not atomic: a copy from or to a registered place accesses it, and two
// unordered accesses are a race. A place stands for all that is copied from there.
class Data {
 public:
  static constexpr size_t kMost = 256;

  void add(const void* place) {
    places_[count_] = place;
    ::new (var(count_)) rl::var<int>;
    var(count_++)->operator()(RL_INFO).store(0);
  }
  void clear() {
    for (size_t i = 0; i < count_; ++i) std::destroy_at(var(i));
    count_ = 0;
  }
  void forget() { count_ = 0; }
  void read(const void* place) {
    if (rl::var<int>* v = find(place)) (void)(*v)(RL_INFO).load();
  }
  void write(const void* place) {
    if (rl::var<int>* v = find(place)) (*v)(RL_INFO).store(0);
  }

 private:
  rl::var<int>* find(const void* place) {
    for (size_t i = 0; i < count_; ++i)
      if (places_[i] == place) return var(i);
    return nullptr;
  }
  rl::var<int>* var(size_t i) {
    return reinterpret_cast<rl::var<int>*>(memory_ + i * sizeof(rl::var<int>));
  }

  const void* places_[kMost];
  alignas(64) char memory_[kMost * sizeof(rl::var<int>)];
  size_t count_ = 0;
};
inline Data data;

// Called by a test before its threads start, and after they have ended.
inline void begin() {
  words.forget();
  data.forget();
}
inline void end() {
  words.clear();
  data.clear();
}

// Convert the standard's names to Relacy's.
inline rl::memory_order order_of(std::memory_order o) {
  switch (o) {
    case std::memory_order_relaxed: return rl::mo_relaxed;
    case std::memory_order_consume:
    case std::memory_order_acquire: return rl::mo_acquire;
    case std::memory_order_release: return rl::mo_release;
    case std::memory_order_acq_rel: return rl::mo_acq_rel;
    case std::memory_order_seq_cst: return rl::mo_seq_cst;
  }
  return rl::mo_seq_cst;
}

template <class T>
class AtomicRef {
 public:
  explicit AtomicRef(T& word) : word_(word) {}

  T load(std::memory_order order, const char* file = __builtin_FILE(),
         int line = __builtin_LINE()) const {
    const auto w = find();
    if (planted(Plant::relaxed_load, w.name)) order = std::memory_order_relaxed;
    return T(w.value->load(order_of(order), at(file, line)));
  }
  // The plain word follows: its own rank may read it without an atomic access.
  void store(T value, std::memory_order order, const char* file = __builtin_FILE(),
             int line = __builtin_LINE()) const {
    const auto w = find();
    if (planted(Plant::no_store, w.name)) return;
    if (planted(Plant::relaxed_store, w.name)) order = std::memory_order_relaxed;
    w.value->store(uint64_t(value), order_of(order), at(file, line));
    word_ = value;
  }
  T fetch_add(T value, std::memory_order order, const char* file = __builtin_FILE(),
              int line = __builtin_LINE()) const {
    const auto w = find();
    if (planted(Plant::no_store, w.name)) value = 0;
    if (planted(Plant::relaxed_store, w.name)) order = std::memory_order_relaxed;
    const T before = T(w.value->fetch_add(uint64_t(value), order_of(order), at(file, line)));
    word_ = T(before + value);
    return before;
  }
  bool compare_exchange_strong(T& expected, T wanted,
                               std::memory_order order = std::memory_order_seq_cst,
                               const char* file = __builtin_FILE(),
                               int line = __builtin_LINE()) const {
    const auto w = find();
    if (planted(Plant::relaxed_store, w.name)) order = std::memory_order_relaxed;
    uint64_t seen = expected;
    bool won =
        w.value->compare_exchange_strong(seen, uint64_t(wanted), order_of(order), at(file, line));
    if (!won && planted(Plant::no_comparison, w.name)) {
      w.value->store(uint64_t(wanted), rl::mo_release, at(file, line));
      won = true;
    }
    if (won) word_ = wanted;
    else expected = T(seen);
    return won;
  }

 private:
  Words::Word find() const { return words.find(&word_, uint64_t(word_)); }

  T& word_;
};

inline void fence(std::memory_order order, const char* file = __builtin_FILE(),
                  int line = __builtin_LINE()) {
  if (planted(Plant::no_fence)) return;
  rl::atomic_thread_fence(order_of(order), at(file, line));
}

// A futex without a time limit, so that a lost wake-up is a deadlock. Like the kernel, it compares
// with the word's last value and queues in one step.
inline long futex(long, uint32_t* word, int operation, long value, const timespec*, void*, int) {
  const auto w = words.find(word, *word);
  if (operation == FUTEX_WAIT) {
    if (w.value->fetch_add(0, rl::mo_relaxed, RL_INFO) == uint64_t(value))
      w.value->wait(rl::ctx(), /*is_timed=*/false, /*allow_spurious_wakeup=*/false, RL_INFO);
  } else if (!planted(Plant::no_wake)) {
    w.value->wake(rl::ctx(), 100, RL_INFO);
  }
  return 0;
}
// Replaces the futex of sleep_while() and wake_all(), which no model calls.
inline long futex(long, std::atomic<uint32_t>*, int, long, void*, void*, int) { return 0; }
// sched_getattr and sched_setattr: a model's threads have no time slices.
template <class Attributes>
long futex(long, int, Attributes*, size_t, int) {
  return -1;
}
template <class Attributes>
long futex(long, int, Attributes*, int) {
  return -1;
}

inline void* copy(void* to, const void* from, size_t bytes) {
  data.read(from);
  data.write(to);
  return std::memcpy(to, from, bytes);
}

inline void check(bool condition, const char* what) {
  if (!condition) rl::ctx().fail_test(what, rl::test_result_user_assert_failed, RL_INFO);
}

}  // namespace model

namespace std {
template <class T>
using model_atomic_ref = model::AtomicRef<T>;
inline constexpr auto model_fence = [](memory_order order, const char* file = __builtin_FILE(),
                                       int line = __builtin_LINE()) {
  model::fence(order, file, line);
};
inline constexpr auto model_copy = [](void* to, const void* from, size_t bytes) {
  return model::copy(to, from, bytes);
};
}  // namespace std

#define atomic_ref model_atomic_ref
#define atomic_thread_fence model_fence
#define memcpy model_copy
#define syscall model::futex
