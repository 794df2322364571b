// Common parts of the three links of the CPU backend: the two ends of a rank's link in shared
// memory, and the arithmetic between them.
#pragma once

#include "comm/interfaces.h"
#include "core/schedule.h"
#include "cpu/mesh.h"
#include "cpu/simd.h"
#include "cpu/wait.h"

namespace ringkern::cpu {

// A rank's segment on a CPU: its bell, then the FIFOs in the geometry's layout, then the memory of
// the mesh.
inline constexpr int64_t kBellBytes = sizeof(Bell);
inline int64_t mesh_offset(const Geometry& g) { return align_up(kBellBytes + g.bytes(), 4096); }
inline int64_t segment_bytes(const Geometry& g) { return mesh_offset(g) + MeshGeometry::bytes(); }

// Returns the room for the probe of the links (comm/probe.h). It is small: between processes a
// mapping is right or wrong as a whole, and the slots of some ranks share a page.
inline ProbeRoom probe_room(const Geometry& g) {
  return {kBellBytes + g.fifo_offset(0, Protocol::simple), g.fifo_bytes(Protocol::simple), 512};
}

// The part of a rank's memory that its links with one neighbour on each side use: on a ring all of
// a segment, between two ranks that send each other messages a part of each one's receive buffer.
struct LinkMemory {
  Bell* bell = nullptr;
  LinkCounters* counters = nullptr;  // of each protocol
  std::byte* fifos = nullptr;        // one after the other, in the geometry's layout
};
LinkMemory link_memory(void* segment, const Geometry& g);

// One protocol's link of one rank: the memory that it polls and writes, and its progress.
struct Ends {
  Bell& next_bell;
  Bell& prev_bell;
  LinkCounters& mine;
  uint64_t& next_tail;  // counts the steps sent to next
  uint64_t& prev_head;  // returns credits to prev
  std::byte* from;      // this rank's FIFO
  std::byte* to;        // next's FIFO
  const int slots;
  const int64_t slot_bytes;

  Ends(const LinkMemory& mine, const LinkMemory& next, const LinkMemory& prev, const Geometry& g,
       Protocol p);
  Ends(const Segments& s, const Geometry& g, Protocol p)
      : Ends(link_memory(s.mine, g), link_memory(s.next, g), link_memory(s.prev, g), g, p) {}

  uint64_t sent() const { return mine.sent.value; }
  uint64_t received() const { return mine.received.value; }
  std::byte* from_slot() const { return from + int64_t(received() % uint64_t(slots)) * slot_bytes; }
  std::byte* to_slot() const { return to + int64_t(sent() % uint64_t(slots)) * slot_bytes; }

  bool has_credit(int steps = 1) const {
    return load_acquire(mine.head.value) + uint64_t(slots) >= sent() + uint64_t(steps);
  }

  // Ends a step: returns the read slot to prev, counts the filled slot, and wakes a rank that
  // sleeps on either. `publish_tail`: the flags are not in the data (Simple).
  void advance(Verb verb, bool publish_tail);
  void wake_next() const { wake(next_bell); }
};

// The sources and destinations of one block of elements. Unused pointers are null.
struct Block {
  const std::byte* incoming = nullptr;  // from prev
  const std::byte* in = nullptr;        // the rank's own input
  std::byte* out = nullptr;             // the rank's output
  std::byte* to = nullptr;              // for next
  int64_t count = 0;                    // elements
};

// Performs a verb on a block's data.
void move(const Reducer& reducer, Verb verb, const Block& block);

// A check that the data from prev belongs to this call. Data of another call is not taken: it does
// not count as received, and the communicator finds the reason.
class SameCall {
 public:
  // If the record of prev's calls is null, nothing is checked.
  SameCall(const CallLine* prev_calls, uint64_t seq, const CallWords& words, uint64_t history)
      : theirs_(prev_calls != nullptr && seq != 0 ? prev_calls + seq % kCallLines : nullptr),
        seq_(seq), history_(history), words_(words) {}

  // Called when data has come: prev has published its call before.
  bool holds() {
    if (theirs_ == nullptr) [[likely]]
      return true;
    return look();
  }

 private:
  bool look();

  const CallLine* theirs_;  // null: nothing is left to check
  uint64_t seq_, history_;
  CallWords words_;
};

// The arguments of a link for one collective.
struct LinkContext {
  Ends ends;
  Wait& wait;
  const Reducer& reducer;
  const std::byte* in;
  std::byte* out;
  WaitReport& report;
  SameCall same_call{nullptr, 0, {}, 0};

  // Does not call `checked`: inlined with it, LL's loop over lines took a twentieth longer.
  template <class Ready>
  Verdict until(WaitFor, Ready&& ready) {
    return wait.until(ready);
  }
  Verdict wait_credit(Protocol p) {
    return checked(until(WaitFor::credit, [&] { return ends.has_credit(); }), p, WaitFor::credit);
  }

  // Records the object of a failed wait in the report.
  Verdict checked(Verdict verdict, Protocol p, WaitFor what) {
    if (verdict == Verdict::ok) return verdict;
    report.verdict = verdict;
    report.what = what;
    report.protocol = p;
    if (what == WaitFor::credit) {
      report.wanted = ends.sent() + 1 - uint64_t(ends.slots);
      report.seen = load_acquire(ends.mine.head.value);
    } else {
      report.wanted = ends.received() + 1;
      // Only Simple counts the received steps; otherwise the lines show them.
      report.seen = p == Protocol::simple ? load_acquire(ends.mine.tail.value) : ends.received();
    }
    return verdict;
  }
};

}  // namespace ringkern::cpu
