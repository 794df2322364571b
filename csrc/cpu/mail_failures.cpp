// How messages fail: which of them, with what, and what is said of it.
#include <algorithm>

#include "cpu/mail.h"

namespace ringkern::cpu {
namespace {

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return e.what();
  }
}

bool is_loss(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const PeerLostError&) {
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

}  // namespace

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
  if (!failed()) failure_ = {text_of(error), is_loss(error)};
  calls_.finish(std::move(posted.message), error, posted.message.peer);
}

void Mail::lost(int rank, std::exception_ptr why) {
  Peer& p = peer(rank);
  if (p.lost) return;  // two may meet twice, and end twice
  p.lost = true;
  p.why_lost = why;
}

// `receives`: nothing more has come of what it left behind.
void Mail::fail_lost(int rank, bool receives) {
  const auto end = [&](Posted& posted) {
    fail(posted, peer(rank).why_lost
                     ? peer(rank).why_lost
                     : failure_of<PeerLostError>(story(posted) + ", and " + rank_text(rank) +
                                                 " has ended or left the group. Look for the "
                                                 "first error among the ranks"));
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
  for (Posted& posted : from_anyone_)
    fail(posted, failure_of<PeerLostError>(story(posted) + ", and all others have ended or left "
                                                           "the group"));
}

void Mail::expire(Clock::time_point now) {
  deadline_ = now + kLongestTimeout;
  for_each_posted([&](Posted& posted, Clock::time_point moved) {
    const auto at = std::max(posted.since, moved) + posted.message.timeout;
    if (at > now) deadline_ = std::min(deadline_, at);
    else fail(posted, failure_of<TimeoutError>(timeout_text(posted)));
  });
}

void Mail::abort(const LastWord& why) {
  for_each_posted([&](Posted& posted, Clock::time_point) {
    const std::string text = story(posted) +
                             " when the messages of its group were aborted, here "
                             "or by another rank. They are unusable now; make a new group. The "
                             "reason: " +
                             why.reason;
    fail(posted, why.by_loss ? failure_of<PeerLostError>(text) : failure_of<AbortedError>(text));
  });
}

std::string Mail::story(const Posted& posted) {
  const Message& m = posted.message;
  const std::string other = m.peer == kAnySource ? "any rank" : rank_text(m.peer);
  return rank_text(rank_) +
         (m.sends ? " waited for room to send a message to " : " waited for a message from ") +
         other + " (" + tag_text(m.tag) + ", " + std::to_string(m.bytes) + " bytes)";
}

std::string Mail::timeout_text(const Posted& posted) {
  const Message& m = posted.message;
  const std::string limit = in_seconds(m.timeout), end =
                                                       " The messages of this group are unusable "
                                                       "now; make a new group.";
  if (m.peer != kAnySource && !peer(m.peer).met)
    return story(posted) + ", and " + rank_text(m.peer) + " did not come within the timeout of " +
           limit + ". Does it run, and has it made this group?" + end;
  std::string text = story(posted) + " and nothing " + (m.sends ? "moved" : "came") + " for " +
                     limit + ", the timeout of " + limit + ". Did ";
  text += m.peer == kAnySource ? "any rank" : rank_text(m.peer);
  if (m.tag & kCollectiveTag) text += " make the same call?";
  else text += m.sends ? " receive it, with this tag and size?" : " send it, with this tag?";
  int named = 0;
  for (const Arrival& a : arrivals_)
    if (!m.sends && !a.taker && (m.peer == kAnySource || a.from == m.peer) && named++ < 4)
      text += (named == 1 ? " What has come from " : ", from ") + rank_text(a.from) + " has " +
              tag_text(a.header.tag);
  return text + (named > 0 ? "." : "") + end;
}

}  // namespace ringkern::cpu
