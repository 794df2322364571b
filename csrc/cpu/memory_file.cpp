#include "cpu/memory_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <system_error>

// Newer than the headers of some systems that this has to be built on.
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

namespace ringkern::cpu {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

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

[[noreturn]] void fail(const std::string& call, int error, int64_t bytes) {
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
  throw SharedMemoryError("a rank needs " + mib(double(bytes)) + " of shared memory: " + call +
                          ": " + error_text(error) + limits +
                          ". Raise the limit, run fewer ranks, or use fewer or smaller slots");
}

}  // namespace

MemoryFile::MemoryFile(int64_t bytes) {
  rlimit limit{};
  // Asking for more would be answered with SIGXFSZ, which ends the process.
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && uint64_t(bytes) > limit.rlim_cur)
    fail("fallocate", EFBIG, bytes);
  fd_ = create_file();
  if (fd_ < 0) fail("memfd_create", errno, bytes);
  const char* call = "ftruncate";
  if (::ftruncate(fd_, bytes) == 0) {
    call = "fcntl(F_ADD_SEALS)";
    if (::fcntl(fd_, F_ADD_SEALS, kSeals) == 0) return;
  }
  const int error = errno;
  ::close(fd_);
  fail(call, error, bytes);
}

MemoryFile::~MemoryFile() { ::close(fd_); }

void MemoryFile::allocate(int64_t at, int64_t bytes) {
  // The kernel does not refuse memory that it has not: it ends processes until it has.
  if (double(bytes) > std::min(free_memory(), cgroup_memory().limit))
    fail("fallocate", ENOMEM, bytes);
  int error;
  do error = ::posix_fallocate(fd_, at, bytes);
  while (error == EINTR);
  if (error != 0) fail("fallocate", error, bytes);
}

void check_memory_of(int peer, int fd, int64_t bytes) {
  const auto refuse = [&](const std::string& expected, const std::string& found) {
    throw TransportError("the memory offered by rank " + std::to_string(peer) +
                         " is refused: expected " + expected + ", found " + found);
  };
  struct stat status;
  if (fd < 0) refuse("a file descriptor", "none");
  if (::fstat(fd, &status) != 0) refuse("a file descriptor", error_text(errno));
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0 || !S_ISREG(status.st_mode)) refuse("a memory file", "a file of another kind");
  if ((seals & kSeals) != kSeals)
    refuse("a memory file that nobody can resize", "seals " + std::to_string(seals));
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
  void* mapped = ::mmap(nullptr, size_t(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, fd, at);
  if (mapped == MAP_FAILED) fail(what, errno, bytes);
  mappings_.push_back({mapped, size_t(bytes)});
  ::madvise(mapped, size_t(bytes), MADV_HUGEPAGE);  // best effort
  return mapped;
}

std::string mib(double bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f MiB", bytes / (1 << 20));
  return text;
}

}  // namespace ringkern::cpu
