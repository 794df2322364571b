// Launches and replays of one communicator follow each other, on whatever streams.
#include "check.h"

#if RK_WITH_CUDA

#include "cuda/device.h"
#include "cuda/fake_kernels.h"
#include "cuda/fake_runtime.h"
#include "cuda/launch_order.h"

using namespace ringkern;
using namespace ringkern::test;
using cuda::LaunchOrder;

namespace {

cudaStream_t new_stream() {
  cudaStream_t stream = nullptr;
  (void)cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  return stream;
}

// A communicator's launches, over a device that works, and streams of the user's.
struct Launches {
  Launches() {
    runtime = {};
    runtime.working = &devices_of(8);
    one = new_stream(), other = new_stream();
    order.claim();
  }
  // Devices that work stay, as their threads do.
  ~Launches() {
    (void)cudaDeviceSynchronize();
    order.release();
    runtime = {};
  }
  void launch(const Kernel& kernel, cudaStream_t stream) {
    order.follow_last(stream);
    const cudaError_t error = runtime.working->launch(test::stream_of(stream), kernel.launch);
    cuda::check(error, "launch");
    order.note_last(stream);
  }
  template <class F>
  cudaGraphExec_t captured(cudaStream_t origin, const F& what) {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    REQUIRE(cudaStreamBeginCapture(origin, cudaStreamCaptureModeGlobal) == cudaSuccess);
    what();
    REQUIRE(cudaStreamEndCapture(origin, &graph) == cudaSuccess);
    (void)cudaGraphInstantiate(&exec, graph, 0);
    return exec;
  }
  cudaGraphExec_t captured(const Kernel& kernel) {
    return captured(one, [&] { launch(kernel, one); });
  }

  Log log;
  LaunchOrder order;
  cudaStream_t one = nullptr, other = nullptr;
};

TEST_CASE("a replay waits for a launch, and a launch for a replay") {
  Launches l;
  Kernel a(l.log, "a"), g(l.log, "g"), b(l.log, "b");
  const cudaGraphExec_t graph = l.captured(g);
  l.launch(a, l.one);
  a.wait_until_resident();
  (void)cudaGraphLaunch(graph, l.other);
  l.launch(b, l.one);  // on the stream of the last launch, but there was a replay
  see_that_nothing_comes(l.log, "a+");
  a.end();
  g.wait_until_resident();
  see_that_nothing_comes(l.log, "a+ a- g+");
  g.end();
  b.wait_until_resident();
  b.end();
  (void)cudaDeviceSynchronize();
  CHECK_EQ(l.log.text(), "a+ a- g+ g- b+ b-");
}

TEST_CASE("two graphs on two streams follow each other") {
  Launches l;
  Kernel g(l.log, "g"), h(l.log, "h");
  const cudaGraphExec_t first = l.captured(g), second = l.captured(h);
  (void)cudaGraphLaunch(second, l.one);
  h.wait_until_resident();
  (void)cudaGraphLaunch(first, l.other);
  see_that_nothing_comes(l.log, "h+");
  h.end();
  g.wait_until_resident();
  g.end();
  (void)cudaDeviceSynchronize();
  CHECK_EQ(l.log.text(), "h+ h- g+ g-");
}

TEST_CASE("launches of a graph on two streams follow each other, and all are waited for") {
  Launches l;
  Kernel g(l.log, "g"), h(l.log, "h"), a(l.log, "a");
  const cudaGraphExec_t graph = l.captured(l.one, [&] {
    cudaEvent_t fork = nullptr, join = nullptr;
    for (cudaEvent_t* event : {&fork, &join}) (void)cudaEventCreateWithFlags(event, 0);
    (void)cudaEventRecord(fork, l.one);
    (void)cudaStreamWaitEvent(l.other, fork, 0);
    l.launch(g, l.one);
    l.launch(h, l.other);
    (void)cudaEventRecord(join, l.other);
    (void)cudaStreamWaitEvent(l.one, join, 0);
  });
  (void)cudaGraphLaunch(graph, l.one);
  l.launch(a, l.other);
  g.wait_until_resident();
  see_that_nothing_comes(l.log, "g+");
  g.end();
  h.wait_until_resident();
  see_that_nothing_comes(l.log, "g+ g- h+");
  h.end();
  a.wait_until_resident();
  a.end();
  (void)cudaDeviceSynchronize();
  CHECK_EQ(l.log.text(), "g+ g- h+ h- a+ a-");
}

TEST_CASE("a replay is waited for as long as there is patience, and nobody else's kernel is") {
  Launches l;
  Kernel g(l.log, "g"), users(l.log, "users");
  const cudaStream_t third = new_stream();
  const cudaGraphExec_t graph = l.captured(g);
  runtime.working->launch(test::stream_of(third), users.launch);
  users.wait_until_resident();
  CHECK(l.order.drain(Milliseconds(1)));  // captured, and not launched
  CHECK(l.order.drain(Milliseconds::max()));
  (void)cudaGraphLaunch(graph, l.one);
  g.wait_until_resident();
  CHECK(!l.order.drain(Milliseconds(1)));
  g.end();
  CHECK(l.order.drain(Milliseconds::max()));
  CHECK(l.log.text().ends_with("g-"));
  users.end();
}

TEST_CASE("what follows the last launch follows a replay") {
  Launches l;
  Kernel g(l.log, "g");
  const cudaGraphExec_t graph = l.captured(g);
  (void)cudaGraphLaunch(graph, l.one);
  g.wait_until_resident();
  l.order.let_follow(l.other);
  runtime.working->later(test::stream_of(l.other), [&] { l.log.add("poison"); });
  see_that_nothing_comes(l.log, "g+");
  g.end();
  (void)cudaDeviceSynchronize();
  CHECK_EQ(l.log.text(), "g+ g- poison");
}

// While a stream captures, a thread may ask another one's event only where it says so.
TEST_CASE("waiting for launches leaves a capture alone") {
  Launches l;
  Kernel a(l.log, "a"), g(l.log, "g");
  l.launch(a, l.other);
  a.end();
  (void)l.captured(l.one, [&] {
    CHECK(l.order.drain(Milliseconds::max()));
    l.launch(g, l.one);
  });
}

TEST_CASE("launches go on after a capture that was refused") {
  Launches l;
  Kernel a(l.log, "a"), g(l.log, "g"), b(l.log, "b");
  cudaGraph_t graph = nullptr;
  l.launch(a, l.other);
  (void)cudaStreamBeginCapture(l.one, cudaStreamCaptureModeGlobal);
  l.launch(g, l.one);
  void* memory = nullptr;
  CHECK_EQ(cudaMalloc(&memory, 16), cudaErrorStreamCaptureUnsupported);
  CHECK_THROWS(TransportError, "end it and capture again", l.launch(g, l.one));
  CHECK_EQ(cudaStreamEndCapture(l.one, &graph), cudaErrorStreamCaptureInvalidated);
  l.launch(b, l.one);
  (void)cudaGraphLaunch(l.captured(g), l.other);
  a.end(), b.end(), g.end();
  (void)cudaDeviceSynchronize();
  CHECK_EQ(l.log.text(), "a+ a- b+ b- g+ g-");
}

}  // namespace

#endif
