// Errors or fallbacks of a rank with fewer resources than usual: no memfd, a small /dev/shm, a
// small memory cgroup, few open files.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "comm/processes.h"
#include "faults/cages.h"
#include "faults/calls.h"
#include "faults/shared.h"
#include "p2p/receive_buffer.h"

using namespace ringkern;
using namespace ringkern::faults;
using test::SharedStore;

namespace {

constexpr int64_t kMiB = 1 << 20;
constexpr int kPatience = 60'000;  // ms

// Runs in a child, because it can be restricted. Its exit status is the verdict.
void in_child(const std::function<void()>& body) {
  CHECK_EQ(end_of(start(body, 60), kPatience), 0);
}

void leave_out(const char* what, const std::string& why) {
  std::printf("%s: left out, %s\n", what, why.c_str());
}

std::string what_fails(const std::function<void()>& call) {
  try {
    call();
  } catch (const SharedMemoryError& e) {
    return e.what();
  }
  return "nothing";
}

void allocate(int64_t bytes) {
  MemoryFile file(bytes);
  file.allocate(0, bytes);
}

int mappings_of(const std::string& name) {
  std::ifstream maps("/proc/self/maps");
  int n = 0;
  for (std::string line; std::getline(maps, line);) n += line.find(name) != std::string::npos;
  return n;
}

// A sum over the ring, and one in place of tensors in the arena.
void reduce_and_check(Communicator& comm, const Device& device) {
  void* const shared = cpu::Arena::mine().allocate(400'000);
  for (const bool in_arena : {false, true}) {
    std::vector<int32_t> data(100'000, comm.rank() + 1);
    int32_t* const at = in_arena ? static_cast<int32_t*>(shared) : data.data();
    std::copy(data.begin(), data.end(), at);
    Task task;
    task.algorithm = in_arena ? Algorithm::two_shot : Algorithm::ring;
    task.reduction = Reduction::of(Op::sum, DType::i32, comm.ranks());
    task.in = task.out = at;
    task.count = int64_t(data.size());
    comm.run(device, task);
    for (int64_t i = 0; i < task.count; ++i) CHECK_EQ(at[i], comm.ranks() * (comm.ranks() + 1) / 2);
  }
  cpu::Arena::mine().free(shared);
}

// A ring in which some ranks have no memfd: those that have it accept the others' memory, and the
// reverse.
void a_ring_without_memfd(const std::function<bool(int)>& is_without, int error) {
  constexpr int kRanks = 3;
  SharedStore store;
  test::on_processes(kRanks, [&](int rank) {
    if (is_without(rank)) forbid_memfd(error);
    const Owned before = owned_at_first();
    {
      const std::shared_ptr<Store> use(&store, [](Store*) {});
      const Device device = cpu_device(rank, kRanks, Milliseconds(20'000));
      Communicator comm(use, "group", rank, kRanks, Milliseconds(20'000));
      reduce_and_check(comm, device);
      int without = 0;
      for (int r = 0; r < kRanks; ++r) without += is_without(r);
      const int per_rank = 2;  // at least: the segment, and the tensors
      CHECK(mappings_of("/dev/shm/") >= without * per_rank);
      CHECK(mappings_of("memfd:ringkern") >= (kRanks - without) * per_rank);
      CHECK_EQ(test::named_shared_memory(), "");
    }
    CHECK_EQ(not_given_back(before), "");
  });
}

AROUND_EACH_CASE(run) {
  run();
  CHECK_EQ(test::named_shared_memory(), "");
}

TEST_CASE("memfd may be missing") {
  a_ring_without_memfd([](int rank) { return rank == 1; }, EPERM);
  a_ring_without_memfd([](int) { return true; }, ENOSYS);
}

TEST_CASE("a file that stands in for memfd is checked") {
  in_child([] {
    const auto offered = [](int fd) { check_memory_of(1, fd, kMiB); };
    const auto nameless = [](mode_t mode) {
      const int fd = ::open("/dev/shm", O_TMPFILE | O_RDWR | O_CLOEXEC, mode);
      CHECK(fd >= 0 && ::ftruncate(fd, kMiB) == 0);
      return fd;
    };
    offered(nameless(0600));
    CHECK_THROWS(TransportError, "rank 1 is refused: expected a memory file that nobody can resize",
                 offered(nameless(0640)));
    CHECK_THROWS(TransportError, "expected 1048577 bytes, found 1048576",
                 check_memory_of(1, nameless(0600), kMiB + 1));
    if (::geteuid() == 0) {
      const int foreign = nameless(0600);
      CHECK(::fchown(foreign, 65534, 65534) == 0);
      CHECK_THROWS(TransportError, "found memory of user 65534", offered(foreign));
    }
    const std::string name = "/dev/shm/ringkern-test-" + std::to_string(::getpid());
    const int named = ::open(name.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
    CHECK(named >= 0 && ::ftruncate(named, kMiB) == 0);
    std::string refusal;
    try {
      offered(named);
    } catch (const TransportError& e) {
      refusal = e.what();
    }
    ::unlink(name.c_str());  // before the verdict, which may end this process
    CHECK_CONTAINS(refusal, "that nobody can resize, found one with seals");
    const int unsealed = ::memfd_create("test", MFD_CLOEXEC);
    CHECK(unsealed >= 0 && ::ftruncate(unsealed, kMiB) == 0);
    CHECK_THROWS(TransportError, "that nobody can resize, found one with seals", offered(unsealed));
    const int on_disk = ::open(".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (on_disk >= 0)
      CHECK_THROWS(TransportError, "expected a memory file, found a file of another kind",
                   offered(on_disk));
  });
}

TEST_CASE("a small /dev/shm is an error and no signal") {
  in_child([] {
    const std::string why_not = mount_at_dev_shm("tmpfs", "size=1m");
    if (!why_not.empty()) return leave_out("a small /dev/shm", why_not);
    allocate(2 * kMiB);  // a memfd is not affected
    forbid_memfd(ENOSYS);
    allocate(kMiB / 2);
    const std::string text = what_fails([] { allocate(2 * kMiB); });
    CHECK_CONTAINS(text, "needs 2.0 MiB of shared memory, and ");
    // The memory that was allocated before the failure has been freed.
    CHECK_CONTAINS(text,
                   " MiB is left: fallocate: No space left on device. This process may not "
                   "call memfd_create, and /dev/shm has 1.0 MiB in all. Allow memfd_create, "
                   "or make /dev/shm larger (docker: --shm-size)");
    // Parts of a file, like in an arena: earlier parts stay usable.
    MemoryFile file(4 * kMiB);
    file.allocate(0, kMiB / 2);
    CHECK_CONTAINS(what_fails([&] { file.allocate(kMiB, 2 * kMiB); }), "No space left on device");
    Mappings mappings;
    std::memset(mappings.map(file.fd(), 0, kMiB / 2), 7, size_t(kMiB / 2));
  });
}

TEST_CASE("an error names every kind of memory that was tried") {
  in_child([] {
    const std::string why_not = mount_at_dev_shm("proc", nullptr);
    if (!why_not.empty()) return leave_out("no /dev/shm", why_not);
    allocate(kMiB);
    forbid_memfd(EPERM);
    const std::string text = what_fails([] { allocate(kMiB); });
    CHECK_CONTAINS(text, "memfd_create: Operation not permitted, and open(/dev/shm): ");
    CHECK_CONTAINS(text, "Allow memfd_create, or mount a tmpfs at /dev/shm");
  });
}

// The cgroup is removed before the verdict, which may end this process.
void in_a_small_cgroup(const std::function<void()>& body) {
  int status = 0;
  {
    const MemoryCgroup cgroup(48 * kMiB);
    if (!cgroup.why_not().empty()) return leave_out("a small cgroup", cgroup.why_not());
    status = end_of(start(
                        [&] {
                          cgroup.enter();
                          body();
                        },
                        60),
                    kPatience);
  }
  CHECK_EQ(status, 0);
}

// Otherwise the kernel would end the process.
TEST_CASE("a small cgroup is an error and no kill") {
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)  // they need more than it has
  in_a_small_cgroup([] {
    const std::string text = what_fails([] { allocate(64 * kMiB); });
    CHECK_CONTAINS(text, "needs 64.0 MiB of shared memory, and 4");  // 48 minus its usage
    CHECK_CONTAINS(text,
                   "MiB is left: not allocated, because the kernel would kill processes: Cannot "
                   "allocate memory. The memory cgroup ");
    CHECK_CONTAINS(text, " allows 48.0 MiB and holds ");
    CHECK_CONTAINS(text, ". Raise its limit (docker: --memory), or run fewer ranks in it");
    MemoryFile file(64 * kMiB);
    file.allocate(0, 30 * kMiB);
    CHECK_CONTAINS(what_fails([&] { file.allocate(30 * kMiB, 30 * kMiB); }),
                   "needs 30.0 MiB of shared memory, and 1");
    file.allocate(30 * kMiB, 8 * kMiB);
  });
  // Page cache does not count: the kernel evicts it.
  in_a_small_cgroup([] {
    const int file = ::open(".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (file < 0) return leave_out("pages of files in a cgroup", std::strerror(errno));
    const std::vector<char> some(kMiB, 'x');
    for (int i = 0; i < 40; ++i) CHECK(::write(file, some.data(), some.size()) == ssize_t(kMiB));
    allocate(30 * kMiB);
  });
#endif
}

#if !defined(__SANITIZE_ADDRESS__)  // opens pipes to look at an exception

// Rank 1 may open `spare` additional files; in the end more than it needs.
int errors_with_spare_files(int spare) {
  constexpr int kRanks = 3;
  SharedStore store;
  struct Texts {
    char of[kRanks][1500];
  };
  const Shared<Texts> texts;
  test::on_processes(kRanks, [&](int rank) {
    const std::shared_ptr<Store> use(&store, [](Store*) {});
    const Owned before = owned_at_first();
    rlimit limit{};
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &limit) == 0);
    const int next = ::dup(0);
    ::close(next);
    const rlimit few{rlim_t(next + spare), limit.rlim_max};
    if (rank == 1) REQUIRE(::setrlimit(RLIMIT_NOFILE, &few) == 0);
    try {
      const Device device = cpu_device(rank, kRanks, Milliseconds(20'000));
      Communicator comm(use, "group", rank, kRanks, Milliseconds(20'000));
      reduce_and_check(comm, device);
    } catch (const std::exception& e) {
      write_text(texts->of[rank], e.what());
    }
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &limit) == 0);
    CHECK_EQ(not_given_back(before), "");
  });
  int errors = 0;
  for (int rank = 0; rank < kRanks; ++rank) {
    const std::string text = texts->of[rank];
    if (text.empty()) continue;
    ++errors;
    if (rank != 1) CHECK_CONTAINS(text, "rank 1 could not join the ring: ");
    CHECK(text.find("ulimit -n") != std::string::npos ||
          text.find("Too many open files") != std::string::npos);
  }
  return errors;
}

TEST_CASE("too few open files are an error of every rank") {
  int failed = 0, spare = 0;
  for (; spare < 60; ++spare) {
    const int errors = errors_with_spare_files(spare);
    CHECK(errors == 0 || errors == 3);
    if (errors == 0) break;
    ++failed;
  }
  std::printf("open files: %d limits failed on all ranks, with %d spare ones a ring was made\n",
              failed, spare);
  CHECK(failed > 3 && spare < 60);
}

#else
TEST_CASE("too few open files are an error of every rank") {}
#endif

}  // namespace
