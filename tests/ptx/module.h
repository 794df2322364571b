// PTX text: entries, statements and operands, in nvcc's form. Only comments and pragmas are
// skipped. Any other unknown text is an error that quotes it.
#pragma once

#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace ptx {

struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Operand {
  enum Kind : uint8_t { name, number, address };
  Kind kind = name;
  std::string text;   // a register, a variable or a label; of an address: its base
  int64_t value = 0;  // a number, as bits; for an address: the offset from its base
};

struct Statement {
  std::string opcode;  // whole: "ld.acquire.sys.global.u64"
  // One in each, except for vectors ({a, b}) and pairs (a|b), which have several.
  std::vector<std::vector<Operand>> operands;
  std::string guard;  // @p
  bool negated = false;
  int line = 0;
};

struct Register {
  std::string name, type;  // "%r7", ".b32"
};

struct Variable {
  int64_t offset = 0, bytes = 0;
};

// A kernel in its textual form.
struct Entry {
  std::string name;  // mangled
  std::map<std::string, Variable> params, shared;
  int64_t param_bytes = 0, shared_bytes = 0;
  int most_threads = 0;   // .maxntid
  int blocks_per_sm = 0;  // .minnctapersm
  std::vector<Register> registers;
  std::vector<Statement> statements;
  std::map<std::string, size_t> labels;  // the index of the statement behind it
};

// Parses the text of one entry, from `.visible` or `.entry` to its closing brace. `line`: the
// number of its first line. Raises Error.
Entry parse_entry(std::string_view text, int line);

// The text of an entry in a PTX file, with the line at which it begins. Entries are listed by
// mangled name.
struct EntryText {
  std::string text;
  int line;
};
std::map<std::string, EntryText> split_entries(const std::string& file);

}  // namespace ptx
