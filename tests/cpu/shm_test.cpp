#include "cpu/shm.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "comm/ring_of_threads.h"

using namespace ringkern;
using cpu::LocalMemory;
using cpu::LocalTransport;
using cpu::ShmTransport;

namespace {

constexpr int64_t kBytes = 3 * 4096 + 128;  // not a whole number of pages

// Runs in a child, where limits and users can be changed; its exit status is the verdict.
template <class F>
void in_child(F&& f) {
  const pid_t pid = ::fork();
  REQUIRE(pid >= 0);
  if (pid == 0) {
    f();
    ::_exit(0);
  }
  int status = 0;
  CHECK_EQ(::waitpid(pid, &status, 0), pid);
  CHECK_EQ(status, 0);
}

TEST_CASE("neighbours see each other's writes") {
  ShmTransport a(kBytes), b(kBytes);
  const auto* fresh = static_cast<const unsigned char*>(a.mine());
  for (int64_t i = 0; i < kBytes; ++i) CHECK(fresh[i] == 0);
  void* b_of_a = a.map(b.offer(), 1);
  void* a_of_b = b.map(a.offer(), 0);
  CHECK(a_of_b != a.mine());
  std::memset(a.mine(), 7, kBytes);
  CHECK(std::memcmp(a.mine(), a_of_b, kBytes) == 0);
  static_cast<char*>(b_of_a)[kBytes - 1] = 9;
  CHECK_EQ(int(static_cast<char*>(b.mine())[kBytes - 1]), 9);
}

TEST_CASE("memory outlives its owner") {
  ShmTransport a(kBytes);
  void* mapped = nullptr;
  {
    ShmTransport b(kBytes);
    mapped = a.map(b.offer(), 1);
    std::memset(b.mine(), 5, kBytes);
  }
  CHECK_EQ(int(static_cast<char*>(mapped)[kBytes - 1]), 5);
}

TEST_CASE("a forked child shares the memory of its parent") {
  ShmTransport a(kBytes);
  in_child([&] { static_cast<char*>(a.mine())[42] = 42; });
  CHECK_EQ(int(static_cast<char*>(a.mine())[42]), 42);
}

TEST_CASE("a segment is allocated, sealed and closed on exec") {
  ShmTransport a(kBytes);
  const int fd = a.offer().fd();
  struct stat status;
  CHECK(::fstat(fd, &status) == 0);
  CHECK(status.st_blocks * 512 >= kBytes);
  CHECK(::ftruncate(fd, kBytes - 1) != 0 && errno == EPERM);
  CHECK(::ftruncate(fd, kBytes + 1) != 0 && errno == EPERM);
  CHECK(::fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) != 0 && errno == EPERM);
  CHECK((::fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
}

TEST_CASE("memory that is no segment is refused") {
  ShmTransport a(kBytes), other_size(kBytes + 1);
  CHECK_THROWS(TransportError, "rank 3 is refused: expected 12416 bytes, found 12417",
               a.map(other_size.offer(), 3));
  CHECK_THROWS(TransportError, "expected a file descriptor, found none", a.map(Offer{}, 3));

  const int unsealed = ::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  CHECK(::ftruncate(unsealed, kBytes) == 0);
  CHECK_THROWS(TransportError, "nobody can resize", a.map(Offer{"", {unsealed}}, 3));
  CHECK(::fcntl(unsealed, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
  CHECK_THROWS(TransportError, "nobody can resize", a.map(Offer{"", {unsealed}}, 3));
  CHECK(::fcntl(unsealed, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SEAL) == 0);
  a.map(Offer{"", {unsealed}}, 3);
  ::close(unsealed);

  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  CHECK_THROWS(TransportError, "expected a memory file", a.map(Offer{"", {null}}, 3));
  ::close(null);
  CHECK_THROWS(TransportError, "expected a file descriptor", a.map(Offer{"", {null}}, 3));
}

TEST_CASE("memory of another user is refused") {
  if (::geteuid() != 0) {
    std::puts("memory of another user: only root can make some, left out");
    return;
  }
  in_child([] {
    ShmTransport a(kBytes), b(kBytes);
    CHECK(::fchown(b.offer().fd(), 65534, 65534) == 0);
    CHECK_THROWS(TransportError, "expected memory of user 0, found memory of user 65534",
                 a.map(b.offer(), 1));
  });
}

TEST_CASE("an error names the limit that was reached") {
  in_child([] {
    const rlimit limit{1 << 20, 1 << 20};
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &limit) == 0);
    CHECK_THROWS(SharedMemoryError, "needs 2.0 MiB of shared memory, and 1.0 MiB is left: ftrunc",
                 ShmTransport(2 << 20));
    CHECK_THROWS(SharedMemoryError, "The limit on file size (ulimit -f) is 1.0 MiB. Raise that",
                 ShmTransport(2 << 20));
    ShmTransport fits(1 << 20);
  });
  in_child([] {
    rlimit limit;
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &limit) == 0);
    const rlimit none{3, limit.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
    try {
      ShmTransport(2 << 20);
    } catch (const SharedMemoryError& e) {
      REQUIRE(::setrlimit(RLIMIT_NOFILE, &limit) == 0);  // a sanitizer needs files, too
      CHECK_CONTAINS(e.what(),
                     "memfd_create: Too many open files. This process has reached its "
                     "limit of 3 open files (ulimit -n). Raise that limit, or close files");
      return;
    }
    FAIL("more files than the limit");
  });
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)  // they reserve terabytes
  in_child([] {
    const rlimit limit{1 << 28, 1 << 28};
    REQUIRE(::setrlimit(RLIMIT_AS, &limit) == 0);
    CHECK_THROWS(SharedMemoryError, "The limit on address space (ulimit -v) is 256.0 MiB, and ",
                 ShmTransport(1 << 28));
  });
#endif
}

TEST_CASE("transports leave nothing behind") {
  const int fds = test::open_files();
  {
    ShmTransport a(kBytes), b(kBytes);
    a.map(b.offer(), 1);
    CHECK_EQ(test::named_shared_memory(), "");
    CHECK_EQ(test::open_files(), fds + 2);
    CHECK_THROWS(TransportError, "refused", a.map(Offer{}, 1));
  }
  CHECK_EQ(test::open_files(), fds);
}

TEST_CASE("threads of a process share pointers") {
  const auto memory = std::make_shared<LocalMemory>();
  auto a = std::make_unique<LocalTransport>(memory, kBytes);
  LocalTransport b(memory, kBytes);
  CHECK(b.map(a->offer(), 0) == a->mine());
  CHECK(a->map(b.offer(), 1) == b.mine());
  char* mapped = static_cast<char*>(a->mine());
  mapped[kBytes - 1] = 3;
  a.reset();
  CHECK_EQ(int(mapped[kBytes - 1]), 3);  // b has it mapped
}

TEST_CASE("threads of a process refuse the offers of others") {
  const auto memory = std::make_shared<LocalMemory>();
  LocalTransport a(memory, kBytes), other_size(memory, kBytes + 8);
  LocalTransport unidentified(std::make_shared<LocalMemory>(), kBytes);
  CHECK_THROWS(TransportError, "expected 12416 bytes, found 12424", a.map(other_size.offer(), 1));
  CHECK_THROWS(TransportError, "another process or group", a.map(unidentified.offer(), 1));
  CHECK_THROWS(TransportError, "of a thread's offer, found 3", a.map(Offer{"abc"}, 1));
  Offer gone;
  {
    LocalTransport b(memory, kBytes);
    gone = b.offer();
  }
  CHECK_THROWS(TransportError, "is refused: its communicator is closed", a.map(gone, 1));
  const Offer of_parent = a.offer();
  in_child([&] {
    LocalTransport child(memory, kBytes);
    CHECK_THROWS(TransportError, "another process", child.map(of_parent, 0));
  });
}

}  // namespace
