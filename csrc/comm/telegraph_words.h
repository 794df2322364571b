// What ranks write into the store for each other, and what they make of what they find there, which
// may be from anybody: read with care, cut to a length, and fit for a message.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "comm/control.h"

namespace ringkern {

// Where a rank waits: in which of its calls, and in what.
struct Whereabouts {
  uint64_t seq = 0;
  std::string phase;
};
// What a rank says to a roll call, which are counted from 1.
struct Answer {
  int64_t roll = 0;
  Whereabouts where;
};

std::string to_word(const Failure& failure);
std::string to_word(const Answer& answer);
// Of a group of so many ranks; a failure of its own where it cannot be read.
Failure to_failure(const std::string& word, int ranks);
std::optional<Answer> to_answer(const std::string& word);

}  // namespace ringkern
