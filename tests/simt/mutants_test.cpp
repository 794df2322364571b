// Weakens the kernels, one place at a time, and sees that it is noticed. A mutant that no seed
// catches must be in the list of those that are argued to be equivalent, equivalent.h; one that is
// in the list must not be caught.
#include <thread>
#include <utility>

#include "check.h"
#include "equivalent.h"
#include "hunt.h"
#include "mutants.h"
#include "options.h"

namespace {

using namespace simt;

constexpr uint64_t kSeeds = 500;

// The kernels as they are, which must survive what catches the mutants.
constexpr Mutant kOriginal = {0, "", "", 0, "", "as they are", "", ""};

// The kernels run in forms: rings over each protocol, and direct all-reduces, over lines, over the
// tensors themselves, and with a norm.
constexpr int kForms = kProtocols + 3;
constexpr int kDirect = kProtocols, kAcross = kProtocols + 1, kNorm = kProtocols + 2;
const char* name_of_form(int form) {
  constexpr const char* kNames[] = {"direct", "across", "norm"};
  return form < kDirect ? name_of(Protocol(form)) : kNames[form - kDirect];
}

const Equivalent* argument_for(const Mutant& m, int form) {
  for (const Equivalent& e : kEquivalent) {
    const std::string protocols = e.protocols;
    if (m.name() == e.mutant &&
        (protocols == "all" ||
         (" " + protocols + " ").find(" " + std::string(name_of_form(form)) + " ") !=
             std::string::npos))
      return &e;
  }
  return nullptr;
}

// Only those of the links with a clock look for one: all else is as it was without.
bool keeps_clock(const Mutant& m) { return m.file == std::string("timed.cuh"); }

// Code that the forms share is weakened under each of them: one must not hide a gap of another.
bool concerns(const Mutant& m, int form) {
  const std::string file = m.file;
  if (form == kNorm) return file == "norm.cuh";  // all else is that of direct all-reduces
  if (m.rule == std::string("poisons") && std::string(m.kind).starts_with("no poison"))
    return true;                                           // in several files
  if (m.function == std::string("tell_end")) return true;  // of the links, and of others
  for (int f = 0; f < kForms; ++f)
    if (file == name_of_form(f) + std::string(".cuh")) return form == f;
  if (file == "lines.cuh") return form == int(Protocol::ll) || form == int(Protocol::ll128);
  const bool of_rings = file == "kernels.cuh" || file == "link.cuh" || keeps_clock(m);
  return file == "mesh_ends.cuh" ? form >= kDirect : !of_rings || form < kDirect;
}

// One seed; what it finds, or nothing.
std::string try_seed(int form, uint64_t seed, bool clock, bool in_detail) {
  Wish wish;
  wish.clock = clock;
  wish.norm = form == kNorm;
  if (form == kNorm) wish.op = Op::sum, wish.dtype = DType::bf16, wish.tree = false;
  if (form < kDirect) wish.protocol = Protocol(form);
  return found_by_ring(seed, weakening(wish, form >= kDirect, form == kAcross, seed), in_detail);
}

// Without the mutant, the same seed must find nothing.
std::string checked(const std::string& found, int form, uint64_t seed, bool clock) {
  const int mutant = std::exchange(active_mutant, 0);
  const bool alone = mutant == 0 || try_seed(form, seed, clock, false).empty();
  active_mutant = mutant;
  return alone ? found : "fails without it, too: " + found;
}

// The first seed that catches the mutant, and how.
std::string hunt(const Mutant& m, int form, uint64_t seeds) {
  active_mutant = m.number;
  mutant_ran = false;
  const bool clock = keeps_clock(m);
  for (const Rare& r : kRare)
    if (m.name() == r.mutant && name_of_form(form) == std::string(r.protocol))
      if (const std::string found = try_seed(form, r.seed, clock, false); !found.empty())
        return checked(found, form, r.seed, clock);
  for (uint64_t seed = 1; seed <= seeds; ++seed)
    if (const std::string found = try_seed(form, seed, clock, false); !found.empty())
      return checked(found, form, seed, clock);
  return mutant_ran ? "survived" : "never ran";
}

// The memory is weakened, too: each protocol relies on exactly its documented guarantees.
int check_premises() {
  struct Premise {
    int form, atom, line_atom;
    bool enough;
  };
  constexpr int kSimple = int(Protocol::simple), kLL = int(Protocol::ll),
                kLL128 = int(Protocol::ll128);
  constexpr Premise kPremises[] = {
      {kSimple, 4, 8, true},  {kLL, 8, 8, true},      {kLL, 4, 8, false},
      {kLL128, 4, 128, true}, {kLL128, 8, 16, false}, {kLL128, 8, 8, false},
      {kDirect, 8, 8, true},  {kDirect, 4, 8, false}, {kAcross, 4, 8, true}};
  int wrong = 0;
  for (const Premise& p : kPremises) {
    Wish wish;
    wish.clock = false;
    wish.protocol = p.form == kAcross   ? Protocol::simple
                    : p.form == kDirect ? Protocol::ll
                                        : Protocol(p.form);
    wish.direct = p.form >= kDirect;
    wish.across = p.form == kAcross;
    wish.trouble = Trouble::none;
    wish.atom = p.atom;
    wish.line_atom = p.line_atom;
    Coverage coverage;
    bool failed = false;
    for (uint64_t seed = 1; seed <= 200 && !failed; ++seed) try {
        Ring(seed, wish, coverage).run();
      } catch (const Failure&) {
        failed = true;
      }
    std::printf("%-6s with %d bytes whole, and %d of a line: %s\n", name_of_form(p.form), p.atom,
                p.line_atom, failed ? "fails" : "works");
    wrong += failed == p.enough;
  }
  return wrong;
}

// A complaint about the outcome, or nothing.
std::string judge(const Mutant& m, int form, const std::string& outcome) {
  const bool argued = argument_for(m, form) != nullptr, caught = is_caught(outcome);
  if (outcome.empty()) return "its process died";
  if (outcome.starts_with("fails")) return "the seed says nothing of the mutant";
  if (m.number == 0) return caught ? "fails without a mutant" : "";
  if (caught && argued) return "is argued to be equivalent and was caught";
  if (caught || argued) return "";
  if (outcome == "never ran") return "no seed comes where it would matter";
  return "is neither caught nor argued to be equivalent";
}

TAKES_OPTIONS;

TEST_CASE("every mutant is caught or argued to be equivalent") {
  auto& words = ringkern::test::arguments();
  Options options(int(words.size()), words.data(),
                  "mutants_test [--seeds N (for each)] [--jobs N] [--every N (of the mutants)]\n"
                  "  [--mutant N [--seed N]]");
  const uint64_t jobs =
      options.number("--jobs").value_or(std::max(1u, std::thread::hardware_concurrency()));
  const auto only = options.number("--mutant");
  const auto seed = options.number("--seed");
  const uint64_t seeds = options.number("--seeds").value_or(kSeeds);
  const uint64_t every = options.number("--every").value_or(1);
  options.finish();
  std::vector<Mutant> mutants = {kOriginal};
  mutants.insert(mutants.end(), std::begin(kMutants), std::end(kMutants));
  const size_t count = mutants.size() * kForms;
  const auto chosen = [&](size_t i) {
    const Mutant& m = mutants[i / kForms];
    return concerns(m, int(i % kForms)) &&
           (only ? int(*only) == m.number : uint64_t(m.number) % every == 0);
  };
  if (seed && only) {
    active_mutant = int(*only);
    const bool clock = keeps_clock(mutants.at(*only));
    for (int form = 0; form < kForms; ++form)
      std::printf("%s\n", try_seed(form, *seed, clock, true).c_str());
    return;
  }
  // An outcome that stays empty is that of a process that died.
  const std::vector<std::string> outcomes = hunt_all(count, int(jobs), [&](size_t i) {
    return chosen(i) ? hunt(mutants[i / kForms], int(i % kForms), seeds) : "not chosen";
  });
  int wrong = only ? 0 : check_premises(), tried = 0, caught = 0, equivalent = 0;
  for (const Mutant& m : mutants) {
    bool here = false, seen = false, excused = false;
    for (int form = 0; form < kForms; ++form) {
      const size_t i = size_t(m.number) * kForms + size_t(form);
      if (!chosen(i)) continue;
      here = m.number != 0;
      const std::string& outcome = outcomes[i];
      const std::string complaint = judge(m, form, outcome);
      std::printf("%3d %-6s %-18s %s%s%s\n", m.number, name_of_form(form), outcome.c_str(),
                  m.name().c_str(), complaint.empty() ? "" : ": ", complaint.c_str());
      seen = seen || is_caught(outcome);
      excused = excused || argument_for(m, form) != nullptr;
      wrong += !complaint.empty();
    }
    tried += here;
    caught += seen;
    equivalent += excused && !seen;
  }
  const auto check_known = [&](const std::string& name) {
    for (const Mutant& m : kMutants)
      if (m.name() == name) return;
    std::printf("in equivalent.h, and there is none: %s\n", name.c_str());
    ++wrong;
  };
  for (const Equivalent& e : kEquivalent) check_known(e.mutant);
  for (const Rare& r : kRare) check_known(r.mutant);
  std::printf("%d mutants: %d caught, %d argued to be equivalent, %d complaints\n", tried, caught,
              equivalent, wrong);
  CHECK_EQ(wrong, 0);
}

}  // namespace
