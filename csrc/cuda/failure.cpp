#include "cuda/failure.h"

namespace ringkern::cuda {

Fault fault_in(const WaitReport& report, int rank, int ranks, const RingOrders& orders,
               const RankNames& names) {
  const bool data = report.what == WaitFor::data;
  const int neighbour =
      data ? orders.prev(report.channel, rank, ranks) : orders.next(report.channel, rank, ranks);
  const int peer = report.peer >= 0 ? report.peer : neighbour;
  Fault f = failed_wait(report, rank, peer, report.seq, {}, int64_t(report.timeout_ns), names);
  f.mine.call.is_there = 0;  // a device knows its number alone
  f.waits = kWaitsOnDevice;
  return f;
}

}  // namespace ringkern::cuda
