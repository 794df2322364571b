// A rank with a connector, which offers memory and records the events.
#pragma once

#include <sys/eventfd.h>

#include <condition_variable>
#include <map>
#include <set>

#include "comm/ring_of_threads.h"
#include "fault/render.h"
#include "p2p/connector.h"

namespace ringkern::test {

inline constexpr Milliseconds kLong{20000};

inline std::string text_of(std::exception_ptr error) {
  if (!error) return "gone";
  try {
    std::rethrow_exception(error);
  } catch (const PeerLostError& e) {
    return std::string("PeerLostError ") + e.what();
  } catch (const SharedMemoryError& e) {
    return std::string("SharedMemoryError ") + e.what();
  } catch (const TransportError& e) {
    return std::string("TransportError ") + e.what();
  } catch (const RendezvousError& e) {
    return std::string("RendezvousError ") + e.what();
  } catch (const std::exception& e) {
    return e.what();
  }
}

// A rank that offers a file whose name has its number, and records the events.
class Party {
 public:
  Party(std::shared_ptr<Store> store, int rank, int ranks, const Terms& terms = some_terms(),
        std::function<void(int)> before_offer = nullptr,
        std::function<void(int)> before_map = nullptr)
      : rank_(rank), file_(::eventfd(unsigned(100 + rank), EFD_CLOEXEC | EFD_NONBLOCK)) {
    PeerCalls calls;
    calls.make_offer = [this, before_offer](int peer) {
      if (before_offer) before_offer(peer);
      std::lock_guard lock(mutex_);
      offered_.insert(peer);
      return Offer{"from " + std::to_string(rank_), {file_.get()}};
    };
    calls.map = [this, before_map](int peer, const Offer& offer) {
      if (before_map) before_map(peer);
      std::lock_guard lock(mutex_);
      CHECK(offered_.count(peer) == 1);  // checked first: the peer may write at once
      CHECK_EQ(offer.bytes, "from " + std::to_string(peer));
      CHECK_EQ(number_in(offer.fd()), 100 + peer);
      met_.insert(peer);
      changed_.notify_all();
    };
    calls.lost = [this](int peer, std::exception_ptr why) {
      std::lock_guard lock(mutex_);
      lost_.emplace(peer, text_of(why));
      changed_.notify_all();
    };
    calls.told = [this](int peer, const Fault& why) {
      std::lock_guard lock(mutex_);
      told_.emplace(peer, ringkern::text_of(why));
      changed_.notify_all();
    };
    connector.emplace(store, "group", rank, ranks, terms, calls);
  }

  bool met(int peer) {
    std::lock_guard lock(mutex_);
    return met_.count(peer) > 0;
  }
  void wait_met(int peer) {
    wait([&] { return met_.count(peer) > 0; });
  }
  std::string lost(int peer) {
    wait([&] { return lost_.count(peer) > 0; });
    return lost_[peer];
  }
  std::string told(int peer) {
    wait([&] { return told_.count(peer) > 0; });
    return told_[peer];
  }
  void check_nothing_lost() {
    std::lock_guard lock(mutex_);
    for (const auto& [peer, why] : lost_) CHECK_EQ(why, std::string("gone"));
  }

 private:
  // Not moved out: the file is offered to all peers.
  static int number_in(int fd) {
    char path[64], line[128];
    std::snprintf(path, sizeof path, "/proc/self/fdinfo/%d", fd);
    FILE* info = std::fopen(path, "re");
    REQUIRE(info != nullptr);
    unsigned long long count = 0;
    while (std::fgets(line, sizeof line, info) != nullptr)
      std::sscanf(line, "eventfd-count: %llx", &count);
    std::fclose(info);
    return int(count);
  }
  template <class F>
  void wait(F&& ready) {
    std::unique_lock lock(mutex_);
    REQUIRE(changed_.wait_for(lock, kLong, ready));
  }

  const int rank_;
  const Fd file_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<int> offered_, met_;
  std::map<int, std::string> lost_, told_;

 public:
  std::optional<Connector> connector;  // last, so that it ends first
};

inline Address address_of(Store& store, int rank, int ranks) {
  const std::string key = "ringkern/group/" + std::to_string(ranks) + "/0/address/";
  return read_address(store.get(key + std::to_string(rank), kLong), rank,
                      my_address(some_terms(), random_id()), rank + 1);
}

// A connection over which nothing has been sent.
inline Fd connect_silently(const std::shared_ptr<MemoryStore>& store, int rank, int ranks) {
  const Address address = address_of(*store, rank, ranks);
  for (;;)
    if (auto socket = connect_to(socket_name(address.socket))) return std::move(*socket);
}

inline std::shared_ptr<MemoryStore> new_store() { return std::make_shared<MemoryStore>(); }

// Writes rank 1's entry of two to the store, with one change.
inline Address forged_address(Store& store, const std::function<void(Address&)>& change) {
  Address address = my_address(some_terms(), random_id());
  change(address);
  store.set("ringkern/group/2/0/address/1", to_bytes(address));
  store.add("ringkern/group/2/0/present/1", 1);
  return address;
}

}  // namespace ringkern::test
