// Weakens the kernels in their PTX, as nvcc wrote it, one statement at a time, and checks that each
// change is detected, like tests/simt/mutants_test.cpp with their source. A mutant that no seed
// catches must be in equivalent.h, with the argument why none can, or as open; one that is argued
// to be equivalent must not be caught.
#include "mutants.h"

#include <fnmatch.h>

#include <algorithm>
#include <set>
#include <thread>

#include "check.h"
#include "cuda/probe.h"
#include "equivalent.h"
#include "kernels.h"
#include "simt/hunt.h"
#include "simt/options.h"
#include "simt/probing.h"

namespace {

using namespace simt;

constexpr uint64_t kSeeds = 60;
constexpr uint64_t kMoreSeeds = 3000;  // for what should be caught, and was not
// Tried first then: they catch many. A change of the scenarios may make them useless.
constexpr uint64_t kRareSeeds[] = {107, 186, 193, 237, 565, 705, 1139, 1219, 3540};
constexpr uint64_t kMostSteps = 2'000'000;

struct Form {
  const char* name;
  std::optional<Protocol> protocol;  // of a ring
  bool sum = true, clock = false;
};
constexpr DType kOtherType = DType::f16;  // of the kernel that does not sum
constexpr Form kForms[] = {
    {"simple", Protocol::simple},
    {"ll", Protocol::ll},
    {"ll128", Protocol::ll128},
    {"any", Protocol::simple, false},
    {"direct", {}},
    {"timed simple", Protocol::simple, true, true},
    {"timed ll", Protocol::ll, true, true},
    {"timed ll128", Protocol::ll128, true, true},
    {"probe", {}},
    {"norm", {}},
    {"tree", {}},
};

bool is_probe(const Form& form) { return form.name == std::string("probe"); }
bool is_norm(const Form& form) { return form.name == std::string("norm"); }
bool is_tree(const Form& form) { return form.name == std::string("tree"); }

ptx::Kernel& kernel_of(const Form& form) {
  const void* kernel = is_probe(form)   ? probe_kernel()
                       : is_norm(form)  ? norm_kernel_for(DType::f32)
                       : !form.protocol ? direct_kernel_for(DType::f32, Combine::sum, is_tree(form))
                       : form.clock     ? timed_kernel_for(*form.protocol)
                       : form.sum       ? kernel_for(*form.protocol, DType::f32, Combine::sum)
                                        : kernel_for(*form.protocol, kOtherType, Combine::prod);
  return *static_cast<ptx::Kernel*>(const_cast<void*>(kernel));
}

struct Candidate {
  const Form* form;
  int number;  // 0: the kernel as it is, which must survive what catches the mutants
  ptx::Mutant mutant;

  std::string name() const {
    return number == 0 ? std::string(form->name) + ": as it is"
                       : std::string(form->name) + ": " + mutant.kind + ": " + mutant.place;
  }
};

// There are too many of some kinds: what the kernels have in common is tried in some of them, and
// of constants one in 16. In the kernels with a clock, only what is around a verb is theirs; in
// those with a norm and by a tree, what a direct all-reduce has not.
bool is_left_out(const Form& form, const ptx::Mutant& m) {
  const bool of_param = m.place.starts_with("ld.param"), constant = m.kind == "constant + 1";
  if (form.clock && (m.kind == "inverted" || m.place.starts_with("ld.global") ||
                     m.place.starts_with("st.global")))
    return true;
  if (constant && m.statement % 16 != 0) return true;
  // The fields of a report, in `record` of wait.cuh.
  if (form.protocol && form.name != std::string("simple") && m.kind.starts_with("offset") &&
      m.place.find(" (add.s64 ld.shared.u64 (add.s32 r 56) ") != std::string::npos)
    return true;
  return (of_param || constant) && form.protocol && form.name != std::string("simple");
}

std::vector<Candidate> candidates() {
  std::vector<Candidate> all;
  std::set<std::string> direct;
  int number = 0;
  for (const Form& form : kForms) {
    const ptx::Entry& entry = kernel_of(form).program->entry();
    all.push_back({&form, 0, {}});
    for (ptx::Mutant& m : ptx::mutants_of(entry)) {
      const std::string what = m.kind + ": " + m.place;
      if (form.name == std::string("direct")) direct.insert(what);
      const bool known = (is_norm(form) || is_tree(form)) && direct.contains(what);
      if (!is_left_out(form, m) && !known) all.push_back({&form, ++number, std::move(m)});
    }
  }
  return all;
}

// The outcome of a scope of which no access has gone to a place that another device, or the host,
// uses: there it is no weaker.
constexpr const char* kReaches = "reaches all";

bool is(const Candidate& c, const char* pattern) {
  return fnmatch(pattern, c.name().c_str(), 0) == 0;
}
bool is_argued(const Candidate& c, const std::string& outcome) {
  return outcome == kReaches ||
         std::any_of(std::begin(ptx::kEquivalent), std::end(ptx::kEquivalent),
                     [&](const ptx::Equivalent& e) { return is(c, e.mutants); });
}
// Neither caught by these seeds nor argued.
bool is_open(const Candidate& c, const std::string& outcome) {
  return !is_caught(outcome) && !is_argued(c, outcome) && c.number != 0 &&
         std::any_of(std::begin(ptx::kOpen), std::end(ptx::kOpen),
                     [&](const char* pattern) { return is(c, pattern); });
}
bool is_settled(const Candidate& c, const std::string& outcome) {
  return is_caught(outcome) || is_argued(c, outcome) || is_open(c, outcome);
}
uint64_t seed_of(const std::string& outcome) {
  return std::stoull(outcome.substr(outcome.find('@') + 1));
}

// One seed; what it finds, or nothing.
std::string try_seed(const Form& form, uint64_t seed, bool in_detail) {
  if (is_probe(form))
    return found_by(seed, in_detail, [&] {
      for (const ProbeTrial& trial : kProbeTrials) run_probe(seed, trial);
    });
  constexpr Op kSums[] = {Op::sum, Op::sum, Op::avg, Op::premul_sum};
  constexpr Op kOthers[] = {Op::prod, Op::min, Op::max};
  Wish wish;
  wish.protocol = form.protocol;
  wish.clock = form.clock;
  wish.dtype = form.sum ? DType::f32 : kOtherType;
  wish.op = form.sum ? kSums[seed / 3 % 4] : kOthers[seed / 3 % 3];
  wish.norm = is_norm(form);
  wish.tree = is_tree(form);
  if (is_norm(form)) wish.op = Op::sum;
  wish.most_steps = kMostSteps;
  // A whole tile of Simple takes a large slice.
  if (seed % 3 == 0 && form.protocol == Protocol::simple) wish.most_bytes = 16 << 10;
  return found_by_ring(seed, weakening(wish, !form.protocol, /*across=*/false, seed), in_detail);
}

// While it is there, its form's kernel is the mutant.
class InPlace {
 public:
  explicit InPlace(const Candidate& c)
      : kernel_(kernel_of(*c.form)), original_(std::move(kernel_.program)) {
    ptx::Entry entry = original_->entry();
    if (c.number != 0) entry = apply(std::move(entry), c.mutant);
    kernel_.program = std::make_unique<ptx::Program>(std::move(entry));
  }
  ~InPlace() { kernel_.program = std::move(original_); }
  InPlace(const InPlace&) = delete;
  const ptx::Program& program() const { return *kernel_.program; }

 private:
  ptx::Kernel& kernel_;
  std::unique_ptr<ptx::Program> original_;
};

// The first of these seeds that catches the mutant, and how.
std::string hunt(const Candidate& c, uint64_t first, uint64_t last) {
  const InPlace mutant(c);
  ptx::machine::out_of_reach = 0;
  for (uint64_t seed = first; seed <= last; ++seed)
    if (const std::string outcome = try_seed(*c.form, seed, false); !outcome.empty())
      return outcome;
  if (c.number != 0 && mutant.program().executed()[c.mutant.index()] == 0) return "not executed";
  const bool narrower = c.mutant.kind == ".sys -> .gpu";
  return narrower && ptx::machine::out_of_reach == 0 ? kReaches : "survived";
}
// The same of more seeds, where one should catch it and has not; but for those that are too long
// for the kernel as it is.
std::string hunt(const Candidate& c, uint64_t seeds) {
  if (is_probe(*c.form)) seeds *= 5;  // short ones
  std::string outcome = hunt(c, 1, seeds);
  for (const uint64_t seed : kRareSeeds) {
    if (c.number == 0 || is_settled(c, outcome)) return outcome;
    outcome = hunt(c, seed, seed);
    if (is_caught(outcome) && !try_seed(*c.form, seed, false).empty()) outcome = "fails as it is";
  }
  while (c.number != 0 && !is_settled(c, outcome) && seeds < kMoreSeeds) {
    outcome = hunt(c, seeds + 1, kMoreSeeds);
    if (!is_caught(outcome)) break;
    seeds = seed_of(outcome);
    const std::string alone = try_seed(*c.form, seeds, false);
    if (alone.empty()) break;
    outcome = "fails as it is";
    if (!alone.starts_with("livelock")) break;
  }
  return outcome;
}

// A complaint about the outcome, or nothing.
std::string judge(const Candidate& c, const std::string& outcome) {
  const bool argued = is_argued(c, outcome);
  if (outcome.empty()) return "its process died";
  if (c.number == 0) return is_caught(outcome) ? "fails without a mutant" : "";
  if (is_caught(outcome) && argued) return "is argued to be equivalent and was caught";
  if (is_settled(c, outcome)) return "";
  return "is neither caught nor argued to be equivalent";
}

TAKES_OPTIONS;

TEST_CASE("every mutant of the PTX is caught or argued to be equivalent") {
  auto& words = ringkern::test::arguments();
  Options options(int(words.size()), words.data(),
                  "mutants_test [--seeds N (for each)] [--jobs N] [--every N (of the mutants)]\n"
                  "  [--form NAME (of its mutants alone)] [--mutant N [--seed N]]");
  const uint64_t jobs =
      options.number("--jobs").value_or(std::max(1u, std::thread::hardware_concurrency()));
  const auto only = options.number("--mutant");
  const auto seed = options.number("--seed");
  const uint64_t seeds = options.number("--seeds").value_or(kSeeds);
  const uint64_t every = options.number("--every").value_or(1);
  const auto form = options.text("--form");
  options.finish();
  if (std::string(RK_NVCC_VERSION) != ptx::kCompiler) {
    std::printf("nvcc %s and not %s: there is nothing to test\n", RK_NVCC_VERSION, ptx::kCompiler);
    return;
  }
  std::vector<Candidate> all = candidates();
  if (only) {
    std::erase_if(all, [&](const Candidate& c) { return c.number != int(*only); });
    REQUIRE(!all.empty());
    std::printf("%s:%d\n", kernel_of(*all[0].form).path.c_str(), all[0].mutant.instead.line);
  }
  std::erase_if(all, [&](const Candidate& c) {
    return !only && (uint64_t(c.number) % every != 0 || (form && *form != c.form->name));
  });
  if (seed && only) {
    const InPlace mutant(all[0]);
    std::printf("%s\n", try_seed(*all[0].form, *seed, true).c_str());
    return;
  }
  const std::vector<std::string> outcomes =
      hunt_all(all.size(), int(jobs), [&](size_t i) { return hunt(all[i], seeds); });
  int wrong = 0, caught = 0, argued = 0, open = 0, idle = 0;
  std::vector<uint64_t> needed;
  for (size_t i = 0; i < all.size(); ++i) {
    const std::string complaint = judge(all[i], outcomes[i]);
    std::printf("%4d %-18s %s%s%s\n", all[i].number, outcomes[i].c_str(), all[i].name().c_str(),
                complaint.empty() ? "" : ": ", complaint.c_str());
    wrong += !complaint.empty();
    argued += all[i].number != 0 && is_argued(all[i], outcomes[i]);
    open += is_open(all[i], outcomes[i]);
    idle += outcomes[i] == "not executed";
    if (!is_caught(outcomes[i])) continue;
    ++caught;
    needed.push_back(seed_of(outcomes[i]));
  }
  std::sort(needed.begin(), needed.end());
  if (!needed.empty())
    std::printf("seeds until one catches it: %lu in the middle, %lu at most\n",
                (unsigned long)needed[needed.size() / 2], (unsigned long)needed.back());
  std::printf(
      "%zu mutants: %d caught, %d argued to be equivalent, %d open; %d not executed; "
      "%d complaints\n",
      size_t(
          std::count_if(all.begin(), all.end(), [](const Candidate& c) { return c.number != 0; })),
      caught, argued, open, idle, wrong);
  CHECK_EQ(wrong, 0);
}

}  // namespace
