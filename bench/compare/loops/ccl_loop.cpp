// oneCCL's all-reduce of memory of the host, in place, timed call by call.
#include <cstring>
#include <exception>
#include <memory>
#include <oneapi/ccl.hpp>
#include <string>

#include "timing.h"

// oneCCL's static library for the CPU refers to hooks of a tracing library. None is set: it does
// not trace.
extern "C" {
#define RK_HOOK(name) void* __itt_##name##_ptr__3_0 = nullptr;
RK_HOOK(string_handle_create)
RK_HOOK(task_begin)
RK_HOOK(task_end)
RK_HOOK(metadata_add)
RK_HOOK(thread_set_name)
RK_HOOK(event_create)
RK_HOOK(event_start)
RK_HOOK(event_end)
RK_HOOK(domain_create)
}

namespace {
ccl::shared_ptr_class<ccl::kvs> store;
std::unique_ptr<ccl::communicator> group;
}  // namespace

extern "C" {

int address_bytes() { return int(ccl::kvs::address_max_size); }

// On rank 0: where the others find it.
void make_address(char* address) {
  ccl::init();
  store = ccl::create_main_kvs();
  const auto made = store->get_address();
  std::memcpy(address, made.data(), made.size());
}

int start(int rank, int ranks, const char* address) try {
  ccl::init();
  if (rank != 0) {
    ccl::kvs::address_type known;
    std::memcpy(known.data(), address, known.size());
    store = ccl::create_kvs(known);
  }
  group = std::make_unique<ccl::communicator>(ccl::create_communicator(ranks, rank, store));
  return 0;
} catch (const std::exception&) {
  return 1;
}

void version(char* text, int bytes) {
  const auto found = ccl::get_library_version();
  const std::string name = "oneCCL " + std::to_string(found.major) + "." +
                           std::to_string(found.minor) + "." + std::to_string(found.update);
  std::strncpy(text, name.c_str(), size_t(bytes) - 1);
}

// `type`: 0: float32, 1: float16, 2: bfloat16.
int time_all_reduce(void** tensors, int places, int first, int64_t count, intptr_t type,
                    int64_t calls, int64_t* ns) try {
  const auto dtype = type == 0   ? ccl::datatype::float32
                     : type == 1 ? ccl::datatype::float16
                                 : ccl::datatype::bfloat16;
  for (int64_t i = 0; i < calls; ++i) {
    void* tensor = tensors[(first + i) % places];
    const int64_t begin = now_ns();
    ccl::allreduce(tensor, tensor, size_t(count), dtype, ccl::reduction::sum, *group).wait();
    ns[i] = now_ns() - begin;
  }
  return 0;
} catch (const std::exception&) {
  return 1;
}

void stop() {
  group.reset();
  store.reset();
}

}  // extern "C"
