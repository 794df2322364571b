// Every sentence about a failure, once and in full; and what may come from another process.
#include "fault/render.h"

#include "check.h"
#include "comm/ports.h"

using namespace ringkern;

namespace {

CallSeen call(uint64_t seq, Collective collective, int64_t count, int root = 0, bool ended = false) {
  CallSeen seen;
  seen.seq = seq;
  seen.words = words_of(collective, {}, Algorithm::ring, Protocol::simple, root, count);
  seen.age_ns = 5'100'000'000;
  seen.ended = ended;
  seen.is_there = 1;
  return seen;
}

// A fault of which everything is known: rank 1 finds what rank 3 has done.
Fault whole(Event event) {
  Fault f = fault_of(event, 1, 3, 17);
  f.mine.on_page = f.theirs.on_page = 1;
  f.mine.pid = 101;
  f.theirs.pid = 103;
  f.theirs.state = 'T';
  f.theirs.calls = 16;
  f.theirs.end = {ProcessEnd::status, 9, kGone};
  f.mine.call = call(17, Collective::all_reduce, 1024);
  f.theirs.call = call(17, Collective::broadcast, 1024, 2);
  f.mine.last[0] = call(17, Collective::all_reduce, 1024);
  f.theirs.last[0] = call(15, Collective::all_reduce, 8, 0, true);
  f.theirs.last[1] = call(16, Collective::all_gather, 8, 0, true);
  f.waits = 1;
  f.wait = {Verdict::timed_out, WaitFor::data, Protocol::simple, 0, 3, 7, 6};
  f.timeout_ns = 30'000'000'000;
  f.ranks = 4;
  f.stands[0] = {1, 0, call(17, Collective::all_reduce, 1024)};
  f.stands[1] = {3, 0, call(16, Collective::all_gather, 8, 0, true)};
  f.stands[2] = {5, 1, call(12, Collective::all_gather, 8, 0, true)};
  f.stands[3] = {7, 0, {}};
  f.message = {1, 0, 0, 0, 0, 3, 5, 40, 48, 1, 2, {3, 5, -1, -1}, {6, kCollectiveTag}};
  f.group = "default_pg";
  f.hosts = "host b (ranks 2, 3)";
  f.evidence = "enough";
  return f;
}

struct Golden {
  Event event;
  const char* text;
};
#define RK_GOLDEN(event, text) {Event::event, text}
const Golden kGolden[] = {
#include "golden.inc"
};

TEST_CASE("every sentence reads as it should") {
  for (int event = 1; event < kEvents; ++event) {
    Fault f = whole(Event(event));
    std::printf("%s|%s\n", name_of(Event(event)), text_of(f).c_str());
  }
}

}  // namespace
