// The command line of the simulation's programs: pairs of an option and its value.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>

namespace simt {

class Options {
 public:
  Options(int argc, char** argv, const char* usage) : usage_(usage) {
    for (int i = 1; i < argc; i += 2) {
      if (i + 1 == argc) stop();
      given_[argv[i]] = argv[i + 1];
    }
  }
  std::optional<std::string> text(const char* name) {
    const auto found = given_.find(name);
    if (found == given_.end()) return std::nullopt;
    std::optional<std::string> value = found->second;
    given_.erase(found);
    return value;
  }
  std::optional<uint64_t> number(const char* name) {
    const auto value = text(name);
    if (!value) return std::nullopt;
    char* end = nullptr;
    const uint64_t n = std::strtoull(value->c_str(), &end, 10);
    if (end == value->c_str() || *end != 0) stop();
    return n;
  }
  // Called after the last known option; stops at any that is left.
  void finish() const {
    if (!given_.empty()) stop();
  }
  [[noreturn]] void stop() const {
    std::fprintf(stderr, "usage: %s\n", usage_);
    std::exit(2);
  }

 private:
  const char* usage_;
  std::map<std::string, std::string> given_;
};

}  // namespace simt
