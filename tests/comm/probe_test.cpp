// Links that move wrong data are found before the ring is made, and all ranks are told which.
#include "comm/probe.h"

#include <set>

#include "comm/tricky_ring.h"

using namespace ringkern;
using namespace ringkern::test;

namespace {

// `finders` get a TransportError, the others a report of it.
void check_found(const std::vector<Outcome>& outcomes, const std::set<int>& finders,
                 const std::vector<std::string>& texts) {
  for (int rank = 0; rank < int(outcomes.size()); ++rank) {
    const Outcome& o = outcomes[size_t(rank)];
    if (o.kind == "TransportError") CHECK(finders.contains(rank));
    else CHECK_EQ(o.kind, std::string("RendezvousError"));
    if (finders == std::set{rank}) CHECK_EQ(o.kind, std::string("TransportError"));
    for (const std::string& text : texts) CHECK_CONTAINS(o.text, text);
  }
}

ProbedLink& to(std::vector<ProbedLink>& links, int peer) {
  return *std::find_if(links.begin(), links.end(), [&](auto& l) { return l.peer == peer; });
}

AROUND_EACH_CASE(run) {
  const int fds = open_files();
  run();
  CHECK_EQ(open_files(), fds);
}

TEST_CASE("good links pass the probe") {
  for (int ranks = 2; ranks <= 6; ++ranks) {
    check_all(make_ring(ranks, [](int) { return Tricks{}; }), "", "");
    check_all(make_ring(ranks, [](int) { return Tricks{.reads_others = false}; }), "", "");
  }
}

// The protocols find fresh memory: the probe writes to the FIFO of Simple, and to no counter.
TEST_CASE("the probe touches no counter") {
  const Geometry g = small();
  const ProbeRoom room = cpu::probe_room(g);
  const int64_t fifo = cpu::kBellBytes + g.fifo_offset(0, Protocol::simple);
  CHECK(room.offset == fifo && room.bytes == g.fifo_bytes(Protocol::simple));
  std::atomic<int> written{0};
  check_all(make_ring(
                4, [](int) { return Tricks{}; }, kLong,
                [&](int, const Segments& s) {
                  const auto* at = static_cast<const unsigned char*>(s.mine);
                  for (int64_t i = 0; i < cpu::segment_bytes(g); ++i) {
                    if (i >= room.offset && i < room.offset + room.bytes) written += at[i] != 0;
                    else CHECK_EQ(int(at[i]), 0);
                  }
                }),
            "", "");
  CHECK(written > 4 * 3 * 64);  // each of the four ranks wrote to each segment
}

TEST_CASE("a link on which nothing arrives is named") {
  const auto outcomes = make_ring(
      3,
      [](int rank) {
        if (rank != 1) return Tricks{};
        return Tricks{.writes = [](auto& links) { to(links, 2).theirs = nullptr; }};
      },
      kShort);
  check_found(outcomes, {2},
              {"the data that rank 1 wrote into the memory of rank 2 did not arrive within "
               "1.5 s: all 512 bytes are 0. Mend it"});
}

TEST_CASE("the probe waits for data that comes late") {
  check_all(
      make_ring(3, [](int rank) { return Tricks{.late = Milliseconds(rank == 1 ? 150 : 0)}; }), "",
      "");
}

TEST_CASE("a wrong byte is named") {
  static std::vector<uint64_t> sends;  // outlives the call
  for (const int at : {0, 17, 63}) {
    const auto outcomes = make_ring(3, [at](int rank) {
      Tricks tricks{.place = "card " + std::to_string(rank)};
      if (rank == 2)
        tricks.writes = [at](auto& links) {
          ProbedLink& link = to(links, 0);
          sends.assign(link.sends, link.sends + link.words + 1);
          sends[size_t(at)] ^= 0x2000;
          link.sends = sends.data();
        };
      return tricks;
    });
    check_found(outcomes, {0},
                {"the data that rank 2 (card 2) wrote into the memory of rank 0 (card 0) is "
                 "wrong: 1 of 512 bytes differ, the first of them in word " +
                     std::to_string(at) + ", which is 0x",
                 "should be 0x", "Mend it"});
  }
}

// Rank 0 confuses the memory of two other ranks.
TEST_CASE("swapped memory is named") {
  for (const bool reads : {true, false}) {
    const auto outcomes = make_ring(4, [&](int rank) {
      Tricks tricks{.reads_others = reads};
      if (rank == 0) tricks.maps = [](auto& mapped) { std::swap(mapped[1], mapped[3]); };
      return tricks;
    });
    check_found(outcomes, {0, 1, 3},
                {"is wrong: ",
                 "of 512 bytes differ, the first of them in "
                 "word 0",
                 "; rank ", " wrote that word for rank "});
    const bool said = std::any_of(outcomes.begin(), outcomes.end(), [](const Outcome& o) {
      return o.text.find("rank 0 wrote that word for rank") != std::string::npos;
    });
    CHECK(reads || said);
  }
}

// A mapping of a copy: the writer finds its data there, and the owner does not.
TEST_CASE("a mapping of a copy is named") {
  static std::vector<std::byte> mirror(size_t(cpu::segment_bytes(small())));
  for (const bool reads : {true, false}) {
    std::fill(mirror.begin(), mirror.end(), std::byte{});
    const auto outcomes = make_ring(
        2,
        [&](int rank) {
          Tricks tricks{.reads_others = reads};
          if (rank == 1) tricks.maps = [](auto& mapped) { mapped[0] = mirror.data(); };
          return tricks;
        },
        kShort);
    check_found(outcomes, {0, 1}, {"did not arrive within 1.5 s: all 512 bytes are 0"});
  }
}

// Reads return the old contents, although writes arrive.
TEST_CASE("stale answers are named") {
  static std::vector<uint64_t> before(64, 0);
  for (const bool fresh : {true, false}) {
    for (size_t i = 0; i < before.size(); ++i) before[i] = fresh ? 0 : 0x1234'5678 + i;
    const auto outcomes = make_ring(
        3,
        [](int rank) {
          if (rank != 2) return Tricks{};
          return Tricks{.reads = [](auto& links) { to(links, 1).shown = before.data(); }};
        },
        kShort);
    check_found(outcomes, {2},
                {"the data that rank 2 read from the memory of rank 1 " +
                 std::string(fresh ? "did not arrive" : "is wrong")});
  }
}

// The data of another ring, of the same ranks, over the same memory.
TEST_CASE("data of another ring is named") {
  const ProbeWords other(probe_seed(random_id()), 2);
  static std::vector<uint64_t> sends;
  sends = other.words(0, 1, 65);
  const auto outcomes = make_ring(2, [&](int rank) {
    if (rank != 0) return Tricks{};
    return Tricks{.writes = [](auto& links) { to(links, 1).sends = sends.data(); }};
  });
  check_found(outcomes, {1}, {"the data that rank 0 wrote into the memory of rank 1 is wrong: 5"});
}

// The last word has arrived, and earlier ones have not.
TEST_CASE("words that come after the last are named") {
  static std::vector<uint64_t> sends;
  const auto outcomes = make_ring(2, [&](int rank) {
    if (rank != 0) return Tricks{};
    return Tricks{.writes = [](auto& links) {
      ProbedLink& link = to(links, 1);
      sends.assign(link.sends, link.sends + link.words + 1);
      std::fill(sends.begin() + 40, sends.begin() + 48, 0);
      link.sends = sends.data();
    }};
  });
  check_found(outcomes, {1},
              {"is wrong: 6",
               " of 512 bytes differ, the first of them in word 40, "
               "which is 0x0000000000000000"});
}

// Like on GPUs, where each side confirms the data that it has seen.
TEST_CASE("a missing answer is named") {
  const auto outcomes = make_ring(3, [](int rank) {
    if (rank != 1) return Tricks{};
    return Tricks{.reads = [](auto& links) { to(links, 0).answered = false; }};
  });
  check_found(outcomes, {1},
              {"the data that rank 1 wrote into the memory of rank 0, or the acknowledgement, "
               "did not arrive within 5.0 s. Mend it"});
}

// Like on GPUs without access to each other: map() reports it, and no rank waits.
TEST_CASE("links out of reach are left out") {
  const auto store = std::make_shared<MemoryStore>();
  class Apart final : public Transport {
   public:
    Apart(int rank, int64_t bytes) : shm_(bytes), rank_(rank) {}
    void* mine() override { return shm_.mine(); }
    Offer offer() override { return shm_.offer(); }
    void* map(const Offer& offer, int peer) override {
      // 0 and 2 are not neighbours among four; 1 cannot reach 3, although 3 reaches 1.
      const bool out = (rank_ + peer == 2 && rank_ != 1) || (rank_ == 1 && peer == 3);
      return out ? nullptr : shm_.map(offer, peer);
    }

   private:
    cpu::ShmTransport shm_;
    const int rank_;
  };
  check_all(on_threads(4,
                       [&](int rank) -> Neighbours {
                         Device device;
                         device.name = device.terms.device = "cpu";
                         device.terms.geometry = small();
                         device.terms.segment_bytes = cpu::segment_bytes(small());
                         device.probe = cpu::probe_room(small());
                         device.make_transport = [&] {
                           return std::make_unique<Apart>(rank, device.terms.segment_bytes);
                         };
                         device.make_executor = [](const Segments&) {
                           return std::make_unique<NoExecutor>();
                         };
                         Communicator comm(store, "ring", rank, 4, kShort);
                         comm.run(device, Task{});
                         return {};
                       }),
            "", "");
}

TEST_CASE("a transport's error is told to all") {
  const auto outcomes = make_ring(3, [](int rank) {
    if (rank != 1) return Tricks{};
    return Tricks{.writes = [](auto&) { throw TransportError("no kernel\nhere"); }};
  });
  check_found(outcomes, {1}, {"no kernel"});
  CHECK_CONTAINS(outcomes[0].text, "rank 1 could not join the ring: no kernel here");
}

// A rank that does not reach the probe is waited for and named, like elsewhere.
TEST_CASE("a rank that stops before it writes is named") {
  const auto outcomes = make_ring(
      2,
      [](int rank) {
        if (rank != 1) return Tricks{};
        return Tricks{.writes = [](auto&) { std::this_thread::sleep_for(Milliseconds(4000)); }};
      },
      kShort);
  check_all(outcomes, "RendezvousError",
            "no ring of 2 ranks within 3.0 s (timed out); came but did not finish "
            "connecting: rank 1; rank 0 waited for rank 1 to map");
}

TEST_CASE("slots lie side by side") {
  for (const int ranks : {2, 3, 8, kMostProbed, kMostProbed + 1, 500}) {
    const ProbeSlots slots{{4096, 256 << 10, 4096, 1152}, ranks};
    CHECK(slots.words() > 0 && slots.slot_bytes() % kCacheLine == 0);
    CHECK_EQ(slots.slot_bytes(), 8 * slots.words() + 1152);
    for (const int owner : {0, 1, ranks / 2, ranks - 1}) {
      std::set<int64_t> offsets;
      int links = 0;
      for (int writer = 0; writer < ranks; ++writer) {
        if (writer != owner && !is_probed(writer, owner, ranks)) continue;
        ++links;
        for (const int spare : {0, 1, 2}) {
          const int64_t at = slots.offset(writer, owner, spare);
          CHECK(at >= 4096 && at + slots.slot_bytes() <= 4096 + (256 << 10));
          CHECK((at - 4096) % slots.slot_bytes() == 0);
          offsets.insert(at);
        }
      }
      CHECK_EQ(int(offsets.size()), 3 * links);
      CHECK_EQ(links, ranks <= kMostProbed ? ranks : 3);
    }
  }
  CHECK((ProbeSlots{{0, 1024, 4096, 1152}, 8}.words()) < 1);  // no room
}

TEST_CASE("every link has its words") {
  std::set<uint64_t> all;
  Id a = random_id(), b = a;
  b[15] = uint8_t(b[15] ^ 1);
  for (const Id& session : {a, b})
    for (int writer = 0; writer < 4; ++writer)
      for (int reader = 0; reader < 4; ++reader)
        for (const uint64_t word : ProbeWords(probe_seed(session), 4).words(writer, reader, 64)) {
          CHECK(word != 0);
          all.insert(word);
        }
  CHECK_EQ(int(all.size()), 2 * 16 * 64);
}

}  // namespace
