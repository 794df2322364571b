// A ring's links with a clock: the same, but for their wait and what is around a verb.
//
// Thread 0 of a block keeps the clock. It is in the warp that waits for slots, and on a line of its
// own. A wait of other warps for lines shows as time of a verb at whose end all meet: of each in
// Simple, and in LL and LL128 of those behind which slots go back.
#pragma once

#include "cuda/kernels.cuh"

namespace ringkern::cuda {

// In shared memory, as the rest of it; thread 0's own.
struct TimedPost : Post {
  mutable TimedVerb* row;  // the next
  mutable int64_t left;    // rows that there is room for
  mutable int64_t number;  // of the verb that runs, from 1
  mutable uint64_t start;
  mutable uint64_t wait_prev, wait_next;
};

RK_DEVICE void add_wait(const TimedPost& post, WaitFor what, uint64_t nanoseconds) {
  uint64_t* sum = what == WaitFor::data ? &post.wait_prev : &post.wait_next;
  st_shared(sum, ld_shared(sum) + nanoseconds);
}

// The wait of wait.cuh, timed from after its first look: what is there already was not waited for.
// LL and LL128 look once before they wait for lines at all.
template <class Poll, class Seen>
RK_DEVICE Verdict wait(const TimedPost& post, Protocol protocol, WaitFor what, uint64_t wanted,
                       Poll poll, Seen seen, const int32_t& peer = -1) {
  uint32_t looks = 0, came_at = 0;
  uint64_t since = 0, came = 0;
  const bool clock = thread_index() == 0;
  const auto timed = [&] {
    const bool ready = poll();
    // Behind the look, for a warp looks at a line together.
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
    // Then for what other lanes poll: in Simple, where lane 0 has the data, another has the credit.
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
