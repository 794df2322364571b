// Moves the words of a probe over links, as the kernels of collectives move data.
//
// MAPPING    One block for each link, 16 bytes a thread.
// ORDERING   As in Simple: weak data, then a barrier, a fence at system scope and a relaxed word,
//            the last one. On the other side, that word is acquired, and a barrier passes it on.
// POLLING    The last word and the answer, in the rank's own segment.
// RESIDENCE  Each side stays until the other has answered over the link that it saw the data. A
//            kernel that wrote and ended would prove less: its end alone may deliver data that a
//            collective would wait for in vain.
#include "cuda/probe.h"

#include "cuda/wait.cuh"

namespace ringkern::cuda {
namespace {

constexpr int kWholeBlock = 0;

RK_DEVICE Verdict await(const Post& post, const uint64_t* word) {
  const Verdict verdict = wait(
      post, Protocol::simple, WaitFor::data, 1,
      [&] { return lane_index() != 0 || ld_acquire(word) != 0; }, [] { return uint64_t(0); });
  return agree(kWholeBlock, thread_count(), verdict);
}

// Posts the word after the stores of all threads, which all call it.
RK_DEVICE void publish(uint64_t* at, const uint64_t* word) {
  barrier_or(kWholeBlock, thread_count(), false);
  if (thread_index() != 0) return;
  fence_acq_rel();
  st_relaxed(at, ld_weak<8>(word));
}

// Copies all words but the last one.
RK_DEVICE void copy_words(uint64_t* to, const uint64_t* from, int words) {
  RK_NO_UNROLL for (int i = 2 * thread_index(); i + 2 < words; i += 2 * thread_count())
    st_weak16(to + i, ld_weak16(from + i));
  if (thread_index() == 0) st_weak<8>(to + words - 2, ld_weak<8>(from + words - 2));
}

RK_KERNEL(kProbeThreads, 1) probe(RK_ARGUMENT ProbeArgs args) {
  const ProbeEnds& link = args.links[block_index()];
  const int words = args.words, last = words - 1;
  RK_SHARED(Post, post);
  if (thread_index() == 0) {
    st_shared(&post.mine, &link.scratch->counters);
    st_shared(&post.head, &link.scratch->counters.head.value);
    st_shared(&post.mailbox, &link.scratch->mailbox);
    st_shared(&post.failed, &link.scratch->failed);
    st_shared(&post.timeout_ns, args.timeout_ns);
    st_shared(&post.seq, 0);
    st_shared(&post.channel, 0);
  }
  barrier_or(kWholeBlock, thread_count(), false);
  if (link.theirs != nullptr) {
    copy_words(link.theirs, link.sends, words);
    publish(link.theirs + last, link.sends + last);
  }
  if (link.mine == nullptr || await(post, link.mine + last) != Verdict::ok) return;
  copy_words(link.receives, link.mine, words);
  if (thread_index() == 0) st_weak<8>(link.receives + last, ld_relaxed(link.mine + last));
  if (link.theirs == nullptr) return;
  publish(link.theirs + words, link.sends + words);
  if (await(post, link.mine + words) != Verdict::ok) return;
  if (thread_index() == 0) st_weak<8>(&link.scratch->answer, ld_relaxed(link.mine + words));
}

}  // namespace

const void* probe_kernel() { return reinterpret_cast<const void*>(&probe); }

}  // namespace ringkern::cuda
