#include "cuda/regions.h"

#include <algorithm>

#include "cuda/device.h"

namespace ringkern::cuda {
namespace {

template <class T>
T load(const T& word) {
  return std::atomic_ref(const_cast<T&>(word)).load(std::memory_order_acquire);
}
template <class T>
void store(T& word, T value) {
  std::atomic_ref(word).store(value, std::memory_order_release);
}

}  // namespace

// ---- Regions of this process

Regions& Regions::mine() {
  static Regions* const all = new Regions;  // tensors outlive everything
  return *all;
}

void* Regions::allocate(int device, int64_t bytes) {
  const int64_t whole = align_up(std::max<int64_t>(bytes, 1), kBlock);
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < free_.size(); ++i) {
    const Region& region = regions_[size_t(free_[i])];
    if (region.device != device || region.bytes != whole) continue;
    free_.erase(free_.begin() + ptrdiff_t(i));
    return region.base;
  }
  check_device(device);
  const OnDevice guard(device);
  const BesideCaptures beside;
  void* memory = nullptr;
  check(cudaMalloc(&memory, size_t(whole)), "cudaMalloc",
        "Free device memory, or take tensors that are not shared");
  const int index = count();
  if (index == RegionPlace::kMostRegions) return memory;
  Region& region = regions_[size_t(index)];
  region = {static_cast<std::byte*>(memory), whole, device, {}};
  if (!export_by_ipc(memory, region.handle)) return memory;
  count_.store(index + 1, std::memory_order_release);
  return memory;
}

void Regions::free(void* at) {
  const std::lock_guard lock(mutex_);
  for (int i = 0; i < count(); ++i)
    if (regions_[size_t(i)].base == at) return free_.push_back(i);
  (void)cudaFree(at);
}

RegionPlace Regions::place_of(const void* at, int64_t bytes) const {
  const auto* const p = static_cast<const std::byte*>(at);
  for (int i = 0; i < count(); ++i) {
    const Region& r = regions_[size_t(i)];
    if (p >= r.base && p < r.base + r.bytes && bytes <= r.base + r.bytes - p)
      return {i, p - r.base};
  }
  return {};
}

// ---- Regions of the other ranks

struct PeerRegions::Board {
  struct Entry {
    cudaIpcMemHandle_t handle;
    int64_t bytes;  // 0: on another device than the rank's
  };
  int64_t shown;
  int64_t mapped[MeshGeometry::kMostRanks];  // by rank
  Entry entries[RegionPlace::kMostRegions];
};

PeerRegions::PeerRegions(int device, int rank, int ranks)
    : device_(device), rank_(rank), ranks_(ranks), file_(int64_t(sizeof(Board))),
      boards_(size_t(ranks), nullptr), mapped_(size_t(ranks), 0), opened_(device) {
  file_.allocate(0, sizeof(Board));
  boards_[size_t(rank)] = static_cast<Board*>(mappings_.map(file_.fd(), 0, sizeof(Board)));
  const OnDevice guard(device);
  const size_t bytes = sizeof(PeerRegion) * size_t(ranks) * RegionPlace::kMostRegions;
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
  table_ = static_cast<PeerRegion*>(cuda::allocate(bytes));
  check(cudaMemsetAsync(table_, 0, bytes, stream_), "cudaMemsetAsync");
  check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
}

PeerRegions::~PeerRegions() {
  unmap();
  try {
    const OnDevice guard(device_);
    if (stream_ != nullptr) (void)cudaStreamDestroy(stream_);
    if (table_ != nullptr) (void)cudaFree(table_);
  } catch (const Error&) {
    // The driver has shut down before us, at exit.
  }
}

void PeerRegions::meet(int peer, int fd, const RankNames& names) {
  check_memory_of(peer, fd, sizeof(Board), names);
  boards_[size_t(peer)] = static_cast<Board*>(
      mappings_.map(fd, 0, sizeof(Board), "mmap of the board of " + names.text(peer)));
}

void PeerRegions::exchange() {
  Board& mine = *boards_[size_t(rank_)];
  for (const int count = Regions::mine().count(); shown_ < count;
       store(mine.shown, int64_t(++shown_))) {
    const Regions::Region& r = Regions::mine().at(shown_);
    mine.entries[shown_] = {r.handle, r.device == device_ ? r.bytes : 0};
  }
  for (int peer = 0; peer < ranks_; ++peer) {
    if (peer == rank_ || boards_[size_t(peer)] == nullptr) continue;
    const auto shown =
        std::min<int64_t>(load(boards_[size_t(peer)]->shown), RegionPlace::kMostRegions);
    int& looked = mapped_[size_t(peer)];
    for (; looked < shown && map_next(peer, looked); store(mine.mapped[peer], int64_t(looked)))
      ++looked;
  }
}

bool PeerRegions::map_next(int peer, int index) {
  const Board::Entry& entry = boards_[size_t(peer)]->entries[index];
  if (entry.bytes <= 0) return true;
  const OnDevice guard(device_);
  const BesideCaptures beside;
  std::string why_not;
  void* const at = opened_.open(entry.handle, why_not);
  if (at == nullptr) {
    mapped_[size_t(peer)] = RegionPlace::kMostRegions;
    return false;
  }
  write_table(peer, index, {static_cast<std::byte*>(at), entry.bytes});
  return true;
}

// Writes before the peer is told that the region is mapped: a kernel that already runs may need it.
void PeerRegions::write_table(int peer, int index, const PeerRegion& region) {
  check(cudaMemcpyAsync(table_ + peer * RegionPlace::kMostRegions + index, &region, sizeof region,
                        cudaMemcpyHostToDevice, stream_),
        "cudaMemcpyAsync");
  check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
}

uint64_t PeerRegions::place_of(const void* at, int64_t bytes) const {
  const RegionPlace place = Regions::mine().place_of(at, bytes);
  for (int peer = 0; peer < ranks_; ++peer)
    if (peer != rank_ && (boards_[size_t(peer)] == nullptr ||
                          load(boards_[size_t(peer)]->mapped[rank_]) <= place.region))
      return 0;
  return place.word();
}

uint64_t PeerRegions::place_in(const AcrossArgs& args) const {
  const RankArgs& rank = args.ranks[0];
  const bool multiplied = args.reduction.scale == Reduction::Scale::multiply_input;
  return rank.in != rank.out || multiplied ? 0 : place_of(rank.out, args.plan.tensors.bytes);
}

}  // namespace ringkern::cuda
