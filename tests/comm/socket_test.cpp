// The last message of a process that ends.
#include "comm/socket.h"

#include <sys/socket.h>

#include "check.h"

using namespace ringkern;

TEST_CASE("a last message is read although its sender has closed the socket") {
  for (const bool read_all : {true, false}) {
    int fds[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
    const Fd stays(fds[0]);
    Fd ends(fds[1]);
    if (!read_all) send_message(stays, "never read");
    send_message(ends, "the reason");
    ends = Fd();
    Message message;
    CHECK(receive_message(stays, message) == Received::message);
    CHECK_EQ(message.bytes, std::string("the reason"));
    CHECK(receive_message(stays, message) == Received::closed);
    CHECK(receive_message(stays, message) == Received::closed);
  }
}
