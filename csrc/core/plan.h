// Computes the sizes and offsets of a collective before it starts: FIFOs in a segment (Geometry)
// and chunks in a tensor (Plan). core/direct.h has those of an all-reduce without a ring. Pure
// functions for host and device, with 64-bit offsets.
#pragma once

#include "core/orders.h"
#include "core/wire.h"

namespace ringkern {

// The layout of a rank's segment: for each channel the counters, then one FIFO per protocol.
// Protocols never share a slot, because user data of one could be mistaken for a flag of another.
struct Geometry {
  int channels = 1;
  int slots = kDefaultSlots;
  int64_t slot_bytes[kProtocols] = {};  // on the wire; whole lines

  RK_HD constexpr int64_t fifo_bytes(Protocol p) const {
    return align_up(slots * slot_bytes[int(p)], kCacheLine);
  }
  RK_HD constexpr int64_t counters_bytes() const { return kProtocols * sizeof(LinkCounters); }
  RK_HD constexpr int64_t channel_bytes() const {
    int64_t bytes = counters_bytes();
    for (int p = 0; p < kProtocols; ++p) bytes += fifo_bytes(Protocol(p));
    return bytes;
  }
  RK_HD constexpr int64_t bytes() const { return channels * channel_bytes(); }

  RK_HD constexpr int64_t counters_offset(int channel, Protocol p) const {
    return channel * channel_bytes() + int(p) * int64_t(sizeof(LinkCounters));
  }
  RK_HD constexpr int64_t fifo_offset(int channel, Protocol p) const {
    int64_t offset = channel * channel_bytes() + counters_bytes();
    for (int q = 0; q < int(p); ++q) offset += fifo_bytes(Protocol(q));
    return offset;
  }
  // Returns the bytes of user data that a slot holds.
  RK_HD constexpr int64_t slot_data_bytes(Protocol p) const {
    return slot_bytes[int(p)] / line_bytes(p) * line_data_bytes(p);
  }
  // Simple cuts a chunk into slices, one slot each. With few slots it does not cut: a rank must be
  // able to send a whole chunk and one more slice before its own FIFO is drained.
  RK_HD constexpr int slices(Protocol p) const {
    return p == Protocol::simple && slots > kSlicesPerChunk ? kSlicesPerChunk : 1;
  }
  // At least two slots: with one, ranks that all hold a full slot would wait for each other for
  // ever.
  constexpr bool valid() const {
    bool ok = channels >= 1 && channels <= kMaxChannels && slots >= 2 && slots <= kMaxSlots;
    for (int p = 0; p < kProtocols; ++p)
      ok = ok && slot_data_bytes(Protocol(p)) >= 16 && slot_bytes[p] % 16 == 0 &&
           slot_bytes[p] % line_bytes(Protocol(p)) == 0;
    return ok;
  }
};

// One unit of a rank's work in a loop, in elements. `in` and `out` are offsets into the input and
// the output.
struct Chunk {
  int64_t in = 0, out = 0, count = 0;
};

// The position of a channel's chunks in one loop. If the tensor is cut into one chunk per rank, the
// chunks lie side by side, starting with that of position 0; otherwise there is one chunk.
struct LoopChunks {
  int64_t first = 0;  // element
  int most = 0;       // elements of each; the last ones may be shorter at the end of the tensor
};

// A part of a chunk that is published separately. `first` counts from the start of the chunk.
struct Slice {
  int64_t first = 0, count = 0;
};

static_assert(kSlicesPerChunk == 2, "slices() and slice_elements() count on it");

struct Plan {
  Collective collective = Collective::all_reduce;
  Protocol protocol = Protocol::simple;
  int ranks = 1;
  int root = 0;  // the rank that starts a broadcast or a message, or that ends a reduce
  int channels = 1;
  int64_t count = 0;        // elements; of one shard for reduce-scatter and all-gather
  int64_t chunk = 0;        // maximum elements of a chunk
  int64_t grain = 1;        // short chunks are a multiple of this
  int64_t slice_most = 0;   // maximum elements of a slice: the capacity of a slot
  int64_t slice_least = 1;  // chunks up to this length are not cut
  int64_t slice_grain = 1;  // 16 bytes, so that a slice is aligned as well as its chunk
  int64_t loops = 0;
  int64_t last_chunk = 0;  // chunk length in the last loop, which may be shorter
  int cuts = 1;            // slices of a whole chunk
  RingOrders orders;       // the same on all ranks; a message uses one for all its channels

  // `workers` is the number of threads that move a chunk; 1 on a CPU. `workers` and the geometry
  // must be equal on all ranks, otherwise ranks would cut differently.
  static constexpr Plan make(Collective collective, Protocol protocol, int ranks, int64_t count,
                             int element_bytes, int workers, const Geometry& g, int channels = 0,
                             int root = 0) {
    Plan p;
    p.collective = collective;
    p.protocol = protocol;
    p.ranks = ranks;
    p.root = root;
    p.channels = channels > 0 && channels < g.channels ? channels : g.channels;
    p.count = count;
    p.slice_most = g.slot_data_bytes(protocol) / element_bytes;
    // A second slice costs a wait and a fence, which take longer than a block needs for half a
    // slot.
    p.slice_least = max64(1, p.slice_most / (workers > 1 ? 2 : 8));
    p.slice_grain = max64(1, 16 / element_bytes);
    // Grain of short chunks. Simple: a word of 8 bytes per worker. LL: two lines. LL128: the lines
    // that one warp moves at once (8 lanes a line, 4 lines, twice). A slot may be smaller.
    const int64_t grain_bytes = protocol == Protocol::simple ? 8 * int64_t(workers)
                                : protocol == Protocol::ll   ? 2 * line_data_bytes(protocol)
                                : workers > 1                ? 16 * line_data_bytes(protocol)
                                                             : line_data_bytes(protocol);
    const int64_t fits = g.slices(protocol) * (p.slice_most / p.slice_grain * p.slice_grain);
    const int64_t most = min64(fits, INT32_MAX);  // LoopChunks::most is an int
    p.grain = max64(1, min64(grain_bytes / element_bytes, most));
    p.chunk = max64(1, most / p.grain * p.grain);
    p.cuts = int(div_up(p.chunk, p.slice_most));
    if (count > 0) {
      p.loops = div_up(count, p.loop_span());
      const int64_t left = count - (p.loops - 1) * p.loop_span();
      const int64_t share = div_up(left, int64_t(p.channels) * p.parts());
      p.last_chunk = min64(p.chunk, align_up(share, p.grain));
    }
    return p;
  }

  // Returns how many chunks of one loop lie side by side. An all-reduce cuts the tensor into one
  // chunk per rank. Other collectives cut each shard, or the data of the chain, separately.
  RK_HD constexpr int parts() const { return collective == Collective::all_reduce ? ranks : 1; }
  RK_HD constexpr int64_t loop_span() const { return channels * parts() * chunk; }

  // Returns the elements of a chunk in a loop. The rule is the same for the three protocols, which
  // differ in `chunk` and `grain`, and on all ranks. No code below divides: on a GPU, a 64-bit
  // division per step would take as long as a hop.
  RK_HD constexpr int64_t chunk_in_loop(int64_t loop) const {
    return loop + 1 < loops ? chunk : last_chunk;
  }

  RK_HD constexpr int next(int channel, int rank) const {
    return orders.next(channel, rank, ranks);
  }
  RK_HD constexpr int prev(int channel, int rank) const {
    return orders.prev(channel, rank, ranks);
  }
  // Positions count the ranks of the channel's ring in the direction of travel.
  RK_HD constexpr int position(int channel, int rank) const {
    return orders.position_of(channel, rank);
  }
  RK_HD constexpr int rank_at(int channel, int position) const {
    return orders.rank_at(channel, position);
  }

  RK_HD constexpr LoopChunks loop_chunks(int channel, int64_t loop) const {
    const int most = int(chunk_in_loop(loop));
    return {loop * loop_span() + int64_t(channel * parts()) * most, most};
  }

  // Returns the chunk that `owner`, a position on the channel's ring, finishes. The chunk may be
  // empty. An empty chunk still takes its step, otherwise the counters of the two ends of a link
  // would differ.
  RK_HD constexpr Chunk chunk_of(int channel, const LoopChunks& of, int owner) const {
    const auto chunk_at = [&](int64_t at) -> Chunk {
      return {at, at, max64(0, min64(of.most, count - at))};
    };
    if (collective == Collective::all_reduce) return chunk_at(of.first + int64_t(owner) * of.most);
    Chunk c = chunk_at(of.first);
    // Shards are in rank order, even if the ring has another order.
    if (collective == Collective::reduce_scatter) c.in += rank_at(channel, owner) * count;
    if (collective == Collective::all_gather) c.out += rank_at(channel, owner) * count;
    return c;
  }
  RK_HD constexpr Chunk chunk_of(int channel, int64_t loop, int owner) const {
    return chunk_of(channel, loop_chunks(channel, loop), owner);
  }

  // Returns the elements of each slice except the last. Both ends of a link compute it from the
  // same chunk, so they agree.
  RK_HD constexpr int64_t slice_elements(int64_t n) const {
    if (n <= slice_least) return slice_least;
    const int64_t share = cuts == 1 ? n : (n + 1) / 2;
    return min64(slice_most, (share + slice_grain - 1) & -slice_grain);
  }
  RK_HD constexpr int slices(int64_t n) const { return n > slice_elements(n) ? 2 : 1; }
  RK_HD constexpr Slice slice(int64_t n, int i) const {
    const int64_t each = slice_elements(n), first = i * each;
    return {first, max64(0, min64(each, n - first))};
  }
};

}  // namespace ringkern
