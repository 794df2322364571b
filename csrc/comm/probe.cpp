#include "comm/probe.h"

#include <sched.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <thread>

namespace ringkern {
namespace {

constexpr Milliseconds kLookEvery{100};
constexpr uint64_t kStep = 0x9e3779b97f4a7c15;  // 2^64 over the golden ratio

// Any bit of `x` changes about half of the bits: the finaliser of SplitMix64 (Steele et al., 2014).
uint64_t mixed(uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

uint64_t word_of(uint64_t seed, int at) {
  const uint64_t word = mixed(seed + uint64_t(at + 1) * kStep);
  return word != 0 ? word : 1;
}

uint64_t load(const uint64_t& word, std::memory_order order = std::memory_order_relaxed) {
  return std::atomic_ref(const_cast<uint64_t&>(word)).load(order);
}

// Waits until `ready()`; returns false after `deadline`. Yields at first, because ranks that come
// together wait for microseconds and may share a core; then sleeps, so that the wait for a late
// rank keeps no core busy.
template <class Ready>
bool wait_until(Ready&& ready, Clock::time_point deadline, const std::function<void()>& look) {
  const auto start = Clock::now();
  auto next_look = start + kLookEvery;
  while (!ready()) {
    const auto now = Clock::now();
    if (now >= deadline) return false;
    if (now >= next_look) {
      look();
      next_look = now + kLookEvery;
    }
    if (now - start < Milliseconds(2)) ::sched_yield();
    else std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return true;
}

std::string hex(uint64_t word) {
  char text[20];
  std::snprintf(text, sizeof text, "0x%016llx", static_cast<unsigned long long>(word));
  return text;
}

// The buffers of a link of this rank.
struct Probing {
  std::vector<uint64_t> sends, receives, sees;
};

class Prober {
 public:
  Prober(const ProbedRing& ring, const Id& session)
      : ring_(ring), rank_(ring.control.rank), ranks_(ring.control.ranks),
        slots_{ring.room, ranks_}, words_(probe_seed(session), ranks_, ring.control.names) {}

  void run(const Look& look);

 private:
  uint64_t* at(int owner, int writer, int spare = 0) const {
    void* const segment =
        owner == rank_ ? ring_.segments.written_by(writer) : ring_.segments.all[size_t(owner)];
    if (segment == nullptr) return nullptr;
    return reinterpret_cast<uint64_t*>(static_cast<std::byte*>(segment) +
                                       slots_.offset(writer, owner, spare));
  }
  void add_link(int peer);
  std::string named(int rank) const;

  const ProbedRing& ring_;
  const int rank_, ranks_;
  const ProbeSlots slots_;
  const ProbeWords words_;
  std::vector<ProbedLink> links_;
  std::vector<Probing> data_;
};

void Prober::add_link(int peer) {
  const int n = slots_.words();
  Probing& data = data_.emplace_back();
  data.sends = words_.words(rank_, peer, n + 1);
  data.receives.resize(size_t(n), 0);
  data.sees.resize(size_t(n), 0);
  ProbedLink link;
  link.peer = peer;
  link.words = n;
  link.theirs = at(peer, rank_);
  link.sends = data.sends.data();
  link.receives = data.receives.data();
  link.sees = data.sees.data();
  if (peer != rank_) {
    link.mine = at(rank_, peer);
    if (ring_.transport.reads_others()) link.shown = at(peer, peer);
    link.spare = at(rank_, peer, 1);
    link.second_spare = at(rank_, peer, 2);
  }
  links_.push_back(link);
}

void Prober::run(const Look& look) {
  if (slots_.words() < 1) return;
  std::vector<bool> out_of_reach(static_cast<size_t>(ranks_), false);
  data_.reserve(size_t(ranks_));
  // This rank writes its own slot in the same way, for the others to read; it is no link.
  if (ring_.transport.reads_others()) add_link(rank_);
  const size_t own = links_.size();
  for (int peer = 0; peer < ranks_; ++peer) {
    if (peer == rank_ || !is_probed(rank_, peer, ranks_)) continue;
    add_link(peer);
    out_of_reach[size_t(peer)] = links_.back().theirs == nullptr;
  }
  ring_.transport.begin_probe(links_);
  ring_.control.begin_probe(out_of_reach, ring_.transport.place());
  const std::span<ProbedLink> links = std::span(links_).subspan(own);
  for (ProbedLink& link : links) {
    wait_until([&] { return ring_.control.has_begun_probe(link.peer); }, Clock::time_point::max(),
               [&] { look(ring_.control.names.text(link.peer) + " to map the others' memory"); });
    if (!ring_.control.reaches(link.peer, rank_)) link.mine = nullptr;
  }
  const Milliseconds patience = std::min(kProbePatience, ring_.timeout / 2);
  ring_.transport.end_probe(links, patience,
                            [&] { look("the data that the others wrote into its memory"); });
  for (const ProbedLink& link : links)
    check_probed(link, words_, rank_, patience,
                 {named(rank_), named(link.peer), ring_.transport.remedy()});
}

std::string Prober::named(int rank) const {
  const std::string place = ring_.control.place_of(rank);
  return ring_.control.names.text(rank) + (place.empty() ? "" : " (" + place + ")");
}

}  // namespace

uint64_t probe_seed(const Id& session) {
  uint64_t halves[2];
  static_assert(sizeof halves == sizeof session);
  std::memcpy(halves, session.data(), sizeof halves);
  return mixed(halves[0] + mixed(halves[1] + kStep));
}

uint64_t ProbeWords::seed_of(int writer, int reader) const {
  const uint64_t link = uint64_t(writer) * uint64_t(ranks_) + uint64_t(reader);
  return mixed(seed_ + (link + 1) * kStep);
}

std::vector<uint64_t> ProbeWords::words(int writer, int reader, int count) const {
  const uint64_t seed = seed_of(writer, reader);
  std::vector<uint64_t> words(static_cast<size_t>(count));
  for (int at = 0; at < count; ++at) words[size_t(at)] = word_of(seed, at);
  return words;
}

std::optional<std::string> ProbeWords::difference(int writer, int reader,
                                                  const std::vector<uint64_t>& found) const {
  const std::vector<uint64_t> wanted = words(writer, reader, int(found.size()));
  if (found == wanted) return {};
  int64_t bytes = 0;
  int first = -1;
  bool nothing = true;
  for (int at = 0; at < int(found.size()); ++at) {
    const uint64_t bits = found[size_t(at)] ^ wanted[size_t(at)];
    nothing = nothing && found[size_t(at)] == 0;
    if (bits == 0) continue;
    if (first < 0) first = at;
    for (int byte = 0; byte < 8; ++byte) bytes += (bits >> 8 * byte & 0xff) != 0;
  }
  if (nothing) return "all " + std::to_string(8 * found.size()) + " bytes are 0";
  const uint64_t there = found[size_t(first)];
  std::string text = std::to_string(bytes) + " of " + std::to_string(8 * found.size()) +
                     " bytes differ, the first of them in word " + std::to_string(first) +
                     ", which is " + hex(there) + " and should be " + hex(wanted[size_t(first)]);
  for (int w = 0; w < ranks_; ++w)
    for (int r = 0; r < ranks_; ++r)
      if (is_probed(w, r, ranks_) && there == word_of(seed_of(w, r), first))
        return text + "; " + names_.text(w) + " wrote that word for " + names_.text(r);
  return text;
}

void check_probed(const ProbedLink& link, const ProbeWords& words, int rank, Milliseconds patience,
                  const ProbeNames& names) {
  const auto fail = [&](const std::string& text) {
    throw TransportError(text + ". " + names.remedy,
                         {words.names().number(link.peer), 0, "probed its links"});
  };
  const std::string late = " did not arrive within " + seconds_text(patience);
  const auto check = [&](int reader, const uint64_t* found, const std::string& what) {
    const auto wrong = words.difference(link.peer, reader, {found, found + link.words});
    if (!wrong) return;
    fail(what + (found[link.words - 1] != 0 ? " is wrong" : late) + ": " + *wrong);
  };
  if (link.mine != nullptr)
    check(rank, link.receives,
          "the data that " + names.there + " wrote into the memory of " + names.here);
  if (link.shown != nullptr)
    check(link.peer, link.sees,
          "the data that " + names.here + " read from the memory of " + names.there);
  if (!link.answered)
    fail("the data that " + names.here + " wrote into the memory of " + names.there +
         ", or the acknowledgement," + late);
}

uint32_t mapped_by_both(Control& control, uint32_t mine, const Look& look) {
  control.show_mapped(mine);
  for (int peer = 0; peer < control.ranks; ++peer) {
    if (peer == control.rank) continue;
    std::optional<uint32_t> theirs;
    wait_until([&] { return (theirs = control.mapped_by(peer)).has_value(); },
               Clock::time_point::max(),
               [&] { look(control.names.text(peer) + " to map the others' memory"); });
    if ((*theirs >> control.rank & 1) == 0) mine &= ~(uint32_t(1) << peer);
  }
  return mine;
}

void probe_links(const ProbedRing& ring, const Id& session, const Look& look) {
  Prober(ring, session).run(look);
}

// ---- by this thread -----------------------------------------------------------------------------

void Transport::begin_probe(std::span<ProbedLink> links) {
  for (const ProbedLink& link : links) {
    if (link.theirs == nullptr) continue;
    for (int i = 0; i < link.words; ++i)
      std::atomic_ref(link.theirs[i])
          .store(link.sends[i],
                 i + 1 < link.words ? std::memory_order_relaxed : std::memory_order_release);
  }
}

void Transport::end_probe(std::span<ProbedLink> links, Milliseconds patience,
                          const std::function<void()>& look) {
  const auto deadline = Clock::now() + patience;
  const auto take = [&](const uint64_t* from, uint64_t* to, int words) {
    if (from == nullptr) return;
    uint64_t& last = to[words - 1];
    wait_until([&] { return (last = load(from[words - 1], std::memory_order_acquire)) != 0; },
               deadline, look);
    for (int i = 0; i + 1 < words; ++i) to[i] = load(from[i]);
  };
  for (const ProbedLink& link : links) {
    take(link.mine, link.receives, link.words);
    take(link.shown, link.sees, link.words);
  }
}

std::string Transport::remedy() const {
  return "The ranks do not see the same memory, although each has mapped it. Check for a sandbox "
         "such as gVisor, for a library in LD_PRELOAD, and for memory errors (dmesg)";
}

}  // namespace ringkern
