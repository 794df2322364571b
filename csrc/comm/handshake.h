// The messages of ranks that connect: an Address, left in the store, and a Hello, sent
// over the socket. Fixed structs of little-endian numbers. Data of another rank is checked here,
// and never used as a size or an offset.
#pragma once

#include <array>
#include <bit>
#include <string>
#include <type_traits>

#include "comm/interfaces.h"

namespace ringkern {

// Must change with everything that ranks need to have equal: these structs, the layout of segments,
// flags and counters, and the order in which the ring moves chunks.
inline constexpr uint32_t kLayoutVersion = 13;

// A hash of the lists whose entries ranks exchange as numbers.
constexpr uint16_t lists_version() {
  uint32_t h = 2166136261;
  const auto add = [&h](const char* name) {
    for (; *name; ++name) h = (h ^ uint8_t(*name)) * 16777619;
    h = (h ^ 0xff) * 16777619;
  };
  for (int d = 0; d < kDTypes; ++d) add(name_of(DType(d)));
  for (const MovedDType& d : kMoved) add(d.name);
  for (int c = 0; c < kCollectives; ++c) add(name_of(Collective(c)));
  for (int a = 0; a < kAlgorithms; ++a) add(name_of(Algorithm(a)));
  for (int p = 0; p < kProtocols; ++p) add(name_of(Protocol(p)));
  return uint16_t(h ^ h >> 16);
}

inline constexpr uint32_t kWireVersion = kLayoutVersion << 16 | lists_version();

// 128 random bits: a socket's name cannot be guessed, and no ring takes another ring's ranks.
using Id = std::array<uint8_t, 16>;
Id random_id();
std::string socket_name(const Id& id);
bool equal(const Id& a, const Id& b);  // in constant time

// The settings that must be alike on all ranks of a ring.
struct Terms {
  std::string device = "cpu";  // the kind alone, without an index
  Geometry geometry;
  int64_t segment_bytes = 0;
  int64_t workers = 1;  // Plan::make
  uint32_t version = kWireVersion;
  DeviceRoom room{};  // of this rank's device; not compared
};

struct Address {
  uint32_t magic, version;
  Id session;  // rank 0's is the ring's
  Id socket;
  char boot[40];     // the host's boot id
  char host[64];     // its name, for messages
  uint64_t network;  // inode of the network namespace; 0: unknown
  uint64_t pids;     // inode of the pid namespace; 0: unknown
  int64_t pid;
  char bus[32];
  Id uuid;  // of the device
  int64_t blocks;
};

struct Hello {
  uint32_t magic, version;
  Id session;
  int32_t from, to;  // ranks
  int32_t pid;
  uint32_t offer_bytes;  // of the offer that follows this struct
  char device[16];
  int64_t size, channels, slots, slot_bytes[kProtocols], segment_bytes, workers, ll_flag_bits;
};

// An offer of `owner`, on its way round the ring.
struct PassedOn {
  uint32_t magic, version;
  Id session;
  int32_t owner;
  uint32_t offer_bytes;  // of the offer that follows this struct
};

// Without padding and little-endian, so that the bytes in memory are the bytes on the wire.
static_assert(std::endian::native == std::endian::little);
static_assert(std::is_trivially_copyable_v<Address> && sizeof(Address) == 224);
static_assert(std::is_trivially_copyable_v<PassedOn> && sizeof(PassedOn) == 32);
static_assert(std::is_trivially_copyable_v<Hello> && sizeof(Hello) == 56 + 9 * 8);

Address my_address(const Terms& terms, const Id& session);
Hello my_hello(const Terms& terms, const Id& session, int size, int from, int to);

// Reads an address. Throws RendezvousError if the bytes are none, or if its version differs from
// `mine`.
Address read_address(const std::string& bytes, int rank, const Address& mine, int my_rank,
                     const RankNames& names = {});
DeviceRoom room_in(const Address& address);
// Throws TransportError if the peer's process cannot be reached from this one.
void check_reachable(const Address& mine, int my_rank, const Address& peer, int peer_rank,
                     const RankNames& names = {});

// Returns whether the peer's process has ended, as far as this one can see.
bool has_ended(const Address& mine, const Address& peer);

// Returns whether a greeting belongs to this ring; if not, the peer is unidentified.
bool is_greeting(const std::string& bytes, const Id& session);
// A greeting and the offer that follows it. read_greeting() reads the greeting that `from` sends to
// `mine.from`. It throws RendezvousError; if the two ranks differ in a field, the error names the
// first one and both values.
struct Greeting {
  Hello hello;
  std::string offer;
};
Greeting read_greeting(const std::string& bytes, const Hello& mine, int from,
                       const RankNames& names = {});
// Encodes an offer that is passed round the ring; decodes one, or throws RendezvousError.
std::string passed_on(const Terms& terms, const Id& session, int owner, const std::string& offer);
std::string read_passed_on(const std::string& bytes, const Hello& mine, int owner, int from,
                           const RankNames& names = {});
// Returns the error text of a broken message.
std::string not_whole(int from, int my_rank, const RankNames& names);

}  // namespace ringkern
