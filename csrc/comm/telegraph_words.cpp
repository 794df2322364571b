#include "comm/telegraph_words.h"

#include <algorithm>
#include <charconv>
#include <string_view>

#include "comm/agreement.h"

namespace ringkern {
namespace {

constexpr size_t kMostText = 2000, kMostPhase = 100, kMostShown = 40;

// Numbers, a blank or the end of a line after each, then text. Once not good, it stays so.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}

  template <class T>
  T number() {
    T value = 0;
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
    const auto n = size_t(end - rest_.data());
    good =
        good && error == std::errc() && n < rest_.size() && (rest_[n] == ' ' || rest_[n] == '\n');
    if (good) rest_.remove_prefix(n + 1);
    return value;
  }

  std::string line(size_t most) {
    const size_t n = rest_.find('\n');
    good = good && n != std::string_view::npos;
    if (!good) return {};
    const std::string text(rest_.substr(0, std::min(n, most)));
    rest_.remove_prefix(n + 1);
    return printable(text, most);
  }

  std::string rest(size_t most) const {
    return printable(std::string(rest_.substr(0, most)), most);
  }

  bool good = true;

 private:
  std::string_view rest_;
};

}  // namespace

std::string to_word(const Failure& f) {
  return std::to_string(int(f.cause)) + " " + std::to_string(f.reporter) + " " +
         std::to_string(f.about.rank) + " " + std::to_string(f.about.seq) + "\n" +
         printable(f.about.phase, kMostPhase) + "\n" + printable(f.text, kMostText);
}

std::string to_word(const Answer& a) {
  return std::to_string(a.roll) + " " + std::to_string(a.where.seq) + "\n" +
         printable(a.where.phase, kMostPhase);
}

Failure to_failure(const std::string& word, int ranks) {
  Reader reader(word);
  const auto rank = [&] {
    const int it = reader.number<int>();
    return it >= 0 && it < ranks ? it : -1;
  };
  Failure f;
  f.given = true;
  const int cause = reader.number<int>();
  f.reporter = rank();
  f.about.rank = rank();
  f.about.seq = reader.number<uint64_t>();
  f.about.phase = reader.line(kMostPhase);
  f.text = reader.rest(kMostText);
  f.cause = Cause(cause);
  if (reader.good && cause > int(Cause::none) && cause <= int(Cause::failed)) return f;
  return {Cause::failed, -1, Facts{},
          "another rank has failed, and what it told of it through the store cannot be read: '" +
              printable(word, kMostShown) + "'. Install the same ringkern for all ranks.",
          /*given=*/true};
}

std::optional<Answer> to_answer(const std::string& word) {
  Reader reader(word);
  Answer a;
  a.roll = reader.number<int64_t>();
  a.where.seq = reader.number<uint64_t>();
  a.where.phase = reader.rest(kMostPhase);
  if (!reader.good) return {};
  return a;
}

}  // namespace ringkern
