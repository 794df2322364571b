#include "p2p/match_queue.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "cpu/ll.h"
#include "cpu/ll128.h"
#include "cpu/simple.h"

namespace ringkern::cpu {
namespace {

// Bytes that a link moves before the next one's turn.
constexpr int64_t kTurn = 64 << 10;

}  // namespace

// About 0.4 MiB for each peer that was met.
Geometry message_geometry() {
  Geometry g;
  g.slot_bytes[int(Protocol::simple)] = 32 << 10;
  g.slot_bytes[int(Protocol::ll)] = 4 << 10;
  g.slot_bytes[int(Protocol::ll128)] = 16 << 10;
  return g;
}

MatchQueue::MatchQueue(const ReceiveBuffer& buffer, int rank, int ranks, Milliseconds timeout,
                       Calls calls)
    : buffer_(buffer), rank_(rank), ranks_(ranks), timeout_(timeout), calls_(std::move(calls)),
      bytes_(Reduction{DType::u8}), wait_(buffer.bell(), /*pauses=*/0, timeout, history_),
      peers_(size_t(ranks)) {}

// ---- matching -----------------------------------------------------------------------------------

void MatchQueue::add(Message message) {
  const int with = message.peer;
  if (message.timeout.count() == 0) message.timeout = timeout_;
  message.timeout = std::min(message.timeout, kLongestTimeout);
  Posted posted{std::move(message), orders_++, Clock::now()};
  deadline_ = std::min(deadline_, posted.since + posted.message.timeout);
  if (!posted.message.sends && match_unexpected(posted)) return;
  List& list = with == kAnySource     ? from_anyone_
               : posted.message.sends ? peer(with).sends
                                      : peer(with).receives;
  list.push_back(std::move(posted));
  if (with == kAnySource || peer(with).asked || peer(with).met) return;
  // A receiver connects, too: otherwise it would not notice a sender that died before it connected.
  peer(with).asked = true;
  calls_.connect_to_peer(with);
}

// Gives a receive the message that came before it; returns false if there is none.
bool MatchQueue::match_unexpected(Posted& posted) {
  const Message& m = posted.message;
  const auto found = std::find_if(arrivals_.begin(), arrivals_.end(), [&](const Arrival& a) {
    return !a.taker && a.header.tag == m.tag && (m.peer == kAnySource || m.peer == a.from);
  });
  if (found == arrivals_.end()) return false;
  found->taker = std::move(posted);
  if (fits(*found) && found->transfer.done()) deliver(*found);
  return true;
}

// Takes the receive for such a message that was posted first.
std::optional<MatchQueue::Posted> MatchQueue::match_posted(int from, uint64_t tag) {
  const auto same = [tag](const Posted& p) { return p.message.tag == tag; };
  List& receives = peer(from).receives;
  const auto his = std::find_if(receives.begin(), receives.end(), same);
  const auto any = std::find_if(from_anyone_.begin(), from_anyone_.end(), same);
  const bool takes_any =
      any != from_anyone_.end() && (his == receives.end() || any->order < his->order);
  if (!takes_any && his == receives.end()) return std::nullopt;
  std::optional<Posted> taken = std::move(takes_any ? *any : *his);
  if (takes_any) first_ = (from + 1) % ranks_;  // or the others might never have a turn
  if (takes_any) from_anyone_.erase(any);
  else receives.erase(his);
  return taken;
}

bool MatchQueue::fits(Arrival& a) {
  const Message& m = a.taker->message;
  if (a.header.bytes == m.bytes && int(a.header.dtype) == m.dtype) return true;
  Fault f = fault(Event::message_mismatch, m, a.from);
  f.message.their_bytes = a.header.bytes;
  f.message.their_dtype = int(a.header.dtype);
  fail(*a.taker, f);
  return false;
}

void MatchQueue::deliver(Arrival& a) {
  Message& m = a.taker->message;
  if (a.aside && m.bytes > 0) std::memcpy(m.data, a.aside.get(), size_t(m.bytes));
  calls_.finish(std::move(m), nullptr, a.from);
  arrivals_.remove_if([&](const Arrival& other) { return &other == &a; });
}

// ---- moving -------------------------------------------------------------------------------------

bool MatchQueue::step() {
  bool moved = false;
  const int first = first_;
  for (int i = 0; i < ranks_ && !failed(); ++i) {
    const int p = (first + i) % ranks_;
    // Read before the link: data that the peer wrote before it ended are then seen in the link.
    const bool lost = peer(p).lost;
    if (!peer(p).met && !lost) continue;
    const bool received = peer(p).met && receive_from(p);
    const bool sent = !lost && send_to(p);
    if (received) received_at_ = peer(p).received_at = Clock::now();
    if (sent) peer(p).sent_at = Clock::now();
    if (lost) fail_lost(p, /*receives=*/!received);
    moved |= received || sent;
  }
  if (!moved && !from_anyone_.empty()) fail_if_all_are_lost();
  return moved || failed();
}

Plan MatchQueue::plan_of(Protocol protocol, int64_t bytes) const {
  return Plan::make(Collective::send_recv, protocol, /*ranks=*/2, bytes, /*element_bytes=*/1,
                    /*workers=*/1, buffer_.geometry(), /*channels=*/1);
}

template <class Link>
bool MatchQueue::advance(int peer, Verb verb, Transfer& t) {
  auto* const data = static_cast<std::byte*>(t.data);
  WaitReport report;
  Link link({buffer_.ends(peer, t.plan.protocol), wait_, bytes_, data, data, report});
  bool moved = false;
  for (int64_t left = kTurn; left > 0 && !t.done(); ++t.loop, moved = true) {
    const Chunk chunk = t.plan.chunk_of(0, t.loop, 0);
    if (!link.ready(verb, t.plan, chunk)) break;
    const Verdict verdict = link.perform(verb, t.plan, chunk);
    if (verdict == Verdict::timed_out && !failed()) failure_ = fault(Event::link_damaged, peer);
    if (verdict != Verdict::ok) break;
    left -= chunk.count;
  }
  return moved;
}

bool MatchQueue::advance(int peer, Verb verb, Transfer& t) {
  switch (t.plan.protocol) {
    case Protocol::simple: return advance<SimpleLink>(peer, verb, t);
    case Protocol::ll: return advance<LLLink>(peer, verb, t);
    case Protocol::ll128: return advance<LL128Link>(peer, verb, t);
  }
  return false;
}

bool MatchQueue::send_to(int to) {
  Peer& p = peer(to);
  if (p.sends.empty()) return false;
  Message& m = p.sends.front().message;
  bool moved = false;
  if (!p.header_sent) {
    Header header{m.tag, m.bytes, uint32_t(m.protocol), uint32_t(m.dtype)};
    Transfer t{plan_of(Protocol::ll, sizeof header), 0, &header};
    if (!advance(to, Verb::send, t)) return false;
    p.header_sent = moved = true;
    p.outgoing = {plan_of(m.protocol, m.bytes), 0, m.data};
  }
  moved |= advance(to, Verb::send, p.outgoing);
  if (p.outgoing.done()) {
    Message sent = std::move(m);
    p.sends.pop_front();
    p.header_sent = false;
    calls_.finish(std::move(sent), nullptr, to);
  }
  return moved;
}

bool MatchQueue::receive_from(int from) {
  Peer& p = peer(from);
  bool moved = false;
  if (p.incoming == nullptr) {
    // While no receive is posted, nothing is read: the messages stay in the FIFO.
    if (p.receives.empty() && from_anyone_.empty()) return false;
    Header header{};
    Transfer t{plan_of(Protocol::ll, sizeof header), 0, &header};
    if (!advance(from, Verb::recv, t)) return false;
    begin_arrival(from, header);
    moved = true;
    if (failed()) return true;
  }
  Arrival& a = *p.incoming;
  moved |= advance(from, Verb::recv, a.transfer);
  if (a.transfer.done()) {
    p.incoming = nullptr;
    if (a.taker) deliver(a);
  }
  return moved;
}

void MatchQueue::begin_arrival(int from, const Header& header) {
  if (header.protocol >= uint32_t(kProtocols) || header.bytes < 0) {
    failure_ = fault(Event::header_damaged, from);
    failure_->message.tag = header.tag;
    failure_->message.their_bytes = header.bytes;
    failure_->evidence = std::to_string(header.protocol);
    return;
  }
  Arrival& a = arrivals_.emplace_back();
  a.from = from;
  a.header = header;
  a.transfer.plan = plan_of(Protocol(header.protocol), header.bytes);
  a.taker = match_posted(from, header.tag);
  peer(from).incoming = &a;
  if (a.taker) {
    a.transfer.data = a.taker->message.data;
    fits(a);
    return;
  }
  a.aside.reset(new (std::nothrow) std::byte[size_t(header.bytes)]);
  a.transfer.data = a.aside.get();
  if (a.aside == nullptr) {
    failure_ = fault(Event::no_room_aside, from);
    failure_->message.tag = header.tag;
    failure_->message.their_bytes = header.bytes;
  }
}

// ---- failures -----------------------------------------------------------------------------------

template <class F>
void MatchQueue::for_each_posted(F&& f) {
  for (Peer& p : peers_) {
    for (Posted& posted : p.sends) f(posted, p.sent_at);
    for (Posted& posted : p.receives) f(posted, p.received_at);
  }
  for (Posted& posted : from_anyone_) f(posted, received_at_);
  for (Arrival& a : arrivals_)
    if (a.taker) f(*a.taker, peer(a.from).received_at);
}

void MatchQueue::fail(Posted& posted, std::exception_ptr error) {
  if (posted.failed) return;
  posted.failed = true;
  if (!failed()) {
    failure_ = fault_of(error, buffer_.names().number(rank_));
    // The error may not name its rank, and other ranks are told of it.
    if (failure_->event == Event::quoted_failure) {
      const FaultText said = failure_->evidence;
      failure_ = fault(Event::cannot_exchange, posted.message.peer);
      failure_->evidence = said;
    }
  }
  calls_.finish(std::move(posted.message), error, posted.message.peer);
}

void MatchQueue::fail(Posted& posted, const Fault& fault) { fail(posted, error_of(fault)); }

void MatchQueue::lost(int rank, std::exception_ptr why) {
  Peer& p = peer(rank);
  if (p.lost) return;  // two ranks may meet twice, and end twice
  p.lost = true;
  p.why_lost = why;
}

// `receives`: true if the data that the rank left behind hold nothing more.
void MatchQueue::fail_lost(int rank, bool receives) {
  const auto end = [&](Posted& posted) {
    if (peer(rank).why_lost) fail(posted, peer(rank).why_lost);
    else fail(posted, fault(Event::peer_gone, posted.message, rank));
  };
  for (Posted& posted : peer(rank).sends) end(posted);
  if (!receives) return;
  for (Posted& posted : peer(rank).receives) end(posted);
  for (Arrival& a : arrivals_)
    if (a.taker && a.from == rank) end(*a.taker);
}

void MatchQueue::fail_if_all_are_lost() {
  for (int r = 0; r < ranks_; ++r)
    if (r != rank_ && !peer(r).lost) return;
  for (Posted& posted : from_anyone_) fail(posted, fault(Event::all_gone, posted.message, -1));
}

void MatchQueue::expire(Clock::time_point now) {
  deadline_ = now + kLongestTimeout;
  for_each_posted([&](Posted& posted, Clock::time_point moved) {
    const auto at = std::max(posted.since, moved) + posted.message.timeout;
    if (at > now) deadline_ = std::min(deadline_, at);
    else fail(posted, overdue(posted.message));
  });
}

void MatchQueue::abort(const Fault& why) {
  for_each_posted([&](Posted& posted, Clock::time_point) {
    const Message& m = posted.message;
    fail(posted, error_quoting(fault(Event::message_aborted, m, m.peer), why));
  });
}

Fault MatchQueue::fault(Event event, int peer) const {
  const RankNames& names = buffer_.names();
  return fault_of(event, names.number(rank_), names.number(peer));
}

Fault MatchQueue::fault(Event event, const Message& m, int peer) const {
  Fault f = fault(event, peer);
  f.message.is_there = 1;
  f.message.sends = m.sends;
  f.message.peer = buffer_.names().number(m.peer);
  f.message.tag = m.tag;
  f.message.bytes = m.bytes;
  f.message.dtype = m.dtype;
  f.timeout_ns = std::chrono::nanoseconds(m.timeout).count();
  return f;
}

Fault MatchQueue::overdue(const Message& m) const {
  if (m.peer != kAnySource && !peers_[size_t(m.peer)].met)
    return fault(Event::peer_absent, m, m.peer);
  Fault f = fault(Event::message_timeout, m, m.peer);
  int named = 0;
  for (const Arrival& a : arrivals_) {
    if (m.sends || a.taker || (m.peer != kAnySource && a.from != m.peer)) continue;
    if (named == MessageSeen::kArrived) break;
    f.message.arrived_from[named] = buffer_.names().number(a.from);
    f.message.arrived_tag[named++] = a.header.tag;
  }
  return f;
}

}  // namespace ringkern::cpu
