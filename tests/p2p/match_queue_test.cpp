// The match queues of a few ranks, stepped by hand on one thread: the matching, the links left
// alone, and the errors of failed messages. Nothing here depends on time.
#include "p2p/match_queue.h"

#include <memory>

#include "check.h"
#include "cpu/ll.h"
#include "fault/render.h"

using namespace ringkern;
using namespace ringkern::cpu;

namespace {

using cpu::Message;

constexpr Milliseconds kTimeout{1000};

// Outcome of a message.
struct Result {
  std::vector<char> bytes;
  bool done = false;
  std::string error;
  int source = -2;
};
using Shared = std::shared_ptr<Result>;

struct QueuedRank {
  ReceiveBuffer buffer;
  std::vector<int> connects;
  MatchQueue queue;

  QueuedRank(int rank, int ranks, RankNames names = {})
      : buffer(rank, ranks, message_geometry(), std::move(names)),
        queue(buffer, rank, ranks, kTimeout,
              {[this](int peer) { connects.push_back(peer); },
               [](Message&& m, std::exception_ptr error, int source) { m.done(error, source); }}) {}

  Shared add(bool sends, int peer, uint64_t tag, std::vector<char> bytes,
             Protocol protocol = Protocol::simple, Milliseconds timeout = Milliseconds(0)) {
    const auto result = std::make_shared<Result>();
    result->bytes = std::move(bytes);
    queue.add({sends, peer, tag, protocol, result->bytes.data(), int64_t(result->bytes.size()),
               timeout, [result](std::exception_ptr error, int source) {
                 CHECK(!result->done);
                 result->done = true;
                 result->source = source;
                 try {
                   if (error) std::rethrow_exception(error);
                 } catch (const std::exception& e) {
                   result->error = e.what();
                 }
               }});
    return result;
  }
  Shared send(int to, uint64_t tag, std::vector<char> bytes, Protocol p = Protocol::simple) {
    return add(true, to, tag, std::move(bytes), p);
  }
  Shared receive(int from, uint64_t tag, size_t n) {
    return add(false, from, tag, std::vector<char>(n));
  }
  // Returns the number of steps until nothing moves.
  int run() {
    int steps = 0;
    while (queue.step()) ++steps;
    return steps;
  }
};

// Ranks that have all met.
struct Ranks {
  std::vector<std::unique_ptr<QueuedRank>> members;

  explicit Ranks(int ranks, const RankNames& names = {}) {
    for (int r = 0; r < ranks; ++r)
      members.push_back(std::make_unique<QueuedRank>(r, ranks, names));
    for (int a = 0; a < ranks; ++a)
      for (int b = 0; b < ranks; ++b)
        if (a != b) (*this)[a].buffer.open(b);
    for (int a = 0; a < ranks; ++a)
      for (int b = 0; b < ranks; ++b)
        if (a != b) {
          (*this)[a].buffer.map(b, (*this)[b].buffer.fd());
          (*this)[a].queue.met(b);
        }
  }
  QueuedRank& operator[](int rank) { return *members[size_t(rank)]; }
  void run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (const auto& member : members) moved |= member->run() > 0;
    }
  }
};

std::vector<char> text(size_t n, char c) { return std::vector<char>(n, c); }

TEST_CASE("a step is one turn of each link") {
  Ranks group(3);
  const size_t turn = 64 << 10;
  const Shared large = group[1].send(0, 1, text(4 * turn, 'x'));
  const Shared small = group[2].send(0, 1, text(1, 'y'));
  group[1].run();
  group[2].run();
  CHECK(large->done && small->done);
  const Shared a = group[0].receive(1, 1, 4 * turn), b = group[0].receive(2, 1, 1);
  CHECK(group[0].queue.step());
  CHECK(b->done && !a->done);
  CHECK_EQ(group[0].run(), 3);
  CHECK(a->done && a->bytes == large->bytes && b->bytes == small->bytes);
  CHECK(!group[0].queue.step());
}

// A message half set aside has its receiver; the next receive is for the next message.
TEST_CASE("a message has one receiver") {
  Ranks group(2);
  const size_t n = 1 << 20;
  const Shared first = group[1].send(0, 1, text(n, 'a'));
  const Shared second = group[1].send(0, 1, text(n, 'b'));
  group[1].run();
  const Shared other = group[0].receive(1, 2, 1);  // so that the first is set aside
  group[0].run();
  CHECK(!first->done);
  const Shared a = group[0].receive(1, 1, n), b = group[0].receive(1, 1, n);
  group.run();
  CHECK(first->done && second->done && a->done && b->done && !other->done);
  CHECK(a->bytes == first->bytes && b->bytes == second->bytes);
}

TEST_CASE("messages set aside are taken in the order of arrival") {
  Ranks group(3);
  for (const int from : {2, 1}) {
    group[from].send(0, 1, text(3, char('0' + from)));
    group[from].send(0, 1, text(3, char('5' + from)));
    group[from].run();
    group[0].receive(from, 9, 1);
    group[0].run();
  }
  const int sources[] = {2, 2, 1, 1};
  const char bytes[] = {'2', '7', '1', '6'};
  for (int i = 0; i < 4; ++i) {
    const Shared m = group[0].receive(kAnySource, 1, 3);
    CHECK(m->done);
    CHECK_EQ(m->source, sources[i]);
    CHECK(m->bytes == text(3, bytes[i]));
  }
}

TEST_CASE("damaged headers are refused") {
  const auto receive = [](uint32_t protocol, int64_t bytes, uint32_t dtype = 0) {
    Ranks group(2);
    struct {
      uint64_t tag;
      int64_t bytes;
      uint32_t protocol, dtype;
    } header{7, bytes, protocol, dtype};
    // Rank 1's format.
    Ends to = group[1].buffer.ends(0, Protocol::ll);
    auto* const lines = reinterpret_cast<LL*>(to.to_slot());
    for (int i = 0; i < 3; ++i)
      lines[i].write(reinterpret_cast<std::byte*>(&header) + 8 * i, LL::flag_of(to.sent()));
    to.advance(Verb::send, false);
    const Shared m = group[0].receive(1, 7, 0);
    CHECK(group[0].queue.step());
    if (!group[0].queue.failed()) CHECK(m->done && m->error.empty());
    else CHECK_EQ(m->done, dtype != 0);
    return group[0].queue.failed() ? text_of(*group[0].queue.failure()) : std::string();
  };
  CHECK_EQ(receive(2, 0), std::string());
  CHECK_EQ(receive(3, 0), std::string("the header of a message from rank 1 to rank 0 is damaged "
                                      "(tag 7, 0 bytes, protocol 3)"));
  CHECK_CONTAINS(receive(0, 0, 99), "rank 1 sent 0 bytes of ? to rank 0 (tag 7)");
  CHECK_CONTAINS(receive(0, -5), "is damaged (tag 7, -5 bytes, protocol 0)");
}

TEST_CASE("messages expire") {
  Ranks group(3);
  QueuedRank& zero = group[0];
  const auto start = Clock::now();
  CHECK(zero.queue.deadline() == Clock::time_point::max());
  const Shared never = zero.add(false, 1, 1, text(1, 0), {}, Milliseconds::max());
  CHECK(zero.queue.deadline() > start + std::chrono::hours(1000));
  const Shared later = zero.add(false, 2, 1, text(1, 0), {}, 2 * kTimeout);
  const Shared soon = zero.add(false, 1, 2, text(1, 0));
  const Shared any = zero.add(false, kAnySource, 3, text(1, 0), {}, 3 * kTimeout);
  const auto added = Clock::now();
  CHECK(zero.queue.deadline() >= start + kTimeout && zero.queue.deadline() <= added + kTimeout);
  zero.queue.expire(start + kTimeout / 2);
  CHECK(!soon->done);
  CHECK(zero.queue.deadline() >= start + kTimeout && zero.queue.deadline() <= added + kTimeout);
  zero.queue.expire(added + kTimeout);
  CHECK(soon->done && !later->done && !never->done && !any->done);
  CHECK_CONTAINS(soon->error,
                 "rank 0 waited for a message from rank 1 (tag 2, 1 bytes) and "
                 "nothing came for 1.0 s (timed out). Did rank 1 send it");
  CHECK_EQ(soon->error, text_of(*zero.queue.failure()));
  zero.queue.abort(aborted_by(1, "enough"));
  for (const Shared& m : {later, never, any})
    CHECK_CONTAINS(m->error, "The reason: aborted by rank 1: enough");
  CHECK_EQ(any->source, kAnySource);
  CHECK_EQ(later->source, 2);
  CHECK(zero.queue.failure()->event == Event::message_timeout);  // the first reason stays
}

const RankNames kNames{{10, 11, 12}};

TEST_CASE("a late message is reported with the messages that came instead") {
  Ranks group(3, kNames);
  QueuedRank& zero = group[0];
  for (uint64_t tag = 1; tag <= 6; ++tag) group[1].send(0, tag, text(3, 'a'));
  group[2].send(0, 8, text(3, 'b'));
  const Shared taken = zero.receive(1, 1, 3);
  Message late{false, 1, 9, Protocol::simple, nullptr, 0, {}, [](std::exception_ptr, int) {}};
  late.dtype = 2;
  zero.queue.add(std::move(late));
  zero.receive(2, 7, 1);  // so that the other one is set aside
  group.run();
  CHECK(taken->done);
  zero.queue.expire(Clock::now() + kTimeout);
  Fault f = zero.queue.failure().value();
  CHECK(f.event == Event::message_timeout && f.reporter == 10 && f.rank == 11);
  CHECK(f.message.is_there && !f.message.sends && f.message.peer == 11 && f.message.tag == 9);
  CHECK(f.message.bytes == 0 && f.message.dtype == 2);
  CHECK_EQ(f.timeout_ns, 1'000'000'000);
  for (int i = 0; i < MessageSeen::kArrived; ++i)
    CHECK(f.message.arrived_from[i] == 11 && f.message.arrived_tag[i] == uint64_t(i + 2));
  // A sent message does not depend on arrived ones.
  Ranks second(2, kNames);
  second[1].send(0, 8, text(3, 'b'));
  second[0].add(false, 1, 7, text(1, 0), {}, Milliseconds::max());  // it is set aside
  second.run();
  second[0].send(1, 1, text(8 << 20, 'x'));
  second[0].run();
  second[0].queue.expire(Clock::now() + kTimeout);
  f = second[0].queue.failure().value();
  CHECK(f.message.sends && f.message.tag == 1 && f.message.arrived_from[0] == -1);
}

// The timeout restarts whenever something moves on the link: in the direction of the message, and
// for any source on any link.
TEST_CASE("a message that moves has more time") {
  Ranks group(3);
  QueuedRank &zero = group[0], &one = group[1];
  const Shared sent = one.send(0, 1, text(8 << 20, 'x')), behind = one.send(0, 2, text(1, 'y'));
  const Shared other_way = one.receive(0, 1, 1), other_link = one.receive(2, 1, 1);
  const Shared any = one.receive(kAnySource, 2, 1);
  one.run();
  const auto full = Clock::now();
  while (Clock::now() == full) continue;
  zero.receive(1, 1, 8 << 20);
  zero.run();
  CHECK(one.queue.step());
  one.queue.expire(full + kTimeout);  // the sent data has moved since
  CHECK(!sent->done && !behind->done && other_way->done && other_link->done && any->done);

  Ranks second(3);
  QueuedRank &a = second[0], &b = second[1];
  const Shared first = a.receive(1, 1, 1), next = a.receive(1, 2, 1), from_2 = a.receive(2, 1, 1);
  const Shared from_any = a.receive(kAnySource, 3, 1), to_1 = a.send(1, 1, text(8 << 20, 'x'));
  a.run();
  const auto posted = Clock::now();
  while (Clock::now() == posted) continue;
  b.send(0, 1, text(1, 'z'));
  b.run();
  CHECK(a.queue.step() && first->done && first->error.empty());
  a.queue.expire(posted + kTimeout);
  CHECK(!next->done && !from_any->done && from_2->done && to_1->done);
}

TEST_CASE("messages of a peer that has ended are received") {
  Ranks group(3);
  QueuedRank& zero = group[0];
  for (const int from : {1, 2})
    for (uint64_t tag = 1; tag < 3; ++tag) group[from].send(0, tag, text(100000, char(from)));
  group[1].run();
  group[2].run();
  for (const int from : {1, 2}) zero.queue.lost(from, nullptr);
  // The first step moves only the first message.
  const Shared any = zero.receive(kAnySource, 2, 100000);
  zero.run();
  CHECK(any->done && any->error.empty());
  const Shared his = zero.receive(2, 1, 100000), last = zero.receive(kAnySource, 2, 100000);
  zero.run();
  CHECK(his->done && his->error.empty());
  CHECK(last->done && last->error.empty() && last->source != any->source);
  // Half of a message does not count, also where it was set aside for another receive.
  Ranks second(3);
  second[1].send(0, 1, text(8 << 20, 'x'));
  second[1].run();
  const Shared half = second[0].receive(1, 1, 8 << 20), other = second[0].receive(2, 1, 1);
  second[0].run();
  CHECK(!half->done);
  second[0].queue.lost(1, nullptr);
  second[0].queue.step();
  CHECK_CONTAINS(half->error,
                 "rank 0 waited for a message from rank 1 (tag 1, 8388608 bytes), and "
                 "rank 1 has ended or left the group");
  CHECK(!other->done);
}

TEST_CASE("the reason of a loss is told") {
  Ranks group(3);
  const auto why = std::make_exception_ptr(SharedMemoryError("no memory"));
  const Shared sent = group[0].send(1, 1, text(1, 'x')), received = group[0].receive(1, 1, 1);
  group[0].queue.lost(1, why);
  group[0].queue.lost(1, std::make_exception_ptr(SharedMemoryError("another")));
  CHECK(group[0].queue.step());
  CHECK_EQ(sent->error, std::string("no memory"));
  CHECK_EQ(received->error, std::string("no memory"));
}

// Other ranks get the reason, and would not know the rank of the exception.
TEST_CASE("an exception that ends a message names both ranks") {
  for (const bool loss : {false, true}) {
    Ranks group(3, kNames);
    group[0].receive(1, 1, 1);
    group[0].queue.lost(1, loss ? std::make_exception_ptr(PeerLostError("gone", {11}))
                                : std::make_exception_ptr(SharedMemoryError("no memory")));
    group[0].queue.step();
    const Fault f = group[0].queue.failure().value();
    CHECK(f.event == (loss ? Event::quoted_loss : Event::cannot_exchange));
    CHECK(f.reporter == 10 && f.rank == 11);
    CHECK_EQ(f.evidence.text(), loss ? "gone" : "no memory");
  }
}

TEST_CASE("an abort ends a message that has partly come") {
  Ranks group(2);
  group[1].send(0, 1, text(8 << 20, 'x'));
  group[1].run();
  const Shared half = group[0].receive(1, 1, 8 << 20);
  group[0].run();
  CHECK(!half->done);
  group[0].queue.abort(aborted_by(1, "enough"));
  CHECK_CONTAINS(half->error, "The reason: aborted by rank 1: enough");
}

TEST_CASE("a peer is connected to only once") {
  QueuedRank zero(0, 4);
  for (int i = 0; i < 2; ++i) {
    zero.send(1, 1, text(1, 'x'));
    zero.receive(2, 1, 1);
    zero.receive(kAnySource, 1, 1);
  }
  CHECK(zero.connects == std::vector<int>({1, 2}));
  zero.queue.met(3);
  zero.send(3, 1, {});
  CHECK_EQ(zero.connects.size(), size_t(2));
}

}  // namespace
