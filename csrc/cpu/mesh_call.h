// The state of a call in the mesh, common to cpu/mesh_lines.h, cpu/mesh_slots.h and
// cpu/mesh_in_place.h.
#pragma once

#include <vector>

#include "cpu/mesh.h"

namespace ringkern::cpu {

// Returns the call as one word, which must be equal on all ranks. The factor of a scale may differ.
// The word of a part counts the whole call: a smaller call may be as long as a part.
inline uint64_t call_word(const Task& task) {
  return reduction_bits(task.reduction) | uint64_t(task.algorithm) << kReductionBits |
         uint64_t(task.whole > 0 ? task.whole : task.count) << (kReductionBits + 2);
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

// Combines the versions of all ranks into `out`. If `give`, also writes the result to `theirs(p)`
// of each other rank p. Work of several steps goes block by block, so that intermediate data stays
// in the cache.
template <class VersionOf, class Theirs>
void reduce_versions(const MeshCall& x, std::byte* out, bool give, VersionOf&& version_of,
                     Theirs&& theirs, int64_t count) {
  const bool widens = x.reducer.widens(x.ranks);
  if (x.ranks == 2 && !widens)
    return x.reducer.combine(out, give ? theirs(1 - x.rank) : nullptr, version_of(0), version_of(1),
                             count, true);
  constexpr int64_t kBlockBytes = 4096;  // stays in the first-level cache
  alignas(64) std::byte sum[kBlockBytes];
  alignas(64) float wide_sum[kBlockBytes / sizeof(float) + kPartialRoom];
  const int64_t some = kBlockBytes / (widens ? int64_t(sizeof(float)) : x.reducer.element_bytes());
  for (int64_t done = 0; done < count; done += some) {
    const int64_t n = min64(some, count - done), at = x.bytes(done);
    if (widens) {
      for (int p = 0; p < x.ranks; ++p) x.reducer.add_wide(wide_sum, version_of(p) + at, n, p == 0);
      x.reducer.narrow(out + at, wide_sum, n);
    } else {
      const std::byte* first = version_of(0) + at;
      for (int p = 1; p < x.ranks; ++p) {
        const bool last = p + 1 == x.ranks;
        std::byte* const to = last ? out + at : sum;
        x.reducer.combine(to, nullptr, first, version_of(p) + at, n, last);
        first = to;
      }
    }
    for (int p = 0; p < x.ranks && give; ++p)
      if (p != x.rank) copy_one(theirs(p) + at, out + at, x.bytes(n));
  }
}

}  // namespace ringkern::cpu
