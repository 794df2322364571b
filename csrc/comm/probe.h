// Moves data over every link before the ring is made. Mapped memory can lead to a wrong place,
// such as behind an IOMMU: the receiver detects that and names the link.
//
// WHAT       words that are a function of session, writer, reader and place, so that data of
//            another link, or of another time, does not match.
// WHERE      in the Simple FIFO of channel 0: its data is unused until a counter changes, and no
//            counter changes here. So nothing has to be cleared, and no extra memory is needed.
// HOW        by the Transport, in the same way as in collectives. The owner of the memory checks:
//            a writer that reads back might see a copy of its own.
// WHEN       once a rank has mapped the others' memory, and has written there or is about to, it
//            publishes the memory that it reaches on its control page, which is not probed. The
//            others then know the data to wait for; they wait until at most kProbePatience after
//            all have published. Each rank votes for the ring once its data is right.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/control.h"
#include "comm/rendezvous.h"

namespace ringkern {

inline constexpr Milliseconds kProbePatience{5000};

// Returns whether a link is probed: with up to kMostProbed ranks all links are, with more only
// those between neighbours.
inline constexpr bool is_probed(int rank, int peer, int ranks) {
  return ranks <= kMostProbed || (rank + 1) % ranks == peer || (peer + 1) % ranks == rank;
}

// Returns a value that is equal on all ranks of a ring, and differs between rings.
uint64_t probe_seed(const Id& session);

class ProbeWords {
 public:
  ProbeWords(uint64_t seed, int ranks, RankNames names = {})
      : seed_(seed), ranks_(ranks), names_(std::move(names)) {}

  // Returns the words that `writer` writes for `reader`; none is 0, the value of fresh memory.
  std::vector<uint64_t> words(int writer, int reader, int count) const;
  // Describes the difference, such as "37 of 3584 bytes differ, ..."; nothing if there is none.
  std::optional<std::string> difference(int writer, int reader,
                                        const std::vector<uint64_t>& found) const;

  const RankNames& names() const { return names_; }

 private:
  uint64_t seed_of(int writer, int reader) const;

  const uint64_t seed_;
  const int ranks_;
  const RankNames names_;
};

// The layout of the room: each segment has a slot for each rank that writes there, the owner
// included, and for each such slot two more that only the owner uses.
struct ProbeSlots {
  ProbeRoom room;
  int ranks = 1;

  // If only neighbours are probed, there are slots for them and the owner.
  int rows() const { return ranks <= kMostProbed ? ranks : 3; }
  int row(int writer, int owner) const {
    if (ranks <= kMostProbed) return writer;
    return writer == owner ? 0 : (writer + 1) % ranks == owner ? 1 : 2;
  }
  int64_t slot_bytes() const {
    return std::min(room.bytes / (3 * rows()) / kCacheLine * kCacheLine, room.slot_bytes);
  }
  // Returns the words of a slot; below 1: the room is too small.
  int words() const { return int((slot_bytes() - room.tail_bytes) / 8); }
  int64_t offset(int writer, int owner, int spare = 0) const {
    return room.offset + (int64_t(spare) * rows() + row(writer, owner)) * slot_bytes();
  }
};

// Throws TransportError if wrong data has come over a link of `rank`. `here`, `there`: the rank and
// its peer, for the text; `remedy`: the advice in it.
struct ProbeNames {
  std::string here, there, remedy;
};
void check_probed(const ProbedLink& link, const ProbeWords& words, int rank, Milliseconds patience,
                  const ProbeNames& names);

// A rank's view of the ring that is being made, for the probe.
struct ProbedRing {
  const Segments& segments;
  ProbeRoom room;
  Transport& transport;
  Control& control;
  Milliseconds timeout;
};

// Returns `mine`, the ranks whose memory this rank has mapped, without those that have not mapped
// this rank's memory; one bit each. All ranks must call it.
uint32_t mapped_by_both(Control& control, uint32_t mine, const Look& look);

// Throws TransportError, which names the link, if this rank has not received the written data.
// `look` is called periodically, and throws when waiting is pointless.
void probe_links(const ProbedRing& ring, const Id& session, const Look& look);

}  // namespace ringkern
