#include "mutants.h"

#include <algorithm>
#include <set>

namespace ptx {
namespace {

// A register that only a mutant has.
constexpr const char* kFresh = "%fresh";

bool starts(const std::string& text, const char* with) { return text.starts_with(with); }
bool is_transparent(const std::string& opcode) {
  return starts(opcode, "mov.") || starts(opcode, "cvt.") || starts(opcode, "cvta.");
}

class Generator {
 public:
  explicit Generator(const Entry& entry) : entry_(entry) {
    for (const Register& r : entry.registers) names_.insert(r.name);
    for (const Statement& s : entry.statements)
      if (s.operands.size() > 1)
        for (const Operand& o : s.operands[0])
          if (o.kind == Operand::name) definitions_[o.text].push_back(&s);
  }

  std::vector<Mutant> all() {
    for (at_ = 0; at_ < entry_.statements.size(); ++at_) {
      const Statement& s = entry_.statements[at_];
      place_ = place_of(s);
      place_ += " #" + std::to_string(++seen_[place_]);
      weaken(s);
      drop(s);
      misplace(s);
      misdecide(s);
    }
    return std::move(mutants_);
  }

 private:
  void add(std::string kind, Statement instead, std::vector<Statement> before = {}) {
    mutants_.push_back({std::move(kind), place_, at_, std::move(before), std::move(instead)});
  }

  // ---- Places: as the text computes them, since names of registers are the compiler's

  // The statement that defines the register, if there is one.
  const Statement* definition(const std::string& name) const {
    const auto found = definitions_.find(name);
    return found != definitions_.end() && found->second.size() == 1 ? found->second[0] : nullptr;
  }
  std::string text_of(const Operand& o, int depth) const {
    if (o.kind == Operand::number) return std::to_string(o.value);
    std::string text = o.text;
    if (entry_.params.contains(text)) text = "param";
    else if (entry_.shared.contains(text)) text = "shared";
    else if (names_.contains(text)) text = text_of_register(text, depth);
    if (o.kind == Operand::name) return text;
    return "(" + text + (o.value != 0 ? "+" + std::to_string(o.value) : "") + ")";
  }
  std::string text_of_register(const std::string& name, int depth) const {
    const Statement* s = definition(name);
    if (s == nullptr || depth == 0) return "r";
    if (is_transparent(s->opcode) && s->operands.size() == 2 && s->operands[1].size() == 1)
      return text_of(s->operands[1][0], depth);
    return text_of(*s, depth - 1, 1);
  }
  // The opcode, and the operands from one on.
  std::string text_of(const Statement& s, int depth, size_t first) const {
    std::string text = s.opcode;
    for (size_t i = first; i < s.operands.size(); ++i)
      for (const Operand& o : s.operands[i]) text += " " + text_of(o, depth);
    return text;
  }
  std::string place_of(const Statement& s) const {
    if (starts(s.opcode, "bra"))
      return s.opcode + (s.negated ? " if not " : " if ") +
             (s.guard.empty() ? "always" : text_of_register(s.guard, 3));
    for (const auto& group : s.operands)
      if (group[0].kind == Operand::address) return s.opcode + " " + text_of(group[0], 3);
    return text_of(s, 2, 1);
  }

  // ---- Changes

  void replace(const Statement& s, const std::string& part, const std::string& by) {
    Statement weaker = s;
    const size_t at = weaker.opcode.find(part + ".");
    if (at == std::string::npos) return;
    weaker.opcode.replace(at, part.size(), by);
    // A weak access has no scope.
    if (by.empty())
      for (const char* scope : {".sys", ".gpu", ".cta"})
        if (const size_t n = weaker.opcode.find(scope); n != std::string::npos)
          weaker.opcode.erase(n, 4);
    add(part + " -> " + (by.empty() ? "weak" : by), weaker);
  }
  void weaken(const Statement& s) {
    const bool atom = starts(s.opcode, "atom.");
    if (!atom && !starts(s.opcode, "ld.") && !starts(s.opcode, "st.") &&
        !starts(s.opcode, "fence."))
      return;
    replace(s, ".acquire", ".relaxed");
    replace(s, ".release", ".relaxed");
    if (atom) replace(s, ".acq_rel", ".relaxed");  // a fence is never less
    else replace(s, ".relaxed", "");               // an atom is never less
    replace(s, ".volatile", "");
    // A fence ends with its scope.
    if (starts(s.opcode, "fence.")) {
      for (const char* by : {".gpu", ".cta"}) {
        Statement narrower = s;
        narrower.opcode.replace(narrower.opcode.size() - 4, 4, by);
        if (narrower.opcode != s.opcode)
          add(s.opcode.substr(s.opcode.size() - 4) + " -> " + by, narrower);
      }
      return;
    }
    replace(s, ".sys", ".gpu");
    replace(s, ".sys", ".cta");
    replace(s, ".gpu", ".cta");
  }

  static Operand number(int64_t value) { return {Operand::number, "", value}; }
  static Operand fresh() { return {Operand::name, kFresh, 0}; }
  Statement nothing() const {
    return {"mov.b64", {{fresh()}, {fresh()}}, "", false, entry_.statements[at_].line};
  }
  void drop(const Statement& s) {
    if (starts(s.opcode, "fence.") || s.opcode == "bar.warp.sync") add("dropped", nothing());
    if (!starts(s.opcode, "barrier.cta.red.or.pred")) return;
    Statement passed = s;
    passed.opcode = "mov.pred";
    passed.operands = {s.operands[0], s.operands[3]};
    add("dropped", passed);
    Statement other = s;
    if (const Statement* id = definition(s.operands[1][0].text))
      if (id->operands.back()[0].kind == Operand::number) {
        const int64_t now = id->operands.back()[0].value;
        other.operands[1] = {number(1 - now)};
        add("id " + std::to_string(now) + " -> " + std::to_string(1 - now), other);
      }
    for (const int more : {32, -32}) {
      Statement sum{"add.s32", {{fresh()}, s.operands[2], {number(more)}}, "", false, s.line};
      Statement others = s;
      others.operands[2] = {fresh()};
      add(more > 0 ? "a warp more" : "a warp fewer", others, {sum});
    }
  }

  void misplace(const Statement& s) {
    if (!starts(s.opcode, "ld.") && !starts(s.opcode, "st.")) return;
    int64_t bytes = 8;
    for (size_t i = 0; i < s.operands.size(); ++i) {
      const auto& group = s.operands[i];
      if (group.size() < 2) continue;
      if (s.opcode.ends_with("64")) bytes = 16;
      Statement swapped = s;
      std::swap(swapped.operands[i][0], swapped.operands[i][1]);
      if (group[0].text != group[1].text || group[0].value != group[1].value)
        add("vector swapped", swapped);
    }
    Statement beside = s;
    for (auto& group : beside.operands)
      if (group[0].kind == Operand::address) group[0].value += bytes;
    add("offset + " + std::to_string(bytes), beside);
  }

  void misdecide(const Statement& s) {
    Statement other = s;
    if (starts(s.opcode, "bra") && !s.guard.empty()) {
      other.negated = !s.negated;
      add("inverted", other);
    } else if (s.opcode == "vote.sync.all.pred") {
      other.operands[1] = {number(1)};
      add("true", other);
    } else if (s.opcode == "shfl.sync.idx.b32") {
      other.operands[2] = {number(s.operands[2][0].value == 0 ? 1 : 0)};
      add("from another lane", other);
    } else if (starts(s.opcode, "mov.") && s.operands.back()[0].text == "%globaltimer") {
      other.operands.back() = {number(0)};
      add("no time", other);
    } else if (starts(s.opcode, "setp.") && s.operands.back()[0].kind == Operand::number &&
               s.opcode.find(".f") == std::string::npos) {
      ++other.operands.back()[0].value;
      add("constant + 1", other);
    }
  }

  const Entry& entry_;
  std::set<std::string> names_;
  std::map<std::string, std::vector<const Statement*>> definitions_;
  std::map<std::string, int> seen_;  // how often each place was there before
  size_t at_ = 0;
  std::string place_;
  std::vector<Mutant> mutants_;
};

}  // namespace

std::vector<Mutant> mutants_of(const Entry& entry) { return Generator(entry).all(); }

Entry apply(Entry entry, const Mutant& mutant) {
  entry.registers.push_back({kFresh, ".b64"});
  entry.statements[mutant.statement] = mutant.instead;
  if (mutant.before.empty()) return entry;
  const auto at = entry.statements.begin() + ptrdiff_t(mutant.statement);
  entry.statements.insert(at, mutant.before.begin(), mutant.before.end());
  for (auto& [label, index] : entry.labels)
    if (index > mutant.statement) index += mutant.before.size();
  return entry;
}

}  // namespace ptx
