// The ends of a link of LL and LL128. The data carries the flags, so warps go from step to step
// without meeting, and slots are given back by the half of a FIFO.
//
// A hop of a small message is mostly instructions. So each step finds its values in registers, and
// updates them for the next step: the addresses of a thread in the slots, and the credit. In
// Simple, the data needs these registers.
#pragma once

#include "cuda/copy.cuh"

namespace ringkern::cuda {

// A thread's address in the slots of a FIFO, which it uses in turn.
class Turn {
 public:
  RK_DEVICE Turn(std::byte* fifo, int slot, int slots, int64_t slot_bytes, int place)
      : at_(fifo + slot * slot_bytes + place) {
    const int half = first_half(slots);
    second_ = slot >= half;
    left_ = (second_ ? slots : half) - slot;
  }

  // Returns the address in the slot of the next step.
  RK_DEVICE std::byte* at() const { return at_; }
  RK_DEVICE void advance(int64_t slot_bytes) { at_ += slot_bytes, --left_; }
  // Returns true at the end of a half of the FIFO; then `turn` goes on to the other half.
  RK_DEVICE bool at_end() const { return left_ == 0; }
  RK_DEVICE void turn(int slots, int64_t slot_bytes) {
    const int half = first_half(slots);
    if (second_) at_ -= slots * slot_bytes;
    left_ = second_ ? half : slots - half;
    second_ = !second_;
  }

 private:
  RK_DEVICE static int first_half(int slots) { return int(unsigned(slots) / 2); }

  std::byte* at_;
  int left_;     // slots left in the half
  bool second_;  // in the second half
};

template <Protocol P, class AnyPost = Post>
class LineEnds : public Ends<P, AnyPost> {
  using Base = Ends<P, AnyPost>;

 public:
  // Called by all threads.
  template <class Args>
  RK_DEVICE LineEnds(const Args& args, const RankArgs& rank, int channel, AnyPost& post)
      : Base(args, rank, channel, post), in_(rank.in + user_place()), out_(rank.out + user_place()),
        from_(this->from_fifo_, slot_of(this->received_, this->slots()), this->slots(),
              this->slot_bytes(), place()),
        to_(this->to_fifo_, slot_of(this->sent_, this->slots()), this->slots(), this->slot_bytes(),
            place()) {
    take_credit();
  }

  // Return this thread's address in the user's tensors, and in the slots of the step.
  RK_DEVICE const std::byte* in() const { return in_; }
  RK_DEVICE std::byte* out() const { return out_; }
  RK_DEVICE const std::byte* from() const { return from_.at(); }
  RK_DEVICE std::byte* to() const { return to_.at(); }

  // Returns the first byte of a chunk that this warp moves. It is past all chunks if the warp moves
  // none, because it is no worker or a wait of it has failed. A warp that gives up takes the steps
  // up to the next meeting and does nothing in them.
  RK_DEVICE int first() const { return first_; }
  RK_DEVICE bool moves() const { return first_ != kPastAll; }
  RK_DEVICE void give_up() { first_ = kPastAll; }
  RK_DEVICE Verdict verdict() const {
    return is_worker() && !moves() ? Verdict::aborted : Verdict::ok;
  }

  // Waits until the counters show the slots that a verb reads (`data`) and writes (`credit`).
  // Called by a whole warp, whose lanes then all know the credit. A warp that moves no data does
  // not wait.
  RK_DEVICE void wait_slots(bool data, bool credit) {
    if (!moves()) return;
    if (Base::wait_slots(data, credit) == Verdict::ok) take_credit();
    else give_up();
  }
  // Returns true if the slot of the step is known to be free, which mostly saves a wait.
  RK_DEVICE bool has_credit() const { return this->sent_ < credit_; }

  // Go on to the next slot. Called by all threads, in each step that has read or filled a slot.
  RK_DEVICE void took_slot() { ++this->received_, from_.advance(this->slot_bytes()); }
  RK_DEVICE void filled_slot() {
    ++this->sent_, to_.advance(this->slot_bytes());
    if (to_.at_end()) to_.turn(this->slots(), this->slot_bytes());
  }

  // Ends a step. When a half of the FIFO has been read, all threads meet and give it back; not in
  // each step, because a meeting takes longer than a hop. The reader never keeps all slots: the
  // sender has one or more, which is enough for ranks that send and receive in turn.
  RK_DEVICE Verdict complete() {
    Verdict result = Verdict::ok;
    if (from_.at_end()) {
      result = this->meet(0, this->received_, verdict());
      from_.turn(this->slots(), this->slot_bytes());
    }
    return result;
  }

  RK_DEVICE Verdict end(Verdict ended) {
    if (ended == Verdict::ok) ended = agree(kWholeBlock, thread_count(), verdict());
    return Base::end(ended);
  }

 private:
  static constexpr int kPastAll = 1 << 30;  // more bytes than any slot has

  RK_DEVICE static int user_place() {
    if (P == Protocol::ll) return line_data_bytes(P) * thread_index();
    return kLL128Unit * line_data_bytes(P) * warp_index() + 16 * lane_index();
  }
  RK_DEVICE static int place() {
    if (P == Protocol::ll) return line_bytes(P) * thread_index();
    return kLL128Unit * line_bytes(P) * warp_index() + 16 * lane_index();
  }
  // Called by a whole warp, of which one lane has polled the counter.
  RK_DEVICE void take_credit() {
    const uint64_t ahead = this->seen_ + uint64_t(this->slots());
    const auto free = uint32_t(ahead > this->sent_ ? ahead - this->sent_ : 0);
    credit_ = this->sent_ + from_lane(free, Base::kCreditLane);
  }

  const std::byte* in_;
  std::byte* out_;
  Turn from_, to_;
  uint64_t credit_;  // the value of sent_ up to which slots are free
  int first_ = is_worker()
                   ? line_data_bytes(P) * (P == Protocol::ll ? kWarp : kLL128Unit) * warp_index()
                   : kPastAll;
};

}  // namespace ringkern::cuda
