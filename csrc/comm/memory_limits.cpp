#include "comm/memory_limits.h"

#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "comm/interfaces.h"

namespace ringkern {
namespace {

// Calls `take` with each line of a kernel file, without the newline; never if there is no file.
template <class F>
void each_line(const std::string& path, F&& take) {
  FILE* file = std::fopen(path.c_str(), "re");
  if (file == nullptr) return;
  char line[512];
  while (std::fgets(line, sizeof line, file) != nullptr) {
    line[std::strcspn(line, "\n")] = 0;
    take(line);
  }
  std::fclose(file);
}

// Returns the number in a kernel file; `otherwise` if there is no file, or no number but "max".
double number_in(const std::string& path, double otherwise) {
  double number = otherwise;
  each_line(path, [&](const char* line) { (void)!std::sscanf(line, "%lf", &number); });
  return number;
}

struct Machine {
  double memory = INFINITY, swap = 0;  // bytes that are left
};

Machine machine() {
  double memory_kib = -1, swap_kib = 0;
  each_line("/proc/meminfo", [&](const char* line) {
    (void)!std::sscanf(line, "MemAvailable: %lf", &memory_kib);
    (void)!std::sscanf(line, "SwapFree: %lf", &swap_kib);
  });
  return {memory_kib < 0 ? INFINITY : memory_kib * 1024, swap_kib * 1024};
}

// The memory cgroup of this process, of version 1 or 2.
struct CgroupPath {
  bool v1 = false;
  std::string path;
};

CgroupPath cgroup_path() {
  CgroupPath found;
  each_line("/proc/self/cgroup", [&](const char* line) {  // "4:memory:/path" or "0::/path"
    const std::string s(line);
    const size_t controllers = s.find(':') + 1, end = s.find(':', controllers);
    if (controllers == 0 || end == std::string::npos || found.v1) return;
    found.v1 = s.compare(controllers, end - controllers, "memory") == 0;
    if (found.v1 || s.compare(0, 3, "0::") == 0) found.path = s.substr(end + 1);
  });
  return found;
}

// Returns the memory that the kernel reclaims first: pages of files, which it can read again. Does
// not use the kernel's lists of pages, which lag behind.
double reclaimable(const std::string& dir, bool v1) {
  const std::string cache = v1 ? "total_cache " : "file ", shared = v1 ? "total_shmem " : "shmem ";
  double sum = 0;
  each_line(dir + "/memory.stat", [&](const char* line) {
    for (const auto& [key, sign] : {std::pair(cache, 1), std::pair(shared, -1)})
      if (std::strncmp(line, key.c_str(), key.size()) == 0)
        sum += sign * std::strtod(line + key.size(), nullptr);
  });
  return std::max(sum, 0.0);
}

// Returns the limit of one cgroup; nothing if it has none.
MemoryLimit limit_of(const std::string& dir, const CgroupPath& at, double wanted, double swap) {
  const std::string file = dir + "/memory.";
  const double limit = number_in(file + (at.v1 ? "limit_in_bytes" : "max"), INFINITY);
  if (limit > 1e18) return {};  // version 1 writes "none" as a large number
  const double used = number_in(file + (at.v1 ? "usage_in_bytes" : "current"), 0);
  double left = limit - used;
  if (left < wanted) {
    const double files = reclaimable(dir, at.v1);
    if (at.v1) {  // the second limit is that of memory and swap together
      const double both = number_in(file + "memsw.limit_in_bytes", INFINITY) -
                          number_in(file + "memsw.usage_in_bytes", 0);
      left = std::min(left + swap, both) + files;
    } else {
      const double swappable =
          number_in(file + "swap.max", INFINITY) - number_in(file + "swap.current", 0);
      left += files + std::clamp(swappable, 0.0, swap);
    }
  }
  left = std::max(left, 0.0);
  return {left,
          "The memory cgroup " + at.path + " allows " + mib(limit) + " and holds " + mib(used),
          "Raise its limit (docker: --memory), or run fewer ranks in it", limit >= wanted};
}

MemoryLimit tighter(MemoryLimit a, MemoryLimit b) { return b.left < a.left ? b : a; }

// Returns the tightest limit of the cgroups from this process's to the root. A container sees only
// its own part of them, under another path.
MemoryLimit cgroup_left(double wanted, double swap) {
  CgroupPath at = cgroup_path();
  MemoryLimit tightest;
  for (bool root = false; !root; at.path.resize(root ? 0 : at.path.rfind('/'))) {
    root = at.path.rfind('/') == std::string::npos || at.path == "/";
    const std::string dir = std::string("/sys/fs/cgroup") + (at.v1 ? "/memory" : "") + at.path;
    tightest = tighter(std::move(tightest), limit_of(dir, at, wanted, swap));
  }
  return tightest;
}

MemoryLimit open_files() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  return {INFINITY,
          "This process has reached its limit of " + std::to_string(limit.rlim_cur) +
              " open files (ulimit -n)",
          "Raise that limit, or close files"};
}

MemoryLimit addresses_left() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return {};
  // The first number counts pages.
  const double used = number_in("/proc/self/statm", 0) * double(::sysconf(_SC_PAGESIZE));
  return {std::max(0.0, double(limit.rlim_cur) - used),
          "The limit on address space (ulimit -v) is " + mib(double(limit.rlim_cur)) + ", and " +
              mib(used) + " are in use",
          "Raise that limit"};
}

MemoryLimit mappings_left() {
  const double most = number_in("/proc/sys/vm/max_map_count", INFINITY);
  double used = 0;
  each_line("/proc/self/maps", [&](const char*) { ++used; });
  if (used < most - 2) return {};
  return {0, "This process has reached its limit of mappings (sysctl vm.max_map_count)",
          "Raise that limit, or use fewer communicators at a time"};
}

MemoryLimit room_on(int fd) {
  struct statvfs status;
  if (::fstatvfs(fd, &status) != 0 || status.f_blocks == 0) return {};  // of a memfd
  return {double(status.f_bavail) * double(status.f_frsize),
          "This process may not call memfd_create, and /dev/shm has " +
              mib(double(status.f_blocks) * double(status.f_frsize)) + " in all",
          "Allow memfd_create, or make /dev/shm larger (docker: --shm-size)"};
}

}  // namespace

MemoryLimit memory_left(double wanted) {
  const Machine m = machine();
  const MemoryLimit of_machine{m.memory + m.swap,
                               "The machine has " + mib(m.memory) + " of memory left and " +
                                   mib(m.swap) + " of swap",
                               "Run fewer ranks, or end other processes that use memory"};
  return tighter(of_machine, cgroup_left(wanted, m.swap));
}

MemoryLimit limit_behind(int error, double wanted, int fd, bool maps) {
  switch (error) {
    case EMFILE: return open_files();
    case ENFILE:
      return {INFINITY, "This machine has reached its limit of open files (sysctl fs.file-max)",
              "Raise that limit"};
    case EFBIG:
      return {longest_file(), "The limit on file size (ulimit -f) is " + mib(longest_file()),
              "Raise that limit"};
    case ENOSPC: return room_on(fd);
    case ENOMEM:
      if (maps)
        for (const MemoryLimit& limit : {addresses_left(), mappings_left()})
          if (limit.left < wanted) return limit;
      return memory_left(wanted);
  }
  return {};
}

double longest_file() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return INFINITY;
  return double(limit.rlim_cur);
}

}  // namespace ringkern
