// The links of a ring with a clock. They differ only in their wait and in the code around a verb.
//
// Thread 0 of a block keeps the clock. Its warp waits for slots, and for lines of its own. If
// another warp waits for lines, the time appears in a verb at whose end all warps meet: in Simple
// every verb, in LL and LL128 those that give slots back.
#pragma once

#include "cuda/kernels.cuh"

namespace ringkern::cuda {

// Kept in shared memory, like the rest of it; only thread 0 uses these fields.
struct TimedPost : Post {
  mutable TimedVerb* row;  // the next row
  mutable int64_t left;    // rows that are left
  mutable int64_t number;  // of the current verb, from 1
  mutable uint64_t start;
  mutable uint64_t wait_prev, wait_next;
};

RK_DEVICE void add_wait(const TimedPost& post, WaitFor what, uint64_t nanoseconds) {
  uint64_t* sum = what == WaitFor::data ? &post.wait_prev : &post.wait_next;
  st_shared(sum, ld_shared(sum) + nanoseconds);
}

// Waits as in wait.cuh, and measures the time after the first look, since data that is there
// already was not waited for. LL and LL128 look once before they call it for lines.
template <class Poll, class Seen>
RK_DEVICE Verdict wait(const TimedPost& post, Protocol protocol, WaitFor what, uint64_t wanted,
                       Poll poll, Seen seen, const int32_t& peer = -1) {
  uint32_t looks = 0, came_at = 0;
  uint64_t since = 0, came = 0;
  const bool clock = thread_index() == 0;
  const auto timed = [&] {
    const bool ready = poll();
    // Reads the clock after the look, because the lanes of a warp look at lines together.
    if (clock && ++looks == 1) since = nanoseconds();
    if (clock && ready && came_at == 0) came_at = looks, came = nanoseconds();
    return ready;
  };
  const Post& plain = post;
  const Verdict verdict = wait(plain, protocol, what, wanted, timed, seen, peer);
  if (looks > 1 && came_at > 0) {
    const uint64_t end = nanoseconds();
    if (came_at == 1) came = since;
    if (came_at == looks) came = end;
    add_wait(post, what, came - since);
    // The rest is the wait of other lanes: in Simple, lane 0 waits for data and another one for
    // credit.
    add_wait(post, protocol == Protocol::simple ? WaitFor::credit : what, end - came);
  }
  syncwarp();  // it looks at its lines once more, together
  return verdict;
}

template <class Link>
class TimedLink {
 public:
  RK_DEVICE TimedLink(Link& link, const TimedPost& post) : link_(link), post_(post) {}

  RK_DEVICE Verdict perform(Verb verb, const Plan& plan, const Chunk& chunk) {
    if (thread_index() == 0) {
      st_shared(&post_.wait_prev, 0);
      st_shared(&post_.wait_next, 0);
      st_shared(&post_.start, nanoseconds());
    }
    const Verdict verdict = link_.perform(verb, plan, chunk);
    if (thread_index() == 0) note(verb, chunk);
    return verdict;
  }

 private:
  RK_DEVICE void note(Verb verb, const Chunk& chunk) const {
    const auto end = nanoseconds();
    const int64_t number = ld_shared(&post_.number), left = ld_shared(&post_.left);
    st_shared(&post_.number, number + 1);
    if (left <= 0) return;
    TimedVerb* row = ld_shared(&post_.row);
    st_shared(&post_.row, row + 1);
    st_shared(&post_.left, left - 1);
    st_weak<8>(&row->number, uint64_t(number));
    st_weak<8>(&row->verb, uint64_t(verb));
    st_weak<8>(&row->offset, uint64_t(chunk.out));
    st_weak<8>(&row->count, uint64_t(chunk.count));
    st_weak<8>(&row->start, ld_shared(&post_.start));
    st_weak<8>(&row->end, end);
    st_weak<8>(&row->wait_prev, ld_shared(&post_.wait_prev));
    st_weak<8>(&row->wait_next, ld_shared(&post_.wait_next));
  }

  Link& link_;
  const TimedPost& post_;
};

}  // namespace ringkern::cuda
