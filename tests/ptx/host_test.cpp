// Properties of the host's memory that kernels need and that a GPU has in another way.
#include "host.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>

#include "check.h"
#include "module.h"

namespace {

constexpr int kLane = 16, kLanes = 32;  // bytes of a lane, and lanes of a warp
uint64_t* page = nullptr;               // that cannot be written before it has been touched
size_t page_bytes = 0;
int words_before = 0;  // which were there when it was touched

void note_and_open(int) {
  for (const uint64_t* word = page - 1; *word == 7; --word) ++words_before;
  ::mprotect(page, page_bytes, PROT_READ | PROT_WRITE);
}

// A line is not stored at once, like on a GPU, but none of it comes before the words below it: its
// flag is the last word. Here the lines lie across two pages, and the first touch of the upper one
// shows which words have been stored by then.
class Enough final : public ptx::Room {
 public:
  bool take() override { return true; }
  void leave() override {}
};

TEST_CASE("a line's words become visible upwards") {
  page_bytes = size_t(::sysconf(_SC_PAGESIZE));
  auto* lower = static_cast<std::byte*>(
      ::mmap(nullptr, 2 * page_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  page = reinterpret_cast<uint64_t*>(lower + page_bytes);
  struct sigaction open{}, before{};
  open.sa_handler = note_and_open;
  ::sigaction(SIGSEGV, &open, &before);
  for (int lanes = 1; lanes < kLanes; ++lanes) {  // below the upper page
    std::fill_n(lower, 2 * page_bytes, std::byte());
    ::mprotect(page, page_bytes, PROT_READ);
    words_before = 0;
    const uint64_t at = uint64_t(page) - uint64_t(lanes * kLane);
    Enough room;
    ptx::launch_of("lines", 1, kLanes, &at).run(room);
    CHECK_EQ(words_before, 2 * lanes);
    for (int i = 0; i < 2 * kLanes; ++i) CHECK_EQ(reinterpret_cast<uint64_t*>(at)[i], uint64_t(7));
  }
  ::sigaction(SIGSEGV, &before, nullptr);
  ::munmap(lower, 2 * page_bytes);
}

TEST_CASE("a launch that a kernel is not made for is refused") {
  const uint64_t at = 0;
  CHECK_THROWS(ptx::Error, "no kernel line in the PTX", ptx::launch_of("line", 1, 32, &at));
  CHECK_THROWS(ptx::Error, "lines takes whole warps of up to 32 threads, not 64",
               ptx::launch_of("lines", 1, 64, &at));
}

}  // namespace
