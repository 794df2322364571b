// Mutants that no seed can catch, each with the argument why; and those that few seeds catch.
#pragma once

#include <cstdint>

namespace simt {

struct Equivalent {
  const char* mutant;     // Mutant::name()
  const char* protocols;  // under which it survives: "all", or some of them; and "direct"
  const char* argument;
};

inline constexpr char kNoTail[] =
    "LL128 publishes no tail and waits for none: the data itself says that it is there";
inline constexpr char kOneSegment[] =
    "ranks that take the tensors themselves have one segment each, and the two are one word";
inline constexpr char kNoLast[] =
    "no ring has such a word: messages have, which tests/torch/test_fake_ranks.py runs";
inline constexpr char kBothSkip[] =
    "both ends of a link know how long a chunk is: where both skip its step, they stay together";

inline constexpr Equivalent kEquivalent[] = {
    {"link.cuh wait_slots: ahead one more if for_data", "ll128", kNoTail},
    {"link.cuh wait_slots: poll: !for_data taken for granted", "ll128", kNoTail},
    {"link.cuh wait_slots: ld_acquire relaxed if for_data", "ll128", kNoTail},
    {"link.cuh meet: "
     "st_relaxed(&Post::get(post_.next)->tail.value, tail) before the fence",
     "ll128", kNoTail},
    {"link.cuh meet: st_relaxed weak: "
     "st_relaxed(&Post::get(post_.next)->tail.value, tail)",
     "ll128", kNoTail},
    {"link.cuh meet: st_relaxed dropped: "
     "st_relaxed(&Post::get(post_.next)->tail.value, tail)",
     "ll128", kNoTail},
    {"link.cuh meet: verdict != Verdict::ok ignored", "ll ll128",
     "all threads know the verdict: they do nothing in the steps that are left, and end alike; a "
     "neighbour gets credit for slots that nobody reads any more"},
    {"lines.cuh wait_slots: wait_slots not for data", "ll128", kNoTail},
    {"simple.cuh perform: empty chunk skipped", "all", kBothSkip},
    {"ll.cuh perform: empty chunk skipped", "all", kBothSkip},
    {"ll128.cuh perform: empty chunk skipped", "all", kBothSkip},
    {"wait.cuh record: protocol not recorded", "simple",
     "Simple is what a report says of which nobody has said anything else"},
    {"wait.cuh record: peer not recorded", "simple ll ll128",
     "whom a rank waits for on the ring, the host knows: only a direct all-reduce says"},
    {"wait.cuh wait: syncwarp dropped", "simple",
     "the barrier of the workers follows each wait of Simple, and orders more"},
    {"across.cuh run: verdict != Verdict::ok ignored (3)", "across",
     "a rank that gives up leaves its tensors half-written, with this piece or without; the "
     "meeting "
     "behind it gives up at its first look"},
    {"link.cuh tell_end: st_release weak: st_release(last, seq)", "all", kNoLast},
    {"link.cuh tell_end: st_release dropped: st_release(last, seq)", "all", kNoLast},
    {"mesh_ends.cuh look: ld_relaxed(Post::get(post.poisoned)) == kPoisoned ignored", "across",
     kOneSegment},
    {"mesh_ends.cuh look: ld_relaxed(Post::get(post.poisoned_on_host)) == kPoisoned ignored",
     "across", kOneSegment},
    {"mesh_ends.cuh MeshEnds: ld_acquire relaxed", "across",
     "a fence follows, in the first meeting, and makes an acquire of what was loaded before"},
    {"timed.cuh wait: syncwarp dropped", "simple ll",
     "a warp loads and stores together only the lines of LL128; what lanes have seen, the wait "
     "that this one calls has ordered"},
};

// Seeds to try first. A change of the scenarios may make these useless; the mutant then survives,
// and a longer search, such as with --seeds 30000, finds another.
struct Rare {
  const char* mutant;
  const char* protocol;
  uint64_t seed;
};

inline constexpr Rare kRare[] = {
    {"direct.cuh reduce: verdict_ == Verdict::ok always", "direct", 5015},
    {"mesh_ends.cuh look: ld_relaxed(Post::get(post.poisoned)) == kPoisoned ignored", "direct",
     3669},
    {"kernels.cuh ring_kernel: verdict == Verdict::ok always", "simple", 266},
    {"link.cuh begin: failed_ != 0 never", "simple", 266},
    {"link.cuh wait_slots: ahead one more if for_data", "ll", 266},
    {"link.cuh wait_slots: poll: !for_data taken for granted", "ll", 2040},
    {"link.cuh wait_slots: ld_acquire relaxed if for_data", "ll", 2040},
    {"link.cuh meet: "
     "st_relaxed(&Post::get(post_.next)->tail.value, tail) before the fence",
     "ll", 2040},
    {"ll.cuh perform: ll_rewrites_slot never: "
     "ll_rewrites_slot(ends_.received(), ends_.slots())",
     "ll", 1812},
    {"ll.cuh perform: wait_slots not for data", "ll", 2040},
    {"wait.cuh look: ld_relaxed(Post::get(post.failed)) != 0 ignored", "simple", 596},
    {"wait.cuh look: ld_relaxed(Post::get(post.failed)) != 0 ignored", "ll", 560},
    {"wait.cuh look: ld_relaxed(Post::get(post.failed)) != 0 ignored", "direct", 764},
    {"wait.cuh record: channel not recorded", "simple", 2138},
    {"wait.cuh record: channel not recorded", "ll", 1777},
    {"wait.cuh record: channel not recorded", "ll128", 19963},
    {"wait.cuh record: channel not recorded", "direct", 1892},
};

}  // namespace simt
