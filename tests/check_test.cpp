// Tests the harness with planted failures. Each planted case belongs to this same program; a test
// runs it in another process and checks its output and status.
#include "check.h"

#include <sys/wait.h>
#include <unistd.h>

#include <stdexcept>
#include <thread>

using namespace ringkern::test;

static int surrounded = 0;

// Ends the program without the harness, which is under test.
#define MUST(condition) ((condition) ? void() : broken(__LINE__, #condition))

namespace {

[[noreturn]] void broken(int line, const char* condition) {
  std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, line, condition);
  std::_Exit(1);
}

constexpr const char* kPlanted = "RK_TEST_PLANTED";
constexpr int kMany = 100;

void in_child(void (*body)()) {
  std::fflush(nullptr);
  const pid_t pid = ::fork();
  if (pid == 0) {
    body();
    std::puts("after the child");
    std::fflush(stdout);
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  std::printf("the child's status: %d\n", WEXITSTATUS(status));
}

const TestCase planted_cases[] = {
    {"planted: sides",
     [] {
       const int three = 3;
       CHECK(three == 4);
       CHECK_EQ(std::string("left"), "right");
       CHECK(std::vector<int>{1, 2} != (std::vector<int>{1, 2}));
       CHECK_CONTAINS("a text", "words");
       CHECK_THROWS(std::runtime_error, "", void());
       std::puts("went on");
     },
     "a file", 1},
    {"planted: require, first",
     [] {
       REQUIRE(1 > 2);
       std::puts("went on");
     },
     "a file", 2},
    {"planted: require, second", [] { std::puts("the next one ran"); }, "a file", 3},
    {"planted: throws", [] { throw std::runtime_error("a reason"); }, "a file", 4},
    {"planted: many",
     [] {
       for (int i = 0; i < kMany; ++i) CHECK(i < 0);
     },
     "a file", 5},
    {"planted: thread, check",
     [] {
       std::thread([] { CHECK(1 > 2); }).join();
       std::puts("went on");
     },
     "a file", 6},
    {"planted: thread, require",
     [] {
       std::thread([] {
         try {
           REQUIRE(1 > 2);
         } catch (...) {  // for example to hand it to the thread that joins
         }
       }).join();
       std::puts("went on");
     },
     "a file", 7},
    {"planted: left thread",
     [] {
       const std::thread left([] {});
       REQUIRE(1 > 2);
     },
     "a file", 8},
    {"planted: child, check", [] { in_child([] { CHECK(1 > 2); }); }, "a file", 9},
    {"planted: child, require", [] { in_child([] { REQUIRE(1 > 2); }); }, "a file", 10},
    {"planted: child, throws", [] { in_child([] { throw 1; }); }, "a file", 11},
};
const bool are_planted = [] {
  for (const TestCase& one : planted_cases)
    if (std::getenv(kPlanted) != nullptr) add_case(one);
  return true;
}();

struct Ran {
  std::string output;
  int status = -1;  // exit status
  bool has(const char* text) const { return output.find(text) != std::string::npos; }
};

// Runs this program with these options and the planted cases.
Ran run(const std::string& options) {
  char self[500] = {};
  MUST(::readlink("/proc/self/exe", self, sizeof self - 1) > 0);
  const std::string command =
      std::string(kPlanted) + "=1 timeout 20 '" + self + "' " + options + " 2>&1";
  FILE* const pipe = ::popen(command.c_str(), "r");
  MUST(pipe != nullptr);
  Ran ran;
  for (int c; (c = std::fgetc(pipe)) != EOF;) ran.output.push_back(char(c));
  const int status = ::pclose(pipe);
  if (WIFEXITED(status)) ran.status = WEXITSTATUS(status);
  return ran;
}

AROUND_EACH_CASE(body) {
  ++surrounded;
  body();
}

TEST_CASE("a failed CHECK shows both sides and continues") {
  const Ran ran = run("--only 'planted: sides'");
  MUST(ran.status == 1);
  MUST(ran.has("check_test.cpp:"));
  MUST(ran.has("FAILED: three == 4: 3 and 4\n  in the case: planted: sides\n"));
  MUST(ran.has(": \"left\" and \"right\"\n"));
  MUST(ran.has(": {1, 2} and {1, 2}\n"));
  MUST(ran.has("FAILED: \"a text\" does not contain \"words\"\n"));
  MUST(ran.has("FAILED: no std::runtime_error from void()\n"));
  MUST(ran.has("went on\n"));
  MUST(ran.has("1 cases, 1 failed\n"));
}

TEST_CASE("a failed REQUIRE ends its case and no other") {
  const Ran ran = run("--only 'planted: require'");
  MUST(ran.status == 1);
  MUST(ran.has("FAILED: 1 > 2: 1 and 2\n"));
  MUST(!ran.has("went on"));
  MUST(ran.has("the next one ran\n"));
  MUST(ran.has("2 cases, 1 failed\n"));
}

TEST_CASE("an exception fails its case") {
  const Ran ran = run("--only 'planted: throws'");
  MUST(ran.status == 1);
  MUST(ran.has("a file:4: FAILED: it threw: a reason\n"));
  MUST(ran.has("1 cases, 1 failed\n"));
}

TEST_CASE("a case prints 20 failures and counts all") {
  const Ran ran = run("--only 'planted: many'");
  int printed = 0;
  for (size_t at = 0; (at = ran.output.find("FAILED", at)) != std::string::npos; ++at) ++printed;
  MUST(printed == 20);
  MUST(ran.has("in all 100 failures\n"));
}

TEST_CASE("a failed CHECK of another thread counts") {
  const Ran ran = run("--only 'planted: thread, check'");
  MUST(ran.status == 1);
  MUST(ran.has("went on\n"));
  MUST(ran.has("1 cases, 1 failed\n"));
}

TEST_CASE("a failed REQUIRE of another thread ends the program with 1") {
  const Ran ran = run("--only 'planted: thread, require'");
  MUST(ran.status == 1);
  MUST(ran.has("FAILED: 1 > 2: 1 and 2\n"));
  MUST(!ran.has("went on"));
}

TEST_CASE("a failed REQUIRE that leaves a thread behind ends the program with 1") {
  const Ran ran = run("--only 'planted: left thread'");
  MUST(ran.status == 1);
  MUST(ran.has("FAILED: 1 > 2: 1 and 2\n"));
  MUST(ran.has("std::terminate()"));
}

TEST_CASE("a failure in a forked child is the child's status") {
  for (const char* const how : {"check", "require", "throws"}) {
    const Ran ran = run(std::string("--only 'planted: child, ") + how + "'");
    MUST(ran.status == 0);  // the parent compares
    MUST(ran.has("FAILED: "));
    MUST(ran.has("the child's status: 1\n1 cases, 0 failed\n"));
    MUST(!ran.has("after the child"));
  }
}

TEST_CASE("cases are listed and chosen by a part of their name") {
  const Ran all = run("--list"), some = run("--list --only 'planted: require, '");
  MUST(all.status == 0);
  MUST(all.has("an exception fails its case\n"));
  MUST(all.has("planted: many\n"));
  MUST(some.output == "planted: require, first\nplanted: require, second\n");
  MUST(run("--only 'no such case'").status == 2);
  MUST(run("--only").status == 2);
  MUST(run("--unknown").status == 2);
}

TEST_CASE("code around each case runs") { MUST(surrounded > 0); }

// Can be compared and named, but not copied.
struct Counted {
  int value;
  explicit Counted(int v) : value(v) {}
  Counted(const Counted&) = delete;
  bool operator==(const Counted& other) const { return value == other.value; }
};
int named = 0;
const char* name_of(const Counted&) {
  ++named;
  return "a name";
}

TEST_CASE("a check that holds builds no text and no copy") {
  const Counted one(1), other(1);
  CHECK(one == other);
  CHECK_EQ(one, other);
  REQUIRE(one == other);
  MUST(named == 0);
  MUST(shown(one) == "a name" && named == 1);
}

}  // namespace
