// Common to every loop: call i sums the tensor (first + i) % places, and its time goes to ns[i].
#pragma once

#include <stdint.h>
#include <time.h>

static inline int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}
