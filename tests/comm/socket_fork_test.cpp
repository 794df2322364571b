// Sockets and fork(): a child, such as a worker of a DataLoader, keeps no connection of its parent
// open and no name bound; it does not close reused descriptor numbers.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <optional>
#include <system_error>

#include "check.h"
#include "comm/handshake.h"
#include "comm/socket.h"

using namespace ringkern;

namespace {

// A child that lives until `end()`, which returns the result of `body` there.
class Child {
 public:
  template <class Body>
  explicit Child(Body&& body) {
    int ends[2];
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    pid_ = ::fork();
    REQUIRE(pid_ >= 0);
    if (pid_ == 0) {
      ::close(ends[1]);
      const bool result = body();
      char nothing;
      (void)!::read(ends[0], &nothing, 1);  // until the parent closes its end, or has ended
      ::_exit(result ? 0 : 1);
    }
    ::close(ends[0]);
    lives_ = ends[1];
  }
  bool end() {
    ::close(lives_);
    int status = 0;
    CHECK(::waitpid(pid_, &status, 0) == pid_);
    return status == 0;
  }

 private:
  pid_t pid_;
  int lives_;
};

bool is_open(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }

TEST_CASE("a child keeps no socket of its parent open") {
  const std::string name = socket_name(random_id());
  std::optional<Fd> listener = listen_on(name), ours = connect_to(name);
  std::optional<Fd> theirs = accept_from(*listener);
  REQUIRE(ours && theirs);
  Child child([&] {
    const int opened = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    return is_open(listener->get()) && is_open(ours->get()) && is_open(theirs->get()) &&
           opened != listener->get() && opened != ours->get() && opened != theirs->get();
  });
  theirs.reset();
  pollfd watched{ours->get(), POLLIN, 0};
  REQUIRE(readable({&watched, 1}, Milliseconds(20000)));
  Message message;
  CHECK(receive_message(*ours, message) == Received::closed);
  listener.reset();
  CHECK_THROWS(std::system_error, "connect", connect_to(name));
  listener = listen_on(name);  // the name is free
  CHECK(child.end());
}

// No socket is left to be closed: none was opened, or all were closed before.
void a_child_of_a_process_without_sockets() {
  const int kept = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  {
    const Fd closed = listen_on(socket_name(random_id()));
  }
  Child child([&] { return is_open(kept); });
  CHECK(child.end());
  ::close(kept);
}

TEST_CASE("a child of a process without sockets keeps its files") {
  a_child_of_a_process_without_sockets();
}

}  // namespace
