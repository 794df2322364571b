// What becomes of a failure in a group that spans hosts: which reason counts, who is told, and what
// all ranks raise.
//
// Inside a host the ring finds the cause, as ever. Between hosts an engine says that a connection
// has broken, or nothing: then those who know better are given a moment to say so, and if nobody
// does, all are asked where they are.
#pragma once

#include <utility>

#include "comm/agreement.h"
#include "torch/hosts_calls.h"

namespace ringkern::torch_ext {

inline std::string HostsCommunicator::here() const {
  return hosts_.text_of_rank(rank()) + ", in " + now_.text + ",";
}

// Hosts of which no rank has answered.
inline std::vector<int> HostsCommunicator::absent(const Roll& roll) const {
  std::vector<int> hosts;
  for (int h = 0; h < hosts_.count(); ++h) {
    bool answers = h == hosts_.host();
    for (const int r : hosts_.ranks_on(h)) answers |= roll[size_t(r)].has_value();
    if (!answers) hosts.push_back(h);
  }
  return hosts;
}

inline std::string HostsCommunicator::hosts_text(const std::vector<int>& which) const {
  constexpr size_t kMost = 4;
  std::string text;
  for (size_t i = 0; i < which.size() && i < kMost; ++i)
    text += (i > 0 ? ", " : "") + hosts_.text(which[i]);
  if (which.size() > kMost) text += " and " + std::to_string(which.size() - kMost) + " more";
  return text;
}

// A rank that is in a call of this one's number, and in another one.
inline std::optional<HostsCommunicator::Differ> HostsCommunicator::difference(
    const Roll& roll) const {
  for (size_t r = 0; r < roll.size(); ++r)
    if (roll[r] && roll[r]->seq == now_.call.seq && roll[r]->phase != now_.text)
      return Differ{int(r), roll[r]->phase};
  return {};
}

inline Failure HostsCommunicator::differs(const Differ& found) const {
  return {Cause::mismatch,
          rank(),
          {found.rank, now_.call.seq, ""},
          "ranks of one group make different calls: " + hosts_.text_of_rank(found.rank) +
              " calls " + found.call + ", and " + hosts_.text_of_rank(rank()) + " calls " +
              now_.text + ". Make the same calls in the same order on every rank"};
}

inline Failure HostsCommunicator::lost(const std::string& engine_says) {
  const Roll roll = telegraph_.call_roll(kRollCall);
  if (const auto why = told()) return *why;
  if (const auto found = difference(roll)) return differs(*found);
  std::vector<int> gone = absent(roll);
  // Where all hosts are, a rank is not, and another one of its host knows of it.
  if (gone.empty())
    if (const auto why = telegraph_.hear(kReasonComes)) return *why;
  const bool asked = telegraph_.store_answers();
  if (!asked && gone.size() > 1) gone.clear();  // one of them, and the others cannot answer
  const int about = gone.empty() ? -1 : hosts_.ranks_on(gone.front()).front();
  const std::string which = gone.empty() ? "another host" : hosts_text(gone);
  const std::string why =
      !asked         ? "; nor does the store answer in which the ranks have met: its process has "
                       "ended or is busy, or the network is cut"
      : gone.empty() ? ", though all still answer through the store"
                     : ": no rank there answers. They have ended, or the network is cut";
  return {Cause::peer_lost,
          rank(),
          {about, now_.call.seq, ""},
          here() + " lost the connection to " + which + why +
              ". The engine says: " + printable(engine_says, kEngineSays)};
}

inline Failure HostsCommunicator::late() {
  const Roll roll = telegraph_.call_roll(kRollCall);
  if (const auto why = telegraph_.heard()) return *why;
  if (const auto found = difference(roll)) return differs(*found);
  std::vector<int> behind = absent(roll);
  std::string why = ": no rank there waits in this group, or the network is cut";
  if (behind.empty()) {
    for (int h = 0; h < hosts_.count(); ++h)
      for (const int r : hosts_.ranks_on(h))
        if (roll[size_t(r)] && roll[size_t(r)]->seq < now_.call.seq &&
            (behind.empty() || behind.back() != h))
          behind.push_back(h);
    if (!behind.empty()) why = ", which answers from an earlier call";
    // Who is late inside another host is known there.
    else if (const auto reason = telegraph_.hear(kReasonComes)) return *reason;
  }
  if (!telegraph_.store_answers()) why += "; the store where the ranks have met does not answer";
  const int about = behind.empty() ? -1 : hosts_.ranks_on(behind.front()).front();
  return {Cause::timed_out,
          rank(),
          {about, now_.call.seq, ""},
          here() + " waited for " + in_seconds(now_.timeout) + ", the timeout, for " +
              (behind.empty() ? "other hosts, which all answer: the network is slow, or loses what "
                                "the engine sends"
                              : hosts_text(behind) + why)};
}

// Inside, ranks that make different calls are seen by their steps. What the calls are, they say
// themselves.
inline Failure HostsCommunicator::in_calls(const Failure& why) {
  if (why.cause != Cause::mismatch || why.given) return why;
  const auto found = difference(telegraph_.call_roll(kCallsCome));
  return found ? differs(*found) : why;
}

// What the group is to be told, of a failure as it came out of a call.
inline Failure HostsCommunicator::reason_of(std::exception_ptr error) {
  const auto inside = [&](Cause cause, const Error& e) {
    if (auto why = trouble_in_call()) return *why;
    return renumbered(Failure{cause, hosts_.local(), e.facts, e.what()},
                      hosts_.ranks_on(hosts_.host()));
  };
  try {
    std::rethrow_exception(error);
  } catch (const Told& t) {
    return in_calls(t.why);
  } catch (const Late&) {
    return late();
  } catch (const Differ& d) {
    return differs(d);
  } catch (const EngineFailed& e) {
    return lost(e.text);
  } catch (const NoEngine& e) {
    return {Cause::failed, rank(), {rank(), now_.call.seq, ""}, e.text};
  } catch (const MismatchError& e) {
    return in_calls(inside(Cause::mismatch, e));
  } catch (const TimeoutError& e) {
    // Who is late inside may itself wait for another host.
    const Failure why = inside(Cause::timed_out, e);
    if (why.given || why.about.rank < 0) return why;
    const bool waits = telegraph_.call_roll(kRollCall)[size_t(why.about.rank)].has_value();
    return waits || !telegraph_.store_answers() ? late() : why;
  } catch (const PeerLostError& e) {
    return inside(Cause::peer_lost, e);
  } catch (const Error& e) {
    return inside(Cause::failed, e);
  } catch (const std::exception& e) {
    return {Cause::failed, rank(), {rank(), now_.call.seq, ""}, here() + " failed: " + what_of(e)};
  }
}

// The first reason is everybody's.
inline Failure HostsCommunicator::settle(const Failure& mine) {
  const Failure first = telegraph_.tell(mine, kStoreAnswers);
  inner_->give_up(first);
  std::lock_guard lock(state_);
  if (!failure_) failure_ = first, failed_at_ = Clock::now();
  return first;
}

inline void HostsCommunicator::fail(std::exception_ptr error) {
  // Ranks that give up at the same time answer each other.
  telegraph_.watch(now_.call.seq, now_.text);
  const Failure first = settle(reason_of(error));
  telegraph_.rest();
  const std::vector<int>& ranks = hosts_.ranks_on(hosts_.host());
  try {
    // Otherwise another rank knew better: here it may look as if one of this host had failed.
    if (first.cause == Cause::failed) std::rethrow_exception(error);
  } catch (const NoEngine& e) {
    throw RendezvousError(e.text);
  } catch (const SharedMemoryError& e) {
    throw SharedMemoryError(renumbered(e.what(), ranks));
  } catch (const TransportError& e) {
    throw TransportError(renumbered(e.what(), ranks));
  } catch (const RendezvousError& e) {
    throw RendezvousError(renumbered(e.what(), ranks));
  } catch (...) {
    // Of all that comes later the ranks raise the same.
  }
  const std::string place = hosts_.text_of_rank(rank());
  const bool own = first.text.find(place) != std::string::npos;
  if (own) throw_as(first.cause, first.text, first.about);
  throw_told(first, place + " was in " + now_.text);
}

inline void bind_hosts_communicator(py::module_& m) {
  py::class_<HostsCommunicator> bound(m, "HostsCommunicator");
  bound.def(
      py::init([](const c10::intrusive_ptr<c10d::Store>& store, const std::string& name, int rank,
                  std::vector<int> host_of, std::vector<std::string> host_names, double timeout_s,
                  py::object engine, const HostsCommunicator::Crossings& crossings) {
        return std::make_unique<HostsCommunicator>(
            store, name, Hosts(rank, std::move(host_of), std::move(host_names)), timeout_s,
            std::move(engine), crossings);
      }),
      py::arg("store"), py::arg("name"), py::arg("rank"), py::arg("host_of"), py::arg("host_names"),
      py::arg("timeout_s"), py::arg("engine"),
      py::arg("crossings") = HostsCommunicator::Crossings());
  bind_calls(bound);
}

}  // namespace ringkern::torch_ext
