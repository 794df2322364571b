// Mutants of the PTX that no seed can catch, each with the argument why, and mutants for which it
// is not known whether one can.
#pragma once

namespace ptx {

// The patterns below fit the code of this nvcc; another one computes addresses in another way.
inline constexpr char kCompiler[] = "13.0.88";

struct Equivalent {
  const char* mutants;  // a pattern of the shell's, for "kernel: kind: place #which"
  const char* argument;
};

// For several kernels.
inline constexpr char kName[] =
    "the number of a barrier is a name: where all threads of a block meet at one alone, and none "
    "can "
    "be at another, any will do";
inline constexpr char kLaterSync[] =
    "another __syncwarp or barrier follows before what the warp has seen is used, and orders more";
inline constexpr char kOwnLine[] =
    "a lane uses the lines of LL that it has polled itself; what tells others of it is behind a "
    "barrier";
inline constexpr char kHeadStart[] =
    "with what `head` is at the start a poll is saved; the padding behind it is 0, which promises "
    "nothing, and `head` is then loaded";
inline constexpr char kAnyOrders[] =
    "asks whether there are orders: what lies behind their number, a part of the first of them, is "
    "0 where there are none, and never where there are";
inline constexpr char kPublishers[] =
    "all other threads publish in place of one: behind the barrier and a fence of their own, and "
    "the "
    "same";
inline constexpr char kRewritten[] =
    "only steps that rewrite a slot store these lines: `tail` publishes them, and the reader, who "
    "acquires it, does not poll them before";
inline constexpr char kCutAlike[] = "all ranks cut a chunk in slices in another way, and all alike";
inline constexpr char kIsData[] =
    "a report says that data was waited for, as it does before: what is stored in the place of the "
    "channel is then stored over";
inline constexpr char kDivides[] =
    "a number whose lower half is masked out is not 1: a division is done in 64 bits, always";
inline constexpr char kOtherLanes[] =
    "other lanes poll in place of one, and the warp waits for them as well";
inline constexpr char kPolled[] =
    "a lane that has loaded no counter at the start polls; one that waits for nobody loads what "
    "it does not use";
inline constexpr char kNoneAhead[] =
    "no round is staged ahead of another: this is 0, and so is the upper half of the count";
inline constexpr char kOwnAddress[] =
    "of two addresses only one is used here, and what is whole by that one and any other may be "
    "accessed whole";
inline constexpr char kElements[] = "the bytes that are left are a multiple of 4, as elements are";
inline constexpr char kByElements[] = "8 or 16 bytes are moved one element after the other";
inline constexpr char kDividesAll[] =
    "a step is divided by the number of slots also where that is a power of two: the same slot";
inline constexpr char kOtherRounds[] =
    "lines are rewritten in the other rounds: in 8 - slots of 8, one after the other, so that each "
    "slot has its turn; there are 3 slots at most";
inline constexpr char kNoFlag[] =
    "lanes that hold no flag report in place of those that wait, and the same";
inline constexpr char kCancels[] =
    "in LL and LL128 both parts of a wait are added to one sum, in which this time cancels out";
inline constexpr char kFirstLook[] =
    "the first look of a wait for lines: where it does not see that they have come, the loop "
    "behind it "
    "does, and lines are loaded once more";
inline constexpr char kNoLoops[] = "asks whether there are loops: without, the last chunk is empty";
inline constexpr char kNoLine[] =
    "the flag of lines that are rewritten without data, in a round for which nobody waits there: "
    "one "
    "that no round has does as well";
inline constexpr char kNoStep[] =
    "lines that are rewritten bear a flag of no step then, and nobody takes them either";
inline constexpr char kLessCredit[] =
    "a lane that has not looked knows of less credit: its warp then waits for what is there";
inline constexpr char kDividesWide[] =
    "numbers here fit in 32 bits: a division of all 64 gives the same";
// For the probe.
inline constexpr char kNoAbort[] =
    "nobody tells a probe to end: these words stay 0, and so does what lies behind them";
inline constexpr char kOwnDeadline[] =
    "a warp that does not see that another of its block has given up has a deadline of its own";
inline constexpr char kNoReader[] = "the host does not read the report of a probe while it runs";
inline constexpr char kZero[] =
    "this is 0 in each probe's report, as before; what is stored in its place is 0, too, or is "
    "stored over";
inline constexpr char kSameReport[] = "all lanes wait for one word, and would report the same";
inline constexpr char kNoResult[] = "the result of this barrier is not used";
inline constexpr char kAnswer[] =
    "the answer says nothing of memory: who gets it ends, and who gives it has used no memory of "
    "another since";

inline constexpr Equivalent kEquivalent[] = {
    // The next barrier decides whether the name of one matters.
    {"simple: id 0 -> 1: barrier.cta.red.or.pred * selp.u32 1 0 r 0 #1", kName},
    {"any: id 0 -> 1: barrier.cta.red.or.pred * selp.u32 1 0 r 0 #1", kName},
    {"timed simple: id 0 -> 1: barrier.cta.red.or.pred * selp.u32 1 0 r 0 #1", kName},
    {"ll: id 0 -> 1: *", kName},
    {"ll128: id 0 -> 1: *", kName},
    {"timed ll: id 0 -> 1: *", kName},
    {"timed ll128: id 0 -> 1: *", kName},
    {"direct: id 0 -> 1: *", kName},
    {"norm: id 0 -> 1: *", kName},
    {"probe: id 0 -> 1: *", kName},
    {"simple: dropped: bar.warp.sync*", kLaterSync},
    {"any: dropped: bar.warp.sync*", kLaterSync},
    {"timed simple: dropped: bar.warp.sync*", kLaterSync},
    {"timed ll: dropped: bar.warp.sync*", kLaterSync},
    {"probe: dropped: bar.warp.sync*", kLaterSync},
    // Before lines are stored; and two of the wait with a clock, which is followed by one more.
    {"ll128: dropped: bar.warp.sync* #1", kLaterSync},
    {"timed ll128: dropped: bar.warp.sync* #[125]", kLaterSync},
    {"ll: dropped: bar.warp.sync* #2", kOwnLine},
    {"direct: dropped: bar.warp.sync* #[23]", kOwnLine},
    {"*: offset + 8: ld.acquire.sys.global.u64 (add.s64 add.s64 ld.param.u64 (r+312) mul.lo.s64 *",
     kHeadStart},
    {"direct: offset + 8: ld.acquire.sys.global.u64 (add.s64 add.s64 ld.param.u64 (r+24) *",
     kHeadStart},
    {"simple: offset + 8: ld.param.u32 (add.s64 param 12+76) #[456]", kAnyOrders},
    {"simple: offset + 8: ld.param.u64 (param+48) #1", kCutAlike},
    {"simple: offset + 8: ld.param.u64 (param+56) #1", kCutAlike},
    {"simple: constant + 1: setp.eq.s64 and.b64 add.s64 r -1 ld.param.s32 (r+228) 0 #1",
     kDividesAll},
    {"*: inverted: bra if or.pred setp.ne.s32 %tid.x add.s32 r -1 and.pred setp.lt.u16 *",
     kPublishers},
    {"*: inverted: bra if or.pred setp.ne.s32 %tid.x add.s32 r -1 and.pred setp.eq.s16 *",
     kPublishers},
    {"direct: inverted: bra if setp.ne.s32 %tid.x add.s32 %ntid.x -1 #[23]", kPublishers},
    {"ll128: inverted: bra if or.pred setp.ne.s32 selp.u32 1 0 r 0 setp.ne.s32 %tid.x add.s32 r -1 "
     "#1",
     kPublishers},
    {"simple: offset + 8: ld.param.u64 (param+64) #1", kNoLoops},
    {"*ll128: vector swapped: ld.volatile.global.v2.u64 (r) #1", kFirstLook},
    {"*ll128: offset + 16: ld.volatile.global.v2.u64 (r) #1", kFirstLook},
    {"*ll128: vector swapped: ld.volatile.global.v2.u64 (add.s64 r 512) #1", kFirstLook},
    // In lanes without a flag, unless the data of all of them is that flag.
    {"ll128: inverted: bra if setp.ne.s32 sub.s32 sub.s32 r r and.b32 r -8 7 #1", kFirstLook},
    {"direct: offset + 8: st.global.u32 (add.s64 ld.shared.u64 (add.s32 r 64) 132) #[23]", kIsData},
    {"ll: .relaxed -> weak: st.relaxed.sys.global.v2.u64 * #2", kRewritten},
    {"ll: .sys -> .*: st.relaxed.sys.global.v2.u64 * #2", kRewritten},
    {"timed ll: .relaxed -> weak: st.relaxed.sys.global.v2.u64 * #2", kRewritten},
    {"timed ll: .sys -> .*: st.relaxed.sys.global.v2.u64 * #2", kRewritten},
    {"*: constant + 1: setp.eq.s64 and.b64 or.b64 r r -4294967296 0 *", kDivides},
    {"ll: inverted: bra if or.pred not.pred or.pred r r setp.ge.u64 *", kOtherLanes},
    {"ll128: inverted: bra if or.pred setp.ne.s32 sub.s32 r r 1 setp.ge.u64 *", kOtherLanes},
    {"direct: offset + 8: ld.param.u32 (param+224) #2", kPolled},
    {"direct: offset + 8: ld.param.u32 (param+12) #[12]", kNoneAhead},
    {"norm: offset + 8: ld.param.u32 (param+3108) #1", kNoneAhead},
    {"direct: offset + 8: ld.shared.u64 (add.s32 shared 8) #1", kOwnAddress},
    {"direct: offset + 8: ld.shared.u64 (shared) #3", kOwnAddress},
    {"direct: constant + 1: setp.lt.s32 sub.s32 shl.b32 r 2 shl.b32 r 3 5 *", kElements},
    {"direct: constant + 1: setp.lt.s32 sub.s32 shl.b32 r 2 shl.b32 r 3 1 #[24]", kElements},
    {"norm: constant + 1: setp.lt.s32 sub.s32 shl.b32 r 2 shl.b32 r 3 1 #6", kElements},
    {"norm: constant + 1: setp.ne.s64 and.b64 or.b64 r r 7 0 #1", kByElements},
    {"norm: inverted: bra if setp.eq.s64 and.b64 or.b64 r r -4294967296 0 #[2-6]", kDividesWide},
    {"direct: constant + 1: setp.gt.s32 sub.s32 shl.b32 r 2 shl.b32 r 3 7 #[35]", kByElements},
    {"simple: constant + 1: setp.lt.s32 sub.s32 min.s32 r r r 5 *", kElements},
    {"simple: constant + 1: setp.gt.s32 sub.s32 min.s32 r r r 15 *", kByElements},
    {"*: inverted: bra if or.pred setp.ge.u32 and.b32 r 7 ld.param.s32 (r+232) setp.lt.s32 *",
     kOtherRounds},
    {"direct: inverted: bra if setp.lt.u64 r 16 #3", kNoStep},
    {"direct: constant + 1: setp.eq.s64 r 15 #3", kNoLine},
    {"*ll128: from another lane: shfl.sync.idx.b32 selp.b32 sub.s64 r r 0 setp.gt.u64 *",
     kLessCredit},
    {"ll128: inverted: bra if setp.ne.s16 r 0 #2", kNoFlag},
    {"timed ll: no time: mov.u64 %globaltimer #[48]", kCancels},
    {"timed ll128: no time: mov.u64 %globaltimer #[48]", kCancels},

    {"probe: .relaxed -> weak: ld.relaxed.sys.global.u32 (ld.shared.u64 (add.s32 shared 64)) *",
     kNoAbort},
    {"probe: .sys -> .*: ld.relaxed.sys.global.u32 (ld.shared.u64 (add.s32 shared 64)) *",
     kNoAbort},
    {"probe: offset + 8: ld.relaxed.sys.global.u32 (ld.shared.u64 (add.s32 shared 64)) *",
     kNoAbort},
    {"probe: offset + 8: ld.shared.u64 (add.s32 shared 64) #[13]", kNoAbort},
    {"probe: *: ld.relaxed.sys.global.u64 (ld.shared.u64 (add.s32 shared 32)) *", kNoAbort},
    {"probe: *: ld.relaxed.sys.global.u64 (ld.shared.u64 (add.s32 shared 40)) *", kNoAbort},
    {"probe: offset + 8: ld.relaxed.sys.global.u32 (ld.shared.u64 (add.s32 shared 72)) *",
     kOwnDeadline},
    {"probe: .release -> .relaxed: st.release.sys.global.u32 *", kNoReader},
    {"probe: .sys -> .*: st.release.sys.global.u32 *", kNoReader},
    {"probe: offset + 8: st.global.* (add.s64 ld.shared.u64 (add.s32 r 64) 13?) *", kZero},
    {"probe: offset + 8: st.global.u32 (add.s64 ld.shared.u64 (add.s32 r 64) 140) *", kZero},
    {"probe: offset + 8: st.global.u64 (add.s64 ld.shared.u64 (add.s32 r 64) 16?) *", kZero},
    {"probe: offset + 8: ld.shared.u64 (add.s32 shared 96) *", kZero},
    {"probe: inverted: bra if setp.ne.s32 %tid.x 0 #[35]", kPublishers},
    {"probe: inverted: bra if setp.ne.s32 and.b32 %tid.x 31 0 #[13]", kOtherLanes},
    {"probe: inverted: bra if setp.ne.s16 r 0 *", kSameReport},
    {"probe: constant + 1: setp.ne.u32 0 0 *", kNoResult},
    {"probe: dropped: barrier.cta.red.or.pred 0 %ntid.x setp.ne.u32 0 0 #3", kAnswer},
    {"probe: *: fence.acq_rel.sys #2", kAnswer},
    {"probe: .acquire -> .relaxed: ld.acquire.sys.global.u64 * shl.b64 *", kAnswer},
};

// Mutants that no seed has caught, although a fault is possible. They are only counted.
inline constexpr const char* kOpen[] = {
    // A deadline that passes at the first look of a wait: the clock may have gone on so far.
    "direct: constant + 1: setp.eq.s64 r 0 #10",
    // The barrier and the fence before the `tail` of a step that rewrites a slot. In the source
    // they are those before `head`, too, and a seed of tests/simt misses the fence before `tail`
    // (2040).
    "ll: dropped: barrier.cta.red.or.pred 0 %ntid.x setp.ne.u32 selp.u32 1 0 r 0 #2",
    "ll: *: fence.acq_rel.sys #1",
    // The lane of a warp of LL that looks at `tail`, in steps that rewrite a slot, in place of the
    // one that looks at the credit: `tail` could be ahead of it.
    "*ll: from another lane: shfl.sync.idx.b32 selp.b32 sub.s64 r r 0 setp.gt.u64 *",
    // Polls of the ring's words in a direct all-reduce, where only they tell: a neighbour has given
    // up in the call before, round the ring, and no rank in a direct one has.
    "direct: offset + 8: ld.relaxed.sys.global.u64 (ld.shared.u64 (add.s32 shared 32)) #[123]",
    "direct: offset + 8: ld.relaxed.sys.global.u64 (ld.shared.u64 (add.s32 shared 40)) "
    "#[123]",
    // A wait for a round to be finished by others, in a direct all-reduce, that ends because of a
    // rank that is no neighbour; or that fails first, on channel 1, where channel 0 has ended.
    "direct: offset + 8: ld.relaxed.sys.global.u64 (ld.shared.u64 (add.s32 shared 112)) #1",
    "direct: offset + 8: st.global.u32 (add.s64 ld.shared.u64 (add.s32 r 64) 140) #1",
};

}  // namespace ptx
