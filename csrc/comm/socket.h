// Messages with file descriptors between processes of one host, over abstract Unix sockets: they
// have no file, so nothing is left behind when a process ends.
//
// Every descriptor is closed on exec and by its owner. A failed system call throws
// std::system_error; the caller adds the rank and the step.
#pragma once

#include <poll.h>
#include <sys/types.h>

#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/interfaces.h"

namespace ringkern {

// Owns a file descriptor.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd();

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

inline constexpr size_t kMaxMessage = 4096;
inline constexpr size_t kMaxFds = 4;

struct Message {
  std::string bytes;
  std::vector<Fd> fds;
};
// Returns the message as an offer. The message keeps the descriptors.
Offer offer_in(const Message& message);

// A descriptor that wakes a polling thread: readable once it was rung, until it is silenced.
Fd make_bell();
void ring_bell(const Fd& bell);
void silence_bell(const Fd& bell);

Fd listen_on(const std::string& name);
// Returns nothing while the listener's queue is full.
std::optional<Fd> connect_to(const std::string& name);
// Returns nothing if no connection waits.
std::optional<Fd> accept_from(const Fd& listener);
// Returns the user of the other end, from the kernel.
uid_t peer_uid(const Fd& socket);
pid_t peer_pid(const Fd& socket);  // 0 if it is not in this process's pid namespace
uid_t own_uid();

// Waits for at most `timeout`. Returns whether a socket can be read; `revents` tells which.
bool readable(std::span<pollfd> sockets, Milliseconds timeout);

void send_message(const Fd& socket, const std::string& bytes, std::span<const int> fds = {});
// `broken`: longer than kMaxMessage, more than kMaxFds descriptors, or no room for a descriptor in
// this process. The message holds the part that came.
enum class Received { message, nothing_yet, closed, broken };
Received receive_message(const Fd& socket, Message& message);

}  // namespace ringkern
