#include "torch/monitored_barrier.h"

namespace ringkern::torch_ext {

void monitored_barrier(Store& store, const Seat& seat, uint64_t number, Milliseconds timeout,
                       bool wait_all_ranks) {
  const std::string prefix = "ringkern/monitored_barrier/" + std::to_string(number) + "/";
  const auto deadline = Clock::now() + timeout;
  const auto left = [&] {
    return std::max(Milliseconds(0),
                    std::chrono::duration_cast<Milliseconds>(deadline - Clock::now()));
  };
  const std::string in_time = " in " + std::to_string(timeout.count()) + " ms";
  if (seat.rank != 0) {
    store.set(prefix + std::to_string(seat.rank), "here");
    std::string outcome = "rank 0 did not come" + in_time;
    try {
      outcome = store.get(prefix + "outcome", timeout + Milliseconds(1000));
    } catch (const TimeoutError&) {
    }
    if (outcome == "all came") return;
    throw TimeoutError("Rank " + std::to_string(seat.rank) +
                       " successfully reached "
                       "monitoredBarrier, but received errors while waiting for send/recv from "
                       "rank 0: " +
                       outcome);
  }
  std::vector<int> missing;
  for (int rank = 1; rank < seat.ranks && (missing.empty() || wait_all_ranks); ++rank) {
    try {
      store.get(prefix + std::to_string(rank), left());
    } catch (const TimeoutError&) {
      missing.push_back(rank);
    }
  }
  std::string outcome = "all came";
  if (!missing.empty()) {
    std::string ranks;
    for (const int rank : missing) ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
    outcome = (missing.size() > 1 ? "Ranks " : "Rank ") + ranks +
              " failed to pass monitoredBarrier" + in_time;
    if (timeout.count() == 0 && !wait_all_ranks)
      outcome = "Rank 0 timed out in monitoredBarrier after 0 ms: " + outcome;
  }
  store.set(prefix + "outcome", outcome);
  if (!missing.empty()) throw TimeoutError(outcome);
}

}  // namespace ringkern::torch_ext
