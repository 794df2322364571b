// Race detection: the users of a datum, and whether the next access is ordered after theirs.
#include "memory.h"

namespace simt {

void Memory::check_race(Agent& a, Shadow& s, const void* key, bool store, Order order,
                        const char* what) {
  const bool weak = order == Order::weak, all = settings_.races == Races::all;
  const auto against = [&](Epoch other, const char* did) {
    if (a.knows(other)) return;
    const bool host = other.tid() == host_.tid;
    throw Failure("race", std::string(weak ? "a weak " : "a strong ") +
                              (store ? "store to " : "load of ") + what + name_of(key) +
                              " is not ordered after " + did + " by " +
                              (host ? "the host" : name_of_thread(other.tid())));
  };
  if (all || !weak) against(s.weak_store, "a weak store");
  if (weak) against(s.strong_store, "a strong store");
  if (!store) {
    if (weak) note_load(a, s, key);
    return;
  }
  if (all || !weak) {
    against(s.load, "a load");
    if (s.many)
      for (const Epoch e : readers_[key]) against(e, "a load");
  }
  s.many = false;
  s.load = Epoch();
  (weak ? s.weak_store : s.strong_store) = a.epoch();
}

void Memory::note_load(Agent& a, Shadow& s, const void* key) {
  if (s.many || !a.knows(s.load)) {
    auto& readers = readers_[key];
    if (!s.many) readers.clear();
    s.many = true;
    std::erase_if(readers, [&](Epoch e) { return a.knows(e); });
    if (!a.knows(s.load)) readers.push_back(s.load);
  }
  s.load = a.epoch();
}

void Memory::use_bytes(Agent& a, Region& r, const void* at, int bytes, bool store) {
  if (settings_.races != Races::all) return;  // nothing here is strong
  Shadow* s = r.shadows.data() + (offset_of(at) - r.begin);
  const auto mine = [&](Epoch e) { return !e.happened() || e.tid() == a.tid; };
  for (int i = 0; i < bytes; ++i)
    if (mine(s[i].weak_store) && mine(s[i].load) && !s[i].many)  // as nearly always
      (store ? s[i].weak_store : s[i].load) = a.epoch();
    else check_race(a, s[i], static_cast<const char*>(at) + i, store, Order::weak, "");
}

void Memory::check_cells(Agent& a, const void* at, int bytes, bool store, Order order) {
  if (settings_.races == Races::none) return;
  for (int done = 0; done < bytes; done += 4) {
    const char* key = static_cast<const char*>(at) + done;
    const uint64_t offset = offset_of(key);
    check_race(a, cell(offset / 8).shadows[offset % 8 / 4], key, store, order, "");
  }
}

void Memory::consume(Agent& a) {
  for (const uint64_t index : a.lines)
    for (int half = 0; half < 2 && settings_.races == Races::all; ++half)
      note_load(a, cell(index).shadows[half], base_ + index * 8 + 4 * half);
  a.lines.clear();
}

}  // namespace simt
