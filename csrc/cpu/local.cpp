#include "cpu/local.h"

#include <string>
#include <system_error>

namespace ringkern::cpu {
LocalRing::LocalRing(int ranks, Milliseconds timeout, const RingOrders& orders) {
  if (ranks < 1 || ranks > kMaxRanks)
    throw UsageError("a local ring has 1 to " + std::to_string(kMaxRanks) + " ranks, not " +
                     std::to_string(ranks));
  const Geometry geometry = default_geometry();
  const auto memory = std::make_shared<LocalMemory>();
  for (int r = 0; r < ranks && ranks > 1; ++r)
    transports_.push_back(std::make_unique<LocalTransport>(memory, segment_bytes(geometry)));
  for (int r = 0; r < ranks; ++r) {
    Segments segments;
    segments.orders = orders;
    if (ranks > 1) {
      LocalTransport& mine = *transports_[size_t(r)];
      const int next = (r + 1) % ranks, prev = (r + ranks - 1) % ranks;
      for (int p = 0; p < ranks; ++p)
        segments.all.push_back(p == r ? mine.mine() : mine.map(transports_[size_t(p)]->offer(), p));
      segments.mine = mine.mine();
      segments.next = segments.all[size_t(next)];
      segments.prev = segments.all[size_t(prev)];
    }
    executors_.push_back(std::make_unique<CpuExecutor>(segments, geometry, r, ranks, timeout));
  }
  errors_.resize(size_t(ranks));
  threads_.reserve(size_t(ranks));
  try {
    for (size_t r = 1; r < executors_.size(); ++r) threads_.emplace_back([this, r] { work(r); });
  } catch (const std::system_error& error) {
    stop();
    throw Error("a local ring of " + std::to_string(ranks) + " ranks needs " +
                std::to_string(ranks - 1) + " threads, and starting them failed: " + error.what() +
                ". Raise the limit (ulimit -u), or use fewer ranks");
  }
}

LocalRing::~LocalRing() { stop(); }

void LocalRing::stop() {
  stopping_ = true;
  round_.fetch_add(1, std::memory_order_release);
  wake_all(round_);
  for (std::thread& thread : threads_) thread.join();
}

void LocalRing::work(size_t rank) {
  for (uint32_t round = 0;; ++round) {
    sleep_while(round_, round);
    if (stopping_) return;
    run_rank(rank);
    if (working_.fetch_sub(1, std::memory_order_acq_rel) == 1) wake_all(working_);
  }
}

void LocalRing::run_rank(size_t rank) {
  try {
    executors_[rank]->run(tasks_[rank]);
  } catch (...) {
    errors_[rank] = std::current_exception();
    executors_[rank]->abort();  // the others must not wait for this rank
  }
}

void LocalRing::run(std::span<const Task> tasks) {
  if (tasks.size() != executors_.size())
    throw UsageError("a ring of " + std::to_string(executors_.size()) +
                     " ranks needs one task for each rank, not " + std::to_string(tasks.size()));
  tasks_ = tasks;
  errors_.assign(errors_.size(), nullptr);
  working_.store(uint32_t(threads_.size()), std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  wake_all(round_);
  run_rank(0);
  for (uint32_t left; (left = working_.load(std::memory_order_acquire)) != 0;)
    sleep_while(working_, left);
  rethrow_cause(errors_);
}

void LocalRing::abort() {
  for (const auto& executor : executors_) executor->abort();
}

}  // namespace ringkern::cpu
