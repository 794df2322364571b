#include "fault/errors.h"

#include "fault/render.h"

namespace ringkern {
namespace {

Event quoted(const Error& e) {
  if (dynamic_cast<const PeerLostError*>(&e)) return Event::quoted_loss;
  if (dynamic_cast<const TimeoutError*>(&e)) return Event::quoted_timeout;
  if (dynamic_cast<const MismatchError*>(&e)) return Event::quoted_mismatch;
  if (dynamic_cast<const AbortedError*>(&e)) return Event::quoted_abort;
  return Event::quoted_failure;
}

}  // namespace

bool is_quoted(Event event) {
  return event >= Event::quoted_loss && event <= Event::quoted_failure;
}

Facts facts_of(const Fault& fault, const std::string& phase) {
  return {fault.rank, fault.seq, phase, std::make_shared<const Fault>(fault)};
}

void throw_fault(const Fault& fault, const std::string& phase, const std::string& here) {
  std::string text = text_of(fault);
  if (!here.empty()) text += (text.ends_with('.') ? " Here: " : ". Here: ") + here;
  const Facts about = facts_of(fault, phase);
  switch (fault.cause) {
    case Cause::timed_out: throw TimeoutError(text, about);
    case Cause::mismatch: throw MismatchError(text, about);
    case Cause::peer_lost: throw PeerLostError(text, about);
    case Cause::none:
    case Cause::aborted:
    case Cause::failed: break;
  }
  throw AbortedError(text, about);
}

void throw_wait(const Fault& wait) {
  const Facts about = facts_of(wait, text_of_wait(wait));
  if (wait.cause == Cause::timed_out) throw TimeoutError(text_of(wait), about);
  throw AbortedError(text_of(wait), about);
}

std::exception_ptr error_of(const Fault& fault) {
  try {
    throw_fault(fault);
  } catch (...) {
    return std::current_exception();
  }
}

std::exception_ptr error_quoting(const Fault& here, const Fault& why) {
  const std::string text = text_of(here) + " " + text_of(why);
  if (why.cause == Cause::peer_lost)
    return std::make_exception_ptr(PeerLostError(text, facts_of(why)));
  return std::make_exception_ptr(AbortedError(text, facts_of(why)));
}

Fault fault_of(const std::exception_ptr& error, int reporter) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    if (e.facts.fault) return *e.facts.fault;
    Fault f = fault_of(quoted(e), reporter, e.facts.rank, e.facts.seq);
    f.evidence = std::string(e.what());
    return f;
  } catch (const std::exception& e) {
    Fault f = fault_of(Event::quoted_failure, reporter);
    f.evidence = std::string(e.what());
    return f;
  } catch (...) {
    Fault f = fault_of(Event::quoted_failure, reporter);
    f.evidence = std::string("unknown error");
    return f;
  }
}

void throw_unusable(const std::string& prefix, const Fault& fault) {
  throw AbortedError(prefix + text_of(fault), facts_of(fault));
}

}  // namespace ringkern
