#include "comm/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace ringkern {
namespace {

// From <linux/pidfd.h>, which some systems lack: tells how a process ended, even one that is no
// child or that was already reaped.
struct PidfdInfo {
  uint64_t mask, cgroup;
  uint32_t ids[11];
  int32_t exit_code;
};
constexpr uint64_t kPidfdInfoExit = 1 << 3;
constexpr unsigned long kPidfdGetInfo = _IOWR(0xFF, 11, PidfdInfo);

constexpr int kUntilItHasEnded = 20;  // ms

// The state and the exit code, if known, from /proc/PID/stat.
struct Stat {
  char state = 0;  // 0: there is no such process; '?': unknown
  int exit_code = 0;
  uint64_t started = 0;
};
Stat stat_of(int64_t pid) {
  Stat stat;
  if (pid <= 0) return stat;
  char line[2048] = {};
  const int fd = ::open(("/proc/" + std::to_string(pid) + "/stat").c_str(), O_RDONLY | O_CLOEXEC);
  const ssize_t n = fd < 0 ? -1 : ::read(fd, line, sizeof line - 1);
  if (n < 0 && errno != ENOENT && errno != ESRCH) stat.state = '?';
  if (fd >= 0) ::close(fd);
  const char* const name_end = n > 0 ? std::strrchr(line, ')') : nullptr;
  if (name_end == nullptr || name_end[1] != ' ') return stat;
  stat.state = name_end[2];
  std::string rest(name_end);
  while (!rest.empty() && (rest.back() == '\n' || rest.back() == 0)) rest.pop_back();
  stat.exit_code = std::atoi(rest.substr(rest.rfind(' ') + 1).c_str());
  constexpr int kFromStateToStart = 19;  // words
  size_t at = rest.find(' ') + 1;
  for (int i = 0; i < kFromStateToStart && at != 0; ++i) at = rest.find(' ', at) + 1;
  if (at != 0) stat.started = std::strtoull(rest.c_str() + at, nullptr, 10);
  return stat;
}

}  // namespace

uint64_t pid_namespace() {
  struct stat s;
  return ::stat("/proc/self/ns/pid", &s) == 0 ? s.st_ino : 0;
}

Process this_process() { return {::getpid(), stat_of(::getpid()).started}; }

bool has_ended(const Process& process) {
  if (process.pid <= 0) return false;
  const Stat stat = stat_of(process.pid);
  // /proc may hide the processes of other users.
  if (stat.state == 0) return ::kill(pid_t(process.pid), 0) != 0 && errno == ESRCH;
  return stat.state == 'Z' || (stat.state != '?' && stat.started != process.started);
}

char process_state(int64_t pid) { return stat_of(pid).state; }

ProcessEnd how_it_ended(int pidfd, int64_t pid) {
  // The sockets of a process close before it counts as ended.
  if (pidfd >= 0) {
    pollfd ended{pidfd, POLLIN, 0};
    (void)::poll(&ended, 1, kUntilItHasEnded);
  }
  const Stat stat = stat_of(pid);
  if (stat.state == 'Z')
    return {ProcessEnd::status, stat.exit_code};  // nobody has waited for it yet
  PidfdInfo info{};
  info.mask = kPidfdInfoExit;
  if (pidfd >= 0 && ::ioctl(pidfd, kPidfdGetInfo, &info) == 0 && (info.mask & kPidfdInfoExit) != 0)
    return {ProcessEnd::status, info.exit_code};
  if (stat.state == kGone) return {};
  return {ProcessEnd::still_runs, 0, stat.state};
}

}  // namespace ringkern
