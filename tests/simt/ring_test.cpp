// The kernels of csrc/cuda on the simulated machine: many seeds, each a ring of its own. A seed
// that fails is replayed with --seed, and prints the waiting ranks and their peers.
#include <signal.h>
#include <unistd.h>

#include <sstream>

#include "check.h"
#include "jobs.h"
#include "options.h"
#include "ring.h"

namespace {

using namespace simt;

constexpr const char* kUsage =
    "ring_test [--seeds N] [--first N] [--jobs N] [--seed N (this one, in detail)]\n"
    "  [--protocol simple|ll|ll128|mixed] [--direct 0|1] [--across 0|1]\n"
    "  [--hosts 0|1] [--trouble none|killed|aborted|corrupted] [--ranks N] [--slots N] [--orders "
    "N]\n"
    "  [--atom 4|8|16] [--line-atom 8|16|128] [--races 0|1] [--shipped 0|1]\n"
    "  [--late 0|1] [--norm 0|1]";

// The cases that many seeds must have covered.
constexpr const char* kRequired[] = {"ranks 2",
                                     "ranks 3",
                                     "ranks 4",
                                     "ranks 5",
                                     "ranks 6",
                                     "ranks 7",
                                     "ranks 8",
                                     "channels 1",
                                     "channels 2",
                                     "threads 32",
                                     "threads 64",
                                     "threads 96",
                                     "threads 128",
                                     "threads 256",
                                     "slots 2",
                                     "slots 3",
                                     "slots 8",
                                     "slots as many as ranks",
                                     "launches of all ranks",
                                     "launches of each rank",
                                     "aligned 0",
                                     "aligned 1",
                                     "in place 0",
                                     "in place 1",
                                     "count 0",
                                     "count 1",
                                     "count chunk - 1",
                                     "count chunk",
                                     "count chunk + 1",
                                     "loops 2",
                                     "loops more",
                                     "LL flags wrapped 1",
                                     "root 0",
                                     "root last",
                                     "root other",
                                     "null 0",
                                     "null 1",
                                     "trouble none",
                                     "trouble killed",
                                     "trouble aborted",
                                     "trouble corrupted",
                                     "one_shot 0 rounds",
                                     "one_shot 1 rounds",
                                     "one_shot 2 rounds",
                                     "one_shot more rounds",
                                     "two_shot 0 rounds",
                                     "two_shot 1 rounds",
                                     "two_shot 2 rounds",
                                     "two_shot more rounds",
                                     "host memory of all",
                                     "host memory of some",
                                     "host memory of none",
                                     "across some",
                                     "across none",
                                     "across chained",
                                     "told a place",
                                     "told none",
                                     "mesh slots 2",
                                     "mesh slots 3",
                                     "mesh flags wrapped 1",
                                     "wide sum",
                                     "wide avg",
                                     "wide premul_sum",
                                     "wide prod",
                                     "tree over lines few",
                                     "tree over lines many",
                                     "tree across few",
                                     "tree across many",
                                     "orders 0",
                                     "orders 1",
                                     "orders 2",
                                     "channels of different orders",
                                     "channels fewer than before",
                                     "channels more than before",
                                     "number 0",
                                     "number 1",
                                     "progress seen",
                                     "clock simple",
                                     "clock ll",
                                     "clock ll128",
                                     "clock for prev",
                                     "clock for next",
                                     "clock without room",
                                     "late 1",
                                     "norm float32",
                                     "norm float16",
                                     "norm bfloat16",
                                     "norm one_shot",
                                     "norm two_shot",
                                     "norm of rows of a round",
                                     "norm of rows of several rounds",
                                     "norm of more rows than channels",
                                     "norm of fewer rows than channels"};

// And what the lists of types.h name.
std::vector<std::string> required() {
  std::vector<std::string> all(std::begin(kRequired), std::end(kRequired));
  for (int d = 0; d < kDTypes; ++d) all.push_back(std::string("dtype ") + name_of(DType(d)));
  for (int op = 0; op < kOps; ++op) all.push_back(std::string("op ") + name_of(Op(op)));
  for (int c = 0; c < kCollectives; ++c)
    for (int p = 0; p < kProtocols; ++p)
      all.push_back(std::string(name_of(Collective(c))) + " " + name_of(Protocol(p)));
  return all;
}

uint64_t current_seed = 0;

void say_fault(int) {
  // Only what a signal handler may call.
  char text[64] = "seed ";
  char* end = text + 5;
  char digits[20];
  int n = 0;
  for (uint64_t s = current_seed; n == 0 || s != 0; s /= 10) digits[n++] = char('0' + s % 10);
  while (n > 0) *end++ = digits[--n];
  const char rest[] = ": fault: memory used without the intrinsics, or a stack has overflowed\n";
  (void)!write(2, text, size_t(end - text));
  (void)!write(2, rest, sizeof rest - 1);
  _exit(1);
}

void catch_faults() {
  static char stack[64 << 10];  // the fiber's own may be what is wrong
  stack_t alternative{};
  alternative.ss_sp = stack;
  alternative.ss_size = sizeof stack;
  sigaltstack(&alternative, nullptr);
  struct sigaction action{};
  action.sa_handler = say_fault;
  action.sa_flags = SA_ONSTACK;
  sigaction(SIGSEGV, &action, nullptr);
  sigaction(SIGBUS, &action, nullptr);
}

template <class E, class Table>
std::optional<E> parse(Options& options, const char* name, const Table& table, int count) {
  const auto text = options.text(name);
  if (!text) return std::nullopt;
  for (int i = 0; i < count; ++i)
    if (*text == table(E(i))) return E(i);
  options.stop();
}

struct Run {
  uint64_t first = 1, seeds = 2000, jobs = 1;
  Wish wish;
  std::string wished;  // as on the command line
};

Run parse_run(int argc, char** argv) {
  Options options(argc, argv, kUsage);
  Run run;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string option = argv[i];
    if (option != "--seeds" && option != "--first" && option != "--jobs" && option != "--seed")
      run.wished += " " + option + " " + argv[i + 1];
  }
  run.first = options.number("--first").value_or(run.first);
  run.seeds = options.number("--seeds").value_or(run.seeds);
  run.jobs = std::max<uint64_t>(1, options.number("--jobs").value_or(run.jobs));
  if (const auto seed = options.number("--seed")) {
    run.first = *seed;
    run.seeds = run.jobs = 1;
    run.wish.verbose = true;
  }
  const auto as_int = [&](const char* name) -> std::optional<int> {
    const auto n = options.number(name);
    return n ? std::optional(int(*n)) : std::nullopt;
  };
  run.wish.ranks = as_int("--ranks");
  run.wish.slots = as_int("--slots");
  run.wish.orders = as_int("--orders");
  run.wish.atom = as_int("--atom");
  run.wish.line_atom = as_int("--line-atom");
  if (const auto direct = options.number("--direct")) run.wish.direct = *direct != 0;
  if (const auto across = options.number("--across")) run.wish.across = *across != 0;
  if (const auto hosts = options.number("--hosts")) run.wish.hosts = *hosts != 0;
  if (const auto late = options.number("--late")) run.wish.late = *late != 0;
  if (const auto norm = options.number("--norm")) run.wish.norm = *norm != 0;
  run.wish.shipped = options.number("--shipped").value_or(0) != 0;
  run.wish.find_races = options.number("--races").value_or(1) != 0;
  run.wish.trouble = parse<Trouble>(options, "--trouble", [](Trouble t) { return name_of(t); }, 4);
  run.wish.protocol = parse<Protocol>(
      options, "--protocol", [](Protocol p) { return int(p) < kProtocols ? name_of(p) : "mixed"; },
      kProtocols + 1);
  if (run.wish.protocol && int(*run.wish.protocol) == kProtocols) {
    run.wish.protocol = Protocol::simple;
    run.wish.mixed = true;
  }
  options.finish();
  return run;
}

// Lines: how many steps, what was covered, and the failure if there was one.
std::string work(const Run& run, uint64_t job, const char* program) {
  Coverage coverage;
  std::ostringstream text;
  uint64_t steps = 0;
  for (uint64_t i = job; i < run.seeds; i += run.jobs) {
    current_seed = run.first + i;
    try {
      Ring(current_seed, run.wish, coverage).run();
    } catch (const Failure& f) {
      std::string what = f.what();
      for (size_t at; (at = what.find('\n')) != std::string::npos;) what.replace(at, 1, "\\n");
      text << "failed seed " << current_seed << ": " << what << "\\nreplay: " << program
           << " --seed " << current_seed << run.wished << "\n";
      break;
    }
    steps += machine().steps();
  }
  text << "steps " << steps << "\n";
  for (const auto& [what, times] : coverage) text << "covered " << times << " " << what << "\n";
  return text.str();
}

TAKES_OPTIONS;

TEST_CASE("calls of every kind are right under every seed") {
  auto& words = ringkern::test::arguments();
  const Run run = parse_run(int(words.size()), words.data());
  catch_faults();
  Coverage coverage;
  uint64_t steps = 0;
  int failed = 0;
  const int died = run_jobs(
      int(run.jobs), [&](int job) { return work(run, uint64_t(job), words[0]); },
      [&](int, const std::string& text) {
        std::istringstream lines(text);
        for (std::string line; std::getline(lines, line);) {
          std::istringstream words(line);
          std::string kind, rest;
          uint64_t n = 0;
          words >> kind;
          if (kind == "failed") {
            ++failed;
            for (size_t at; (at = line.find("\\n")) != std::string::npos;)
              line.replace(at, 2, "\n");
            std::fprintf(stderr, "%s\n", line.c_str());
          } else if (words >> n && kind == "steps") {
            steps += n;
          } else if (std::getline(words >> std::ws, rest)) {
            coverage[rest] += n;
          }
        }
      });
  if (run.wished.empty() && run.seeds >= 2000)
    for (const std::string& what : required())
      if (coverage[what] == 0) {
        std::fprintf(stderr, "not tried in %lu seeds: %s\n", (unsigned long)run.seeds,
                     what.c_str());
        ++failed;
      }
  failed += died;
  std::printf("%lu seeds, %.1f million steps, %d failures\n", (unsigned long)run.seeds,
              double(steps) / 1e6, failed);
  if (run.wish.verbose || run.seeds >= 20000)
    for (const auto& [what, times] : coverage)
      std::printf("  %-32s %lu\n", what.c_str(), (unsigned long)times);
  CHECK_EQ(failed, 0);
}

}  // namespace
