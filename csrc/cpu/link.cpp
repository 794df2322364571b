#include "cpu/link.h"

#include <cstring>

namespace ringkern::cpu {
namespace {

std::byte* fifos(void* segment) { return static_cast<std::byte*>(segment) + kBellBytes; }

LinkCounters& counters(void* segment, const Geometry& g, Protocol p) {
  return *reinterpret_cast<LinkCounters*>(fifos(segment) + g.counters_offset(0, p));
}

}  // namespace

Ends::Ends(const Segments& s, const Geometry& g, Protocol p)
    : next_bell(*static_cast<Bell*>(s.next)),
      prev_bell(*static_cast<Bell*>(s.prev)),
      mine(counters(s.mine, g, p)),
      next_tail(counters(s.next, g, p).tail.value),
      prev_head(counters(s.prev, g, p).head.value),
      from(fifos(s.mine) + g.fifo_offset(0, p)),
      to(fifos(s.next) + g.fifo_offset(0, p)),
      slots(g.slots),
      slot_bytes(g.slot_bytes[int(p)]) {}

void Ends::advance(Verb verb, bool publish_tail) {
  if (receives(verb)) store_release(prev_head, ++mine.received.value);
  if (sends(verb)) {
    ++mine.sent.value;
    if (publish_tail) store_release(next_tail, mine.sent.value);
  }
  publish_barrier();
  if (sends(verb) && asleep(next_bell)) ring(next_bell);
  if (receives(verb) && asleep(prev_bell)) ring(prev_bell);
}

void move(const Reducer& reducer, Verb verb, const Block& b) {
  const int64_t n = b.count, bytes = n * reducer.element_bytes();
  switch (verb) {
    case Verb::send: return reducer.input(b.to, b.in, n);
    case Verb::copy_send:
      if (b.out == b.in) return reducer.input(b.to, b.in, n);  // in place
      return copy_two(b.out, b.to, b.in, bytes);
    case Verb::recv_reduce_send: return reducer.reduce(b.to, nullptr, b.incoming, b.in, n, false);
    case Verb::recv_reduce_copy_send:
      return reducer.reduce(b.out, b.to, b.incoming, b.in, n, true);
    case Verb::recv_reduce_copy: return reducer.reduce(b.out, nullptr, b.incoming, b.in, n, true);
    case Verb::recv_copy_send: return copy_two(b.out, b.to, b.incoming, bytes);
    case Verb::recv:
      if (bytes > 0) std::memcpy(b.out, b.incoming, size_t(bytes));
      return;
  }
}

}  // namespace ringkern::cpu
