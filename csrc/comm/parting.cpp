#include "comm/parting.h"

#include <system_error>

namespace ringkern {
namespace {

const std::string kGoodbye = "goodbye";

void say_goodbye(const Neighbour& neighbour) {
  try {
    send_message(neighbour.socket, kGoodbye, -1);
  } catch (const std::system_error&) {
    // It has gone already, which its end of file will tell.
  }
}

// Whether the neighbour has said goodbye, or has ended and with it what it did to our memory.
bool has_parted(const Neighbour& neighbour) {
  for (;;) {
    Message message;
    switch (receive_message(neighbour.socket, message)) {
      case Received::closed: return true;
      case Received::nothing_yet: return false;
      case Received::message:
      case Received::broken: break;
    }
    if (message.bytes == kGoodbye) return true;
  }
}

}  // namespace

bool part_from(const Neighbours& neighbours, Milliseconds timeout) {
  say_goodbye(neighbours.next);
  say_goodbye(neighbours.prev);
  const auto deadline = Clock::now() + timeout;
  try {
    for (const Neighbour* neighbour : {&neighbours.next, &neighbours.prev}) {
      while (!has_parted(*neighbour)) {
        const auto left = std::chrono::ceil<Milliseconds>(deadline - Clock::now());
        if (left.count() <= 0) return false;
        pollfd watched{neighbour->socket.get(), POLLIN, 0};
        readable({&watched, 1}, left);
      }
    }
  } catch (const std::system_error&) {
    return false;
  }
  return true;
}

}  // namespace ringkern
