#include "fault/fault.h"

#include <array>
#include <iterator>

namespace ringkern {
namespace {

// The limit on rank numbers of any group, whose size is unknown here.
constexpr int kMostNumbered = 1 << 24;
constexpr size_t kMostShown = 40;

constexpr size_t kWords = (sizeof(Fault) + 7) / 8, kBits = (kWords + 7) / 8;

struct Row {
  const char* name;
  Cause cause;
};
constexpr Row kRows[] = {{"none", Cause::none},
#define RK_EVENT(name, cause, text) {#name, Cause::cause},
                         RK_EVENTS(RK_EVENT)
#undef RK_EVENT
};
static_assert(std::size(kRows) == kEvents);

template <size_t N>
void clean(FaultText<N>& text) {
  text = printable(text.text(), N);
}
void clean(int32_t& rank) {
  if (rank < 0 || rank >= kMostNumbered) rank = -1;
}
void clean(RankSeen& seen) {
  clean(seen.rank);
  clean(seen.host);
  if (seen.end.known > ProcessEnd::still_runs) seen.end = {};
}

}  // namespace

const char* name_of(Cause cause) {
  constexpr const char* kNames[] = {"none",     "aborted",   "timed_out",
                                    "mismatch", "peer_lost", "failed"};
  return size_t(cause) < std::size(kNames) ? kNames[size_t(cause)] : "failed";
}
const char* name_of(Event event) { return kRows[size_t(event)].name; }
Cause cause_of(Event event) { return kRows[size_t(event)].cause; }

std::string printable(const std::string& text, size_t most) {
  std::string out = text.substr(0, most);
  for (char& c : out)
    if (c < ' ' || c > '~') c = c == '\n' || c == '\t' ? ' ' : '?';
  return out;
}

Fault failed_wait(const WaitReport& report, int rank, int peer, uint64_t seq, CallWords words,
                  int64_t timeout_ns, const RankNames& names) {
  const bool late = report.verdict == Verdict::timed_out;
  Fault f = fault_of(late ? Event::wait_timeout : Event::wait_aborted, names.number(rank),
                     names.number(peer), seq);
  f.waits = 1;
  f.wait = report;
  f.wait.peer = names.number(peer);
  f.timeout_ns = timeout_ns;
  f.mine.call.is_there = seq != 0 || words != CallWords();
  f.mine.call.seq = seq;
  f.mine.call.words = names.words(words);
  return f;
}

Fault checked(Fault f) {
  if (uint32_t(f.event) >= uint32_t(kEvents)) f.event = Event::unsaid;
  if (f.event == Event::none) f.event = Event::unsaid;
  f.cause = cause_of(f.event);
  clean(f.reporter);
  clean(f.rank);
  clean(f.mine);
  clean(f.theirs);
  clean(f.wait.peer);
  clean(f.message.peer);
  for (int32_t& from : f.message.arrived_from) clean(from);
  if (uint32_t(f.wait.protocol) >= uint32_t(kProtocols)) f.wait.protocol = Protocol::simple;
  f.ranks = std::clamp(f.ranks, 0, kMaxRanks);
  for (RankStands& one : f.stands) clean(one.rank);
  clean(f.group);
  clean(f.hosts);
  clean(f.evidence);
  return f;
}

// Encodes a fault compactly, because a store may be a small file. Most words are zero: one bit for
// each word shows whether it follows.
std::string to_bytes(const Fault& fault) {
  std::array<uint64_t, kWords> words{};
  std::memcpy(words.data(), &fault, sizeof fault);
  std::string bits(kBits, 0), rest;
  for (size_t i = 0; i < kWords; ++i) {
    if (words[i] == 0) continue;
    bits[i / 8] = char(bits[i / 8] | 1 << i % 8);
    rest.append(reinterpret_cast<const char*>(&words[i]), sizeof words[i]);
  }
  return bits + rest;
}

Fault read_fault(const std::string& bytes) {
  std::array<uint64_t, kWords> words{};
  size_t at = kBits;
  bool whole = bytes.size() >= kBits;
  for (size_t i = 0; i < kWords && whole; ++i) {
    if ((bytes[i / 8] >> i % 8 & 1) == 0) continue;
    whole = bytes.size() - at >= sizeof words[i];
    if (!whole) break;
    std::memcpy(&words[i], bytes.data() + at, sizeof words[i]);
    at += sizeof words[i];
  }
  Fault f;
  std::memcpy(static_cast<void*>(&f), words.data(), sizeof f);
  if (whole && at == bytes.size() && f.size == sizeof f) return checked(f);
  f = fault_of(Event::unreadable, -1);
  f.evidence = printable(bytes, kMostShown);
  return f;
}

}  // namespace ringkern
