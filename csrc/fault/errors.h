// The errors that Python turns into exceptions of its own (`ringkern.errors`).
#pragma once

#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "fault/fault.h"

namespace ringkern {

// The subject of an error, as far as it is known.
struct Facts {
  int rank = -1;                         // whose fault it is, or who was waited for; -1: nobody's
  uint64_t seq = 0;                      // of the call, counted from 1; 0: none
  std::string phase{};                   // how far this rank had come in it
  std::shared_ptr<const Fault> fault{};  // null where the group goes on
  bool refused = false;                  // nothing was started: no other rank waits for this call
};

struct Error : std::runtime_error {
  explicit Error(const std::string& text, Facts about = {})
      : std::runtime_error(text), facts(std::move(about)) {}
  Facts facts;
};
struct UsageError : Error {  // use after close, in a forked child, ...
  using Error::Error;
};
struct TransportError : Error {  // a neighbour's memory cannot be reached
  using Error::Error;
};
struct SharedMemoryError : TransportError {
  using TransportError::TransportError;
};
struct RendezvousError : Error {  // a rank did not come, or is of another version
  using Error::Error;
};
struct TimeoutError : Error {
  using Error::Error;
};
struct AbortedError : Error {
  using Error::Error;
};
struct PeerLostError : Error {  // a rank has died, or left before its time
  using Error::Error;
};
struct MismatchError : Error {  // ranks make different calls where they should make the same
  using Error::Error;
};

// Facts of a fault; `phase`: of the rank that raises it.
Facts facts_of(const Fault& fault, const std::string& phase = {});
// Throws the error of the fault's cause. `here`: a sentence to append, of the rank that raises it.
[[noreturn]] void throw_fault(const Fault& fault, const std::string& phase = {},
                              const std::string& here = {});
// The same for a wait of this rank: its phase is the wait.
[[noreturn]] void throw_wait(const Fault& wait);
// The same as an exception to keep.
std::exception_ptr error_of(const Fault& fault);
// The error of a rank that `why` has stopped in what `here` describes: with the class and the facts
// of a loss, or else as AbortedError.
std::exception_ptr error_quoting(const Fault& here, const Fault& why);
// Returns true for an event that stands for an exception of this rank, of which only the text is
// known.
bool is_quoted(Event event);
// Returns what a rank posts for an exception of its own: the fault that it carries, or its text.
Fault fault_of(const std::exception_ptr& error, int reporter);
// Throws AbortedError, which quotes the fault behind `prefix`.
[[noreturn]] void throw_unusable(const std::string& prefix, const Fault& fault);

}  // namespace ringkern
