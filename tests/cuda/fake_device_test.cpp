// The fake devices' own ordering rules, which are those of a GPU.
#include "check.h"

#if RK_WITH_CUDA

#include "cuda/fake_kernels.h"
#include "cuda/fake_runtime.h"

using namespace ringkern::test;

namespace {

unsigned long long capture_of(const FakeDevices& devices, const FakeDevices::StreamPtr& stream) {
  unsigned long long capture = 0;
  (void)devices.status_of(stream, capture);
  return capture;
}

TEST_CASE("a stream has an order, and two streams have none") {
  FakeDevices& devices = devices_of(4);
  const auto one = devices.stream(0, handle(1)), other = devices.stream(0, handle(2));
  Log log;
  Kernel a(log, "a"), b(log, "b");
  devices.launch(one, a.launch);
  a.wait_until_resident();
  devices.later(one, [&] { log.add("copy"); });
  devices.launch(other, b.launch);
  b.wait_until_resident();
  see_that_nothing_comes(log, "a+ b+");
  const auto ticket = FakeDevices::asked(one);
  CHECK(!FakeDevices::ended(ticket));
  a.end();
  FakeDevices::wait(ticket);
  CHECK_EQ(log.text(), "a+ b+ a- copy");
  b.end();
  devices.wait_for_all(0);
  CHECK_EQ(log.text(), "a+ b+ a- copy b-");
}

TEST_CASE("what is first in a hardware queue holds up other streams") {
  FakeDevices& devices = devices_of(4, "1");
  const auto one = devices.stream(0, handle(1)), other = devices.stream(0, handle(2));
  Log log;
  Kernel a(log, "a"), b(log, "b"), c(log, "c");
  devices.launch(one, a.launch);
  devices.launch(other, b.launch);  // beside it, since all of its blocks are resident
  b.wait_until_resident();
  devices.later(one, [&] { log.add("copy"); });
  devices.launch(other, c.launch);  // behind the copy, which waits for its stream
  b.end();
  FakeDevices::wait({other, 1});
  see_that_nothing_comes(log, "a+ b+ b-");
  a.end(), c.end();
  devices.wait_for_all(0);
  CHECK_EQ(log.text(), "a+ b+ b- a- copy c+ c-");
}

TEST_CASE("streams have hardware queues in turn") {
  FakeDevices& devices = devices_of(4, "2");
  Log log;
  Kernel a(log, "a", 1);
  std::vector<FakeDevices::StreamPtr> streams;
  for (size_t i = 0; i < 3; ++i) streams.push_back(devices.stream(0, handle(i + 1)));
  devices.launch(streams[0], a.launch);
  devices.later(streams[0], [&] { log.add("first"); });
  devices.later(streams[2], [&] { log.add("third"); });
  devices.later(streams[1], [&] { log.add("second"); });
  FakeDevices::wait({streams[1], 1});
  a.wait_until_resident();
  std::this_thread::sleep_for(kNothingComes);
  CHECK(log.text() == "a+ second" || log.text() == "second a+");
  a.end();
  devices.wait_for_all(0);
  CHECK(log.text().ends_with("a- first third"));
}

TEST_CASE("a block waits for room, and other kernels behind it") {
  FakeDevices& devices = devices_of(1);
  devices.make(0, handle(1), 0), devices.make(0, handle(2), 0), devices.make(0, handle(3), -5);
  Log log;
  Kernel pair(log, "pair", 2, 1), later(log, "later", 1, 2), first(log, "first", 1, 2);
  devices.launch(devices.stream(0, handle(1)), pair.launch);
  pair.wait_until_resident();
  devices.launch(devices.stream(0, handle(2)), later.launch);
  devices.launch(devices.stream(0, handle(3)), first.launch);  // of a stream with priority
  see_that_nothing_comes(log, "pair+");
  pair.end();
  first.wait_until_resident();  // in place of the other half of the pair, which needs all
  see_that_nothing_comes(log, "pair+ pair- first+");
  first.end();
  while (pair.resident < 2) std::this_thread::yield();
  see_that_nothing_comes(log, "pair+ pair- first+ first- pair+");
  pair.end(), later.end();
  devices.wait_for_all(0);
  CHECK_EQ(log.text(), "pair+ pair- first+ first- pair+ pair- later+ later-");
}

TEST_CASE("an event holds up a stream of another device") {
  FakeDevices& devices = devices_of(1);
  const auto here = devices.stream(0, handle(1)), there = devices.stream(1, handle(2));
  Log log;
  Kernel a(log, "a");
  FakeDevices::Event event{0, {}, {}, {}};
  CHECK_EQ(devices.follow(there, event), cudaSuccess);  // it was never recorded
  devices.launch(here, a.launch);
  CHECK_EQ(devices.record(event, there), cudaErrorInvalidResourceHandle);  // of another device
  CHECK_EQ(devices.record(event, here), cudaSuccess);
  CHECK_EQ(devices.follow(there, event), cudaSuccess);
  devices.later(there, [&] { log.add("copy"); });
  devices.after_all(1, [&] { log.add("end"); });
  a.wait_until_resident();
  see_that_nothing_comes(log, "a+");
  a.end();
  devices.wait_for_all(1);
  while (!log.text().ends_with("end")) std::this_thread::yield();
  CHECK_EQ(log.text(), "a+ a- copy end");
}

TEST_CASE("a graph is replayed in the order of its streams and events") {
  FakeDevices& devices = devices_of(1);
  const auto one = devices.stream(0, handle(1)), other = devices.stream(0, handle(2));
  Log log;
  FakeDevices::Event fork{0, {}, {}, {}}, join = fork;
  CHECK_EQ(devices.begin_capture(one, cudaStreamCaptureModeRelaxed), cudaSuccess);
  CHECK_EQ(devices.begin_capture(one, cudaStreamCaptureModeRelaxed), cudaErrorIllegalState);
  CHECK(capture_of(devices, one) != 0 && capture_of(devices, other) == 0);
  devices.later(one, [&] { log.add("a"); });
  devices.record(fork, one);
  devices.follow(other, fork);
  CHECK_EQ(capture_of(devices, other), capture_of(devices, one));
  devices.later(other, [&] {
    std::this_thread::sleep_for(kNothingComes);
    log.add("b");
  });
  devices.record(join, other);
  devices.follow(one, join);
  devices.later(one, [&] { log.add("c"); });
  FakeDevices::Graph* graph = nullptr;
  CHECK_EQ(devices.end_capture(one, graph), cudaSuccess);
  CHECK(capture_of(devices, one) == 0 && capture_of(devices, other) == 0);
  CHECK_EQ(log.text(), "");
  FakeDevices::Graph* exec = devices.instantiate(*graph);
  devices.replay(*exec, other);
  devices.later(other, [&] { log.add("d"); });
  devices.replay(*exec, one);
  devices.wait_for_all(0);
  CHECK(log.text().starts_with("a b c "));
  CHECK(log.text() == "a b c d a b c" || log.text() == "a b c a d b c" ||
        log.text() == "a b c a b d c" || log.text() == "a b c a b c d");
  delete exec, delete graph;
}

// Each replay waits for what was recorded when it was launched, and what is launched after it waits
// for the replay.
TEST_CASE("a graph has nodes of events outside of it") {
  FakeDevices& devices = devices_of(4);
  const auto one = devices.stream(0, handle(1)), other = devices.stream(0, handle(2));
  Log log;
  Kernel a(log, "a"), b(log, "b");
  FakeDevices::Event event{0, {}, {}, {}};
  cudaGraphNode_t record = nullptr;
  CHECK_EQ(devices.add_record(devices.graph_of(one), {}, event, record), cudaErrorInvalidValue);
  CHECK_EQ(devices.follow(one, event, /*external=*/true), cudaErrorIllegalState);
  FakeDevices::Graph* graph = nullptr;
  CHECK_EQ(devices.begin_capture(one, cudaStreamCaptureModeGlobal), cudaSuccess);
  CHECK_EQ(devices.follow(one, event, /*external=*/true), cudaSuccess);
  CHECK_EQ(devices.launch(one, b.launch), cudaSuccess);
  const auto& before = devices.dependencies_of(one);
  CHECK_EQ(devices.add_record(devices.graph_of(one), before, event, record), cudaSuccess);
  CHECK_EQ(devices.end_capture(one, graph), cudaSuccess);
  FakeDevices::Graph* exec = devices.instantiate(*graph);
  CHECK(FakeDevices::ended(devices.recorded(event)));  // a capture records nothing
  devices.launch(one, a.launch);
  devices.record(event, one);
  a.wait_until_resident();
  devices.replay(*exec, other);
  CHECK(!FakeDevices::ended(devices.recorded(event)));
  devices.follow(one, event);
  devices.later(one, [&] { log.add("c"); });
  see_that_nothing_comes(log, "a+");
  a.end();
  b.wait_until_resident();
  see_that_nothing_comes(log, "a+ a- b+");
  b.end();
  devices.wait_for_all(0);
  CHECK_EQ(log.text(), "a+ a- b+ b- c");
  CHECK(FakeDevices::ended(devices.recorded(event)));
  delete exec, delete graph;
}

TEST_CASE("a replay leaves an event at the last of its records, or at one of several last ones") {
  for (const bool ordered : {true, false}) {
    FakeDevices& devices = devices_of(4);
    const auto one = devices.stream(0, handle(1)), other = devices.stream(0, handle(2));
    Log log;
    Kernel a(log, "a"), b(log, "b");
    FakeDevices::Event event{0, {}, {}, {}};
    FakeDevices::Graph* graph = nullptr;
    devices.begin_capture(one, cudaStreamCaptureModeGlobal);
    cudaGraphNode_t record = nullptr;
    for (const Kernel* each : {&a, &b}) {
      devices.launch(one, each->launch);
      std::vector<cudaGraphNode_t> after = devices.dependencies_of(one);
      if (ordered && record != nullptr) after.push_back(record);
      CHECK_EQ(devices.add_record(devices.graph_of(one), after, event, record), cudaSuccess);
    }
    const std::vector<cudaGraphNode_t> twice(2, record);
    CHECK_EQ(devices.add_record(devices.graph_of(one), twice, event, record),
             cudaErrorInvalidValue);
    CHECK_EQ(devices.end_capture(one, graph), cudaSuccess);  // though nothing joins the records
    devices.begin_capture(one, cudaStreamCaptureModeGlobal);
    CHECK_EQ(devices.add_record(devices.graph_of(one), {&record, 1}, event, record),
             cudaErrorInvalidValue);  // a node of another graph
    devices.replay(*devices.instantiate(*graph), one);
    a.end();
    b.wait_until_resident();
    devices.follow(other, event);
    devices.later(other, [&] { log.add("c"); });
    see_that_nothing_comes(log, ordered ? "a+ a- b+" : "a+ a- b+ c");
    b.end();
    devices.wait_for_all(0);
  }
}

TEST_CASE("a capture that CUDA refuses makes no graph") {
  FakeDevices& devices = devices_of(1);
  const auto one = devices.stream(0, handle(1)), other = devices.stream(0, handle(2));
  FakeDevices::Graph* graph = nullptr;
  FakeDevices::Event event{0, {}, {}, {}};
  CHECK_EQ(devices.end_capture(one, graph), cudaErrorIllegalState);

  devices.record(event, other);
  devices.begin_capture(one, cudaStreamCaptureModeRelaxed);
  CHECK_EQ(devices.follow(one, event), cudaErrorStreamCaptureIsolation);  // from outside
  CHECK_EQ(devices.end_capture(one, graph), cudaErrorStreamCaptureInvalidated);

  devices.begin_capture(one, cudaStreamCaptureModeRelaxed);
  devices.record(event, one);
  devices.follow(other, event);
  devices.later(other, [] {});
  CHECK_EQ(devices.unsafe_call(), cudaSuccess);
  CHECK_EQ(devices.end_capture(one, graph), cudaErrorStreamCaptureUnjoined);
  CHECK(graph == nullptr);

  devices.begin_capture(one, cudaStreamCaptureModeGlobal);
  CHECK_EQ(devices.unsafe_call(), cudaErrorStreamCaptureUnsupported);
  unsigned long long capture = 1;
  CHECK_EQ(devices.status_of(one, capture), cudaStreamCaptureStatusInvalidated);
  CHECK_EQ(capture, 0u);
  CHECK_EQ(devices.record(event, one), cudaErrorStreamCaptureInvalidated);
  CHECK_EQ(devices.follow(one, event), cudaErrorStreamCaptureInvalidated);
  CHECK_EQ(devices.launch(one, {}), cudaErrorStreamCaptureInvalidated);
  CHECK_EQ(devices.end_capture(one, graph), cudaErrorStreamCaptureInvalidated);
  CHECK_EQ(devices.unsafe_call(), cudaSuccess);

  devices.begin_capture(one, cudaStreamCaptureModeThreadLocal);
  std::thread([&] { CHECK_EQ(devices.unsafe_call(), cudaSuccess); }).join();
  CHECK_EQ(devices.unsafe_call(), cudaErrorStreamCaptureUnsupported);
  CHECK_EQ(devices.end_capture(one, graph), cudaErrorStreamCaptureInvalidated);
}

TEST_CASE("the runtime asks devices that work") {
  runtime = {};
  runtime.working = &devices_of(1);
  cudaStream_t stream = nullptr;
  cudaEvent_t event = nullptr;
  (void)cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  (void)cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  Log log;
  Kernel a(log, "a");
  runtime.working->launch(stream_of(stream), a.launch);
  (void)cudaEventRecord(event, stream);
  CHECK_EQ(cudaEventQuery(event), cudaErrorNotReady);
  CHECK_EQ(cudaStreamQuery(stream), cudaErrorNotReady);
  CHECK_EQ(cudaStreamQuery(nullptr), cudaSuccess);
  a.end();
  CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
  CHECK_EQ(log.text(), "a+ a-");
  CHECK_EQ(cudaEventQuery(event), cudaSuccess);

  CHECK_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
  void* memory = nullptr;
  CHECK_EQ(cudaMalloc(&memory, 16), cudaErrorStreamCaptureUnsupported);
  cudaGraph_t graph = nullptr;
  CHECK_EQ(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
  runtime = {};
}

TEST_CASE("several threads claim, open and free memory at the same time") {
  FakeDevices& devices = devices_of(1);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread)
    threads.emplace_back([&] {
      for (int round = 0; round < 2000; ++round) {
        auto* const at = static_cast<char*>(devices.claim(4096));
        auto* const seen = static_cast<char*>(devices.open(devices.handle_of(at, 0)));
        at[1] = 7;
        CHECK_EQ(seen[1], 7);
        devices.close(seen), devices.free(at);
      }
    });
  for (std::thread& each : threads) each.join();
}

}  // namespace

#endif
