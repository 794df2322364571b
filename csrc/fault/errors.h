// The errors that Python turns into exceptions of its own (`ringkern.errors`).
#pragma once

#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "fault/fault.h"

namespace ringkern {

// The known subject of an error.
struct Facts {
  int rank = -1;                         // the rank at fault, or the awaited rank; -1: none
  uint64_t seq = 0;                      // of the call, counted from 1; 0: none
  std::string phase{};                   // this rank's progress in the call
  std::shared_ptr<const Fault> fault{};  // null if the group goes on
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

// Returns the facts of a fault; `phase`: that of the rank that raises it.
Facts facts_of(const Fault& fault, const std::string& phase = {});
// Throws the error of the fault's cause. `here`: a sentence about this rank to append.
[[noreturn]] void throw_fault(const Fault& fault, const std::string& phase = {},
                              const std::string& here = {});
// Throws the error of a failed wait of this rank; the phase describes the wait.
[[noreturn]] void throw_wait(const Fault& wait);
// Returns the error of throw_fault() without throwing it.
std::exception_ptr error_of(const Fault& fault);
// Returns the error of a rank that `why` stopped; `here` describes its situation. The error is
// PeerLostError for a loss, otherwise AbortedError, and has the facts of `why`.
std::exception_ptr error_quoting(const Fault& here, const Fault& why);
// Returns true for an event that quotes an exception of this rank, of which only the text is known.
bool is_quoted(Event event);
// Returns the fault that a rank posts for its own exception: the exception's fault, or its text.
Fault fault_of(const std::exception_ptr& error, int reporter);
// Throws AbortedError, which quotes the fault behind `prefix`.
[[noreturn]] void throw_unusable(const std::string& prefix, const Fault& fault);

}  // namespace ringkern
