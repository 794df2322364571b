#include "hosts/torch_engine_work.h"

namespace ringkern::torch_ext {

EngineWork::EngineWork(Call call, std::vector<EngineMessage> messages,
                       std::shared_ptr<const Hosts> hosts, WaitLimit limit,
                       std::unique_ptr<StoreChannel::Listening> group, bool collective)
    : CallWork(std::move(call), 1), messages_(std::move(messages)), hosts_(std::move(hosts)),
      limit_(std::move(limit)), group_(std::move(group)), collective_(collective) {
  limit_.timeout = std::min(limit_.timeout, cpu::kLongestTimeout);  // longer ones overflow
}

void EngineWork::settle() {
  std::exception_ptr error;
  bool first = false;
  std::call_once(once_, [&] {
    const auto note = [&](std::exception_ptr failure) {
      if (failure && !error) error = failure;
    };
    moved_ = Clock::now();
    // Starts all transfers before it waits for the rest of one.
    for (EngineMessage& m : messages_) note(begin_rest(m));
    // Data may take long: they are late if nothing has ended for the whole timeout.
    for (EngineMessage& m : messages_)
      if (m.work) note(end_of(m, moved_));
    let_go();
    settled_ = true;
    group_.reset();  // a caller may keep this work
    first = true;
  });
  if (first) end_part(error);  // not inside: callbacks run there, and may wait for this work
}

void EngineWork::settle_aside() {
  if (aside_.exchange(true)) return;
  std::thread([self = c10::intrusive_ptr<EngineWork>::reclaim_copy(this)] {
    self->settle();
  }).detach();
}

void EngineWork::abort(bool goes_on) {
  std::lock_guard lock(aborting_);
  aborted_ = true;
  goes_on_ = goes_on;
  if (!goes_on) left_.clear();
  for (const EngineMessage& m : messages_)
    if (m.work) m.work->abort();
}

bool EngineWork::has_left() {
  std::lock_guard lock(aborting_);
  return !left_.empty();
}

bool EngineWork::wait(std::chrono::milliseconds timeout) {
  // A wait in the engine itself would not notice a signal.
  if (timeout == kNoTimeout && !Signals::come_here()) settle();
  else settle_aside();
  return CallWork::wait(timeout);
}

bool EngineWork::isCompleted() {
  settle_aside();
  return CallWork::isCompleted();
}

c10::intrusive_ptr<CallWork::Future> EngineWork::getFuture() {
  settle_aside();
  return CallWork::getFuture();
}

std::exception_ptr EngineWork::begin_rest(EngineMessage& m) {
  if (!m.rest) return nullptr;
  if (auto failure = end_of(m, posted_)) return failure;
  EngineMessage::Rest found;
  std::string failed;
  {
    std::lock_guard lock(aborting_);
    if (aborted_) failed = "it was aborted";
    else try {
        found = m.rest(m.peer == cpu::kAnySource ? m.work->sourceRank() : m.peer);
        m.work = found.work;
      } catch (const std::exception& e) {  // here it would end the process
        failed = what_of(e);
      }
  }
  if (!failed.empty()) return failure_of(m, failed);
  m.rest = nullptr;
  if (found.error && group_ && collective_) tell(found.error);
  return found.error;
}

void EngineWork::tell(std::exception_ptr error) const {
  const Fault fault = fault_of(error, hosts_->rank());
  // Any other failure is only this rank's wait; another rank has the reason.
  if (fault.cause == Cause::mismatch) group_->tell(fault, kMessageReasonComes);
}

Milliseconds EngineWork::left_of_timeout(Clock::time_point since) const {
  if (limit_.timeout.count() == 0) return kNoTimeout;
  const auto waited = std::chrono::duration_cast<Milliseconds>(Clock::now() - since);
  return std::max(limit_.timeout - waited, Milliseconds(1));
}

std::exception_ptr EngineWork::end_of(EngineMessage& m, Clock::time_point since) {
  std::string said = "it was aborted";
  try {
    if (m.work->wait(left_of_timeout(since))) {
      moved_ = Clock::now();
      if (!m.sends) set_source(m.peer == cpu::kAnySource ? m.work->sourceRank() : m.peer);
      return nullptr;
    }
  } catch (const std::exception& e) {
    said = what_of(e);
  }
  return failure_of(m, said);
}

void EngineWork::let_go() {
  std::lock_guard lock(aborting_);
  messages_.clear();
}

std::exception_ptr EngineWork::failure_of(EngineMessage& m, const std::string& said) {
  {
    std::lock_guard lock(aborting_);
    // Leaves out the rest, which would write to the user's tensor after the call has failed.
    if (goes_on_ && (m.sends || m.rest)) left_.push_back(m.work);
    m.work = nullptr;
  }
  const bool late = said.find("imed out") != std::string::npos;
  // Tells it first: other messages end because of it, and ask for the reason.
  if (late && limit_.late)
    limit_.late->tell(fault_in(m, Event::engine_late, said), kMessageReasonComes);
  const auto why = told();
  try {
    if (why) throw_fault(*why, "", text_of(fault_in(m, Event::engine_waits, said)));
    if (aborted_) throw_fault(fault_in(m, Event::engine_aborted, said));
    if (late) throw_fault(fault_in(m, Event::engine_late, said));
    if (const auto first = limit_.late ? limit_.late->hear(kLateComes) : std::nullopt)
      throw_unusable(text_of(fault_in(m, Event::engine_ended, said)) + " ", *first);
    throw_fault(fault_in(m, Event::engine_lost, said));
  } catch (...) {
    return std::current_exception();
  }
}

Fault EngineWork::fault_in(const EngineMessage& m, Event event, const std::string& said) const {
  Fault f = fault_of(event, hosts_->rank(), m.peer);
  f.message.is_there = 1;
  f.message.sends = m.sends;
  f.message.peer = m.peer;
  f.timeout_ns = std::chrono::nanoseconds(limit_.timeout).count();
  f.evidence = printable(said, kEngineSays);
  return hosts_->at_home(f);
}

std::optional<Fault> EngineWork::told() const {
  if (!group_) return {};
  const bool known = aborted_ && !collective_;  // it was heard by then, if the group caused it
  auto why = known ? group_->heard() : group_->hear(kMessageReasonComes);
  if (why && !ends(*why, collective_)) why.reset();
  return why;
}

void UnderWay::add(Work work) {
  std::lock_guard lock(mutex_);
  std::erase_if(works_, [](const Work& w) { return w->settled() && !w->has_left(); });
  for (const Work& w : works_)
    if (w.use_count() == 1) w->settle_aside();  // its caller no longer waits
  works_.push_back(std::move(work));
}

void UnderWay::settle_within(Milliseconds patience) {
  const std::vector<Work> works = all();
  for (const Work& work : works)
    if (!work->settled()) work->settle_aside();
  const auto end = Clock::now() + patience;
  const auto done = [&] {
    return std::all_of(works.begin(), works.end(), [](const Work& w) { return w->settled(); });
  };
  while (!done() && Clock::now() < end) std::this_thread::sleep_for(Milliseconds(1));
}

std::vector<UnderWay::Work> UnderWay::all() {
  std::lock_guard lock(mutex_);
  return works_;
}

}  // namespace ringkern::torch_ext
