// The order in which a rank publishes its staged data.
#include "cpu/mesh_slots.h"

#include <signal.h>
#include <sys/mman.h>

#include "check.h"

using namespace ringkern;
using namespace ringkern::cpu;

namespace {

// The bell of the other rank, in memory that cannot be read. A rank reads bells right after it has
// published something; the published state by then is kept.
struct Trap {
  static constexpr size_t kBytes = 1 << 16;  // no page is larger
  static inline void* memory = nullptr;
  static inline const Staged* watched = nullptr;
  static inline Staged shown{};

  static void touched(int) {
    shown = *watched;
    ::mprotect(memory, kBytes, PROT_READ | PROT_WRITE);
  }
  static Bell* make(const Staged& board) {
    watched = &board;
    memory = ::mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(memory != MAP_FAILED);
    return static_cast<Bell*>(memory);
  }
  static void set() {
    shown = {};
    struct sigaction action{};
    action.sa_handler = touched;
    action.sa_flags = SA_RESETHAND;  // once: any other fault ends the test
    CHECK_EQ(::sigaction(SIGSEGV, &action, nullptr), 0);
    CHECK_EQ(::mprotect(memory, kBytes, PROT_NONE), 0);
  }
};

// A round must not be visible before its slot has been marked with the call: another rank would
// take it for a round of the call that used the slot before.
TEST_CASE("a round is published with its call") {
  constexpr auto kSlots = uint64_t(DirectPlan::slots(MeshGeometry::kAhead));
  Bell bell{};
  Board boards[2]{};
  std::vector<std::byte> slots(kSlots * MeshGeometry::kSlotBytes);
  std::vector<MeshPeer> peers = {{&bell, &boards[0], nullptr, slots.data(), {}},
                                 {Trap::make(boards[0].staged), &boards[1], nullptr, nullptr, {}}};
  Task task;
  task.algorithm = Algorithm::one_shot;
  task.count = 10;
  float data[10]{};
  auto* const bytes = reinterpret_cast<std::byte*>(data);
  for (uint64_t round = 0; round < 3 * kSlots; ++round) {
    task.reduction.combine = round / kSlots % 2 == 0 ? Combine::sum : Combine::max;
    const Reducer reducer(task.reduction);
    WaitHistory no_yields{Wait::Clock::time_point::max()};
    Wait wait(bell, 0, std::chrono::seconds(1), no_yields);
    WaitReport report;
    const RankNames names;
    MeshCall call{peers, 0, 2, round, 0, reducer, bytes, bytes, wait, report, names};
    const DirectPlan plan = DirectPlan::make(task.algorithm, 2, task.count, sizeof(float),
                                             MeshGeometry::kSlotBytes, 1, MeshGeometry::kAhead);
    Trap::set();
    MeshSlots mesh(call, task);
    CHECK(mesh.stage(plan, plan.chunk_of(0, 0), 0) == Verdict::ok);
    CHECK_EQ(Trap::shown.rounds, round + 1);
    CHECK_EQ(Trap::shown.calls[round % kSlots], call_word(task));
  }
}

}  // namespace
