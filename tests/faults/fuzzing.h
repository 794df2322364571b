// Almost valid handshakes, for tests of their readers.
#pragma once

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "comm/socket.h"
#include "cpu/shm.h"

namespace ringkern::faults {

inline constexpr int64_t kOfferedBytes = 4 * 4096;

class Fuzzer {
 public:
  explicit Fuzzer(uint64_t seed)
      : random_(seed), memory_(kOfferedBytes), longer_(2 * kOfferedBytes) {
    const auto keep = [this](int fd) {
      CHECK(fd >= 0);
      wrong_.emplace_back(fd);
    };
    keep(::memfd_create("test", MFD_CLOEXEC));  // unsealed
    CHECK(::ftruncate(wrong_.back().get(), kOfferedBytes) == 0);
    keep(::dup(longer_.offer().fd()));
    keep(::open("/dev/null", O_RDWR | O_CLOEXEC));
    keep(::open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    keep(::open("/", O_PATH | O_CLOEXEC));
    keep(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    keep(::eventfd(0, EFD_CLOEXEC));
    keep(::epoll_create1(EPOLL_CLOEXEC));
  }

  uint64_t below(uint64_t n) { return random_() % n; }
  bool one_in(uint64_t n) { return below(n) == 0; }

  // Returns the descriptor of a rank's offer.
  int memory() { return memory_.offer().fd(); }

  // Changes some of the message: bits, numbers at their limits, its length, or the order of its
  // parts.
  std::string mutated(std::string bytes) {
    for (uint64_t n = 1 + below(3); n > 0; --n) {
      const size_t at = bytes.empty() ? 0 : below(bytes.size());
      switch (below(bytes.empty() ? 2 : 7)) {
        case 0: bytes = noise(below(2) == 0 ? below(300) : below(2 * kMaxMessage)); break;
        case 1: bytes += noise(below(100)); break;
        case 2: bytes.resize(at); break;
        case 3: bytes[at] = char(bytes[at] ^ (1 << below(8))); break;
        case 4: bytes[at] = char(random_()); break;
        case 5: put_number(bytes, at & ~size_t(3)); break;
        case 6: bytes.insert(at, bytes.substr(below(bytes.size()), below(64))); break;
      }
    }
    return bytes;
  }

  // Returns unexpected descriptors, too many of them, or none.
  std::vector<int> wrong_descriptors() {
    std::vector<int> fds;
    for (uint64_t n = below(4) == 0 ? below(12) : below(4); n > 0; --n)
      fds.push_back(one_in(4) ? memory() : wrong_[below(wrong_.size())].get());
    return fds;
  }

 private:
  std::string noise(size_t n) {
    std::string bytes(n, '\0');
    for (char& c : bytes) c = char(random_());
    return bytes;
  }
  void put_number(std::string& bytes, size_t at) {
    static const int64_t numbers[] = {
        0,         -1,         1,         2,         3,
        4,         128,        4095,      4096,      INT32_MAX,
        INT32_MIN, UINT32_MAX, INT64_MAX, INT64_MIN, int64_t(1) << 32};
    const int64_t number = numbers[below(std::size(numbers))];
    std::memcpy(bytes.data() + at, &number, std::min(bytes.size() - at, size_t(one_in(2) ? 4 : 8)));
  }

  std::mt19937_64 random_;
  cpu::ShmTransport memory_, longer_;
  std::vector<Fd> wrong_;
};

// Sends it invalidly. The other side may have disconnected, or may not listen any more.
inline void send_raw(const Fd& socket, std::string bytes, const std::vector<int>& fds) {
  iovec data{bytes.data(), bytes.size()};
  std::vector<char> control(CMSG_SPACE(fds.size() * sizeof(int)));
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  if (!fds.empty()) {
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    cmsghdr* c = CMSG_FIRSTHDR(&header);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    std::memcpy(CMSG_DATA(c), fds.data(), fds.size() * sizeof(int));
  }
  (void)!::sendmsg(socket.get(), &header, MSG_NOSIGNAL | MSG_DONTWAIT);
}

}  // namespace ringkern::faults
