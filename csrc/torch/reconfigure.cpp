// Changes of the ranks of a group. The new ranks meet in the group's store, under keys of their
// own; ringkern/backend.py makes the new parts, as for a new group. Only then the old ones end, so
// a change that fails leaves the group as it was.
#include <algorithm>
#include <charconv>
#include <iterator>
#include <optional>
#include <string_view>
#include <tuple>
#include <variant>

#include "comm/handshake.h"
#include "hosts/hosts.h"
#include "torch/backend_base.h"
#include "torch/bindings.h"

namespace ringkern::torch_ext {

// ---- Making and ending the parts

Members Maker::make(const Place& place, const std::vector<Process>& known,
                    Milliseconds timeout) const {
  const py::gil_scoped_acquire gil;
  std::vector<std::pair<int64_t, uint64_t>> processes;
  for (const Process& p : known) processes.emplace_back(p.pid, p.started);
  const py::object made = object_->attr("make")(place.store, place.seat.rank, place.seat.ranks,
                                                place.global_ranks, seconds(timeout), processes);
  return std::move(made.cast<Members&>());
}

void Maker::end_others(const std::vector<int>& kept, Milliseconds timeout) const {
  const py::gil_scoped_acquire gil;
  object_->attr("end_others")(kept, seconds(timeout));
}

std::string BackendBase::new_process() { return socket_name(random_id()); }

void BackendBase::throw_no_members() {
  throw UsageError(
      "the group has no ranks yet, because it was made with enable_reconfigure=True: first call "
      "torch.distributed._reconfigure() on each rank, with the handles of all");
}

void BackendBase::become(const Place& place, Members members) {
  place_ = place;
  group_ = group_record(place.seat.rank, place.seat.ranks, place.global_ranks);
  sequence_ = exchanges_ = monitored_barriers_ = 0;
  {
    std::lock_guard lock(changing_);
    std::swap(ring_, members.ring);
    std::swap(messenger_, members.messenger);
  }
  processes_ = std::move(members.processes);
  before_.messenger.reset();  // it may use the ring
  before_ = std::move(members);
}

Members BackendBase::meet(const Place& place, const std::vector<int>& before,
                          Milliseconds timeout) {
  if (ring_ != nullptr) {
    // The first rank to part from the others aborts the ring, which must not end this process.
    ring_->set_on_fault(OnFault::raise);
    messenger_->set_on_fault(OnFault::raise);
  }
  std::vector<Process> known;
  for (const int rank : before)
    known.push_back(rank < 0 || processes_.empty() ? Process{} : processes_[size_t(rank)]);
  return maker_.make(place, known, timeout);
}

void BackendBase::part_from_others(const std::vector<int>& kept) {
  const std::vector<int> others = ranks_without({kept.begin(), kept.end()});
  if (ring_ == nullptr || others.empty()) return;
  abort_for("the group goes on without " + ranks_text(others));
  ring_->shut_out(kept, timeout_);
}

// ---- Fewer ranks, in a new group

std::vector<int> BackendBase::ranks_without(const std::vector<int64_t>& excluded) const {
  std::vector<int> kept;
  for (int r = 0; r < seat().ranks; ++r)
    if (std::ranges::count(excluded, r) == 0) kept.push_back(r);
  return kept;
}

Place BackendBase::place_without(const std::vector<int64_t>& excluded) const {
  std::string names;
  for (const int64_t rank : excluded) {
    if (rank < 0 || rank >= seat().ranks)
      throw UsageError("rank " + std::to_string(rank) +
                       " cannot be excluded: the group has ranks 0 to " +
                       std::to_string(seat().ranks - 1));
    if (rank == seat().rank)
      throw UsageError("rank " + std::to_string(rank) +
                       " excludes itself: an excluded rank makes no call");
    names += "/" + std::to_string(rank);
  }
  const std::vector<int> kept = ranks_without(excluded);
  Place place;
  place.seat = {int(std::ranges::find(kept, seat().rank) - kept.begin()), int(kept.size())};
  for (const int rank : kept) place.global_ranks.push_back(place_.global_rank(rank));
  place.renewal = place_.renewal + "/without" + names;
  place.store = c10::make_intrusive<c10d::PrefixStore>("without" + names, place_.store);
  return place;
}

// ---- Other ranks, in the same group

#ifdef C10D_BACKEND_HAS_RECONFIGURE

namespace {

// A handle in parts.
struct Handle {
  int64_t rank = 0;
  std::string process{};
  std::string text{};
};

// Returns the number before the next ':' of the text, and removes both; none: there is none.
std::optional<int64_t> take_number(std::string_view& text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end == text.data() + text.size() || *end != ':' || number < 0)
    return std::nullopt;
  text.remove_prefix(size_t(end - text.data()) + 1);
  return number;
}

Handle handle_of(const std::string& text) {
  std::string_view rest = text;
  const auto rank = take_number(rest);
  if (!rank || !take_number(rest) || !rest.starts_with("ringkern-"))
    throw py::value_error("'" + text +
                          "' is no handle of a group of ringkern: give what "
                          "torch.distributed._get_reconfigure_handle() has returned on each rank");
  return {*rank, std::string(rest), text};
}

// Returns the handles by rank. A set of them is sorted by the ranks that their processes had first.
std::vector<Handle> in_order(const c10d::ReconfigureOptions& o) {
  std::vector<Handle> handles;
  std::visit(
      [&](const auto& given) {
        std::ranges::transform(given, std::back_inserter(handles), handle_of);
      },
      o.handles);
  const auto by_rank = [](const Handle& a, const Handle& b) {
    return std::tie(a.rank, a.text) < std::tie(b.rank, b.text);
  };
  if (!std::holds_alternative<std::vector<c10d::ReconfigureHandle>>(o.handles))
    std::ranges::sort(handles, by_rank);
  if (handles.empty()) throw py::value_error("handles is empty: give one of each rank");
  for (size_t i = 0; i < handles.size(); ++i)
    for (size_t j = 0; j < i; ++j)
      if (handles[i].process == handles[j].process)
        throw py::value_error("handles names one process twice, as ranks " + std::to_string(j) +
                              " and " + std::to_string(i));
  return handles;
}

// Claims a uuid for these ranks. A later claim with other handles fails: its ranks would read what
// these left in the store.
void claim(C10dStore store, int64_t uuid, const std::vector<Handle>& handles) {
  std::string all;
  for (const Handle& h : handles) all += h.text + " ";
  if (store.compare_set("claimed", "", all) != all)
    throw UsageError("uuid " + std::to_string(uuid) +
                     " was already used with other handles: give one that was never used, the same "
                     "on all ranks, with the newest handles of all, in the same order");
}

}  // namespace

c10d::ReconfigureHandle BackendBase::get_reconfigure_handle() const {
  return std::to_string(first_.global_rank(first_.seat.rank)) + ":" + std::to_string(attempts_) +
         ":" + process_;
}

WorkPtr BackendBase::reconfigure(const c10d::ReconfigureOptions& o) {
  const std::vector<Handle> handles = in_order(o);
  const auto mine = std::ranges::find(handles, get_reconfigure_handle(), &Handle::text);
  if (mine == handles.end())
    throw py::value_error("handles has not that of this rank, '" + get_reconfigure_handle() +
                          "': get the handles again after each call, and do not call this on a "
                          "rank that is left out");
  Place place;
  place.seat = {int(mine - handles.begin()), int(handles.size())};
  for (const Handle& h : handles) place.global_ranks.push_back(h.rank);
  place.renewal = "/uuid " + std::to_string(o.uuid);
  place.store =
      c10::make_intrusive<c10d::PrefixStore>("reconfigure/" + std::to_string(o.uuid), first_.store);
  const Milliseconds timeout = o.timeout.value_or(timeout_.load());
  ++attempts_;
  called_by_torch([&] { claim(C10dStore(place.store), o.uuid, handles); });
  std::vector<int> before;  // by rank, its present rank
  for (const Handle& h : handles) {
    const auto at = std::ranges::find(names_, h.process);
    before.push_back(at == names_.end() ? -1 : int(at - names_.begin()));
  }
  Members members = meet(place, before, timeout);

  std::vector<int> kept;
  std::ranges::copy_if(before, std::back_inserter(kept), [](int rank) { return rank >= 0; });
  if (names_.empty()) kept = {seat().rank};
  called_by_torch([&] { part_from_others(kept); });
  close(kPatience);
  become(place, std::move(members));
  rank_ = seat().rank;
  size_ = seat().ranks;
  names_.clear();
  for (const Handle& h : handles) names_.push_back(h.process);
  maker_.end_others(kept, timeout);
  auto work = c10::make_intrusive<CallWork>(Call{}, 1);
  work->end_part(nullptr);
  return work;
}

#endif

}  // namespace ringkern::torch_ext
