// The kernels that the host asks for are programs in PTX, on the simulated machine.
#include <typeinfo>

#include "cuda/messages.h"
#include "cuda/probe.h"
#include "kernels.h"
#include "reduce/dtype.h"
#include "simt/machine.h"

namespace ptx {
namespace {

void run(const void* kernel, const void* arguments, size_t bytes) {
  static_cast<const Kernel*>(kernel)->program->run(arguments, bytes);
}
[[maybe_unused]] const bool kInstalled = [] {
  simt::run_kernel = &run;
  return true;
}();

}  // namespace
}  // namespace ptx

namespace ringkern::cuda {
namespace {

template <class T>
std::string type_name() {
  return ptx::demangled(typeid(T).name());
}
std::string protocol_name(Protocol p) { return "(ringkern::Protocol)" + std::to_string(int(p)); }
std::string template_name(DType dtype, Combine combine) {
  const std::string type =
      with_dtype(dtype, [](auto tag) { return type_name<typename decltype(tag)::type>(); });
  return type + ", " + (combine == Combine::sum ? "true" : "false");
}
std::string template_name(DType dtype, Combine combine, bool tree) {
  return template_name(dtype, combine) + (tree ? ", true>" : ", false>");
}

}  // namespace

const void* kernel_for(Protocol protocol, DType dtype, Combine combine) {
  return &ptx::kernel_named("ring_kernel<" + protocol_name(protocol) + ", " +
                            template_name(dtype, combine) + ">");
}
const void* timed_kernel_for(Protocol protocol) {
  return &ptx::kernel_named("timed_kernel<" + protocol_name(protocol) + ">");
}
const void* direct_kernel_for(DType dtype, Combine combine, bool tree) {
  return &ptx::kernel_named("direct_kernel<" + template_name(dtype, combine, tree));
}
const void* norm_kernel_for(DType dtype) {
  const std::string type =
      with_dtype(dtype, [](auto tag) { return type_name<typename decltype(tag)::type>(); });
  return &ptx::kernel_named("norm_kernel<" + type + (type.ends_with('>') ? " >" : ">"));
}
const void* in_place_kernel(DType dtype, Combine combine, bool tree) {
  return &ptx::kernel_named("in_place<" + template_name(dtype, combine, tree));
}
const void* across_kernel(DType dtype, Combine combine, bool tree) {
  return &ptx::kernel_named("across<" + template_name(dtype, combine, tree));
}
const void* alone_kernel(DType dtype) {
  return with_dtype(dtype, [](auto tag) -> const void* {
    const std::string type = type_name<typename decltype(tag)::type>();
    return &ptx::kernel_named("alone<" + type + (type.ends_with('>') ? " >" : ">"));
  });
}
const void* message_kernel() { return &ptx::kernel_named("messages"); }
const void* probe_kernel() { return &ptx::kernel_named("probe"); }

}  // namespace ringkern::cuda
