// The control page, csrc/comm/control.*: the first rank to fail gives the reason that all ranks
// quote, and a call is read consistently or not at all.
#pragma once

#include "faults/model/relacy.h"

// One line, which every call overwrites.
#define kCallLines kCallLinesOfTheLibrary
#include "core/call.h"
#undef kCallLines
namespace ringkern {
inline constexpr int kCallLines = 1;
}

#include "comm/control.cpp"

namespace model {

using namespace ringkern;

// Pages of `ranks`, mapped by all.
template <int ranks>
struct Pages {
  std::optional<Control> of[ranks];

  Pages() {
    ModelPages::used = 0;
    std::memset(ModelPages::pages, 0, sizeof ModelPages::pages);
    words.begin("control");
    for (int r = 0; r < ranks; ++r) of[r].emplace(r, ranks);
    for (int r = 0; r < ranks; ++r)
      for (int peer = 0; peer < ranks; ++peer)
        if (peer != r) of[r]->map(peer, of[peer]->fd());
    words.begin("first_to_fail");
    (void)of[0]->failed();
    words.end();
  }
};

inline void know_calls(const Control& control, int rank) {
  auto* const lines = const_cast<CallLine*>(control.calls_of(rank));
  const auto know = [](auto& word) { (void)std::atomic_ref(word).load(std::memory_order_relaxed); };
  words.begin("seq");
  for (int i = 0; i < kCallLines; ++i) know(lines[i].seq);
  words.begin("fields");
  for (int i = 0; i < kCallLines; ++i) {
    know(lines[i].what), know(lines[i].count), know(lines[i].history);
    know(lines[i].started), know(lines[i].ended);
    know(lines[i].whole_what), know(lines[i].whole_count);
  }
  words.end();
}

// Model: ranks 0 and 1 fail at the same time; rank 2 observes.
struct FirstReason : rl::test_suite<FirstReason, 3> {
  std::optional<Pages<3>> pages;
  char reasons[3];  // stand for the text on each page
  int first;        // the first value seen; -1: none yet

  void before() {
    begin();
    pages.emplace();
    first = -1;
    for (const char& r : reasons) data.add(&r);
  }
  void after() {
    pages.reset();
    end();
  }
  void thread(unsigned index) {
    Control& mine = *pages->of[index];
    if (index < 2) {
      data.write(&reasons[index]);
      Fault fault = fault_of(Event::abort, int(index));
      fault.evidence = index == 0 ? "zero" : "one";
      mine.fail(fault);
    }
    const auto failure = mine.failure();
    check(index == 2 || failure.has_value(), "who has failed knows a reason");
    if (!failure) return;
    const int reporter = failure->reporter;
    check(reporter == 0 || reporter == 1, "the reason is of a rank that has failed");
    data.read(&reasons[reporter]);
    check(failure->evidence.text() == (reporter == 0 ? "zero" : "one"), "the text is that rank's");
    check(first == -1 || first == reporter, "all ranks have the same reason");
    first = reporter;
  }
};

// Rank 0 makes calls; rank 1 reads.
struct LastCalls : rl::test_suite<LastCalls, 2> {
  std::optional<Pages<2>> pages;

  static CallWords words_of(uint64_t seq) { return {seq * 11, int64_t(seq) * 7}; }
  static uint64_t history_to(uint64_t seq) {
    uint64_t history = 0;
    for (uint64_t i = 1; i <= seq; ++i) history = history_of(history, words_of(i));
    return history;
  }

  void before() {
    begin();
    pages.emplace();
    know_calls(*pages->of[0], 0);
  }
  void after() {
    pages.reset();
    end();
  }
  void thread(unsigned index) {
    if (index == 0) {
      for (uint64_t seq = 1; seq <= 3; ++seq) {
        check(pages->of[0]->begin(words_of(seq)) == seq, "calls are counted");
        pages->of[0]->end(int64_t(seq));
      }
      return;
    }
    for (uint64_t seq = 1; seq <= 3; ++seq)
      if (const auto call = pages->of[1]->call(0, seq))
        check(call->words == words_of(seq) && call->history == history_to(seq),
              "a call is read as it was written");
  }
};

}  // namespace model
