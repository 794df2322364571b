#include "cpu/shm.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <system_error>

// Newer than the headers of some systems that this has to be built on.
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

namespace ringkern::cpu {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr size_t kPage = 4096;

std::string mib(double bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f MiB", bytes / (1 << 20));
  return text;
}

std::string error_text(int error) { return std::generic_category().message(error); }

// Adds a limit of the process to the text, if there is one.
void add_limit(std::string& text, const char* name, const rlimit& limit) {
  if (limit.rlim_cur != RLIM_INFINITY)
    text += std::string(", ") + name + " is " + mib(double(limit.rlim_cur));
}

// A number from a file of the kernel's; 0 when there is none.
double number_in(const std::string& path) {
  double number = 0;
  if (FILE* file = std::fopen(path.c_str(), "re")) {
    if (std::fscanf(file, "%lf", &number) != 1) number = 0;
    std::fclose(file);
  }
  return number;
}

// What the whole machine could still give, as far as the kernel tells.
double free_memory() {
  double kib = 0;
  FILE* file = std::fopen("/proc/meminfo", "re");
  if (file == nullptr) return INFINITY;
  char line[256];
  double value;
  while (std::fgets(line, sizeof line, file) != nullptr)
    if (std::sscanf(line, "MemAvailable: %lf", &value) == 1 ||
        std::sscanf(line, "SwapFree: %lf", &value) == 1)
      kib += value;
  std::fclose(file);
  return kib > 0 ? kib * 1024 : INFINITY;
}

struct CgroupMemory {
  double limit = INFINITY, used = 0;
};

// The nearest memory limit on the way from this process's cgroup to the root.
CgroupMemory cgroup_memory() {
  FILE* groups = std::fopen("/proc/self/cgroup", "re");
  if (groups == nullptr) return {};
  char line[512];
  std::string path;
  bool v1 = false;
  while (!v1 && std::fgets(line, sizeof line, groups) != nullptr) {
    const std::string s(line, std::strcspn(line, "\n"));  // "4:memory:/path" or "0::/path"
    const size_t controllers = s.find(':') + 1, end = s.find(':', controllers);
    if (controllers == 0 || end == std::string::npos) continue;
    v1 = s.compare(controllers, end - controllers, "memory") == 0;
    if (v1 || s.compare(0, 3, "0::") == 0) path = s.substr(end + 1);
  }
  std::fclose(groups);
  for (bool root = false; !root; path.resize(root ? 0 : path.rfind('/'))) {
    root = path.rfind('/') == std::string::npos || path == "/";
    const std::string dir = std::string("/sys/fs/cgroup") + (v1 ? "/memory" : "") + path;
    const double limit = number_in(dir + (v1 ? "/memory.limit_in_bytes" : "/memory.max"));
    const double used = number_in(dir + (v1 ? "/memory.usage_in_bytes" : "/memory.current"));
    // Version 1 writes "none" as a large number.
    if (limit > 0 && limit < 1e18) return {limit, used};
  }
  return {};
}

int create_file() {
  // Never executable, where the kernel knows the flag; some are set up to refuse any other.
  const unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  const int fd = ::memfd_create("ringkern", flags | MFD_NOEXEC_SEAL);
  return fd < 0 && errno == EINVAL ? ::memfd_create("ringkern", flags) : fd;
}

}  // namespace

// Delegates, because the destructor then gives back what a constructor that throws has taken.
ShmTransport::ShmTransport(int64_t bytes) : ShmTransport(bytes, Nothing{}) {
  fd_ = create_file();
  if (fd_ < 0) fail("memfd_create", errno);
  rlimit limit{};
  // Asking for more would be answered with SIGXFSZ, which ends the process.
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && uint64_t(bytes) > limit.rlim_cur)
    fail("fallocate", EFBIG);
  // Nor does the kernel refuse memory that it has not: it ends processes until it has.
  if (double(bytes) > std::min(free_memory(), cgroup_memory().limit)) fail("fallocate", ENOMEM);
  int error;
  do error = ::posix_fallocate(fd_, 0, bytes);
  while (error == EINTR);
  if (error != 0) fail("fallocate", error);
  if (::fcntl(fd_, F_ADD_SEALS, kSeals) != 0) fail("fcntl(F_ADD_SEALS)", errno);
  if (add_mapping(fd_) == nullptr) fail("mmap", errno);
}

ShmTransport::~ShmTransport() {
  for (void* at : mappings_) ::munmap(at, size_t(bytes_));
  if (fd_ >= 0) ::close(fd_);
}

void ShmTransport::fail(const std::string& call, int error) const {
  rlimit file{}, space{};
  ::getrlimit(RLIMIT_FSIZE, &file);
  ::getrlimit(RLIMIT_AS, &space);
  std::string limits;
  if (error == EMFILE) limits += ", too many files are open (ulimit -n)";
  add_limit(limits, "the limit on file size (ulimit -f)", file);
  add_limit(limits, "the limit on address space (ulimit -v)", space);
  if (const CgroupMemory cgroup = cgroup_memory(); std::isfinite(cgroup.limit))
    limits += ", the memory cgroup allows " + mib(cgroup.limit) + " and holds " + mib(cgroup.used);
  if (const double free = free_memory(); error == ENOMEM && std::isfinite(free))
    limits += ", the machine has " + mib(free) + " left";
  throw SharedMemoryError("a rank needs " + mib(double(bytes_)) + " of shared memory: " + call +
                          ": " + error_text(error) + limits +
                          ". Raise the limit, run fewer ranks, or use fewer or smaller slots");
}

void* ShmTransport::add_mapping(int fd) {
  mappings_.reserve(mappings_.size() + 1);
  void* at = ::mmap(nullptr, size_t(bytes_), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) return nullptr;
  mappings_.push_back(at);
  const int error = errno;
  ::madvise(at, size_t(bytes_), MADV_HUGEPAGE);  // best effort
  errno = error;
  return at;
}

void* ShmTransport::map(const Offer& offer, int peer) {
  const auto refuse = [&](const std::string& expected, const std::string& found) {
    throw TransportError("the memory offered by rank " + std::to_string(peer) +
                         " is refused: expected " + expected + ", found " + found);
  };
  struct stat status;
  if (offer.fd < 0) refuse("a file descriptor", "none");
  if (::fstat(offer.fd, &status) != 0) refuse("a file descriptor", error_text(errno));
  const int seals = ::fcntl(offer.fd, F_GET_SEALS);
  if (seals < 0 || !S_ISREG(status.st_mode)) refuse("a memory file", "a file of another kind");
  if ((seals & kSeals) != kSeals)
    refuse("a memory file that nobody can resize", "seals " + std::to_string(seals));
  if (status.st_uid != ::geteuid())
    refuse("memory of user " + std::to_string(::geteuid()),
           "memory of user " + std::to_string(status.st_uid));
  if (status.st_size != bytes_)
    refuse(std::to_string(bytes_) + " bytes", std::to_string(status.st_size));
  void* at = add_mapping(offer.fd);
  if (at == nullptr) fail("mmap of the memory of rank " + std::to_string(peer), errno);
  return at;
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
    : memory_(std::move(memory)),
      bytes_(bytes),
      mine_(std::aligned_alloc(kPage, size_t(align_up(bytes, kPage))), std::free) {
  if (mine_ == nullptr)
    throw SharedMemoryError("a rank needs " + mib(double(bytes)) + " of memory: out of memory");
  std::memset(mine_.get(), 0, size_t(bytes));
  std::lock_guard lock(memory_->mutex_);
  index_ = memory_->segments_.size();
  memory_->segments_.push_back(mine_);
}

Offer LocalTransport::offer() {
  const Ticket ticket{memory_->nonce_, ::getpid(), bytes_, index_};
  return {std::string(reinterpret_cast<const char*>(&ticket), sizeof ticket), -1};
}

void* LocalTransport::map(const Offer& offer, int peer) {
  const auto refuse = [&](const std::string& why) {
    throw TransportError("the memory offered by rank " + std::to_string(peer) +
                         " is refused: " + why);
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
  if (segment == nullptr) refuse("that rank has gone");
  mapped_.push_back(segment);
  return segment.get();
}

}  // namespace ringkern::cpu
