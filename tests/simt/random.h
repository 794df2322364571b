// A small generator of random numbers, the same on every machine, so that a seed determines a run.
#pragma once

#include <cstdint>

namespace simt {

class Random {
 public:
  Random() = default;
  explicit Random(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15u + 0xD1B54A32D192ED03u) {}

  uint64_t next() {  // splitmix64
    uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  // Returns a number from 0 to n-1.
  uint64_t below(uint64_t n) { return uint64_t((unsigned __int128)(next()) * n >> 64); }
  bool one_in(uint64_t n) { return below(n) == 0; }
  template <class T, int n>
  T one_of(const T (&choices)[n]) {
    return choices[below(n)];
  }

 private:
  uint64_t state_ = 0;
};

}  // namespace simt
