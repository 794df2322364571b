#include "memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace simt {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kReserved = uint64_t(1) << 30;

}  // namespace

void Agent::tick() {
  if (++now > Epoch::kMaxTime) throw Failure("simulator", "a thread has released too often");
}

const Cell::Version& Cell::as_of(uint64_t time) const {
  uint32_t i = newest;
  for (int left = count; versions[i].time > time && --left > 0;)
    i = (i + kVersions - 1) % kVersions;
  return versions[i];
}

void Cell::note_read(const Agent& a, uint64_t time) {
  const uint64_t least = oldest().time;
  if (time <= least) return;  // already known
  for (const Read& r : reads)
    if (r.time >= time && r.by.tid() == a.tid) return;
  std::erase_if(reads, [&](const Read& r) { return r.time <= least; });
  reads.push_back({a.epoch(), time});
}

void Cell::reset() {
  for (Version& v : versions) v = Version();
  newest = count = pending = 0;
  reads.clear();
  for (Shadow& s : shadows) s = Shadow();
  watchers.clear();
}

Memory::Memory() {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* at = mmap(nullptr, kReserved, PROT_NONE, flags, -1, 0);
  if (at == MAP_FAILED) {
    std::perror("the simulated memory");
    std::exit(2);
  }
  base_ = static_cast<char*>(at);
}
Memory::~Memory() { munmap(base_, kReserved); }

void Memory::reset(const MemorySettings& settings, int threads, uint64_t seed) {
  for (const uint64_t index : touched_) (*cell_pages_[index / 512])[index % 512].reset();
  touched_.clear();
  regions_.clear();
  region_of_page_.assign(1, 0);
  buffering_.clear();
  readers_.clear();
  woken_.clear();
  name_of_place = nullptr;  // it may speak of what is gone
  sc_ = Message();
  now_ = 0;
  lines_ = 0;
  settings_ = settings;
  random_ = Random(seed);
  clocks_.reset(threads + 1);
  host_ = Agent();
  host_.tid = Tid(threads);
}

// ---- Regions

std::byte* Memory::add(std::string name, Kind kind, int rank, int64_t bytes, int64_t offset,
                       uint8_t fill) {
  auto r = std::make_unique<Region>();
  r->name = std::move(name);
  r->kind = kind;
  r->rank = rank;
  r->begin = region_of_page_.size() * kPage + uint64_t(offset);
  r->bytes = uint64_t(bytes);
  r->fill = fill;
  if (kind == Kind::own) r->data.assign(r->bytes, std::byte(fill));
  if (kind == Kind::own || kind == Kind::common) r->shadows.resize(r->bytes);
  const uint64_t pages = (uint64_t(offset) + r->bytes) / kPage + 1;
  regions_.push_back(std::move(r));
  region_of_page_.insert(region_of_page_.end(), pages, uint16_t(regions_.size()));
  region_of_page_.push_back(0);  // what runs over the end is in no region
  if (region_of_page_.size() * kPage > kReserved) throw Failure("simulator", "out of addresses");
  if (cell_pages_.size() < region_of_page_.size()) cell_pages_.resize(region_of_page_.size());
  return reinterpret_cast<std::byte*>(base_ + regions_.back()->begin);
}

Region* Memory::find(uint64_t offset) const {
  const uint64_t page = offset / kPage;
  if (page >= region_of_page_.size() || region_of_page_[page] == 0) return nullptr;
  return regions_[region_of_page_[page] - 1u].get();
}

// Where an access goes, if it may.
Region& Memory::region_of(const Agent& a, const void* at, int64_t bytes, bool store) const {
  const uint64_t offset = offset_of(at);
  const auto refuse = [&](const char* kind) {
    throw Failure(kind, std::string(store ? "a store" : "a load") + " of " + std::to_string(bytes) +
                            " bytes at " + name_of(at));
  };
  Region* r = find(offset);
  if (r == nullptr || offset < r->begin || offset + uint64_t(bytes) > r->begin + r->bytes)
    refuse("out of bounds");
  if (uint64_t(at) % uint64_t(bytes) != 0) refuse("misaligned");
  // Ranks mostly store in each other's memory: a load would wait for a round trip.
  const bool open =
      r->kind == Kind::common || (r->kind == Kind::shared && (store || settings_.open));
  if (r->rank != a.rank && r->rank >= 0 && a.rank >= 0 && !open) refuse("not its own");
  return *r;
}

bool Memory::of_one_device(const void* at) const {
  const Region* r = find(offset_of(at));
  return r == nullptr || r->kind == Kind::own || r->kind == Kind::device;
}

std::string Memory::name_of(const void* at) const {
  const uint64_t offset = offset_of(at);
  const Region* r = find(offset);
  if (name_of_place)
    if (const std::string name = name_of_place(at); !name.empty()) return name;
  if (r == nullptr) return "an address in no region";
  return "byte " + std::to_string(int64_t(offset - r->begin)) + " of " + r->name + ", which has " +
         std::to_string(r->bytes);
}

Cell& Memory::cell(uint64_t index) {
  auto& page = cell_pages_[index / 512];
  if (!page) page = std::make_unique<std::array<Cell, 512>>();
  Cell& c = (*page)[index % 512];
  if (c.count == 0) {
    c.count = 1;
    c.versions[0].value = find(index * 8)->fill * 0x0101010101010101u;
    touched_.push_back(index);
  }
  return c;
}

void Memory::read(const void* at, void* to, int64_t bytes) {
  if (bytes == 0) return;
  const uint64_t offset = offset_of(at);
  const Region& r = *find(offset);
  if (r.kind == Kind::own) {
    std::memcpy(to, r.data.data() + (offset - r.begin), size_t(bytes));
    return;
  }
  for (int64_t i = 0; i < bytes; ++i) {
    const uint64_t place = offset + uint64_t(i);
    static_cast<uint8_t*>(to)[i] = uint8_t(cell(place / 8).latest().value >> (8 * (place % 8)));
  }
}

void Memory::write(void* at, const void* from, int64_t bytes) {
  if (bytes == 0) return;
  const uint64_t offset = offset_of(at);
  Region& r = *find(offset);
  if (r.kind == Kind::own) {
    std::memcpy(r.data.data() + (offset - r.begin), from, size_t(bytes));
    return;
  }
  ++now_;
  for (int64_t i = 0; i < bytes;) {
    const uint64_t place = offset + uint64_t(i);
    const int shift = int(place % 8);
    const int n = int(std::min<int64_t>(8 - shift, bytes - i));
    uint64_t value = 0;
    std::memcpy(&value, static_cast<const char*>(from) + i, size_t(n));
    put(place / 8, value << (8 * shift), low_bytes(n) << (8 * shift), Epoch(), Message());
    i += n;
  }
}

// ---- Loads

// The time of the oldest value that `a` may still see.
uint64_t Memory::earliest(const Agent& a, uint64_t index) {
  const Cell& c = cell(index);
  uint32_t i = c.newest;
  for (int left = c.count; !a.knows(c.versions[i].by) && --left > 0;)
    i = (i + kVersions - 1) % kVersions;
  uint64_t time = c.versions[i].time;
  for (const Cell::Read& r : c.reads)
    if (r.time > time && a.knows(r.by)) time = r.time;
  return time;
}

// When to read some cells together: now, or earlier.
uint64_t Memory::pick(const Agent& a, uint64_t first, int count) {
  if (settings_.stale == 0 || random_.below(256) >= settings_.stale) return now_;
  uint64_t least = 0;
  for (uint64_t i = first; i < first + uint64_t(count); ++i)
    least = std::max(least, earliest(a, i));
  const Cell& c = cell(first + random_.below(uint64_t(count)));
  return std::max(least, c.versions[random_.below(c.count)].time);
}

uint64_t Memory::value_of(Agent& a, uint64_t index, uint64_t time, Order order, const void* at) {
  Cell& c = cell(index);
  const Cell::Version& v = c.as_of(time);
  uint64_t value = v.value;
  for (const Pending& p : a.buffer)
    for (int i = 0; i < 2; ++i)
      if (p.cell + uint64_t(i) == index) value = (value & ~p.mask[i]) | (p.value[i] & p.mask[i]);
  c.note_read(a, v.time);
  if (a.watch != nullptr) a.watch->seen.push_back({&c, at, v.time});
  if (v.message && order == Order::acquire) {
    Join join(clocks_);
    join.add(a.known);
    join.add(v.message);
    a.known = join.result();
  } else if (v.message && order == Order::relaxed &&
             (a.observed.empty() || !(a.observed.back() == v.message))) {
    a.observed.push_back(v.message);
  }
  return value;
}

void Memory::load(Agent& a, const void* at, void* to, int bytes, Order order) {
  Region& r = region_of(a, at, bytes, /*store=*/false);
  const uint64_t offset = offset_of(at);
  if (r.kind == Kind::own) {
    use_bytes(a, r, at, bytes, /*store=*/false);
    std::memcpy(to, r.data.data() + (offset - r.begin), size_t(bytes));
    return;
  }
  const uint64_t first = offset / 8;
  const int cells = bytes == 16 ? 2 : 1;
  if (r.kind == Kind::common) use_bytes(a, r, at, bytes, /*store=*/false);
  else check_cells(a, at, bytes, /*store=*/false, order);
  for (int i = 0; i < cells; ++i) settle(a, first + uint64_t(i));
  const bool together = cells == 2 && settings_.atom == 16;
  const uint64_t once = together ? pick(a, first, 2) : 0;
  for (int i = 0; i < cells; ++i) {
    const uint64_t index = first + uint64_t(i);
    const auto at_time = [&] { return together ? once : pick(a, index, 1); };
    uint64_t value = value_of(a, index, at_time(), order, at);
    if (cells == 2 && settings_.atom == 4) {
      const uint64_t other = value_of(a, index, at_time(), order, at);
      value = (value & low_bytes(4)) | (other & ~low_bytes(4));
    }
    if (cells == 2 && order == Order::relaxed) a.lines.push_back(index);
    value >>= 8 * (offset % 8);
    std::memcpy(static_cast<char*>(to) + 8 * i, &value, size_t(std::min(bytes, 8)));
  }
}

void Memory::load_line(Agent& a, const void* at, void* to) {
  region_of(a, at, 16, /*store=*/false);
  check_cells(a, at, 16, /*store=*/false, Order::relaxed);
  const uint64_t own = offset_of(at) / 8;
  const bool whole = settings_.line_atom == 128;
  const uint64_t first = whole ? own / 16 * 16 : own;
  const int cells = whole ? 16 : 2;
  for (int i = 0; i < cells; ++i) settle(a, first + uint64_t(i));
  const uint64_t once = pick(a, first, cells);
  for (uint64_t i = 0; i < 2; ++i) {
    const uint64_t time = settings_.line_atom == 8 ? pick(a, own + i, 1) : once;
    static_cast<uint64_t*>(to)[i] = value_of(a, own + i, time, Order::relaxed, at);
    a.lines.push_back(own + i);
  }
}

}  // namespace simt
