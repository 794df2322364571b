// Memory: stores, and their way to where all see them.
#include <algorithm>

#include "memory.h"

namespace simt {
namespace {

constexpr size_t kBuffer = 8;  // stores of a thread that may wait

bool covers(const Pending& p, uint64_t index) {
  return (p.cell == index && p.mask[0] != 0) || (p.cell + 1 == index && p.mask[1] != 0);
}
bool overlap(const Pending& a, const Pending& b) {
  return (b.mask[0] != 0 && covers(a, b.cell)) || (b.mask[1] != 0 && covers(a, b.cell + 1));
}

}  // namespace

// Earlier actions of others on a cell, as far as `a` knows them, precede this one.
void Memory::settle(const Agent& a, uint64_t index) {
  if (cell(index).pending == 0) return;
  for (size_t g = 0; g < buffering_.size();) {
    Agent& other = *buffering_[g];
    bool done = true;
    for (size_t i = 0; &other != &a && i < other.buffer.size(); ++i)
      if (covers(other.buffer[i], index) && a.knows(other.buffer[i].by)) {
        commit(other, i);
        done = false;
        break;
      }
    if (done) ++g;
    else g = 0;  // the list has changed
  }
}

void Memory::store(Agent& a, void* at, const void* from, int bytes, Order order) {
  Region& r = region_of(a, at, bytes, /*store=*/true);
  const uint64_t offset = offset_of(at);
  if (r.kind == Kind::own) {
    use_bytes(a, r, at, bytes, /*store=*/true);
    std::memcpy(r.data.data() + (offset - r.begin), from, size_t(bytes));
    return;
  }
  if (order == Order::release) drain_known(a);
  Pending p{0, {}, {}, a.epoch(), {}, 0};
  if (order == Order::release) p.message = {a.known, a.epoch()};
  if (order == Order::relaxed) p.message = a.released;
  if (r.kind == Kind::common) use_bytes(a, r, at, bytes, /*store=*/true);
  else check_cells(a, at, bytes, /*store=*/true, order);
  put_off(a, p, offset, from, bytes, bytes == 16 ? settings_.atom : bytes);
  if (order == Order::release) a.tick();
}

void Memory::store_line(Agent& a, void* at, const void* from, uint32_t line) {
  region_of(a, at, 16, /*store=*/true);
  check_cells(a, at, 16, /*store=*/true, Order::relaxed);
  put_off(a, {0, {}, {}, a.epoch(), a.released, line}, offset_of(at), from, 16,
          std::min(settings_.line_atom, 16));
}

// Cuts a store in atoms, which wait to become visible one by one.
void Memory::put_off(Agent& a, Pending p, uint64_t offset, const void* from, int bytes, int atom) {
  uint64_t words[2] = {0, 0};
  std::memcpy(words, from, size_t(bytes));
  for (int i = 0; i < (bytes + 7) / 8; ++i) settle(a, offset / 8 + uint64_t(i));
  for (int done = 0; done < bytes; done += atom) {
    const int shift = 8 * int((offset + uint64_t(done)) % 8);
    p.cell = (offset + uint64_t(done)) / 8;
    p.value = {words[done / 8] >> (8 * (done % 8)) << shift, 0};
    p.mask = {low_bytes(std::min(atom, 8)) << shift, 0};
    if (atom == 16) p.value[1] = words[1], p.mask[1] = low_bytes(8);
    wait_to_commit(a, p);
  }
}

// Returns the value that an atomic operation finds.
uint64_t Memory::newest(Agent& a, void* at, int bytes) {
  region_of(a, at, bytes, /*store=*/false);
  const uint64_t index = offset_of(at) / 8;
  check_cells(a, at, bytes, /*store=*/true, Order::relaxed);
  settle(a, index);
  for (size_t i = 0; i < a.buffer.size();)
    if (covers(a.buffer[i], index)) commit(a, i), i = 0;
    else ++i;
  return cell(index).latest().value >> (8 * (offset_of(at) % 8)) & low_bytes(bytes);
}

uint64_t Memory::update(Agent& a, void* at, int bytes, bool ordered, const Change& change) {
  if (ordered) drain_known(a);
  const uint64_t before = newest(a, at, bytes);
  const uint64_t index = offset_of(at) / 8;
  const Message found = cell(index).latest().message;
  if (found && ordered) {
    Join join(clocks_);
    join.add(a.known);
    join.add(found);
    a.known = join.result();
  } else if (found) {
    a.observed.push_back(found);
  }
  const std::optional<uint64_t> after = change(before);
  if (!after) return before;
  const int shift = 8 * int(offset_of(at) % 8);
  const Message message = ordered ? Message{a.known, a.epoch()} : a.released;
  ++now_;
  put(index, *after << shift, low_bytes(bytes) << shift, a.epoch(), message);
  if (ordered) a.tick();
  return before;
}

void Memory::fence(Agent& a) {
  if (!a.observed.empty()) {
    Join join(clocks_);
    join.add(a.known);
    for (const Message& m : a.observed) join.add(m);
    a.known = join.result();
    a.observed.clear();
  }
  drain_known(a);
  a.released = {a.known, a.epoch()};
  a.tick();
}

void Memory::fence_sc(Agent& a) {
  fence(a);
  Join join(clocks_);
  join.add(a.known);
  if (sc_) join.add(sc_);
  a.known = join.result();
  sc_ = a.released = {a.known, a.epoch()};
  a.tick();
}

// ---- Stores becoming visible

void Memory::wait_to_commit(Agent& a, Pending p) {
  for (int i = 0; i < 2; ++i)
    if (p.mask[i] != 0) ++cell(p.cell + uint64_t(i)).pending;
  p.number = ++stores_;
  a.buffer.push_back(std::move(p));
  if (a.buffering == 0) {
    buffering_.push_back(&a);
    a.buffering = buffering_.size();
  }
  if (a.buffer.size() > kBuffer) commit(a, random_.below(a.buffer.size()));
}

Pending Memory::take(Agent& a, size_t i) {
  Pending p = std::move(a.buffer[i]);
  a.buffer.erase(a.buffer.begin() + ptrdiff_t(i));
  if (a.buffer.empty()) {
    buffering_.back()->buffering = a.buffering;
    std::swap(buffering_[a.buffering - 1], buffering_.back());
    buffering_.pop_back();
    a.buffering = 0;
  }
  for (int j = 0; j < 2; ++j)
    if (p.mask[j] != 0) --cell(p.cell + uint64_t(j)).pending;
  return p;
}

// Stores of one thread to one cell keep their order. Returns where the i-th store then is.
size_t Memory::commit_older(Agent& a, size_t i) {
  const uint64_t number = a.buffer[i].number;
  for (size_t j = 0; a.buffer[j].number != number;)
    if (overlap(a.buffer[j], a.buffer[i])) {
      commit(a, j);
      for (i = j = 0; a.buffer[i].number != number;) ++i;
    } else {
      ++j;
    }
  return i;
}

void Memory::commit(Agent& a, size_t i) {
  i = commit_older(a, i);
  const uint32_t line = a.buffer[i].line;
  if (line == 0) {
    const Pending p = take(a, i);
    ++now_;
    apply(p);
    return;
  }
  // A warp's line becomes visible whole: all parts at one time.
  std::vector<Pending> parts;
  for (size_t g = 0; g < buffering_.size();) {
    Agent& other = *buffering_[g];
    const auto part = std::find_if(other.buffer.begin(), other.buffer.end(),
                                   [&](const Pending& p) { return p.line == line; });
    if (part == other.buffer.end()) {
      ++g;
      continue;
    }
    parts.push_back(take(other, commit_older(other, size_t(part - other.buffer.begin()))));
    g = 0;
  }
  ++now_;
  for (const Pending& p : parts) apply(p);
}

void Memory::apply(const Pending& p) {
  for (int i = 0; i < 2; ++i)
    if (p.mask[i] != 0) put(p.cell + uint64_t(i), p.value[i], p.mask[i], p.by, p.message);
}

void Memory::put(uint64_t index, uint64_t value, uint64_t mask, Epoch by, const Message& message) {
  Cell& c = cell(index);
  const uint64_t merged = (c.latest().value & ~mask) | (value & mask);
  if (c.latest().time < now_ || c.count == 0) {
    c.newest = (c.newest + 1) % kVersions;
    if (c.count < kVersions) ++c.count;
  }
  c.versions[c.newest] = {merged, now_, by, message};
  for (const auto& [watch, sleep] : c.watchers)
    if (watch->asleep && watch->sleeps == sleep) {
      watch->asleep = false;
      woken_.push_back(watch);
    }
  c.watchers.clear();
}

void Memory::drain_known(const Agent& a) {
  for (size_t g = 0; g < buffering_.size();) {
    Agent& other = *buffering_[g];
    const auto known = std::find_if(other.buffer.begin(), other.buffer.end(),
                                    [&](const Pending& p) { return a.knows(p.by); });
    if (known == other.buffer.end()) {
      ++g;
      continue;
    }
    commit(other, size_t(known - other.buffer.begin()));
    g = 0;
  }
}

bool Memory::drain_one() {
  if (buffering_.empty()) return false;
  Agent& a = *buffering_[random_.below(buffering_.size())];
  commit(a, random_.below(a.buffer.size()));
  return true;
}
void Memory::drain(Agent& a) {
  while (!a.buffer.empty()) commit(a, random_.below(a.buffer.size()));
}

// ---- Sleep

bool Memory::outdated(const Watch& watch) const {
  for (const Watch::Seen& s : watch.seen)
    if (s.cell->latest().time > s.time) return true;
  return false;
}

void Memory::sleep(Watch& watch) {
  watch.asleep = true;
  ++watch.sleeps;
  for (const Watch::Seen& s : watch.seen) s.cell->watchers.emplace_back(&watch, watch.sleeps);
}

}  // namespace simt
