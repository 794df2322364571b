#include "fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <pthread.h>
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace simt {
namespace {

thread_local Fiber* starting = nullptr;

#if defined(__SANITIZE_ADDRESS__)
// ASan keeps a picture of each stack and has to be told which one is in use.
struct Extent {
  void* begin = nullptr;
  size_t bytes = 0;
};
Extent stack_of_thread() {
  thread_local const Extent extent = [] {
    Extent e;
    pthread_attr_t attributes;
    pthread_getattr_np(pthread_self(), &attributes);
    pthread_attr_getstack(&attributes, &e.begin, &e.bytes);
    pthread_attr_destroy(&attributes);
    return e;
  }();
  return extent;
}
#endif

void* map_stack(size_t bytes) {
  const auto page = size_t(sysconf(_SC_PAGESIZE));
  void* at = mmap(nullptr, bytes + page, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED || mprotect(at, page, PROT_NONE) != 0) {
    std::perror("a fiber's stack");
    std::exit(2);
  }
  return static_cast<char*>(at) + page;
}

}  // namespace

#if defined(__x86_64__)

// Saves what a callee must keep on the stack, then exchanges the stacks. The signal mask stays as
// it is, which saves the system calls of swapcontext.
extern "C" void simt_change(void** from, void* to);
asm(R"(
.text
.align 16
.globl simt_change
.hidden simt_change
.type simt_change, @function
simt_change:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size simt_change, .-simt_change
)");

#endif

Fiber::~Fiber() {
  const auto page = size_t(sysconf(_SC_PAGESIZE));
  if (stack_ != nullptr) munmap(static_cast<char*>(stack_) - page, kStackBytes + page);
#if !defined(__x86_64__)
  delete static_cast<ucontext_t*>(context_);
#endif
}

void Fiber::prepare(void (*entry)(void*), void* argument) {
  if (stack_ == nullptr) stack_ = map_stack(kStackBytes);
  entry_ = entry;
  argument_ = argument;
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(stack_, kStackBytes);
#endif
  char* top = static_cast<char*>(stack_) + kStackBytes;
#if defined(__x86_64__)
  // The state after a call of simt_change by `begin`: six registers and the return address, so that
  // the stack is aligned at its entry as the ABI requires.
  auto** slot = reinterpret_cast<void**>(top) - 2;
  *slot = reinterpret_cast<void*>(&Fiber::begin);
  for (int i = 0; i < 6; ++i) *--slot = nullptr;
  pointer_ = slot;
#else
  if (context_ == nullptr) context_ = new ucontext_t;
  auto& context = *static_cast<ucontext_t*>(context_);
  getcontext(&context);
  context.uc_stack.ss_sp = stack_;
  context.uc_stack.ss_size = kStackBytes;
  context.uc_link = nullptr;
  makecontext(&context, &Fiber::begin, 0);
#endif
}

void Fiber::begin() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
  starting->entry_(starting->argument_);
  std::abort();
}

void Fiber::change(Fiber& from, Fiber& to) {
  starting = &to;
#if defined(__SANITIZE_ADDRESS__)
  const Extent stack = to.stack_ != nullptr ? Extent{to.stack_, kStackBytes} : stack_of_thread();
  void* fake = nullptr;
  __sanitizer_start_switch_fiber(&fake, stack.begin, stack.bytes);
#endif
#if defined(__x86_64__)
  simt_change(&from.pointer_, to.pointer_);
#else
  if (from.context_ == nullptr) from.context_ = new ucontext_t;
  swapcontext(static_cast<ucontext_t*>(from.context_), static_cast<ucontext_t*>(to.context_));
#endif
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
}

}  // namespace simt
