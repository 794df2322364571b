#include "cuda/ipc.h"

#include <unistd.h>

#include <cstring>

#include "cuda/device.h"

namespace ringkern::cuda {
namespace {

constexpr int64_t kBlock = 2 << 20;

}  // namespace

struct IpcTransport::Ticket {
  cudaIpcMemHandle_t handle;
  int64_t bytes;
  char bus[16];  // of the device
  int64_t pid;
};

IpcTransport::IpcTransport(int device, int64_t bytes, int rank, int ranks,
                           std::shared_ptr<PeerRegions> regions)
    : device_(device), bytes_(bytes), rank_(rank), ranks_(ranks), regions_(std::move(regions)) {
  check_device(device);
  const OnDevice guard(device);
  const std::string need = "A rank needs " + mib(double(bytes)) + " of device memory for its FIFOs";
  // Smaller allocations share a block, and a handle is one to the whole block.
  mine_ =
      allocate(size_t(align_up(bytes, kBlock)), (need + "; free some, or use another GPU").c_str());
  // Before anybody gets a handle: a neighbour's first write must not be cleared. On a stream of its
  // own, or it would wait for kernels that wait for their peers.
  cudaStream_t stream = nullptr;
  cudaError_t error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  if (error == cudaSuccess) error = cudaMemsetAsync(mine_, 0, size_t(bytes), stream);
  if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
  if (stream != nullptr) (void)cudaStreamDestroy(stream);
  if (error == cudaSuccess) return;
  (void)cudaFree(mine_);
  check(error, "cudaMemsetAsync", need.c_str());
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

Offer IpcTransport::offer() {
  const OnDevice guard(device_);
  Ticket ticket{};
  ticket.bytes = bytes_;
  ticket.pid = ::getpid();
  bus_of(device_).copy(ticket.bus, sizeof ticket.bus - 1);
  check(cudaIpcGetMemHandle(&ticket.handle, mine_), "cudaIpcGetMemHandle",
        "CUDA IPC is not available here: it needs Linux, a GPU outside of confidential-computing "
        "mode and, under WSL, a newer driver");
  return {std::string(reinterpret_cast<const char*>(&ticket), sizeof ticket),
          regions_ == nullptr ? -1 : regions_->fd()};
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
  if (ticket.pid == ::getpid())
    throw TransportError(whose + " is of this process (pid " + std::to_string(ticket.pid) +
                         "), and CUDA does not open a handle in the process that made it. Start "
                         "one process a rank, and see that they do not all believe to be pid " +
                         std::to_string(ticket.pid) +
                         " in pid namespaces of their own "
                         "(docker: --pid=host, or one container for all ranks)");
  if (regions_ != nullptr) regions_->meet(peer, offer.fd, names_);
  const OnDevice guard(device_);
  mappings_.reserve(mappings_.size() + 1);
  void* at = nullptr;
  const cudaError_t error =
      cudaIpcOpenMemHandle(&at, ticket.handle, cudaIpcMemLazyEnablePeerAccess);
  if (error != cudaSuccess && !is_neighbour(peer)) {
    (void)cudaGetLastError();  // or a later call of someone else would report it
    return nullptr;
  }
  check(error, ("cudaIpcOpenMemHandle of " + whose).c_str(),
        "Neighbours on a ring need one GPU, or two with peer access to each other (see "
        "nvidia-smi topo -p2p r), and their processes one pid and IPC namespace (docker: "
        "--ipc=host --pid=host, or one container for all ranks)");
  mappings_.push_back(at);
  ticket.bus[sizeof ticket.bus - 1] = 0;
  if (is_neighbour(peer))
    carries_lines_ = carries_lines_ && cuda::carries_lines(device_, ticket.bus);
  return at;
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
  if (mappings_.empty()) return mine_ != nullptr;
  try {
    const OnDevice guard(device_);
    for (void* at : mappings_) (void)cudaIpcCloseMemHandle(at);
  } catch (const Error&) {
    // As in the destructor.
  }
  mappings_.clear();
  return true;
}

}  // namespace ringkern::cuda
