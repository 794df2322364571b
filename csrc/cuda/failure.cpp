#include "cuda/failure.h"

namespace ringkern::cuda {

void throw_failure(const WaitReport& report, int rank, int ranks, Milliseconds timeout,
                   const RingOrders& orders) {
  const auto text = [](auto number) { return std::to_string(number); };
  const bool data = report.what == WaitFor::data;
  const int neighbour =
      data ? orders.prev(report.channel, rank, ranks) : orders.next(report.channel, rank, ranks);
  const int peer = report.peer >= 0 ? report.peer : neighbour;
  const std::string what = std::string("an earlier collective over ") + name_of(report.protocol) +
                           ": rank " + text(rank) + " waited for " +
                           (data ? "data from rank " : "a free slot at rank ") + text(peer) +
                           " on channel " + text(report.channel) + " (wants step " +
                           text(report.wanted) + ", has seen " + text(report.seen) + ")";
  const std::string now =
      " Results since then are undefined and the communicator is unusable; "
      "make a new one.";
  if (report.verdict == Verdict::timed_out)
    throw TimeoutError(what + " and nothing came for " + text(timeout.count() / 1000) + "." +
                       text(timeout.count() / 100 % 10) +
                       " s. Did every rank make the same calls, with the same size, dtype, op and "
                       "protocol?" +
                       now);
  throw AbortedError(what + " when the communicator was aborted, here or by another rank." + now);
}

}  // namespace ringkern::cuda
