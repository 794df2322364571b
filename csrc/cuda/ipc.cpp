#include "cuda/ipc.h"

#include <unistd.h>

#include <cstring>

namespace ringkern::cuda {
namespace {

constexpr int64_t kBlock = 2 << 20;
constexpr const char* kNoHandles =
    "CUDA IPC is not available here: it needs Linux, a GPU outside of confidential-computing mode "
    "and, under WSL, a newer driver";

}  // namespace

struct IpcTransport::Ticket {
  cudaIpcMemHandle_t handle;
  int64_t bytes;
  char bus[16];      // of the device
  int64_t exported;  // 0: there is no handle
  int64_t pid;
};

IpcTransport::IpcTransport(int device, int64_t bytes, int rank, int ranks,
                           std::shared_ptr<PeerRegions> regions)
    : device_(device), bytes_(bytes), rank_(rank), ranks_(ranks), host_(bytes),
      theirs_on_host_(size_t(ranks), nullptr), refusals_(size_t(ranks)),
      regions_(std::move(regions)) {
  check_device(device);
  const OnDevice guard(device);
  const std::string need = "A rank needs " + mib(double(bytes)) + " of device memory for its FIFOs";
  // Smaller allocations share a block, and a handle is one to the whole block.
  mine_ =
      allocate(size_t(align_up(bytes, kBlock)), (need + "; free some, or use another GPU").c_str());
  try {
    // Before anybody gets a handle: a neighbour's first write must not be cleared.
    clear(device, mine_, size_t(bytes));
  } catch (...) {
    (void)cudaFree(mine_);
    throw;
  }
}

IpcTransport::~IpcTransport() {
  unmap();
  if (mine_ == nullptr) return;
  try {
    const OnDevice guard(device_);
    (void)cudaFree(mine_);
  } catch (const Error&) {
    // The driver has shut down before us, at exit, and has taken the memory back.
  }
}

// A device whose memory cannot be exported offers host memory alone: its ticket has no handle.
Offer IpcTransport::offer() {
  const OnDevice guard(device_);
  Ticket ticket{};
  ticket.bytes = bytes_;
  ticket.pid = ::getpid();
  bus_of(device_).copy(ticket.bus, sizeof ticket.bus - 1);
  const cudaError_t error = cudaIpcGetMemHandle(&ticket.handle, mine_);
  if (error != cudaSuccess && has_bits()) (void)cudaGetLastError();
  else check(error, "cudaIpcGetMemHandle", kNoHandles);
  ticket.exported = error == cudaSuccess ? 1 : 0;
  Offer offer{std::string(reinterpret_cast<const char*>(&ticket), sizeof ticket)};
  (regions_ == nullptr ? offer.fd : offer.second_fd) = host_.fd();
  if (regions_ != nullptr) offer.fd = regions_->fd();
  return offer;
}

void* IpcTransport::map(const Offer& offer, int peer) {
  const std::string whose = "the memory offered by " + names_.text(peer);
  Ticket ticket{};
  if (offer.bytes.size() != sizeof ticket)
    throw TransportError(whose + " is refused: expected the " + std::to_string(sizeof ticket) +
                         " bytes of a CUDA offer, found " + std::to_string(offer.bytes.size()));
  std::memcpy(&ticket, offer.bytes.data(), sizeof ticket);
  if (ticket.bytes != bytes_)
    throw TransportError(whose + " is refused: expected " + std::to_string(bytes_) +
                         " bytes, found " + std::to_string(ticket.bytes));
  ticket.bus[sizeof ticket.bus - 1] = 0;
  const int host = regions_ == nullptr ? offer.fd : offer.second_fd;
  check_memory_of(peer, host, bytes_, names_);
  theirs_on_host_[size_t(peer)] = host_mappings_.map(host, 0, bytes_, "mmap of " + whose);
  if (regions_ != nullptr) regions_->meet(peer, offer.fd, names_);
  void* const at = map_device(ticket, peer);
  if (at != nullptr && is_neighbour(peer))
    carries_lines_ = carries_lines_ && cuda::carries_lines(device_, ticket.bus);
  if (at != nullptr && has_bits()) mapped_ |= uint32_t(1) << peer;
  if (at == nullptr && !has_bits() && is_neighbour(peer))
    throw TransportError("the device memory of " + names_.text(peer) +
                         " cannot be opened: " + refusals_[size_t(peer)] +
                         ". Neighbours on a ring of more than " + std::to_string(kMostOnHost) +
                         " ranks need one GPU, or two with peer "
                         "access to each other (see nvidia-smi topo -p2p r)");
  return at;
}

// Returns null where it cannot be opened, and notes why.
void* IpcTransport::map_device(const Ticket& ticket, int peer) {
  std::string& refusal = refusals_[size_t(peer)];
  if (ticket.exported == 0) return refusal = "its device exports none", nullptr;
  if (host_memory_only) return refusal = "RINGKERN_CUDA_MEMORY=host", nullptr;
  if (ticket.pid == ::getpid())
    return refusal = "both processes are pid " + std::to_string(ticket.pid) +
                     " in pid namespaces of their own, and CUDA IPC does not tell them apart",
           nullptr;
  const OnDevice guard(device_);
  mappings_.reserve(mappings_.size() + 1);
  void* at = nullptr;
  const cudaError_t error =
      cudaIpcOpenMemHandle(&at, ticket.handle, cudaIpcMemLazyEnablePeerAccess);
  if (error != cudaSuccess) {
    (void)cudaGetLastError();  // or a later call of someone else would report it
    return refusal = describe("cudaIpcOpenMemHandle", error), nullptr;
  }
  mappings_.push_back(at);
  return at;
}

std::optional<uint32_t> IpcTransport::mapped() const {
  if (!has_bits()) return {};
  return mapped_;
}

void IpcTransport::settle(uint32_t both, Segments& segments) {
  for (int peer = 0; peer < ranks_; ++peer) {
    if (peer == rank_ || (both >> peer & 1) != 0) continue;
    const std::string& refusal = refusals_[size_t(peer)];
    const std::string why =
        names_.text(rank_) + " and " + names_.text(peer) +
        " use host memory, since one cannot open the device memory of the other (" +
        (refusal.empty() ? names_.text(peer) + " says so" : refusal) + ")";
    if (segments.host == nullptr) {
      host_.allocate(0, bytes_);
      segments.host =
          use_host(host_mappings_.map(host_.fd(), 0, bytes_, "mmap of its own segment"), why);
    }
    segments.all[size_t(peer)] = use_host(theirs_on_host_[size_t(peer)], why);
    segments.on_host |= uint32_t(1) << peer;
    detours_.push_back(why);
    if (is_neighbour(peer)) carries_lines_ = false;  // over PCIe
  }
}

// Registers host memory, and returns where the device sees it.
void* IpcTransport::use_host(void* memory, const std::string& why) {
  const OnDevice guard(device_);
  const unsigned flags = cudaHostRegisterPortable | cudaHostRegisterMapped;
  const std::string remedy = why +
                             ". Raise the limit of locked memory (ulimit -l), or give the "
                             "GPUs peer access (nvidia-smi topo -p2p r) and the processes one pid "
                             "and IPC namespace (docker: --ipc=host --pid=host)";
  registered_.reserve(registered_.size() + 1);
  check(cudaHostRegister(memory, size_t(bytes_), flags), "cudaHostRegister", remedy.c_str());
  registered_.push_back(memory);
  void* seen = nullptr;
  check(cudaHostGetDevicePointer(&seen, memory, 0), "cudaHostGetDevicePointer", remedy.c_str());
  return seen;
}

void IpcTransport::begin_probe(std::span<ProbedLink> links) {
  prober_.emplace(device_);
  prober_->stage(links);
}

void IpcTransport::end_probe(std::span<ProbedLink> links, Milliseconds patience,
                             const std::function<void()>& look) {
  prober_->launch(links, patience);
  prober_->finish(links, patience, look);
  prober_.reset();
}

bool IpcTransport::unmap() {
  prober_.reset();  // before what it writes to is unmapped
  if (regions_ != nullptr) regions_->unmap();
  if (mappings_.empty() && registered_.empty()) return mine_ != nullptr;
  try {
    const OnDevice guard(device_);
    for (void* at : mappings_) (void)cudaIpcCloseMemHandle(at);
    for (void* memory : registered_) (void)cudaHostUnregister(memory);
  } catch (const Error&) {
    // As in the destructor.
  }
  mappings_.clear(), registered_.clear();
  return true;
}

}  // namespace ringkern::cuda
