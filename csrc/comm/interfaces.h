// The seams of the library. A communicator is put together from a Store (to find each other), a
// Transport (to see each other's memory) and an Executor (to run the schedule on a device); each
// has at least two real implementations.
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

// "group 'x'", which belongs to process `born_in`, cannot be used in `here`, a child of it.
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
// The reverse; nothing where they are not so many bytes.
template <class T>
std::optional<T> from_bytes(const std::string& bytes) {
  T value{};
  if (bytes.size() != sizeof value) return {};
  std::memcpy(static_cast<void*>(&value), bytes.data(), sizeof value);
  return value;
}

// Where ranks leave notes for each other before they are connected: torch's c10d stores, or one in
// memory for ranks that are threads.
class Store {
 public:
  virtual ~Store() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  // The same, without a word where the store has ended.
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

// Handles by which a rank maps the segments of another: some bytes, file descriptors, or both. The
// receiver owns the descriptors.
struct Offer {
  std::string bytes;
  std::vector<int> fds{};

  // -1 where there are not so many.
  int fd(size_t i = 0) const { return i < fds.size() ? fds[i] : -1; }
};

// Memory of other ranks that one on a GPU uses, in words.
struct SharedMemory {
  std::string device{};             // how it has opened their device memory; empty: none
  std::vector<std::string> host{};  // for each rank with which it has host memory in common, why
};

// A rank's GPU, as the other ranks must know it: those of one device share what it holds.
struct DeviceRoom {
  std::string bus{};               // where it is; empty on a CPU
  std::array<uint8_t, 16> uuid{};  // slices of one GPU (MIG) share a bus and each have their own
  int64_t blocks = 0;              // that are resident at once
};

// A part of every rank's segment, the same in all, whose contents mean nothing yet.
struct ProbeRoom {
  int64_t offset = 0;
  int64_t bytes = 0;       // 0: none
  int64_t slot_bytes = 0;  // the most for one link ...
  int64_t tail_bytes = 0;  // ... of which these are for what a transport needs beside words
};

// A link as it is probed (comm/probe.h). Places are in segments; null where there is nothing to do.
struct ProbedLink {
  int peer = 0;
  uint64_t* theirs = nullptr;       // in the peer's memory: this rank writes here ...
  const uint64_t* sends = nullptr;  // ... what is here, and one word more, to answer with
  uint64_t* mine = nullptr;         // in this rank's memory: the peer writes here
  uint64_t* receives = nullptr;     // what came; 0 where nothing did
  const uint64_t* shown = nullptr;  // in the peer's memory: what it has written there itself
  uint64_t* sees = nullptr;         // what this rank reads there
  int words = 0;                    // the last is stored last, and looked for first
  // In this rank's memory, and nobody else's: each as large as a slot.
  uint64_t *spare = nullptr, *second_spare = nullptr;
  bool answered = true;  // the peer has said, over the link, that it has seen what this rank wrote
};

// So many ranks can have host memory in common on CUDA: a bit for each.
inline constexpr int kMostOnHost = 32;

// One rank's view of everybody's memory.
struct Segments {
  void* mine = nullptr;
  void* next = nullptr;  // of the rank after this one, and of the one before
  void* prev = nullptr;
  std::vector<void*> all;                // by rank, this one's among them
  std::vector<const CallLine*> calls{};  // by rank, kCallLines of each: what it says of its calls
  RingOrders orders{};                   // where there are any, next and prev do not count
  RankNames names{};
  void* host = nullptr;  // this rank's second segment, in host memory, on CUDA, and a bit for each
  uint32_t on_host = 0;  // rank that writes to this one and not to `mine`

  void* written_by(int peer) const {
    return peer < kMostOnHost && (on_host >> peer & 1) != 0 ? host : mine;
  }
};

// Owns this rank's segment and the mappings of its neighbours' (shared memory, CUDA IPC, or plain
// pointers between ranks of one process). Fresh segments are zero.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual void* mine() = 0;
  virtual Offer offer() = 0;  // the descriptor stays the transport's
  // Sets the orders of the ranks, if not 0, 1, 2, ...; before anything is mapped.
  virtual void set_orders(const RingOrders&) {}
  // Sets how errors name the ranks; before anything is mapped.
  void call_ranks(RankNames names) { names_ = std::move(names); }
  // Checks the offer against `bytes`, the size that this rank expects: never a size a peer names.
  // May be null, out of reach, where the peer is no neighbour on any ring.
  virtual void* map(const Offer& offer, int peer) = 0;
  // A transport that can reach a peer in two ways, by its own memory and by host memory, says whose
  // own memory it has mapped, a bit for each rank; nothing where there is one way only. Both ranks
  // of a pair must take the same way.
  virtual std::optional<uint32_t> mapped() const { return {}; }
  // Takes host memory for the pairs that are not in `both`; puts it into the segments. Throws
  // TransportError, which names a pair that has no memory in common.
  virtual void settle(uint32_t /*both*/, Segments& /*segments*/) {}
  // Once all is settled.
  virtual SharedMemory memory() const { return {}; }
  // Tells if a line of LL128 arrives whole in the memory of this rank's neighbours; once all is
  // settled.
  virtual bool carries_lines() const { return true; }
  // Ends this rank's use of the others' memory. True where a rank must not give its own back before
  // they have done the same: the communicator then waits for their word.
  virtual bool unmap() { return false; }
  // The others did not say so: they may still write to this rank's memory, so it is never given
  // back.
  virtual void abandon() {}

  // The following serves the probe of the links. It moves data as collectives do, here the stores
  // and loads of this thread. The first is called as soon as the others' memory is mapped, the
  // second when all have come so far. If data has not arrived within `patience`, the last word
  // received is 0. `look` is called now and then, and throws when there is nothing left to wait
  // for.
  virtual void begin_probe(std::span<ProbedLink> links);
  virtual void end_probe(std::span<ProbedLink> links, Milliseconds patience,
                         const std::function<void()>& look);
  // True if collectives also read the other ranks' memory.
  virtual bool reads_others() const { return true; }
  // Where this rank's memory is, and what to do about a link that moves wrong data; for errors.
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

// The end of an all-reduce of rows on CUDA, a sum of float32, float16 or bfloat16: RankNorm of
// cuda/launch.h.
struct RowNorm {
  int64_t row = 0;  // elements; the tensor has whole rows
  const std::byte* residual = nullptr;
  const std::byte* weight = nullptr;
  std::byte* normalised = nullptr;
  float eps = 0;
  bool done = false;  // the executor says so; else `out` is the sum alone
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
  Algorithm algorithm = Algorithm::ring;  // of an all-reduce; all else has the ring
  void* stream = nullptr;
  Milliseconds timeout{0};  // for each wait; 0: the executor's
  // Where it is open, the communicator chooses algorithm and protocol, by what its ranks have
  // agreed on.
  Choice choice = Choice::none;
  // Set by the communicator, in the copy that its executor runs.
  uint64_t seq = 0;      // on its ring, from 1; 0: nobody counts
  CallWords words{};     // its own
  uint64_t history = 0;  // as in CallLine
  // Called on a CPU, if at all, when a wait takes more than some microseconds, and once only.
  void (*rests)(void* with) = nullptr;
  void* with = nullptr;
  RowNorm* norm = nullptr;             // on all ranks or on none
  const Timeline* timeline = nullptr;  // a ring's verbs are noted there; null: nowhere
  LaunchBatch* batch = nullptr;        // a message's: added there in place of being launched
  int moved = 0;  // an index of kMoved: the dtype of elements that travel as bytes
  // The larger call that this is a step of, if any (kSpansHosts). Ranks compare it, too: their
  // steps may be alike though their calls are not.
  CallWords part_of{};
  // The tasks of all ranks, this one's among them, in a ring of one process (torch/local.cpp).
  std::span<const Task> of_ranks{};
};

// The state of a task when Executor::run() returns.
struct RunResult {
  bool rested = false;     // a wait took more than some microseconds
  bool under_way = false;  // the end is to be read from Executor::progress()
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
  return words_of(t.collective, t.reduction, t.algorithm, t.protocol, root, t.count, t.moved);
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
  // A wait that fails is thrown as TimeoutError or AbortedError; on CUDA by a later call. An error
  // with Facts::refused: the device would not take the task, and takes later ones.
  virtual RunResult run(const Task& task) = 0;
  // True if run() returns once the task is enqueued: nobody looks at its data before that.
  virtual bool enqueues() const { return false; }
  // Ends every wait of this rank and of its neighbours. Idempotent; from any thread.
  virtual void abort() = 0;
  // Returns when everything that was enqueued has ended; false if it has not within `patience`.
  virtual bool drain(Milliseconds /*patience*/) { return true; }
  // How far what was enqueued has come, as the device has shown without being asked. Any thread.
  struct Progress {
    uint64_t done = 0;  // the number of the last task that was under way and has ended well
    std::optional<Fault> failed{};
  };
  virtual Progress progress() const { return {}; }
};

}  // namespace ringkern
