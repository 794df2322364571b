// Options of the programs here: `--name number`.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

namespace ringkern::faults {

// Returns the given options, or the defaults of `options`. Ends the program at an invalid one.
inline std::map<std::string, int64_t> read_options(const std::vector<char*>& words,
                                                   std::map<std::string, int64_t> options) {
  for (size_t i = 1; i < words.size(); i += 2) {
    const std::string name = words[i];
    char* end = nullptr;
    const int64_t value = i + 1 < words.size() ? std::strtoll(words[i + 1], &end, 10) : 0;
    if (options.count(name) == 0 || end == nullptr || *end != 0 || value < 0) {
      std::fprintf(stderr, "usage: %s", words[0]);
      for (const auto& [known, by_default] : options)
        std::fprintf(stderr, " [%s %lld]", known.c_str(), static_cast<long long>(by_default));
      std::fprintf(stderr, "\n");
      std::exit(2);
    }
    options[name] = value;
  }
  return options;
}

}  // namespace ringkern::faults
