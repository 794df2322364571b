// How two ranks meet when one of them first needs the other: each has a doorman, a thread with a
// socket whose address is in the store, who knocks at others' and answers those who knock. The
// connection stays open; its end of file tells that the other rank is gone, and the fault for
// which a rank gives up goes over it.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/handshake.h"
#include "comm/socket.h"

namespace ringkern {

// What a rank does about its peers, all on the doorman's thread. Two ranks that knock at each other
// at the same time meet twice, and any of these may come twice for a peer.
struct PeerCalls {
  // Makes room for what the peer writes. The descriptor stays the caller's. What it throws is told
  // to both ranks, as of the next one.
  std::function<Offer(int peer)> make_offer;
  // The two have met: the peer has mapped what was offered to it, or is about to.
  std::function<void(int peer, const Offer&)> map;
  // The peer cannot be reached, and why; or null: it was met, and has ended or left.
  std::function<void(int peer, std::exception_ptr why)> lost;
  // Some rank has given up, which this one has from `peer`, or has to itself.
  std::function<void(int peer, const Fault&)> told;
};

class Connector {
 public:
  // `name` as for unique_prefix(). Leaves the address in the store; waits for nobody.
  Connector(std::shared_ptr<Store> store, const std::string& name, int rank, int ranks,
            const Terms& terms, PeerCalls calls, RankNames names = {});
  // Hangs up.
  ~Connector();
  Connector(const Connector&) = delete;
  Connector& operator=(const Connector&) = delete;

  // Meets the peer, however long it may take to come. Any thread, as the next one; returns at once.
  void connect_to_peer(int peer);
  // Tells all that were met, or will be, why this rank gives up. The first word stays.
  void tell_all(const Fault& why);

 private:
  // A connection; `stranger`: it has not said yet who it is.
  struct Line {
    enum class Stage { stranger, asked, met } stage;
    Fd socket;
    int peer = -1;
    Id session{};
  };
  // A peer that is to be met; its address comes first, then a place in the queue at its socket.
  struct PendingConnect {
    int peer;
    std::optional<Address> address;
    Milliseconds pause{1};
    Clock::time_point next{};
  };

  std::string key(const char* what, int rank) const;
  Fault fault(Event event, const std::string& what, int peer = -1) const;
  void work();
  bool take_orders();
  void tell(const Line& line) const;
  void say(const Line& line, const Fault& why) const;
  void accept_connections();
  bool hear(Line& line);
  void ended(int peer, const Line* over) const;
  bool greeted(Line& line, bool whole, Message& message);
  void answered(Line& line, Received received, Message& message);
  void greet(const Line& line, const Offer& offer) const;
  bool run(PendingConnect& pending);
  Milliseconds until_next_attempt() const;
  Hello my_hello_to(const Line& line) const;

  const std::shared_ptr<Store> store_;
  const int rank_, ranks_;
  const RankNames names_;
  const Terms terms_;
  const PeerCalls calls_;
  const Address address_;
  std::string prefix_;
  Fd listener_;
  std::vector<Line> lines_;
  std::vector<PendingConnect> pending_;
  std::optional<Fault> word_;  // none: this rank goes on

  const Fd bell_;  // orders have come
  std::mutex mutex_;
  struct Orders {
    std::vector<int> peers;
    std::optional<Fault> word;
    bool leave = false;
  } orders_;
  std::thread thread_;
};

}  // namespace ringkern
