// Functions of the machine that instructions call, for the thread that runs. simulated.cpp
// implements them with the simulated machine of tests/simt, host.cpp with the memory of this
// process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>

namespace ptx::machine {

// The qualifiers of an access. `line`: volatile, 16 bytes a lane, by a whole warp.
enum class Order : uint8_t { weak, relaxed, acquire, release, acq_rel, line };
enum class Scope : uint8_t { cta, gpu, sys };
struct Access {
  Order order = Order::weak;
  Scope scope = Scope::sys;
};

struct Place {
  uint32_t thread, threads, block, blocks;
};
Place place();
// Returns `count` registers, which belong to the thread until the kernel ends.
uint64_t* registers(size_t count);
std::byte* shared_memory(size_t bytes);

// `instruction`: identifies the access, to check that all lanes access a line in one instruction.
void load(uint64_t at, void* to, int bytes, Access access, const void* instruction);
void store(uint64_t at, const void* from, int bytes, Access access, const void* instruction);
// Atomically stores the result of `change`, if it returns one, and returns the value before.
using Change = std::function<std::optional<uint64_t>(uint64_t before)>;
uint64_t update(uint64_t at, int bytes, Access access, const Change& change);
// Notes that the thread's wait has failed; only such a thread compares and swaps.
void give_up();
void fence(Access access);
// The number of accesses and fences whose scope did not include all users of the place.
inline uint64_t out_of_reach = 0;
void use_shared(const std::byte* at, bool store);

// Executed by all lanes of a warp.
void sync_warp();
bool all_lanes(bool p);
uint32_t from_lane(uint32_t value, uint32_t lane);
void rest();
// Executed by `threads` threads of the block; true if `p` is true for any.
bool barrier(uint32_t id, uint32_t threads, bool p);

uint64_t nanoseconds();

}  // namespace ptx::machine
