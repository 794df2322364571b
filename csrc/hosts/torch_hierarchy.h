// The collectives over several hosts as steps inside each host, over its ring, and steps between
// hosts, over rails. hosts/torch_communicator.h has waits and failures.
#pragma once

#include <deque>
#include <functional>
#include <utility>

#include "hosts/hosts.h"
#include "hosts/stages.h"
#include "hosts/torch_engine.h"

namespace ringkern::torch_ext {

// One task of one call, on one rank.
class HierarchicalTask {
 public:
  // Its parameters. `inside` runs a task over this host's ring; its ranks are local ones.
  struct Ways {
    const Hosts& hosts;
    InterHostCost cost;
    std::function<void(Task, const WayRequest&)> inside;
    std::function<InterHostEngine&()> rail;  // only where this rank is on one
    std::function<InterHostEngine&()> flat;  // over all ranks
  };

  HierarchicalTask(const Ways& ways, const Prepared& p, const WayRequest& request);

  void run();

 private:
  using Finish = InterHostEngine::Finish;

  // ---- Steps inside, on `count` elements of a rank

  void step(Collective collective, const Reduction& reduction, const void* in, void* out,
            int64_t count, int root = 0);
  // Compares the call, which all ranks must make although no data are moved.
  void compare_only();
  void* element(const void* base, int64_t offset, DType dtype) const;
  static constexpr Reduction kAsBytes{DType::u8};

  Stages cut(int64_t count, int element_bytes, int most_rails) const;

  // Pipelines the stages. `begin` starts a stage between the hosts, and returns how to wait for it,
  // if this rank has to; `arrive` does the rest inside the host. The next stage begins while
  // earlier ones are under way.
  template <class Begin, class Arrive>
  void travel(const Stages& stages, Begin&& begin, Arrive&& arrive) {
    std::deque<std::pair<Stage, Finish>> under_way;
    const auto first_arrives = [&] {
      const auto [stage, finish] = std::move(under_way.front());
      under_way.pop_front();
      if (finish) finish();
      arrive(stage);
    };
    for (int64_t i = 0; i < stages.number(); ++i) {
      const Stage stage = stages.at(i);
      under_way.emplace_back(stage, begin(stage));
      if (under_way.size() > size_t(Stages::kUnderWay)) first_arrives();
    }
    while (!under_way.empty()) first_arrives();
  }

  // ---- All-reduce

  void all_reduce();

  void all_reduce_wide();

  void reduce_in_stages(const at::Tensor& owner, void* base, int64_t count);

  // Gives local rank r the host's sum of shard r.
  void reduce_inside(const Stage& stage, void* base);

  Finish cross(const Stage& stage, const at::Tensor& owner, void* base);

  void gather_inside(const Stage& stage, void* base);

  // ---- Reduce-scatter: each host reduces the parts of every other host, and sends them there

  void reduce_scatter();

  void reduce_scatter_by_all_reduce();

  void put_in_out(const at::Tensor& sum);

  // ---- All-gather: first between the hosts, and then each host spreads the received parts

  void all_gather();

  // ---- Broadcast and reduce: over the root's rail, or the first rail if it is on none

  int root_host() const { return hosts_.host_of(task_.root); }
  int root_local() const { return hosts_.local_of(task_.root); }
  int rail_of_root() const { return root_local() < hosts_.rails() ? root_local() : 0; }

  void broadcast();

  void reduce();

  const Ways& ways_;
  const Hosts& hosts_;
  const Prepared& prepared_;
  const Task& task_;
  const WayRequest request_;
  WayRequest halves_;
  Reduction::Scale scale_;
  const double factor_;
  Reduction inside_;  // the reduction in the hosts' rings
};

}  // namespace ringkern::torch_ext
