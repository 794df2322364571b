// Ranks with different tables choose by rank 0's, and use rank 0's orders.

#include "comm/communicator.h"
#include "comm/ring_of_threads.h"

using namespace ringkern;
using namespace ringkern::test;

namespace {

constexpr Milliseconds kLong{20000};

struct Transports final : Transport {
  explicit Transports(int unreached = -1, bool torn = false) : unreached_(unreached), torn_(torn) {}
  void* mine() override { return &memory_; }
  Offer offer() override { return {"some bytes"}; }
  void* map(const Offer&, int peer) override { return peer == unreached_ ? nullptr : &memory_; }
  std::optional<uint32_t> mapped() const override {
    return unreached_ < 0 ? ~0u : ~(1u << unreached_);
  }
  void settle(uint32_t both, Segments& segments) override {
    for (size_t peer = 0; peer < segments.all.size(); ++peer) {
      if ((both >> peer & 1) != 0) continue;
      segments.all[peer] = segments.host = &host_;
      segments.on_host |= 1u << peer;
    }
  }
  bool carries_lines() const override { return !torn_; }
  const int unreached_;
  const bool torn_;
  int memory_ = 0, host_ = 0;
};

struct Executors final : Executor {
  explicit Executors(Way& way) : way_(way) {}
  RunResult run(const Task& task) override {
    way_ = {task.algorithm, task.protocol};
    return {};
  }
  void abort() override {}
  Way& way_;
};

// A device that records in `last` the way of the last call.
Device device_of(const WayTable& ways, Way& last) {
  Device device;
  device.name = "cpu";
  device.terms = some_terms();
  device.ways = ways;
  device.make_transport = [] { return std::make_unique<Transports>(); };
  device.make_executor = [&last](const Segments&) { return std::make_unique<Executors>(last); };
  return device;
}

WayTable table_of(Way small, Way large) {
  WayTable table;
  for (auto& list : table.rows) {
    list[0] = {64, small};
    list[1] = {WayTable::kAnySize, large};
  }
  return table;
}

constexpr Way kSmall{Algorithm::one_shot, Protocol::ll};
constexpr Way kLarge{Algorithm::two_shot, Protocol::simple};
constexpr Way kOther{Algorithm::ring, Protocol::ll128};

Task open_task(int64_t count) {
  Task task;
  task.choice = Choice::automatic;
  task.reduction.dtype = DType::f64;
  task.count = count;
  return task;
}

TEST_CASE("all ranks choose by rank 0's table") {
  const auto store = std::make_shared<MemoryStore>();
  check_all(on_threads(3,
                       [&](int rank) {
                         Way last;
                         const Device device = device_of(
                             rank == 0 ? table_of(kSmall, kLarge) : table_of(kOther, kOther), last);
                         Communicator comm(store, "group", rank, 3, kLong);
                         CHECK(comm.ways_on(device).choose(Choice::automatic, 8) ==
                               (rank == 0 ? kSmall : kOther));
                         comm.run(device, open_task(7));  // of 8 bytes each
                         CHECK(last == kSmall);
                         Task next = open_task(8);
                         CHECK(comm.run_now(device, next));
                         CHECK(last == kLarge);
                         CHECK(comm.ways_on(device).choose(Choice::automatic, 8) == kSmall);
                         Task asked = open_task(7);
                         asked.choice = Choice::none;
                         asked.protocol = Protocol::ll128;
                         comm.run(device, asked);
                         CHECK(last == kOther);
                         return Neighbours{};
                       }),
            "", "");
}

TEST_CASE("where two ranks share host memory, all use the ways that suit it") {
  constexpr Way kTwo{Algorithm::two_shot, Protocol::ll}, kRing{Algorithm::ring, Protocol::simple};
  constexpr Way kLines{Algorithm::ring, Protocol::ll};
  for (const int ranks : {2, 4})
    for (const bool hole : {false, true}) {
      const auto store = std::make_shared<MemoryStore>();
      check_all(
          on_threads(ranks,
                     [&](int rank) {
                       Way last;
                       uint32_t on_host = 0;
                       Device device = device_of(table_of(kLarge, kOther), last);
                       device.terms.room.bus = "0000:00:00.0";
                       device.make_transport = [&] {
                         return std::make_unique<Transports>(hole && rank == 1 ? ranks - 1 : -1);
                       };
                       if (ranks == 2)  // either way is possible
                         device.make_transport = [&] {
                           return std::make_unique<Transports>(hole && rank == 1 ? 0 : -1);
                         };
                       const auto make = device.make_executor;
                       device.make_executor = [&, make](const Segments& segments) {
                         on_host = segments.on_host;
                         return make(segments);
                       };
                       Communicator comm(store, "group", rank, ranks, kLong);
                       comm.run(device, open_task(7));
                       CHECK(last == (!hole ? kLarge : ranks == 2 ? kLines : kSmall));
                       const int other = ranks == 2 ? 0 : ranks - 1;
                       CHECK_EQ(on_host, !hole           ? 0u
                                         : rank == 1     ? 1u << other
                                         : rank == other ? 1u << 1
                                                         : 0u);
                       comm.run(device, open_task((512 << 10) / (ranks * ranks) / 8));
                       CHECK(last == (!hole ? kOther : ranks == 2 ? kRing : kTwo));
                       comm.run(device, open_task(ranks * (64 << 10) / 8));
                       CHECK(last == (hole ? kRing : kOther));
                       Task asked = open_task(7);
                       asked.choice = Choice::none;
                       asked.algorithm = Algorithm::two_shot;
                       if (hole)
                         CHECK_THROWS(UsageError, "some ranks of this ring have only host memory",
                                      comm.run(device, asked));
                       else comm.run(device, asked);
                       asked.algorithm = Algorithm::ring;
                       asked.protocol = Protocol::ll128;
                       if (hole) CHECK_THROWS(UsageError, "ll128", comm.run(device, asked));
                       else comm.run(device, asked);
                       comm.run(device, open_task(7));  // nothing was damaged
                       CHECK(last == (!hole ? kLarge : ranks == 2 ? kLines : kSmall));
                       return Neighbours{};
                     }),
          "", "");
    }
}

TEST_CASE("where lines do not arrive whole over every link, no rank takes LL128") {
  for (const bool torn : {false, true}) {
    const auto store = std::make_shared<MemoryStore>();
    check_all(on_threads(2,
                         [&](int rank) {
                           Way last;
                           Device device = device_of(table_of(kOther, kLarge), last);
                           device.terms.room.bus = "0000:00:00.0";
                           device.make_transport = [&] {
                             return std::make_unique<Transports>(-1, torn && rank == 1);
                           };
                           Communicator comm(store, "group", rank, 2, kLong);
                           Task asked = open_task(7);
                           asked.choice = Choice::none;
                           asked.protocol = Protocol::ll128;
                           if (torn)
                             CHECK_THROWS(UsageError,
                                          "protocol ll128 needs links over which a line of 128 "
                                          "bytes arrives whole: NVLink",
                                          comm.run(device, asked));
                           else comm.run(device, asked);
                           CHECK(last == (torn ? Way{} : kOther));
                           comm.run(device, open_task(7));  // nothing was damaged
                           CHECK(last == (torn ? Way{Algorithm::ring, Protocol::simple} : kOther));
                           return Neighbours{};
                         }),
              "", "");
  }
}

TEST_CASE("a ring of one chooses by its own table") {
  Way last;
  const Device device = device_of(table_of(kSmall, kLarge), last);
  Communicator comm(std::make_shared<MemoryStore>(), "alone", 0, 1, kLong);
  comm.run(device, open_task(8));
  CHECK(last == kLarge);
}

TEST_CASE("all ranks stand in rank 0's orders") {
  const auto store = std::make_shared<MemoryStore>();
  const int order[] = {0, 2, 1, 3}, back[] = {3, 1, 2, 0};
  std::vector<RingOrders> orders(4);
  std::vector<std::vector<std::string>> asked(4);
  check_all(on_threads(4,
                       [&](int rank) {
                         Way last;
                         Device device = device_of(table_of(kSmall, kLarge), last);
                         device.terms.room.bus = "0000:" + std::to_string(rank) + "0:00.0";
                         device.orders = [&, rank](const std::vector<std::string>& buses) {
                           asked[size_t(rank)] = buses;
                           RingOrders both;
                           CHECK(both.add(order, 4) && both.add(back, 4));
                           return both;
                         };
                         device.make_executor = [&, rank](const Segments& segments) {
                           orders[size_t(rank)] = segments.orders;
                           return std::make_unique<Executors>(last);
                         };
                         Communicator(store, "group", rank, 4, kLong).run(device, open_task(1));
                         return Neighbours{};
                       }),
            "", "");
  CHECK(asked[0] ==
        (std::vector<std::string>{"0000:00:00.0", "0000:10:00.0", "0000:20:00.0", "0000:30:00.0"}));
  for (int rank = 1; rank < 4; ++rank) CHECK(asked[size_t(rank)].empty());
  for (const RingOrders& of : orders) {
    CHECK_EQ(of.count, 2);
    for (int p = 0; p < 4; ++p) CHECK_EQ(of.rank_at(0, p), order[p]);
    for (int p = 0; p < 4; ++p) CHECK_EQ(of.rank_at(1, p), back[p]);
  }
}

// Three ranks, each with a device of its own, that use `channels_of(rank, rooms)`.
std::vector<Outcome> fitted(
    const std::function<int(int rank, const std::vector<DeviceRoom>& rooms)>& channels_of,
    std::vector<int64_t>& made_of, const std::function<void(int rank)>& look = nullptr) {
  const auto store = std::make_shared<MemoryStore>();
  made_of.assign(3, 0);
  return on_threads(3, [&](int rank) {
    Way last;
    Device device = device_of(table_of(kSmall, kLarge), last);
    device.room = [&, rank] {
      if (look) look(rank);
      return DeviceRoom{"bus " + std::to_string(rank), {uint8_t(rank)}, 10 + rank};
    };
    device.fit = [&, rank](Device& fitted, const std::vector<DeviceRoom>& rooms, const RankNames&) {
      const int channels = channels_of(rank, rooms);
      fitted.terms.geometry.channels = channels;
      fitted.make_transport = [&made_of, rank, channels] {
        made_of[size_t(rank)] = channels;
        return std::make_unique<Transports>();
      };
    };
    Communicator comm(store, "group", rank, 3, kLong);
    comm.run(device, open_task(1));
    CHECK_EQ(comm.geometry_on(device).channels, int(made_of[size_t(rank)]));
    CHECK_EQ(device.terms.geometry.channels, 1);  // another ring may have other ranks
    return Neighbours{};
  });
}

TEST_CASE("a ring is made of what the devices of all ranks hold") {
  std::vector<int64_t> made_of;
  const auto all = [](int, const std::vector<DeviceRoom>& rooms) {
    int channels = 0;
    for (int rank = 0; rank < 3; ++rank) {
      const DeviceRoom& room = rooms[size_t(rank)];
      CHECK(room.bus == "bus " + std::to_string(rank) && room.uuid[0] == rank);
      channels += int(room.blocks);
    }
    return channels;
  };
  check_all(fitted(all, made_of), "", "");
  CHECK(made_of == std::vector<int64_t>(3, 33));
  // A rank that computes a different result from the same rooms.
  check_all(fitted([](int rank, const auto&) { return rank == 2 ? 5 : 4; }, made_of),
            "RendezvousError", "channels 4, rank 2 has 5");
}

TEST_CASE("all ranks hear of devices without room") {
  std::vector<int64_t> made_of;
  const auto none = [](int, const auto&) -> int { throw UsageError("no room"); };
  check_all(fitted(none, made_of), "another", "no room");
  CHECK(made_of == std::vector<int64_t>(3, 0));
  const auto outcomes = fitted([](int, const auto&) { return 4; }, made_of,
                               [](int rank) {
                                 if (rank == 1) throw TransportError("no kernels");
                               });
  check_outcome(outcomes[1], "TransportError", "no kernels");
  for (const size_t rank : {0, 2})
    check_outcome(outcomes[rank], "RendezvousError", "rank 1 could not join the ring: no kernels");
}

// Sent by a rank 0 of another version; all ranks get the error.
void a_word_that_is_none_fails_the_ring(const std::string& word) {
  const auto store = std::make_shared<MemoryStore>();
  const std::vector<Outcome> outcomes = on_threads(2, [&](int rank) {
    if (rank == 1) {
      Way last;
      const Device device = device_of(table_of(kSmall, kLarge), last);
      Communicator(store, "group", 1, 2, kLong).run(device, open_task(1));
      return Neighbours{};
    }
    Joiner joiner{*store, unique_prefix(*store, "group/cpu", place_of(0, 2)), place_of(0, 2)};
    joiner.make_word = [&](const std::vector<std::string>&) { return word; };
    const Control page(0, 2, "group");
    joiner.make_offer = [&] { return Offer{"some bytes", {page.fd()}}; };
    return joiner.join();
  });
  check_all(outcomes, "RendezvousError",
            "rank 0 sent a table of algorithms or ring orders that rank 1 "
            "cannot read: install the same ringkern for all ranks");
}

TEST_CASE("a malformed table fails the ring") {
  // A table, and behind it orders.
  const WayTable table = table_of(kSmall, kLarge);
  std::string good(reinterpret_cast<const char*>(&table), sizeof table);
  const RingOrders none;
  good.append(reinterpret_cast<const char*>(&none), sizeof none);
  a_word_that_is_none_fails_the_ring("");
  a_word_that_is_none_fails_the_ring(good + "x");
  std::string bad = good;
  bad[0] = bad[7] = '\xff';
  a_word_that_is_none_fails_the_ring(bad);
  bad = good;
  bad[sizeof table] = 1;  // of one order with rank 0 twice
  a_word_that_is_none_fails_the_ring(bad);
}

}  // namespace
