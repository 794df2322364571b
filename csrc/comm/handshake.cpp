#include "comm/handshake.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <system_error>

#include "comm/agreement.h"
#include "comm/process.h"
#include "comm/socket.h"

namespace ringkern {
namespace {

constexpr uint32_t kMagic = 0x6e726b72;  // "rkrn"

template <size_t N>
void copy_text(char (&to)[N], const std::string& from) {
  std::memset(to, 0, N);
  std::memcpy(to, from.data(), std::min(from.size(), N - 1));
}

template <size_t N>
std::string text(const char (&from)[N]) {
  return printable(std::string(from, ::strnlen(from, N)));
}

// Returns the host's boot id; empty if /proc is not mounted.
std::string boot_id() {
  Fd fd(::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
  if (!fd) return {};
  char buffer[40];
  const ssize_t n = ::read(fd.get(), buffer, sizeof buffer - 1);
  std::string id(buffer, n > 0 ? size_t(n) : 0);
  while (!id.empty() && id.back() == '\n') id.pop_back();
  return id;
}

uint64_t network_namespace() {
  struct stat s;
  return ::stat("/proc/self/ns/net", &s) == 0 ? s.st_ino : 0;
}

// Describes a difference. The lower rank comes first, so that both ranks give the same text.
std::string disagreement(const std::string& what, int my_rank, const std::string& mine,
                         int peer_rank, const std::string& theirs, const RankNames& names) {
  const bool mine_first = my_rank < peer_rank;
  return names.text(mine_first ? my_rank : peer_rank) + " has " + what + " " +
         (mine_first ? mine : theirs) + ", " + names.text(mine_first ? peer_rank : my_rank) +
         " has " + (mine_first ? theirs : mine);
}

void check_version(uint32_t mine, int my_rank, uint32_t theirs, int peer_rank,
                   const RankNames& names) {
  if (mine == theirs) return;
  throw RendezvousError(disagreement("ringkern wire version", my_rank, std::to_string(mine),
                                     peer_rank, std::to_string(theirs), names) +
                        ": install the same ringkern for all ranks");
}

void check_terms(const Hello& mine, const Hello& theirs, const RankNames& names) {
  struct Field {
    const char* name;
    int64_t mine, theirs;
  };
  const Field fields[] = {
#define RK_FIELD(name, member) {name, mine.member, theirs.member}
      RK_FIELD("group size", size),
      RK_FIELD("channels", channels),
      RK_FIELD("slots", slots),
      RK_FIELD("slot_bytes of simple", slot_bytes[int(Protocol::simple)]),
      RK_FIELD("slot_bytes of ll", slot_bytes[int(Protocol::ll)]),
      RK_FIELD("slot_bytes of ll128", slot_bytes[int(Protocol::ll128)]),
      RK_FIELD("segment bytes", segment_bytes),
      RK_FIELD("workers", workers),
      RK_FIELD("RK_LL_FLAG_BITS", ll_flag_bits),
#undef RK_FIELD
  };
  static_assert(kProtocols == 3, "every protocol's slot_bytes is compared above");
  const std::string remedy = ": all ranks of a group need the same devices and settings";
  if (text(mine.device) != text(theirs.device))
    throw RendezvousError(disagreement("device", mine.from, text(mine.device), theirs.from,
                                       text(theirs.device), names) +
                          remedy);
  for (const Field& f : fields)
    if (f.mine != f.theirs)
      throw RendezvousError(disagreement(f.name, mine.from, std::to_string(f.mine), theirs.from,
                                         std::to_string(f.theirs), names) +
                            remedy);
}

}  // namespace

Id random_id() {
  Id id;
  size_t filled = 0;
  while (filled < id.size()) {
    const ssize_t n = ::getrandom(id.data() + filled, id.size() - filled, 0);
    if (n > 0) filled += size_t(n);
    else if (errno != EINTR) throw std::system_error(errno, std::generic_category(), "getrandom");
  }
  return id;
}

std::string socket_name(const Id& id) {
  std::string name = "ringkern-";
  for (const uint8_t byte : id)
    for (const int digit : {byte >> 4, byte & 15}) name += "0123456789abcdef"[digit];
  return name;
}

bool equal(const Id& a, const Id& b) {
  volatile uint8_t differs = 0;
  for (size_t i = 0; i < a.size(); ++i) differs = uint8_t(differs | (a[i] ^ b[i]));
  return differs == 0;
}

Address my_address(const Terms& terms, const Id& session) {
  Address a{};
  a.magic = kMagic;
  a.version = terms.version;
  a.session = session;
  a.socket = random_id();
  copy_text(a.boot, boot_id());
  char host[sizeof a.host] = {};
  ::gethostname(host, sizeof host - 1);
  copy_text(a.host, host);
  a.network = network_namespace();
  a.pids = pid_namespace();
  a.pid = ::getpid();
  copy_text(a.bus, terms.room.bus);
  a.uuid = terms.room.uuid;
  a.blocks = terms.room.blocks;
  return a;
}

Hello my_hello(const Terms& terms, const Id& session, int size, int from, int to) {
  Hello h{};
  h.magic = kMagic;
  h.version = terms.version;
  h.session = session;
  h.from = from;
  h.to = to;
  h.pid = ::getpid();
  copy_text(h.device, terms.device);
  h.size = size;
  h.channels = terms.geometry.channels;
  h.slots = terms.geometry.slots;
  for (int p = 0; p < kProtocols; ++p) h.slot_bytes[p] = terms.geometry.slot_bytes[p];
  h.segment_bytes = terms.segment_bytes;
  h.workers = terms.workers;
  h.ll_flag_bits = RK_LL_FLAG_BITS;
  return h;
}

Address read_address(const std::string& bytes, int rank, const Address& mine, int my_rank,
                     const RankNames& names) {
  Address a{};
  const size_t head = offsetof(Address, session);
  std::memcpy(&a, bytes.data(), std::min(bytes.size(), sizeof a));
  if (bytes.size() < head || a.magic != kMagic)
    throw RendezvousError("the store holds no ringkern address of " + names.text(rank) + ", but " +
                          std::to_string(bytes.size()) + " other bytes. Nothing else may write " +
                          "keys that start with 'ringkern/'");
  check_version(mine.version, my_rank, a.version, rank, names);
  if (bytes.size() != sizeof a)
    throw RendezvousError("the address of " + names.text(rank) + " has " +
                          std::to_string(bytes.size()) + " bytes, expected " +
                          std::to_string(sizeof a) + ": install the same ringkern for all ranks");
  return a;
}

DeviceRoom room_in(const Address& a) { return {text(a.bus), a.uuid, a.blocks}; }

void check_reachable(const Address& mine, int my_rank, const Address& peer, int peer_rank,
                     const RankNames& names) {
  const auto both = [&](const std::string& m, const std::string& p) {
    return names.text(my_rank) + " " + m + ", " + names.text(peer_rank) + " " + p + ": ";
  };
  const auto place = [](const Address& a) {
    return "is on host " + text(a.host) + " (boot " + text(a.boot) + ")";
  };
  if (mine.boot[0] != 0 && peer.boot[0] != 0 && text(mine.boot) != text(peer.boot))
    throw TransportError(both(place(mine), place(peer)) +
                         "ringkern's ring works inside one host; "
                         "give it a group of ranks of one host");
  if (mine.network != 0 && peer.network != 0 && mine.network != peer.network)
    throw TransportError(
        both("is in network namespace " + std::to_string(mine.network),
             "in " + std::to_string(peer.network)) +
        "the Unix sockets of ringkern do not cross network namespaces; start all ranks of a host "
        "in one (docker: --network=host, or --network=container:NAME of the first)");
}

bool has_ended(const Address& mine, const Address& peer) {
  if (peer.pids == 0 || peer.pids != mine.pids) return false;
  const char state = process_state(peer.pid);
  return state == 0 || state == 'Z';
}

bool is_greeting(const std::string& bytes, const Id& session) {
  Hello h{};
  const size_t head = offsetof(Hello, from);
  if (bytes.size() < head) return false;
  std::memcpy(&h, bytes.data(), head);
  return h.magic == kMagic && equal(h.session, session);
}

Greeting read_greeting(const std::string& bytes, const Hello& mine, int from,
                       const RankNames& names) {
  Greeting g{};
  std::memcpy(&g.hello, bytes.data(), std::min(bytes.size(), sizeof g.hello));
  if (!is_greeting(bytes, mine.session))
    throw RendezvousError("the greeting of " + names.text(from) +
                          " does not belong to this ring: give each process its own rank, and "
                          "install the same ringkern for all ranks");
  check_version(mine.version, mine.from, g.hello.version, from, names);
  if (bytes.size() < sizeof g.hello || bytes.size() - sizeof g.hello != g.hello.offer_bytes)
    throw RendezvousError("the greeting of " + names.text(from) + " has " +
                          std::to_string(bytes.size()) +
                          " bytes, which differs from its header: "
                          "install the same ringkern for all ranks");
  if (g.hello.from != from || g.hello.to != mine.from)
    throw RendezvousError("received a greeting of " + names.text(g.hello.from) + " to " +
                          names.text(g.hello.to) + ", expected one of " + names.text(from) +
                          " to " + names.text(mine.from) +
                          ": give all ranks the same order of the ranks");
  check_terms(mine, g.hello, names);
  g.offer = bytes.substr(sizeof g.hello);
  return g;
}

std::string passed_on(const Terms& terms, const Id& session, int owner, const std::string& offer) {
  return to_bytes(PassedOn{kMagic, terms.version, session, owner, uint32_t(offer.size())}) + offer;
}

std::string read_passed_on(const std::string& bytes, const Hello& mine, int owner, int from,
                           const RankNames& names) {
  PassedOn p{};
  std::memcpy(&p, bytes.data(), std::min(bytes.size(), sizeof p));
  if (!is_greeting(bytes, mine.session) || bytes.size() < sizeof p ||
      bytes.size() - sizeof p != p.offer_bytes || p.owner != owner)
    throw RendezvousError(names.text(from) + " had to pass the offer of " + names.text(owner) +
                          " to " + names.text(mine.from) +
                          ", but sent other bytes: install the same ringkern for all ranks");
  return bytes.substr(sizeof p);
}

std::string not_whole(int from, int my_rank, const RankNames& names) {
  return "the greeting of " + names.text(from) + " did not arrive whole: it is malformed, or " +
         names.text(my_rank) + " has too many open files. Raise that limit (ulimit -n)";
}

}  // namespace ringkern
