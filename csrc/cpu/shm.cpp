#include "cpu/shm.h"

#include <sys/random.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <system_error>

namespace ringkern::cpu {
namespace {

constexpr size_t kPage = 4096;

}  // namespace

ShmTransport::ShmTransport(int64_t bytes, std::shared_ptr<Arenas> arenas)
    : bytes_(bytes), file_(bytes), arenas_(std::move(arenas)) {
  file_.allocate(0, bytes);
  mine_ = mappings_.map(file_.fd(), 0, bytes);
  if (arenas_ == nullptr) return;
  try {
    arenas_->mine = &Arena::mine();
    arenas_->file = arenas_->mine->file();
  } catch (const SharedMemoryError&) {
    // This rank then has no shared tensors, and a request for one throws the reason.
  }
}

ShmTransport::~ShmTransport() {
  // The device, which owns the arenas, lives as long as the communicator's object.
  if (arenas_ == nullptr) return;
  arenas_->of.clear();
  arenas_->file.reset();
}

void ShmTransport::shut_out(Milliseconds patience) {
  if (arenas_ != nullptr && arenas_->mine != nullptr) arenas_->mine->renew(patience);
}

Offer ShmTransport::offer() {
  Offer offer{"", {file_.fd()}};
  if (arenas_ != nullptr && arenas_->mine != nullptr) offer.fds.push_back(arenas_->file->fd());
  return offer;
}

void* ShmTransport::map(const Offer& offer, int peer) {
  check_memory_of(peer, offer.fd(), bytes_, names_);
  if (arenas_ != nullptr && arenas_->mine != nullptr && offer.fd(1) >= 0) {
    if (arenas_->of.size() <= size_t(peer)) arenas_->of.resize(size_t(peer) + 1);
    arenas_->of[size_t(peer)] = PeerArena::of(peer, offer.fd(1), arenas_->mine->bytes(), names_);
  }
  return mappings_.map(offer.fd(), 0, bytes_, "mmap of the memory of " + names_.text(peer));
}

// ---- ranks of one process -----------------------------------------------------------------------

LocalMemory::LocalMemory()
    : nonce_([] {
        std::array<uint64_t, 2> nonce;
        if (::getrandom(nonce.data(), sizeof nonce, 0) != ssize_t(sizeof nonce))
          throw std::system_error(errno, std::generic_category(), "getrandom");
        return nonce;
      }()) {}

LocalTransport::LocalTransport(std::shared_ptr<LocalMemory> memory, int64_t bytes)
    : memory_(std::move(memory)), bytes_(bytes),
      mine_(std::aligned_alloc(kPage, size_t(align_up(bytes, kPage))), std::free) {
  if (mine_ == nullptr)
    throw SharedMemoryError("a rank needs " + mib(double(bytes)) +
                            " of memory, which the process cannot allocate. Run fewer ranks");
  std::memset(mine_.get(), 0, size_t(bytes));
  std::lock_guard lock(memory_->mutex_);
  index_ = memory_->segments_.size();
  memory_->segments_.push_back(mine_);
}

Offer LocalTransport::offer() {
  const Ticket ticket{memory_->nonce_, ::getpid(), bytes_, index_};
  return {std::string(reinterpret_cast<const char*>(&ticket), sizeof ticket)};
}

void* LocalTransport::map(const Offer& offer, int peer) {
  const auto refuse = [&](const std::string& why) {
    throw TransportError("the memory offered by " + names_.text(peer) + " is refused: " + why);
  };
  Ticket ticket{};
  if (offer.bytes.size() != sizeof ticket)
    refuse("expected the " + std::to_string(sizeof ticket) + " bytes of a thread's offer, found " +
           std::to_string(offer.bytes.size()));
  std::memcpy(&ticket, offer.bytes.data(), sizeof ticket);
  if (ticket.nonce != memory_->nonce_ || ticket.pid != ::getpid())
    refuse("it belongs to another process or group of threads (pid " + std::to_string(ticket.pid) +
           ", this is pid " + std::to_string(::getpid()) + ")");
  if (ticket.bytes != bytes_)
    refuse("expected " + std::to_string(bytes_) + " bytes, found " + std::to_string(ticket.bytes));
  std::shared_ptr<void> segment;
  {
    std::lock_guard lock(memory_->mutex_);
    if (ticket.index < memory_->segments_.size()) segment = memory_->segments_[ticket.index].lock();
  }
  if (segment == nullptr) refuse("its communicator is closed. Make a new one on all ranks");
  mapped_.push_back(segment);
  return segment.get();
}

}  // namespace ringkern::cpu
