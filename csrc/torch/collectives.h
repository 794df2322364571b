// The collectives of torch.distributed as calls: checks of the arguments, and the tasks over the
// ring and copies that a call takes. A list of tensors is sent as one tensor where possible.
//
// Data that is moved and not reduced is sent as bytes, so it may be of any dtype.
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

// Returns the tensor that the call writes for `t`: `t` itself, or a buffer that `copies` brings to
// `t` when the call is over.
at::Tensor target(const at::Tensor& t, Copies& copies);

// Returns a task that moves `bytes` from `in` to `out`. Both are plain; one may be undefined.
Prepared moved(Collective collective, const at::Tensor& out, const at::Tensor& in, int64_t bytes,
               int root = 0);

// The reduction of a tensor's elements; complex numbers are reduced as pairs of real ones.
struct Elements {
  Reduction reduction;
  int64_t each = 1;  // numbers of the reduction's dtype in an element
};

Elements elements_of(const at::Tensor& t, const std::string& role, const OpCall& op, int ranks);

// Returns a task that reduces. The tensors are plain, and `out` may be undefined.
Prepared reduced(Collective collective, const at::Tensor& out, const at::Tensor& in,
                 const Elements& elements, int64_t numel, int root = 0);

// Returns true if the tensors lie one behind the other in one storage, and so form one tensor.
bool side_by_side(const Tensors& tensors);

// Returns one tensor that the call writes for the whole list: the memory of the list, or a buffer
// that `copies` brings to the tensors when the call is over.
at::Tensor whole_target(const Tensors& list, Copies& copies);

at::Tensor whole_source(const Tensors& list);

bool alike_in_size(const Tensors& list);

// ---- The collectives over the ring. Each adds its tasks and copies to a call.

void add_all_reduce(Call& call, const at::Tensor& t, const OpCall& op, const Seat& seat,
                    const std::string& role);

void add_broadcast(Call& call, const at::Tensor& t, int root, const Seat& seat);

// Uses `out` on the root only.
void add_reduce(Call& call, const at::Tensor& out, const at::Tensor& in, const OpCall& op, int root,
                const Seat& seat, const std::string& role);

void add_all_gather(Call& call, const at::Tensor& out, const at::Tensor& in, const Seat& seat);

// Adds one all-gather if all tensors have one size, else a broadcast for each. All ranks know the
// sizes.
void add_all_gather(Call& call, const Tensors& outs, const at::Tensor& in, const Seat& seat,
                    const std::string& list);

void add_reduce_scatter(Call& call, const at::Tensor& out, const at::Tensor& in, const OpCall& op,
                        const Seat& seat);

// Adds one reduce-scatter if all tensors have one size, else a reduce for each. All ranks know the
// sizes.
void add_reduce_scatter(Call& call, const at::Tensor& out, const Tensors& ins, const OpCall& op,
                        const Seat& seat, const std::string& list);

// Replaces each sum of floats that goes round the ring by an all-reduce, of which a rank keeps its
// part: only an all-reduce adds in the order of core/tree.h. Throws ValueError for a product of
// floats.
void reduce_by_tree(Call& call, const Seat& seat);

}  // namespace ringkern::torch_ext
