// The messages of one rank: the peer that each waits for, and the next data of each link. One
// thread owns the queue, and no call blocks: a step moves whatever can move.
#pragma once

#include <list>
#include <optional>

#include "cpu/simd.h"
#include "p2p/connector.h"
#include "p2p/engine.h"
#include "p2p/receive_buffer.h"

namespace ringkern::cpu {

Geometry message_geometry();

class MatchQueue {
 public:
  struct Calls {
    std::function<void(int peer)> connect_to_peer;  // once for each needed peer not met yet
    std::function<void(Message&& message, std::exception_ptr error, int source)> finish;
  };

  MatchQueue(const ReceiveBuffer& buffer, int rank, int ranks, Milliseconds timeout, Calls calls);

  void add(Message message);
  // Reports of the connector. Data of a peer that has ended still count if they are in the buffer.
  void met(int peer) { peers_[size_t(peer)].met = true; }
  void lost(int peer, std::exception_ptr why);

  // Moves whatever can move; returns true if anything did.
  bool step();
  // `expire` fails overdue messages; `deadline` is the time of its next call.
  Clock::time_point deadline() const { return deadline_; }
  void expire(Clock::time_point now);
  // The fault of the first message that failed.
  bool failed() const { return failure_.has_value(); }
  const std::optional<Fault>& failure() const { return failure_; }
  // Fails all messages that are left, with `why`.
  void abort(const Fault& why);

 private:
  struct Posted {
    Message message;
    uint64_t order = 0;
    Clock::time_point since;  // when it was posted
    bool failed = false;
  };
  using List = std::list<Posted>;
  // Sent before each message over LL: a word of it costs the latency of one line.
  struct Header {
    uint64_t tag;
    int64_t bytes;
    uint32_t protocol, dtype;
  };
  // The part of a message, or of a header, that has gone through a link.
  struct Transfer {
    Plan plan;
    int64_t loop = 0;
    void* data = nullptr;
    bool done() const { return loop == plan.loops; }
  };
  // A message of a peer whose header has come. Without a taker it is kept aside.
  struct Arrival {
    int from = 0;
    Header header{};
    Transfer transfer;
    std::unique_ptr<std::byte[]> aside;
    std::optional<Posted> taker;
  };
  struct Peer {
    bool asked = false, met = false, lost = false;
    std::exception_ptr why_lost;
    List sends;
    bool header_sent = false;  // of the first send
    Transfer outgoing;
    List receives;  // receives from this peer for which nothing has come
    Arrival* incoming = nullptr;
    Clock::time_point sent_at, received_at;  // time of the last progress
  };

  Peer& peer(int rank) { return peers_[size_t(rank)]; }
  Plan plan_of(Protocol protocol, int64_t bytes) const;
  bool advance(int peer, Verb verb, Transfer& transfer);
  template <class Link>
  bool advance(int peer, Verb verb, Transfer& transfer);

  bool send_to(int to);
  bool receive_from(int from);
  void begin_arrival(int from, const Header& header);
  std::optional<Posted> match_posted(int from, uint64_t tag);
  bool match_unexpected(Posted& posted);
  bool fits(Arrival& arrival);
  void deliver(Arrival& arrival);

  void fail(Posted& posted, std::exception_ptr error);
  void fail(Posted& posted, const Fault& fault);
  void fail_lost(int rank, bool receives);
  void fail_if_all_are_lost();
  Fault fault(Event event, int peer = -1) const;
  // The same for a message of this rank.
  Fault fault(Event event, const Message& message, int peer) const;
  Fault overdue(const Message& message) const;
  template <class F>
  void for_each_posted(F&& f);

  const ReceiveBuffer& buffer_;
  const int rank_, ranks_;
  const Milliseconds timeout_;
  const Calls calls_;
  const Reducer bytes_;
  WaitHistory history_;
  Wait wait_;
  std::vector<Peer> peers_;
  List from_anyone_;  // receives
  std::list<Arrival> arrivals_;
  int first_ = 0;  // the first peer to look at
  uint64_t orders_ = 0;
  Clock::time_point received_at_;
  Clock::time_point deadline_ = Clock::time_point::max();
  std::optional<Fault> failure_;
};

}  // namespace ringkern::cpu
