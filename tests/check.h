// What a C++ test program is made of: it prints the first thing that is not as it should be, and
// ends with 1.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#define CHECK(condition) \
  ((condition) ? void() : ringkern::test::fail(__FILE__, __LINE__, #condition))

#define CHECK_EQ(a, b) ringkern::test::check_equal((a), (b), __FILE__, __LINE__, #a " == " #b)

#define CHECK_CONTAINS(text, part) \
  ringkern::test::check_contains((text), (part), __FILE__, __LINE__)

// The expression throws `type`, and what it says contains `text`.
#define CHECK_THROWS(type, text, ...)                                                       \
  do {                                                                                      \
    bool thrown = false;                                                                    \
    try {                                                                                   \
      __VA_ARGS__;                                                                          \
    } catch (const type& e) {                                                               \
      thrown = true;                                                                        \
      ringkern::test::check_contains(e.what(), text, __FILE__, __LINE__);                   \
    }                                                                                       \
    if (!thrown) ringkern::test::fail(__FILE__, __LINE__, "no " #type " from " #__VA_ARGS__); \
  } while (false)

namespace ringkern::test {

[[noreturn]] inline void fail(const char* file, int line, const std::string& what) {
  std::fprintf(stderr, "%s:%d: FAILED: %s\n", file, line, what.c_str());
  std::fflush(stderr);
  std::_Exit(1);  // from any thread: the others may be waiting for each other
}

inline std::string shown(const std::string& v) { return "\"" + v + "\""; }
inline std::string shown(const char* v) { return shown(std::string(v)); }
template <class T>
std::string shown(const T& v) {
  return std::to_string(v);
}

template <class A, class B>
void check_equal(const A& a, const B& b, const char* file, int line, const char* what) {
  if (!(a == b)) fail(file, line, std::string(what) + ": " + shown(a) + " and " + shown(b));
}

inline void check_contains(const std::string& text, const std::string& part, const char* file,
                           int line) {
  if (text.find(part) == std::string::npos)
    fail(file, line, shown(text) + " does not contain " + shown(part));
}

}  // namespace ringkern::test
