// Restrictions of a process: no memfd, little room in /dev/shm, little memory. Used in children
// only. If this system does not allow one, the result gives the reason.
#pragma once

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <string>

#include "check.h"

namespace ringkern::faults {

// Makes every call of memfd_create in this process fail, like a container whose seccomp filter does
// not know it.
inline void forbid_memfd(int error) {
  const auto number = uint32_t(offsetof(seccomp_data, nr));
  sock_filter code[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, number),
                        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, uint32_t(SYS_memfd_create), 0, 1),
                        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | uint32_t(error)),
                        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog program{4, code};
  REQUIRE(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
  REQUIRE(::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

// Mounts a file system of this process's own at /dev/shm. Returns an empty text, or the reason for
// the failure.
inline std::string mount_at_dev_shm(const char* kind, const char* options) {
  const auto why = [](const char* call) { return std::string(call) + ": " + std::strerror(errno); };
  if (::unshare(CLONE_NEWNS) != 0) return why("unshare");
  if (::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return why("mount /");
  if (::mount("none", "/dev/shm", kind, 0, options) != 0) return why("mount /dev/shm");
  return "";
}

// A memory cgroup inside this process's, which a child can enter. Its limit is set on a group
// around the child's own one, so that it is not the first limit to be read.
class MemoryCgroup {
 public:
  // The destructor removes the cgroup; `why_not()` is empty unless it could not be made.
  explicit MemoryCgroup(long long limit) {
    std::ifstream groups("/proc/self/cgroup");
    for (std::string line; std::getline(groups, line);) {
      const size_t v1 = line.find(":memory:");
      if (v1 != std::string::npos) {
        set_up("/sys/fs/cgroup/memory" + line.substr(v1 + 8), "memory.limit_in_bytes", limit);
        return;
      }
    }
    std::ifstream own("/proc/self/cgroup");
    for (std::string line; std::getline(own, line);)
      if (line.rfind("0::", 0) == 0) {
        // A cgroup with processes cannot contain limited ones: this one is made beside it.
        std::string path = line.substr(3);
        path.resize(path.rfind('/'));
        set_up("/sys/fs/cgroup" + path, "memory.max", limit);
        return;
      }
    why_not_ = "no memory cgroup";
  }
  ~MemoryCgroup() {
    // Processes that have ended stay in it for a moment.
    for (int i = 0; i < 100 && !inner_.empty() && ::rmdir(inner_.c_str()) != 0; ++i)
      ::usleep(10'000);
    for (int i = 0; i < 100 && !outer_.empty() && ::rmdir(outer_.c_str()) != 0; ++i)
      ::usleep(10'000);
  }
  MemoryCgroup(const MemoryCgroup&) = delete;
  MemoryCgroup& operator=(const MemoryCgroup&) = delete;

  const std::string& why_not() const { return why_not_; }
  void enter() const { CHECK(write(inner_ + "/cgroup.procs", std::to_string(::getpid()))); }

 private:
  static bool write(const std::string& file, const std::string& text) {
    std::ofstream out(file);
    out << text << std::flush;
    return out.good();
  }
  void set_up(const std::string& around, const char* file, long long limit) {
    const std::string outer = around + "/ringkern-test-" + std::to_string(::getpid());
    const auto no = [&](const std::string& what) { why_not_ = what + ": " + std::strerror(errno); };
    if (::mkdir(outer.c_str(), 0700) != 0) return no("mkdir " + outer);
    outer_ = outer;
    if (!write(outer + "/" + file, std::to_string(limit))) return no("the limit of " + outer);
    if (::mkdir((outer + "/inner").c_str(), 0700) != 0) return no("mkdir in " + outer);
    inner_ = outer + "/inner";
  }

  std::string outer_, inner_, why_not_;
};

}  // namespace ringkern::faults
