#include "hosts/torch_hierarchy.h"

namespace ringkern::torch_ext {

HierarchicalTask::HierarchicalTask(const Ways& ways, const Prepared& p, const WayRequest& request)
    : ways_(ways), hosts_(ways.hosts), prepared_(p), task_(p.task), request_(request),
      scale_(p.task.reduction.scale), factor_(p.task.reduction.factor), inside_(p.task.reduction) {
  // Divides once, when the sums of all hosts are added.
  if (scale_ == Reduction::Scale::divide_result) inside_.scale = Reduction::Scale::none;
  halves_.protocol = request.protocol;
}

void HierarchicalTask::run() {
  at::AutoDispatchBelowADInplaceOrView guard;
  if (task_.count == 0 && prepared_.device.is_cpu()) return compare_only();
  switch (task_.collective) {
    case Collective::all_reduce: return all_reduce();
    case Collective::reduce_scatter: return reduce_scatter();
    case Collective::all_gather: return all_gather();
    case Collective::broadcast: return broadcast();
    case Collective::reduce: return reduce();
    case Collective::send_recv: break;  // hosts/torch_p2p.cpp
  }
  throw UsageError("send_recv cannot run as a hierarchical collective");
}

void HierarchicalTask::step(Collective collective, const Reduction& reduction, const void* in,
                            void* out, int64_t count, int root) {
  Task t;
  t.collective = collective;
  t.reduction = reduction;
  t.in = in;
  t.out = out;
  t.count = count;
  t.root = root;
  ways_.inside(t, collective == Collective::all_reduce ? request_ : halves_);
}

void HierarchicalTask::compare_only() {
  if (hosts_.local() == 0) ways_.rail().compare();
  uint8_t token = 1;
  step(Collective::all_reduce, {DType::u8, Combine::min}, &token, &token, 1);
}

void* HierarchicalTask::element(const void* base, int64_t offset, DType dtype) const {
  return const_cast<char*>(static_cast<const char*>(base)) + offset * size_of(dtype);
}

Stages HierarchicalTask::cut(int64_t count, int element_bytes, int most_rails) const {
  return Stages::make(count, element_bytes, most_rails, hosts_.count(),
                      hosts_.ranks() > hosts_.count(), ways_.cost);
}

void HierarchicalTask::all_reduce() {
  const Reduction& r = task_.reduction;
  // Rounds once, at the very end: data cross between hosts as wide as they are kept.
  if (request_.wide && r.can_be_wide()) return all_reduce_wide();
  reduce_in_stages(prepared_.out, task_.out, task_.count);
}

void HierarchicalTask::all_reduce_wide() {
  const at::Tensor narrow = slice_of(prepared_.out, task_.out, 0, task_.count, inside_.dtype);
  at::Tensor wide = narrow.to(at::kFloat);
  if (scale_ == Reduction::Scale::multiply_input) {
    // A rank's input has the dtype, and so has its product with the factor.
    wide = rounded(wide.mul_(factor_), narrow.scalar_type()).to(at::kFloat);
    inside_.scale = Reduction::Scale::none;
  }
  inside_.dtype = DType::f32;
  reduce_in_stages(wide, wide.mutable_data_ptr(), task_.count);
  narrow.copy_(rounded(wide, narrow.scalar_type()));
}

void HierarchicalTask::reduce_in_stages(const at::Tensor& owner, void* base, int64_t count) {
  const Stages stages = cut(count, size_of(inside_.dtype), hosts_.rails());
  // Compares while the host reduces the first stage.
  if (hosts_.local() < stages.rails && stages.shard * size_of(inside_.dtype) > kSlotBytes)
    ways_.rail().begin_comparing();
  travel(
      stages,
      [&](const Stage& stage) {
        reduce_inside(stage, base);
        return hosts_.local() < stage.rails ? cross(stage, owner, base) : Finish();
      },
      [&](const Stage& stage) { gather_inside(stage, base); });
}

void HierarchicalTask::reduce_inside(const Stage& stage, void* base) {
  const DType dtype = inside_.dtype;
  void* const in = element(base, stage.offset, dtype);
  const int here = int(hosts_.ranks_on(hosts_.host()).size());
  const bool little = stage.rails == 1 && stage.count() * size_of(dtype) <= Stages::kLittleBytes;
  if (request_.in_rank_order || little) {
    step(Collective::all_reduce, inside_, in, in, stage.count());
  } else if (stage.rails == here) {
    step(Collective::reduce_scatter, inside_, in, element(in, hosts_.local() * stage.shard, dtype),
         stage.shard);
  } else {
    for (int r = 0; r < stage.rails; ++r) {
      void* const shard = element(in, r * stage.shard, dtype);
      step(Collective::reduce, inside_, shard, r == hosts_.local() ? shard : nullptr, stage.shard,
           r);
    }
  }
}

HierarchicalTask::Finish HierarchicalTask::cross(const Stage& stage, const at::Tensor& owner,
                                                 void* base) {
  const at::Tensor shard = slice_of(owner, base, stage.offset + hosts_.local() * stage.shard,
                                    stage.shard, inside_.dtype);
  Finish finish = ways_.rail().begin_all_reduce(shard, inside_, request_.in_rank_order);
  if (scale_ != Reduction::Scale::divide_result) return finish;
  return [this, shard, finish] {
    finish();
    divide(shard, factor_);
  };
}

void HierarchicalTask::gather_inside(const Stage& stage, void* base) {
  const int64_t shard_bytes = stage.shard * size_of(inside_.dtype);
  char* const begin = static_cast<char*>(element(base, stage.offset, inside_.dtype));
  const int here = int(hosts_.ranks_on(hosts_.host()).size());
  if (stage.rails == here)
    return step(Collective::all_gather, kAsBytes, begin + hosts_.local() * shard_bytes, begin,
                shard_bytes);
  for (int r = 0; r < stage.rails; ++r) {
    char* const shard = begin + r * shard_bytes;
    step(Collective::broadcast, kAsBytes, shard, shard, shard_bytes, r);
  }
}

void HierarchicalTask::reduce_scatter() {
  const int64_t n = task_.count;
  if (!hosts_.regular()) return reduce_scatter_by_all_reduce();
  const int hosts = hosts_.count(), here = int(hosts_.ranks_on(0).size());
  const auto options = prepared_.out.options().dtype(scalar_of(inside_.dtype));
  const at::Tensor sums = at::empty({hosts, n}, options), parts = at::empty_like(sums);
  if (hosts * n * size_of(inside_.dtype) > kSlotBytes) ways_.rail().begin_comparing();
  for (int h = 0; h < hosts; ++h) {
    const void* in = element(task_.in, int64_t(h) * here * n, inside_.dtype);
    step(Collective::reduce_scatter, inside_, in,
         element(sums.mutable_data_ptr(), h * n, inside_.dtype), n);
  }
  ways_.rail().begin_all_to_all(parts, sums)();
  put_in_out(combined(parts, inside_.combine));
}

void HierarchicalTask::reduce_scatter_by_all_reduce() {
  const int64_t n = task_.count;
  const at::Tensor all =
      slice_of(prepared_.in, task_.in, 0, n * hosts_.ranks(), inside_.dtype).clone();
  const Reduction::Scale scale = std::exchange(scale_, Reduction::Scale::none);
  reduce_in_stages(all, all.mutable_data_ptr(), all.numel());
  scale_ = scale;
  put_in_out(all.narrow(0, n * hosts_.rank(), n));
}

void HierarchicalTask::put_in_out(const at::Tensor& sum) {
  const at::Tensor out = slice_of(prepared_.out, task_.out, 0, task_.count, inside_.dtype);
  out.copy_(sum);
  if (scale_ == Reduction::Scale::divide_result) divide(out, factor_);
}

void HierarchicalTask::all_gather() {
  const int64_t n = task_.count * size_of(task_.reduction.dtype);  // bytes
  const at::Tensor in = slice_of(prepared_.in, task_.in, 0, n, DType::u8);
  if (!hosts_.regular()) {
    // A copy, because an engine may not accept it in place.
    const at::Tensor out = slice_of(prepared_.out, task_.out, 0, n * hosts_.ranks(), DType::u8);
    return ways_.flat().begin_all_gather(out, in.clone())();
  }
  const int hosts = hosts_.count(), here = int(hosts_.ranks_on(0).size());
  const at::Tensor come = at::empty({hosts, n}, in.options());
  const Finish finish = ways_.rail().begin_all_gather(come, in);
  const auto spread = [&](int host, const void* from) {
    step(Collective::all_gather, kAsBytes, from,
         element(task_.out, int64_t(host) * here * n, DType::u8), n);
  };
  spread(hosts_.host(), in.const_data_ptr());
  finish();
  for (int h = 0; h < hosts; ++h)
    if (h != hosts_.host()) spread(h, come.select(0, h).const_data_ptr());
}

void HierarchicalTask::broadcast() {
  const int on = rail_of_root();
  const bool at_home = root_host() == hosts_.host(), sends = hosts_.local() == on;
  void* const base = task_.out;
  const int64_t bytes = task_.count * size_of(task_.reduction.dtype);
  const auto spread = [&](const Stage& stage, int root) {
    void* const part = element(base, stage.offset, DType::u8);
    step(Collective::broadcast, kAsBytes, part, part, stage.count(), root);
  };
  // The root may have its input in another tensor.
  if (hosts_.rank() == task_.root && task_.in != base)
    slice_of(prepared_.out, base, 0, bytes, DType::u8)
        .copy_(slice_of(prepared_.in, task_.in, 0, bytes, DType::u8));
  // Small data cross between hosts first: this does not delay other hosts, and the root's own ranks
  // get nothing of a call that other hosts do not make.
  const bool crosses_first = bytes <= kSlotBytes && on == root_local();
  travel(
      cut(bytes, 1, 1),
      [&](const Stage& stage) {
        if (at_home && on != root_local()) spread(stage, root_local());
        Finish finish;
        if (sends)
          finish = ways_.rail().begin_broadcast(
              slice_of(prepared_.out, base, stage.offset, stage.count(), DType::u8), root_host());
        if (at_home && on == root_local() && !crosses_first) spread(stage, root_local());
        return finish;
      },
      [&](const Stage& stage) {
        if (!at_home) spread(stage, on);
        else if (crosses_first) spread(stage, root_local());
      });
}

void HierarchicalTask::reduce() {
  const int on = rail_of_root();
  const bool crosses = hosts_.local() == on, root = hosts_.rank() == task_.root;
  const auto options = prepared_.in.options().dtype(scalar_of(inside_.dtype));
  // On the root's host, all ranks take part in what may be handed on.
  const bool hands_on = root_host() == hosts_.host() && on != root_local();
  at::Tensor sum;
  if (root) sum = slice_of(prepared_.out, task_.out, 0, task_.count, inside_.dtype);
  else if (crosses || hands_on) sum = at::empty({task_.count}, options);
  void* const base = sum.defined() ? sum.mutable_data_ptr() : nullptr;
  const auto part = [&](const Stage& stage) { return element(base, stage.offset, inside_.dtype); };
  if (crosses && task_.count * size_of(inside_.dtype) > kSlotBytes) ways_.rail().begin_comparing();
  travel(
      cut(task_.count, size_of(inside_.dtype), 1),
      [&](const Stage& stage) {
        step(Collective::reduce, inside_, element(task_.in, stage.offset, inside_.dtype),
             crosses ? part(stage) : nullptr, stage.count(), on);
        if (!crosses) return Finish();
        return ways_.rail().begin_reduce(
            slice_of(sum, base, stage.offset, stage.count(), inside_.dtype), inside_, root_host());
      },
      [&](const Stage& stage) {
        if (hands_on)
          step(Collective::broadcast, kAsBytes, part(stage), part(stage),
               stage.count() * size_of(inside_.dtype), on);
      });
  if (root && scale_ == Reduction::Scale::divide_result) divide(sum, factor_);
}

}  // namespace ringkern::torch_ext
