#include "torch/checks.h"

namespace ringkern::torch_ext {

std::string nth(const std::string& list, size_t i) { return list + "[" + std::to_string(i) + "]"; }

void check_device(c10::Device device) {
  if (!device.is_cpu() && !(RK_WITH_CUDA && device.is_cuda())) throw_no_kernels(device);
}

void check_dense(const at::Tensor& t, const std::string& role) {
  if (!t.defined()) throw py::type_error(role + " is undefined; give a tensor");
  if (t.is_nested() || t.layout() != at::kStrided || t.is_quantized())
    throw py::value_error(role +
                          " is not a dense tensor; ringkern takes dense tensors: call "
                          ".to_dense() or .dequantize() first");
}

void check_target(const at::Tensor& t, const std::string& role) {
  check_dense(t, role);
  check_written(t, role.c_str());
}

void check_same_kind(const at::Tensor& a, const std::string& role_a, const at::Tensor& b,
                     const std::string& role_b) {
  if (a.scalar_type() != b.scalar_type())
    throw py::value_error(role_a + " is torch." + torch_name(a.scalar_type()) + " and " + role_b +
                          " is torch." + torch_name(b.scalar_type()) +
                          "; they must have the same dtype");
  if (a.device() != b.device())
    throw py::value_error(role_a + " is on " + a.device().str() + " and " + role_b + " on " +
                          b.device().str() + "; they must be on the same device");
}

void check_numel(const at::Tensor& t, const std::string& role, int64_t wanted,
                 const std::string& why) {
  if (t.numel() != wanted)
    throw py::value_error(role + " has " + std::to_string(t.numel()) + " elements, shape " +
                          shape_text(t) + ", and must have " + std::to_string(wanted) + ", " + why);
}

void check_length(size_t length, const std::string& list, size_t wanted, const std::string& why) {
  if (length != wanted)
    throw py::value_error(list + " has " + std::to_string(length) + " tensors and must have " +
                          std::to_string(wanted) + ", " + why);
}

bool in_the_way(const at::Tensor& t, const Tensors& list, int own) {
  for (size_t i = 0; i < list.size(); ++i) {
    const auto found = at::get_overlap_status(t, list[i]);
    if (found == at::MemOverlapStatus::Partial ||
        (found == at::MemOverlapStatus::Full && int(i) != own))
      return true;
  }
  return false;
}

const at::Tensor& only_one(const Tensors& tensors, const std::string& role) {
  check_length(tensors.size(), "the list of " + role, 1, "one tensor a rank");
  return tensors.front();
}

int check_root(int64_t root, int64_t root_tensor, const Seat& seat) {
  if (root < 0 || root >= seat.ranks)
    throw py::value_error("the root is rank " + std::to_string(root) + ", which is not among the " +
                          std::to_string(seat.ranks) + " ranks of the group");
  if (root_tensor != 0)
    throw py::value_error("the root tensor is number " + std::to_string(root_tensor) +
                          "; each rank has one tensor, number 0");
  return int(root);
}

void check_some(size_t length, const std::string& list) {
  if (length == 0) throw py::value_error(list + " is empty; give one tensor or more");
}

void check_tag(int tag) {
  if (tag < 0) throw py::value_error("tag is " + std::to_string(tag) + "; a tag is 0 or more");
}

void check_peer(int peer, const char* role, int tag, const Seat& seat) {
  check_tag(tag);
  if (peer < 0 || peer >= seat.ranks)
    throw py::value_error(std::string(role) + " is rank " + std::to_string(peer) +
                          ", which is not among the " + std::to_string(seat.ranks) +
                          " ranks of the group");
  if (peer == seat.rank)
    throw py::value_error(std::string(role) + " is rank " + std::to_string(peer) +
                          ", this rank: a rank cannot send to itself");
}

}  // namespace ringkern::torch_ext
