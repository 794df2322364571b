#include "fault/render.h"

#include <cstdio>
#include <iterator>
#include <string_view>
#include <utility>

namespace ringkern {
namespace {

const char* sentence_of(Event event) {
  switch (event) {
    case Event::none: return "";
#define RK_EVENT(name, cause, text) \
  case Event::name: return text;
      RK_EVENTS(RK_EVENT)
#undef RK_EVENT
  }
  return "";
}

std::string rank_of(const RankSeen& seen) {
  if (seen.rank < 0) return "";
  const std::string text = "rank " + std::to_string(seen.rank);
  return seen.host.empty() ? text : text + " on host " + seen.host.text();
}

std::string person(const RankSeen& seen) {
  return rank_of(seen) + (seen.pid > 0 ? " (pid " + std::to_string(seen.pid) + ")" : "");
}

std::string text_of(const CallSeen& call) {
  return call.is_there != 0 ? text_of(call.seq, call.words) : "";
}

std::string last_calls(const RankSeen& seen) {
  std::string text;
  for (const CallSeen& call : seen.last)
    if (call.is_there != 0) text += (text.empty() ? "" : ", ") + text_of(call);
  return text.empty() ? "none" : text;
}

const CallSeen* last_of(const RankSeen& seen) {
  const CallSeen* last = nullptr;
  for (const CallSeen& call : seen.last)
    if (call.is_there != 0) last = &call;
  return last;
}

// Returns what a late rank does: "has made this call, and has done seq=17 ...".
std::string whereabouts(const Fault& f) {
  if (f.theirs.on_page == 0) return "";
  const CallSeen* const last = last_of(f.theirs);
  if (last == nullptr) return "has made no call yet";
  const std::string age = seconds_text(last->age_ns);
  if (last->seq < (f.mine.call.seq != 0 ? f.mine.call.seq : f.seq))
    return "has not made this call; its last was " + text_of(*last) + ", " +
           (last->ended == 0 ? "in which it has been for " + age : "which ended " + age + " ago");
  return "has made this call, " + std::string(last->ended == 0 ? "and is in " : "and has done ") +
         text_of(*last);
}

std::string condition(const RankSeen& seen) {
  if (seen.pid > 0) return "its process is " + text_of_state(seen.state);
  // In another pid namespace only the ticks of its watch show whether it runs.
  return "its process, which cannot be seen from here, last showed that it runs " +
         seconds_text(seen.silent_ns) + " ago";
}

std::string standings(const Fault& f) {
  std::string text;
  for (int i = 0; i < std::min(f.ranks, Fault::kRanks); ++i) {
    const RankStands& one = f.stands[i];
    const CallSeen& last = one.last;
    const std::string seq = "seq=" + std::to_string(last.seq), age = seconds_text(last.age_ns);
    text += (text.empty() ? "" : "; ") + std::to_string(one.rank);
    if (one.left != 0) text += " has left after " + seq;
    else if (last.is_there == 0) text += " has made no call";
    else if (last.ended == 0) text += " in " + seq + " for " + age;
    else text += " done with " + seq + " " + age + " ago";
  }
  if (f.ranks > Fault::kRanks) text += "; and " + std::to_string(f.ranks - Fault::kRanks) + " more";
  return text;
}

// The two ranks of a mismatch, the lower one first, and the field in which their calls differ.
struct Pair {
  const RankSeen &first, &second;
  Difference difference;
};
Pair pair_of(const Fault& f) {
  const bool mine = f.mine.rank < f.theirs.rank;
  const RankSeen &a = mine ? f.mine : f.theirs, &b = mine ? f.theirs : f.mine;
  Difference d = difference(a.call.words, b.call.words);
  if (f.whole != 0) d.field += " of the whole call";
  return {a, b, std::move(d)};
}

std::string way_of(const CallWords& words) {
  const CallNames n = names_of(words.what);
  const bool ring = fields_of(words.what).algorithm == unsigned(Algorithm::ring);
  return (ring ? "" : n.algorithm + std::string(", ")) + n.protocol;
}

std::string tag_text(uint64_t tag) {
  return (tag & kCollectiveTag) != 0 ? "in a collective" : "tag " + std::to_string(tag);
}

std::string data_text(uint32_t kind, int32_t dtype, int64_t bytes) {
  const char* const name = kind < std::size(kMessageKinds) ? kMessageKinds[kind] : "?";
  return (*name != 0 ? std::string(name) + " of " : "") + moved_text(dtype, bytes);
}

std::string peer_of(const Fault& f) {
  if (f.message.peer < 0) return "any rank";
  return f.theirs.rank == f.message.peer ? rank_of(f.theirs) : rank_text(f.message.peer);
}

// Describes a wait: "waited for a message from rank 1 (tag 3, 40 bytes)". An engine
// between hosts shows neither tag nor size.
std::string message_of(const Fault& f) {
  const MessageSeen& m = f.message;
  const bool engine = !f.mine.host.empty();
  const char* const waits = m.sends == 0 ? "waited for a message from "
                            : engine     ? "waited to send a message to "
                                         : "waited for room to send a message to ";
  return waits + peer_of(f) +
         (engine ? "" : " (" + tag_text(m.tag) + ", " + std::to_string(m.bytes) + " bytes)");
}

std::string question(const Fault& f) {
  const char* const deed = (f.message.tag & kCollectiveTag) != 0 ? " make the same call?"
                           : f.message.sends != 0 ? " receive it, with this tag and size?"
                                                  : " send it, with this tag?";
  return "Did " + peer_of(f) + deed;
}

std::string arrived(const Fault& f) {
  std::string text;
  for (int i = 0; i < MessageSeen::kArrived && f.message.arrived_from[i] >= 0; ++i)
    text += (i == 0 ? "Messages that match no receive: from " : ", from ") +
            rank_text(f.message.arrived_from[i]) + " (" + tag_text(f.message.arrived_tag[i]) + ")";
  return text.empty() ? text : text + ".";
}

std::string call_over(const Fault& f) {
  if (f.mine.call.is_there != 0) return text_of(f.mine.call) + " over " + way_of(f.mine.call.words);
  const std::string over = std::string(" over ") + name_of(f.wait.protocol);
  return f.seq == 0 ? "an earlier collective" + over
                    : "seq=" + std::to_string(f.seq) + " a collective" + over;
}

// The {names} in the sentences, and the functions that fill them in.
using Filler = std::string (*)(const Fault&);
constexpr std::pair<std::string_view, Filler> kFillers[] = {
    {"group", [](const Fault& f) { return f.group.text(); }},
    {"rank", [](const Fault& f) { return rank_of(f.theirs); }},
    {"person", [](const Fault& f) { return person(f.theirs); }},
    {"reporter", [](const Fault& f) { return rank_of(f.mine); }},
    {"evidence", [](const Fault& f) { return f.evidence.text(); }},
    {"seq", [](const Fault& f) { return std::to_string(f.seq); }},
    {"call", [](const Fault& f) { return text_of(f.mine.call); }},
    {"their_call", [](const Fault& f) { return text_of(f.theirs.call); }},
    {"their_calls", [](const Fault& f) { return last_calls(f.theirs); }},
    {"call_over", call_over},
    {"message", message_of},
    {"peer", peer_of},
    {"moved", [](const Fault& f) { return std::string(f.message.sends != 0 ? "moved" : "came"); }},
    {"question", question},
    {"arrived", arrived},
    {"messages_unusable",
     [](const Fault&) {
       return std::string("The messages of this group are unusable now; make a new group");
     }},
    {"tag",
     [](const Fault& f) { return f.mine.host.empty() ? tag_text(f.message.tag) : std::string(); }},
    {"data",
     [](const Fault& f) { return data_text(f.message.kind, f.message.dtype, f.message.bytes); }},
    {"their_data",
     [](const Fault& f) {
       return data_text(f.message.their_kind, f.message.their_dtype, f.message.their_bytes);
     }},
    {"wait", [](const Fault& f) { return text_of_wait(f); }},
    {"waited", [](const Fault& f) { return seconds_text(f.mine.call.age_ns); }},
    {"timeout",
     [](const Fault& f) { return f.timeout_ns == 0 ? std::string() : seconds_text(f.timeout_ns); }},
    {"whereabouts", whereabouts},
    {"condition", [](const Fault& f) { return condition(f.theirs); }},
    {"standings", standings},
    {"how", [](const Fault& f) { return text_of(f.theirs.end); }},
    {"after",
     [](const Fault& f) {
       return f.theirs.calls == 0 ? "no call at all" : "seq=" + std::to_string(f.theirs.calls);
     }},
    {"first", [](const Fault& f) { return rank_of(pair_of(f).first); }},
    {"second", [](const Fault& f) { return rank_of(pair_of(f).second); }},
    {"first_call", [](const Fault& f) { return text_of(pair_of(f).first.call); }},
    {"second_call", [](const Fault& f) { return text_of(pair_of(f).second.call); }},
    {"first_calls", [](const Fault& f) { return last_calls(pair_of(f).first); }},
    {"second_calls", [](const Fault& f) { return last_calls(pair_of(f).second); }},
    {"field", [](const Fault& f) { return pair_of(f).difference.field; }},
    {"value", [](const Fault& f) { return pair_of(f).difference.a; }},
    {"other_value", [](const Fault& f) { return pair_of(f).difference.b; }},
    {"here", [](const Fault& f) { return rank_of(f.mine) + ", in " + text_of(f.mine.call) + ","; }},
    {"hosts", [](const Fault& f) { return f.hosts.empty() ? "another host" : f.hosts.text(); }},
    {"store",
     [](const Fault& f) {
       return std::string(
           f.store_is_silent != 0 ? "the store through which the ranks met does not answer" : "");
     }},
    {"unusable",
     [](const Fault& f) {
       return f.group.empty() ? std::string()
                              : "The communicator '" + f.group.text() +
                                    "' is unusable now, on all ranks: close it and make a new one.";
     }},
};

std::string filled(std::string_view name, const Fault& fault) {
  for (const auto& [known, filler] : kFillers)
    if (known == name) return filler(fault);
  return "{" + std::string(name) + "}";
}

}  // namespace

std::string text_of(const Fault& fault) {
  std::string text;
  size_t optional_from = 0;
  bool optional_is_empty = false;
  for (std::string_view rest = sentence_of(fault.event); !rest.empty();) {
    const char c = rest.front();
    rest.remove_prefix(1);
    if (c == '{') {
      const size_t end = rest.find('}');
      const std::string value = filled(rest.substr(0, end), fault);
      optional_is_empty |= value.empty();
      text += value;
      rest.remove_prefix(end + 1);
    } else if (c == '[') {
      optional_from = text.size();
      optional_is_empty = false;
    } else if (c == ']') {
      if (optional_is_empty) text.resize(optional_from);
    } else {
      text += c;
    }
  }
  while (text.ends_with(' ')) text.pop_back();
  return text;
}

std::vector<FaultField> fields_of(const Fault& f) {
  using Value = decltype(FaultField::value);
  const auto known = [](bool is, auto value) { return is ? Value(value) : Value(); };
  const auto text = [&](const std::string& it) { return known(!it.empty(), it); };
  const auto rank = [&](int it) { return known(it >= 0, int64_t(it)); };
  const auto seconds = [&](int64_t ns) { return known(ns > 0, double(ns) / 1e9); };
  const bool differs = f.event == Event::mismatch || f.event == Event::hosts_mismatch;
  const Difference d = differs ? difference(f.theirs.call.words, f.mine.call.words) : Difference();
  const bool message = f.message.is_there != 0, call = f.mine.call.is_there != 0;
  const bool ended = f.theirs.end.known == ProcessEnd::status;
  const int status = f.theirs.end.wait_status;
  return {
      {"cause", std::string(name_of(f.cause))},
      {"event", std::string(name_of(f.event))},
      {"text", text_of(f)},
      {"group", text(f.group.text())},
      {"rank", rank(f.rank)},
      {"host", text(f.theirs.host.text())},
      {"pid", known(f.theirs.pid > 0, f.theirs.pid)},
      {"signal", known(ended && (status & 0x7f) != 0, int64_t(status & 0x7f))},
      {"exit_code", known(ended && (status & 0x7f) == 0, int64_t((status >> 8) & 0xff))},
      {"reporter", rank(f.reporter)},
      {"seq", known(f.seq != 0, int64_t(f.seq))},
      {"collective", known(call, std::string(names_of(f.mine.call.words.what).collective))},
      {"call", text(text_of(f.mine.call))},
      {"their_call", text(text_of(f.theirs.call))},
      {"field", text(d.field)},
      {"value", text(d.a)},
      {"other_value", text(d.b)},
      {"peer", f.waits != 0 ? rank(f.wait.peer)
               : message    ? rank(f.message.peer)
                            : Value()},
      {"waits_for",
       known(f.waits != 0, std::string(f.wait.what == WaitFor::data ? "data" : "credit"))},
      {"channel", known(f.waits != 0, int64_t(f.wait.channel))},
      {"wanted", known(f.waits != 0, int64_t(f.wait.wanted))},
      {"seen", known(f.waits != 0, int64_t(f.wait.seen))},
      {"tag", known(message && (f.message.tag & kCollectiveTag) == 0, int64_t(f.message.tag))},
      {"waited_s", call ? seconds(f.mine.call.age_ns) : Value()},
      {"timeout_s", seconds(f.timeout_ns)},
      {"evidence", text(f.evidence.text())},
  };
}

CallNames names_of(uint64_t what) {
  const CallFields f = fields_of(what);
  CallNames names{"?", "?", "?", "?", "?", "?"};
  if (f.collective < kCollectives) names.collective = name_of(Collective(f.collective));
  if (f.algorithm < kAlgorithms) names.algorithm = name_of(Algorithm(f.algorithm));
  if (f.protocol < kProtocols) names.protocol = name_of(Protocol(f.protocol));
  if (f.dtype < kDTypes) names.dtype = name_of(DType(f.dtype));
  if (f.moved > 0) names.dtype = f.moved < kMovedDTypes ? kMoved[f.moved].name : "?";
  names.accumulate = f.wide ? name_of(DType::f32) : names.dtype;
  // The op is the one that combines and scales in this way.
  for (int op = 0; op < kOps; ++op)
    if (const Reduction r = Reduction::of(Op(op), DType::f32, 2);
        unsigned(r.combine) == f.combine && unsigned(r.scale) == f.scale)
      names.op = name_of(Op(op));
  return names;
}

int64_t elements_of(const CallWords& words) {
  const unsigned moved = fields_of(words.what).moved;
  return moved < kMovedDTypes ? words.count / kMoved[moved].bytes : words.count;
}

std::string text_of(uint64_t seq, const CallWords& words) {
  if (words.what == 0 && words.count == 0 && seq == 0) return "making the group";
  const CallNames n = names_of(words.what);
  const CallFields f = fields_of(words.what);
  const auto collective = Collective(f.collective);
  const bool reduces = collective == Collective::all_reduce || collective == Collective::reduce ||
                       collective == Collective::reduce_scatter;
  const bool in_order = f.spans_hosts != 0 && f.algorithm == unsigned(Algorithm::two_shot);
  return (seq > 0 ? "seq=" + std::to_string(seq) + " " : "") + n.collective + " " +
         (reduces ? n.op + std::string(" ") : "") + n.dtype + "[" +
         std::to_string(elements_of(words)) + "]" +
         (n.accumulate != n.dtype ? std::string(" in ") + n.accumulate : "") +
         (in_order ? " in the order of ranks" : "") + (f.tree != 0 ? " by a tree" : "") +
         (has_root(collective) ? " root=" + std::to_string(f.root) : "");
}

Difference difference(const CallWords& a, const CallWords& b) {
  const CallNames x = names_of(a.what), y = names_of(b.what);
  const auto differ = [](const char* p, const char* q) { return std::strcmp(p, q) != 0; };
  if (differ(x.collective, y.collective)) return {"the collective", x.collective, y.collective};
  if (differ(x.dtype, y.dtype)) return {"dtype", x.dtype, y.dtype};
  if (differ(x.op, y.op)) return {"op", x.op, y.op};
  const unsigned tree_a = fields_of(a.what).tree, tree_b = fields_of(b.what).tree;
  if (tree_a != tree_b) {
    const auto name = [](unsigned tree) { return tree != 0 ? "world_invariant" : "auto"; };
    return {"deterministic", name(tree_a), name(tree_b)};
  }
  if (differ(x.accumulate, y.accumulate)) return {"accumulate", x.accumulate, y.accumulate};
  if (a.count != b.count)
    return {"numel", std::to_string(elements_of(a)), std::to_string(elements_of(b))};
  const unsigned root_a = fields_of(a.what).root, root_b = fields_of(b.what).root;
  const bool rows = fields_of(a.what).collective == unsigned(Collective::all_reduce);
  if (root_a != root_b)
    return {rows ? "the length of a row" : "the root", std::to_string(root_a),
            std::to_string(root_b)};
  if (differ(x.algorithm, y.algorithm)) return {"algorithm", x.algorithm, y.algorithm};
  if (differ(x.protocol, y.protocol)) return {"protocol", x.protocol, y.protocol};
  return {"a call before their last " + std::to_string(kCallLines), "made one", "made another"};
}

std::string text_of_state(char state) {
  switch (state) {
    case kGone: return "gone";
    case kOtherNamespace: return "in another pid namespace";
    case 'R': return "running";
    case 'S': return "sleeping";
    case 'D': return "in an uninterruptible sleep (state D)";
    case 'T': return "stopped by a signal (state T)";
    case 't': return "stopped by a debugger (state t)";
    case 'Z': return "ended (state Z)";
    case kUnreadable: return "in a state that cannot be read";
    default: return "in state " + printable(std::string(1, state));
  }
}

std::string text_of(const ProcessEnd& end) {
  if (end.known == ProcessEnd::nothing) return "the cause is unknown";
  if (end.known == ProcessEnd::still_runs)
    return "its process is " + text_of_state(end.state) + ", and has closed its connections";
  if (const int signal = end.wait_status & 0x7f; signal != 0)
    return "killed by signal " + std::to_string(signal) + " (" + ::strsignal(signal) + ")";
  return "exit code " + std::to_string((end.wait_status >> 8) & 0xff);
}

std::string text_of_wait(const Fault& f) {
  if (f.waits == 0) return "";
  return std::string("waited for ") +
         (f.wait.what == WaitFor::data ? "data from " : "a free slot at ") + "rank " +
         std::to_string(f.wait.peer) +
         (f.waits == kWaitsOnDevice ? " on channel " + std::to_string(f.wait.channel) : "") +
         " (wants step " + std::to_string(f.wait.wanted) + ", has seen " +
         std::to_string(f.wait.seen) + ")";
}

std::string seconds_text(int64_t ns) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", double(ns) / 1e9);
  return text;
}

}  // namespace ringkern
