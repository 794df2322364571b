// Helpers of programs that make ranks fail: memory that forked processes share, one clock for all
// of them, the resources of a process, and measured figures.
#pragma once

#include <dirent.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "check.h"

namespace ringkern::faults {

inline int64_t now_ns() {  // CLOCK_MONOTONIC: the same in all processes
  timespec t;
  ::clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1'000'000'000 + t.tv_nsec;
}
inline double ms_between(int64_t from_ns, int64_t to_ns) { return double(to_ns - from_ns) / 1e6; }

// A value shared by this process and its children.
template <class T>
class Shared {
 public:
  Shared() {
    at_ = ::mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(at_ != MAP_FAILED);
    new (at_) T{};
  }
  ~Shared() { ::munmap(at_, sizeof(T)); }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  T* operator->() const { return static_cast<T*>(at_); }
  T& operator*() const { return *static_cast<T*>(at_); }

 private:
  void* at_;
};

template <size_t N>
void write_text(char (&to)[N], const std::string& text) {
  const size_t n = std::min(text.size(), N - 1);
  std::memcpy(to, text.data(), n);
  to[n] = 0;
}

// Polls, because the other side may be killed at any moment. Returns false after `patience_ms`.
template <class F>
bool wait_for(F&& ready, int patience_ms) {
  const int64_t deadline = now_ns() + patience_ms * int64_t(1'000'000);
  while (!ready()) {
    if (now_ns() > deadline) return false;
    ::usleep(50);
  }
  return true;
}

// Runs `body` in a child, which never outlives this process.
inline pid_t start(const std::function<void()>& body, unsigned limit_s) {
  std::fflush(nullptr);  // otherwise a child that a sanitizer ends would print it, too
  const pid_t parent = ::getpid(), pid = ::fork();
  REQUIRE(pid >= 0);
  if (pid != 0) return pid;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  ::alarm(limit_s);
  body();
  ::_exit(0);
}

// Returns the exit status; -1: it had not ended within `patience_ms`, and has been killed.
inline int end_of(pid_t pid, int patience_ms) {
  int status = 0;
  if (wait_for([&] { return ::waitpid(pid, &status, WNOHANG) == pid; }, patience_ms)) return status;
  ::kill(pid, SIGKILL);
  ::waitpid(pid, &status, 0);
  return -1;
}

// ---- resources of a process ---------------------------------------------------------------------

inline std::vector<std::string> names_in(const char* folder) {
  std::vector<std::string> names;
  DIR* dir = ::opendir(folder);
  if (dir == nullptr) return names;
  while (const dirent* entry = ::readdir(dir))
    if (entry->d_name[0] != '.') names.push_back(entry->d_name);
  ::closedir(dir);
  std::sort(names.begin(), names.end());
  return names;
}

struct Owned {
  int descriptors = 0, threads = 0, mappings = 0;  // mappings of memory files
  bool operator==(const Owned&) const = default;
};

inline Owned owned() {
  Owned o;
  o.descriptors = int(names_in("/proc/self/fd").size());
  o.threads = int(names_in("/proc/self/task").size());
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);)
    if (line.find("memfd:") != std::string::npos) ++o.mappings;
  return o;
}

// A thread that has been joined is listed for a moment longer.
inline Owned owned_once_settled(const Owned& wanted) {
  wait_for([&] { return owned() == wanted; }, 1000);
  return owned();
}

inline std::string text_of(const Owned& o) {
  return std::to_string(o.descriptors) + " descriptors, " + std::to_string(o.threads) +
         " threads, " + std::to_string(o.mappings) + " mappings of memory files";
}

// ---- figures ------------------------------------------------------------------------------------

class Delays {
 public:
  void add(double ms) { all_.push_back(ms); }
  size_t size() const { return all_.size(); }
  int64_t above(double ms) const {
    return std::count_if(all_.begin(), all_.end(), [&](double one) { return one > ms; });
  }
  std::string text() {
    if (all_.empty()) return "none";
    std::sort(all_.begin(), all_.end());
    const auto at = [&](double part) { return all_[size_t(part * double(all_.size() - 1))]; };
    char text[120];
    std::snprintf(text, sizeof text, "p50 %.2f, p99 %.2f, max %.2f ms (%zu)", at(0.5), at(0.99),
                  all_.back(), all_.size());
    return text;
  }

 private:
  std::vector<double> all_;
};

}  // namespace ringkern::faults
