// What the three links have in common: the two ends of one rank on one channel.
#pragma once

#include "core/schedule.h"
#include "cuda/wait.cuh"

namespace ringkern::cuda {

// Where this rank polls, where it writes, and how far it has come. Every thread keeps the counters;
// they are loaded when the kernel starts and stored when it ends, so that a replayed launch goes on
// where the last one stopped.
class Ends {
 public:
  RK_DEVICE Ends(const LaunchArgs& args, const RankArgs& rank, int channel)
      : watch_{args, rank, counters(args, rank.mine, channel), channel},
        sent_(ld_weak<8>(&watch_.mine->sent.value)),
        received_(ld_weak<8>(&watch_.mine->received.value)),
        to_(int(sent_ % uint64_t(args.geometry.slots))),
        from_(int(received_ % uint64_t(args.geometry.slots))) {}

  RK_DEVICE const Watch& watch() const { return watch_; }
  RK_DEVICE const std::byte* in() const { return watch_.rank.in; }
  RK_DEVICE std::byte* out() const { return watch_.rank.out; }
  RK_DEVICE uint64_t sent() const { return sent_; }
  RK_DEVICE uint64_t received() const { return received_; }
  RK_DEVICE int64_t slot_bytes() const { return watch_.args.geometry.slot_bytes[int(protocol())]; }
  RK_DEVICE const std::byte* from_slot() const { return slot(watch_.rank.mine, from_); }
  RK_DEVICE std::byte* to_slot() const { return slot(watch_.rank.next, to_); }

  // By a whole warp, always the same one, of which one lane polls: it remembers what it has seen.
  RK_DEVICE Verdict wait_credit() {
    const uint64_t slots = uint64_t(watch_.args.geometry.slots);
    const uint64_t* head = &watch_.mine->head.value;
    return wait(
        watch_, WaitFor::credit, sent_ + 1 > slots ? sent_ + 1 - slots : 0,
        [&] { return lane_index() != 0 || reached(head, sent_ + 1, slots, head_); },
        [&] { return ld_relaxed(head); });
  }
  RK_DEVICE Verdict wait_data() {
    const uint64_t* tail = &watch_.mine->tail.value;
    return wait(
        watch_, WaitFor::data, received_ + 1,
        [&] { return lane_index() != 0 || reached(tail, received_ + 1, 0, tail_); },
        [&] { return ld_relaxed(tail); });
  }

  // By one thread, after a barrier behind which all threads have moved the step's data. The barrier
  // and the fence make what all of them did precede the counters (cumulativity).
  RK_DEVICE void post_both(Verb verb) const {
    fence_acq_rel();
    if (sends(verb)) st_relaxed(&next()->tail.value, sent_ + 1);
    if (receives(verb)) st_relaxed(&prev()->head.value, received_ + 1);
  }
  // The same where the data carries its own flags: the slot that was read goes back to prev.
  RK_DEVICE void post_head() const { st_release(&prev()->head.value, received_ + 1); }

  RK_DEVICE void advance(Verb verb) {
    const int slots = watch_.args.geometry.slots;
    if (sends(verb)) {
      ++sent_;
      to_ = to_ + 1 == slots ? 0 : to_ + 1;
    }
    if (receives(verb)) {
      ++received_;
      from_ = from_ + 1 == slots ? 0 : from_ + 1;
    }
  }

  // By one thread, when the schedule has ended. A rank that gave up tells its neighbours where they
  // poll, in every protocol: they would otherwise wait for it until their own deadline.
  RK_DEVICE void store(Verdict verdict) {
    if (verdict == Verdict::ok) {
      st_weak<8>(&watch_.mine->sent.value, sent_);
      st_weak<8>(&watch_.mine->received.value, received_);
      return;
    }
    for (int p = 0; p < kProtocols; ++p) {
      st_relaxed(&counters(watch_.args, watch_.rank.next, watch_.channel, Protocol(p))->tail.value,
                 kPoisoned);
      st_relaxed(&counters(watch_.args, watch_.rank.prev, watch_.channel, Protocol(p))->head.value,
                 kPoisoned);
    }
  }

 private:
  RK_DEVICE static LinkCounters* counters(const LaunchArgs& args, std::byte* segment, int channel,
                                          Protocol p) {
    return reinterpret_cast<LinkCounters*>(segment + args.geometry.counters_offset(channel, p));
  }
  RK_DEVICE static LinkCounters* counters(const LaunchArgs& args, std::byte* segment, int channel) {
    return counters(args, segment, channel, args.plan.protocol);
  }
  RK_DEVICE LinkCounters* next() const {
    return counters(watch_.args, watch_.rank.next, watch_.channel);
  }
  RK_DEVICE LinkCounters* prev() const {
    return counters(watch_.args, watch_.rank.prev, watch_.channel);
  }
  RK_DEVICE Protocol protocol() const { return watch_.args.plan.protocol; }
  RK_DEVICE std::byte* slot(std::byte* segment, int index) const {
    return segment + watch_.args.geometry.fifo_offset(watch_.channel, protocol()) +
           index * slot_bytes();
  }

  // Whether a counter plus `ahead` has come to `wanted`. A poisoned one never has.
  RK_DEVICE static bool reached(const uint64_t* counter, uint64_t wanted, uint64_t ahead,
                                uint64_t& last) {
    if (last + ahead >= wanted) return true;
    const uint64_t now = ld_acquire(counter);
    if (now != kPoisoned) last = now;
    return last + ahead >= wanted;
  }

  const Watch watch_;
  uint64_t sent_, received_;
  uint64_t head_ = 0, tail_ = 0;  // as last seen; on the lane that polls
  int to_, from_;                 // the slots of the next step
};

}  // namespace ringkern::cuda
