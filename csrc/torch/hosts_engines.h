// The engines of a group that spans hosts: how its ranks come together for one, and make it.
#pragma once

#include <utility>

#include "torch/hosts_communicator.h"

namespace ringkern::torch_ext {

inline Engine& HostsCommunicator::flat(c10::Device device) {
  return interruptible(&callers_, aborter(),
                       [&]() -> std::reference_wrapper<Engine> { return flat_engine(device); });
}

inline Engine& HostsCommunicator::flat_engine(c10::Device device) {
  const auto turn = lock_and_look_out(turn_);
  now_ = {device, timeout_, {}, "making the group"};
  const Telegraph::Listening listening(telegraph_, now_.call.seq, now_.text);
  try {
    return engine(device, true);
  } catch (...) {
    fail(std::current_exception());
  }
}

inline Engine& HostsCommunicator::engine(c10::Device device, bool over_all) {
  std::unique_ptr<Engine>& found = engines_[{device.type(), over_all}];
  if (found) return *found;
  std::vector<int> ranks;
  for (int h = 0; h < hosts_.count() && !over_all; ++h)
    ranks.push_back(hosts_.ranks_on(h)[size_t(hosts_.local())]);
  for (int r = 0; r < hosts_.ranks() && over_all; ++r) ranks.push_back(r);
  const std::string kind = c10::DeviceTypeName(device.type(), true);
  const std::string name = kind + (over_all ? "/all" : "/rail/" + std::to_string(hosts_.local()));
  meet(name, ranks);
  found = make_engine_over(ranks, device);
  // A rank that left before, done with its part, would be lost to those that still connect.
  meet(name + "/made", ranks);
  return *found;
}

inline std::unique_ptr<Engine> HostsCommunicator::make_engine_over(const std::vector<int>& ranks,
                                                                   c10::Device device) {
  // A rank may still give up, or end, before it has said in the store where it listens.
  const auto look = [this, look_for_gone = look_for_gone(ranks)] {
    const WithoutGil no_gil;
    look_out();
    if (const auto why = told()) throw Told{*why};
    look_for_gone();
  };
  const WatchedStore::Watch watch(timeout_, look);
  const py::gil_scoped_acquire gil;
  try {
    const auto watched = [&watch](const std::string& prefix, StorePtr store) -> StorePtr {
      return c10::make_intrusive<WatchedStore>(prefix, std::move(store), watch);
    };
    const auto make = [&] {
      return py::cast<Engine::BackendPtr>(
          make_engine_(c10::DeviceTypeName(device.type(), true), ranks, py::cpp_function(watched)));
    };
    Engine::BackendPtr backend = make(), slots;
    if (device.is_cpu()) slots = make();  // on CUDA to look at what has come is to wait for it
    const Milliseconds theirs = timeout_ + 4 * kLater;  // this rank's own is told better
    return std::make_unique<Engine>(
        std::move(backend), std::move(slots), theirs, [this](const WorkPtr& work) { await(work); },
        [ranks](int place, const ringkern::Call& theirs) {
          throw Differ{ranks[size_t(place)], text_of(theirs)};
        });
  } catch (const py::error_already_set& e) {
    Signals::keep(e);
    watch.rethrow();
    // A better reason than the engine's, that nobody was there, may still come. Where engines fail
    // on other ranks, too, there is none.
    try {
      const WithoutGil no_gil;
      for (const auto end = Clock::now() + kReasonComes; Clock::now() < end; look())
        std::this_thread::sleep_for(Milliseconds(20));
    } catch (const Told&) {
      const WithoutGil no_gil;
      const auto why = telegraph_.hear(kReasonComes);
      if (!why || why->cause != Cause::failed) throw;
    }
    throw NoEngine{hosts_.text_of_rank(rank()) +
                   " has no engine between the hosts: " + py::str(e.value()).cast<std::string>()};
  }
}

// The ranks of an engine come together before they make it: there they would wait for each other
// without seeing that another has given up. And they do when it is made.
inline void HostsCommunicator::meet(const std::string& name, const std::vector<int>& ranks) {
  const WithoutGil no_gil;
  constexpr Milliseconds kFirstPause{1}, kLongestPause{50};
  C10dStore store(store_);
  const std::string key = prefix_ + "/engine/" + name;
  const auto look_for_gone = this->look_for_gone(ranks);
  auto look_around_at = Clock::now() + kLookAround;
  auto pause = kFirstPause;
  const auto start = Clock::now();
  const auto all_come = [&](int64_t more) { return store.add(key, more) >= int64_t(ranks.size()); };
  bool come = all_come(1);
  try {
    for (; !come; come = all_come(0)) {
      try {
        throw_if_over(now_.since);
        look_for_gone();
      } catch (const Told&) {
        if (all_come(0)) break;  // since this rank has asked; what it was told comes after that
        throw;
      }
      look_around_if_due(start, look_around_at, [&] { return all_come(0); });
      std::this_thread::sleep_for(pause);
      pause = std::min(2 * pause, kLongestPause);
    }
  } catch (...) {
    // Keeps a rank that comes now from going on without this one.
    try {
      store.add(key, -1);
    } catch (const std::exception&) {
    }
    throw;
  }
}

// Looks at these alone: others may be through with their first call, and have ended.
inline std::function<void()> HostsCommunicator::look_for_gone(const std::vector<int>& ranks) {
  static constexpr Milliseconds kLookForGone{100};
  const Roster roster = now_.call.seq <= 1 ? roster_.of(ranks) : Roster();
  return [this, ranks, roster, next_look = Clock::now() + kLookForGone]() mutable {
    if (Clock::now() < next_look) return;
    next_look = Clock::now() + kLookForGone;
    C10dStore store(store_);
    const auto gone = roster.find_gone(store);
    if (!gone) return;
    const int who = ranks[size_t(gone->rank)];
    throw Told{{Cause::peer_lost,
                rank(),
                {who, now_.call.seq, ""},
                hosts_.text(hosts_.host_of(who)) + ": " + renumbered(gone->text, ranks)}};
  };
}

}  // namespace ringkern::torch_ext
