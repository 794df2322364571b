#include "cpu/link.h"

#include <cstring>
#include <type_traits>

namespace ringkern::cpu {

LinkMemory link_memory(void* segment, const Geometry& g) {
  auto* const at = static_cast<std::byte*>(segment) + kBellBytes;
  return {static_cast<Bell*>(segment), reinterpret_cast<LinkCounters*>(at),
          at + g.counters_bytes()};
}

Ends::Ends(const LinkMemory& my, const LinkMemory& next, const LinkMemory& prev, const Geometry& g,
           Protocol p)
    : next_bell(*next.bell), prev_bell(*prev.bell), mine(my.counters[int(p)]),
      next_tail(next.counters[int(p)].tail.value), prev_head(prev.counters[int(p)].head.value),
      from(my.fifos + g.fifo_offset(0, p) - g.counters_bytes()),
      to(next.fifos + g.fifo_offset(0, p) - g.counters_bytes()), slots(g.slots),
      slot_bytes(g.slot_bytes[int(p)]) {}

void Ends::advance(Verb verb, bool publish_tail) {
  if (receives(verb)) store_release(prev_head, ++mine.received.value);
  if (sends(verb)) {
    ++mine.sent.value;
    if (publish_tail) store_release(next_tail, mine.sent.value);
  }
  publish_barrier();
  if (sends(verb)) notify_if_asleep(next_bell);
  if (receives(verb)) notify_if_asleep(prev_bell);
}

bool SameCall::look() {
  const auto load = [](const auto& word, std::memory_order order) {
    return std::atomic_ref(const_cast<std::remove_cvref_t<decltype(word)>&>(word)).load(order);
  };
  const uint64_t seq = load(theirs_->seq, std::memory_order_acquire);
  const CallWords words{load(theirs_->what, std::memory_order_relaxed),
                        load(theirs_->count, std::memory_order_relaxed)};
  // Compare the history, too: data of an earlier call may still be there, if this rank took none.
  const uint64_t history = load(theirs_->history, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_acquire);
  if (load(theirs_->seq, std::memory_order_relaxed) != seq) return false;
  // Empty calls do not wait: after many of them, prev's record of this one may be gone.
  if (seq > seq_ || (seq == seq_ && words == words_ && history == history_)) theirs_ = nullptr;
  return theirs_ == nullptr;
}

void move(const Reducer& reducer, Verb verb, const Block& b) {
  const int64_t n = b.count, bytes = n * reducer.element_bytes();
  switch (verb) {
    case Verb::send: return reducer.input(b.to, b.in, n);
    case Verb::copy_send:
      if (b.out == b.in) return reducer.input(b.to, b.in, n);  // in place
      return copy_two(b.out, b.to, b.in, bytes);
    case Verb::recv_reduce_send: return reducer.reduce(b.to, nullptr, b.incoming, b.in, n, false);
    case Verb::recv_reduce_copy_send: return reducer.reduce(b.out, b.to, b.incoming, b.in, n, true);
    case Verb::recv_reduce_copy: return reducer.reduce(b.out, nullptr, b.incoming, b.in, n, true);
    case Verb::recv_copy_send: return copy_two(b.out, b.to, b.incoming, bytes);
    case Verb::recv:
      if (bytes > 0) std::memcpy(b.out, b.incoming, size_t(bytes));
      return;
  }
}

}  // namespace ringkern::cpu
