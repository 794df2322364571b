// Operations of a thread: alone with memory, and together with others.
#include "machine.h"

namespace simt {

// ---- Memory

void Machine::load(const void* at, void* to, int bytes, Order order) {
  step();
  memory_.load(*current_, at, to, bytes, order);
}
void Machine::store(void* at, const void* from, int bytes, Order order) {
  step();
  memory_.store(*current_, at, from, bytes, order);
  wake_sleepers();
}
uint64_t Machine::update(void* at, int bytes, bool ordered, const Memory::Change& change) {
  step();
  const uint64_t before = memory_.update(*current_, at, bytes, ordered, change);
  wake_sleepers();
  return before;
}
bool Machine::claim(uint32_t* at) {
  current_->gave_up = true;
  return update(at, 4, /*ordered=*/false, [](uint64_t before) {
           return before == 0 ? std::optional<uint64_t>(1) : std::nullopt;
         }) == 0;
}
uint32_t Machine::count_round(uint32_t* at, uint32_t last, bool ordered) {
  return uint32_t(update(at, 4, ordered, [&](uint64_t before) {
    return std::optional<uint64_t>(before >= last ? 0 : before + 1);
  }));
}
void Machine::fence() {
  step();
  memory_.fence(*current_);
  wake_sleepers();
}
void Machine::fence_sc() {
  step();
  memory_.fence_sc(*current_);
  wake_sleepers();
}

uint64_t Machine::nanoseconds() {
  step();
  current_->watch->clock_was_read = true;
  return clock_ + steps_;
}

void* Machine::shared_memory(size_t bytes) {
  if (bytes > sizeof(Block::shared)) throw Failure("simulator", "too much shared memory");
  return current_->block->shared;
}

void Machine::use_shared(const void* at, bool store) {
  step();
  Block& block = *current_->block;
  const auto offset = size_t(static_cast<const std::byte*>(at) - block.shared);
  if (offset >= sizeof block.shared)
    throw Failure("out of bounds", "shared memory of another block, or none");
  if (settings_.memory.races == Races::all)
    memory_.check_race(*current_, block.shadows[offset / 8], at, store, Order::weak,
                       "shared memory: ");
}

void Machine::check_goes_on() const {
  if (current_->gave_up) throw Failure("goes on", "writes a line after it has given up");
}

// ---- Warps and blocks

// Every earlier action of each happens before every later one of any.
template <class Threads>
void Machine::synchronise(const Threads& threads) {
  for (Thread* t : threads) memory_.consume(*t);
  Join join(memory_.clocks());
  for (Thread* t : threads) join.add(t->known);
  for (Thread* t : threads) join.add(t->epoch());
  const Clock known = join.result();
  for (Thread* t : threads) {
    t->known = known;
    t->tick();
    t->watch->forget();
  }
}

void Machine::meet(Meeting kind) {
  step(/*alone=*/false);
  Warp& w = *current_->warp;
  if (w.at_barrier != 0 || w.gone != 0)
    throw Failure("divergent", "other lanes of its warp are at a barrier, or have ended");
  if (w.arrived != 0 && w.meeting != kind)
    throw Failure("divergent", "other lanes of its warp do something else together");
  const bool line = kind == Meeting::line_load || kind == Meeting::line_store;
  if (line && !current_->together)
    throw Failure("divergent", "a line is accessed by a warp that may not be together");
  w.meeting = kind;
  if (++w.arrived < kWarpSize) return suspend();
  w.arrived = 0;
  hold_meeting(w);
}

void Machine::hold_meeting(Warp& w) {
  bool all = true;
  for (const Thread* t : w.lanes) all = all && t->predicate;
  uint32_t values[kWarpSize];
  for (int i = 0; i < kWarpSize; ++i) values[i] = w.lanes[w.lanes[i]->lane % kWarpSize]->value;
  switch (w.meeting) {
    case Meeting::none: break;
    case Meeting::sync: synchronise(w.lanes); break;
    case Meeting::all:
      for (Thread* t : w.lanes) {
        t->predicate = all;
        if (!all) t->lines.clear();  // will be polled again
      }
      // A poll in vain: where rests begin after many of them, this is one.
      if (!all && settings_.polls_per_look > 1) return rest(w);
      break;
    case Meeting::shuffle:
      for (int i = 0; i < kWarpSize; ++i) w.lanes[i]->value = values[i];
      break;
    case Meeting::line_load: access_lines(w, /*store=*/false); break;
    case Meeting::line_store: access_lines(w, /*store=*/true); break;
    case Meeting::rest:
      if (settings_.polls_per_look == 1) return rest(w);
      break;
  }
  for (Thread* t : w.lanes) {
    t->together = true;
    if (t != current_) runnable_.push_back(t);
  }
}

// Polling again is of no use before something has changed.
void Machine::rest(Warp& w) {
  for (Thread* t : w.lanes) t->together = true;
  if (memory_.outdated(w)) {
    w.forget();
    w.woken_in_vain = 0;  // what its look has found may be old
    for (Thread* t : w.lanes)
      if (t != current_) runnable_.push_back(t);
    return;
  }
  memory_.sleep(w);
  suspend();
}

// Lanes side by side that store to the same 128 bytes do so at once.
void Machine::access_lines(Warp& w, bool store) {
  const bool whole = settings_.memory.line_atom == 128;
  uint32_t line = 0;
  uint64_t address = 0;
  for (Thread* t : w.lanes) {
    if (t->instruction != w.lanes[0]->instruction)
      throw Failure("divergent", "lines are accessed by other instructions of the same warp");
    if (!store) {
      memory_.load_line(*t, t->at, t->words);
      continue;
    }
    if (whole && (line == 0 || uint64_t(t->at) / 128 != address)) line = memory_.new_line();
    address = uint64_t(t->at) / 128;
    memory_.store_line(*t, t->at, t->words, line);
  }
  wake_sleepers();
}

bool Machine::barrier(int id, int threads, bool predicate) {
  step(/*alone=*/false);
  Thread& t = *current_;
  if (id < 0 || id >= int(std::size(t.block->barriers)))
    throw Failure("divergent", "a barrier that does not exist");
  Block::Barrier& b = t.block->barriers[id];
  if (threads % kWarpSize != 0 || (!b.waiting.empty() && b.expected != threads))
    throw Failure("divergent", "a barrier for other numbers of threads, or not for whole warps");
  if (t.warp->arrived != 0 || t.warp->gone != 0)
    throw Failure("divergent", "at a barrier without the other lanes of its warp");
  b.expected = threads;
  b.any = b.any || predicate;
  ++t.warp->at_barrier;
  b.waiting.push_back(&t);
  if (int(b.waiting.size()) < threads) {
    suspend();
    return t.predicate;
  }
  const bool any = b.any;
  std::vector<Thread*> all;
  std::swap(all, b.waiting);
  b.any = false;
  synchronise(all);
  for (Thread* other : all) {
    other->predicate = any;
    other->together = true;
    --other->warp->at_barrier;
    if (other != &t) runnable_.push_back(other);
  }
  return any;
}

}  // namespace simt
