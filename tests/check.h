// Harness of the C++ tests: named cases, and checks that print both sides and continue.
//
//     TEST_CASE("a list may be full") {
//       REQUIRE(rows.size() > 2);          // ends the case: the next line relies on it
//       CHECK(rows[2].below == kAnySize);  // records a failure and continues
//     }
//
// Any thread may check. A REQUIRE that fails on another thread, or on a fiber, cannot end the case:
// it ends the program with status 1. So does any check that fails outside of a case or in a forked
// child; the parent tests the status. `--list` prints the names of the cases, `--only TEXT` runs
// those whose name contains TEXT.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#define TEST_CASE(name) RK_TEST_CASE(name, __LINE__)
#define RK_TEST_CASE(name, line) RK_TEST_CASE2(name, line)  // expands the macro's value
#define RK_TEST_CASE2(name, line) \
  static void case_of_line_##line(); \
  [[maybe_unused]] static const bool case_of_line_##line##_is_known = \
      ringkern::test::add_case({name, case_of_line_##line, __FILE__, line}); \
  static void case_of_line_##line()

// Defines code around every case, which calls `run()`, such as a count of open files before and
// after.
#define AROUND_EACH_CASE(run) \
  static void around_each_case(void (*run)()); \
  [[maybe_unused]] static const bool around_is_set = ringkern::test::surround(around_each_case); \
  static void around_each_case(void (*run)())

// Lets the program have its own options, which its cases find in `arguments()`.
#define TAKES_OPTIONS \
  [[maybe_unused]] static const bool options_are_taken = ringkern::test::take_options()

#define CHECK(...) RK_TEST_CHECK(false, #__VA_ARGS__, __VA_ARGS__)
#define REQUIRE(...) RK_TEST_CHECK(true, #__VA_ARGS__, __VA_ARGS__)
#define CHECK_EQ(a, b) RK_TEST_CHECK(false, #a " == " #b, (a) == (b))
#define RK_TEST_CHECK(required, text, ...) \
  ringkern::test::check(ringkern::test::Decompose() << __VA_ARGS__, __FILE__, __LINE__, text, \
                        required)

// Record a failure with the given text, like CHECK and like REQUIRE.
#define FAIL_CHECK(...) ringkern::test::failed(__FILE__, __LINE__, __VA_ARGS__, false)
#define FAIL(...) ringkern::test::fail(__FILE__, __LINE__, __VA_ARGS__)

#define CHECK_CONTAINS(text, part) \
  ringkern::test::check_contains((text), (part), __FILE__, __LINE__)

// Checks that the expression throws `type` with a text that contains `text`.
#define CHECK_THROWS(type, text, ...) \
  do { \
    bool thrown = false; \
    try { \
      __VA_ARGS__; \
    } catch (const type& e) { \
      thrown = true; \
      ringkern::test::check_contains(e.what(), text, __FILE__, __LINE__); \
    } \
    if (!thrown) FAIL_CHECK("no " #type " from " #__VA_ARGS__); \
  } while (false)

namespace ringkern::test {

// ---- check.cpp, which has main ------------------------------------------------------------------

struct TestCase {
  const char* name;
  void (*body)();
  const char* file;
  int line;
};

bool add_case(const TestCase& one);
bool surround(void (*around)(void (*run)()));
bool take_options();
std::vector<char*>& arguments();  // main's arguments without those of the harness

// Records a failure of the case. Returns unless `required`.
[[gnu::cold]] void failed(const char* file, int line, const std::string& what, bool required);
[[noreturn]] void fail(const char* file, int line, const std::string& what);
void check_contains(const std::string& text, const std::string& part, const char* file, int line);

// ---- both sides of a comparison -----------------------------------------------------------------

inline constexpr const char* kUnknown = "?";

template <class T>
std::string shown(const T& v) {
  if constexpr (std::is_pointer_v<T>)
    if (v == nullptr) return "nullptr";
  if constexpr (std::is_same_v<T, bool>) return v ? "true" : "false";
  else if constexpr (std::is_null_pointer_v<T>) return "nullptr";
  else if constexpr (std::is_arithmetic_v<T>) return std::to_string(v);
  else if constexpr (std::is_convertible_v<const T&, std::string_view>)
    return '"' + std::string(std::string_view(v)) + '"';
  else if constexpr (requires { std::string(name_of(v)); }) return name_of(v);
  else if constexpr (std::is_enum_v<T>) return std::to_string(std::underlying_type_t<T>(v));
  else if constexpr (requires { v.load(); }) return shown(v.load());
  else if constexpr (requires { v.begin() != v.end(); }) {
    std::string all;
    for (const auto& one : v) all += (all.empty() ? "" : ", ") + shown(one);
    return "{" + (all.size() < 400 ? all : all.substr(0, 400) + "...") + "}";
  } else return kUnknown;
}

// Outcome of a comparison. The sides are references: no text is built unless the check fails.
template <class L, class R>
struct Compared {
  bool holds;
  const L& left;
  const R& right;
  explicit operator bool() const { return holds; }
};

// Left side of a condition, with the right side if it is a comparison.
template <class L>
struct Left {
  const L& left;
  explicit operator bool() const { return static_cast<bool>(left); }

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wsign-compare"  // here, 0 is an int like any other
#define RK_TEST_COMPARES(sign) \
  template <class R> \
  [[gnu::always_inline]] Compared<L, R> operator sign(const R& right) const { \
    return {static_cast<bool>(left sign right), left, right}; \
  }
  RK_TEST_COMPARES(==)
  RK_TEST_COMPARES(!=)
  RK_TEST_COMPARES(<)
  RK_TEST_COMPARES(<=)
  RK_TEST_COMPARES(>)
  RK_TEST_COMPARES(>=)
#undef RK_TEST_COMPARES
#pragma GCC diagnostic pop
};

struct Decompose {
  template <class L>
  [[gnu::always_inline]] Left<L> operator<<(const L& left) const {
    return {left};
  }
};

template <class T>
std::string described(const char* text, const T&) {
  return text;
}
template <class L, class R>
std::string described(const char* text, const Compared<L, R>& c) {
  const std::string left = shown(c.left), right = shown(c.right);
  return left == kUnknown ? text : text + (": " + left) + " and " + right;
}

template <class T>
[[gnu::cold, gnu::noinline]] void is_false(const T& result, const char* file, int line,
                                           const char* text, bool required) {
  failed(file, line, described(text, result), required);
}
// Inlined, so that a check that holds costs only the comparison.
template <class T>
[[gnu::always_inline]] inline void check(const T& result, const char* file, int line,
                                         const char* text, bool required) {
  if (!static_cast<bool>(result)) [[unlikely]]
    is_false(result, file, line, text, required);
}

}  // namespace ringkern::test
