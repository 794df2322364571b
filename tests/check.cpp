// Runs the cases of a C++ test; has main().
#include "check.h"

#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <exception>

namespace ringkern::test {
namespace {

constexpr int kPrinted = 20;  // failures of a case

struct EndOfCase {};  // no std::exception, which tests and the library catch

struct Program {
  std::vector<TestCase> cases;
  void (*around)(void (*run)()) = [](void (*run)()) { run(); };
  bool takes_options = false;
  std::vector<char*> arguments;
  const pid_t pid = ::getpid();

  const TestCase* now = nullptr;
  const char* frame = nullptr;  // frame of the function that runs the case
  std::atomic<int> failures{0};
};

Program& program() {
  static Program& p = *new Program;  // never destroyed: threads may outlive main
  return p;
}

bool in_case() { return program().now != nullptr && program().pid == ::getpid(); }

// Returns true if an exception would unwind to the case. Other threads and fibers have distant
// stacks of their own.
bool on_stack_of_case() {
  const ptrdiff_t depth = program().frame - static_cast<char*>(__builtin_frame_address(0));
  return depth >= 0 && depth < 8 << 20;
}

[[noreturn]] void end_program() {
  std::fflush(in_case() ? nullptr : stderr);  // a child has copies of its parent's buffers
  std::_Exit(1);                              // other threads may be waiting for each other
}

std::string text_of(const std::exception_ptr& error) {
  try {
    if (error) std::rethrow_exception(error);
  } catch (const EndOfCase&) {
    return "a REQUIRE that failed could not end its case";
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "an exception without a text";
  }
  return "no exception";
}

// Reached, for example, when an exception leaves a function that has a thread to join.
[[noreturn]] void terminated() {
  failed("std::terminate()", 0, text_of(std::current_exception()), false);
  end_program();
}

// Returns true if the case failed.
bool run(const TestCase& one) {
  Program& p = program();
  std::printf("%s\n", one.name);  // printed first: it is the last name if the case hangs or crashes
  std::fflush(nullptr);
  p.now = &one;
  p.failures = 0;
  p.frame = static_cast<char*>(__builtin_frame_address(0));
  try {
    p.around(one.body);
  } catch (const EndOfCase&) {
    if (!in_case()) end_program();
  } catch (...) {
    failed(one.file, one.line, "it threw: " + text_of(std::current_exception()), false);
  }
  p.now = nullptr;
  if (p.failures > kPrinted) std::fprintf(stderr, "  in all %d failures\n", p.failures.load());
  return p.failures != 0;
}

}  // namespace

bool add_case(const TestCase& one) {
  program().cases.push_back(one);
  return true;
}
bool surround(void (*around)(void (*run)())) {
  program().around = around;
  return true;
}
bool take_options() { return program().takes_options = true; }
std::vector<char*>& arguments() { return program().arguments; }

void failed(const char* file, int line, const std::string& what, bool required) {
  const TestCase* const now = program().now;
  if (program().failures++ < kPrinted || required || !in_case())
    std::fprintf(stderr, "%s:%d: FAILED: %s\n  in the case: %s\n", file, line, what.c_str(),
                 now != nullptr ? now->name : "none");
  if (!in_case() || (required && !on_stack_of_case())) end_program();
  if (required) throw EndOfCase();
}

void fail(const char* file, int line, const std::string& what) {
  failed(file, line, what, true);
  std::abort();  // not reached
}

void check_contains(const std::string& text, const std::string& part, const char* file, int line) {
  if (text.find(part) == std::string::npos)
    failed(file, line, shown(text) + " does not contain " + shown(part), false);
}

namespace {

int run_cases(int n, char** words) {
  Program& p = program();
  bool lists = false;
  std::string only;
  for (int i = 0; i < n; ++i) {
    const std::string_view word = words[i];
    if (word == "--list") lists = true;
    else if (word == "--only" && i + 1 < n) only = words[++i];
    else p.arguments.push_back(words[i]);
  }
  int cases = 0, bad = 0;
  if (p.takes_options || p.arguments.size() == 1)
    for (const TestCase& one : p.cases) {
      if (std::string_view(one.name).find(only) == std::string_view::npos) continue;
      ++cases;
      if (lists) std::printf("%s\n", one.name);
      else bad += run(one);
    }
  if (cases == 0) {
    std::fprintf(stderr, "usage: %s [--list] [--only TEXT]; no case is called so\n", words[0]);
    return 2;
  }
  if (!lists) std::printf("%d cases, %d failed\n", cases, bad);
  return bad == 0 ? 0 : 1;
}

}  // namespace
}  // namespace ringkern::test

int main(int n, char** words) {
  std::set_terminate(ringkern::test::terminated);
  return ringkern::test::run_cases(n, words);
}
