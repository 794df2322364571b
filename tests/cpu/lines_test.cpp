// The layout of a line of LL or LL128 in memory; a partial line is not accepted.
#include "cpu/ll.h"
#include "cpu/ll128.h"

#include <cstring>
#include <vector>

#include "check.h"

using namespace ringkern;

namespace {

template <class Line>
std::vector<std::byte> data_from(int first) {
  std::vector<std::byte> data(Line::kData);
  for (int i = 0; i < Line::kData; ++i) data[size_t(i)] = std::byte(first + i);
  return data;
}

// Returns true if `line` reads as `expected` in `step`, or as not ready if that is null.
template <class Line>
bool reads(Line& line, uint64_t step, const std::vector<std::byte>* expected) {
  std::vector<std::byte> data(Line::kData);
  return line.read(data.data(), Line::flag_of(step)) == (expected != nullptr) &&
         (expected == nullptr || data == *expected);
}

template <class Line>
void a_line_is_read_in_its_step_only() {
  const auto data = data_from<Line>(1);
  Line line{};
  CHECK(reads(line, 0, nullptr));  // fresh memory
  line.write(data.data(), Line::flag_of(5));
  CHECK(reads(line, 5, &data));
  CHECK(reads(line, 4, nullptr));
  CHECK(reads(line, 6, nullptr));
}

// The reader may find any of these: words of 8 bytes become visible one by one, in any order.
TEST_CASE("half a line of LL is not read") {
  const auto before = data_from<cpu::LL>(1), after = data_from<cpu::LL>(100);
  for (const int half : {0, 1}) {
    cpu::LL line{}, whole{};
    line.write(before.data(), line.flag_of(12));
    whole.write(after.data(), whole.flag_of(20));
    line.half[half] = whole.half[half];
    CHECK(reads(line, 20, nullptr));
    line.half[1 - half] = whole.half[1 - half];
    CHECK(reads(line, 20, &after));
  }
}

// In LL128 the flag comes last.
TEST_CASE("a line of LL128 without its flag is not read") {
  const auto before = data_from<cpu::LL128>(1), after = data_from<cpu::LL128>(100);
  cpu::LL128 line{}, whole{};
  line.write(before.data(), line.flag_of(12));
  whole.write(after.data(), whole.flag_of(20));
  std::memcpy(line.data, whole.data, sizeof line.data);
  CHECK(reads(line, 20, nullptr));
  line.flag = whole.flag;
  CHECK(reads(line, 20, &after));
}

TEST_CASE("data and flags lie at the documented offsets") {
  cpu::LL ll{};
  ll.write(data_from<cpu::LL>(1).data(), ll.flag_of(5));
  CHECK_EQ(ll.half[0], uint64_t(0x00000006'04030201));
  CHECK_EQ(ll.half[1], uint64_t(0x00000006'08070605));
  cpu::LL128 ll128{};
  ll128.write(data_from<cpu::LL128>(1).data(), ll128.flag_of(5));
  CHECK_EQ(ll128.data[0], uint64_t(0x0807060504030201));
  CHECK_EQ(ll128.data[14], uint64_t(0x7877767574737271));
  CHECK_EQ(ll128.flag, uint64_t(6));
}

TEST_CASE("a line is read in its step only") {
  a_line_is_read_in_its_step_only<cpu::LL>();
  a_line_is_read_in_its_step_only<cpu::LL128>();
}

}  // namespace
