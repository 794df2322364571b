// Data that is moved over every link before there is a ring: memory that is mapped and yet leads
// elsewhere, as behind an IOMMU, is found by who should have received, and named.
//
// WHAT       words that follow from the session, the writer, the reader and the place, so that
//            nothing of another link, or of another time, passes for them.
// WHERE      in the FIFO of Simple of channel 0: its data mean nothing until a counter says so, and
//            no counter is touched. So nothing has to be cleared, and no memory is set apart.
// HOW        as collectives move data: a Transport knows. The one who checks is the owner of the
//            memory; who writes and reads back might see a copy of its own.
// WHEN       when a rank has mapped the others' memory, and has written there or is about to, it
//            says so on its control page, which is no part of what is probed, and with it whose
//            memory it reaches. So the others know what to wait for, and for how long:
//            kProbePatience from when all have said so. Each votes for the ring once it has found
//            what it should.
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

// Up to this many ranks, all links are probed; beyond, those between neighbours.
inline constexpr bool is_probed(int rank, int peer, int ranks) {
  return ranks <= kMostProbed || (rank + 1) % ranks == peer || (peer + 1) % ranks == rank;
}

// The same on all ranks of a ring, and on no other.
uint64_t probe_seed(const Id& session);

class ProbeWords {
 public:
  ProbeWords(uint64_t seed, int ranks, RankNames names = {})
      : seed_(seed), ranks_(ranks), names_(std::move(names)) {}

  // The words that `writer` writes for `reader`; no word is 0, which is fresh memory.
  std::vector<uint64_t> words(int writer, int reader, int count) const;
  // Describes the difference from that, such as "37 of 3584 bytes differ, ..."; nothing: nothing
  // does.
  std::optional<std::string> difference(int writer, int reader,
                                        const std::vector<uint64_t>& found) const;

  const RankNames& names() const { return names_; }

 private:
  uint64_t seed_of(int writer, int reader) const;

  const uint64_t seed_;
  const int ranks_;
  const RankNames names_;
};

// How the room is cut: in each segment a slot for each rank that writes there, the owner among
// them, and for each such slot two more that only the owner uses.
struct ProbeSlots {
  ProbeRoom room;
  int ranks = 1;

  // Where only neighbours are probed, there are slots for them and the owner.
  int rows() const { return ranks <= kMostProbed ? ranks : 3; }
  int row(int writer, int owner) const {
    if (ranks <= kMostProbed) return writer;
    return writer == owner ? 0 : (writer + 1) % ranks == owner ? 1 : 2;
  }
  int64_t slot_bytes() const {
    return std::min(room.bytes / (3 * rows()) / kCacheLine * kCacheLine, room.slot_bytes);
  }
  // Below 1: there is no room.
  int words() const { return int((slot_bytes() - room.tail_bytes) / 8); }
  int64_t offset(int writer, int owner, int spare = 0) const {
    return room.offset + (int64_t(spare) * rows() + row(writer, owner)) * slot_bytes();
  }
};

// Throws TransportError where something else has come over a link of `rank` than should have.
// `here`, `there`: the rank and its peer, for the text; `remedy`: what to do.
struct ProbeNames {
  std::string here, there, remedy;
};
void check_probed(const ProbedLink& link, const ProbeWords& words, int rank, Milliseconds patience,
                  const ProbeNames& names);

// The links to probe, by one rank of a ring that is being made.
struct ProbedRing {
  const Segments& segments;
  ProbeRoom room;
  Transport& transport;
  Control& control;
  Milliseconds timeout;
};

// Returns whose memory this rank has mapped, `mine`, without that of ranks which have not mapped
// this one's: a bit for each. All ranks call it.
uint32_t mapped_by_both(Control& control, uint32_t mine, const Look& look);

// Throws TransportError, which names the link, where this rank has not received what was written.
// `look` is called now and then, and throws when there is nothing left to wait for.
void probe_links(const ProbedRing& ring, const Id& session, const Look& look);

}  // namespace ringkern
