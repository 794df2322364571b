// Ranks that are processes: memory passed between them, collectives over it, and deaths.
#include <signal.h>

#include "comm/processes.h"
#include "cpu/executor.h"
#include "cpu/shm.h"

using namespace ringkern;
using namespace ringkern::test;

namespace {

Geometry small() {
  Geometry g;
  for (int p = 0; p < kProtocols; ++p) g.slot_bytes[p] = 1024;
  return g;
}

constexpr std::pair<Algorithm, Protocol> kWays[] = {
    {Algorithm::ring, Protocol::simple},     {Algorithm::ring, Protocol::ll},
    {Algorithm::ring, Protocol::ll128},      {Algorithm::one_shot, Protocol::ll},
    {Algorithm::one_shot, Protocol::simple}, {Algorithm::two_shot, Protocol::simple}};

// A rank with memory and an engine over it.
struct Rank {
  cpu::ShmTransport transport{cpu::segment_bytes(small())};
  Neighbours neighbours;
  std::unique_ptr<cpu::CpuExecutor> engine;

  Rank(Store& store, const std::string& prefix, const Place& place) {
    Joiner joiner{store, prefix, place};
    joiner.make_offer = [&] { return transport.offer(); };
    Segments segments;
    segments.mine = transport.mine();
    joiner.map_all = [&](const std::vector<Offer>& offers) {
      for (int peer = 0; peer < place.size; ++peer)
        segments.all.push_back(peer == place.rank ? transport.mine()
                                                  : transport.map(offers[size_t(peer)], peer));
      segments.next = segments.all[size_t(place.next)];
      segments.prev = segments.all[size_t(place.prev)];
    };
    neighbours = joiner.join();
    engine = std::make_unique<cpu::CpuExecutor>(segments, small(), place.rank, place.size,
                                                std::chrono::seconds(20));
  }
};

// Also runs more ranks than cores; that case tests that the calls end.
void processes_reduce(int ranks) {
  SharedStore store;
  on_processes(ranks, [&](int rank) {
    const Place place = place_of(rank, ranks);
    Rank r(store, unique_prefix(store, "group", place), place);
    for (int call = 0; call < 1200; ++call) {
      // Uses each way some hundred times, in another order each time.
      const auto [algorithm, protocol] = kWays[(call + call / 6) % 6];
      std::vector<int32_t> data(size_t(call % 100 == 0 ? 50'000 : call * 2), rank + call);
      Task task;
      task.algorithm = algorithm;
      task.protocol = protocol;
      task.reduction = Reduction::of(Op::sum, DType::i32, ranks);
      task.in = task.out = data.data();
      task.count = int64_t(data.size());
      r.engine->run(task);
      for (const int32_t x : data) CHECK_EQ(x, ranks * (ranks - 1) / 2 + ranks * call);
    }
  });
}

AROUND_EACH_CASE(run) {
  const int fds = open_files();
  run();
  CHECK_EQ(open_files(), fds);
}

TEST_CASE("a rank that dies while it joins is named") {
  SharedStore store;
  on_processes(
      3,
      [&](int rank) {
        Joiner joiner{store, "ring", place_of(rank, 3)};
        if (rank == 1)
          joiner.make_offer = []() -> Offer {
            ::raise(SIGKILL);
            return {};
          };
        try {
          joiner.join();
          FAIL("a ring with a dead rank");
        } catch (const PeerLostError& e) {
          const std::string text = e.what();  // depends on its progress
          CHECK_EQ(e.facts.rank, 1);
          CHECK(text.find("cannot greet rank 1: ") != std::string::npos ||
                text.find("rank 1 ended before it answered rank 0") != std::string::npos ||
                text.find(") died while the ranks connected") != std::string::npos);
        }
      },
      SIGKILL);
}

TEST_CASE("the death of a neighbour is the end of its socket") {
  SharedStore store;
  on_processes(
      3,
      [&](int rank) {
        Rank r(store, "ring", place_of(rank, 3));
        if (rank == 1) ::raise(SIGKILL);
        const Neighbour& dead = rank == 0 ? r.neighbours.next : r.neighbours.prev;
        CHECK_EQ(dead.rank, 1);
        pollfd watched{dead.socket.get(), POLLIN, 0};
        REQUIRE(readable({&watched, 1}, Milliseconds(20000)));
        Message message;
        CHECK(receive_message(dead.socket, message) == Received::closed);
      },
      SIGKILL);
}

TEST_CASE("processes reduce over a ring") {
  for (const int ranks : {2, 3, 4, 8}) processes_reduce(ranks);
}

}  // namespace
