// The memory of the simulated machine: weak, bounded, and watched for races.
//
// A store waits in a buffer of its thread and becomes visible later, in any order except among
// stores to the same cell. A load may return an older value than the newest, but no value older
// than one that happened before the load (vector clocks) or that the thread has read before. Fences
// and releases are respected: all that happened before one is visible before what comes after it.
//
// Addresses lie in a range that is mapped without access: code that bypasses the intrinsics faults
// at once.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <unordered_map>

#include "clock.h"
#include "random.h"

namespace simt {

// Weak accesses are ordinary data: two of different threads, one of them a store, are a race unless
// one happened before the other. The others are made to be used at the same time.
enum class Order : uint8_t { weak, relaxed, acquire, release };

// The end of a run. `kind`: "race", "deadlock", ...
struct Failure : std::runtime_error {
  Failure(std::string kind_, const std::string& text)
      : std::runtime_error(kind_ + ": " + text), kind(std::move(kind_)) {}
  const char* text() const { return what() + kind.size() + 2; }
  std::string kind;
};

constexpr uint64_t low_bytes(int bytes) {
  return bytes == 8 ? ~uint64_t(0) : (uint64_t(1) << (8 * bytes)) - 1;
}

struct Cell;

// The last seen values of threads that wait together, and the events that wake them.
struct Watch {
  struct Seen {
    Cell* cell;
    const void* at;
    uint64_t time;  // when the value that was read became visible
  };
  std::vector<Seen> seen;
  bool clock_was_read = false;
  bool asleep = false;
  uint32_t sleeps = 0;

  void forget() {
    seen.clear();
    clock_was_read = false;
  }
};

// A store that is not visible yet: bytes of one or two cells, which become visible together.
struct Pending {
  uint64_t cell;  // index of the first
  std::array<uint64_t, 2> value;
  std::array<uint64_t, 2> mask;  // 0: not this cell
  Epoch by;
  Message message;
  uint32_t line;        // of the warp's store that this is a part of; 0: none
  uint64_t number = 0;  // in the order in which they were made
};

// The state of a thread in the memory.
struct Agent {
  Tid tid = 0;
  int rank = -1;  // -1: of none, such as the host
  uint32_t now = 1;
  Clock known;
  Message released;               // what relaxed stores carry since the last fence
  std::vector<Message> observed;  // by relaxed loads since the last fence
  std::vector<Pending> buffer;
  size_t buffering = 0;  // where it is in the list of those with a buffer, plus 1
  Watch* watch = nullptr;
  std::vector<uint64_t> lines;  // cells of lines that were loaded since the last meeting

  bool knows(Epoch e) const { return e.tid() == tid || known.at(e.tid()) >= e.time(); }
  Epoch epoch() const { return {tid, now}; }
  void tick();
};

// The accesses of one datum with which a later one could race. `load`: the last weak load, or the
// last load that found the wanted value in a line. `many`: there are others.
struct Shadow {
  Epoch weak_store, strong_store, load;
  bool many = false;
};

inline constexpr int kVersions = 4;

// Eight bytes, with their last values.
struct Cell {
  struct Version {
    uint64_t value = 0, time = 0;
    Epoch by;
    Message message;
  };
  // A read; what happens after it does not read an older value.
  struct Read {
    Epoch by;
    uint64_t time;
  };

  std::array<Version, kVersions> versions;
  uint32_t newest = 0;  // index
  uint16_t count = 0;   // versions there are; 0: untouched
  uint16_t pending = 0;
  std::vector<Read> reads;
  Shadow shadows[2];  // of its halves
  std::vector<std::pair<Watch*, uint32_t>> watchers;

  const Version& latest() const { return versions[newest]; }
  const Version& oldest() const { return versions[(newest + kVersions + 1u - count) % kVersions]; }
  const Version& as_of(uint64_t time) const;
  void note_read(const Agent& a, uint64_t time);
  void reset();
};

enum class Kind : uint8_t {
  own,     // used by its rank alone
  device,  // by blocks of its rank at the same time
  shared,  // written by ranks and the host; read by its rank and the host
  common,  // read and written by all ranks, byte by byte: ordinary data
};

struct Region {
  std::string name;
  Kind kind = Kind::own;
  int rank = -1;                  // whose it is; -1: everybody's
  uint64_t begin = 0, bytes = 0;  // begin: from the start of the memory
  uint8_t fill = 0;               // but own: what untouched cells hold
  // own: its values; and, also for common, its users, a byte each.
  std::vector<std::byte> data;
  std::vector<Shadow> shadows;
};

// The races that are failures. `mixed`: races between a weak access and another kind, which not
// even threads that have given up may have.
enum class Races : uint8_t { none, mixed, all };

struct MemorySettings {
  int atom = 8;         // bytes of a 16-byte access that are whole: 4, 8 or 16
  int line_atom = 128;  // bytes of a line that a warp stores at once and that are whole: 8, 16, 128
  Races races = Races::all;
  bool open = false;   // ranks load what is shared of each other, too
  uint32_t stale = 0;  // of 256 loads, how many may return an old value
};

class Memory {
 public:
  Memory();
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  // Forgets all regions.
  void reset(const MemorySettings& settings, int threads, uint64_t seed);
  ClockPool& clocks() { return clocks_; }

  // Adds a region, filled with `fill`, that starts `offset` bytes after the start of a page.
  std::byte* add(std::string name, Kind kind, int rank, int64_t bytes, int64_t offset = 0,
                 uint8_t fill = 0);
  // Access memory from outside, before and after a run: the newest values.
  void read(const void* at, void* to, int64_t bytes);
  void write(void* at, const void* from, int64_t bytes);
  // Returns the name of a place, such as "byte 64 of the segment of rank 1".
  std::string name_of(const void* at) const;
  // Returns true if no other rank and no host uses the place during a run.
  bool of_one_device(const void* at) const;
  // Returns the agent of the host's thread.
  Agent& host() { return host_; }
  // For the texts of failures; the second may be left empty.
  std::function<std::string(Tid)> name_of_thread;
  std::function<std::string(const void*)> name_of_place;

  void load(Agent& a, const void* at, void* to, int bytes, Order order);
  void store(Agent& a, void* at, const void* from, int bytes, Order order);
  // Access 16 bytes of a line that a warp stores together. All its parts have the same `line` and
  // become visible at once, unless it is 0. A thread that has seen one part sees the others, too.
  uint32_t new_line() { return ++lines_; }
  void store_line(Agent& a, void* at, const void* from, uint32_t line);
  void load_line(Agent& a, const void* at, void* to);
  // Notes that the loaded lines have been used: they must not be overwritten until their writer
  // knows of it.
  void consume(Agent& a);
  // Atomically stores the result of `change`, if it returns one, and returns the value before.
  // `ordered`: acquires and releases.
  using Change = std::function<std::optional<uint64_t>(uint64_t before)>;
  uint64_t update(Agent& a, void* at, int bytes, bool ordered, const Change& change);
  void fence(Agent& a);
  // Like fence; all threads that execute it agree on an order.
  void fence_sc(Agent& a);

  // Checks an access to a block's memory for races only; the caller keeps the value.
  void check_race(Agent& a, Shadow& shadow, const void* key, bool store, Order order,
                  const char* what);

  // Returns a time that advances with each store that becomes visible.
  uint64_t now() const { return now_; }
  // Makes one waiting store visible; false if there is none.
  bool drain_one();
  void drain(Agent& a);
  // Returns true if a value that was seen is no longer the newest.
  bool outdated(const Watch& watch) const;
  void sleep(Watch& watch);
  std::vector<Watch*>& woken() { return woken_; }

 private:
  uint64_t offset_of(const void* at) const {
    return uint64_t(static_cast<const char*>(at) - base_);
  }
  Region* find(uint64_t offset) const;
  Region& region_of(const Agent& a, const void* at, int64_t bytes, bool store) const;
  Cell& cell(uint64_t index);
  void use_bytes(Agent& a, Region& r, const void* at, int bytes, bool store);
  void note_load(Agent& a, Shadow& shadow, const void* key);
  void check_cells(Agent& a, const void* at, int bytes, bool store, Order order);
  uint64_t earliest(const Agent& a, uint64_t index);
  uint64_t pick(const Agent& a, uint64_t first, int count);
  uint64_t value_of(Agent& a, uint64_t index, uint64_t time, Order order, const void* at);
  void settle(const Agent& a, uint64_t index);
  uint64_t newest(Agent& a, void* at, int bytes);
  void put_off(Agent& a, Pending p, uint64_t offset, const void* from, int bytes, int atom);
  void wait_to_commit(Agent& a, Pending p);
  void commit(Agent& a, size_t i);
  size_t commit_older(Agent& a, size_t i);
  Pending take(Agent& a, size_t i);
  void apply(const Pending& p);
  void put(uint64_t index, uint64_t value, uint64_t mask, Epoch by, const Message& message);
  void drain_known(const Agent& a);

  MemorySettings settings_;
  ClockPool clocks_;
  Random random_;
  char* base_ = nullptr;
  std::vector<std::unique_ptr<Region>> regions_;
  std::vector<uint16_t> region_of_page_;                            // index + 1; 0: none
  std::vector<std::unique_ptr<std::array<Cell, 512>>> cell_pages_;  // kept from run to run
  std::vector<uint64_t> touched_;                                   // cells to be reset
  std::vector<Agent*> buffering_;
  std::unordered_map<const void*, std::vector<Epoch>> readers_;  // where there are several
  std::vector<Watch*> woken_;
  uint64_t now_ = 0, stores_ = 0;
  uint32_t lines_ = 0;
  Message sc_;
  Agent host_;
};

}  // namespace simt
