// Every order of the host's lock-free parts, or many of them: `make model`.
//
// The library's sources are compiled here over Relacy's atomics (relacy.h). Stand-ins replace the
// arithmetic (stand_in/cpu/simd.h: a block is its first element) and memory files
// (stand_in/comm/memory_file.h). Not modelled: the time limit of a sleep, which would hide a lost
// wake-up; the links LL and LL128, whose orders tests/simt weakens on a GPU; shared tensors. A
// place of the model (control.h) stands for the plain words of a page that are read after an atomic
// one.
#include "faults/model/relacy.h"

#include "faults/model/control.h"

#include "cpu/link.cpp"
#include "cpu/mesh.cpp"
#include "cpu/wait.cpp"

#include "faults/model/bell.h"
#include "faults/model/links.h"
#include "faults/model/mesh.h"
#include "faults/model/runner.h"

using namespace model;

int main(int count, char** arguments) {
  Runner runner(count > 1 ? std::stoull(arguments[1]) : 1'000'000);

  runner.title("the wait's bell (cpu/wait.*)");
  runner.sound<BellRings>("two neighbours ring", {Search::bounded, 4});
  runner.sound<BellRings>("two neighbours ring", {Search::random});
  runner.sound<AbortEndsWaits>("abort() ends a wait", {Search::full});
  runner.noticed<BellRings>("no barrier before the look at `asleep`", {Plant::no_fence, "", 1});
  runner.noticed<BellRings>("no barrier after the announcement", {Plant::no_fence, "", 0});
  runner.noticed<BellRings>("no announcement", {Plant::no_store, "asleep"});
  runner.noticed<BellRings>("a ring does not change the futex", {Plant::no_store, "rung"});
  runner.noticed<BellRings>("a ring does not wake", {Plant::no_wake, ""});
  runner.noticed<BellRings>("published without release", {Plant::relaxed_store, "word"});
  runner.noticed<BellRings>("polled without acquire", {Plant::relaxed_load, "word"});
  runner.noticed<AbortEndsWaits>("abort() does not ring", {Plant::no_wake, ""});

  runner.title("Simple's slots and credits (cpu/simple.h, cpu/link.cpp), two slots");
  using Chain = Simple<Collective::broadcast, 2, 6>;
  using Ring = Simple<Collective::all_reduce, 3, 6>;
  runner.sound<Chain>("two calls of 3 chunks down a chain of two", {Search::bounded, 2});
  runner.sound<Chain>("two calls of 3 chunks down a chain of two", {Search::random});
  runner.sound<Ring>("two all-reduces of three ranks", {Search::random});
  runner.noticed<Chain>("`tail` without release", {Plant::relaxed_store, "tail"});
  runner.noticed<Chain>("`tail` without acquire", {Plant::relaxed_load, "tail"});
  runner.noticed<Chain>("`head` without release", {Plant::relaxed_store, "head"});
  runner.noticed<Chain>("`head` without acquire", {Plant::relaxed_load, "head"});
  runner.noticed<Chain>("no barrier", {Plant::no_fence, ""});

  runner.title("the mesh's slots, which have no credits (core/direct.h, cpu/mesh.cpp)");
  using TwoShot = Slots<Algorithm::two_shot, Protocol::simple, 2, 1, 6>;
  using OneShot = Slots<Algorithm::one_shot, Protocol::simple, 3, 2, 3>;
  using Calls = Slots<Algorithm::one_shot, Protocol::simple, 2, 5, 1>;
  using Lines = Slots<Algorithm::one_shot, Protocol::ll, 2, 4, 1>;
  runner.sound<TwoShot>("two_shot, 6 rounds over 4 slots", {Search::random});
  runner.sound<OneShot>("one_shot, three ranks, 2 calls of 3 rounds", {Search::random});
  runner.sound<Calls>("one_shot, 5 calls of a round", {Search::random});
  runner.sound<Lines>("one_shot over LL, 4 calls over 2 slots", {Search::random});
  runner.noticed<TwoShot>("`staged` without release", {Plant::relaxed_store, "staged"});
  runner.noticed<TwoShot>("`staged` without acquire", {Plant::relaxed_load, "staged"});
  runner.noticed<TwoShot>("`reduced` without release", {Plant::relaxed_store, "reduced"});
  runner.noticed<TwoShot>("`reduced` without acquire", {Plant::relaxed_load, "reduced"});
  runner.noticed<TwoShot>("no barrier", {Plant::no_fence, ""});
  runner.noticed<Lines>("a flag without release", {Plant::relaxed_store, "flag"});
  runner.noticed<Lines>("a flag without acquire", {Plant::relaxed_load, "flag"});

  runner.title("the mesh on two sockets (cpu/mesh_sockets.h)");
  using Sockets = Slots<Algorithm::two_shot, Protocol::simple, 4, 3, 6, 2>;
  runner.sound<Sockets>("4 ranks, 6 rounds over 4 slots between one_shots", {Search::random});
  runner.noticed<Sockets>("`staged` without release", {Plant::relaxed_store, "staged"});
  runner.noticed<Sockets>("`staged` without acquire", {Plant::relaxed_load, "staged"});
  runner.noticed<Sockets>("`reduced` without release", {Plant::relaxed_store, "reduced"});
  runner.noticed<Sockets>("`reduced` without acquire", {Plant::relaxed_load, "reduced"});
  runner.noticed<Sockets>("no barrier", {Plant::no_fence, ""});

  runner.title("the control page (comm/control.*)");
  runner.sound<FirstReason>("two ranks fail, all have one reason", {Search::full});
  runner.sound<LastCalls>("calls are read whole", {Search::bounded, 3});
  runner.sound<LastCalls>("calls are read whole", {Search::random});
  runner.noticed<FirstReason>("who is first without release",
                              {Plant::relaxed_store, "first_to_fail"});
  runner.noticed<FirstReason>("who is first without acquire",
                              {Plant::relaxed_load, "first_to_fail"});
  runner.noticed<FirstReason>("the last to fail wins", {Plant::no_comparison, "first_to_fail"});
  runner.noticed<LastCalls>("no fence before a line changes", {Plant::no_fence, "", 0});
  runner.noticed<LastCalls>("no fence after a line was read", {Plant::no_fence, "", 1});
  runner.noticed<LastCalls>("`seq` without release", {Plant::relaxed_store, "seq"});
  runner.noticed<LastCalls>("`seq` without acquire", {Plant::relaxed_load, "seq"});
  return runner.finish();
}
