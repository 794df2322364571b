// The threads of a rank.
#pragma once

#include <algorithm>
#include <functional>
#include <thread>
#include <vector>

#include "cpu/threads.h"

namespace ringkern::test {

// Returns a team of this many threads, the calling one among them.
inline cpu::ParallelFor team(int threads) {
  return [threads](int n, const std::function<void(int, int)>& body) {
    const int each = int(div_up(n, threads));
    std::vector<std::thread> others;
    for (int first = each; first < n; first += each)
      others.emplace_back([&body, first, last = std::min(n, first + each)] { body(first, last); });
    body(0, std::min(n, each));
    for (std::thread& thread : others) thread.join();
  };
}

}  // namespace ringkern::test
