// The collectives over several hosts as steps inside each, over its ring, and between them, over
// rails. Waits and failures are in hosts/torch_communicator.h.
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
    std::function<void(Task, const Request&)> inside;
    std::function<Engine&()> rail;  // only where this rank is on one
    std::function<Engine&()> flat;  // over all ranks
  };

  HierarchicalTask(const Ways& ways, const Prepared& p, const Request& request);

  void run();

 private:
  using Finish = Engine::Finish;

  // ---- Steps inside, on `count` elements of a rank

  void step(Collective collective, const Reduction& reduction, const void* in, void* out,
            int64_t count, int root = 0);
  // Nothing is to be moved, and yet all ranks have to make the same call.
  void compare_only();
  void* element(const void* base, int64_t offset, DType dtype) const;
  static constexpr Reduction kMoved{DType::u8};

  Stages cut(int64_t count, int element_bytes, int most_rails) const;

  // Stages follow each other: `begin` starts one on its way between the hosts, and returns how to
  // wait for it, if this rank has to; `arrive` is what is left to do inside. While some are under
  // way the next is begun.
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

  // So that local rank r has the host's sum of shard r.
  void reduce_inside(const Stage& stage, void* base);

  Finish cross(const Stage& stage, const at::Tensor& owner, void* base);

  void gather_inside(const Stage& stage, void* base);

  // ---- Reduce-scatter: each host reduces what every other is to have, and sends it there

  void reduce_scatter();

  void reduce_scatter_by_all_reduce();

  void put_in_out(const at::Tensor& sum);

  // ---- All-gather: between the hosts first, and then each host spreads what has come

  void all_gather();

  // ---- Broadcast and reduce: over the root's rail, or the first where it is on none

  int root_host() const { return hosts_.host_of(task_.root); }
  int root_local() const { return hosts_.local_of(task_.root); }
  int rail_of_root() const { return root_local() < hosts_.rails() ? root_local() : 0; }

  void broadcast();

  void reduce();

  const Ways& ways_;
  const Hosts& hosts_;
  const Prepared& prepared_;
  const Task& task_;
  const Request request_;
  Request halves_;
  Reduction::Scale scale_;
  const double factor_;
  Reduction inside_;  // what the hosts' rings do
};

}  // namespace ringkern::torch_ext
