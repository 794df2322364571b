// The kernels of csrc/cuda as nvcc compiled them.
#include "kernels.h"

#include <cxxabi.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>

namespace ptx {

std::string demangled(const char* name) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(
      abi::__cxa_demangle(name, nullptr, nullptr, &status), std::free);
  return status == 0 ? text.get() : name;
}

namespace {

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw Error("cannot read " + path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The report of cmake/ptxas_report.sh on OBJECT.sm_90.ptx is OBJECT.ptxas.
int registers_of(const std::string& mangled, const std::string& path) {
  const size_t arch = path.rfind(".sm_");
  if (arch == std::string::npos) return 0;
  std::ifstream report(path.substr(0, arch) + ".ptxas");
  const std::string name = path.substr(arch + 1, path.rfind('.') - arch - 1);
  const std::string begins = "'" + mangled + "' for '" + name + "'";
  bool here = false;
  for (std::string line; std::getline(report, line);) {
    if (line.find("Compiling entry function") != std::string::npos)
      here = line.find(begins) != std::string::npos;
    const size_t used = line.find("Used ");
    if (here && used != std::string::npos) return std::stoi(line.substr(used + 5));
  }
  return 0;
}

std::map<std::string, Kernel> read_kernels() {
  std::map<std::string, Kernel> all;
  for (const auto& file : std::filesystem::recursive_directory_iterator(kDirectory)) {
    const std::string path = file.path();
    if (!path.ends_with(kEnding)) continue;
    for (auto& [mangled, entry] : split_entries(text_of(path))) {
      const std::string name = demangled(mangled.c_str());
      all[name] = {name, path, std::move(entry), registers_of(mangled, path), nullptr};
    }
  }
  return all;
}

void make_program(Kernel& kernel) {
  if (kernel.program == nullptr)
    kernel.program = std::make_unique<Program>(parse_entry(kernel.entry.text, kernel.entry.line));
}

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
  make_program(*kernel);
  return *kernel;
}

Kernel& kernel_called(const std::string& name) {
  const auto found = kernels().find(name);
  if (found == kernels().end()) throw Error("no kernel " + name + " in the PTX");
  make_program(found->second);
  return found->second;
}

}  // namespace ptx
