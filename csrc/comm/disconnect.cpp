#include "comm/disconnect.h"

#include <system_error>

namespace ringkern {
namespace {

const std::string kGoodbye = "goodbye";

void say_goodbye(const Neighbour& neighbour) {
  try {
    send_message(neighbour.socket, kGoodbye);
  } catch (const std::system_error&) {
    // The neighbour has ended; its end of file will show that.
  }
}

// Reads messages up to a goodbye, the end of the neighbour, or the last message that has come. Does
// not wait.
Received hear_goodbye(const Neighbour& neighbour) {
  for (;;) {
    Message message;
    const Received received = receive_message(neighbour.socket, message);
    if (received == Received::closed || received == Received::nothing_yet) return received;
    if (message.bytes == kGoodbye) return Received::message;
  }
}

// Waits for a goodbye. Returns false if none came until `deadline`, or if the neighbour ended
// first; with `ended_is_enough`, its end counts as a goodbye.
bool await_goodbye(const Neighbour& neighbour, bool ended_is_enough, Clock::time_point deadline) {
  for (;;) {
    const Received received = hear_goodbye(neighbour);
    if (received == Received::message) return true;
    if (received == Received::closed) return ended_is_enough;
    const auto left = std::chrono::ceil<Milliseconds>(deadline - Clock::now());
    if (left.count() <= 0) return false;
    pollfd watched{neighbour.socket.get(), POLLIN, 0};
    readable({&watched, 1}, left);
  }
}

}  // namespace

bool disconnect(const Neighbours& neighbours, int ranks, Milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  // A rank sends its n-th goodbye after n-1 have come from each neighbour: all ranks up to n-1 hops
  // away have then disconnected.
  const int hops = ranks / 2;
  try {
    for (int n = 1; n <= hops; ++n) {
      say_goodbye(neighbours.next);
      say_goodbye(neighbours.prev);
      for (const Neighbour* neighbour : {&neighbours.next, &neighbours.prev})
        if (!await_goodbye(*neighbour, hops == 1, deadline)) return false;
    }
  } catch (const std::system_error&) {
    return false;
  }
  return true;
}

}  // namespace ringkern
