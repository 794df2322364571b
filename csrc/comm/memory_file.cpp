#include "comm/memory_file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <thread>

#include "comm/memory_limits.h"

// Missing in the headers of some supported systems.
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

namespace ringkern {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

std::string error_text(int error) { return std::generic_category().message(error); }

[[noreturn]] void fail(const std::string& call, int error, int64_t bytes,
                       const MemoryLimit& limit) {
  std::string text = "this process (pid " + std::to_string(::getpid()) + ") needs " +
                     mib(double(bytes)) + " of shared memory";
  if (std::isfinite(limit.left)) text += ", and " + mib(limit.left) + " is left";
  text += ": " + call + ": " + error_text(error);
  if (!limit.what.empty()) text += ". " + limit.what + ". " + limit.remedy;
  throw SharedMemoryError(text);
}

int create_memfd() {
  // Never executable, if the kernel knows the flag; some systems refuse executable files.
  const unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  const int fd = ::memfd_create("ringkern", flags | MFD_NOEXEC_SEAL);
  return fd < 0 && errno == EINVAL ? ::memfd_create("ringkern", flags) : fd;
}

bool is_tmpfs(int fd) {
  struct statfs status;
  return ::fstatfs(fd, &status) == 0 && status.f_type == TMPFS_MAGIC;
}

// Opens a substitute for a memfd, which the kernel refused with `refusal`.
int create_in_dev_shm(int refusal, int64_t bytes) {
  const int fd = ::open("/dev/shm", O_TMPFILE | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
  const int error = errno;
  if (fd >= 0 && is_tmpfs(fd)) return fd;
  if (fd >= 0) ::close(fd);  // a disk: its pages would be written there
  const std::string without = "memfd_create: " + error_text(refusal) + ", and ";
  const std::string remedy = "Allow memfd_create, or mount a tmpfs at /dev/shm";
  if (fd >= 0)
    fail(without + "/dev/shm", ENOTSUP, bytes, {INFINITY, "/dev/shm is not a tmpfs", remedy});
  if (error == EMFILE || error == ENFILE)
    fail("open", error, bytes, limit_behind(error, double(bytes), -1, false));
  fail(without + "open(/dev/shm)", error, bytes,
       {INFINITY, "Neither can hold shared memory", remedy});
}

// Returns whether a received file is such a substitute. An unsealed memfd is not: other users may
// open it.
bool stands_in_for_memfd(int fd, const struct stat& status) {
  return status.st_nlink == 0 && (status.st_mode & 077) == 0 && is_tmpfs(fd);
}

// `place`: where; null: anywhere.
void* map_at(void* place, int fd, int64_t at, int64_t bytes, const std::string& what) {
  const int flags = place == nullptr ? MAP_SHARED : MAP_SHARED | MAP_FIXED;
  void* const mapped = ::mmap(place, size_t(bytes), PROT_READ | PROT_WRITE, flags, fd, at);
  if (mapped == MAP_FAILED) {
    const int error = errno;
    fail(what, error, bytes, limit_behind(error, double(bytes), fd, true));
  }
  ::madvise(mapped, size_t(bytes), MADV_HUGEPAGE);  // best effort
  return mapped;
}

}  // namespace

MemoryFile::MemoryFile(int64_t bytes) {
  // A larger file would raise SIGXFSZ, which ends the process.
  if (double(bytes) > longest_file())
    fail("ftruncate", EFBIG, bytes, limit_behind(EFBIG, double(bytes), -1, false));
  fd_ = create_memfd();
  const bool sealable = fd_ >= 0;
  if (!sealable) {
    const int error = errno;
    if (error != ENOSYS && error != EPERM && error != EACCES)
      fail("memfd_create", error, bytes, limit_behind(error, double(bytes), -1, false));
    fd_ = create_in_dev_shm(error, bytes);
  }
  const char* call = "ftruncate";
  if (::ftruncate(fd_, bytes) == 0) {
    call = "fcntl(F_ADD_SEALS)";
    if (!sealable || ::fcntl(fd_, F_ADD_SEALS, kSeals) == 0) return;
  }
  const int error = errno;
  ::close(fd_);
  fail(call, error, bytes, limit_behind(error, double(bytes), -1, false));
}

MemoryFile::~MemoryFile() { ::close(fd_); }

void MemoryFile::allocate(int64_t at, int64_t bytes) {
  // The kernel does not refuse memory that it lacks: it ends processes until it has enough.
  MemoryLimit limit = memory_left(double(bytes));
  const auto end = Clock::now() + kCounted;
  for (; limit.left < double(bytes); limit = memory_left(double(bytes))) {
    if (!limit.may_be_more || Clock::now() >= end)
      fail("not allocated, because the kernel would kill processes", ENOMEM, bytes, limit);
    std::this_thread::sleep_for(Milliseconds(100));
  }
  int error;
  do error = ::posix_fallocate(fd_, at, bytes);
  while (error == EINTR);
  if (error != 0) fail("fallocate", error, bytes, limit_behind(error, double(bytes), fd_, false));
}

void check_memory_of(int peer, int fd, int64_t bytes, const RankNames& names) {
  const auto refuse = [&](const std::string& expected, const std::string& found) {
    throw TransportError("the memory offered by " + names.text(peer) + " is refused: expected " +
                             expected + ", found " + found +
                             ". Start all ranks as the same user, with the same ringkern",
                         {names.number(peer)});
  };
  struct stat status;
  if (fd < 0) refuse("a file descriptor", "none");
  if (::fstat(fd, &status) != 0) refuse("a file descriptor", error_text(errno));
  const int seals = ::fcntl(fd, F_GET_SEALS), error = errno;
  const bool sealed = seals >= 0 && (seals & kSeals) == kSeals;
  if (!S_ISREG(status.st_mode) || (seals < 0 && error == EINVAL && !is_tmpfs(fd)))
    refuse("a memory file", "a file of another kind");
  if (!sealed && !stands_in_for_memfd(fd, status))
    refuse("a memory file that nobody can resize",
           seals < 0 ? "one whose seals cannot be read: " + error_text(error)
                     : "one with seals " + std::to_string(seals));
  if (status.st_uid != ::geteuid())
    refuse("memory of user " + std::to_string(::geteuid()),
           "memory of user " + std::to_string(status.st_uid));
  if (status.st_size != bytes)
    refuse(std::to_string(bytes) + " bytes", std::to_string(status.st_size));
}

Mappings::~Mappings() {
  for (const Mapping& m : mappings_) ::munmap(m.at, m.bytes);
}

void* Mappings::map(int fd, int64_t at, int64_t bytes, const std::string& what) {
  mappings_.reserve(mappings_.size() + 1);
  void* const mapped = map_at(nullptr, fd, at, bytes, what);
  mappings_.push_back({mapped, size_t(bytes)});
  return mapped;
}

void Mappings::replace(void* mapped, int fd) {
  for (const Mapping& m : mappings_)
    if (m.at == mapped) map_at(mapped, fd, 0, int64_t(m.bytes), "mmap");
}

}  // namespace ringkern
