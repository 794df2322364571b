// The one header of intrinsics. It has everything that device code does beyond C++: each asm
// statement, each access to memory that a peer, another thread or the host also uses, votes,
// shuffles, barriers, time. The kernels also compile against another header with the same names
// that comes earlier on the include path; that is how they run without a GPU.
//
// Accesses by kind of memory:
//   weak       ordinary data: user tensors, and FIFO data that a counter publishes (Simple)
//   stream     weak, for user tensors: each byte is used once, so the caches evict it first
//   relaxed    words that are published by themselves: counters, LL words; one 64-bit word is whole
//   line       a warp's 128-byte lines (LL128); whole by virtue of the hardware, not of the model
// Memory that the kernel or a peer writes is never read through the non-coherent path: an in-place
// collective writes its own input.
#pragma once

#include <cstdint>
#include <type_traits>

#define RK_DEVICE __device__ __forceinline__
#define RK_KERNEL(threads, blocks) __global__ void __launch_bounds__(threads, blocks)
#define RK_ARGUMENT const __grid_constant__
#define RK_SHARED(type, name) __shared__ type name
#define RK_NO_UNROLL _Pragma("unroll 1")

namespace ringkern::cuda {

inline constexpr int kWarp = 32;

// The unit of a vector access.
struct alignas(16) Words {
  uint64_t lo, hi;
};

RK_DEVICE int thread_index() { return int(threadIdx.x); }
RK_DEVICE int thread_count() { return int(blockDim.x); }
RK_DEVICE int block_index() { return int(blockIdx.x); }
RK_DEVICE int block_count() { return int(gridDim.x); }

// The asm below names the global state space, and so do its addresses.
RK_DEVICE uint64_t global_address(const void* p) { return uint64_t(__cvta_generic_to_global(p)); }
RK_DEVICE uint32_t shared_address(const void* p) { return uint32_t(__cvta_generic_to_shared(p)); }

// Keeps a number in a register; nvcc would otherwise compute it anew at each use.
RK_DEVICE int in_register(int v) {
  asm volatile("" : "+r"(v));
  return v;
}

// clang-format off: an asm statement is laid out as what it does, and then what it gives and takes

// ---- Weak accesses of global memory

// `offset`: in bytes, part of the instruction, so that the accesses of a thread share one address.
template <int offset = 0>
RK_DEVICE Words ld_weak16(const void* p) {
  Words v;
  asm volatile("ld.global.v2.u64 {%0, %1}, [%2+%3];"
               : "=l"(v.lo), "=l"(v.hi) : "l"(global_address(p)), "n"(offset) : "memory");
  return v;
}
template <int offset = 0>
RK_DEVICE void st_weak16(void* p, Words v) {
  asm volatile("st.global.v2.u64 [%0+%3], {%1, %2};"
               :: "l"(global_address(p)), "l"(v.lo), "l"(v.hi), "n"(offset) : "memory");
}

template <int offset = 0>
RK_DEVICE Words ld_stream16(const void* p) {
  Words v;
  asm volatile("ld.global.cs.v2.u64 {%0, %1}, [%2+%3];"
               : "=l"(v.lo), "=l"(v.hi) : "l"(global_address(p)), "n"(offset) : "memory");
  return v;
}
template <int offset = 0>
RK_DEVICE void st_stream16(void* p, Words v) {
  asm volatile("st.global.cs.v2.u64 [%0+%3], {%1, %2};"
               :: "l"(global_address(p)), "l"(v.lo), "l"(v.hi), "n"(offset) : "memory");
}

// 1, 2, 4 or 8 bytes, in the low bits of the word.
template <int bytes, int offset = 0>
RK_DEVICE uint64_t ld_weak(const void* p) {
  static_assert(bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8);
  const uint64_t a = global_address(p);
  if constexpr (bytes == 8) {
    uint64_t v;
    asm volatile("ld.global.u64 %0, [%1+%2];" : "=l"(v) : "l"(a), "n"(offset) : "memory");
    return v;
  } else {
    uint32_t v;
    if constexpr (bytes == 1)
      asm volatile("ld.global.u8 %0, [%1+%2];" : "=r"(v) : "l"(a), "n"(offset) : "memory");
    if constexpr (bytes == 2)
      asm volatile("ld.global.u16 %0, [%1+%2];" : "=r"(v) : "l"(a), "n"(offset) : "memory");
    if constexpr (bytes == 4)
      asm volatile("ld.global.u32 %0, [%1+%2];" : "=r"(v) : "l"(a), "n"(offset) : "memory");
    return v;
  }
}
template <int bytes, int offset = 0>
RK_DEVICE void st_weak(void* p, uint64_t word) {
  static_assert(bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8);
  const uint64_t a = global_address(p);
  const uint32_t v = uint32_t(word);
  if constexpr (bytes == 1)
    asm volatile("st.global.u8 [%0+%2], %1;" :: "l"(a), "r"(v), "n"(offset) : "memory");
  if constexpr (bytes == 2)
    asm volatile("st.global.u16 [%0+%2], %1;" :: "l"(a), "r"(v), "n"(offset) : "memory");
  if constexpr (bytes == 4)
    asm volatile("st.global.u32 [%0+%2], %1;" :: "l"(a), "r"(v), "n"(offset) : "memory");
  if constexpr (bytes == 8)
    asm volatile("st.global.u64 [%0+%2], %1;" :: "l"(a), "l"(word), "n"(offset) : "memory");
}

// ---- Counters and words that other GPUs, processes or the host use: system scope

RK_DEVICE uint64_t ld_acquire(const uint64_t* p) {
  uint64_t v;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(global_address(p)) : "memory");
  return v;
}
RK_DEVICE uint64_t ld_relaxed(const uint64_t* p) {
  uint64_t v;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(global_address(p)) : "memory");
  return v;
}
RK_DEVICE uint32_t ld_relaxed(const uint32_t* p) {
  uint32_t v;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(global_address(p)) : "memory");
  return v;
}
RK_DEVICE void st_release(uint32_t* p, uint32_t v) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" :: "l"(global_address(p)), "r"(v) : "memory");
}
RK_DEVICE void st_release(uint64_t* p, uint64_t v) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" :: "l"(global_address(p)), "l"(v) : "memory");
}
RK_DEVICE void st_relaxed(uint64_t* p, uint64_t v) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" :: "l"(global_address(p)), "l"(v) : "memory");
}
RK_DEVICE void fence_acq_rel() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

// Returns true to the first caller.
RK_DEVICE bool claim(uint32_t* p) {
  uint32_t old;
  asm volatile("atom.relaxed.gpu.global.cas.b32 %0, [%1], 0, 1;"
               : "=r"(old) : "l"(global_address(p)) : "memory");
  return old == 0;
}

// Counts from 0 to `last`, and then from 0 again; returns the count before. The caller's next
// accesses follow those of all who have counted.
RK_DEVICE uint32_t count_round(uint32_t* p, uint32_t last) {
  uint32_t old;
  asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
               : "=r"(old) : "l"(global_address(p)), "r"(last) : "memory");
  return old;
}

// ---- LL: two 64-bit words, each whole, in one access

RK_DEVICE Words ld_relaxed16(const void* p) {
  Words v;
  asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];"
               : "=l"(v.lo), "=l"(v.hi) : "l"(global_address(p)) : "memory");
  return v;
}
RK_DEVICE void st_relaxed16(void* p, Words v) {
  asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};"
               :: "l"(global_address(p)), "l"(v.lo), "l"(v.hi) : "memory");
}

// ---- LL128: called by a whole warp, of which each 8 lanes load or store one line

RK_DEVICE Words ld_line16(const void* p) {
  Words v;
  asm volatile("ld.volatile.global.v2.u64 {%0, %1}, [%2];"
               : "=l"(v.lo), "=l"(v.hi) : "l"(global_address(p)) : "memory");
  return v;
}
RK_DEVICE void st_line16(void* p, Words v) {
  asm volatile("st.volatile.global.v2.u64 [%0], {%1, %2};"
               :: "l"(global_address(p)), "l"(v.lo), "l"(v.hi) : "memory");
}

// ---- Shared memory of the block: pointers and numbers of 8 bytes

template <class T>
RK_DEVICE T ld_shared(const T* p) {
  static_assert(sizeof(T) == 8);
  uint64_t word;
  asm volatile("ld.shared.u64 %0, [%1];" : "=l"(word) : "r"(shared_address(p)) : "memory");
  if constexpr (std::is_pointer_v<T>) return reinterpret_cast<T>(word);
  else return T(word);
}
template <class T>
RK_DEVICE void st_shared(T* p, std::type_identity_t<T> value) {
  static_assert(sizeof(T) == 8);
  uint64_t word;
  if constexpr (std::is_pointer_v<T>) word = reinterpret_cast<uint64_t>(value);
  else word = uint64_t(value);
  asm volatile("st.shared.u64 [%0], %1;" :: "r"(shared_address(p)), "l"(word) : "memory");
}

// ---- Warps: every lane of the warp calls these

RK_DEVICE void syncwarp() { __syncwarp(); }
RK_DEVICE bool all_lanes(bool p) { return __all_sync(~0u, p); }
RK_DEVICE uint32_t from_lane(uint32_t v, int lane) { return __shfl_sync(~0u, v, lane); }

// ---- Blocks

// Waits at the barrier `id` of `threads` threads, in whole warps; returns true if `p` is true on
// any.
RK_DEVICE bool barrier_or(int id, int threads, bool p) {
  uint32_t any;
  asm volatile(
      "{\n\t"
      ".reg .pred p, q;\n\t"
      "setp.ne.u32 p, %3, 0;\n\t"
      "barrier.cta.red.or.pred q, %1, %2, p;\n\t"
      "selp.u32 %0, 1, 0, q;\n\t"
      "}"
      : "=r"(any) : "r"(id), "r"(threads), "r"(uint32_t(p)) : "memory");
  return any != 0;
}

// ---- Time

RK_DEVICE uint64_t nanoseconds() {
  uint64_t v;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(v) :: "memory");
  return v;
}
RK_DEVICE void rest(uint32_t nanoseconds) {
  asm volatile("nanosleep.u32 %0;" :: "r"(nanoseconds) : "memory");
}

// clang-format on

}  // namespace ringkern::cuda
