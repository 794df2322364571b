// Runs the models unchanged, and then each of them weakened in one place, which must be detected.
#pragma once

#include "faults/model/relacy.h"

#include <iostream>

namespace model {

// Every order; every order with this many preemptions; or random orders.
enum class Search { full, bounded, random };
struct Effort {
  Search search;
  unsigned preemptions = 0;
};

class Runner {
 public:
  explicit Runner(uint64_t random_runs) : random_runs_(random_runs) {}

  void title(const char* text) const { std::cout << text << std::endl; }

  template <class Test>
  void sound(const char* what, const Effort& effort) {
    const Outcome outcome = run<Test>(effort, {});
    std::cout << "  " << what << ", " << text_of(effort) << ": " << outcome.runs << " runs, "
              << (outcome.sound ? "sound" : "UNSOUND\n" + outcome.report) << std::endl;
    failures_ += !outcome.sound;
  }

  template <class Test>
  void noticed(const char* weakness, const Plant& plant) {
    const Outcome outcome = run<Test>({Search::random}, plant);
    std::cout << "    " << weakness << ": ";
    if (outcome.sound) std::cout << "NOT NOTICED in " << outcome.runs << " runs" << std::endl;
    else std::cout << "noticed in run " << outcome.runs << ": " << outcome.kind() << std::endl;
    failures_ += outcome.sound;
  }

  int finish() const {
    std::cout << (failures_ == 0 ? "all as it should be"
                                 : std::to_string(failures_) + " not as it should be")
              << std::endl;
    return failures_ != 0;
  }

 private:
  struct Outcome {
    bool sound;
    uint64_t runs;
    std::string report;  // Relacy's text

    std::string kind() const {  // its second line
      const size_t from = report.find('\n') + 1;
      return report.substr(from, report.find('\n', from) - from);
    }
  };

  static std::string text_of(const Effort& e) {
    if (e.search == Search::full) return "every order";
    if (e.search == Search::random) return "at random";
    return "every order with " + std::to_string(e.preemptions) + " preemptions";
  }

  template <class Test>
  Outcome run(const Effort& effort, const Plant& weakness) const {
    std::ostringstream report;
    rl::test_params params;
    params.output_stream = params.progress_stream = &report;
    params.execution_depth_limit = 100'000;
    params.search_type = effort.search == Search::full      ? rl::sched_full
                         : effort.search == Search::bounded ? rl::sched_bound
                                                            : rl::sched_random;
    params.context_bound = effort.preemptions;
    // A weakened model ends with the first run that shows it.
    params.iteration_count =
        rl::iteration_t(weakness.kind == Plant::none ? random_runs_ : kMostToNotice);
    plant = weakness;
    const bool sound = rl::simulate<Test>(params);
    plant = {};
    return {sound, uint64_t(params.stop_iteration), report.str()};
  }

  static constexpr uint64_t kMostToNotice = 1'000'000;

  const uint64_t random_runs_;
  int failures_ = 0;
};

}  // namespace model
