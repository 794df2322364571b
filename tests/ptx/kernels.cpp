// The kernels of csrc/cuda as nvcc compiled them: what the host calls a kernel is a program in PTX.
#include <cxxabi.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <typeinfo>

#include "cuda/probe.h"
#include "kernels.h"
#include "reduce/dtype.h"
#include "simt/machine.h"

namespace ptx {
namespace {

std::string demangled(const char* name) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(
      abi::__cxa_demangle(name, nullptr, nullptr, &status), std::free);
  return status == 0 ? text.get() : name;
}

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw Error("cannot read " + path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// RK_PTX_DIRECTORY: in or below which they are; RK_PTX_ENDING: how their names end.
std::map<std::string, Kernel> read_kernels() {
  std::map<std::string, Kernel> all;
  for (const auto& file : std::filesystem::recursive_directory_iterator(RK_PTX_DIRECTORY)) {
    const std::string path = file.path();
    if (!path.ends_with(RK_PTX_ENDING)) continue;
    for (auto& [mangled, entry] : split_entries(text_of(path))) {
      const std::string name = demangled(mangled.c_str());
      all[name] = {name, path, std::move(entry), nullptr};
    }
  }
  return all;
}

void run(const void* kernel, const void* arguments, size_t bytes) {
  static_cast<const Kernel*>(kernel)->program->run(arguments, bytes);
}
[[maybe_unused]] const bool kInstalled = [] {
  simt::run_kernel = &run;
  return true;
}();

}  // namespace

std::map<std::string, Kernel>& kernels() {
  static std::map<std::string, Kernel> all = read_kernels();
  return all;
}

Kernel& kernel_named(const std::string& name) {
  static std::map<std::string, Kernel*> known;
  Kernel*& kernel = known[name];
  for (auto& [full, k] : kernels()) {
    const size_t at = full.find("::" + name + "(");
    if (kernel == nullptr && at != std::string::npos) kernel = &k;
  }
  if (kernel == nullptr) throw Error("no kernel " + name + " in the PTX");
  if (kernel->program == nullptr)
    kernel->program =
        std::make_unique<Program>(parse_entry(kernel->entry.text, kernel->entry.line));
  return *kernel;
}

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
  return type + ", " + (combine == Combine::sum ? "true" : "false") + ">";
}

}  // namespace

const void* kernel_for(Protocol protocol, DType dtype, Combine combine) {
  return &ptx::kernel_named("ring_kernel<" + protocol_name(protocol) + ", " +
                            template_name(dtype, combine));
}
const void* timed_kernel_for(Protocol protocol) {
  return &ptx::kernel_named("timed_kernel<" + protocol_name(protocol) + ">");
}
const void* direct_kernel_for(DType dtype, Combine combine) {
  return &ptx::kernel_named("direct_kernel<" + template_name(dtype, combine));
}
const void* alone_kernel(DType dtype) {
  return with_dtype(dtype, [](auto tag) -> const void* {
    const std::string type = type_name<typename decltype(tag)::type>();
    return &ptx::kernel_named("alone<" + type + (type.ends_with('>') ? " >" : ">"));
  });
}
const void* probe_kernel() { return &ptx::kernel_named("probe"); }

}  // namespace ringkern::cuda
