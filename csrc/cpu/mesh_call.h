// The state of a call in the mesh, common to cpu/mesh_lines.h, cpu/mesh_slots.h,
// cpu/mesh_in_place.h and cpu/mesh_sockets.h.
#pragma once

#include <bit>
#include <vector>

#include "core/tree.h"
#include "cpu/mesh.h"

namespace ringkern::cpu {

// Returns the call as one word, which must be equal on all ranks. The factor of a scale may differ.
// The word of a part counts the whole call: a smaller call may be as long as a part.
inline uint64_t call_word(const Task& task) {
  return reduction_bits(task.reduction) | uint64_t(task.algorithm) << kReductionBits |
         uint64_t(task.whole_count()) << (kReductionBits + 2);
}

// One call, of this rank.
struct MeshCall {
  std::vector<MeshPeer>& peers;
  const int rank, ranks;
  const uint64_t base;  // rounds of earlier calls
  uint64_t flag;        // of the lines of this round: kLineAhead is 0
  const Reducer& reducer;
  const std::byte* const in;
  std::byte* const out;
  Wait& wait;
  WaitReport& report;
  const RankNames& names;

  int64_t bytes(int64_t elements) const { return elements * reducer.element_bytes(); }

  // Returns a function of 0, ..., ranks - 2 that calls `of` with the other ranks.
  template <class Of>
  auto of_others(const Of& of) const {
    return [&of, this](int other) { return of(other < rank ? other : other + 1); };
  }

  // Called after each store that a rank may sleep for.
  void wake_all() const {
    publish_barrier();
    for (int p = 0; p < ranks; ++p)
      if (p != rank) notify_if_asleep(*peers[size_t(p)].bell);
  }

  // Waits until `ready()`. `seen` returns the step that was last seen, for the report.
  template <class Ready, class Seen>
  Verdict await(int peer, Protocol protocol, uint64_t wanted, Ready&& ready, Seen&& seen) {
    const Verdict verdict = wait.until(ready);
    if (verdict == Verdict::ok) [[likely]]
      return verdict;
    report = {verdict, WaitFor::data, protocol, 0, peer, wanted, seen()};
    return verdict;
  }
};

inline constexpr int64_t kBlockBytes = 4096;  // stays in the first-level cache

// Adds versions in the order of core/tree.h, a block at a time.
class TreeSum {
 public:
  explicit TreeSum(const Reducer& reducer, int versions)
      : reducer_(reducer), versions_(versions), widens_(reducer.widens(versions)) {}

  // Returns the most elements of a block.
  int64_t block() const {
    return kBlockBytes / (widens_ ? int64_t(sizeof(float)) : reducer_.element_bytes());
  }

  // Adds the block `version_of(v)` of all v = 0, 1, ... into `out`. A block is read until the next
  // but one is taken. Returns false if one is null.
  template <class VersionOf>
  bool add(std::byte* out, VersionOf&& version_of, int64_t count) {
    OpenNodes open(ShardTree{versions_});
    for (int v = 0; v < versions_; ++v) {
      int right = open.count();
      const std::byte* const version = nodes_[right] = version_of(v);
      if (version == nullptr) return false;
      bool odd = v % 2 == 1;  // added to the one before at once
      if (widens_ && !odd) reducer_.add_wide(sums_[right], version, count, /*first=*/true);
      for (int adds = open.take({v, 1}); adds > 0; --adds, --right) {
        const int left = right - 1;
        if (!widens_) {
          const bool last = v + 1 == versions_ && left == 0;
          std::byte* const to = last ? out : reinterpret_cast<std::byte*>(sums_[left]);
          reducer_.combine(to, nullptr, nodes_[left], nodes_[right], count, last);
          nodes_[left] = to;
        } else if (odd) {
          reducer_.add_wide(sums_[left], version, count, /*first=*/false);
          odd = false;
        } else {
          reducer_.add_partials(sums_[left], sums_[right], count);
        }
      }
    }
    if (widens_) reducer_.narrow(out, sums_[0], count);
    return true;
  }

 private:
  static constexpr int kOpen = std::bit_width(unsigned(kMaxRanks));  // a node of each level
  static_assert(kMaxRanks <= ShardTree::kMostShards);

  const Reducer& reducer_;
  const int versions_;
  const bool widens_;
  const std::byte* nodes_[kOpen];
  alignas(64) float sums_[kOpen][kBlockBytes / sizeof(float) + kPartialRoom + 1];
};

// Like reduce_versions() of all ranks. Not inlined: only calls that need it use this much of the
// stack.
template <class VersionOf, class CopyOf>
[[gnu::noinline]] void reduce_by_tree(const Reducer& reducer, std::byte* out, int n,
                                      VersionOf&& version_of, int copies, CopyOf&& copy_of,
                                      int64_t count) {
  TreeSum tree(reducer, n);
  const int64_t element = reducer.element_bytes();
  for (int64_t done = 0; done < count; done += tree.block()) {
    const int64_t some = min64(tree.block(), count - done), at = done * element;
    tree.add(out + at, [&](int v) { return version_of(v) + at; }, some);
    for (int c = 0; c < copies; ++c) copy_one(copy_of(c) + at, out + at, some * element);
  }
}

// Combines `n` versions into `out`, which may be one of them, and copies the result to `copy_of(c)`
// of c = 0, ..., copies - 1. `finishes`: these are the versions of all ranks, or the last of them.
// Work of several steps goes block by block, so that intermediate data stays in the cache.
template <class VersionOf, class CopyOf>
void reduce_versions(const Reducer& reducer, std::byte* out, int n, VersionOf&& version_of,
                     int copies, CopyOf&& copy_of, int64_t count, bool finishes = true) {
  if (reducer.by_tree(n))
    return reduce_by_tree(reducer, out, n, version_of, copies, copy_of, count);
  const bool widens = reducer.widens(n);
  if (n == 2 && copies <= 1 && !widens)
    return reducer.combine(out, copies == 1 ? copy_of(0) : nullptr, version_of(0), version_of(1),
                           count, finishes);
  alignas(64) std::byte sum[kBlockBytes];
  alignas(64) float wide_sum[kBlockBytes / sizeof(float) + kPartialRoom];
  const int64_t element = reducer.element_bytes();
  const int64_t block = kBlockBytes / (widens ? int64_t(sizeof(float)) : element);
  for (int64_t done = 0; done < count; done += block) {
    const int64_t some = min64(block, count - done), at = done * element;
    if (widens) {
      for (int v = 0; v < n; ++v) reducer.add_wide(wide_sum, version_of(v) + at, some, v == 0);
      reducer.narrow(out + at, wide_sum, some);
    } else {
      const std::byte* first = version_of(0) + at;
      for (int v = 1; v < n; ++v) {
        const bool last = v + 1 == n;
        std::byte* const to = last ? out + at : sum;
        reducer.combine(to, nullptr, first, version_of(v) + at, some, last && finishes);
        first = to;
      }
    }
    for (int c = 0; c < copies; ++c) copy_one(copy_of(c) + at, out + at, some * element);
  }
}

}  // namespace ringkern::cpu
