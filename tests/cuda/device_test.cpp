// Contexts, memory and streams of devices.
#include "check.h"

#if RK_WITH_CUDA

#include <set>

#include "cuda/device.h"
#include "cuda/fake_kernels.h"
#include "cuda/fake_runtime.h"

using namespace ringkern;
using namespace ringkern::cuda;
using test::runtime;

namespace {

int chosen = -1;

// Every thread begins on device 0.
TEST_CASE("a device gets no context by becoming the current one again") {
  runtime = {};
  framework = {};
  const auto on_thread = [](int device) {
    int current = -1;
    std::thread([&] {
      {
        const OnDevice guard(device);
      }
      (void)cudaGetDevice(&current);
    }).join();
    return current;
  };
  CHECK_EQ(on_thread(2), 2);
  CHECK_EQ(runtime.contexts, 1u << 2);
  framework.choose = [](int device) { chosen = device; };
  CHECK_EQ(on_thread(1), 1);
  CHECK_EQ(chosen, 0);  // by the framework, which can without a context
  CHECK_EQ(runtime.contexts, 1u << 1 | 1u << 2);
  chosen = -1;
  (void)cudaSetDevice(0);
  CHECK_EQ(on_thread(2), 0);
  CHECK_EQ(chosen, -1);
  framework = {};
}

TEST_CASE("memory that the framework keeps is asked for once") {
  runtime = {};
  framework = {};
  runtime.full = 0;
  CHECK_THROWS(TransportError, "cudaMalloc: a text (a name, code 2). Free some",
               allocate(16, "Free some"));
  static int asked = 0;
  framework.empty_cache = [] { ++asked; };
  CHECK_THROWS(TransportError, "cudaMalloc", allocate(16));
  CHECK_EQ(asked, 1);
  CHECK_EQ(runtime.last, cudaSuccess);  // the error is not left for others
  framework.empty_cache = [] { runtime.full = -1; };
  void* const memory = allocate(16);
  CHECK(memory != nullptr);
  framework.empty_cache = [] { ++asked; };
  runtime.lost = 0;
  CHECK_THROWS(TransportError, "code 700", allocate(16));  // not a lack of memory
  CHECK_EQ(asked, 1);
  runtime.lost = -1;
  (void)cudaFree(memory);
  framework = {};
}

TEST_CASE("a stream that was given back is taken again when it has nothing to do") {
  runtime = {};
  runtime.working = &test::devices_of(1);
  constexpr int kDevice = 2;
  const cudaStream_t first = take_stream(kDevice), second = take_stream(kDevice);
  CHECK(first != second);
  CHECK_EQ(runtime.streams, 2);
  test::Log log;
  test::Kernel kernel(log, "a");
  runtime.working->launch(test::stream_of(first, kDevice), kernel.launch);
  give_back_stream(kDevice, first);
  CHECK(take_stream(kDevice) != first);  // its last owner's kernel runs
  CHECK(take_stream(1) != first);
  give_back_stream(kDevice, second);
  CHECK(take_stream(kDevice) == second);
  kernel.end();
  runtime.working->wait_for_all(kDevice);
  CHECK(take_stream(kDevice) == first);
  CHECK_EQ(runtime.streams, 4);
  runtime = {};
}

}  // namespace

#endif
