#include "cpu/arena.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

namespace ringkern::cpu {
namespace {

constexpr int64_t kGranule = 2 << 20;     // unit of memory taken from the system and given back
constexpr int64_t kKeptBytes = 32 << 20;  // kept of a free block, to save system calls
constexpr int64_t kLeastView = 64 << 20;

// Returns the size of the address range: the machine's memory, rounded up to a power of two. It is
// equal on all ranks of a host.
int64_t machine_bytes() {
  const uint64_t bytes = uint64_t(::sysconf(_SC_PHYS_PAGES)) * uint64_t(::sysconf(_SC_PAGESIZE));
  return int64_t(std::bit_ceil(bytes));
}

}  // namespace

Arena& Arena::mine() {
  static std::mutex mutex;
  static Arena* arena = nullptr;
  const std::lock_guard lock(mutex);
  if (arena == nullptr || arena->born_in_ != int(::getpid())) arena = new Arena(machine_bytes());
  return *arena;
}

Arena::Arena(int64_t bytes)
    : bytes_(bytes), born_in_(int(::getpid())), file_(std::make_shared<MemoryFile>(bytes)),
      base_(static_cast<std::byte*>(mappings_.map(file_->fd(), 0, bytes))), free_{{0, bytes}},
      committed_(size_t(div_up(bytes, kGranule))) {}

void* Arena::allocate(int64_t bytes) {
  const int64_t size = align_up(max64(bytes, 1), bytes < kGranule ? kCacheLine : kGranule);
  const int64_t grain = bytes < kGranule ? kCacheLine : kGranule;
  const std::lock_guard lock(mutex_);
  for (const auto& [start, length] : free_) {  // the first that fits: peers map up to the last
    const int64_t at = align_up(start, grain);
    if (at + size > start + length) continue;
    commit(at, size);
    const int64_t end = start + length;
    if (at + size < end) free_.emplace(at + size, end - at - size);
    if (at > start) free_[start] = at - start;
    else free_.erase(start);
    used_.emplace(at, size);
    return base_ + at;
  }
  throw SharedMemoryError("cannot allocate a shared tensor of " + mib(double(bytes)) +
                          ": no free range is that large in the " + mib(double(bytes_)) +
                          " of shared addresses. Free shared tensors");
}

void Arena::free(void* pointer) {
  if (int(::getpid()) != born_in_) return;
  const int64_t place = static_cast<std::byte*>(pointer) - base_;
  const std::lock_guard lock(mutex_);
  const auto used = used_.find(place);
  int64_t at = used->first, bytes = used->second;
  used_.erase(used);
  auto after = free_.lower_bound(at);
  if (after != free_.end() && after->first == at + bytes) {
    bytes += after->second;
    after = free_.erase(after);
  }
  if (after != free_.begin()) {
    if (const auto before = std::prev(after); before->first + before->second == at) {
      at = before->first;
      bytes += before->second;
      free_.erase(before);
    }
  }
  free_.emplace(at, bytes);
  release_granules(at, bytes);
}

// Takes memory from the system for a range. After an error, the part already taken stays.
void Arena::commit(int64_t at, int64_t bytes) {
  const int64_t end = div_up(at + bytes, kGranule);
  for (int64_t g = at / kGranule; g < end;) {
    int64_t last = g;
    while (last < end && !committed_[size_t(last)]) ++last;
    if (last > g) {
      file_->allocate(g * kGranule, min64(last * kGranule, bytes_) - g * kGranule);
      for (; g < last; ++g) committed_[size_t(g)] = true;
    } else {
      ++g;
    }
  }
}

void Arena::release_granules(int64_t at, int64_t bytes) {
  int64_t kept = 0;
  for (int64_t g = div_up(at, kGranule); (g + 1) * kGranule <= at + bytes; ++g) {
    if (!committed_[size_t(g)]) continue;
    kept += kGranule;
    if (kept <= kKeptBytes) continue;
    // If it fails, the memory stays allocated, and is used again.
    if (::fallocate(file_->fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, g * kGranule,
                    kGranule) == 0)
      committed_[size_t(g)] = false;
  }
}

std::shared_ptr<MemoryFile> Arena::file() const {
  const std::lock_guard lock(mutex_);
  return file_;
}

void Arena::renew(Milliseconds patience) {
  const std::unique_lock no_calls(calls_, patience);
  if (!no_calls)
    throw TimeoutError(
        "shared tensors are in use by calls of other communicators, which have not "
        "ended within " +
        seconds_text(patience));
  const std::lock_guard lock(mutex_);
  const auto old = std::exchange(file_, std::make_shared<MemoryFile>(bytes_));
  const auto committed = std::exchange(committed_, std::vector<bool>(committed_.size()));
  try {
    Mappings beside;
    auto* const copy = static_cast<std::byte*>(beside.map(file_->fd(), 0, bytes_));
    for (const auto& [at, bytes] : used_) {
      commit(at, bytes);
      std::memcpy(copy + at, base_ + at, size_t(bytes));
    }
    mappings_.replace(base_, file_->fd());
  } catch (...) {
    file_ = old;
    committed_ = committed;
    throw;
  }
}

int64_t Arena::bytes_in_use() const {
  const std::lock_guard lock(mutex_);
  int64_t sum = 0;
  for (const auto& [at, bytes] : used_) sum += bytes;
  return sum;
}

int64_t Arena::bytes_committed() const {
  const std::lock_guard lock(mutex_);
  int64_t granules = 0;
  for (const bool committed : committed_) granules += committed;
  return granules * kGranule;
}

std::shared_ptr<PeerArena> PeerArena::of(int peer, int fd, int64_t bytes, const RankNames& names) {
  check_memory_of(peer, fd, bytes, names);
  static std::mutex mutex;
  static auto* const known = new std::map<std::pair<dev_t, ino_t>, std::weak_ptr<PeerArena>>;
  struct stat status;
  if (::fstat(fd, &status) != 0)
    throw TransportError("fstat of the memory offered by " + names.text(peer) + ": " +
                         std::generic_category().message(errno));
  const std::lock_guard lock(mutex);
  std::erase_if(*known, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<PeerArena>& entry = (*known)[{status.st_dev, status.st_ino}];
  std::shared_ptr<PeerArena> arena = entry.lock();
  if (arena == nullptr) {
    const int own = ::fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (own < 0)
      throw TransportError("cannot copy the file descriptor of the memory offered by " +
                           names.text(peer) + ": " + std::generic_category().message(errno) +
                           ". Raise the limit on open files (ulimit -n)");
    entry = arena = std::make_shared<PeerArena>(own, bytes);
  }
  return arena;
}

PeerArena::PeerArena(int fd, int64_t bytes) : fd_(fd), bytes_(bytes) {}

PeerArena::~PeerArena() { ::close(fd_); }

PeerArena::View PeerArena::view(int64_t at_least) {
  const std::lock_guard lock(mutex_);
  if (at_least > bytes_)
    throw TransportError("a rank names memory that it does not have: up to byte " +
                         std::to_string(at_least) + " of " + std::to_string(bytes_));
  if (at_least > widest_.bytes) {
    // Old mappings stay, because other groups use them. Sizes are powers of two, so all old ones
    // together take at most as many addresses as the new one.
    const int64_t bytes =
        min64(bytes_, max64(kLeastView, int64_t(std::bit_ceil(uint64_t(at_least)))));
    widest_ = {static_cast<std::byte*>(mappings_.map(fd_, 0, bytes)), bytes};
  }
  return widest_;
}

}  // namespace ringkern::cpu
