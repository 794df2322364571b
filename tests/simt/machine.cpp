#include "machine.h"

#include <algorithm>
#include <utility>

namespace simt {

std::string Thread::name() const {
  return "rank " + std::to_string(rank) + " channel " + std::to_string(channel) + " thread " +
         std::to_string(index);
}

Machine::Machine() {
  memory_.name_of_thread = [this](Tid tid) { return threads_[tid]->name(); };
}

void Machine::reset(const Settings& settings, int ranks, int channels, int threads) {
  settings_ = settings;
  channels_ = channels;
  most_threads_ = threads;
  const int all = ranks * channels * threads;
  if (all >= kMaxThreads) throw Failure("simulator", "too many threads");
  for (auto& t : threads_) {
    static_cast<Agent&>(*t) = Agent();
    t->alive = false;
  }
  while (int(threads_.size()) < all) threads_.push_back(std::make_unique<Thread>());
  history_.assign(size_t(ranks), Clock());
  blocks_.clear();
  runnable_.clear();
  late_ = nullptr;
  live_.clear();
  ended_.clear();
  failure_.reset();
  event_ = nullptr;
  when_stuck = nullptr;
  event_step_ = steps_ = 0;
  clock_ = 1'000'000'000;
  until_switch_ = until_drain_ = 1;
  random_ = Random(settings.seed);
  memory_.reset(settings.memory, all, random_.next());
}

void Machine::start(Launch& launch) {
  const int blocks = int(launch.ranks.size()) * launch.channels;
  launch.live = blocks * launch.threads;
  live_.push_back(&launch);
  for (int b = 0; b < blocks; ++b) {
    auto& block = *blocks_.emplace_back(std::make_unique<Block>());
    block.index = b;
    block.blocks = blocks;
    block.threads = launch.threads;
    block.warps.resize(size_t(launch.threads / kWarpSize));
    std::memset(block.shared, 0xA5, sizeof block.shared);
    const int rank = launch.ranks[size_t(b / launch.channels)], channel = b % launch.channels;
    for (int i = 0; i < launch.threads; ++i) {
      const int tid = (rank * channels_ + channel) * most_threads_ + i;
      Thread& t = *threads_[size_t(tid)];
      const uint32_t now = t.now;
      static_cast<Agent&>(t) = Agent();
      t.tid = Tid(tid);
      t.now = now;
      t.known = history_[size_t(rank)];
      t.rank = rank, t.channel = channel, t.index = i;
      t.block = &block;
      t.warp = &block.warps[size_t(i / kWarpSize)];
      t.warp->lanes[i % kWarpSize] = &t;
      t.watch = t.warp;
      t.launch = &launch;
      t.alive = t.together = true;
      t.gave_up = false;
      t.fiber.prepare(&Machine::enter, &t);
      runnable_.push_back(&t);
    }
  }
}

void Machine::enter(void* thread) {
  auto& t = *static_cast<Thread*>(thread);
  Machine& m = machine();
  try {
    t.launch->kernel();
    m.leave(t);
  } catch (const Failure& f) {
    m.failure_ = std::make_unique<Failure>(f.kind, t.name() + ": " + f.text());
  }
  m.current_ = nullptr;
  Fiber::change(t.fiber, m.main_);
}

void Machine::leave(Thread& t) {
  if (t.warp->arrived != 0 || t.warp->at_barrier != 0)
    throw Failure("divergent", "ends while other lanes of its warp wait for it");
  ++t.warp->gone;
  t.alive = false;
  if (--t.launch->live == 0) ended_.push_back(t.launch);
}

// All that a launch did happens before the next one of its ranks.
void Machine::finish(Launch& launch) {
  std::erase(live_, &launch);
  for (const int rank : launch.ranks) {
    Join join(memory_.clocks());
    const int first = rank * channels_ * most_threads_;
    for (int i = first; i < first + channels_ * most_threads_; ++i) {
      Thread& t = *threads_[size_t(i)];
      memory_.drain(t);
      join.add(t.known);
      join.add(Epoch(Tid(i), t.now));
      t.tick();
    }
    history_[size_t(rank)] = join.result();
  }
  wake_sleepers();
  if (launch.done) launch.done();
}

void Machine::run() {
  while (!failure_) {
    while (!ended_.empty()) {
      Launch* launch = ended_.back();
      ended_.pop_back();
      finish(*launch);
    }
    if (live_.empty()) return;
    if (runnable_.empty()) wait_for_progress();
    if (runnable_.empty()) continue;  // an event has ended the rest
    current_ = pick();
    if (current_ != nullptr) Fiber::change(main_, current_->fiber);
  }
  throw Failure(*failure_);
}

void Machine::synchronise_host() {
  Agent& host = memory_.host();
  Join join(memory_.clocks());
  join.add(host.known);
  for (const Clock& c : history_) join.add(c);
  host.known = join.result();
}

void Machine::kill(int rank) {
  std::erase_if(live_, [&](Launch* l) { return l->ranks.size() == 1 && l->ranks[0] == rank; });
  std::erase_if(runnable_, [&](Thread* t) { return t->rank == rank; });
  if (late_ != nullptr && late_->rank == rank) late_ = nullptr;
  for (auto& t : threads_)
    if (t->alive && t->rank == rank) t->alive = false;
}

void Machine::at_step(uint64_t step, std::function<uint64_t()> event) {
  event_step_ = step;
  event_ = std::move(event);
}

bool Machine::fire_event() {
  if (!event_) return false;
  event_step_ = event_();
  if (event_step_ == 0) event_ = nullptr;
  wake_sleepers();
  return true;
}

// ---- The turns of threads

bool Machine::is_late(const Thread& t) const {
  return t.rank == settings_.late_rank && t.channel == settings_.late_channel &&
         t.index == t.block->threads - 1 && steps_ >= settings_.late_from;
}

// Null if only the late one could continue.
Thread* Machine::pick() {
  size_t i = random_.below(runnable_.size());
  if (runnable_[i]->rank == settings_.starved_rank && !random_.one_in(16))
    i = random_.below(runnable_.size());
  Thread* t = runnable_[i];
  runnable_[i] = runnable_.back();
  runnable_.pop_back();
  if (is_late(*t)) {
    late_ = t;
    return runnable_.empty() ? nullptr : pick();
  }
  until_switch_ = 1 + int(random_.below(uint64_t(2 * settings_.switch_every)));
  return t;
}

void Machine::change_to(Thread* next) {
  Thread* before = current_;
  current_ = next;
  if (before != next) Fiber::change(before->fiber, next != nullptr ? next->fiber : main_);
}

void Machine::yield() {
  runnable_.push_back(current_);
  change_to(pick());
}

// Until another thread makes this one runnable.
void Machine::suspend() { change_to(runnable_.empty() ? nullptr : pick()); }

// Before every operation. `alone`: it is not one that the warp does together.
void Machine::step(bool alone) {
  if (alone) current_->together = false;
  if (++steps_ > settings_.most_steps) throw Failure("livelock", "no end after so many steps");
  if (--until_drain_ <= 0) {
    until_drain_ = 1 + int(random_.below(uint64_t(2 * settings_.drain_every)));
    memory_.drain_one();
    wake_sleepers();
  }
  if (event_ && steps_ >= event_step_) {
    fire_event();
    if (!current_->alive) change_to(nullptr);  // for ever
  }
  if (--until_switch_ <= 0) yield();
}

void Machine::wake_sleepers() {
  auto& woken = memory_.woken();
  while (!woken.empty()) {
    Warp& w = *static_cast<Warp*>(woken.back());
    woken.pop_back();
    w.forget();
    for (Thread* t : w.lanes)
      if (t->alive) runnable_.push_back(t);
  }
}

// No thread can continue. The next event is the first possible of: a store becomes visible, an
// event, time passes for those that have read the clock, the late one continues.
void Machine::wait_for_progress() {
  while (runnable_.empty() && !live_.empty()) {
    if (memory_.drain_one()) {
      wake_sleepers();
      continue;
    }
    std::vector<Warp*> sleepers;
    for (auto& block : blocks_)
      for (Warp& w : block->warps)
        if (w.asleep && w.lanes[0]->alive) sleepers.push_back(&w);
    if (poll_again(sleepers)) continue;
    for (const Warp* w : sleepers)
      if (when_stuck) when_stuck(w->lanes[0]->rank);
    if (fire_event()) continue;
    bool timed = false;
    for (Warp* w : sleepers)
      if (w->clock_was_read) {
        timed = true;
        w->asleep = false;
        w->woken_in_vain = 0;
        memory_.woken().push_back(w);
      }
    clock_ += settings_.clock_jump;
    wake_sleepers();
    if (timed && (late_ == nullptr || settings_.clock_jump > 0)) continue;
    if (late_ == nullptr) throw Failure("deadlock", who_waits());
    runnable_.push_back(std::exchange(late_, nullptr));
    settings_.late_rank = -1;
  }
}

// Wakes those that have not looked since the memory last changed: a look may end their wait.
bool Machine::poll_again(const std::vector<Warp*>& sleepers) {
  // Where each poll looks, so did the last one.
  const uint32_t most = settings_.polls_per_look == 1 ? 0 : settings_.polls_per_look;
  bool any = false;
  for (Warp* w : sleepers) {
    if (w->vain_since != memory_.now()) w->vain_since = memory_.now(), w->woken_in_vain = 0;
    if (w->woken_in_vain >= most) continue;
    ++w->woken_in_vain;
    any = true;
    w->asleep = false;
    w->seen.clear();
    for (Thread* t : w->lanes) runnable_.push_back(t);
  }
  return any;
}

std::string Machine::who_waits() const {
  std::string text = "nobody can go on";
  for (const auto& block : blocks_)
    for (const Warp& w : block->warps) {
      const Thread& t = *w.lanes[0];
      if (!t.alive || t.block != block.get()) continue;
      text += "\n  rank " + std::to_string(t.rank) + " channel " + std::to_string(t.channel) +
              " warp " + std::to_string(t.index / kWarpSize);
      if (w.asleep) {
        text += " polls";
        const void* before = nullptr;
        for (const Watch::Seen& s : w.seen)
          if (s.at != before)
            text += "\n    " + memory_.name_of(before = s.at) + ": " +
                    std::to_string(s.cell->latest().value);
      } else if (w.arrived > 0) {
        text += ": " + std::to_string(w.arrived) + " lanes wait for the others";
      } else {
        text += ": " + std::to_string(w.at_barrier) + " lanes at a barrier";
      }
    }
  return text;
}

}  // namespace simt
