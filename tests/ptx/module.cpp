#include "module.h"

#include <algorithm>
#include <cctype>

namespace ptx {
namespace {

bool is_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '$' || c == '%' ||
         c == '.';
}

// Words, strings and single characters of punctuation.
class Tokens {
 public:
  Tokens(std::string_view text, int line) : text_(text), line_(line) { skip(); }

  bool done() const { return at_ >= text_.size(); }
  int line() const { return line_; }
  std::string_view peek() const { return text_.substr(at_, length()); }
  std::string_view next() {
    if (done()) fail("the text ends too early");
    const std::string_view token = peek();
    at_ += token.size();
    skip();
    return token;
  }
  bool take(std::string_view token) {
    if (done() || peek() != token) return false;
    next();
    return true;
  }
  void expect(std::string_view token) {
    if (!take(token)) fail("expected '" + std::string(token) + "', found '" + found() + "'");
  }
  std::string word() {
    if (done() || !is_word(peek()[0])) fail("expected a word, found '" + found() + "'");
    return std::string(next());
  }
  int64_t number() {
    const bool negative = take("-");
    const std::string text = word();
    int64_t value;
    try {
      if (text.starts_with("0f") || text.starts_with("0d"))
        value = int64_t(std::stoull(text.substr(2), nullptr, 16));
      else value = int64_t(std::stoull(text, nullptr, 0));
    } catch (const std::exception&) {
      fail("'" + text + "' is not a number");
    }
    return negative ? -value : value;
  }
  bool at_number() const {
    return !done() && (std::isdigit(static_cast<unsigned char>(peek()[0])) || peek() == "-");
  }
  [[noreturn]] void fail(const std::string& what) const {
    throw Error("line " + std::to_string(line_) + ": " + what);
  }

 private:
  std::string found() const { return done() ? "the end" : std::string(peek()); }
  size_t length() const {
    if (done()) return 0;
    size_t end = at_ + 1;
    if (text_[at_] == '"') {
      while (end < text_.size() && text_[end] != '"') ++end;
      return end + 1 - at_;
    }
    if (is_word(text_[at_]))
      while (end < text_.size() && is_word(text_[end])) ++end;
    return end - at_;
  }
  void skip() {
    for (; at_ < text_.size(); ++at_) {
      if (text_[at_] == '\n') {
        ++line_;
      } else if (text_.substr(at_, 2) == "//") {
        while (at_ + 1 < text_.size() && text_[at_ + 1] != '\n') ++at_;
      } else if (!std::isspace(static_cast<unsigned char>(text_[at_]))) {
        return;
      }
    }
  }

  std::string_view text_;
  size_t at_ = 0;
  int line_;
};

class EntryParser {
 public:
  EntryParser(std::string_view text, int line) : tokens_(text, line) {}

  Entry parse() {
    tokens_.take(".visible");
    tokens_.expect(".entry");
    entry_.name = tokens_.word();
    tokens_.expect("(");
    while (!tokens_.take(")")) {
      tokens_.expect(".param");
      add(entry_.params, entry_.param_bytes);
      tokens_.take(",");
    }
    while (!tokens_.take("{")) directive();
    scopes_.emplace_back();
    while (!scopes_.empty()) statement();
    if (!tokens_.done()) tokens_.fail("text behind the entry");
    return std::move(entry_);
  }

 private:
  // Parses a declaration: `.align 8 .b8 name[64]`, `.u64 name`.
  void add(std::map<std::string, Variable>& variables, int64_t& bytes) {
    int64_t align = 1;
    if (tokens_.take(".align")) align = tokens_.number();
    const int64_t each = bytes_of(tokens_.word());
    const std::string name = tokens_.word();
    int64_t count = 1;
    if (tokens_.take("[")) {
      count = tokens_.number();
      tokens_.expect("]");
    }
    align = std::max(align, each);
    bytes = (bytes + align - 1) / align * align;
    variables[name] = {bytes, each * count};
    bytes += each * count;
  }
  int64_t bytes_of(const std::string& type) {
    for (const auto& [bits, bytes] : {std::pair("8", 1), {"16", 2}, {"32", 4}, {"64", 8}})
      if (type.size() > 2 && type[0] == '.' && type.substr(2) == bits) return bytes;
    tokens_.fail("a variable of type '" + type + "'");
  }

  void directive() {
    const std::string what = tokens_.word();
    const auto first_of_three = [&] {
      const int64_t x = tokens_.number();
      while (tokens_.take(",")) tokens_.number();
      return int(x);
    };
    if (what == ".maxntid") entry_.most_threads = first_of_three();
    else if (what == ".minnctapersm") entry_.blocks_per_sm = first_of_three();
    else tokens_.fail("the directive '" + what + "' is not known");
  }

  void statement() {
    if (tokens_.take("{")) {
      scopes_.emplace_back();
    } else if (tokens_.take("}")) {
      scopes_.pop_back();
    } else if (tokens_.take(".pragma")) {
      tokens_.next();
      tokens_.expect(";");
    } else if (tokens_.take(".reg")) {
      declare_registers();
    } else if (tokens_.take(".shared")) {
      add(entry_.shared, entry_.shared_bytes);
      tokens_.expect(";");
    } else {
      instruction();
    }
  }

  // `.pred p, q;` or `.b32 %r<10>;`. A name within braces hides one outside of them.
  void declare_registers() {
    const std::string type = tokens_.word();
    do {
      const std::string name = tokens_.word();
      if (tokens_.take("<")) {
        const int64_t count = tokens_.number();
        tokens_.expect(">");
        for (int64_t i = 0; i < count; ++i) declare(name + std::to_string(i), type);
      } else {
        declare(name, type);
      }
    } while (tokens_.take(","));
    tokens_.expect(";");
  }
  void declare(const std::string& name, const std::string& type) {
    std::string unique = name;
    if (scopes_.size() > 1) unique += "@" + std::to_string(entry_.registers.size());
    scopes_.back()[name] = unique;
    entry_.registers.push_back({unique, type});
  }
  std::string resolve(const std::string& name) const {
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope)
      if (const auto found = scope->find(name); found != scope->end()) return found->second;
    return name;
  }

  void instruction() {
    Statement s;
    s.line = tokens_.line();
    if (tokens_.take("@")) {
      s.negated = tokens_.take("!");
      s.guard = resolve(tokens_.word());
    }
    s.opcode = tokens_.word();
    if (s.guard.empty() && tokens_.take(":")) {
      entry_.labels[s.opcode] = entry_.statements.size();
      return;
    }
    while (!tokens_.take(";")) {
      s.operands.push_back(operand());
      if (!tokens_.take(",") && tokens_.peek() != ";")
        tokens_.fail("'" + std::string(tokens_.peek()) + "' between operands of " + s.opcode);
    }
    entry_.statements.push_back(std::move(s));
  }

  std::vector<Operand> operand() {
    std::vector<Operand> all;
    if (tokens_.take("{")) {
      do all.push_back(single());
      while (tokens_.take(","));
      tokens_.expect("}");
    } else {
      do all.push_back(single());
      while (tokens_.take("|"));
    }
    return all;
  }
  Operand single() {
    Operand o;
    if (tokens_.take("[")) {
      o.kind = Operand::address;
      if (tokens_.at_number()) o.value = tokens_.number();
      else o.text = resolve(tokens_.word());
      if (tokens_.take("+")) o.value = tokens_.number();
      tokens_.expect("]");
    } else if (tokens_.at_number()) {
      o.kind = Operand::number;
      o.value = tokens_.number();
    } else {
      o.text = resolve(tokens_.word());
    }
    return o;
  }

  Tokens tokens_;
  Entry entry_;
  std::vector<std::map<std::string, std::string>> scopes_;
};

}  // namespace

Entry parse_entry(std::string_view text, int line) { return EntryParser(text, line).parse(); }

std::map<std::string, EntryText> split_entries(const std::string& file) {
  std::map<std::string, EntryText> all;
  Tokens tokens(file, 1);
  const char* begin = nullptr;
  int line = 0;
  while (!tokens.done()) {
    if (tokens.peek() == ".visible" || (begin == nullptr && tokens.peek() == ".entry")) {
      begin = tokens.peek().data();
      line = tokens.line();
    }
    if (!tokens.take(".entry")) {
      const std::string_view token = tokens.next();
      // A function that is called, or a variable outside of kernels, would need more.
      if (token == ".func" || token == ".global" || token == ".const" || token == ".extern")
        tokens.fail("'" + std::string(token) + "' is not known");
      continue;
    }
    const std::string name = tokens.word();
    while (tokens.peek() != "{") tokens.next();
    const char* end;
    int depth = 0;
    do {
      end = tokens.peek().data() + 1;
      const std::string_view token = tokens.next();
      depth += token == "{" ? 1 : token == "}" ? -1 : 0;
    } while (depth > 0);
    all[name] = {std::string(begin, end), line};
    begin = nullptr;
  }
  return all;
}

}  // namespace ptx
