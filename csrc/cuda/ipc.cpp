#include "cuda/ipc.h"

#include <algorithm>
#include <cstring>

namespace ringkern::cuda {

struct IpcTransport::Ticket {
  int64_t bytes;
  char bus[16];  // of the device
  MemoryHandle memory;
};

IpcTransport::IpcTransport(int device, int64_t bytes, int rank, int ranks,
                           std::shared_ptr<PeerRegions> regions)
    : device_(device), bytes_(bytes), rank_(rank), ranks_(ranks),
      mine_(device, bytes,
            "A rank needs " + mib(double(bytes)) +
                " of device memory for its FIFOs; free some, or use another GPU"),
      theirs_(device), host_(bytes), theirs_on_host_(size_t(ranks), nullptr),
      refusals_(size_t(ranks)), opened_by_(size_t(ranks), MemoryHandle::Kind::none),
      regions_(std::move(regions)) {}

// A device whose memory cannot be exported offers only host memory: its ticket has no handle.
Offer IpcTransport::offer() {
  Ticket ticket{bytes_, {}, mine_.handle()};
  bus_of(device_).copy(ticket.bus, sizeof ticket.bus - 1);
  Offer offer{std::string(reinterpret_cast<const char*>(&ticket), sizeof ticket), {host_.fd()}};
  if (regions_ != nullptr) offer.fds.push_back(regions_->fd());
  if (mine_.fd() >= 0) offer.fds.push_back(mine_.fd());
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
  check_memory_of(peer, offer.fd(), bytes_, names_);
  theirs_on_host_[size_t(peer)] = host_mappings_.map(offer.fd(), 0, bytes_, "mmap of " + whose);
  if (regions_ != nullptr) regions_->meet(peer, offer.fd(1), names_);
  std::string& refusal = refusals_[size_t(peer)];
  void* at = nullptr;
  if (memory_choice == MemoryChoice::host) refusal = "RINGKERN_CUDA_MEMORY=host";
  else at = theirs_.open(ticket.memory, offer.fd(regions_ == nullptr ? 1 : 2), refusal);
  if (at != nullptr && is_neighbour(peer))
    carries_lines_ = carries_lines_ && cuda::carries_lines(device_, ticket.bus);
  if (at != nullptr) opened_by_[size_t(peer)] = ticket.memory.kind;
  if (at != nullptr && has_bits()) mapped_ |= uint32_t(1) << peer;
  if (at == nullptr && !has_bits() && is_neighbour(peer))
    throw TransportError("the device memory of " + names_.text(peer) +
                         " cannot be opened: " + refusals_[size_t(peer)] +
                         ". Neighbours on a ring of more than " + std::to_string(kMostOnHost) +
                         " ranks need one GPU, or two with peer "
                         "access to each other (see nvidia-smi topo -p2p r)");
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
    opened_by_[size_t(peer)] = MemoryHandle::Kind::none;
    if (is_neighbour(peer)) carries_lines_ = false;  // over PCIe
  }
}

SharedMemory IpcTransport::memory() const {
  using enum MemoryHandle::Kind;
  std::string device;
  for (const auto& [kind, name] :
       {std::pair(descriptor, "file descriptor"), std::pair(ipc, "CUDA IPC")})
    if (std::ranges::count(opened_by_, kind) > 0)
      device += (device.empty() ? "" : " and ") + std::string(name);
  return {device, detours_};
}

// Registers host memory, and returns its device address.
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
  mine_.close_fd();  // all ranks have it
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
  if (theirs_.empty() && registered_.empty()) return mine_.at() != nullptr;
  theirs_.close();
  try {
    const OnDevice guard(device_);
    for (void* memory : registered_) (void)cudaHostUnregister(memory);
  } catch (const Error&) {
    // The driver has shut down before us, at exit.
  }
  registered_.clear();
  return true;
}

}  // namespace ringkern::cuda
