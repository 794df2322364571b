// The receive buffers of messages, and the links over them, on one thread: when a link is ready,
// with an LL flag that wraps every 255 steps.
//
// The links are compiled into this file, with its own number of bits; the library's are not linked.
#define RK_LL_FLAG_BITS 8
#include "p2p/receive_buffer.cpp"
#include "cpu/link.cpp"
#include "cpu/wait.cpp"

#include <sys/stat.h>

#include <cstdio>
#include <cstring>
#include <random>

#include "check.h"
#include "cpu/ll.h"
#include "cpu/ll128.h"
#include "cpu/simple.h"

using namespace ringkern;
using namespace ringkern::cpu;

namespace {

static_assert(kLLFlagPeriod == 255);

Geometry small() {
  Geometry g;
  g.slots = 4;
  g.slot_bytes[int(Protocol::simple)] = 256;
  g.slot_bytes[int(Protocol::ll)] = 16 * 20;
  g.slot_bytes[int(Protocol::ll128)] = 128 * 2;
  return g;
}

struct Two {
  ReceiveBuffer a, b;
  explicit Two(const Geometry& g) : a(0, 2, g), b(1, 2, g) {
    a.open(1);
    b.open(0);
    a.map(1, b.fd());
    b.map(0, a.fd());
  }
};

// One chunk after another between two receive buffers; no link is ready to receive before a send,
// or to send before there is room.
template <class Link>
class Stream {
 public:
  Stream(ReceiveBuffer& from, int to_rank, ReceiveBuffer& to, int from_rank, Protocol p,
         const Geometry& g)
      : g_(g), p_(p), wait_(from.bell(), 0, std::chrono::seconds(20), history_),
        sender_({from.ends(to_rank, p), wait_, bytes_, in_, out_, report_}),
        receiver_({to.ends(from_rank, p), wait_, bytes_, in_, out_, report_}) {}

  Plan plan(int64_t bytes) const {
    return Plan::make(Collective::send_recv, p_, 2, bytes, 1, 1, g_, 1);
  }
  // Sends as much as fits, and receives it.
  void pass(const std::vector<int64_t>& sizes, std::mt19937_64& random) {
    std::vector<std::vector<std::byte>> sent;
    for (const int64_t bytes : sizes) {
      const Plan p = plan(bytes);
      CHECK_EQ(p.loops, 1);
      const Chunk chunk = p.chunk_of(0, 0, 0);
      CHECK(bytes <= int64_t(sizeof in_));
      for (int64_t i = 0; i < bytes; ++i) in_[i] = std::byte(random());
      sent.emplace_back(in_, in_ + bytes);
      if (sent.size() == 1) CHECK(!receiver_.ready(Verb::recv, p, chunk));
      CHECK(sender_.ready(Verb::send, p, chunk));
      CHECK(sender_.perform(Verb::send, p, chunk) == Verdict::ok);
    }
    for (const auto& bytes : sent) {
      const Plan p = plan(int64_t(bytes.size()));
      const Chunk chunk = p.chunk_of(0, 0, 0);
      CHECK(receiver_.ready(Verb::recv, p, chunk));
      CHECK(receiver_.perform(Verb::recv, p, chunk) == Verdict::ok);
      CHECK(std::equal(bytes.begin(), bytes.end(), out_));
    }
  }
  bool has_room(int64_t bytes) {
    const Plan p = plan(bytes);
    return sender_.ready(Verb::send, p, p.chunk_of(0, 0, 0));
  }
  bool has_come(int64_t bytes) {
    const Plan p = plan(bytes);
    return receiver_.ready(Verb::recv, p, p.chunk_of(0, 0, 0));
  }
  void send(int64_t bytes) {
    const Plan p = plan(bytes);
    CHECK(sender_.perform(Verb::send, p, p.chunk_of(0, 0, 0)) == Verdict::ok);
  }

 private:
  const Geometry g_;
  const Protocol p_;
  const Reducer bytes_{Reduction{DType::u8}};
  WaitHistory history_;
  Wait wait_;
  WaitReport report_;
  std::byte in_[512], out_[512];
  Link sender_, receiver_;
};

template <class Link>
void chunks_arrive(Protocol p, int64_t most) {
  Two two(small());
  Stream<Link> there(two.a, 1, two.b, 0, p, small()), back(two.b, 0, two.a, 1, p, small());
  std::mt19937_64 random(uint64_t(p) + 1);
  for (int i = 0; i < 3000; ++i) {
    std::vector<int64_t> sizes(size_t(1 + random() % 2));  // a chunk of Simple has two slots
    for (int64_t& n : sizes) n = 1 + int64_t(random() % uint64_t(random() % 8 ? 9 : most));
    there.pass(sizes, random);
    if (i % 3 == 0) back.pass(sizes, random);
  }
}

// Fills a slot whole, then sends short chunks until slot and flag wrap together, then a whole one:
// its last line must not be taken for fresh before it is written.
TEST_CASE("lines of an old message are not ready") {
  const Geometry g = small();
  const int64_t whole = g.slot_data_bytes(Protocol::ll);
  int64_t round = kLLFlagPeriod;
  while (round % g.slots != 0) round += kLLFlagPeriod;
  std::mt19937_64 random(7);
  for (int64_t first = 0; first < 2 * g.slots; ++first) {
    Two two(g);
    Stream<LLLink> stream(two.a, 1, two.b, 0, Protocol::ll, g);
    for (int64_t step = 0; step <= first + round; ++step)
      stream.pass({step % round == first ? whole : 8}, random);
  }
}

template <class Link>
void a_full_link_is_not_ready(Protocol p, int chunks) {
  Two two(small());
  Stream<Link> stream(two.a, 1, two.b, 0, p, small());
  const int64_t whole = stream.plan(1 << 20).chunk;
  for (int i = 0; i < chunks; ++i) {
    CHECK(stream.has_room(whole));
    stream.send(whole);
  }
  CHECK(!stream.has_room(whole));
  CHECK(!stream.has_room(1));
}

// A long chunk of Simple takes two slots, and both must be there.
TEST_CASE("a link with one slot takes a short chunk") {
  Two two(small());
  Stream<SimpleLink> stream(two.a, 1, two.b, 0, Protocol::simple, small());
  for (const int64_t bytes : {512, 1}) stream.send(bytes);
  CHECK(!stream.has_room(512));
  CHECK(stream.has_room(1));
}

// The sender may have been interrupted in the middle of a chunk.
template <class Line>
void a_chunk_is_ready_with_its_last_line(Protocol p) {
  Two two(small());
  Stream<LineLink<Line>> stream(two.a, 1, two.b, 0, p, small());
  const Ends to = two.a.ends(1, p);
  auto* const lines = reinterpret_cast<Line*>(to.to_slot());
  const std::byte data[Line::kData] = {};
  lines[0].write(data, Line::flag_of(to.sent()));
  CHECK(!stream.has_come(2 * Line::kData));
  lines[1].write(data, Line::flag_of(to.sent()));
  CHECK(stream.has_come(2 * Line::kData));
}

int mappings() {
  FILE* maps = std::fopen("/proc/self/maps", "re");
  REQUIRE(maps != nullptr);
  char line[512];
  int n = 0;
  while (std::fgets(line, sizeof line, maps) != nullptr)
    n += std::strstr(line, "ringkern") != nullptr;
  std::fclose(maps);
  return n;
}

TEST_CASE("meeting twice changes nothing") {
  const int before = mappings();
  Two two(small());
  const int once = mappings();
  CHECK(once > before);
  two.a.open(1);
  two.a.map(1, two.b.fd());
  CHECK_EQ(mappings(), once);
}

int64_t allocated(const ReceiveBuffer& buffer) {
  struct stat s;
  CHECK(::fstat(buffer.fd(), &s) == 0);
  CHECK_EQ(int64_t(s.st_size), buffer.bytes());
  return int64_t(s.st_blocks) * 512;
}

TEST_CASE("memory is allocated when ranks meet") {
  Geometry g = small();
  g.slot_bytes[int(Protocol::simple)] = 32 << 10;
  ReceiveBuffer buffer(3, 64, g);
  const int64_t head = allocated(buffer);
  const int64_t fifos = g.bytes() - g.counters_bytes();
  CHECK(buffer.bytes() >= 64 * fifos);
  CHECK(head >= kBellBytes + 64 * g.counters_bytes() && head < fifos);
  buffer.open(5);
  const int64_t one = allocated(buffer);
  CHECK(one >= head + fifos && one < head + 2 * fifos);
  buffer.open(5);
  CHECK_EQ(allocated(buffer), one);
  buffer.open(63);
  CHECK(allocated(buffer) >= one + fifos);
}

TEST_CASE("memory of another size is refused") {
  ReceiveBuffer buffer(0, 2, small()), larger(1, 3, small());
  CHECK_THROWS(TransportError, "the memory offered by rank 1 is refused: expected",
               buffer.map(1, larger.fd()));
  CHECK_THROWS(TransportError, "expected a file descriptor, found none", buffer.map(1, -1));
}

// Three ranks: the data of two of them in the third's memory does not overlap.
TEST_CASE("two peers share no memory of a third") {
  const Geometry g = small();
  ReceiveBuffer a(0, 3, g), b(1, 3, g), c(2, 3, g);
  for (ReceiveBuffer* from : {&a, &b}) {
    const int rank = from == &a ? 0 : 1;
    c.open(rank);
    from->open(2);
    c.map(rank, from->fd());
    from->map(2, c.fd());
  }
  std::mt19937_64 random(3);
  Stream<LL128Link> from_a(a, 2, c, 0, Protocol::ll128, g), from_b(b, 2, c, 1, Protocol::ll128, g);
  from_a.send(200);
  for (int i = 0; i < 20; ++i) from_b.pass({200, 7, 100}, random);
  for (int i = 1; i < g.slots; ++i) from_a.send(1);
  CHECK(!from_a.has_room(1));
}

TEST_CASE("chunks of all sizes arrive") {
  chunks_arrive<SimpleLink>(Protocol::simple, 512);
  chunks_arrive<LLLink>(Protocol::ll, 160);
  chunks_arrive<LL128Link>(Protocol::ll128, 240);
}

TEST_CASE("a full link is not ready") {
  a_full_link_is_not_ready<SimpleLink>(Protocol::simple, 2);
  a_full_link_is_not_ready<LLLink>(Protocol::ll, 4);
  a_full_link_is_not_ready<LL128Link>(Protocol::ll128, 4);
}

TEST_CASE("a chunk is ready with its last line") {
  a_chunk_is_ready_with_its_last_line<LL>(Protocol::ll);
  a_chunk_is_ready_with_its_last_line<LL128>(Protocol::ll128);
}

}  // namespace
