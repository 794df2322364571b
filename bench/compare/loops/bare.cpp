// Bare data movement: the limit that the benchmark shows, as a library in C.
//
// The time of an all-reduce of two ranks that only moves its bytes: float32 sums in place, in five
// designs, without deadline, abort, sleep or check. A rank whose neighbour dies waits for ever, and
// the benchmark ends it. The benchmark runs it beside the contenders, so that a time can be read as
// a share of what this machine allows at this moment.
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>

#include "timing.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

#define RK_MOVEMENTS(X) \
  X(flag_in_line)       \
  X(one_shot)           \
  X(scatter_gather)     \
  X(scatter_gather_c)   \
  X(shared)

// flag_in_line: lines of 64 bytes, 56 of data and a flag of 8, one journey; both ranks add it all.
// one_shot: a chunk to the own slot, a counter, and the other's chunk is added; pipelined.
// scatter_gather: half of a chunk to the own slot; the other rank adds its own to it, in place and
//   in the tensor, and the result is copied out of the slot.
// scatter_gather_c: the same with the C library's memcpy, which on some processors overwrites lines
//   without fetching them first.
// shared: both tensors are in shared memory; each rank writes its half of the sum to both.
enum class Movement : uint8_t {
#define RK_MOVEMENT(name) name,
  RK_MOVEMENTS(RK_MOVEMENT)
#undef RK_MOVEMENT
};

// One of two ranks, each a process pinned to a core of its own.
class Bare {
 public:
  static constexpr int64_t kLongestChunk = 256 << 10;  // bytes of one slot
  // Bytes of a tensor that flag_in_line takes.
  static constexpr int64_t kLongestInLines = 512 << 10;

  // Bytes of the memory file that both ranks map; all zero at first.
  static int64_t file_bytes();

  // `rank`: 0 or 1. `memory`: the memory file, mapped.
  Bare(int rank, char* memory);

  // Sums `count` floats of both ranks in place. `theirs`: the other rank's tensor, for `shared`;
  // else ignored. `chunk`: bytes, up to kLongestChunk and a multiple of kChunkGrain, for one_shot
  // and both of scatter_gather; else ignored. Both ranks make the same calls, or wait for ever.
  void all_reduce(Movement movement, float* mine, float* theirs, int64_t count, int64_t chunk);

  // A cache line there and back between the two cores, in ns: the best of a few hundred rounds.
  // Both ranks call it.
  double round_trip_ns();

  static constexpr int64_t kChunkGrain = 128;

 private:
  struct Shared;

  char* slot(Movement movement, int rank, uint64_t chunk) const;
  void in_lines(float* mine, int64_t count);
  void one_shot(float* mine, int64_t count, int64_t chunk);
  void scatter_gather(Movement movement, float* mine, int64_t count, int64_t chunk);
  void in_shared(float* mine, float* theirs, int64_t count);

  int rank_;
  Shared* shared_;
  char* lines_;
  char* slots_;
  // Calls and chunks so far: the same on both ranks, and never reset.
  uint64_t exchanges_ = 0;
  uint64_t one_shots_ = 0;
  uint64_t halves_ = 0;
  uint64_t meetings_ = 0;
  uint64_t rounds_ = 0;
};

constexpr int64_t kLine = 64;
constexpr int64_t kPayload = 56;
constexpr int kSlots = 4;                                          // a rank and movement
constexpr int64_t kSlotsBytes = 2 * kSlots * Bare::kLongestChunk;  // of a movement, both ranks
// Sizes of one rank's data in a call; and of both ranks' in two calls.
constexpr int64_t kCallLines = (Bare::kLongestInLines + kPayload - 1) / kPayload * kLine;
constexpr int64_t kLinesBytes = 2 * 2 * kCallLines;

// A counter with one writer; its neighbour in memory is fetched along with it on many CPUs.
struct alignas(128) Counter {
  uint64_t value;

  void publish(uint64_t to) { std::atomic_ref(value).store(to, std::memory_order_release); }
  void await(uint64_t at_least) {
    while (std::atomic_ref(value).load(std::memory_order_acquire) < at_least) {
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
  }
};

// ---- the loops: once as any compiler has them, once for AVX-512 ---------------------------------
// Sums are left to one of the two ranks or are commutative: both orders give the same bits.

struct Plain {
  static void copy(void* to, const void* from, int64_t bytes) {
    std::memcpy(to, from, size_t(bytes));
  }
  static void add(float* to, const float* from, int64_t n) {
    for (int64_t i = 0; i < n; ++i) to[i] += from[i];
  }
  // Both become the sum.
  static void add_both(float* a, float* b, int64_t n) {
    for (int64_t i = 0; i < n; ++i) a[i] = b[i] = a[i] + b[i];
  }
  static void put_lines(char* to, const float* from, int64_t n, uint64_t flag) {
    constexpr int64_t kFloats = kPayload / int64_t(sizeof(float));
    for (; n > 0; n -= kFloats, from += kFloats, to += kLine) {
      std::memcpy(to, from, size_t(std::min(n, kFloats)) * sizeof(float));
      std::atomic_ref(reinterpret_cast<uint64_t&>(to[kPayload]))
          .store(flag, std::memory_order_release);
    }
  }
  static void add_lines(float* to, char* from, int64_t n, uint64_t flag) {
    constexpr int64_t kFloats = kPayload / int64_t(sizeof(float));
    for (; n > 0; n -= kFloats, to += kFloats, from += kLine) {
      std::atomic_ref arrived(reinterpret_cast<uint64_t&>(from[kPayload]));
      while (arrived.load(std::memory_order_acquire) != flag) {
      }
      add(to, reinterpret_cast<const float*>(from), std::min(n, kFloats));
    }
  }
};

#if defined(__x86_64__)
#define RK_WIDE __attribute__((target("avx512f,avx512dq")))

// A line is stored and loaded whole. No manual promises that it is seen whole; the CPUs that have
// been tried behave so, and the benchmark checks every result.
struct Wide {
  RK_WIDE static void copy(void* to, const void* from, int64_t bytes) {
    auto* out = static_cast<char*>(to);
    auto* in = static_cast<const char*>(from);
    int64_t i = 0;
    for (; i + 256 <= bytes; i += 256) {
      const __m512i a = _mm512_loadu_si512(in + i), b = _mm512_loadu_si512(in + i + 64);
      const __m512i c = _mm512_loadu_si512(in + i + 128), d = _mm512_loadu_si512(in + i + 192);
      _mm512_storeu_si512(out + i, a);
      _mm512_storeu_si512(out + i + 64, b);
      _mm512_storeu_si512(out + i + 128, c);
      _mm512_storeu_si512(out + i + 192, d);
    }
    std::memcpy(out + i, in + i, size_t(bytes - i));
  }
  RK_WIDE static void add(float* to, const float* from, int64_t n) {
    int64_t i = 0;
    for (; i + 64 <= n; i += 64)
      for (int64_t j = i; j < i + 64; j += 16)
        _mm512_storeu_ps(to + j, _mm512_add_ps(_mm512_loadu_ps(to + j), _mm512_loadu_ps(from + j)));
    Plain::add(to + i, from + i, n - i);
  }
  RK_WIDE static void add_both(float* a, float* b, int64_t n) {
    int64_t i = 0;
    for (; i + 64 <= n; i += 64)
      for (int64_t j = i; j < i + 64; j += 16) {
        const __m512 sum = _mm512_add_ps(_mm512_loadu_ps(a + j), _mm512_loadu_ps(b + j));
        _mm512_storeu_ps(a + j, sum);
        _mm512_storeu_ps(b + j, sum);
      }
    Plain::add_both(a + i, b + i, n - i);
  }
  RK_WIDE static __mmask16 floats(int64_t n) { return n >= 14 ? 0x3fff : __mmask16((1 << n) - 1); }
  RK_WIDE static void put_lines(char* to, const float* from, int64_t n, uint64_t flag) {
    const __m512i flags = _mm512_set1_epi64(int64_t(flag));
    for (; n > 0; n -= 14, from += 14, to += kLine)
      _mm512_store_si512(to, _mm512_mask_loadu_epi32(flags, floats(n), from));
  }
  RK_WIDE static void add_lines(float* to, char* from, int64_t n, uint64_t flag) {
    const __m512i flags = _mm512_set1_epi64(int64_t(flag));
    for (; n > 0; n -= 14, to += 14, from += kLine) {
      __m512i line;
      do {
        line = _mm512_load_si512(from);
        asm volatile("" ::: "memory");  // loaded anew each time
      } while (!(_mm512_cmpeq_epi64_mask(line, flags) & 0x80));
      const __mmask16 used = floats(n);
      const __m512 mine = _mm512_maskz_loadu_ps(used, to);
      _mm512_mask_storeu_ps(to, used, _mm512_add_ps(mine, _mm512_castsi512_ps(line)));
    }
  }
};
#undef RK_WIDE

bool wide() {
  static const bool has = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq");
  return has;
}
#define RK_LOOP(name, ...) (wide() ? Wide::name(__VA_ARGS__) : Plain::name(__VA_ARGS__))
#else
#define RK_LOOP(name, ...) Plain::name(__VA_ARGS__)
#endif

struct Bare::Shared {
  Counter staged[2], taken[2];   // one_shot
  Counter sent[2], returned[2];  // scatter_gather
  Counter arrived[2];            // shared
  Counter ball[2];               // round_trip_ns
};

int64_t Bare::file_bytes() {
  constexpr int64_t kPage = 4096;
  const int64_t bytes = 2 * kSlotsBytes + kLinesBytes + int64_t(sizeof(Shared));
  return (bytes + kPage - 1) / kPage * kPage;
}

Bare::Bare(int rank, char* memory) : rank_(rank), slots_(memory) {
  lines_ = slots_ + 2 * kSlotsBytes;
  shared_ = reinterpret_cast<Shared*>(lines_ + kLinesBytes);
}

void Bare::all_reduce(Movement movement, float* mine, float* theirs, int64_t count, int64_t chunk) {
  switch (movement) {
    case Movement::flag_in_line: return in_lines(mine, count);
    case Movement::one_shot: return one_shot(mine, count, chunk);
    case Movement::scatter_gather:
    case Movement::scatter_gather_c: return scatter_gather(movement, mine, count, chunk);
    case Movement::shared: return in_shared(mine, theirs, count);
  }
}

double Bare::round_trip_ns() {
  using Clock = std::chrono::steady_clock;
  constexpr int kTries = 5, kRounds = 100;
  double best = 1e12;
  Counter &mine = shared_->ball[rank_], &theirs = shared_->ball[1 - rank_];
  // Without a pause, which takes longer than the journey.
  const auto await = [&](uint64_t round) {
    while (std::atomic_ref(theirs.value).load(std::memory_order_acquire) < round) {
    }
  };
  for (int i = 0; i < kTries; ++i) {
    const auto start = Clock::now();
    for (int k = 0; k < kRounds; ++k) {
      ++rounds_;
      if (rank_ == 0) mine.publish(rounds_);
      await(rounds_);
      if (rank_ == 1) mine.publish(rounds_);
    }
    const std::chrono::duration<double, std::nano> took = Clock::now() - start;
    best = std::min(best, took.count() / kRounds);
  }
  return best;
}

char* Bare::slot(Movement movement, int rank, uint64_t chunk) const {
  char* slots = slots_ + (movement == Movement::one_shot ? 0 : kSlotsBytes);
  return slots + (rank * kSlots + int64_t(chunk % kSlots)) * kLongestChunk;
}

void Bare::in_lines(float* mine, int64_t count) {
  ++exchanges_;
  // Two places in turn: that of the last call has been read when this one's data arrives.
  char* places = lines_ + int64_t(exchanges_ % 2) * 2 * kCallLines;
  RK_LOOP(put_lines, places + rank_ * kCallLines, mine, count, exchanges_);
  RK_LOOP(add_lines, mine, places + (1 - rank_) * kCallLines, count, exchanges_);
}

void Bare::one_shot(float* mine, int64_t count, int64_t chunk) {
  constexpr uint64_t kAhead = 2;  // chunks staged before the other's is added
  const int64_t most = chunk / int64_t(sizeof(float));
  const uint64_t base = one_shots_, end = base + uint64_t((count + most - 1) / most);
  Counter &staged = shared_->staged[rank_], &taken = shared_->taken[rank_];
  Counter &their_staged = shared_->staged[1 - rank_], &their_taken = shared_->taken[1 - rank_];
  for (uint64_t i = base, next = base; i < end; ++i) {
    for (; next < std::min(end, i + kAhead); ++next) {
      if (next >= kSlots) their_taken.await(next - kSlots + 1);
      const int64_t at = int64_t(next - base) * most;
      RK_LOOP(copy, slot(Movement::one_shot, rank_, next), mine + at,
              std::min(most, count - at) * int64_t(sizeof(float)));
      staged.publish(next + 1);
    }
    const int64_t at = int64_t(i - base) * most;
    their_staged.await(i + 1);
    RK_LOOP(add, mine + at, reinterpret_cast<const float*>(slot(Movement::one_shot, 1 - rank_, i)),
            std::min(most, count - at));
    taken.publish(i + 1);
  }
  one_shots_ = end;
}

void Bare::scatter_gather(Movement movement, float* mine, int64_t count, int64_t chunk) {
  const int64_t most = chunk / int64_t(sizeof(float));
  const uint64_t base = halves_, chunks = uint64_t((count + most - 1) / most);
  Counter &sent = shared_->sent[rank_], &returned = shared_->returned[rank_];
  Counter &they_sent = shared_->sent[1 - rank_], &they_returned = shared_->returned[1 - rank_];
  struct Half {
    int64_t at, n;
  };
  // Returns the half of chunk i that rank `owner` reduces.
  const auto half = [&](uint64_t i, int owner) {
    const int64_t at = int64_t(i) * most, n = std::min(most, count - at), first = n / 2;
    return owner == 0 ? Half{at, first} : Half{at + first, n - first};
  };
  const auto slot_of = [&](int owner, uint64_t i) { return slot(movement, owner, base + i); };
  const auto copy = [movement](void* to, const void* from, int64_t floats) {
    const int64_t bytes = floats * int64_t(sizeof(float));
    if (movement == Movement::scatter_gather_c) return Plain::copy(to, from, bytes);
    RK_LOOP(copy, to, from, bytes);
  };
  // A slot is free when its result has been copied out, which its owner does.
  for (uint64_t i = 0; i < chunks + 2; ++i) {
    if (i < chunks) {
      const Half h = half(i, 1 - rank_);
      copy(slot_of(rank_, i), mine + h.at, h.n);
      sent.publish(base + i + 1);
    }
    if (i >= 1 && i - 1 < chunks) {
      const Half h = half(i - 1, rank_);
      they_sent.await(base + i);
      RK_LOOP(add_both, mine + h.at, reinterpret_cast<float*>(slot_of(1 - rank_, i - 1)), h.n);
      returned.publish(base + i);
    }
    if (i >= 2) {
      const Half h = half(i - 2, 1 - rank_);
      they_returned.await(base + i - 1);
      copy(mine + h.at, slot_of(rank_, i - 2), h.n);
    }
  }
  halves_ += chunks;
}

void Bare::in_shared(float* mine, float* theirs, int64_t count) {
  ++meetings_;
  Counter &arrived = shared_->arrived[rank_], &they_arrived = shared_->arrived[1 - rank_];
  arrived.publish(2 * meetings_ - 1);
  they_arrived.await(2 * meetings_ - 1);
  const int64_t first = count / 2, at = rank_ == 0 ? 0 : first;
  RK_LOOP(add_both, mine + at, theirs + at, rank_ == 0 ? first : count - first);
  arrived.publish(2 * meetings_);
  they_arrived.await(2 * meetings_);
}

}  // namespace

extern "C" {

int64_t file_bytes() { return Bare::file_bytes(); }

// Names of the movements, with commas.
const char* movements() {
#define RK_MOVEMENT(name) #name ","
  return RK_MOVEMENTS(RK_MOVEMENT);
#undef RK_MOVEMENT
}

// A rank over the memory file `fd`; null where it cannot be mapped. Never freed.
void* start(int rank, int fd) {
  void* memory =
      mmap(nullptr, size_t(Bare::file_bytes()), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return memory == MAP_FAILED ? nullptr : new Bare(rank, static_cast<char*>(memory));
}

double round_trip_ns(void* bare) { return static_cast<Bare*>(bare)->round_trip_ns(); }

// Times `calls` sums of `count` floats. Returns 1 for an argument that the movement does not take.
int time_all_reduce(void* bare, int movement, float** mine, float** theirs, int places, int first,
                    int64_t count, int64_t chunk, int64_t calls, int64_t* ns) {
  const Movement which = Movement(movement);
  if (which == Movement::flag_in_line && count * int64_t(sizeof(float)) > Bare::kLongestInLines)
    return 1;
  if (chunk < Bare::kChunkGrain || chunk > Bare::kLongestChunk || chunk % Bare::kChunkGrain != 0)
    return 1;
  for (int64_t i = 0; i < calls; ++i) {
    const int64_t place = (first + i) % places;
    const int64_t start = now_ns();
    static_cast<Bare*>(bare)->all_reduce(which, mine[place], theirs[place], count, chunk);
    ns[i] = now_ns() - start;
  }
  return 0;
}

}  // extern "C"
