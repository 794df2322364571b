// Stands in for csrc/cuda/ptx.cuh: the same names, done by the simulated machine. Put the folder
// above this one before csrc on the include path, and the kernels compile for it.
#pragma once

#include <cstdint>
#include <type_traits>

#include "machine.h"

#define RK_DEVICE inline
#define RK_KERNEL(threads, blocks) void
#define RK_ARGUMENT const
#define RK_SHARED(type, name) \
  type& name = *static_cast<type*>(::simt::machine().shared_memory(sizeof(type)))
#define RK_NO_UNROLL

namespace ringkern::cuda {

inline constexpr int kWarp = simt::kWarpSize;

struct alignas(16) Words {
  uint64_t lo, hi;
};

RK_DEVICE int thread_index() { return simt::machine().self().index; }
RK_DEVICE int thread_count() { return simt::machine().self().block->threads; }
RK_DEVICE int block_index() { return simt::machine().self().block->index; }
RK_DEVICE int block_count() { return simt::machine().self().block->blocks; }

RK_DEVICE int in_register(int v) { return v; }

template <class T>
RK_DEVICE T simulated_load(const void* p, simt::Order order) {
  T v;
  simt::machine().load(p, &v, int(sizeof v), order);
  return v;
}

// ---- Weak accesses of global memory

template <int offset = 0>
RK_DEVICE Words ld_weak16(const void* p) {
  return simulated_load<Words>(static_cast<const char*>(p) + offset, simt::Order::weak);
}
template <int offset = 0>
RK_DEVICE void st_weak16(void* p, Words v) {
  simt::machine().store(static_cast<char*>(p) + offset, &v, 16, simt::Order::weak);
}
template <int offset = 0>
RK_DEVICE Words ld_stream16(const void* p) {
  return ld_weak16<offset>(p);
}
template <int offset = 0>
RK_DEVICE void st_stream16(void* p, Words v) {
  st_weak16<offset>(p, v);
}
template <int bytes, int offset = 0>
RK_DEVICE uint64_t ld_weak(const void* p) {
  static_assert(bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8);
  uint64_t word = 0;
  simt::machine().load(static_cast<const char*>(p) + offset, &word, bytes, simt::Order::weak);
  return word;
}
template <int bytes, int offset = 0>
RK_DEVICE void st_weak(void* p, uint64_t word) {
  static_assert(bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8);
  simt::machine().store(static_cast<char*>(p) + offset, &word, bytes, simt::Order::weak);
}

// ---- Counters and words that other GPUs, processes or the host use

RK_DEVICE uint64_t ld_acquire(const uint64_t* p) {
  return simulated_load<uint64_t>(p, simt::Order::acquire);
}
RK_DEVICE uint64_t ld_relaxed(const uint64_t* p) {
  return simulated_load<uint64_t>(p, simt::Order::relaxed);
}
RK_DEVICE uint32_t ld_relaxed(const uint32_t* p) {
  return simulated_load<uint32_t>(p, simt::Order::relaxed);
}
RK_DEVICE void st_release(uint32_t* p, uint32_t v) {
  simt::machine().store(p, &v, 4, simt::Order::release);
}
RK_DEVICE void st_release(uint64_t* p, uint64_t v) {
  simt::machine().store(p, &v, 8, simt::Order::release);
}
RK_DEVICE void st_relaxed(uint64_t* p, uint64_t v) {
  simt::machine().store(p, &v, 8, simt::Order::relaxed);
}
RK_DEVICE void fence_acq_rel() { simt::machine().fence(); }
RK_DEVICE bool claim(uint32_t* p) { return simt::machine().claim(p); }
RK_DEVICE uint32_t count_round(uint32_t* p, uint32_t last) {
  return simt::machine().count_round(p, last, /*ordered=*/true);
}
// For mutants.
RK_DEVICE uint32_t count_round_relaxed(uint32_t* p, uint32_t last) {
  return simt::machine().count_round(p, last, /*ordered=*/false);
}

// ---- LL

RK_DEVICE Words ld_relaxed16(const void* p) {
  return simulated_load<Words>(p, simt::Order::relaxed);
}
RK_DEVICE void st_relaxed16(void* p, Words v) {
  simt::machine().check_goes_on();
  simt::machine().store(p, &v, 16, simt::Order::relaxed);
}

// ---- LL128

RK_DEVICE Words ld_line16(const void* p) {
  simt::Thread& t = simt::machine().self();
  t.at = const_cast<void*>(p);
  simt::machine().meet(simt::Meeting::line_load);
  return {t.words[0], t.words[1]};
}
RK_DEVICE void st_line16(void* p, Words v) {
  simt::machine().check_goes_on();
  simt::Thread& t = simt::machine().self();
  t.at = p;
  t.words[0] = v.lo, t.words[1] = v.hi;
  simt::machine().meet(simt::Meeting::line_store);
}

// ---- Shared memory of the block

template <class T>
RK_DEVICE T ld_shared(const T* p) {
  static_assert(sizeof(T) == 8);
  simt::machine().use_shared(p, /*store=*/false);
  return *p;
}
template <class T>
RK_DEVICE void st_shared(T* p, std::type_identity_t<T> value) {
  static_assert(sizeof(T) == 8);
  simt::machine().use_shared(p, /*store=*/true);
  *p = value;
}

// ---- Warps

RK_DEVICE void syncwarp() { simt::machine().meet(simt::Meeting::sync); }
RK_DEVICE bool all_lanes(bool p) {
  simt::Thread& t = simt::machine().self();
  t.predicate = p;
  simt::machine().meet(simt::Meeting::all);
  return t.predicate;
}
RK_DEVICE uint32_t from_lane(uint32_t v, int lane) {
  simt::Thread& t = simt::machine().self();
  t.value = v;
  t.lane = lane;
  simt::machine().meet(simt::Meeting::shuffle);
  return t.value;
}

// ---- Blocks

RK_DEVICE bool barrier_or(int id, int threads, bool p) {
  return simt::machine().barrier(id, threads, p);
}

// ---- Time

RK_DEVICE uint64_t nanoseconds() { return simt::machine().nanoseconds(); }
// Only after a poll that was in vain, and by all lanes.
RK_DEVICE void rest(uint32_t) { simt::machine().meet(simt::Meeting::rest); }

}  // namespace ringkern::cuda
