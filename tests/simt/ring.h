// One simulated life of a ring: its ranks, their launches, their faults, and the checks at its end.
// A seed decides everything that is not requested.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>

#include "cuda/launch.h"
#include "machine.h"

namespace simt {

using namespace ringkern;
using namespace ringkern::cuda;

#define SIMT_TROUBLES(X)                                                                \
  X(none)                                                                               \
  X(killed)    /* a rank stops somewhere; the others have a deadline */                 \
  X(aborted)   /* the host tells one to give up, another may stop; none has a deadline */ \
  X(corrupted) /* garbage in what a rank reads of its neighbours; all have a deadline */
enum class Trouble : uint8_t { SIMT_TROUBLES(RK_ENUMERATOR) };
#define SIMT_CASE(e) case Trouble::e: return #e;
constexpr const char* name_of(Trouble t) {
  switch (t) { SIMT_TROUBLES(SIMT_CASE) }
  return "?";
}
#undef SIMT_CASE

inline constexpr float kEps = 1e-5f;                 // of norms
inline constexpr uint64_t kTimeout = 1'000'000'000;  // nanoseconds; mostly

// The requested values; the seed chooses the others.
struct Wish {
  std::optional<Protocol> protocol;
  bool mixed = false;          // each call has a protocol of its own
  std::optional<bool> direct;  // whether there are direct all-reduces, perhaps among other calls
  std::optional<bool> across;  // whether all of these go over the tensors themselves, or none
  bool chains = false;         // of which a rank can end the next one before others
  std::optional<bool> clock;   // whether a call that can keep one does
  std::optional<bool> norm;    // whether a direct all-reduce that can ends with one
  std::optional<Trouble> trouble;
  std::optional<DType> dtype;
  std::optional<Op> op;
  std::optional<uint64_t> most_steps;
  std::optional<int64_t> most_bytes;  // of a tensor, if that is more than the seed's
  std::optional<bool> late;           // whether the poster of a block is: Settings
  std::optional<bool> hosts;          // whether some pairs of ranks use second segments
  std::optional<int> ranks, channels, slots, orders, atom, line_atom;
  bool shipped = false;  // slots and threads as they ship, and of the channels a few
  // Returns the input of each rank; the only call is then an all-reduce of that.
  std::function<std::vector<std::byte>(int rank)> operands;
  bool wide = false;         // the field of Reduction for that call
  std::optional<bool> tree;  // whether direct all-reduces of which that is possible add by a tree
  bool find_races = true;
  bool verbose = false;
};

// The number of times that each thing that should be tried was tried.
using Coverage = std::map<std::string, uint64_t>;

struct Call {
  Plan plan;
  std::optional<DirectPlan> direct;  // in place of the plan, which has the same count and channels
  Reduction reduction;
  bool across = false;   // over the tensors themselves, in place of lines; `direct` is there, too
  bool told = false;     // each rank's launch knows its own tensor alone
  bool chained = false;  // its inputs are the outputs of the call before
  bool in_place = false;
  bool nulls = false;  // in place of what a rank does not read or write
  uint64_t seq = 0;    // 0: like in a graph, which is not counted
  // For each rank: its values, and their place. A rank without an output has a place that must not
  // change.
  std::vector<std::vector<std::byte>> input, expected;
  std::vector<std::byte*> in, out;
  std::vector<uint64_t> places;    // of each rank's tensor, as it reports them
  std::optional<RowPlan> by_rows;  // and then a norm; `direct` is a part of it
  std::vector<std::byte*> residual, weight, normalised;
  std::vector<std::vector<std::byte>> norms;  // that are expected
  std::vector<std::byte*> rows;  // of each rank's timeline; none: its kernel has no clock
  int64_t room = 0;              // of a channel's rows
};

class Ring {
 public:
  Ring(uint64_t seed, const Wish& wish, Coverage& coverage);
  // Throws Failure if anything is wrong.
  void run();

 private:
  void cover(const char* what, const std::string& value);
  void cover(const char* what, int64_t value);
  void choose_sizes();
  void choose_shipped_sizes();
  void choose_start();
  void choose_late(uint64_t seed);
  void choose_machine(uint64_t seed);
  void make_segments();
  void choose_mesh(uint64_t seed);
  void choose_hosts(uint64_t seed);
  void choose_orders(uint64_t seed);
  DType draw_dtype();
  void add_call();
  void choose_direct(Call& call, int element);
  bool take_outputs(Call& call, int element) const;
  void choose_clock(Call& call);
  void choose_norm(Call& call);
  template <class T>
  void add_norm(Call& call);
  int64_t choose_count(int64_t chunk, int64_t chunks, int64_t loop, int element, int parts);
  template <class T>
  std::vector<T> numbers(int64_t count, std::mt19937_64& random) const;
  template <class T>
  void fill(Call& call);
  AcrossPlan across_plan(const Call& call, int rank) const;
  void show_regions(Call& call);
  template <class Args>
  Args arguments(const Call& call, const std::vector<int>& ranks) const;
  void start_next(int seat);
  void plan_trouble();
  uint64_t make_trouble();
  void check_sleeper(int rank) const;
  void abort_next();
  void poison_others(int rank);
  void corrupt();
  void look_at_report();
  void check_report(int rank, const WaitReport& report) const;
  void check_peer(int rank, const WaitReport& report) const;
  void check_seen(int rank, const WaitReport& report) const;
  void check_round(int rank, const WaitReport& report) const;
  void end_call(size_t call, int rank);
  void look_at_progress(int rank);
  void check_results();
  void check_output(size_t call, int rank) const;
  void check_input(size_t call, int rank) const;
  void compare(size_t call, int rank, const char* what, const std::byte* at,
               const std::vector<std::byte>& expected) const;
  void check_counters();
  uint64_t meetings_of(const Call& call) const;
  void check_mesh_counters();
  void check_timeline(const Call& call, size_t number);
  void check_survivors();
  void check_word(int rank) const;
  void check_hearsay() const;
  WaitReport report_of(int rank);
  bool gave_up(int rank) const;
  bool stopped(int rank) const;
  std::string place_of(const void* at) const;
  // The neighbours of a rank on a channel's ring.
  int next_of(int channel, int rank) const { return orders_.next(channel, rank, ranks_); }
  int prev_of(int channel, int rank) const { return orders_.prev(channel, rank, ranks_); }
  std::string place_in_mesh(int rank, int64_t offset) const;
  bool is_direct(size_t call) const { return call < calls_.size() && calls_[call].direct; }
  void print() const;

  Memory& memory() const { return machine().memory(); }
  // Returns the segment of a rank to which another one writes. A rank's own words are in the first
  // segment.
  std::byte* segment(int rank, int writer) const {
    return (on_host_[size_t(rank)] >> writer & 1 ? hosts_ : segments_)[size_t(rank)];
  }
  // Returns the counters of the link from the rank before. The head, which belongs to the link to
  // the next rank, is elsewhere.
  LinkCounters* counters(int rank, int channel, Protocol p) const {
    return reinterpret_cast<LinkCounters*>(segment(rank, prev_of(channel, rank)) +
                                           geometry_.counters_offset(channel, p));
  }
  uint64_t* head(int rank, int channel, Protocol p) const {
    std::byte* const at = segment(rank, next_of(channel, rank));
    return &reinterpret_cast<LinkCounters*>(at + geometry_.counters_offset(channel, p))->head.value;
  }
  std::byte* mesh(int rank, int channel, int writer) const {
    return segment(rank, writer) + geometry_.bytes() + channel * mesh_.channel_bytes();
  }
  MeshCounters* mesh_counters(int rank, int channel, int writer) const {
    return reinterpret_cast<MeshCounters*>(mesh(rank, channel, writer));
  }
  // Returns the counter in which `peer` counts for `rank`.
  uint64_t* peer_counter(int rank, int channel, int peer, MeshCount of = MeshCount::rounds) const {
    const int index = MeshGeometry::index(peer, rank);
    return reinterpret_cast<uint64_t*>(mesh(rank, channel, peer) + mesh_.peer_offset(of, index));
  }
  template <class T>
  T read(const T* at) const {
    T v;
    machine().memory().read(at, &v, sizeof v);
    return v;
  }

  Random random_;
  Random kinds_;
  std::mt19937_64 norms_;
  Coverage& coverage_;
  Wish wish_;  // nothing left out
  int ranks_ = 2;
  int channels_ = 1, threads_ = 32;  // of a launch, and of a block: at most
  bool together_ = false;            // all ranks in one launch, like in one process
  bool mixed_in_ = false;            // other calls among the direct ones
  bool across_ = false;              // of these, some over the tensors themselves
  bool many_ = false;                // calls
  RingOrders orders_;
  Geometry geometry_;
  MeshGeometry mesh_;
  int64_t most_bytes_ = 0;   // of a tensor
  uint64_t first_step_ = 0;  // where the counters start
  uint64_t timeout_ns_ = 0;
  Settings settings_;
  std::vector<std::byte*> segments_, hosts_, mailboxes_, failed_, ended_, tables_, regions_;
  std::vector<uint32_t> on_host_;  // of each rank, a bit for each that writes to its second segment
  std::vector<Call> calls_;
  std::vector<size_t> next_call_;  // of each seat: a rank, or all of them
  std::vector<size_t> completed_;  // calls, of each rank
  std::vector<uint64_t> posted_;   // the numbers of the last ones that had one ...
  std::vector<uint64_t> seen_;     // ... and those of which the host knows
  std::deque<Launch> launches_;
  std::deque<LaunchArgs> arguments_;
  std::deque<DirectArgs> direct_arguments_;
  std::deque<AcrossArgs> across_arguments_;
  std::deque<NormArgs> norm_arguments_;
  std::deque<TimedArgs> timed_arguments_;
  int victim_ = -1, other_ = -1;  // whom the trouble meets
  int third_ = -1;  // stops with the other, so that the victim's word does not go round the ring
  int events_ = 0;
  std::set<int> told_;     // ranks that the host has aborted
  bool all_told_ = false;  // and one of them had ended its last call: the host has told the others
};

}  // namespace simt
