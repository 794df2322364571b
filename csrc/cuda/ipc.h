// The device memory that ranks share: IpcTransport between processes. Ranks of one process do not
// need it: their segments are plain pointers (cuda/local.h), and CUDA refuses to open a handle in
// the process that made it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "comm/interfaces.h"
#include "comm/memory_file.h"
#include "cuda/device.h"
#include "cuda/device_memory.h"
#include "cuda/prober.h"
#include "cuda/regions.h"

namespace ringkern::cuda {

// A segment in device memory, which other ranks open, and one in host memory. The latter is a
// memory file that both ranks of a pair register if either cannot open the other's device memory.
// It is allocated only if a pair needs it, which most do not. The kernels are the same.
class IpcTransport final : public Transport {
 public:
  // Allocates and clears `bytes` on `device`. `regions`, if there are any, meet those of the other
  // ranks. Throws TransportError.
  IpcTransport(int device, int64_t bytes, int rank, int ranks,
               std::shared_ptr<PeerRegions> regions = nullptr);
  ~IpcTransport() override { unmap(); }
  IpcTransport(const IpcTransport&) = delete;
  IpcTransport& operator=(const IpcTransport&) = delete;

  void* mine() override { return mine_.at(); }
  Offer offer() override;
  void set_orders(const RingOrders& orders) override { orders_ = orders; }
  // Throws TransportError. Returns null for device memory that this rank cannot open; `settle` then
  // takes host memory. With more ranks than kMostOnHost, neighbours must be able to open it.
  void* map(const Offer& offer, int peer) override;
  std::optional<uint32_t> mapped() const override;
  void settle(uint32_t both, Segments& segments) override;
  SharedMemory memory() const override;
  bool carries_lines() const override { return carries_lines_; }
  bool unmap() override;
  void abandon() override { mine_.abandon(); }
  void begin_probe(std::span<ProbedLink> links) override;
  void end_probe(std::span<ProbedLink> links, Milliseconds patience,
                 const std::function<void()>& look) override;
  bool reads_others() const override { return false; }
  std::string place() const override { return Prober::place(device_); }
  std::string remedy() const override { return Prober::remedy(); }

 private:
  struct Ticket;

  bool is_neighbour(int peer) const { return orders_.are_neighbours(rank_, peer, ranks_); }
  bool has_bits() const { return ranks_ <= kMostOnHost; }
  void* use_host(void* memory, const std::string& why);

  const int device_;
  const int64_t bytes_;
  const int rank_, ranks_;
  RingOrders orders_;
  DeviceMemory mine_;
  OpenedMemory theirs_;
  MemoryFile host_;
  Mappings host_mappings_;
  std::vector<void*> theirs_on_host_;          // by rank; null: not mapped
  std::vector<std::string> refusals_;          // by rank: why its device memory was not opened
  std::vector<MemoryHandle::Kind> opened_by_;  // by rank
  std::vector<std::string> detours_;
  std::vector<void*> registered_;
  uint32_t mapped_ = 0;
  bool carries_lines_ = true;  // to the neighbours that were mapped
  const std::shared_ptr<PeerRegions> regions_;
  std::optional<Prober> prober_;  // until the links have been probed
};

}  // namespace ringkern::cuda
