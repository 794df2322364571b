#include "cpu/mail.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "cpu/ll.h"
#include "cpu/ll128.h"
#include "cpu/simple.h"

namespace ringkern::cpu {
namespace {

// What a link may move before it is the next one's turn.
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

Mail::Mail(const Inbox& inbox, int rank, int ranks, Milliseconds timeout, Calls calls)
    : inbox_(inbox), rank_(rank), ranks_(ranks), timeout_(timeout), calls_(std::move(calls)),
      bytes_(Reduction{DType::u8}), wait_(inbox.bell(), /*pauses=*/0, timeout, yield_from_),
      peers_(size_t(ranks)) {}

// ---- matching -----------------------------------------------------------------------------------

void Mail::add(Message message) {
  const int with = message.peer;
  if (message.timeout.count() == 0) message.timeout = timeout_;
  message.timeout = std::min(message.timeout, kLongestTimeout);
  Posted posted{std::move(message), orders_++, Clock::now()};
  deadline_ = std::min(deadline_, posted.since + posted.message.timeout);
  if (!posted.message.sends && takes_arrival(posted)) return;
  List& list = with == kAnySource     ? from_anyone_
               : posted.message.sends ? peer(with).sends
                                      : peer(with).wanted;
  list.push_back(std::move(posted));
  if (with == kAnySource || peer(with).asked || peer(with).met) return;
  // A receiver knocks, too: otherwise it would not learn that a sender died before it came.
  peer(with).asked = true;
  calls_.knock_at(with);
}

// A receive that comes after its message.
bool Mail::takes_arrival(Posted& posted) {
  const Message& m = posted.message;
  const auto found = std::find_if(arrivals_.begin(), arrivals_.end(), [&](const Arrival& a) {
    return !a.taker && a.header.tag == m.tag && (m.peer == kAnySource || m.peer == a.from);
  });
  if (found == arrivals_.end()) return false;
  found->taker = std::move(posted);
  if (fits(*found) && found->transfer.done()) deliver(*found);
  return true;
}

// The first receive that was posted for such a message.
std::optional<Mail::Posted> Mail::take_wanted(int from, uint64_t tag) {
  const auto same = [tag](const Posted& p) { return p.message.tag == tag; };
  List& wanted = peer(from).wanted;
  const auto his = std::find_if(wanted.begin(), wanted.end(), same);
  const auto any = std::find_if(from_anyone_.begin(), from_anyone_.end(), same);
  const bool takes_any =
      any != from_anyone_.end() && (his == wanted.end() || any->order < his->order);
  if (!takes_any && his == wanted.end()) return std::nullopt;
  std::optional<Posted> taken = std::move(takes_any ? *any : *his);
  if (takes_any) first_ = (from + 1) % ranks_;  // the others' turn, or they might never have one
  if (takes_any) from_anyone_.erase(any);
  else wanted.erase(his);
  return taken;
}

bool Mail::fits(Arrival& a) {
  const Message& m = a.taker->message;
  if (a.header.bytes == m.bytes && int(a.header.dtype) == m.dtype) return true;
  Fault f = fault(Event::message_mismatch, m, a.from);
  f.message.their_bytes = a.header.bytes;
  f.message.their_dtype = int(a.header.dtype);
  fail(*a.taker, f);
  return false;
}

void Mail::deliver(Arrival& a) {
  Message& m = a.taker->message;
  if (a.aside && m.bytes > 0) std::memcpy(m.data, a.aside.get(), size_t(m.bytes));
  calls_.finish(std::move(m), nullptr, a.from);
  arrivals_.remove_if([&](const Arrival& other) { return &other == &a; });
}

// ---- moving -------------------------------------------------------------------------------------

bool Mail::step() {
  bool moved = false;
  const int first = first_;
  for (int i = 0; i < ranks_ && !failed(); ++i) {
    const int p = (first + i) % ranks_;
    // Looked at before the link: what the peer wrote before it ended is then seen there.
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

Plan Mail::plan_of(Protocol protocol, int64_t bytes) const {
  return Plan::make(Collective::send_recv, protocol, /*ranks=*/2, bytes, /*element_bytes=*/1,
                    /*workers=*/1, inbox_.geometry(), /*channels=*/1);
}

template <class Link>
bool Mail::advance(int peer, Verb verb, Transfer& t) {
  auto* const data = static_cast<std::byte*>(t.data);
  WaitReport report;
  Link link({inbox_.ends(peer, t.plan.protocol), wait_, bytes_, data, data, report});
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

bool Mail::advance(int peer, Verb verb, Transfer& t) {
  switch (t.plan.protocol) {
    case Protocol::simple: return advance<SimpleLink>(peer, verb, t);
    case Protocol::ll: return advance<LLLink>(peer, verb, t);
    case Protocol::ll128: return advance<LL128Link>(peer, verb, t);
  }
  return false;
}

bool Mail::send_to(int to) {
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

bool Mail::receive_from(int from) {
  Peer& p = peer(from);
  bool moved = false;
  if (p.incoming == nullptr) {
    // What nobody waits for stays in the link, and so does what is behind it.
    if (p.wanted.empty() && from_anyone_.empty()) return false;
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

void Mail::begin_arrival(int from, const Header& header) {
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
  a.taker = take_wanted(from, header.tag);
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

}  // namespace ringkern::cpu
