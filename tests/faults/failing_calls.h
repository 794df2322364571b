// System calls that fail when a test asks for it. This program's definitions of the functions
// precede those of libc for everything in the process, including the threads of the C++ library.
// They call the real functions. Include this in one file of a program only.
#pragma once

#include <dlfcn.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>

namespace ringkern::faults {

// write() is not among them: it is used for eventfds only, where it cannot fail.
#define RK_CALLS(X)                                                                             \
  X(socket) X(bind) X(listen) X(accept4) X(connect) X(sendmsg) X(recvmsg) X(poll) X(getsockopt) \
  X(shutdown) X(memfd_create) X(open) X(ftruncate) X(fcntl) X(posix_fallocate) X(mmap)          \
  X(munmap) X(madvise) X(fstat) X(stat) X(read) X(close) X(fopen) X(eventfd) X(pidfd_open)      \
  X(futex) X(getrandom) X(gethostname) X(pthread_create)

enum class Callee : int {
#define RK_NAME(name) name,
  RK_CALLS(RK_NAME)
#undef RK_NAME
};
inline constexpr const char* kCallees[] = {
#define RK_NAME(name) #name,
    RK_CALLS(RK_NAME)
#undef RK_NAME
};
inline constexpr int kCallKinds = int(std::size(kCallees));

// The calls of this process while armed, counted by kind from 0; one of them fails.
struct Fault {
  std::atomic<bool> armed{false};
  std::atomic<int> seen[kCallKinds]{};
  int callee = -1, number = 0, error = 0;
  std::atomic<bool> struck{false};

  bool strikes(Callee c) {
    if (!armed.load()) return false;
    const int n = seen[int(c)].fetch_add(1);
    if (callee != int(c) || number != n) return false;
    struck = true;
    return true;
  }
};
inline Fault fault;

template <class F>
F behind(const char* name) {
  return reinterpret_cast<F>(::dlsym(RTLD_NEXT, name));
}

}  // namespace ringkern::faults

// Left out with ThreadSanitizer, which calls these functions before instrumented code may run.
#if !defined(__SANITIZE_THREAD__)

// Defines a function with arguments (x, y, ...) of types (X, Y, ...); `fail` is returned instead. A
// call that releases something does so even if it fails.
#define RK_FAILING(result, name, types, names, fail)                                      \
  extern "C" __attribute__((visibility("default"))) result name types {                   \
    using namespace ringkern::faults;                                                     \
    static const auto real = behind<decltype(&::name)>(#name);                            \
    if (!fault.strikes(Callee::name)) return real names;                                  \
    fail;                                                                                 \
  }
#define RK_FAIL_WITH(value) \
  do {                      \
    errno = fault.error;    \
    return value;           \
  } while (false)
#define RK_MINUS_ONE RK_FAIL_WITH(-1)

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wnonnull-compare"
RK_FAILING(int, socket, (int a, int b, int c) noexcept, (a, b, c), RK_MINUS_ONE)
RK_FAILING(int, bind, (int a, const sockaddr* b, socklen_t c) noexcept, (a, b, c), RK_MINUS_ONE)
RK_FAILING(int, listen, (int a, int b) noexcept, (a, b), RK_MINUS_ONE)
RK_FAILING(int, accept4, (int a, sockaddr* b, socklen_t* c, int d), (a, b, c, d), RK_MINUS_ONE)
RK_FAILING(int, connect, (int a, const sockaddr* b, socklen_t c), (a, b, c), RK_MINUS_ONE)
RK_FAILING(ssize_t, sendmsg, (int a, const msghdr* b, int c), (a, b, c), RK_MINUS_ONE)
RK_FAILING(ssize_t, recvmsg, (int a, msghdr* b, int c), (a, b, c), RK_MINUS_ONE)
RK_FAILING(int, poll, (pollfd * a, nfds_t b, int c), (a, b, c), RK_MINUS_ONE)
RK_FAILING(int, getsockopt, (int a, int b, int c, void* d, socklen_t* e) noexcept, (a, b, c, d, e),
           RK_MINUS_ONE)
RK_FAILING(int, shutdown, (int a, int b) noexcept, (a, b), real(a, b); RK_MINUS_ONE)
RK_FAILING(int, memfd_create, (const char* a, unsigned b) noexcept, (a, b), RK_MINUS_ONE)
RK_FAILING(int, ftruncate, (int a, off_t b) noexcept, (a, b), RK_MINUS_ONE)
RK_FAILING(int, posix_fallocate, (int a, off_t b, off_t c), (a, b, c), return fault.error)
RK_FAILING(void*, mmap, (void* a, size_t b, int c, int d, int e, off_t f) noexcept,
           (a, b, c, d, e, f), RK_FAIL_WITH(MAP_FAILED))
RK_FAILING(int, munmap, (void* a, size_t b) noexcept, (a, b), real(a, b); RK_MINUS_ONE)
RK_FAILING(int, madvise, (void* a, size_t b, int c) noexcept, (a, b, c), RK_MINUS_ONE)
RK_FAILING(int, fstat, (int a, struct stat* b) noexcept, (a, b), RK_MINUS_ONE)
RK_FAILING(int, stat, (const char* a, struct stat* b) noexcept, (a, b), RK_MINUS_ONE)
RK_FAILING(ssize_t, read, (int a, void* b, size_t c), (a, b, c), RK_MINUS_ONE)
RK_FAILING(int, close, (int a), (a), real(a); RK_MINUS_ONE)
RK_FAILING(FILE*, fopen, (const char* a, const char* b), (a, b), RK_FAIL_WITH(nullptr))
RK_FAILING(int, eventfd, (unsigned a, int b) noexcept, (a, b), RK_MINUS_ONE)
RK_FAILING(ssize_t, getrandom, (void* a, size_t b, unsigned c), (a, b, c), RK_MINUS_ONE)
RK_FAILING(int, gethostname, (char* a, size_t b) noexcept, (a, b), RK_MINUS_ONE)
RK_FAILING(int, pthread_create,
           (pthread_t * a, const pthread_attr_t* b, void* (*c)(void*), void* d) noexcept,
           (a, b, c, d), return fault.error)
#pragma GCC diagnostic pop

#define RK_LAST_ARGUMENT(name, type) \
  va_list list;                      \
  va_start(list, name);              \
  const auto last = va_arg(list, type); \
  va_end(list)

extern "C" __attribute__((visibility("default"))) int open(const char* path, int flags, ...) {
  using namespace ringkern::faults;
  static const auto real = behind<int (*)(const char*, int, ...)>("open");
  RK_LAST_ARGUMENT(flags, mode_t);
  if (!fault.strikes(Callee::open)) return real(path, flags, last);
  RK_MINUS_ONE;
}

extern "C" __attribute__((visibility("default"))) int fcntl(int fd, int command, ...) {
  using namespace ringkern::faults;
  static const auto real = behind<int (*)(int, int, ...)>("fcntl");
  RK_LAST_ARGUMENT(command, long);
  if (!fault.strikes(Callee::fcntl)) return real(fd, command, last);
  RK_MINUS_ONE;
}

extern "C" __attribute__((visibility("default"))) long syscall(long number, ...) noexcept {
  using namespace ringkern::faults;
  static const auto real = behind<long (*)(long, ...)>("syscall");
  va_list list;
  va_start(list, number);
  long a[6];
  for (long& one : a) one = va_arg(list, long);
  va_end(list);
  const bool strikes = number == SYS_pidfd_open ? fault.strikes(Callee::pidfd_open)
                       : number == SYS_futex && (a[1] & FUTEX_CMD_MASK) == FUTEX_WAIT
                           ? fault.strikes(Callee::futex)
                           : false;
  if (!strikes) return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
  RK_MINUS_ONE;
}

#endif  // without ThreadSanitizer
