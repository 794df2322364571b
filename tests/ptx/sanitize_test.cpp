// The program for compute-sanitizer (bench/gpu/sanitize.cpp) on a fake device, with the arguments
// of the quick run of `make gpu`.
#include "check.h"
#include "cuda/fake_runtime.h"
#include "host.h"

#define main sanitize
#include "../../bench/gpu/sanitize.cpp"
#undef main

namespace {

TEST_CASE("every collective is right by the program's own reckoning") {
  using test::runtime;
  runtime.devices = 1;
  runtime.working = new test::FakeDevices({ptx::launch_of, ptx::blocks_each}, runtime.processors);
  char name[] = "sanitize", ranks[] = "2", count[] = "1000", channels[] = "2";
  char* arguments[] = {name, ranks, count, channels};
  CHECK_EQ(sanitize(4, arguments), 0);
}

}  // namespace
