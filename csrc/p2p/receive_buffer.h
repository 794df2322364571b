// The memory to which other ranks write their messages: one memory file with a bell and, for each
// other rank, the counters of the links to and from it and the FIFOs of the link from it.
//
// The file has room for all ranks, but takes memory only for the head, and for the FIFOs of a rank
// when the two meet. Two ranks that have met are like neighbours on a ring of two: each is next and
// prev of the other.
#pragma once

#include <vector>

#include "comm/memory_file.h"
#include "cpu/link.h"

namespace ringkern::cpu {

class ReceiveBuffer {
 public:
  // Throws SharedMemoryError, as do the functions below.
  ReceiveBuffer(int rank, int ranks, const Geometry& geometry, RankNames names = {});

  Bell& bell() const { return *mine_.front().bell; }
  int fd() const { return file_.fd(); }
  int64_t bytes() const { return bytes_; }
  const Geometry& geometry() const { return geometry_; }
  const RankNames& names() const { return names_; }

  // Allocates the FIFOs for `peer`; does nothing the second time. One thread at a time, as for
  // `map`.
  void open(int peer);
  // Maps this rank's part of the peer's buffer; does nothing the second time. Does not keep the
  // descriptor.
  // Throws TransportError unless the file has the size of such a buffer.
  void map(int peer, int fd);
  // The links with a peer, once it is open and mapped.
  Ends ends(int peer, Protocol p) const;

 private:
  LinkMemory view(std::byte* head, std::byte* fifos, int of) const;

  const int rank_;
  const Geometry geometry_;
  const int64_t page_, head_bytes_, fifo_bytes_, bytes_;
  MemoryFile file_;
  Mappings mappings_;
  std::byte* head_ = nullptr;
  std::vector<LinkMemory> mine_, theirs_;  // of each other rank
  const RankNames names_;
};

}  // namespace ringkern::cpu
