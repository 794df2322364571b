// Almost valid handshakes, against a rank that joins a ring and against the connector of a running
// one: neither crashes, hangs or leaks, and valid peers still connect.
//
//     --handshakes 500 --seed 1     this many of each
//     --jobs 8                      processes, which mostly wait
#include <atomic>
#include <thread>

#include "faults/calls.h"
#include "faults/fuzzed_ring.h"
#include "faults/options.h"
#include "faults/shared.h"
#include "p2p/party.h"

using namespace ringkern;
using namespace ringkern::faults;

namespace {

constexpr int kMostSeconds = 20;      // a handshake that takes longer hangs
constexpr Milliseconds kGrace{2000};  // time for a rank that gives up to read the others' reason

struct Counts {
  std::atomic<int> good, joined, refused, heard, met, lost, real_ones;
  std::atomic<int64_t> longest_us;
};

// ---- a rank that joins a ring -------------------------------------------------------------------

// Returns true if the handshake was malformed.
bool join_once(Fuzzer& fuzzer, Counts& counts) {
  MemoryStore store;
  const int size = fuzzer.one_in(2) ? 2 : 4;
  const bool spoils = !fuzzer.one_in(10);
  OtherRanks others(fuzzer, store, size, spoils);
  std::thread talking([&] { others.talk(); });
  const auto start = Clock::now();
  const bool must_join = !spoils || others.only_unidentified_peers();
  cpu::ShmTransport transport(kOfferedBytes);
  test::Joiner joiner{store, "ring", test::place_of(0, size), terms(), must_join ? kLong : kShort};
  joiner.make_offer = [&] { return transport.offer(); };
  joiner.map_all = [&](const std::vector<Offer>& offers) {
    for (int peer = 1; peer < size; ++peer) {
      auto* const memory = static_cast<std::byte*>(transport.map(offers[size_t(peer)], peer));
      memory[kOfferedBytes - 1] = memory[0];
    }
  };
  bool joined = false;
  try {
    joiner.join();
    joined = true;
  } catch (const Error& e) {
    CHECK(e.what()[0] != 0);
    for (const char* c = e.what(); *c != 0; ++c) CHECK(*c >= ' ' && *c <= '~');
    if (must_join) FAIL(e.what());
  }
  const auto took = Clock::now() - start;
  others.end();
  talking.join();
  ++(!others.spoilt() ? counts.good : joined ? counts.joined : counts.refused);
  const int64_t us = std::chrono::duration_cast<std::chrono::microseconds>(took).count();
  if (us > counts.longest_us) counts.longest_us = us;
  return others.spoilt();
}

// ---- a connector --------------------------------------------------------------------------------

// Rank 0 of three, which runs during all handshakes. The fuzzer plays every connecting peer, and
// rank 1, to which rank 0 connects; rank 2 is real.
class BusyRank {
 public:
  BusyRank() : store_(test::new_store()), transport_(kOfferedBytes) {
    PeerCalls calls;
    calls.make_offer = [this](int) { return transport_.offer(); };
    calls.map = [this](int peer, const Offer& offer) {
      cpu::ShmTransport(kOfferedBytes).map(offer, peer);
      ++met;
    };
    calls.lost = [this](int, std::exception_ptr why) { lost += why != nullptr; };
    calls.told = [](int who, const Fault& why) {
      if (who == 0) FAIL(text_of(why));  // wrong: it can still be reached
    };
    connector_.emplace(store_, "group", 0, 3, terms(), calls);
    zero_ = read_address(store_->get("ringkern/group/3/0/address/0", kLong), 0,
                         my_address(terms(), random_id()), 1);
  }

  void hears(Fuzzer& fuzzer) {
    auto socket = connect_silently();
    std::string bytes = greeting(1 + int(fuzzer.below(2)));
    for (uint64_t n = 1 + fuzzer.below(3); n > 0; --n) {
      if (!fuzzer.one_in(3)) bytes = fuzzer.mutated(bytes);
      send_raw(socket, bytes, fuzzer.wrong_descriptors());
    }
    if (fuzzer.one_in(3)) kept_.push_back(std::move(socket));  // sends nothing more
    if (kept_.size() > 30) kept_.clear();
  }

  // Rank 1 has a wrong address, or gives wrong answers.
  void is_answered_by(Fuzzer& fuzzer) {
    Address address = my_address(terms(), random_id());
    const Fd listener = listen_on(socket_name(address.socket));
    std::string bytes = to_bytes(address);
    const bool spoils_address = fuzzer.one_in(4);
    if (spoils_address) bytes = fuzzer.mutated(bytes);
    store_->set("ringkern/group/3/0/address/1", bytes);
    store_->add("ringkern/group/3/0/present/1", 1);
    connector_->connect_to_peer(1);
    pollfd watched{listener.get(), POLLIN, 0};
    if (!readable({&watched, 1}, spoils_address ? Milliseconds(20) : kLong)) return;
    const auto socket = accept_from(listener);
    if (!socket) return;
    const bool announces = fuzzer.one_in(4);
    Hello hello = my_hello(terms(), address.session, 3, 1, 0);
    if (announces) hello.offer_bytes = uint32_t(fuzzer.below(5000));
    bytes = to_bytes(hello);
    if (!announces) bytes = fuzzer.mutated(bytes);
    if (!fuzzer.one_in(8)) send_raw(*socket, bytes, fuzzer.wrong_descriptors());
    if (fuzzer.one_in(4)) send_raw(*socket, fuzzer.mutated(bytes), fuzzer.wrong_descriptors());
  }

  // A valid rank is met, whatever happened before.
  void meets_a_real_one() {
    const int before = met;
    const Fd socket = connect_silently();
    cpu::ShmTransport offered(kOfferedBytes);
    send_raw(socket, greeting(2), {offered.offer().fd()});
    pollfd watched{socket.get(), POLLIN, 0};
    REQUIRE(readable({&watched, 1}, kLong));
    Message answer;
    CHECK(receive_message(socket, answer) == Received::message);
    CHECK(!answer.fds.empty() && met > before);
  }

  std::atomic<int> met{0}, lost{0};

 private:
  Fd connect_silently() {
    for (;;)
      if (auto socket = connect_to(socket_name(zero_.socket))) return std::move(*socket);
  }
  std::string greeting(int rank) const {
    return to_bytes(my_hello(terms(), zero_.session, 3, rank, 0));
  }

  const std::shared_ptr<MemoryStore> store_;
  cpu::ShmTransport transport_;
  Address zero_;
  std::vector<Fd> kept_;
  std::optional<Connector> connector_;  // last, so that it ends first
};

// ---- all of them --------------------------------------------------------------------------------

void work(int64_t handshakes, uint64_t seed, Counts& counts) {
  Fuzzer fuzzer(seed);
  for (const bool joins : {true, false}) {
    const Owned before = owned_at_first();
    for (int64_t done = 0; done < handshakes;) {
      const int64_t some = std::min<int64_t>(handshakes - done, 100);
      if (joins) {
        for (int64_t i = 0; i < some;) {
          ::alarm(kMostSeconds);
          i += join_once(fuzzer, counts);
        }
      } else {
        BusyRank rank;
        for (int64_t i = 0; i < some; ++i) {
          ::alarm(kMostSeconds);
          if (fuzzer.one_in(2)) rank.hears(fuzzer);
          else rank.is_answered_by(fuzzer);
          ++counts.heard;
          if (i % 10 == 9) rank.meets_a_real_one(), ++counts.real_ones;
        }
        counts.met += rank.met;
        counts.lost += rank.lost;
      }
      done += some;
      CHECK_EQ(not_given_back(before), "");
    }
  }
}

TAKES_OPTIONS;

TEST_CASE("a malformed handshake harms nobody") {
  auto options =
      read_options(test::arguments(), {{"--handshakes", 500}, {"--seed", 1}, {"--jobs", 8}});
  const int64_t all = options["--handshakes"], jobs = options["--jobs"];
  const Shared<Counts> counts;
  std::vector<pid_t> pids;
  for (int64_t job = 0; job < jobs; ++job) {
    const int64_t part = all * (job + 1) / jobs - all * job / jobs;
    const auto seed = uint64_t(options["--seed"] * 1000 + job);
    pids.push_back(start(
        [&] {
          work(part, seed, *counts);
          std::exit(0);  // leaks are checked at exit
        },
        kMostSeconds));
  }
  bool good = true;
  for (size_t job = 0; job < pids.size(); ++job) {
    int status = -1;
    CHECK_EQ(::waitpid(pids[job], &status, 0), pids[job]);  // the child has an alarm of its own
    if (status != 0)
      std::fprintf(stderr, "job %zu of seed %lld has failed: status %d\n", job,
                   static_cast<long long>(options["--seed"]), status);
    good = good && status == 0;
  }
  std::printf(
      "joining a ring: %d malformed handshakes, %d of them refused, %d harmless; %d good "
      "ones joined; the longest took %.2f s\n"
      "at a connector: %d malformed handshakes, after which %d ranks were lost, %d met, and "
      "%d real ones\n",
      counts->refused + counts->joined, counts->refused.load(), counts->joined.load(),
      counts->good.load(), double(counts->longest_us) / 1e6, counts->heard.load(),
      counts->lost.load(), counts->met - counts->real_ones, counts->real_ones.load());
  CHECK(good);
  CHECK(counts->refused + counts->joined == all && counts->heard == all);
  CHECK(counts->refused > all / 2 && counts->good > 0 && counts->lost > all / 4);
  CHECK(double(counts->longest_us) / 1e6 < double((kLong + kGrace).count()) / 1000);
}

}  // namespace
