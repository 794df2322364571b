#include "p2p/receive_buffer.h"

#include <unistd.h>

#include <utility>

namespace ringkern::cpu {

ReceiveBuffer::ReceiveBuffer(int rank, int ranks, const Geometry& geometry, RankNames names)
    : rank_(rank), geometry_(geometry), page_(::sysconf(_SC_PAGESIZE)),
      head_bytes_(align_up(kBellBytes + ranks * geometry.counters_bytes(), page_)),
      fifo_bytes_(align_up(geometry.bytes() - geometry.counters_bytes(), page_)),
      bytes_(head_bytes_ + ranks * fifo_bytes_), file_(bytes_), mine_(size_t(ranks)),
      theirs_(size_t(ranks)), names_(std::move(names)) {
  file_.allocate(0, head_bytes_);
  head_ = static_cast<std::byte*>(mappings_.map(file_.fd(), 0, head_bytes_));
  for (int r = 0; r < ranks; ++r) mine_[size_t(r)] = view(head_, nullptr, r);
}

LinkMemory ReceiveBuffer::view(std::byte* head, std::byte* fifos, int of) const {
  std::byte* const counters = head + kBellBytes + of * geometry_.counters_bytes();
  return {reinterpret_cast<Bell*>(head), reinterpret_cast<LinkCounters*>(counters), fifos};
}

void ReceiveBuffer::open(int peer) {
  LinkMemory& mine = mine_[size_t(peer)];
  if (mine.fifos != nullptr) return;
  const int64_t at = head_bytes_ + peer * fifo_bytes_;
  file_.allocate(at, fifo_bytes_);
  mine.fifos = static_cast<std::byte*>(mappings_.map(file_.fd(), at, fifo_bytes_));
}

void ReceiveBuffer::map(int peer, int fd) {
  LinkMemory& theirs = theirs_[size_t(peer)];
  if (theirs.fifos != nullptr) return;
  check_memory_of(peer, fd, bytes_, names_);
  const std::string what = "mmap of the memory of " + names_.text(peer);
  void* const head = mappings_.map(fd, 0, head_bytes_, what);
  void* const fifos = mappings_.map(fd, head_bytes_ + rank_ * fifo_bytes_, fifo_bytes_, what);
  theirs = view(static_cast<std::byte*>(head), static_cast<std::byte*>(fifos), rank_);
}

Ends ReceiveBuffer::ends(int peer, Protocol p) const {
  const LinkMemory& theirs = theirs_[size_t(peer)];
  return Ends(mine_[size_t(peer)], theirs, theirs, geometry_, p);
}

}  // namespace ringkern::cpu
