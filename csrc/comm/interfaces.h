// The interfaces of the library. A communicator consists of a Store (ranks find each other), a
// Transport (ranks access each other's memory) and an Executor (runs the schedule on a device);
// each has at least two real implementations.
#pragma once

#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/call.h"
#include "core/choice.h"
#include "core/plan.h"
#include "core/status.h"
#include "core/timeline.h"
#include "fault/errors.h"
#include "fault/render.h"

namespace ringkern {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

inline std::string seconds_text(std::chrono::nanoseconds t) { return seconds_text(t.count()); }

inline std::string mib(double bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f MiB", bytes / (1 << 20));
  return text;
}

inline std::string ago(Clock::time_point then) {
  const auto s = std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - then).count();
  return s < 1 ? "just now" : std::to_string(s) + " s ago";
}

// Returns the text of an error: `what`, such as "group 'x'", was made in process `born_in` and is
// used in `here`, a forked child of it.
inline std::string forked_text(const std::string& what, int born_in, int here) {
  return what + " was made in process " + std::to_string(born_in) + " and is used in process " +
         std::to_string(here) + ", which was forked from it. Start ranks with spawn, or " +
         "initialise torch.distributed in the child.";
}

template <class T>
std::string to_bytes(const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  return std::string(reinterpret_cast<const char*>(&value), sizeof value);
}
// Returns the value in `bytes`; nothing if the size differs.
template <class T>
std::optional<T> from_bytes(const std::string& bytes) {
  T value{};
  if (bytes.size() != sizeof value) return {};
  std::memcpy(static_cast<void*>(&value), bytes.data(), sizeof value);
  return value;
}

// A store in which ranks leave notes for each other before they are connected: torch's c10d stores,
// or one in memory for ranks that are threads.
class Store {
 public:
  virtual ~Store() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  // Sets a key; ignores a store that has ended.
  virtual void try_set(const std::string& key, const std::string& value) {
    try {
      set(key, value);
    } catch (const std::exception&) {
      // Nobody can be told without the store.
    }
  }
  // Waits until the key is there; throws TimeoutError after `timeout`.
  virtual std::string get(const std::string& key, Milliseconds timeout) = 0;
  // Adds to a counter (0 if absent) and returns the new value.
  virtual int64_t add(const std::string& key, int64_t amount) = 0;
};

// Handles by which a rank maps the segments of another: some bytes, file descriptors, or both. Does
// not own the descriptors.
struct Offer {
  std::string bytes;
  std::vector<int> fds{};

  // Returns descriptor i; -1 if there are fewer.
  int fd(size_t i = 0) const { return i < fds.size() ? fds[i] : -1; }
};

// A description of the other ranks' memory that a rank on a GPU uses.
struct SharedMemory {
  std::string device{};             // how it has opened device memory; empty: none
  std::vector<std::string> host{};  // the reason for each rank reached over host memory
};

// A rank's GPU, as the other ranks must know it: ranks on one device share its capacity.
struct DeviceRoom {
  std::string bus{};               // its PCI bus; empty on a CPU
  std::array<uint8_t, 16> uuid{};  // slices of one GPU (MIG) share a bus, not a uuid
  int64_t blocks = 0;              // the most that are resident at once
};

// A part of every rank's segment, at the same place in all, that is still unused.
struct ProbeRoom {
  int64_t offset = 0;
  int64_t bytes = 0;       // 0: none
  int64_t slot_bytes = 0;  // the most for one link, with its tail
  int64_t tail_bytes = 0;  // of a link: for the transport's own data behind the words
};

// A link to probe (comm/probe.h). A pointer is null if there is nothing to do.
struct ProbedLink {
  int peer = 0;
  uint64_t* theirs = nullptr;       // in the peer's memory: this rank writes here
  const uint64_t* sends = nullptr;  // the words to write, and one more to answer with
  uint64_t* mine = nullptr;         // in this rank's memory: the peer writes here
  uint64_t* receives = nullptr;     // the words that came; 0: none came
  const uint64_t* shown = nullptr;  // in the peer's memory: words that it wrote itself
  uint64_t* sees = nullptr;         // the words that this rank read there
  int words = 0;                    // the last one is stored last and polled first
  // Two slots in this rank's memory that no other rank uses.
  uint64_t *spare = nullptr, *second_spare = nullptr;
  bool answered = true;  // the peer has confirmed this rank's words over the link
};

// The most ranks that can share host memory on CUDA: masks have one bit for each.
inline constexpr int kMostOnHost = 32;

// One rank's view of everybody's memory.
struct Segments {
  void* mine = nullptr;
  void* next = nullptr;  // of the rank after this one; prev: of the rank before it
  void* prev = nullptr;
  std::vector<void*> all;                // by rank, this one's among them
  std::vector<const CallLine*> calls{};  // by rank: its record of calls, kCallLines of each
  RingOrders orders{};                   // if there are any, next and prev are not used
  RankNames names{};
  void* host = nullptr;  // on CUDA: this rank's second segment, in host memory
  uint32_t on_host = 0;  // a bit for each rank that writes to `host` and not to `mine`

  void* written_by(int peer) const {
    return peer < kMostOnHost && (on_host >> peer & 1) != 0 ? host : mine;
  }
};

// Owns this rank's segment and the mappings of the others' segments (shared memory, CUDA IPC, or
// plain pointers between ranks of one process). Fresh segments are zero.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual void* mine() = 0;
  virtual Offer offer() = 0;  // the transport keeps the descriptors
  // Sets the orders of the ranks, if not 0, 1, 2, ...; called before map().
  virtual void set_orders(const RingOrders&) {}
  // Sets the names of the ranks in errors; called before map().
  void call_ranks(RankNames names) { names_ = std::move(names); }
  // Maps a peer's segment. Checks the offer against the size of this rank's own segment, never
  // against a size that the peer names. May return null for memory that this rank cannot reach:
  // settle() then takes host memory, or no ring makes the two ranks neighbours.
  virtual void* map(const Offer& offer, int peer) = 0;
  // Returns the ranks whose own memory this rank has mapped, a bit for each; nothing if the
  // transport cannot use host memory in its place. Both ranks of a pair must use the same kind.
  virtual std::optional<uint32_t> mapped() const { return {}; }
  // Maps host memory for the peers whose bit in `both` is not set, and enters it in the segments.
  // Throws TransportError, which names a pair of ranks that share no memory.
  virtual void settle(uint32_t /*both*/, Segments& /*segments*/) {}
  // Valid after settle().
  virtual SharedMemory memory() const { return {}; }
  // Returns whether a line of LL128 arrives whole in the neighbours' memory. Valid after settle().
  virtual bool carries_lines() const { return true; }
  // Ends this rank's use of the others' memory. Returns true if this rank must not free its own
  // memory before the others have done the same: the communicator then waits for their goodbyes.
  virtual bool unmap() { return false; }
  // Makes this process's tensors inaccessible to the ranks that may still write to them though they
  // no longer take part. May throw; the tensors are then as before.
  virtual void shut_out(Milliseconds /*patience*/) {}
  // Called if goodbyes are missing: the others may still write to this rank's memory, so it is
  // never freed.
  virtual void abandon() {}

  // The functions below probe the links. They move data in the same way as collectives; these
  // defaults use stores and loads of this thread. begin_probe() is called once this rank has mapped
  // the others' memory, end_probe() once its peers have, too. If data has not arrived within
  // `patience`, the last word received is 0. `look` is called periodically, and throws when there
  // is nothing left to wait for.
  virtual void begin_probe(std::span<ProbedLink> links);
  virtual void end_probe(std::span<ProbedLink> links, Milliseconds patience,
                         const std::function<void()>& look);
  // Returns whether collectives also read the other ranks' memory.
  virtual bool reads_others() const { return true; }
  // Return texts for errors: the place of this rank's memory, and the advice for a link that moves
  // wrong data.
  virtual std::string place() const { return {}; }
  virtual std::string remedy() const;

 protected:
  RankNames names_;
};

inline void check_orders(const RingOrders& orders, int ranks) {
  if (!orders.valid(ranks))
    throw UsageError("these orders of " + std::to_string(ranks) +
                     " ranks are invalid: give at most " + std::to_string(RingOrders::kMost) +
                     " orders of at most " + std::to_string(RingOrders::kMostRanks) +
                     " ranks, each with every rank once, or none for 0, 1, 2, ...");
}

// The norm at the end of an all-reduce of rows on CUDA, a sum of float32, float16 or bfloat16: see
// RankNorm in cuda/launch.h.
struct RowNorm {
  int64_t row = 0;  // elements; the tensor has whole rows
  const std::byte* residual = nullptr;
  const std::byte* weight = nullptr;
  std::byte* normalised = nullptr;
  float eps = 0;
  bool done = false;  // set by the executor; if false, `out` is the sum alone
};

struct LaunchBatch;  // cuda/launcher.h

// One collective, ready to run. Sizes in elements of `reduction.dtype`, as in Plan; `in` and `out`
// may be the same. `stream` is a cudaStream_t, or null on a CPU.
struct Task {
  Collective collective = Collective::all_reduce;
  Protocol protocol = Protocol::simple;
  Reduction reduction;
  const void* in = nullptr;
  void* out = nullptr;
  int64_t count = 0;
  int root = 0;                           // of a broadcast, a reduce or a message
  Algorithm algorithm = Algorithm::ring;  // of an all-reduce; others use the ring
  void* stream = nullptr;
  Milliseconds timeout{0};  // for each wait; 0: the executor's
  // If it is open, the communicator chooses algorithm and protocol from the table that its ranks
  // have agreed on.
  Choice choice = Choice::none;
  // Set by the communicator.
  uint64_t seq = 0;      // on its ring, from 1; 0: not counted
  CallWords words{};     // its own
  uint64_t history = 0;  // as in CallLine
  // Called on a CPU when a wait takes more than some microseconds, at most once. May be null.
  void (*rests)(void* with) = nullptr;
  void* with = nullptr;
  RowNorm* norm = nullptr;             // on all ranks or on none
  const Timeline* timeline = nullptr;  // records a ring's verbs; null: no record
  LaunchBatch* batch = nullptr;        // of messages, which it collects for one launch
  int64_t whole = 0;  // elements of the call of which this is a thread's part; 0: of this task
  int channels = 1;   // of a ring on a CPU: the threads that divide the chunks
  int moved = 0;      // an index of kMoved: the dtype of elements that travel as bytes
  // The larger call of which this is a step, if any (kSpansHosts). Ranks compare it, too: different
  // calls may have equal steps.
  CallWords part_of{};
  // The tasks of all ranks, this one's among them, in a ring of one process (torch/local.cpp).
  std::span<const Task> of_ranks{};

  // Returns the elements of the whole call.
  constexpr int64_t whole_count() const { return whole > 0 ? whole : count; }
};

// The state of a task when Executor::run() returns.
struct RunResult {
  bool rested = false;     // a wait took more than some microseconds
  bool under_way = false;  // Executor::progress() shows the end
};

// Chooses algorithm and protocol if `t.choice` leaves them open. Throws UsageError if the task asks
// for a way that this ring does not have.
inline void resolve_auto(Task& t, const WayTable& ways) {
  if (t.choice != Choice::none) {
    const Way way = ways.choose(t.choice, t.count * size_of(t.reduction.dtype));
    t.algorithm = way.algorithm;
    t.protocol = way.protocol;
  } else if (t.protocol == Protocol::ll128 && ways.whole_lines == 0) {
    throw UsageError(
        "protocol ll128 needs links over which a line of 128 bytes arrives whole: NVLink, or "
        "ranks on one GPU. Ranks of this ring have another one between them, such as PCIe (see "
        "nvidia-smi topo -m): use protocol simple or ll, or leave it to auto");
  } else if (t.algorithm == Algorithm::two_shot && t.protocol == Protocol::simple &&
             ways.in_place == 0) {
    throw UsageError(
        "two_shot over simple needs the device memory of all ranks, and some ranks of this ring "
        "have only host memory in common: use protocol ll or algorithm ring, or leave it to auto");
  }
}

// Returns the words that ranks compare. An all-reduce with a norm has the length of its rows in
// place of a root.
constexpr CallWords words_of(const Task& t) {
  const int root = t.norm != nullptr ? int(t.norm->row) : t.root;
  return words_of(t.collective, t.reduction, t.algorithm, t.protocol, root, t.whole_count(),
                  t.moved);
}

// Throws UsageError for a float32 accumulation round the ring, which sends partial results rounded
// to the dtype. For more than one rank.
inline void check_wide(const Task& t) {
  if (!t.reduction.wide || t.algorithm != Algorithm::ring) return;
  const std::string dtype = name_of(t.reduction.dtype), what = name_of(t.collective);
  const bool has_others = t.collective == Collective::all_reduce;
  throw UsageError(
      what + " of " + dtype + " round the ring cannot accumulate in float32: each " +
      "rank passes on a partial result, rounded to " + dtype + ". " +
      (has_others ? "Use algorithm one_shot or two_shot, or leave out accumulate"
                  : what + " has no other algorithm: leave out accumulate, or use all_reduce"));
}

// Runs the schedule of one rank on one device.
class Executor {
 public:
  virtual ~Executor() = default;
  // CPU: returns when the result is in `out`. CUDA: returns when it is enqueued.
  // A failed wait throws TimeoutError or AbortedError, on CUDA from a later call. An error with
  // Facts::refused means that the device refused this task alone, and can take later ones.
  virtual RunResult run(const Task& task) = 0;
  // Returns whether run() returns once the task is enqueued. The device does not compare the calls
  // of the ranks, so the communicator does it before run().
  virtual bool enqueues() const { return false; }
  // Ends every wait of this rank and of its neighbours. Idempotent; from any thread.
  virtual void abort() = 0;
  // Returns when everything that was enqueued has ended; false if it has not within `patience`.
  virtual bool drain(Milliseconds /*patience*/) { return true; }
  // The progress of the enqueued tasks, as the device has last shown it. From any thread; does not
  // query the device.
  struct Progress {
    uint64_t done = 0;  // the number of the last task that was under way and has ended well
    std::optional<Fault> failed{};
  };
  virtual Progress progress() const { return {}; }
};

}  // namespace ringkern
