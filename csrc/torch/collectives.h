// The collectives of torch.distributed as calls: what each accepts, which tasks over the ring or
// messages between pairs of ranks it is, and how lists of tensors are served by one of each.
//
// Data that is moved and not reduced is sent as bytes, and may be of any dtype.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "torch/checks.h"
#include "torch/work.h"

namespace ringkern::torch_ext {

// ---- Parts of a call

Tensors flattened(const std::vector<Tensors>& lists);

void add_task(Call& call, Prepared task);

// Where the value of `t` is to be put: in place, or to be copied there when the call is over.
at::Tensor target(const at::Tensor& t, Copies& copies);

// A task that moves `bytes` of two tensors that are plain; `in` or `out` may be undefined.
Prepared moved(Collective collective, const at::Tensor& out, const at::Tensor& in, int64_t bytes,
               int root = 0);

// How the elements of a tensor are reduced: complex numbers as pairs of real ones.
struct Elements {
  Reduction reduction;
  int64_t each = 1;  // of the reduction's dtype
};

Elements elements_of(const at::Tensor& t, const std::string& role, const OpCall& op, int ranks);

// A task that reduces; the tensors are plain, and `out` may be undefined.
Prepared reduced(Collective collective, const at::Tensor& out, const at::Tensor& in,
                 const Elements& elements, int64_t numel, int root = 0);

// Tensors of one size that lie one behind the other, in one storage, are one tensor.
bool side_by_side(const Tensors& tensors);

// One tensor whose parts will be the values of those in the list.
at::Tensor whole_target(const Tensors& list, Copies& copies);

at::Tensor whole_source(const Tensors& list);

bool alike_in_size(const Tensors& list);

// ---- The collectives over the ring. Each adds its tasks and copies to a call.

void add_all_reduce(Call& call, const at::Tensor& t, const OpCall& op, const Seat& seat,
                    const std::string& role);

void add_broadcast(Call& call, const at::Tensor& t, int root, const Seat& seat);

// `out` is defined on the root alone.
void add_reduce(Call& call, const at::Tensor& out, const at::Tensor& in, const OpCall& op, int root,
                const Seat& seat, const std::string& role);

void add_all_gather(Call& call, const at::Tensor& out, const at::Tensor& in, const Seat& seat);

// Tensors of one size are an all-gather; of several, which all ranks know, a broadcast each.
void add_all_gather(Call& call, const Tensors& outs, const at::Tensor& in, const Seat& seat,
                    const std::string& list);

void add_reduce_scatter(Call& call, const at::Tensor& out, const at::Tensor& in, const OpCall& op,
                        const Seat& seat);

// Tensors of one size are a reduce-scatter; of several, which all ranks know, a reduce each.
void add_reduce_scatter(Call& call, const at::Tensor& out, const Tensors& ins, const OpCall& op,
                        const Seat& seat, const std::string& list);

}  // namespace ringkern::torch_ext
