#include "torch/collectives.h"

namespace ringkern::torch_ext {

Tensors flattened(const std::vector<Tensors>& lists) {
  Tensors all;
  for (const Tensors& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

void add_task(Call& call, Prepared task) {
  if (!call.tasks.empty() && call.tasks.front().device != task.device)
    throw py::value_error("tensors of one call are on " + call.tasks.front().device.str() +
                          " and on " + task.device.str() + "; they must be on the same device");
  check_device(task.device);
  call.tasks.push_back(std::move(task));
}

at::Tensor target(const at::Tensor& t, Copies& copies) {
  bump_version(t);
  if (is_plain(t)) return t;
  at::AutoDispatchBelowADInplaceOrView guard;
  at::Tensor buffer = at::empty(t.sizes(), t.options().memory_format(at::MemoryFormat::Contiguous));
  copies.push_back({t, buffer});
  return buffer;
}

Prepared moved(Collective collective, const at::Tensor& out, const at::Tensor& in, int64_t bytes,
               int root) {
  const at::Tensor& given = out.defined() ? out : in;
  Prepared p;
  p.device = given.device();
  p.in = in, p.out = out;
  p.task.collective = collective;
  p.task.reduction.dtype = DType::u8;
  p.task.moved = moved_of(given.scalar_type());
  p.task.in = in.defined() ? in.const_data_ptr() : nullptr;
  p.task.out = out.defined() ? out.mutable_data_ptr() : nullptr;
  p.task.count = bytes;
  p.task.root = root;
  return p;
}

Elements elements_of(const at::Tensor& t, const std::string& role, const OpCall& op, int ranks) {
  check_dense(t, role);
  at::ScalarType type = t.scalar_type();
  Elements e;
  if (t.is_complex()) {
    if (op.op != Op::sum && op.op != Op::avg && op.op != Op::premul_sum)
      throw py::type_error(role + " is complex, and op " + name_of(op.op) +
                           " is not defined for complex numbers; sum, avg and premul_sum are");
    type = c10::toRealValueType(type);
    e.each = 2;
  }
  const auto dtype = dtype_of(type);
  if (!dtype)
    throw py::type_error(role + " is of dtype torch." + torch_name(t.scalar_type()) +
                         ", which ringkern does not reduce; it reduces " + dtype_names() +
                         " and complex numbers: convert it first");
  e.reduction = reduction_for(op, *dtype, ranks);
  return e;
}

Prepared reduced(Collective collective, const at::Tensor& out, const at::Tensor& in,
                 const Elements& elements, int64_t numel, int root) {
  Prepared p = moved(collective, out, in, numel * elements.each, root);
  p.task.reduction = elements.reduction;
  p.task.moved = 0;  // it is reduced
  return p;
}

bool side_by_side(const Tensors& tensors) {
  const auto* at = static_cast<const char*>(tensors.front().const_data_ptr());
  for (const at::Tensor& t : tensors) {
    if (!is_plain(t) || t.const_data_ptr() != at || !t.is_alias_of(tensors.front())) return false;
    at += t.nbytes();
  }
  return true;
}

at::Tensor whole_target(const Tensors& list, Copies& copies) {
  for (const at::Tensor& t : list) bump_version(t);
  if (side_by_side(list)) return list.front();
  at::AutoDispatchBelowADInplaceOrView guard;
  const auto n = int64_t(list.size());
  at::Tensor whole = at::empty({n * list.front().numel()},
                               list.front().options().memory_format(at::MemoryFormat::Contiguous));
  for (int64_t i = 0; i < n; ++i)
    copies.push_back(
        {list[size_t(i)], whole.narrow(0, i * list.front().numel(), list.front().numel())
                              .view(list[size_t(i)].sizes())});
  return whole;
}

at::Tensor whole_source(const Tensors& list) {
  if (side_by_side(list)) return list.front();
  at::AutoDispatchBelowADInplaceOrView guard;
  Tensors flat;
  for (const at::Tensor& t : list) flat.push_back(plain(t).view({-1}));
  return at::cat(flat);
}

bool alike_in_size(const Tensors& list) {
  return std::all_of(list.begin(), list.end(),
                     [&](const at::Tensor& t) { return t.numel() == list.front().numel(); });
}

void add_all_reduce(Call& call, const at::Tensor& t, const OpCall& op, const Seat& seat,
                    const std::string& role) {
  const Elements elements = elements_of(t, role, op, seat.ranks);
  check_written(t, role.c_str());
  at::AutoDispatchBelowADInplaceOrView guard;
  const at::Tensor buffer = plain(t);
  if (!buffer.is_same(t)) call.copies.push_back({t, buffer});
  bump_version(t);
  add_task(call, reduced(Collective::all_reduce, buffer, buffer, elements, t.numel()));
}

void add_broadcast(Call& call, const at::Tensor& t, int root, const Seat& seat) {
  check_target(t, "tensor");
  at::AutoDispatchBelowADInplaceOrView guard;
  const bool mine = root == seat.rank;
  const at::Tensor buffer = mine ? plain(t) : target(t, call.copies);
  add_task(call, moved(Collective::broadcast, buffer, buffer, int64_t(buffer.nbytes()), root));
}

void add_reduce(Call& call, const at::Tensor& out, const at::Tensor& in, const OpCall& op, int root,
                const Seat& seat, const std::string& role) {
  const Elements elements = elements_of(in, role, op, seat.ranks);
  at::AutoDispatchBelowADInplaceOrView guard;
  const at::Tensor source = plain(in);
  at::Tensor buffer;
  if (root == seat.rank) buffer = target(out, call.copies);
  add_task(call, reduced(Collective::reduce, buffer, source, elements, in.numel(), root));
}

void add_all_gather(Call& call, const at::Tensor& out, const at::Tensor& in, const Seat& seat) {
  check_target(out, "output_tensor");
  check_dense(in, "input_tensor");
  check_same_kind(out, "output_tensor", in, "input_tensor");
  check_numel(out, "output_tensor", in.numel() * seat.ranks,
              "those of input_tensor times the number of ranks");
  check_apart(out, in, in, out, "input_tensor", "output_tensor", seat.rank);
  at::AutoDispatchBelowADInplaceOrView guard;
  const at::Tensor source = plain(in);
  add_task(call, moved(Collective::all_gather, target(out, call.copies), source,
                       int64_t(source.nbytes())));
}

void add_all_gather(Call& call, const Tensors& outs, const at::Tensor& in, const Seat& seat,
                    const std::string& list) {
  check_length(outs.size(), list, size_t(seat.ranks));
  check_dense(in, "tensor");
  for (size_t r = 0; r < outs.size(); ++r) {
    check_target(outs[r], nth(list, r));
    check_same_kind(outs[r], nth(list, r), in, "tensor");
  }
  check_numel(in, "tensor", outs[size_t(seat.rank)].numel(),
              "as " + nth(list, size_t(seat.rank)) + ", where this rank's goes");
  at::AutoDispatchBelowADInplaceOrView guard;
  const at::Tensor source = in_the_way(in, outs, seat.rank) ? plain(in).clone() : plain(in);
  if (alike_in_size(outs)) {
    add_task(call, moved(Collective::all_gather, whole_target(outs, call.copies), source,
                         int64_t(source.nbytes())));
    return;
  }
  for (int r = 0; r < seat.ranks; ++r) {
    const at::Tensor out = target(outs[size_t(r)], call.copies);
    add_task(call, moved(Collective::broadcast, out, r == seat.rank ? source : out,
                         int64_t(out.nbytes()), r));
  }
}

void add_reduce_scatter(Call& call, const at::Tensor& out, const at::Tensor& in, const OpCall& op,
                        const Seat& seat) {
  const Elements elements = elements_of(in, "input", op, seat.ranks);
  check_target(out, "output");
  check_same_kind(out, "output", in, "input");
  check_numel(in, "input", out.numel() * seat.ranks, "those of output times the number of ranks");
  check_apart(out, in, out, in, "output", "input", seat.rank);
  at::AutoDispatchBelowADInplaceOrView guard;
  const at::Tensor source = plain(in);
  add_task(call, reduced(Collective::reduce_scatter, target(out, call.copies), source, elements,
                         out.numel()));
}

void add_reduce_scatter(Call& call, const at::Tensor& out, const Tensors& ins, const OpCall& op,
                        const Seat& seat, const std::string& list) {
  check_length(ins.size(), list, size_t(seat.ranks));
  check_target(out, "output");
  Elements elements;
  for (size_t r = 0; r < ins.size(); ++r) {
    elements = elements_of(ins[r], nth(list, r), op, seat.ranks);
    check_same_kind(out, "output", ins[r], nth(list, r));
  }
  check_numel(out, "output", ins[size_t(seat.rank)].numel(),
              "as " + nth(list, size_t(seat.rank)) + ", this rank's part");
  at::AutoDispatchBelowADInplaceOrView guard;
  at::Tensor result = out;
  if (in_the_way(out, ins, seat.rank)) {
    bump_version(out);
    result = at::empty(out.sizes(), out.options().memory_format(at::MemoryFormat::Contiguous));
    call.copies.push_back({out, result});
  }
  if (alike_in_size(ins)) {
    const at::Tensor source = whole_source(ins);
    add_task(call, reduced(Collective::reduce_scatter, target(result, call.copies), source,
                           elements, out.numel()));
    return;
  }
  for (int r = 0; r < seat.ranks; ++r)
    add_reduce(call, result, ins[size_t(r)], op, r, seat, nth(list, size_t(r)));
}

void reduce_by_tree(Call& call, const Seat& seat) {
  for (Prepared& p : call.tasks) {
    Task& task = p.task;
    const bool scatters = task.collective == Collective::reduce_scatter;
    const bool reduces = scatters || task.collective == Collective::reduce;
    if (!reduces && task.collective != Collective::all_reduce) continue;
    if (kind_of(task.reduction.dtype) == Kind::floating && task.reduction.combine == Combine::prod)
      throw py::value_error(
          "deterministic='world_invariant', an option of this group, has no PRODUCT of floats; use "
          "a group without it");
    if (!reduces || !task.reduction.can_be_tree()) continue;
    at::AutoDispatchBelowADInplaceOrView guard;
    // The input of a list may be known by its first tensor alone.
    const int64_t numel = scatters ? seat.ranks * p.out.numel() : p.in.numel();
    const at::Tensor all =
        at::empty({numel}, p.in.options().memory_format(at::MemoryFormat::Contiguous));
    const at::Tensor out = std::exchange(p.out, all);
    if (out.defined()) {
      const int64_t first = scatters ? seat.rank * out.numel() : 0;
      p.copies.push_back({out, all.narrow(0, first, out.numel()).view(out.sizes())});
    }
    task.collective = Collective::all_reduce;
    task.root = 0;
    task.out = all.mutable_data_ptr();
    if (scatters) task.count *= seat.ranks;
  }
}

}  // namespace ringkern::torch_ext
