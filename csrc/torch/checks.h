// Checks of the arguments of torch.distributed's collectives. A role is the name that
// torch.distributed gives an argument.
#pragma once

#include <ATen/MemoryOverlap.h>

#include <string>
#include <vector>

#include "torch/devices.h"
#include "torch/tensors.h"

namespace ringkern::torch_ext {

using Tensors = std::vector<at::Tensor>;

// This rank's place in the group.
struct Seat {
  int rank = 0, ranks = 1;
};

std::string nth(const std::string& list, size_t i);

inline std::string shape_text(const at::Tensor& t) { return c10::str(t.sizes()); }

// Throws ValueError if ringkern has no kernels for the device. Called before the group counts the
// call.
void check_device(c10::Device device);

// Throws unless `t` is a dense tensor; it may have any dtype.
void check_dense(const at::Tensor& t, const std::string& role);

void check_target(const at::Tensor& t, const std::string& role);

void check_same_kind(const at::Tensor& a, const std::string& role_a, const at::Tensor& b,
                     const std::string& role_b);

void check_numel(const at::Tensor& t, const std::string& role, int64_t wanted,
                 const std::string& why);

void check_length(size_t length, const std::string& list, size_t wanted,
                  const std::string& why = "one for each rank of the group");

// Returns true if `t` shares memory with a tensor of the list, so that a write to one would change
// the other. Tensor number `own`, this rank's part of the list, may be `t` itself.
bool in_the_way(const at::Tensor& t, const Tensors& list, int own);

const at::Tensor& only_one(const Tensors& tensors, const std::string& role);

int check_root(int64_t root, int64_t root_tensor, const Seat& seat);

void check_some(size_t length, const std::string& list);

void check_tag(int tag);

void check_peer(int peer, const char* role, int tag, const Seat& seat);

}  // namespace ringkern::torch_ext
