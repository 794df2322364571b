// The collectives that are messages between pairs of ranks: gather, scatter and all-to-all.
// torch/collectives.h has the collectives over the ring.
#pragma once

#include <numeric>

#include "torch/collectives.h"

namespace ringkern::torch_ext {

// A rank's own part is copied, not sent.
void add_own(Call& call, const at::Tensor& to, const at::Tensor& from);

void add_send(Call& call, const at::Tensor& t, int peer);

void add_receive(Call& call, const at::Tensor& t, int peer);

// `list`: the root's list of one tensor like `one` for every rank.
void check_list_of_root(const Tensors& tensors, const std::string& list, const at::Tensor& one,
                        const std::string& role, const Seat& seat);

void check_no_list(size_t length, const std::string& list, int root, const Seat& seat);

void add_gather(Call& call, const std::vector<Tensors>& outs, const at::Tensor& in, int root,
                const Seat& seat);

void add_scatter(Call& call, const at::Tensor& out, const std::vector<Tensors>& ins, int root,
                 const Seat& seat);

// Returns true if the two overlap, as far as torch can tell.
bool overlap(const at::Tensor& a, const at::Tensor& b);

void add_all_to_all(Call& call, const Tensors& outs, const Tensors& ins, const Seat& seat);

// Returns the parts of a tensor, cut along its first dimension; without sizes, as many equal parts
// as ranks.
Tensors parts_of(const at::Tensor& t, const std::string& role, const std::vector<int64_t>& sizes,
                 const std::string& sizes_role, const Seat& seat);

void add_all_to_all(Call& call, const at::Tensor& out, const at::Tensor& in,
                    const std::vector<int64_t>& out_sizes, const std::vector<int64_t>& in_sizes,
                    const Seat& seat);

}  // namespace ringkern::torch_ext
