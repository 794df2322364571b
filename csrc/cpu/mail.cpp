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
constexpr Milliseconds kLongest = std::chrono::hours(24 * 365);  // a deadline that is a time_point

std::string rank_text(int rank) { return "rank " + std::to_string(rank); }

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return e.what();
  }
}

template <class E>
std::exception_ptr make(const std::string& text) {
  return std::make_exception_ptr(E(text));
}

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
    : inbox_(inbox),
      rank_(rank),
      ranks_(ranks),
      timeout_(timeout),
      calls_(std::move(calls)),
      bytes_(Reduction{DType::u8}),
      wait_(inbox.bell(), /*pauses=*/0, timeout, yield_from_),
      peers_(size_t(ranks)) {}

// ---- matching -----------------------------------------------------------------------------------

void Mail::add(Message message) {
  const int with = message.peer;
  if (message.timeout.count() == 0) message.timeout = timeout_;
  message.timeout = std::min(message.timeout, kLongest);
  Posted posted{std::move(message), orders_++, Clock::now()};
  deadline_ = std::min(deadline_, posted.since + posted.message.timeout);
  if (!posted.message.sends && takes_arrival(posted)) return;
  List& list = with == kAnySource       ? from_anyone_
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
  if (a.header.bytes == m.bytes) return true;
  fail(*a.taker,
       make<UsageError>(rank_text(a.from) + " sent " + std::to_string(a.header.bytes) +
                        " bytes to " + rank_text(rank_) + " (tag " + std::to_string(m.tag) +
                        "), which expects " + std::to_string(m.bytes) +
                        ": the two ends of a message must agree on its size"));
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
  for (int i = 0; i < ranks_ && failure_.empty(); ++i) {
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
  return moved || !failure_.empty();
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
    if (verdict == Verdict::timed_out && failure_.empty())
      failure_ = "the memory that " + rank_text(rank_) + " shares with " + rank_text(peer) +
                 " is damaged";
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
    Header header{m.tag, m.bytes, uint64_t(m.protocol)};
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
    if (!failure_.empty()) return true;
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
  if (header.protocol >= uint64_t(kProtocols) || header.bytes < 0) {
    failure_ = "the header of a message from " + rank_text(from) + " to " + rank_text(rank_) +
               " is damaged (tag " + std::to_string(header.tag) + ", " +
               std::to_string(header.bytes) + " bytes, protocol " +
               std::to_string(header.protocol) + ")";
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
  if (a.aside == nullptr)
    failure_ = rank_text(rank_) + " has no memory to keep a message of " +
               std::to_string(header.bytes) + " bytes from " + rank_text(from) + " (tag " +
               std::to_string(header.tag) + ") aside until it is received. Receive messages in " +
               "the order in which they are sent";
}

// ---- failing ------------------------------------------------------------------------------------

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
  if (failure_.empty()) failure_ = text_of(error);
  calls_.finish(std::move(posted.message), error, posted.message.peer);
}

void Mail::lost(int rank, std::exception_ptr why) {
  Peer& p = peer(rank);
  // Two that have met may have met twice, and one time not have been the lucky one.
  if (p.lost || (why && p.met)) return;
  p.lost = true;
  p.why_lost = why;
}

bool Mail::everybody_lost() const {
  for (int r = 0; r < ranks_; ++r)
    if (r != rank_ && !peers_[size_t(r)].lost) return false;
  return true;
}

// `receives`: nothing more has come of what it left behind.
void Mail::fail_lost(int rank, bool receives) {
  const auto error = [&](const Posted& posted) {
    if (peer(rank).why_lost) return peer(rank).why_lost;
    return make<TransportError>(story(posted) + ", and " + rank_text(rank) + " has ended or left "
                                "the group. Look for the first error among the ranks");
  };
  for (Posted& posted : peer(rank).sends) fail(posted, error(posted));
  if (!receives) return;
  for (Posted& posted : peer(rank).wanted) fail(posted, error(posted));
  if (!from_anyone_.empty() && everybody_lost())
    for (Posted& posted : from_anyone_) fail(posted, error(posted));
  for (Arrival& a : arrivals_)
    if (a.taker && a.from == rank) fail(*a.taker, error(*a.taker));
}

void Mail::expire(Clock::time_point now) {
  deadline_ = now + kLongest;
  for_each_posted([&](Posted& posted, Clock::time_point moved) {
    const auto at = std::max(posted.since, moved) + posted.message.timeout;
    if (at > now) deadline_ = std::min(deadline_, at);
    else fail(posted, make<TimeoutError>(timeout_text(posted)));
  });
}

void Mail::abort(const std::string& reason) {
  for_each_posted([&](Posted& posted, Clock::time_point) {
    fail(posted, make<AbortedError>(story(posted) + " when the messages of its group were aborted, "
                                    "here or by another rank. They are unusable now; make a new "
                                    "group. The reason: " + reason));
  });
}

std::string Mail::story(const Posted& posted) {
  const Message& m = posted.message;
  const std::string other = m.peer == kAnySource ? "any rank" : rank_text(m.peer);
  return rank_text(rank_) + (m.sends ? " waited for room to send a message to "
                                     : " waited for a message from ") +
         other + " (tag " + std::to_string(m.tag) + ", " + std::to_string(m.bytes) + " bytes)";
}

std::string Mail::timeout_text(const Posted& posted) {
  const Message& m = posted.message;
  const std::string limit = seconds(m.timeout), end = " The messages of this group are unusable "
                                                      "now; make a new group.";
  if (m.peer != kAnySource && !peer(m.peer).met)
    return story(posted) + ", and " + rank_text(m.peer) + " did not come within the timeout of " +
           limit + ". Does it run, and has it made this group?" + end;
  std::string text = story(posted) + " and nothing " + (m.sends ? "moved" : "came") + " for " +
                     limit + ", the timeout of " + limit + ". Did ";
  text += m.peer == kAnySource ? "any rank" : rank_text(m.peer);
  text += m.sends ? " receive it, with this tag and size?" : " send it, with this tag?";
  int named = 0;
  for (const Arrival& a : arrivals_)
    if (!m.sends && !a.taker && (m.peer == kAnySource || a.from == m.peer) && named++ < 4)
      text += (named == 1 ? " What has come from " : ", from ") + rank_text(a.from) + " has tag " +
              std::to_string(a.header.tag);
  return text + (named > 0 ? "." : "") + end;
}

}  // namespace ringkern::cpu
