// Connects two ranks when one of them first needs the other. Each rank has a thread with a
// listening socket, whose address is in the store; it connects to other ranks and accepts their
// connections. A connection stays open: its end of file shows that the other rank is gone, and a
// rank that fails sends its fault over it.
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

// Callbacks of a connector, on its thread. Two ranks that connect to each other at the same time
// have two connections, so each callback may run twice for a peer.
struct PeerCalls {
  // Allocates the memory that the peer writes to. The caller keeps the descriptor. An error of this
  // function or of `map` is reported to both ranks.
  std::function<Offer(int peer)> make_offer;
  // Called when the two are connected: the peer has mapped this rank's offer, or is about to.
  std::function<void(int peer, const Offer&)> map;
  // Called when the peer cannot be reached, for the reason `why`; null: it was connected, and has
  // ended or left.
  std::function<void(int peer, std::exception_ptr why)> lost;
  // Called when a rank has failed, as `peer` reports, or this rank itself.
  std::function<void(int peer, const Fault&)> told;
};

class Connector {
 public:
  // `name` as for unique_prefix(). Sets the address in the store; does not wait for other ranks.
  Connector(std::shared_ptr<Store> store, const std::string& name, int rank, int ranks,
            const Terms& terms, PeerCalls calls, RankNames names = {});
  // Closes all connections.
  ~Connector();
  Connector(const Connector&) = delete;
  Connector& operator=(const Connector&) = delete;

  // Connects to the peer, however late it comes. Returns at once. Any thread, as for the next
  // function.
  void connect_to_peer(int peer);
  // Reports the reason why this rank fails to all ranks that are connected, now or later. The first
  // reason stays.
  void tell_all(const Fault& why);

 private:
  // A connection; `unidentified`: the other end has not sent its greeting.
  struct Connection {
    enum class Stage { unidentified, asked, met } stage;
    Fd socket;
    int peer = -1;
    Id session{};
  };
  // A peer to connect to: first its address is read, then a place in its socket's queue is taken.
  struct PendingConnect {
    int peer;
    std::optional<Address> address;
    Milliseconds pause{1};
    Clock::time_point next{};
  };

  std::string key(const char* what, int rank) const;
  Fault fault(Event event, const std::string& what, int peer = -1) const;
  void work();
  bool take_requests();
  void tell(const Connection& connection) const;
  void say(const Connection& connection, const Fault& why) const;
  void accept_connections();
  bool receive(Connection& connection);
  void ended(int peer, const Connection* over) const;
  bool greeted(Connection& connection, bool whole, Message& message);
  void answered(Connection& connection, Received received, Message& message);
  void greet(const Connection& connection, const Offer& offer) const;
  bool run(PendingConnect& pending);
  Milliseconds until_next_attempt() const;
  Hello my_hello_to(const Connection& connection) const;

  const std::shared_ptr<Store> store_;
  const int rank_, ranks_;
  const RankNames names_;
  const Terms terms_;
  const PeerCalls calls_;
  const Address address_;
  std::string prefix_;
  Fd listener_;
  std::vector<Connection> connections_;
  std::vector<PendingConnect> pending_;
  std::optional<Fault> fault_;  // none: this rank goes on

  const Fd bell_;  // requests have come
  std::mutex mutex_;
  struct Requests {
    std::vector<int> peers;
    std::optional<Fault> fault;
    bool leave = false;
  } requests_;
  std::thread thread_;
};

}  // namespace ringkern
