// Makes the sentences of fault/events.h, which users read.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "fault/fault.h"

namespace ringkern {

std::string text_of(const Fault& fault);

// The fields of a fault by name, those of `ringkern.errors.Fault`; monostate if unknown.
struct FaultField {
  const char* name;
  std::variant<std::monostate, std::string, int64_t, double> value;
};
std::vector<FaultField> fields_of(const Fault& fault);

// Returns "seq=17 all_reduce sum float32[100]", without the number if it is 0. Roots are in the
// group's numbers.
std::string text_of(uint64_t seq, const CallWords& words);
// The names of a call's fields. A value from another process that is out of range is "?".
struct CallNames {
  const char *collective, *op, *dtype, *accumulate, *algorithm, *protocol;
};
CallNames names_of(uint64_t what);
// Returns the number of elements of the user's dtype.
int64_t elements_of(const CallWords& words);

// Returns "40 bytes of float32". `moved`: an index of kMoved, which may be out of range.
inline std::string moved_text(int moved, int64_t bytes) {
  const bool known = moved >= 0 && moved < kMovedDTypes;
  return std::to_string(bytes) + " bytes" +
         (moved == 0 ? "" : std::string(" of ") + (known ? kMoved[moved].name : "?"));
}

// The first field in which two calls differ, and the value that each has.
struct Difference {
  std::string field, a, b;
};
Difference difference(const CallWords& a, const CallWords& b);

// Returns "stopped by a signal (state T)".
std::string text_of_state(char state);
// Returns "killed by signal 9 (Killed)".
std::string text_of(const ProcessEnd& end);
// Describes a wait: "waited for data from rank 1 (wants step 3, has seen 2)".
std::string text_of_wait(const Fault& fault);
// Returns "2.3 s".
std::string seconds_text(int64_t ns);

}  // namespace ringkern
