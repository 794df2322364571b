#include "p2p/torch_collectives.h"

namespace ringkern::torch_ext {

void add_own(Call& call, const at::Tensor& to, const at::Tensor& from) {
  bump_version(to);
  at::AutoDispatchBelowADInplaceOrView guard;
  if (!to.is_same(from)) call.copies.push_back({to, from.reshape(to.sizes())});
}

void add_send(Call& call, const at::Tensor& t, int peer) {
  check_device(t.device());
  at::AutoDispatchBelowADInplaceOrView guard;
  call.transfers.push_back({true, peer, plain(t), {}});
}

void add_receive(Call& call, const at::Tensor& t, int peer) {
  check_device(t.device());
  at::AutoDispatchBelowADInplaceOrView guard;
  Transfer transfer{false, peer, {}, {}};
  transfer.buffer = target(t, transfer.copies);
  call.transfers.push_back(std::move(transfer));
}

void check_list_of_root(const Tensors& tensors, const std::string& list, const at::Tensor& one,
                        const std::string& role, const Seat& seat) {
  check_length(tensors.size(), list, size_t(seat.ranks));
  for (size_t r = 0; r < tensors.size(); ++r) {
    check_dense(tensors[r], nth(list, r));
    check_same_kind(tensors[r], nth(list, r), one, role);
    check_numel(tensors[r], nth(list, r), one.numel(), "as " + role);
  }
}

void check_no_list(size_t length, const std::string& list, int root, const Seat& seat) {
  if (length > 0)
    throw py::value_error(list + " is given on rank " + std::to_string(seat.rank) +
                          "; it belongs to the root alone, which is rank " + std::to_string(root));
}

void add_gather(Call& call, const std::vector<Tensors>& outs, const at::Tensor& in, int root,
                const Seat& seat) {
  check_dense(in, "tensor");
  if (seat.rank != root) {
    check_no_list(outs.empty() ? 0 : outs.front().size(), "gather_list", root, seat);
    return add_send(call, in, root);
  }
  check_length(outs.size(), "the list of gather_list", 1, "that of the root");
  check_list_of_root(outs.front(), "gather_list", in, "tensor", seat);
  for (size_t r = 0; r < outs.front().size(); ++r)
    check_written(outs.front()[r], nth("gather_list", r).c_str());
  at::AutoDispatchBelowADInplaceOrView guard;
  const at::Tensor own = in_the_way(in, outs.front(), root) ? in.clone() : in;
  for (int r = 0; r < seat.ranks; ++r) {
    const at::Tensor& out = outs.front()[size_t(r)];
    if (r == seat.rank) add_own(call, out, own);
    else add_receive(call, out, r);
  }
}

void add_scatter(Call& call, const at::Tensor& out, const std::vector<Tensors>& ins, int root,
                 const Seat& seat) {
  check_target(out, "tensor");
  if (seat.rank != root) {
    check_no_list(ins.empty() ? 0 : ins.front().size(), "scatter_list", root, seat);
    return add_receive(call, out, root);
  }
  check_length(ins.size(), "the list of scatter_list", 1, "that of the root");
  check_list_of_root(ins.front(), "scatter_list", out, "tensor", seat);
  at::AutoDispatchBelowADInplaceOrView guard;
  const bool busy = in_the_way(out, ins.front(), root);
  for (int r = 0; r < seat.ranks; ++r) {
    const at::Tensor in = busy ? ins.front()[size_t(r)].clone() : ins.front()[size_t(r)];
    if (r == seat.rank) add_own(call, out, in);
    else add_send(call, in, r);
  }
}

bool overlap(const at::Tensor& a, const at::Tensor& b) {
  const auto found = at::get_overlap_status(a, b);
  return found == at::MemOverlapStatus::Full || found == at::MemOverlapStatus::Partial;
}

void add_all_to_all(Call& call, const Tensors& outs, const Tensors& ins, const Seat& seat) {
  const std::string out_list = "output_tensor_list", in_list = "input_tensor_list";
  check_length(outs.size(), out_list, size_t(seat.ranks));
  check_length(ins.size(), in_list, size_t(seat.ranks));
  for (size_t r = 0; r < outs.size(); ++r) {
    check_target(outs[r], nth(out_list, r));
    check_dense(ins[r], nth(in_list, r));
    check_same_kind(outs[r], nth(out_list, r), ins[0], nth(in_list, 0));
    check_same_kind(ins[r], nth(in_list, r), ins[0], nth(in_list, 0));
  }
  const auto me = size_t(seat.rank);
  // Arriving data would overwrite data that has not been sent yet. A rank's own part may stay in
  // place.
  for (size_t a = 0; a < outs.size(); ++a)
    for (size_t b = 0; b < ins.size(); ++b)
      if ((a != me || b != me) && overlap(outs[a], ins[b]))
        throw py::value_error(nth(out_list, a) + " and " + nth(in_list, b) +
                              " overlap; give tensors of their own memory");
  check_numel(outs[me], nth(out_list, me), ins[me].numel(),
              "as " + nth(in_list, me) + ", which goes there");
  add_own(call, outs[me], ins[me]);
  // Each rank starts with a different peer, so that not all turn to rank 0 first.
  for (int i = 1; i < seat.ranks; ++i) {
    const int to = (seat.rank + i) % seat.ranks, from = (seat.rank + seat.ranks - i) % seat.ranks;
    add_send(call, ins[size_t(to)], to);
    add_receive(call, outs[size_t(from)], from);
  }
}

Tensors parts_of(const at::Tensor& t, const std::string& role, const std::vector<int64_t>& sizes,
                 const std::string& sizes_role, const Seat& seat) {
  const int64_t rows = t.dim() == 0 ? 1 : t.size(0);
  std::vector<int64_t> split = sizes;
  if (split.empty()) {
    if (rows % seat.ranks != 0)
      throw py::value_error(role + " has " + std::to_string(rows) +
                            " rows, which cannot be cut in " + std::to_string(seat.ranks) +
                            " equal parts; give " + sizes_role);
    split.assign(size_t(seat.ranks), rows / seat.ranks);
  }
  if (split.size() != size_t(seat.ranks))
    throw py::value_error(sizes_role + " has " + std::to_string(split.size()) +
                          " sizes and must have " + std::to_string(seat.ranks) +
                          ", one for each rank of the group");
  for (size_t r = 0; r < split.size(); ++r)
    if (split[r] < 0)
      throw py::value_error(nth(sizes_role, r) + " is " + std::to_string(split[r]) +
                            "; the size of a part is 0 or more");
  if (const int64_t sum = std::accumulate(split.begin(), split.end(), int64_t(0)); sum != rows)
    throw py::value_error("the sum of " + sizes_role + " is " + std::to_string(sum) + " and " +
                          role + " has " + std::to_string(rows) + " rows; they must be the same");
  return t.dim() == 0 ? Tensors{t} : t.split_with_sizes(split);
}

void add_all_to_all(Call& call, const at::Tensor& out, const at::Tensor& in,
                    const std::vector<int64_t>& out_sizes, const std::vector<int64_t>& in_sizes,
                    const Seat& seat) {
  check_target(out, "output");
  check_dense(in, "input");
  check_same_kind(out, "output", in, "input");
  const auto found = at::get_overlap_status(out, in);
  if (found == at::MemOverlapStatus::Partial ||
      (found == at::MemOverlapStatus::Full && seat.ranks > 1 && out.numel() > 0))
    throw py::value_error("output and input overlap; give tensors of their own memory");
  at::AutoDispatchBelowADInplaceOrView guard;
  const Tensors outs = parts_of(out, "output", out_sizes, "output_split_sizes", seat);
  const Tensors ins = parts_of(in, "input", in_sizes, "input_split_sizes", seat);
  add_all_to_all(call, outs, ins, seat);
  bump_version(out);  // the parts, made below autograd, do not count for it
}

}  // namespace ringkern::torch_ext
