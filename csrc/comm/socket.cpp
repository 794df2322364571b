#include "comm/socket.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <mutex>
#include <system_error>
#include <vector>

namespace ringkern {
namespace {

[[noreturn]] void fail(const char* call) {
  throw std::system_error(errno, std::generic_category(), call);
}

// More than a ring needs, so that unidentified peers do not shut out a neighbour.
constexpr int kBacklog = 64;
// Room for surplus descriptors: they must be received to be closed.
constexpr size_t kRoomForFds = 2 * kMaxFds;

struct Name {
  sockaddr_un address{};
  socklen_t length;

  explicit Name(const std::string& name) {
    address.sun_family = AF_UNIX;
    // The first byte stays 0: that makes the name abstract.
    const size_t n = std::min(name.size(), sizeof address.sun_path - 1);
    std::memcpy(address.sun_path + 1, name.data(), n);
    length = socklen_t(offsetof(sockaddr_un, sun_path) + 1 + n);
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

// The sockets of this process. A forked child, such as a worker of a DataLoader, would hold copies
// of them: a killed rank would seem alive, and its name taken, as long as the child lives.
class Sockets {
 public:
  // Never destroyed: threads may close sockets after statics are destroyed.
  static Sockets& all() {
    static Sockets* const sockets = new Sockets;
    return *sockets;
  }
  // Returns the descriptor that `open` returns, unless it fails. Atomic with respect to a fork.
  template <class Open>
  Fd add(Open&& open) {
    std::lock_guard lock(mutex_);
    Fd fd(open());
    if (fd) fds_.push_back(fd.get());
    return fd;
  }
  void close(int fd) {
    std::lock_guard lock(mutex_);  // else a fork could see the number reused
    std::erase(fds_, fd);
    // Never repeated after EINTR: Linux has closed it, and the number may be reused by now.
    ::close(fd);
  }

 private:
  Sockets() {
    ::pthread_atfork([] { all().mutex_.lock(); }, [] { all().mutex_.unlock(); },
                     [] {
                       all().give_up();
                       all().mutex_.unlock();
                     });
  }

  // Replaces the sockets in a forked child. Its objects keep the numbers and may close them, so the
  // numbers must stay in use.
  void give_up() {
    if (fds_.empty()) return;
    ::close(fds_.front());  // frees a number for /dev/null
    const int nothing = ::open("/dev/null", O_RDWR | O_CLOEXEC);
    if (nothing < 0) return;
    for (const int fd : fds_)
      if (fd != nothing) ::dup3(nothing, fd, O_CLOEXEC);
    if (std::find(fds_.begin(), fds_.end(), nothing) == fds_.end()) ::close(nothing);
    fds_.clear();
  }

  std::mutex mutex_;
  std::vector<int> fds_;
};

Fd make_socket() {
  Fd fd = Sockets::all().add(
      [] { return ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); });
  if (!fd) fail("socket");
  return fd;
}

// Takes all descriptors out of a received message; keeps kMaxFds. Returns false if there were more.
bool take_fds(msghdr& header, Message& message) {
  size_t count = 0;
  message.fds.clear();
  for (cmsghdr* c = CMSG_FIRSTHDR(&header); c != nullptr; c = CMSG_NXTHDR(&header, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < n; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
      Fd owned(fd);
      if (count++ < kMaxFds) message.fds.push_back(std::move(owned));
    }
  }
  return count <= kMaxFds;
}

}  // namespace

Fd::~Fd() {
  if (fd_ >= 0) Sockets::all().close(fd_);
}

Fd make_bell() {
  Fd fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!fd) fail("eventfd");
  return fd;
}

void ring_bell(const Fd& bell) {
  const uint64_t one = 1;
  (void)!::write(bell.get(), &one, sizeof one);
}

void silence_bell(const Fd& bell) {
  uint64_t count;
  (void)!::read(bell.get(), &count, sizeof count);
}

Fd listen_on(const std::string& name) {
  Fd fd = make_socket();
  const Name at(name);
  if (::bind(fd.get(), at.get(), at.length) != 0) fail("bind");
  if (::listen(fd.get(), kBacklog) != 0) fail("listen");
  return fd;
}

std::optional<Fd> connect_to(const std::string& name) {
  Fd fd = make_socket();
  const Name to(name);
  while (::connect(fd.get(), to.get(), to.length) != 0) {
    if (errno == EAGAIN) return std::nullopt;
    if (errno != EINTR) fail("connect");
  }
  return fd;
}

std::optional<Fd> accept_from(const Fd& listener) {
  for (;;) {
    Fd fd = Sockets::all().add(
        [&] { return ::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK); });
    if (fd) return fd;
    if (errno == EAGAIN || errno == ECONNABORTED) return std::nullopt;
    if (errno != EINTR) fail("accept4");
  }
}

namespace {

ucred credentials_of(const Fd& socket) {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0)
    fail("getsockopt(SO_PEERCRED)");
  return credentials;
}

}  // namespace

uid_t peer_uid(const Fd& socket) { return credentials_of(socket).uid; }
pid_t peer_pid(const Fd& socket) { return credentials_of(socket).pid; }

uid_t own_uid() { return ::geteuid(); }

bool readable(std::span<pollfd> sockets, Milliseconds timeout) {
  const int n = ::poll(sockets.data(), sockets.size(), int(timeout.count()));
  if (n < 0 && errno != EINTR) fail("poll");
  return n > 0;
}

void send_message(const Fd& socket, const std::string& bytes, std::span<const int> fds) {
  iovec data{const_cast<char*>(bytes.data()), bytes.size()};
  std::vector<char> control(CMSG_SPACE(fds.size_bytes()));
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  if (!fds.empty()) {
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    cmsghdr* c = CMSG_FIRSTHDR(&header);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(c), fds.data(), fds.size_bytes());
  }
  // Messages are few and small: they fit in the socket's buffer, so this need not wait.
  while (::sendmsg(socket.get(), &header, MSG_NOSIGNAL) < 0)
    if (errno != EINTR) fail("sendmsg");
}

Offer offer_in(const Message& message) {
  Offer offer{message.bytes};
  for (const Fd& fd : message.fds) offer.fds.push_back(fd.get());
  return offer;
}

Received receive_message(const Fd& socket, Message& message) {
  std::string bytes(kMaxMessage, '\0');
  iovec data{bytes.data(), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(kRoomForFds * sizeof(int))];
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof control;
  ssize_t n;
  while ((n = ::recvmsg(socket.get(), &header, MSG_CMSG_CLOEXEC)) < 0) {
    if (errno == EAGAIN) return Received::nothing_yet;
    // Reset: the other end closed before it had read everything. Messages that it sent before can
    // still be read.
    if (errno != EINTR && errno != ECONNRESET) fail("recvmsg");
  }
  bytes.resize(size_t(n));
  message.bytes = std::move(bytes);
  const bool expected = take_fds(header, message);
  if (!expected || (header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) return Received::broken;
  return n == 0 ? Received::closed : Received::message;
}

}  // namespace ringkern
