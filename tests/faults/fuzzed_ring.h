// The other ranks of a ring, which send almost valid messages to the rank under test.
#pragma once

#include <atomic>
#include <cstddef>
#include <system_error>
#include <thread>

#include "comm/agreement.h"
#include "comm/ring_of_threads.h"
#include "faults/fuzzing.h"

namespace ringkern::faults {

inline constexpr Milliseconds kShort{150};    // for a rank that waits in vain
inline constexpr Milliseconds kLong{20'000};  // for a rank that must not wait in vain

inline Terms terms() {
  Terms t = test::some_terms();
  t.segment_bytes = kOfferedBytes;
  return t;
}

// Ranks 1 to `size - 1` of a ring, as rank 0 sees them: its next, its prev, and the others' offers
// that come through prev. One of them sends one wrong message, or stops sending.
class OtherRanks {
 public:
  OtherRanks(Fuzzer& fuzzer, MemoryStore& store, int size, bool spoils)
      : fuzzer_(fuzzer), store_(store), size_(size),
        spoilt_step_(spoils ? int(fuzzer.below(kUnidentifiedPeers + 1)) : -1),
        way_(int(fuzzer.below(8))) {}

  // Returns true if a fault was sent; false if rank 0 gave up before.
  bool spoilt() const { return spoilt_; }
  // Returns true if only unidentified peers send wrong messages, before the valid ranks come.
  bool only_unidentified_peers() const { return spoilt_step_ == kUnidentifiedPeers; }

  // Called by any thread, when rank 0 has joined or given up.
  void end() { over_ = true; }

  void talk() {
    const Address zero =
        read_address(store_.get("ring/rank/0", kLong), 0, my_address(terms(), random_id()), 1);
    session_ = zero.session;
    if (!publish(1) || !(size_ == 2 || publish(size_ - 1))) return;
    std::vector<Fd> unidentified_peers;
    if (only_unidentified_peers()) unidentified_peers = connect_unidentified_peers(zero);
    try {
      if (auto to_zero = connect_to(socket_name(zero.socket))) go_on(*to_zero);
    } catch (const std::system_error&) {
      // Rank 0 has given up already.
    }
  }

 private:
  void go_on(const Fd& to_zero) {
    if (!say(to_zero, greeting(size_ - 1))) return;
    const Fd from_zero = accept_zero();
    if (!from_zero || !say(from_zero, greeting(1))) return wait_for_the_end();
    for (int owner = size_ - 2; owner > 1; --owner)
      if (!say(to_zero, passed_on(terms(), session_, owner, ""))) return;
    vote();
    wait_for_the_end();
  }

  std::vector<Fd> connect_unidentified_peers(const Address& zero) {
    std::vector<Fd> unidentified_peers;
    for (uint64_t n = 1 + fuzzer_.below(20); n > 0; --n)
      if (auto socket = connect_to(socket_name(zero.socket))) {
        std::string bytes = fuzzer_.mutated(greeting(size_ - 1));
        const Id another = random_id();
        if (bytes.size() >= offsetof(Hello, from))
          std::memcpy(bytes.data() + offsetof(Hello, session), another.data(), another.size());
        if (!fuzzer_.one_in(4)) send_raw(*socket, bytes, fuzzer_.wrong_descriptors());
        spoilt_ = true;
        unidentified_peers.push_back(std::move(*socket));
      }
    return unidentified_peers;
  }

  bool publish(int rank) {
    Address address = my_address(terms(), random_id());
    if (rank == 1) listener_ = listen_on(socket_name(address.socket));
    std::string bytes = to_bytes(address);
    if (!spoil(bytes, 3)) return false;
    store_.add("ring/stage/" + std::to_string(rank), 1);
    store_.set("ring/rank/" + std::to_string(rank), bytes);
    return true;
  }

  std::string greeting(int rank) const {
    return to_bytes(my_hello(terms(), session_, size_, rank, 0));
  }

  // Returns false if nothing more is sent.
  bool say(const Fd& socket, std::string bytes) {
    const bool now = step_ == spoilt_step_;
    const std::string good = bytes;
    if (!spoil(bytes, way_)) return false;
    std::vector<int> fds{fuzzer_.memory()};
    if (now && way_ >= 5) fds = fuzzer_.wrong_descriptors();
    if (now && way_ == 4) send_raw(socket, good, fds);  // sends it twice
    send_raw(socket, bytes, fds);
    return true;
  }

  // Called when it is its turn. Returns false if nothing more is sent. `way`: the fault, 0 to 7.
  bool spoil(std::string& bytes, int way) {
    if (step_++ != spoilt_step_) return true;
    spoilt_ = true;
    if (way_ == 0) {
      std::this_thread::sleep_for(2 * kShort);
      return false;
    }
    if (way_ == 1) return false;                            // disconnects
    if (way == 2) bytes = greeting(int(fuzzer_.below(5)));  // another rank's, or not its turn
    if (way == 3 || way == 6) bytes = fuzzer_.mutated(bytes);
    return true;
  }

  Fd accept_zero() {
    for (int i = 0; i < 400; ++i) {
      pollfd watched{listener_.get(), POLLIN, 0};
      if (readable({&watched, 1}, Milliseconds(5)))
        if (auto socket = accept_from(listener_)) return std::move(*socket);
      if (over_) return {};
    }
    return {};
  }

  void vote() {
    for (int rank = 1; rank < size_; ++rank) {
      std::string value = "formed";
      const bool now = step_ == spoilt_step_;
      if (!spoil(value, 3)) return;
      store_.add("ring/stage/" + std::to_string(rank), 1);
      const int64_t votes = store_.add("ring/votes", now ? int64_t(fuzzer_.below(5)) - 2 : 1);
      if (votes == size_ || now) store_.set("ring/verdict", value);
    }
  }

  // Waits until rank 0 has ended, because to disconnect first would be one more fault.
  void wait_for_the_end() {
    for (int i = 0; i < 4000 && !over_; ++i) ::usleep(1000);
  }

  static constexpr int kSteps = 8, kUnidentifiedPeers = kSteps;  // in place of a step

  Fuzzer& fuzzer_;
  MemoryStore& store_;
  const int size_, spoilt_step_, way_;
  int step_ = 0;
  bool spoilt_ = false;
  Id session_{};
  Fd listener_;
  std::atomic<bool> over_{false};
};

}  // namespace ringkern::faults
