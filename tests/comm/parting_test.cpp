// How neighbours part: together, one after the other, or not at all.
#include "comm/parting.h"

#include <sys/socket.h>

#include <thread>

#include "check.h"

using namespace ringkern;

namespace {

struct Pair {
  Fd a, b;
  Pair() {
    int fds[2];
    CHECK(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
    a = Fd(fds[0]);
    b = Fd(fds[1]);
  }
};

// Two ranks: each is the other's next and prev.
struct TwoRanks {
  Neighbours first, second;
  TwoRanks() {
    Pair x, y;
    first.next.socket = std::move(x.a);
    second.prev.socket = std::move(x.b);
    first.prev.socket = std::move(y.a);
    second.next.socket = std::move(y.b);
  }
};

void both_part() {
  TwoRanks ranks;
  bool other = false;
  std::thread thread([&] { other = part_from(ranks.second, Milliseconds(20000)); });
  CHECK(part_from(ranks.first, Milliseconds(20000)));
  thread.join();
  CHECK(other);
}

void a_rank_that_ended_has_parted() {
  TwoRanks ranks;
  ranks.second = Neighbours();
  CHECK(part_from(ranks.first, Milliseconds(20000)));
}

void a_goodbye_then_the_end() {
  TwoRanks ranks;
  CHECK(!part_from(ranks.second, Milliseconds(0)));  // says its own at least
  ranks.second = Neighbours();
  CHECK(part_from(ranks.first, Milliseconds(0)));
}

void a_rank_that_goes_on_is_not_waited_for_long() {
  TwoRanks ranks;
  CHECK(!part_from(ranks.first, Milliseconds(50)));
  CHECK(part_from(ranks.second, Milliseconds(20000)));  // it finds the goodbye when it ends
}

}  // namespace

int main() {
  both_part();
  a_rank_that_ended_has_parted();
  a_goodbye_then_the_end();
  a_rank_that_goes_on_is_not_waited_for_long();
}
