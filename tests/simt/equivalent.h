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
inline constexpr char kBothSkip[] =
    "both ends of a link know how long a chunk is: where both skip its step, they stay together";

inline constexpr char kAlwaysMeets[] =
    "in Simple threads meet in every step: none has given up before the others know";

inline constexpr Equivalent kEquivalent[] = {
    {"link.cuh wait_slots: ahead one more if for_data", "ll128", kNoTail},
    {"link.cuh wait_slots: poll: !for_data taken for granted", "ll128", kNoTail},
    {"link.cuh wait_slots: ld_acquire relaxed if for_data", "ll128", kNoTail},
    {"link.cuh complete: "
     "st_relaxed(&Post::get(post_.next)->tail.value, sent_ + 1) before the fence",
     "ll128", kNoTail},
    {"link.cuh complete: st_relaxed weak: "
     "st_relaxed(&Post::get(post_.next)->tail.value, sent_ + 1)",
     "ll128", kNoTail},
    {"link.cuh complete: st_relaxed dropped: "
     "st_relaxed(&Post::get(post_.next)->tail.value, sent_ + 1)",
     "ll128", kNoTail},
    {"link.cuh complete: verdict_ != Verdict::ok ignored", "ll ll128",
     "all threads know the verdict: they do nothing in the steps that are left, and end alike; a "
     "neighbour gets credit for slots that nobody reads any more"},
    {"link.cuh gave_up: verdict_ != Verdict::ok ignored", "simple", kAlwaysMeets},
    {"link.cuh end: verdict == Verdict::ok always (1)", "simple", kAlwaysMeets},
    {"link.cuh end: verdict == Verdict::ok never (1)", "simple", kAlwaysMeets},
    {"link.cuh end: agree dropped", "simple", kAlwaysMeets},
    {"simple.cuh perform: empty chunk skipped", "all", kBothSkip},
    {"simple.cuh perform: verdict != Verdict::ok ignored", "simple",
     "the ends of a link keep the verdict: the next slice, which nobody is told of, ends with it"},
    {"ll.cuh perform: empty chunk skipped", "all", kBothSkip},
    {"ll128.cuh perform: empty chunk skipped", "all", kBothSkip},
    {"wait.cuh record: protocol not recorded", "simple",
     "Simple is what a report says of which nobody has said anything else"},
    {"wait.cuh record: peer not recorded", "simple ll ll128",
     "whom a rank waits for on the ring, the host knows: only a direct all-reduce says"},
    {"wait.cuh wait: syncwarp dropped", "simple",
     "the barrier of the workers follows each wait of Simple, and orders more"},
    {"timed.cuh wait: syncwarp dropped", "simple ll",
     "a warp loads and stores together only the lines of LL128; what lanes have seen, the wait "
     "that this one calls has ordered"},
};

// Where to look first. A change of the scenarios may make these useless; the mutant then survives,
// and a longer search, as by --seeds 30000, finds another.
struct Rare {
  const char* mutant;
  const char* protocol;
  uint64_t seed;
};

inline constexpr Rare kRare[] = {
    {"direct.cuh reduce: verdict_ == Verdict::ok always", "direct", 4346},
    {"kernels.cuh ring_kernel: verdict == Verdict::ok always", "simple", 266},
    {"link.cuh begin: failed_ != 0 never", "simple", 266},
    {"link.cuh wait_slots: ahead one more if for_data", "ll", 266},
    {"link.cuh wait_slots: poll: !for_data taken for granted", "ll", 2040},
    {"link.cuh wait_slots: ld_acquire relaxed if for_data", "ll", 477},
    {"link.cuh complete: "
     "st_relaxed(&Post::get(post_.next)->tail.value, sent_ + 1) before the fence",
     "ll", 2040},
    {"ll.cuh rewrites: ll_rewrites_slot never", "ll", 327},
    {"ll.cuh move_lines: wait_slots not for data", "ll", 2040},
    {"wait.cuh look: ld_relaxed(Post::get(post.failed)) != 0 ignored", "simple", 596},
    {"wait.cuh look: ld_relaxed(Post::get(post.failed)) != 0 ignored", "ll", 560},
    {"wait.cuh look: ld_relaxed(Post::get(post.failed)) != 0 ignored", "direct", 764},
    {"wait.cuh record: channel not recorded", "simple", 1904},
    {"wait.cuh record: channel not recorded", "ll", 1777},
    {"wait.cuh record: channel not recorded", "ll128", 9365},
    {"wait.cuh record: channel not recorded", "direct", 1892},
};

}  // namespace simt
