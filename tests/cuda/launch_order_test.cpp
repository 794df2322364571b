// Launches and replays of one communicator run in order, on any streams.
#include "check.h"

#if RK_WITH_CUDA

#include "cuda/device.h"
#include "cuda/fake_kernels.h"
#include "cuda/fake_runtime.h"
#include "cuda/launch_order.h"
#include "cuda/local.h"

using namespace ringkern;
using namespace ringkern::test;
using cuda::LaunchOrder;

namespace {

cudaStream_t new_stream() {
  cudaStream_t stream = nullptr;
  (void)cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  return stream;
}

constexpr int kHeld = 8, kMost = 6;  // blocks

// Launches of communicators, over a device that works, and streams of the user's.
struct Launches {
  Launches() {
    runtime = {};
    runtime.working = &devices_of(2 * kHeld);  // more than launches are told of
    one = new_stream(), other = new_stream(), third = new_stream();
    for (LaunchOrder* each : {&order, &second}) each->claim(0, kHeld, kMost, one);
  }
  // Working devices remain, because their threads do.
  ~Launches() {
    (void)cudaDeviceSynchronize();
    for (LaunchOrder* each : {&order, &second}) each->release();
    runtime = {};
  }
  void launch(const Kernel& kernel, cudaStream_t stream) { launch(order, kernel, stream); }
  static void launch(LaunchOrder& order, const Kernel& kernel, cudaStream_t stream) {
    const auto turn = order.follow_last(stream, int(kernel.launch.blocks));
    cuda::check(launch_users(kernel, stream), "launch");
    order.note_last(stream);
  }
  static cudaError_t launch_users(const Kernel& kernel, cudaStream_t stream) {
    return runtime.working->launch(test::stream_of(stream), kernel.launch);
  }
  std::string text_at_end() {
    (void)cudaDeviceSynchronize();
    return log.text();
  }
  // Makes a stream follow another one, into a capture or back.
  static void fork(cudaStream_t from, cudaStream_t to) {
    cudaEvent_t event = nullptr;
    (void)cudaEventCreateWithFlags(&event, 0);
    (void)cudaEventRecord(event, from);
    (void)cudaStreamWaitEvent(to, event, 0);
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
  LaunchOrder order, second;  // of two communicators
  cudaStream_t one = nullptr, other = nullptr, third = nullptr;
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
  CHECK_EQ(l.text_at_end(), "a+ a- g+ g- b+ b-");
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
  CHECK_EQ(l.text_at_end(), "h+ h- g+ g-");
}

// Two captures at a time, whose launches take turns.
TEST_CASE("launches of a graph follow each other, though another one is captured meanwhile") {
  for (const bool on_two_streams : {false, true}) {
    Launches l;
    Kernel a(l.log, "a"), x(l.log, "x"), b(l.log, "b"), y(l.log, "y"), c(l.log, "c");
    const cudaStream_t side = on_two_streams ? l.third : l.one;
    cudaGraphExec_t beside = nullptr;
    const cudaGraphExec_t graph = l.captured(l.one, [&] {
      Launches::fork(l.one, side);
      beside = l.captured(l.other, [&] {
        l.launch(a, l.one);
        l.launch(x, l.other);
        l.launch(b, side);
        l.launch(y, l.other);
      });
      Launches::fork(side, l.one);
    });
    (void)cudaGraphLaunch(graph, l.one);
    a.wait_until_resident();
    see_that_nothing_comes(l.log, "a+");
    a.end();
    b.wait_until_resident();
    (void)cudaGraphLaunch(beside, l.other);
    see_that_nothing_comes(l.log, "a+ a- b+");
    b.end();
    x.wait_until_resident();
    l.launch(c, l.one);
    see_that_nothing_comes(l.log, "a+ a- b+ b- x+");
    x.end(), y.end(), c.end();
    CHECK_EQ(l.text_at_end(), "a+ a- b+ b- x+ x- y+ y- c+ c-");
  }
}

TEST_CASE("launches of a graph on two streams follow each other, and all are waited for") {
  Launches l;
  Kernel g(l.log, "g"), h(l.log, "h"), a(l.log, "a");
  const cudaGraphExec_t graph = l.captured(l.one, [&] {
    Launches::fork(l.one, l.other);
    l.launch(g, l.one);
    l.launch(h, l.other);
    Launches::fork(l.other, l.one);
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
  CHECK_EQ(l.text_at_end(), "g+ g- h+ h- a+ a-");
}

TEST_CASE("what a graph does after a launch does not wait for its record") {
  Launches l;
  Kernel g(l.log, "g"), users(l.log, "users");
  const cudaGraphExec_t graph = l.captured(l.one, [&] {
    l.launch(g, l.one);
    l.launch_users(users, l.one);
  });
  const auto& nodes = reinterpret_cast<FakeDevices::Graph*>(graph)->nodes;
  const auto records = [](const FakeDevices::Node& node) { return node.records != nullptr; };
  CHECK_EQ(std::ranges::count_if(nodes, records), 1);
  for (const size_t i : nodes.back().after) CHECK(!records(nodes[i]));
}

TEST_CASE("a replay is waited for while there is patience, and no kernel of others is") {
  Launches l;
  Kernel g(l.log, "g"), users(l.log, "users");
  const cudaGraphExec_t graph = l.captured(g);
  l.launch_users(users, l.third);
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
  CHECK_EQ(l.text_at_end(), "g+ g- poison");
}

// While a stream captures, a thread may query another one's event only where it declares so.
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

TEST_CASE("launches continue after a capture that was refused") {
  Launches l;
  Kernel a(l.log, "a"), g(l.log, "g"), b(l.log, "b");
  cudaGraph_t graph = nullptr;
  l.launch(a, l.other);
  (void)cudaStreamBeginCapture(l.one, cudaStreamCaptureModeGlobal);
  l.launch(g, l.one);
  void* memory = nullptr;
  CHECK_EQ(cudaMalloc(&memory, 16), cudaErrorStreamCaptureUnsupported);
  CHECK_THROWS(TransportError, "end it and capture again", l.launch(g, l.one));
  CHECK_THROWS(TransportError, "end it and capture again", l.order.note_last(l.one));
  CHECK_EQ(cudaStreamEndCapture(l.one, &graph), cudaErrorStreamCaptureInvalidated);
  l.launch(b, l.one);
  (void)cudaGraphLaunch(l.captured(g), l.other);
  a.end(), b.end(), g.end();
  CHECK_EQ(l.text_at_end(), "a+ a- b+ b- g+ g-");
}

// A kernel whose blocks wait for each other.
struct Gang : Kernel {
  Gang(Log& log, const std::string& name, uint32_t blocks) : Kernel(log, name, blocks, 1, true) {}
};

TEST_CASE("launches of two communicators run side by side where there is room, and only there") {
  for (const uint32_t blocks : {4u, 5u}) {
    Launches l;
    Gang a(l.log, "a", 4), b(l.log, "b", blocks);
    l.launch(l.order, a, l.one);
    a.wait_until_resident();
    l.launch(l.second, b, l.other);
    if (blocks == 4) b.wait_until_resident();
    see_that_nothing_comes(l.log, blocks == 4 ? "a+ b+" : "a+");
    a.end(), b.end();
    CHECK_EQ(l.text_at_end().starts_with("a+ a- b+"), blocks == 5);
  }
}

TEST_CASE("a launch waits for no more of the others than it must, the oldest first") {
  Launches l;
  LaunchOrder third;
  third.claim(0, kHeld, kMost, l.one);
  Gang a(l.log, "a", 4), b(l.log, "b", 4), c(l.log, "c", 4), d(l.log, "d", 4);
  l.launch(l.second, a, l.one);
  a.wait_until_resident();
  l.launch(l.order, b, l.other);
  b.wait_until_resident();
  l.launch(third, c, l.third);
  see_that_nothing_comes(l.log, "a+ b+");
  a.end();
  c.wait_until_resident();  // beside b
  c.end();
  (void)cudaStreamSynchronize(l.third);
  l.launch(l.second, d, l.one);  // c has ended
  d.wait_until_resident();
  CHECK_EQ(l.log.text(), "a+ b+ a- c+ c- d+");
  b.end(), d.end();
  (void)cudaDeviceSynchronize();
  third.release();
}

TEST_CASE("a communicator's launches count once, since they follow each other") {
  Launches l;
  Gang b(l.log, "b", 3), a(l.log, "a", 5), again(l.log, "again", 5);
  l.launch(l.second, b, l.other);
  b.wait_until_resident();
  l.launch(l.order, a, l.one);
  a.wait_until_resident();
  l.launch(l.order, again, l.one);
  a.end();
  again.wait_until_resident();  // beside b
  again.end(), b.end();
}

TEST_CASE("a graph has room reserved, and is put behind launches of others") {
  Launches l;
  Gang g(l.log, "g", 4), a(l.log, "a", 5), b(l.log, "b", 5), before(l.log, "before", 5);
  const cudaGraphExec_t graph = l.captured(g);
  before.end();
  l.launch(l.second, before, l.other);
  (void)cudaDeviceSynchronize();
  (void)cudaGraphLaunch(graph, l.one);
  g.wait_until_resident();
  l.launch(l.second, a, l.other);
  see_that_nothing_comes(l.log, "before+ before- g+");
  g.end();
  a.wait_until_resident();
  (void)cudaGraphLaunch(graph, l.one);  // whose kernel ends at once
  see_that_nothing_comes(l.log, "before+ before- g+ g- a+");
  a.end();
  CHECK(l.text_at_end().ends_with("a- g+ g-"));
}

TEST_CASE("launches of two communicators in one graph follow each other") {
  Launches l;
  Gang g(l.log, "g", 4), h(l.log, "h", 5);
  const cudaGraphExec_t graph = l.captured(l.one, [&] {
    Launches::fork(l.one, l.other);
    l.launch(l.order, g, l.one);
    l.launch(l.second, h, l.other);
    Launches::fork(l.other, l.one);
  });
  (void)cudaGraphLaunch(graph, l.one);
  g.wait_until_resident();
  see_that_nothing_comes(l.log, "g+");
  g.end(), h.end();
  CHECK(l.text_at_end().starts_with("g+ g- h+"));
}

// Kernels of rings, each of which runs until the test ends one.
Log* rings_log = nullptr;
std::atomic<int> launched{0}, to_end{0};
ptx::Launch ring_kernel(const std::string&, uint32_t blocks, uint32_t, const void*) {
  return {blocks, 2, [blocks, number = launched++](ptx::Room& room) {
            for (uint32_t b = 0; b < blocks; ++b)
              while (!room.take()) std::this_thread::yield();
            rings_log->add(std::to_string(number) + ":" + std::to_string(blocks));
            while (to_end <= number) std::this_thread::yield();
            for (uint32_t b = 0; b < blocks; ++b) room.leave();
          }};
}

// 8 ranks have 128 blocks of 264.
TEST_CASE("local rings run side by side as far as the device holds their blocks") {
  runtime = {};
  runtime.working =
      new FakeDevices({ring_kernel, [](const std::string&, uint32_t) { return 2; }}, 132);
  Log log;
  rings_log = &log;
  Kernel users(log, "users");
  const cudaStream_t stream = new_stream();
  runtime.working->launch(test::stream_of(nullptr), users.launch);
  users.wait_until_resident();
  {
    std::vector<std::unique_ptr<cuda::LocalRing>> rings;
    for (int i = 0; i < 3; ++i)  // and wait for no kernel of the user's
      rings.push_back(
          std::make_unique<cuda::LocalRing>(std::vector<int>(8, 0), Milliseconds(1000)));
    users.end();
    (void)cudaDeviceSynchronize();
    std::vector<cudaStream_t> streams{stream, new_stream(), new_stream()};
    for (size_t i = 0; i < rings.size(); ++i) {
      std::vector<Task> tasks(8);
      for (Task& task : tasks) task.count = 1 << 24, task.stream = streams[i];
      rings[i]->run(tasks);
      const std::string begun = std::to_string(i) + ":128";
      while (i < 2 && !log.text().ends_with(begun)) std::this_thread::yield();
    }
    see_that_nothing_comes(log, "users+ users- 0:128 1:128");
    to_end = 1;
    while (!log.text().ends_with("2:128")) std::this_thread::yield();
    to_end = 3;
  }
  CHECK_EQ(log.text(), "users+ users- 0:128 1:128 2:128");
  runtime = {};
}

// The room of launches that CUDA refuses is not taken.
TEST_CASE("a launch that was refused takes no room") {
  Launches l;
  Gang a(l.log, "a", 5), b(l.log, "b", 5);
  {
    const auto turn = l.second.follow_last(l.other, 5);
  }
  l.launch(l.order, a, l.one);
  a.wait_until_resident();
  a.end();
  l.launch(l.second, b, l.other);
  b.end();
  CHECK(l.text_at_end().starts_with("a+ a- b+"));
}

}  // namespace

#endif
