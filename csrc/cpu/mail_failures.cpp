// How messages fail: which of them, and with what.
#include "cpu/mail.h"

namespace ringkern::cpu {

template <class F>
void Mail::for_each_posted(F&& f) {
  for (Peer& p : peers_) {
    for (Posted& posted : p.sends) f(posted, p.sent_at);
    for (Posted& posted : p.wanted) f(posted, p.received_at);
  }
  for (Posted& posted : from_anyone_) f(posted, received_at_);
  for (Arrival& a : arrivals_)
    if (a.taker) f(*a.taker, peer(a.from).received_at);
}

void Mail::fail(Posted& posted, std::exception_ptr error) {
  if (posted.failed) return;
  posted.failed = true;
  if (!failed()) {
    failure_ = fault_of(error, inbox_.names().number(rank_));
    // It may not say whose it is, and is told to other ranks.
    if (failure_->event == Event::quoted_failure) {
      const FaultText said = failure_->evidence;
      failure_ = fault(Event::cannot_exchange, posted.message.peer);
      failure_->evidence = said;
    }
  }
  calls_.finish(std::move(posted.message), error, posted.message.peer);
}

void Mail::fail(Posted& posted, const Fault& fault) { fail(posted, error_of(fault)); }

void Mail::lost(int rank, std::exception_ptr why) {
  Peer& p = peer(rank);
  if (p.lost) return;  // two may meet twice, and end twice
  p.lost = true;
  p.why_lost = why;
}

// `receives`: nothing more has come of what it left behind.
void Mail::fail_lost(int rank, bool receives) {
  const auto end = [&](Posted& posted) {
    if (peer(rank).why_lost) fail(posted, peer(rank).why_lost);
    else fail(posted, fault(Event::peer_gone, posted.message, rank));
  };
  for (Posted& posted : peer(rank).sends) end(posted);
  if (!receives) return;
  for (Posted& posted : peer(rank).wanted) end(posted);
  for (Arrival& a : arrivals_)
    if (a.taker && a.from == rank) end(*a.taker);
}

void Mail::fail_if_all_are_lost() {
  for (int r = 0; r < ranks_; ++r)
    if (r != rank_ && !peer(r).lost) return;
  for (Posted& posted : from_anyone_) fail(posted, fault(Event::all_gone, posted.message, -1));
}

void Mail::expire(Clock::time_point now) {
  deadline_ = now + kLongestTimeout;
  for_each_posted([&](Posted& posted, Clock::time_point moved) {
    const auto at = std::max(posted.since, moved) + posted.message.timeout;
    if (at > now) deadline_ = std::min(deadline_, at);
    else fail(posted, overdue(posted.message));
  });
}

void Mail::abort(const Fault& why) {
  for_each_posted([&](Posted& posted, Clock::time_point) {
    const Message& m = posted.message;
    fail(posted, error_quoting(fault(Event::message_aborted, m, m.peer), why));
  });
}

Fault Mail::fault(Event event, int peer) const {
  const RankNames& names = inbox_.names();
  return fault_of(event, names.number(rank_), names.number(peer));
}

Fault Mail::fault(Event event, const Message& m, int peer) const {
  Fault f = fault(event, peer);
  f.message.is_there = 1;
  f.message.sends = m.sends;
  f.message.peer = inbox_.names().number(m.peer);
  f.message.tag = m.tag;
  f.message.bytes = m.bytes;
  f.message.dtype = m.dtype;
  f.timeout_ns = std::chrono::nanoseconds(m.timeout).count();
  return f;
}

Fault Mail::overdue(const Message& m) const {
  if (m.peer != kAnySource && !peers_[size_t(m.peer)].met)
    return fault(Event::peer_absent, m, m.peer);
  Fault f = fault(Event::message_timeout, m, m.peer);
  int named = 0;
  for (const Arrival& a : arrivals_) {
    if (m.sends || a.taker || (m.peer != kAnySource && a.from != m.peer)) continue;
    if (named == MessageSeen::kArrived) break;
    f.message.arrived_from[named] = inbox_.names().number(a.from);
    f.message.arrived_tag[named++] = a.header.tag;
  }
  return f;
}

}  // namespace ringkern::cpu
