// Instructions on the simulated machine of tests/simt.
#include <vector>

#include "machine.h"
#include "simt/machine.h"

namespace ptx::machine {
namespace {

simt::Machine& m() { return simt::machine(); }
simt::Thread& self() { return m().self(); }
template <class T = void>
T* pointer(uint64_t at) {
  return reinterpret_cast<T*>(at);
}

// Returns whether it is strong among all threads that use the place: a narrower scope does not
// reach them.
bool reaches(uint64_t at, Access access) {
  const bool all = access.scope == Scope::sys ||
                   (access.scope == Scope::gpu && m().memory().of_one_device(pointer(at)));
  out_of_reach += !all;
  return all;
}

simt::Order order_of(uint64_t at, Access access) {
  if (access.order == Order::weak || !reaches(at, access)) return simt::Order::weak;
  if (access.order == Order::acquire) return simt::Order::acquire;
  if (access.order == Order::release) return simt::Order::release;
  return simt::Order::relaxed;
}

}  // namespace

Place place() {
  const simt::Thread& t = self();
  return {uint32_t(t.index), uint32_t(t.block->threads), uint32_t(t.block->index),
          uint32_t(t.block->blocks)};
}

uint64_t* registers(size_t count) {
  static std::vector<std::vector<uint64_t>> all;  // kept from launch to launch
  if (all.size() <= self().tid) all.resize(self().tid + 1);
  std::vector<uint64_t>& mine = all[self().tid];
  if (mine.size() < count) mine.resize(count);
  return mine.data();
}

std::byte* shared_memory(size_t bytes) { return static_cast<std::byte*>(m().shared_memory(bytes)); }
void use_shared(const std::byte* at, bool store) { m().use_shared(at, store); }

void load(uint64_t at, void* to, int bytes, Access access, const void* instruction) {
  if (access.order != Order::line) return m().load(pointer(at), to, bytes, order_of(at, access));
  self().at = pointer(at);
  self().instruction = instruction;
  m().meet(simt::Meeting::line_load);
  std::copy_n(self().words, 2, static_cast<uint64_t*>(to));
}
void store(uint64_t at, const void* from, int bytes, Access access, const void* instruction) {
  const simt::Order order = order_of(at, access);
  if (bytes == 16 && order != simt::Order::weak) m().check_goes_on();
  if (access.order != Order::line) return m().store(pointer(at), from, bytes, order);
  self().at = pointer(at);
  std::copy_n(static_cast<const uint64_t*>(from), 2, self().words);
  self().instruction = instruction;
  m().meet(simt::Meeting::line_store);
}

uint64_t update(uint64_t at, int bytes, Access access, const Change& change) {
  if (reaches(at, access))
    return m().update(pointer(at), bytes, access.order == Order::acq_rel, change);
  uint64_t before = 0;
  m().load(pointer(at), &before, bytes, simt::Order::weak);
  if (const std::optional<uint64_t> after = change(before))
    m().store(pointer(at), &*after, bytes, simt::Order::weak);
  return before;
}
void give_up() { self().gave_up = true; }
// A fence of a narrower scope orders nothing for other ranks.
void fence(Access access) {
  if (access.scope == Scope::sys) m().fence();
  else ++out_of_reach;
}

void sync_warp() { m().meet(simt::Meeting::sync); }
bool all_lanes(bool p) {
  self().predicate = p;
  m().meet(simt::Meeting::all);
  return self().predicate;
}
uint32_t from_lane(uint32_t value, uint32_t lane) {
  self().value = value;
  self().lane = int(lane);
  m().meet(simt::Meeting::shuffle);
  return self().value;
}
void rest() { m().meet(simt::Meeting::rest); }
bool barrier(uint32_t id, uint32_t threads, bool p) {
  return m().barrier(int(id), int(threads), p);
}

uint64_t nanoseconds() { return m().nanoseconds(); }

}  // namespace ptx::machine
