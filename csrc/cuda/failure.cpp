#include "cuda/failure.h"

namespace ringkern::cuda {

void throw_failure(const WaitReport& report, int rank, int ranks, Milliseconds timeout,
                   const RingOrders& orders, const RankNames& names) {
  const bool data = report.what == WaitFor::data;
  const int neighbour =
      data ? orders.prev(report.channel, rank, ranks) : orders.next(report.channel, rank, ranks);
  const int peer = report.peer >= 0 ? report.peer : neighbour;
  Fault f = failed_wait(report, rank, peer, 0, {}, std::chrono::nanoseconds(timeout).count(), names);
  f.waits = kWaitsOnDevice;
  throw_wait(f);
}

}  // namespace ringkern::cuda
