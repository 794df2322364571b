// A failure of a group as data, from the rank that finds it to the error that each rank raises. All
// ranks raise the same fault. Control pages, sockets and the store carry its bytes; the rank that
// raises it renders the sentence (fault/render.h), and no code parses a sentence.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "core/call.h"
#include "core/status.h"
#include "fault/events.h"

namespace ringkern {

inline std::string rank_text(int rank) { return "rank " + std::to_string(rank); }

// The numbers of a ring's ranks in errors: those of their group, which may be larger than the ring.
// `numbers`: by rank; empty: the ring's own.
struct RankNames {
  std::vector<int> numbers{};

  int number(int rank) const {
    return rank >= 0 && size_t(rank) < numbers.size() ? numbers[size_t(rank)] : rank;
  }
  // Returns the rank with this number; -1 if the ring has none.
  int rank(int number) const {
    if (numbers.empty()) return number;
    const auto found = std::find(numbers.begin(), numbers.end(), number);
    return found == numbers.end() ? -1 : int(found - numbers.begin());
  }
  std::string text(int rank) const { return rank_text(number(rank)); }
  // Returns the call with its root, if it has one, in the group's numbers.
  CallWords words(CallWords call) const {
    const CallFields f = fields_of(call.what);
    if (has_root(Collective(f.collective)) && f.spans_hosts == 0)
      call.what = with_root(call.what, number(int(f.root)));
    return call;
  }
};

// The class of the error.
enum class Cause : uint32_t { none, aborted, timed_out, mismatch, peer_lost, failed };
const char* name_of(Cause cause);

enum class Event : uint32_t {
  none,
#define RK_EVENT(name, cause, text) name,
  RK_EVENTS(RK_EVENT)
#undef RK_EVENT
};
inline constexpr int kEvents = []() constexpr {
  int count = 1;
#define RK_EVENT(name, cause, text) ++count;
  RK_EVENTS(RK_EVENT)
#undef RK_EVENT
  return count;
}();
const char* name_of(Event event);
Cause cause_of(Event event);

// A text of at most N - 1 characters.
template <size_t N>
struct FaultText {
  char bytes[N] = {};

  FaultText() = default;
  FaultText(const std::string& text) { *this = text; }
  FaultText& operator=(const std::string& text) {
    *this = FaultText();
    std::memcpy(bytes, text.data(), std::min(text.size(), N - 1));
    return *this;
  }
  std::string text() const { return {bytes, ::strnlen(bytes, N)}; }
  bool empty() const { return bytes[0] == 0; }
};

// The state of a call when the fault was found.
struct CallSeen {
  uint64_t seq = 0;  // 0: none, or not counted
  CallWords words{};
  int64_t age_ns = 0;  // since its begin, or its end
  uint32_t ended = 0, is_there = 0;
};

// The state of a process: the letter of /proc/PID/stat, or one of these.
inline constexpr char kGone = 0, kUnreadable = '?', kOtherNamespace = '-';
// The end of a process.
struct ProcessEnd {
  enum Known : uint32_t { nothing, status, still_runs } known = nothing;
  int32_t wait_status = 0;  // as waitpid() returns it
  char state = kGone;       // if it still runs
};

// One of the ranks that a fault is about.
struct RankSeen {
  int32_t rank = -1;
  uint32_t on_page = 0;  // the fields below were read on the rank's control page
  char state = kOtherNamespace;
  int64_t pid = 0;        // 0: not visible from here
  int64_t silent_ns = 0;  // since its last heartbeat
  uint64_t calls = 0;     // made before it left
  ProcessEnd end{};
  FaultText<64> host;  // empty if the group is on one host
  CallSeen call{};     // the call that the fault is about
  static constexpr int kCalls = 4;
  CallSeen last[kCalls]{};  // its last calls, the oldest first
};

// The state of one rank in the list of all.
struct RankStands {
  int32_t rank = 0;
  uint32_t left = 0;  // after its last call
  CallSeen last{};
};

// A message between two ranks.
struct MessageSeen {
  uint32_t is_there = 0, sends = 0;
  uint32_t kind = 0, their_kind = 0;  // a MessageKind
  int32_t peer = -1;                  // -1: any rank
  uint64_t tag = 0;
  int64_t bytes = 0, their_bytes = 0;
  int32_t dtype = 0, their_dtype = 0;  // indices of kMoved
  // Messages that match no receive.
  static constexpr int kArrived = 4;
  int32_t arrived_from[kArrived] = {-1, -1, -1, -1};
  uint64_t arrived_tag[kArrived]{};
};
// The collective that a message belongs to; `message`: none, the user's own.
enum class MessageKind : uint32_t { message, gather, scatter, all_to_all };
inline constexpr const char* kMessageKinds[] = {"", "gather", "scatter", "all_to_all"};
// The bit of the tags of collectives; user tags do not have it, and errors do not show it.
inline constexpr uint64_t kCollectiveTag = uint64_t(1) << 63;

inline constexpr uint32_t kWaitsOnDevice = 2;

// Fields that are unknown or do not apply have their default value.
struct Fault {
  uint32_t size = sizeof(Fault);  // differs in another version
  Cause cause = Cause::none;
  Event event = Event::none;
  uint32_t from_outside = 0;  // 1: its reason comes from outside this ring (Communicator::give_up)
  int32_t reporter = -1;
  int32_t rank = -1;  // the rank at fault, or the awaited rank; -1: none
  uint64_t seq = 0;   // of the call, from 1; 0: none
  RankSeen mine{};    // the reporter
  RankSeen theirs{};  // the rank
  // The wait of the reporter.
  uint32_t waits = 0;  // 0: none; 1: on a CPU; kWaitsOnDevice: on a device, with channels
  WaitReport wait{};   // the peer in the group's numbers
  int64_t timeout_ns = 0;
  MessageSeen message{};
  uint32_t whole = 0;  // calls over several hosts are compared, not their steps inside a host
  uint32_t store_is_silent = 0;
  static constexpr int kRanks = 32;
  int32_t ranks = 0;  // the size of the ring; `stands` has the first of them
  RankStands stands[kRanks]{};
  FaultText<64> group;       // the communicator's name
  FaultText<256> hosts;      // the lost or late hosts
  FaultText<1024> evidence;  // a reason given to abort(), or the text of another library
};
static_assert(std::is_trivially_copyable_v<Fault>);

inline Fault fault_of(Event event, int reporter, int rank = -1, uint64_t seq = 0) {
  Fault f;
  f.event = event;
  f.cause = cause_of(event);
  f.reporter = f.mine.rank = reporter;
  f.rank = f.theirs.rank = rank;
  f.seq = seq;
  return f;
}
inline Fault aborted_by(int rank, const std::string& reason) {
  Fault f = fault_of(Event::abort, rank, rank);
  f.evidence = reason;
  return f;
}

// Returns the fault of a failed wait of `rank`; ranks and words are in the ring's numbers.
Fault failed_wait(const WaitReport& report, int rank, int peer, uint64_t seq, CallWords words,
                  int64_t timeout_ns, const RankNames& names);

std::string to_bytes(const Fault& fault);
// Reads the bytes of another process: numbers out of range become none, and texts printable.
// Unreadable bytes give a fault, too (Event::unreadable).
Fault read_fault(const std::string& bytes);
Fault checked(Fault fault);

// Returns at most `most` characters of a text from another rank, made printable.
std::string printable(const std::string& text, size_t most = 1000);

}  // namespace ringkern
