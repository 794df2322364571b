// Every sentence about a failure, once and in full; and faults from another process.
#include "fault/render.h"

#include "check.h"
#include "comm/interfaces.h"

using namespace ringkern;

namespace {

CallSeen call(uint64_t seq, Collective collective, int64_t count, int root = 0,
              bool ended = false) {
  CallSeen seen;
  seen.seq = seq;
  seen.words = words_of(collective, {}, Algorithm::ring, Protocol::simple, root, count);
  seen.age_ns = 5'100'000'000;
  seen.ended = ended;
  seen.is_there = 1;
  return seen;
}

// A fault with every fact known: rank 1 finds the error of rank 3.
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
  f.message = {1, 0, 0, 0, 3, 5, 40, 48, 1, 2, {3, 5, -1, -1}, {6, kCollectiveTag}};
  f.group = "default_pg";
  f.hosts = "host b (ranks 2, 3)";
  f.evidence = "enough";
  return f;
}

struct Golden {
  Event event;
  const char* text;
};
const Golden kGolden[] = {
    {Event::abort, "aborted by rank 3: enough"},
    {Event::exception, "rank 3 failed in seq=17 all_reduce sum float32[1024]: enough"},
    {Event::wait_timeout,
     "seq=17 all_reduce sum float32[1024] over simple: rank 1 waited for data from rank 3 (wants "
     "step 7, has seen 6) and nothing came for 30.0 s (timed out). Waiting for rank 3 (pid 103), "
     "which has not made this call; its last was seq=16 all_gather float32[8], which ended 5.1 s "
     "ago; its process is stopped by a signal (state T). Per rank: 1 in seq=17 for 5.1 s; 3 done "
     "with seq=16 5.1 s ago; 5 has left after seq=12; 7 has made no call. The communicator "
     "'default_pg' is unusable now, on all ranks: close it and make a new one."},
    {Event::late,
     "group 'default_pg': rank 1 has waited 5.1 s in seq=17 all_reduce sum float32[1024] for rank "
     "3 (pid 103), which has not made this call; its last was seq=16 all_gather float32[8], which "
     "ended 5.1 s ago; its process is stopped by a signal (state T). The call fails after 30.0 s "
     "without progress."},
    {Event::wait_aborted,
     "seq=17 all_reduce sum float32[1024] over simple: rank 1 waited for data from rank 3 (wants "
     "step 7, has seen 6) when the ring was aborted."},
    {Event::mismatch,
     "seq=17: ranks disagree on the collective: rank 1 has all_reduce (seq=17 all_reduce sum "
     "float32[1024]), rank 3 has broadcast (seq=17 broadcast float32[1024] root=2). Last calls of "
     "rank 1: seq=17 all_reduce sum float32[1024]; of rank 3: seq=15 all_reduce sum float32[8], "
     "seq=16 all_gather float32[8]. All ranks must make the same calls in the same order, with "
     "tensors of the same size. The communicator 'default_pg' is unusable now, on all ranks: "
     "close it and make a new one."},
    {Event::left,
     "rank 3 (pid 103) closed its communicator, or its program ended normally, after seq=16, and "
     "rank 1 made one more: seq=17 all_reduce sum float32[1024]. Last calls of rank 3: seq=15 "
     "all_reduce sum float32[8], seq=16 all_gather float32[8]. All ranks must make the same calls "
     "in the same order, with tensors of the same size. The communicator 'default_pg' is unusable "
     "now, on all ranks: close it and make a new one."},
    {Event::died_in_call,
     "rank 3 (pid 103) died (killed by signal 9 (Killed)) during seq=17 all_reduce sum "
     "float32[1024]; rank 1 had been in it for 5.1 s. Last calls of rank 3: seq=15 all_reduce sum "
     "float32[8], seq=16 all_gather float32[8]. The results of calls in progress are undefined. "
     "The communicator 'default_pg' is unusable now, on all ranks: close it and make a new one."},
    {Event::died_between_calls,
     "rank 3 (pid 103) died (killed by signal 9 (Killed)); rank 1 was in no call. Last calls of "
     "rank 3: seq=15 all_reduce sum float32[8], seq=16 all_gather float32[8]. The results of "
     "calls in progress are undefined. The communicator 'default_pg' is unusable now, on all "
     "ranks: close it and make a new one."},
    {Event::died_early,
     "rank 3 (pid 103) died before its first call (killed by signal 9 (Killed)). See the log of "
     "that rank"},
    {Event::left_early,
     "rank 3 (pid 103) closed its communicator, or its program ended normally, before its first "
     "call"},
    {Event::cannot_join, "rank 1 could not join the ring: enough"},
    {Event::lost_joining, "rank 1 could not join the ring: enough"},
    {Event::unreachable, "rank 1 cannot be reached by others any more: enough"},
    {Event::deaf, "rank 1 cannot accept connections: enough"},
    {Event::cannot_exchange, "rank 1 cannot exchange messages with rank 3: enough"},
    {Event::quoted_loss, "enough"},
    {Event::quoted_timeout, "enough"},
    {Event::quoted_mismatch, "enough"},
    {Event::quoted_abort, "enough"},
    {Event::quoted_failure, "enough"},
    {Event::here, "rank 1 was in seq=17 all_reduce sum float32[1024]"},
    {Event::idle, "rank 1 was in no call"},
    {Event::hosts_late,
     "rank 1, in seq=17 all_reduce sum float32[1024], has waited for other hosts for 30.0 s"},
    {Event::hosts_mismatch,
     "ranks of one group make different calls: rank 3 makes seq=17 broadcast float32[1024] "
     "root=2, and rank 1 makes seq=17 all_reduce sum float32[1024]. All ranks must make the same "
     "calls in the same order, with tensors of the same size."},
    {Event::host_silent,
     "rank 1, in seq=17 all_reduce sum float32[1024], lost the connection to host b (ranks 2, 3): "
     "no rank there answers. They have ended, or the network is cut. The engine says: enough"},
    {Event::host_unreachable,
     "rank 1, in seq=17 all_reduce sum float32[1024], lost the connection to host b (ranks 2, 3), "
     "though all its ranks answer through the store. The engine says: enough"},
    {Event::network_cut,
     "rank 1, in seq=17 all_reduce sum float32[1024], lost the connection to host b (ranks 2, 3), "
     "and the store through which the ranks met does not answer: its process has ended or is "
     "busy, or the network is cut. The engine says: enough"},
    {Event::host_absent,
     "rank 1, in seq=17 all_reduce sum float32[1024], waited for 30.0 s (timed out) for host b "
     "(ranks 2, 3): no rank there is in a call of this group, or the network is cut"},
    {Event::host_behind,
     "rank 1, in seq=17 all_reduce sum float32[1024], waited for 30.0 s (timed out) for host b "
     "(ranks 2, 3), which answers from an earlier call"},
    {Event::network_slow,
     "rank 1, in seq=17 all_reduce sum float32[1024], waited for 30.0 s (timed out) for other "
     "hosts, which all answer: the network is slow, or loses data of the engine"},
    {Event::no_engine, "rank 3 has no engine between the hosts: enough"},
    {Event::message_timeout,
     "rank 1 waited for a message from rank 3 (tag 5, 40 bytes) and nothing came for 30.0 s (timed "
     "out). Did rank 3 send it, with this tag? Messages that match no receive: from rank 3 "
     "(tag 6), from rank 5 (in a collective). The messages of this group are unusable now; make a "
     "new group."},
    {Event::peer_absent,
     "rank 1 waited for a message from rank 3 (tag 5, 40 bytes), and rank 3 did not come within "
     "30.0 s (timed out). Is it running, and has it made this group? The messages of this "
     "group are unusable now; make a new group."},
    {Event::peer_gone,
     "rank 1 waited for a message from rank 3 (tag 5, 40 bytes), and rank 3 has ended or left the "
     "group. Look for the first error in the logs of the ranks"},
    {Event::all_gone,
     "rank 1 waited for a message from rank 3 (tag 5, 40 bytes), and all others have ended or "
     "left the group"},
    {Event::message_mismatch,
     "rank 3 sent 48 bytes of float64 to rank 1 (tag 5), which expects 40 bytes of float32: "
     "sender and receiver of a message must agree on its size and dtype"},
    {Event::message_aborted,
     "rank 1 waited for a message from rank 3 (tag 5, 40 bytes) when the messages of its group "
     "were aborted, here or by another rank. They are unusable now; make a new group. The reason:"},
    {Event::messages_closed, "rank 1 closed its messages before they had finished"},
    {Event::link_damaged, "the memory that rank 1 shares with rank 3 is damaged"},
    {Event::header_damaged,
     "the header of a message from rank 3 to rank 1 is damaged (tag 5, 48 bytes of float64, "
     "protocol enough)"},
    {Event::no_room_aside,
     "rank 1 has no memory left to keep a message of 48 bytes of float64 from rank 3 (tag 5) "
     "until it is received. Receive messages in the order in which they are sent"},
    {Event::engine_late,
     "rank 1 waited for a message from rank 3 (tag 5, 40 bytes), and nothing came for 30.0 s "
     "(timed "
     "out). The messages of this group are unusable now; make a new group. The engine between "
     "the hosts says: enough"},
    {Event::engine_waits, "rank 1 waited for a message from rank 3 (tag 5, 40 bytes)"},
    {Event::engine_ended,
     "rank 1 waited for a message from rank 3 (tag 5, 40 bytes) when the messages of its group "
     "ended:"},
    {Event::engine_lost,
     "rank 1 waited for a message from rank 3 (tag 5, 40 bytes). The engine between the hosts "
     "says: enough"},
    {Event::engine_aborted,
     "rank 1 waited for a message from rank 3 (tag 5, 40 bytes). The engine between the hosts "
     "says: enough"},
    {Event::unsaid,
     "another rank failed, and ended or lost the store before it could report why. Look for the "
     "first error in the logs of the ranks."},
    {Event::unreadable,
     "another rank failed, and its report cannot be read: 'enough'. Install the same version of "
     "ringkern for all ranks."},
};

TEST_CASE("every sentence reads as it should") {
  CHECK_EQ(std::size(kGolden), size_t(kEvents - 1));
  for (const auto& [event, text] : kGolden) {
    const Fault f = whole(event);
    CHECK_EQ(text_of(f), std::string(text));
    CHECK_EQ(text_of(read_fault(to_bytes(f))), std::string(text));  // as another rank shows it
  }
}

TEST_CASE("a late message asks for the other rank's calls") {
  Fault f = whole(Event::message_timeout);
  f.message.sends = 1;
  CHECK_CONTAINS(text_of(f),
                 "rank 1 waited for room to send a message to rank 3 (tag 5, 40 bytes) and nothing "
                 "moved for 30.0 s (timed out). Did rank 3 receive it, with this tag and size?");
  f.message.tag = kCollectiveTag;
  CHECK_CONTAINS(text_of(f), "(timed out). Did rank 3 make the same call?");
  f.message.sends = 0;
  CHECK_CONTAINS(text_of(f), "(timed out). Did rank 3 make the same call?");
}

TEST_CASE("unknown facts are left out") {
  for (int event = 1; event < kEvents; ++event) {
    const std::string text = text_of(fault_of(Event(event), 1));
    CHECK(text.find_first_of("{}[]") == std::string::npos);
  }
  Fault f = whole(Event::wait_timeout);
  f.theirs.on_page = 0;
  f.ranks = 0;
  f.group = "";
  CHECK_EQ(text_of(f),
           std::string("seq=17 all_reduce sum float32[1024] over simple: rank 1 waited for data "
                       "from rank 3 (wants step 7, has seen 6) and nothing came for 30.0 s (timed "
                       "out)."));
  f.mine.call = {};
  f.waits = kWaitsOnDevice;
  CHECK_CONTAINS(text_of(f),
                 "seq=17 a collective over simple: rank 1 waited for data from rank 3 "
                 "on channel 0 (wants step 7");
  f.seq = 0;
  CHECK_CONTAINS(text_of(f), "an earlier collective over simple: ");
}

TEST_CASE("a mismatch names the lower rank first") {
  Fault f = whole(Event::mismatch);
  std::swap(f.mine, f.theirs);
  f.whole = 1;
  CHECK_CONTAINS(text_of(f), "ranks disagree on the collective of the whole call: rank 1 has all_");
  CHECK_CONTAINS(text_of(f), ", rank 3 has broadcast (seq=17 broadcast");
}

TEST_CASE("a device that does not know the call leaves its number to the ring") {
  Fault f = whole(Event::wait_timeout);
  f.seq = 0;
  CHECK_CONTAINS(text_of(f), "Waiting for rank 3 (pid 103), which has not made this call; its");
}

TEST_CASE("a long list of ranks is cut") {
  Fault f = whole(Event::wait_timeout);
  f.ranks = Fault::kRanks + 8;
  CHECK_CONTAINS(text_of(f), "; and 8 more. The communicator");
}

TEST_CASE("a message from a rank other than the blamed one names its peer") {
  Fault f = whole(Event::message_timeout);
  f.theirs.rank = 4;
  CHECK_CONTAINS(text_of(f), "rank 1 waited for a message from rank 3 (tag 5");
}

TEST_CASE("between hosts each rank is named with its host") {
  Fault f = whole(Event::hosts_mismatch);
  f.mine.host = "a";
  f.theirs.host = "b";
  CHECK_CONTAINS(text_of(f),
                 "rank 3 on host b makes seq=17 broadcast float32[1024] root=2, and "
                 "rank 1 on host a makes");
  f.event = Event::engine_lost;
  f.message.sends = 1;
  CHECK_EQ(text_of(f),
           std::string("rank 1 on host a waited to send a message to rank 3 on host b. The engine "
                       "between the hosts says: enough"));
}

TEST_CASE("a process may end in several ways") {
  CHECK_EQ(text_of(ProcessEnd{}), std::string("the cause is unknown"));
  CHECK_EQ(text_of(ProcessEnd{ProcessEnd::status, 3 << 8, 0}), std::string("exit code 3"));
  CHECK_EQ(text_of(ProcessEnd{ProcessEnd::status, 11, 0}),
           std::string("killed by signal 11 (Segmentation fault)"));
  CHECK_EQ(text_of(ProcessEnd{ProcessEnd::still_runs, 0, 'R'}),
           std::string("its process is running, and has closed its connections"));
}

TEST_CASE("the first field in which calls differ is named") {
  const auto words = [](Collective c, DType d, Combine o, int64_t n, int root = 0,
                        Algorithm a = Algorithm::ring, Protocol p = Protocol::simple) {
    Reduction r;
    r.dtype = d;
    r.combine = o;
    return words_of(c, r, a, p, root, n);
  };
  const CallWords usual = words(Collective::all_reduce, DType::f32, Combine::sum, 10);
  const auto field = [&](const CallWords& other) { return difference(usual, other).field; };
  CHECK_EQ(field(words(Collective::reduce, DType::f32, Combine::sum, 10)), "the collective");
  CHECK_EQ(field(words(Collective::all_reduce, DType::f16, Combine::max, 11)), "dtype");
  CHECK_EQ(field(words(Collective::all_reduce, DType::f32, Combine::max, 11)), "op");
  CHECK_EQ(field(words(Collective::all_reduce, DType::f32, Combine::sum, 11, 1)), "numel");
  CHECK_EQ(field(words(Collective::all_reduce, DType::f32, Combine::sum, 10, 1)),
           "the length of a row");
  const CallWords from_0 = words(Collective::broadcast, DType::f32, Combine::sum, 10);
  const CallWords from_1 = words(Collective::broadcast, DType::f32, Combine::sum, 10, 1);
  CHECK_EQ(difference(from_0, from_1).field, "the root");
  CHECK_EQ(field(words(Collective::all_reduce, DType::f32, Combine::sum, 10, 0, Algorithm::one_shot,
                       Protocol::ll)),
           "algorithm");
  CHECK_EQ(field(words(Collective::all_reduce, DType::f32, Combine::sum, 10, 0, Algorithm::ring,
                       Protocol::ll)),
           "protocol");
  CHECK_EQ(field(usual), "a call before their last 16");
}

TEST_CASE("roots are in the group's numbers") {
  const RankNames names{{4, 5, 11}};
  const CallWords broadcast = words_of(Collective::broadcast, {}, Algorithm::ring, {}, 2, 1);
  CHECK_EQ(text_of(1, names.words(broadcast)), "seq=1 broadcast float32[1] root=11");
  CallWords over_hosts = broadcast;
  over_hosts.what |= kSpansHosts;  // these have it already
  CHECK_EQ(text_of(1, names.words(over_hosts)), "seq=1 broadcast float32[1] root=2");
  CHECK_EQ(names.rank(11), 2);
  CHECK_EQ(names.rank(2), -1);
  CHECK_EQ(RankNames().rank(2), 2);
}

TEST_CASE("a wait is in the group's numbers, and so is the root of its call") {
  const RankNames names{{4, 5, 11}};
  const CallWords broadcast = words_of(Collective::broadcast, {}, Algorithm::ring, {}, 2, 1);
  const WaitReport report{Verdict::timed_out, WaitFor::data, Protocol::simple, 0, 1, 7, 6};
  const Fault f = failed_wait(report, 0, 1, 3, broadcast, 30'000'000'000, names);
  CHECK_EQ(text_of(f),
           std::string("seq=3 broadcast float32[1] root=11 over simple: rank 4 waited for data "
                       "from rank 5 (wants step 7, has seen 6) and nothing came for 30.0 s (timed "
                       "out)."));
  CHECK(f.event == Event::wait_timeout && f.rank == 5 && f.wait.peer == 5 && f.reporter == 4);
}

TEST_CASE("a wait is shown without a number if its call is known") {
  const CallWords broadcast = words_of(Collective::broadcast, {}, Algorithm::ring, {}, 2, 1);
  const WaitReport report{Verdict::timed_out, WaitFor::data, Protocol::simple, 0, 1, 7, 6};
  CHECK(failed_wait(report, 0, 1, 0, broadcast, 1, {}).mine.call.is_there);
  CHECK(failed_wait(report, 0, 1, 3, {}, 1, {}).mine.call.is_there);
  CHECK(!failed_wait(report, 0, 1, 0, {}, 1, {}).mine.call.is_there);
}

// ---- errors -------------------------------------------------------------------------------------

TEST_CASE("a fault without a sentence of its own keeps the class of its exception") {
  const Facts facts{3, 7, "waited"};
  const std::pair<std::exception_ptr, Event> all[] = {
      {std::make_exception_ptr(PeerLostError("enough", facts)), Event::quoted_loss},
      {std::make_exception_ptr(TimeoutError("enough", facts)), Event::quoted_timeout},
      {std::make_exception_ptr(MismatchError("enough", facts)), Event::quoted_mismatch},
      {std::make_exception_ptr(AbortedError("enough", facts)), Event::quoted_abort},
      {std::make_exception_ptr(RendezvousError("enough", facts)), Event::quoted_failure}};
  for (const auto& [error, event] : all) {
    const Fault f = fault_of(error, 5);
    CHECK(f.event == event && f.cause == cause_of(event) && is_quoted(f.event));
    CHECK(f.reporter == 5 && f.rank == 3 && f.seq == 7);
    CHECK_EQ(f.evidence.text(), "enough");
  }
  const Fault other = fault_of(std::make_exception_ptr(std::runtime_error("enough")), 5);
  CHECK(other.event == Event::quoted_failure && other.reporter == 5 && other.rank == -1);
  CHECK_EQ(other.evidence.text(), "enough");
  CHECK(!is_quoted(Event::cannot_exchange) && !is_quoted(Event::here));
}

// Returns the facts of the call's error, which has this class.
template <class E>
Facts thrown(const std::function<void()>& call) {
  try {
    call();
  } catch (const E& e) {
    return e.facts;
  }
  FAIL_CHECK("no error of this class");
  return {};
}

TEST_CASE("an error has the class and the facts of its fault") {
  const auto check = [](const Facts& facts, Event event, const std::string& phase) {
    CHECK(facts.rank == 3 && facts.seq == 17 && facts.phase == phase);
    REQUIRE(facts.fault != nullptr);
    CHECK(facts.fault->event == event);
  };
  const Fault late = whole(Event::wait_timeout), aborted = whole(Event::wait_aborted);
  const Fault died = whole(Event::died_in_call), failed = whole(Event::exception);
  const Fault odd = whole(Event::mismatch);
  check(thrown<TimeoutError>([&] { throw_fault(late, "waited"); }), late.event, "waited");
  check(thrown<MismatchError>([&] { throw_fault(odd, "waited"); }), odd.event, "waited");
  check(thrown<PeerLostError>([&] { throw_fault(died, "waited"); }), died.event, "waited");
  check(thrown<AbortedError>([&] { throw_fault(failed, "waited"); }), failed.event, "waited");
  check(thrown<TimeoutError>([&] { throw_wait(late); }), late.event, text_of_wait(late));
  check(thrown<AbortedError>([&] { throw_wait(aborted); }), aborted.event, text_of_wait(late));
  const Fault here = fault_of(Event::idle, 1);
  for (const Fault& why : {late, failed})
    check(thrown<AbortedError>([&] { std::rethrow_exception(error_quoting(here, why)); }),
          why.event, "");
  check(thrown<PeerLostError>([&] { std::rethrow_exception(error_quoting(here, died)); }),
        died.event, "");
  check(thrown<AbortedError>([&] { throw_unusable("group: ", late); }), late.event, "");
}

// ---- fields -------------------------------------------------------------------------------------

// Returns the value of a field as text; empty: none.
std::string field_of(const Fault& f, const std::string& name) {
  for (const FaultField& field : fields_of(f)) {
    if (field.name != name) continue;
    if (const auto* text = std::get_if<std::string>(&field.value)) return *text;
    if (const auto* number = std::get_if<int64_t>(&field.value)) return std::to_string(*number);
    if (const auto* number = std::get_if<double>(&field.value)) return std::to_string(*number);
    return "";
  }
  FAIL("there is no field " + name);
}

TEST_CASE("every field shows the value of the fault") {
  Fault f = whole(Event::mismatch);
  f.mine.host = "a";
  f.theirs.host = "b";
  const std::pair<const char*, const char*> all[] = {
      {"cause", "mismatch"},
      {"event", "mismatch"},
      {"group", "default_pg"},
      {"rank", "3"},
      {"host", "b"},
      {"pid", "103"},
      {"signal", "9"},
      {"exit_code", ""},
      {"reporter", "1"},
      {"seq", "17"},
      {"collective", "all_reduce"},
      {"call", "seq=17 all_reduce sum float32[1024]"},
      {"their_call", "seq=17 broadcast float32[1024] root=2"},
      {"field", "the collective"},
      {"value", "broadcast"},
      {"other_value", "all_reduce"},
      {"peer", "3"},
      {"waits_for", "data"},
      {"channel", "0"},
      {"wanted", "7"},
      {"seen", "6"},
      {"tag", "5"},
      {"waited_s", "5.100000"},
      {"timeout_s", "30.000000"},
      {"evidence", "enough"}};
  for (const auto& [name, value] : all) CHECK_EQ(field_of(f, name), std::string(value));
  f = Fault();
  for (const auto& [name, value] : all)
    if (std::string_view(name) != "cause" && std::string_view(name) != "event")
      CHECK_EQ(field_of(f, name), std::string());
  f = whole(Event::message_timeout);
  f.theirs.end = {ProcessEnd::status, 3 << 8, kGone};
  f.waits = 0;
  f.wait.peer = 8;
  f.message.tag = kCollectiveTag;
  CHECK_EQ(field_of(f, "signal"), "");
  CHECK_EQ(field_of(f, "exit_code"), "3");
  CHECK_EQ(field_of(f, "peer"), "3");
  CHECK_EQ(field_of(f, "waits_for"), "");
  CHECK_EQ(field_of(f, "tag"), "");
  f.waits = 1;
  f.wait.what = WaitFor::credit;
  CHECK_EQ(field_of(f, "peer"), "8");
  CHECK_EQ(field_of(f, "waits_for"), "credit");
}

// ---- from another process -----------------------------------------------------------------------

TEST_CASE("a fault from another process is clamped to valid ranges") {
  const std::string bytes = to_bytes(whole(Event::mismatch));
  for (const size_t cut : {size_t(0), size_t(1), size_t(70), bytes.size() - 8, bytes.size() - 1})
    CHECK(read_fault(bytes.substr(0, cut)).event == Event::unreadable);
  CHECK(read_fault(bytes + "x").event == Event::unreadable);
  Fault odd = whole(Event::abort);
  odd.event = Event(kEvents);
  CHECK(read_fault(to_bytes(odd)).event == Event::unsaid);
  odd.event = Event::none;  // like without a failure
  CHECK(read_fault(to_bytes(odd)).event == Event::unsaid);
  odd = whole(Event::abort);
  odd.cause = Cause::none;
  CHECK(read_fault(to_bytes(odd)).cause == Cause::aborted);
  odd.rank = odd.reporter = odd.mine.rank = odd.theirs.rank = odd.wait.peer = 1 << 24;
  odd.message.peer = odd.message.arrived_from[0] = odd.stands[0].rank = INT32_MIN;
  odd.ranks = INT32_MAX;
  odd.theirs.end = {ProcessEnd::Known(77), 9, 'R'};
  odd.wait.protocol = Protocol(77);
  std::memset(odd.evidence.bytes, 0x1b, sizeof odd.evidence.bytes);  // unterminated
  std::memset(odd.group.bytes, '\n', sizeof odd.group.bytes);
  std::memset(odd.hosts.bytes, 0xff, sizeof odd.hosts.bytes);
  std::memset(odd.theirs.host.bytes, 1, sizeof odd.theirs.host.bytes);
  const Fault f = read_fault(to_bytes(odd));
  for (const int rank : {f.rank, f.reporter, f.mine.rank, f.theirs.rank, f.wait.peer,
                         f.message.peer, f.message.arrived_from[0], f.stands[0].rank})
    CHECK_EQ(rank, -1);
  CHECK_EQ(f.ranks, kMaxRanks);
  CHECK(f.theirs.end.known == ProcessEnd::nothing);
  CHECK(f.wait.protocol == Protocol::simple);
  CHECK_EQ(f.evidence.text(), std::string(sizeof f.evidence.bytes - 1, '?'));
  CHECK_EQ(f.group.text(), std::string(sizeof f.group.bytes - 1, ' '));
  CHECK_EQ(f.hosts.text(), std::string(sizeof f.hosts.bytes - 1, '?'));
  CHECK_EQ(f.theirs.host.text(), std::string(sizeof f.theirs.host.bytes - 1, '?'));
}

// Any bytes give a sentence of printable characters.
TEST_CASE("any bytes give a sentence") {
  const Fault good = whole(Event::mismatch);
  uint64_t state = 1;
  int read = 0;
  for (int i = 0; i < 20'000; ++i) {
    Fault odd = good;
    auto* const bytes = reinterpret_cast<unsigned char*>(&odd);
    std::string sent;
    const bool inside = i % 2 == 0;  // a fault of noise, or noise
    for (int n = 0; n < 40; ++n) {
      state = state * 6364136223846793005 + 1442695040888963407;
      bytes[sizeof odd.size + (state >> 33) % (sizeof odd - sizeof odd.size)] = char(state >> 20);
    }
    sent = to_bytes(inside ? odd : good);
    if (!inside) sent[(state >> 33) % sent.size()] = char(state >> 20);
    const Fault f = read_fault(sent);
    read += f.event != Event::unreadable;
    const std::string text = text_of(f);
    CHECK(text.size() < 20'000);
    CHECK(std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~'; }));
    (void)fields_of(f);
  }
  CHECK(read > 15'000);
}

TEST_CASE("a fault with few facts takes little room") {
  CHECK(to_bytes(aborted_by(1, "enough")).size() < 300);
  const Fault f = whole(Event::wait_timeout);
  CHECK(to_bytes(read_fault(to_bytes(f))) == to_bytes(f));
}

}  // namespace
