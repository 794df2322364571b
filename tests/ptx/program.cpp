#include "program.h"

#include <algorithm>
#include <cstring>
#include <unordered_map>

#include "arithmetic.h"
#include "machine.h"
#include "simt/memory.h"

namespace ptx {
namespace {

using machine::Order;
using machine::Scope;

// ---- Control

const Instruction* jump(Frame&, const Instruction* i) { return i->target; }
template <bool negated>
const Instruction* jump_if(Frame& f, const Instruction* i) {
  return ((f.slots[i->from[0]] & 1) != 0) != negated ? i->target : i + 1;
}
const Instruction* end(Frame&, const Instruction*) { return nullptr; }
const Instruction* trap(Frame&, const Instruction*) {
  throw simt::Failure("trap", "the kernel gives up");
}
const Instruction* past_the_end(Frame&, const Instruction*) {
  throw simt::Failure("trap", "the kernel's text ends without ret");
}

// ---- Memory

uint64_t address(Frame& f, const Instruction* i) {
  return f.slots[i->from[0]] + uint64_t(i->offset);
}

// From bytes to registers, and back. `sign`: of values narrower than 64 bits.
void unpack(Frame& f, const Instruction* i, const std::byte* values, bool sign = false) {
  for (int n = 0; n < i->count; ++n) {
    uint64_t& slot = f.slots[i->to[n]];
    slot = 0;
    std::memcpy(&slot, values + n * i->bytes, i->bytes);
    const int unused = 64 - 8 * i->bytes;
    if (sign) slot = uint64_t(int64_t(slot << unused) >> unused);
  }
}
const Instruction* load(Frame& f, const Instruction* i) {
  alignas(16) std::byte values[16];
  machine::load(address(f, i), values, i->bytes * i->count, i->access, i);
  unpack(f, i, values);
  return i + 1;
}
const Instruction* store(Frame& f, const Instruction* i) {
  alignas(16) std::byte values[16];
  for (int n = 0; n < i->count; ++n)
    std::memcpy(values + n * i->bytes, &f.slots[i->from[1 + n]], i->bytes);
  machine::store(address(f, i), values, i->bytes * i->count, i->access, i);
  return i + 1;
}

// Arguments and shared memory begin at address 0 of their own state space.
uint64_t offset_in(Frame& f, const Instruction* i, int64_t most) {
  const uint64_t at = address(f, i);
  const auto bytes = uint64_t(i->bytes * i->count);
  if (at % bytes != 0 || at + bytes > uint64_t(most) || at + bytes < at)
    throw simt::Failure("out of bounds", "byte " + std::to_string(int64_t(at)) + " of " +
                                             std::to_string(most) + ", or misaligned");
  return at;
}
template <bool sign>
const Instruction* load_param(Frame& f, const Instruction* i) {
  unpack(f, i, f.params + offset_in(f, i, f.param_bytes), sign);
  return i + 1;
}
const Instruction* load_shared(Frame& f, const Instruction* i) {
  const std::byte* at = f.shared + offset_in(f, i, f.shared_bytes);
  machine::use_shared(at, /*store=*/false);
  unpack(f, i, at);
  return i + 1;
}
const Instruction* store_shared(Frame& f, const Instruction* i) {
  std::byte* at = f.shared + offset_in(f, i, f.shared_bytes);
  machine::use_shared(at, /*store=*/true);
  for (int n = 0; n < i->count; ++n)
    std::memcpy(at + n * i->bytes, &f.slots[i->from[1 + n]], i->bytes);
  return i + 1;
}
const Instruction* compare_and_swap(Frame& f, const Instruction* i) {
  machine::give_up();
  f.slots[i->to[0]] = machine::update(address(f, i), 4, i->access, [&](uint64_t before) {
    const bool same = uint32_t(before) == uint32_t(f.slots[i->from[1]]);
    return same ? std::optional(f.slots[i->from[2]]) : std::nullopt;
  });
  return i + 1;
}
// Up to a last value, and then from 0 again.
const Instruction* increment(Frame& f, const Instruction* i) {
  f.slots[i->to[0]] = machine::update(address(f, i), 4, i->access, [&](uint64_t before) {
    return std::optional<uint64_t>(before >= uint32_t(f.slots[i->from[1]]) ? 0 : before + 1);
  });
  return i + 1;
}
const Instruction* add_to(Frame& f, const Instruction* i) {
  f.slots[i->to[0]] = machine::update(address(f, i), 8, i->access, [&](uint64_t before) {
    return std::optional(before + f.slots[i->from[1]]);
  });
  return i + 1;
}
const Instruction* fence(Frame&, const Instruction* i) {
  machine::fence(i->access);
  return i + 1;
}

// ---- Synchronization of threads

void need_whole_warp(uint64_t mask) {
  if (uint32_t(mask) != ~0u) throw simt::Failure("divergent", "a mask of some lanes of a warp");
}
const Instruction* sync_warp(Frame& f, const Instruction* i) {
  need_whole_warp(f.slots[i->from[0]]);
  machine::sync_warp();
  return i + 1;
}
const Instruction* vote_all(Frame& f, const Instruction* i) {
  need_whole_warp(f.slots[i->from[1]]);
  f.slots[i->to[0]] = machine::all_lanes((f.slots[i->from[0]] & 1) != 0);
  return i + 1;
}
const Instruction* shuffle(Frame& f, const Instruction* i) {
  need_whole_warp(f.slots[i->from[3]]);
  if (uint32_t(f.slots[i->from[2]]) != 31)
    throw simt::Failure("divergent", "a shuffle within parts of a warp");
  f.slots[i->to[0]] =
      machine::from_lane(uint32_t(f.slots[i->from[0]]), uint32_t(f.slots[i->from[1]]));
  f.slots[i->to[1]] = 1;
  return i + 1;
}
const Instruction* barrier_or(Frame& f, const Instruction* i) {
  f.slots[i->to[0]] = machine::barrier(uint32_t(f.slots[i->from[0]]), uint32_t(f.slots[i->from[1]]),
                                       (f.slots[i->from[2]] & 1) != 0);
  return i + 1;
}
const Instruction* rest(Frame&, const Instruction* i) {
  machine::rest();
  return i + 1;
}
const Instruction* read_clock(Frame& f, const Instruction* i) {
  f.slots[i->to[0]] = machine::nanoseconds();
  return i + 1;
}

// Instructions of one form, without further parts.
const std::unordered_map<std::string, Operation>& fixed() {
  static const std::unordered_map<std::string, Operation> all = {
      {"bar.warp.sync", {&sync_warp, 0, 1}},
      {"vote.sync.all.pred", {&vote_all, 1, 2}},
      {"shfl.sync.idx.b32", {&shuffle, 2, 4}},
      {"barrier.cta.red.or.pred", {&barrier_or, 1, 3}},
      {"nanosleep.u32", {&rest, 0, 1}},
      {"ret", {&end, 0, 0}},
      {"trap", {&trap, 0, 0}},
  };
  return all;
}

constexpr const char* kSpecial[] = {"%tid.x", "%ntid.x", "%ctaid.x", "%nctaid.x"};
constexpr int kSpecials = int(std::size(kSpecial));

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  for (size_t begin = 0, end; begin <= text.size(); begin = end + 1) {
    end = std::min(text.find(separator, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
  }
  return parts;
}

}  // namespace

// Statements to instructions.
class Decoder {
 public:
  explicit Decoder(Program& program) : p_(program), entry_(program.entry_) {}

  void decode() {
    for (const auto& [name, type] : entry_.registers)
      if (!slots_.emplace(name, uint32_t(slots_.size())).second)
        throw Error(entry_.name + ": the register '" + name + "' is declared twice");
    p_.registers_ = slots_.size();
    std::vector<size_t> begins;  // of each statement, the first of its instructions
    for (size_t s = 0; s < entry_.statements.size(); ++s) {
      begins.push_back(p_.instructions_.size());
      statement_ = &entry_.statements[s];
      decode(*statement_, int(s));
    }
    begins.push_back(p_.instructions_.size());
    Instruction last;
    last.step = &past_the_end;
    last.statement = int(entry_.statements.size()) - 1;
    p_.instructions_.push_back(last);
    for (const auto& [i, label] : jumps_) {
      const auto found = entry_.labels.find(label);
      if (found == entry_.labels.end()) throw Error(entry_.name + ": no label '" + label + "'");
      p_.instructions_[i].target = p_.instructions_.data() + begins[found->second];
    }
    for (const auto& [i, behind] : skips_)
      p_.instructions_[i].target = p_.instructions_.data() + behind;
    // The special registers lie behind the constants, whose number is known now.
    for (Instruction& i : p_.instructions_) {
      for (uint32_t& slot : i.to) slot = place(slot);
      for (uint32_t& slot : i.from) slot = place(slot);
    }
    p_.executed_.assign(entry_.statements.size(), 0);
  }

 private:
  static constexpr uint32_t kIsSpecial = 1u << 31;
  uint32_t place(uint32_t slot) const {
    return (slot & kIsSpecial) == 0
               ? slot
               : (slot & ~kIsSpecial) + uint32_t(p_.registers_ + p_.constants_.size());
  }

  [[noreturn]] void refuse(const std::string& what) const {
    throw Error(entry_.name + ", line " + std::to_string(statement_->line) + ": " + what);
  }

  void decode(const Statement& s, int number) {
    Instruction i;
    i.statement = number;
    const bool branch = s.opcode == "bra" || s.opcode == "bra.uni";
    if (!s.guard.empty()) {
      // A branch is taken if the guard is true; anything else is jumped over if it is not.
      i.step = s.negated == branch ? &jump_if<true> : &jump_if<false>;
      i.from[0] = register_of(s.guard);
      if (branch) jumps_.emplace_back(p_.instructions_.size(), label_of(s));
      else
        i.skips = true, skips_.emplace_back(p_.instructions_.size(), p_.instructions_.size() + 2);
      p_.instructions_.push_back(i);
      if (branch) return;
      i.from[0] = 0, i.skips = false;
    } else if (branch) {
      i.step = &jump;
      jumps_.emplace_back(p_.instructions_.size(), label_of(s));
      p_.instructions_.push_back(i);
      return;
    }
    decode_operation(s, i);
    p_.instructions_.push_back(i);
  }
  std::string label_of(const Statement& s) const {
    if (s.operands.size() != 1 || s.operands[0].size() != 1) refuse("a branch to no label");
    return s.operands[0][0].text;
  }

  void decode_operation(const Statement& s, Instruction& i) {
    const std::vector<std::string> words = split(s.opcode, '.');
    if (words[0] == "ld" || words[0] == "st") return decode_access(s, words, i);
    if (words[0] == "atom") return decode_atomic(s, words, i);
    if (words[0] == "fence") return decode_fence(words, i);
    if (words[0] == "mov" && s.operands.size() == 2 && s.operands[1][0].text == "%globaltimer") {
      i.step = &read_clock;
      return operands(s, i, 1, 0, 1);
    }
    std::string opcode = s.opcode;
    if (words[0] == "mov" && s.operands.size() == 2) {
      if (s.operands[0].size() == 2) opcode.replace(0, 3, "split");
      if (s.operands[1].size() == 2) opcode.replace(0, 3, "join");
    }
    Operation operation = operation_of(opcode);
    if (const auto found = fixed().find(opcode); found != fixed().end()) operation = found->second;
    if (operation.step == nullptr) refuse("the instruction '" + s.opcode + "' is not known");
    i.step = operation.step;
    operands(s, i, operation.results, operation.operands);
    // It is extended to the whole register.
    const bool to_byte = words[0] == "cvt" && (words[1] == "s8" || words[1] == "u8");
    if (to_byte && entry_.registers[i.to[0]].type != ".b16")
      refuse("a byte in a register that has not 16 bits");
  }

  // ld.{volatile,relaxed,acquire}{.scope}.space{.v2,.v4}.type, and so for st.
  void decode_access(const Statement& s, const std::vector<std::string>& words, Instruction& i) {
    const bool is_load = words[0] == "ld";
    std::string space, type;
    bool is_volatile = false;
    for (size_t w = 1; w < words.size(); ++w) {
      const std::string& word = words[w];
      if (word == "volatile") is_volatile = true;
      else if (order_or_scope(word, i.access)) continue;
      else if (word == "param" || word == "shared" || word == "global") space = word;
      else if (word == "v2") i.count = 2;
      else if (word == "v4") i.count = 4;
      else if ((word == "cg" || word == "cs") && space == "global") continue;  // a hint
      else if (w + 1 == words.size()) type = word;
      else refuse("'." + word + "' of '" + s.opcode + "' is not known");
    }
    i.bytes = bytes_of(type, s);
    const bool sign = type[0] == 's';
    if (is_volatile) i.access = {i.bytes * i.count == 16 ? Order::line : Order::relaxed};
    if (i.bytes * i.count > 16) refuse("more than 16 bytes at once");
    const bool ordered = i.access.order != Order::weak;
    if (is_load && space == "param" && !ordered)
      i.step = sign ? &load_param<true> : &load_param<false>;
    else if (space == "shared" && !ordered && !sign)
      i.step = is_load ? &load_shared : &store_shared;
    else if (space == "global" && !sign) i.step = is_load ? &load : &store;
    else refuse("the instruction '" + s.opcode + "' is not known");
    if (i.access.order == (is_load ? Order::release : Order::acquire))
      refuse("the instruction '" + s.opcode + "' is not known");
    if (s.operands.size() != 2) refuse("expected two operands");
    const auto& values = s.operands[is_load ? 0 : 1];
    if (int(values.size()) != i.count) refuse("expected a vector of " + std::to_string(i.count));
    address(s.operands[is_load ? 1 : 0], i);
    for (int n = 0; n < i.count; ++n)
      if (is_load) i.to[n] = register_of(values[size_t(n)].text);
      else i.from[1 + n] = slot_of(values[size_t(n)]);
  }
  static bool order_or_scope(const std::string& word, machine::Access& access) {
    if (word == "relaxed") access.order = Order::relaxed;
    else if (word == "acquire") access.order = Order::acquire;
    else if (word == "release") access.order = Order::release;
    else if (word == "acq_rel") access.order = Order::acq_rel;
    else if (word == "cta") access.scope = Scope::cta;
    else if (word == "gpu") access.scope = Scope::gpu;
    else if (word == "sys") access.scope = Scope::sys;
    else return false;
    return true;
  }
  uint8_t bytes_of(const std::string& type, const Statement& s) const {
    for (const auto& [bits, bytes] : {std::pair("8", 1), {"16", 2}, {"32", 4}, {"64", 8}})
      if (type.size() > 1 && type.substr(1) == bits && std::strchr("bsuf", type[0]) != nullptr)
        return uint8_t(bytes);
    refuse("the type of '" + s.opcode + "' is not known");
  }

  // atom{.order}{.scope}.global.operation.type; without them, relaxed and of the GPU.
  void decode_atomic(const Statement& s, const std::vector<std::string>& words, Instruction& i) {
    i.access = {Order::relaxed, Scope::gpu};
    size_t w = 1;
    while (w < words.size() && order_or_scope(words[w], i.access)) ++w;
    const std::string rest = s.opcode.substr(s.opcode.find(words.at(w == words.size() ? 0 : w)));
    const bool swap = rest == "global.cas.b32";
    if (swap) i.step = &compare_and_swap;
    else if (rest == "global.inc.u32") i.step = &increment;
    else if (rest == "global.add.u64") i.step = &add_to;
    else refuse("the instruction '" + s.opcode + "' is not known");
    if (i.access.order != Order::relaxed && i.access.order != Order::acq_rel)
      refuse("the instruction '" + s.opcode + "' is not known");
    if (s.operands.size() != (swap ? 4u : 3u)) refuse("other numbers of operands than expected");
    i.to[0] = register_of(s.operands[0][0].text);
    address(s.operands[1], i);
    for (size_t n = 2; n < s.operands.size(); ++n) i.from[n - 1] = slot_of(s.operands[n][0]);
  }
  void decode_fence(const std::vector<std::string>& words, Instruction& i) {
    if (words.size() != 3 || words[1] != "acq_rel" || !order_or_scope(words[1], i.access) ||
        !order_or_scope(words[2], i.access))
      refuse("the instruction '" + statement_->opcode + "' is not known");
    i.step = &fence;
    operands(*statement_, i, 0, 0);
  }

  // All operands in a row: results, and then what is used. The last `ignored` have no slot.
  void operands(const Statement& s, Instruction& i, int results, int used, int ignored = 0) {
    std::vector<const Operand*> all;
    for (const auto& group : s.operands)
      for (const Operand& o : group) all.push_back(&o);
    if (int(all.size()) != results + used + ignored)
      refuse("'" + s.opcode + "' with " + std::to_string(all.size()) + " operands");
    for (int n = 0; n < results; ++n) i.to[n] = register_of(all[size_t(n)]->text);
    for (int n = 0; n < used; ++n) i.from[n] = slot_of(*all[size_t(results + n)]);
  }
  void address(const std::vector<Operand>& o, Instruction& i) {
    if (o.size() != 1 || o[0].kind != Operand::address) refuse("expected an address");
    i.offset = o[0].value;
    i.from[0] = o[0].text.empty() ? constant(0) : slot_of_name(o[0].text);
  }
  uint32_t register_of(const std::string& name) const {
    const auto found = slots_.find(name);
    if (found == slots_.end()) refuse("'" + name + "' is not a register");
    return found->second;
  }
  uint32_t slot_of(const Operand& o) {
    if (o.kind == Operand::address) refuse("an address in a wrong place");
    return o.kind == Operand::number ? constant(uint64_t(o.value)) : slot_of_name(o.text);
  }
  uint32_t slot_of_name(const std::string& name) {
    if (const auto r = slots_.find(name); r != slots_.end()) return r->second;
    for (int n = 0; n < kSpecials; ++n)
      if (name == kSpecial[n]) return kIsSpecial | uint32_t(n);
    if (const auto v = entry_.params.find(name); v != entry_.params.end())
      return constant(uint64_t(v->second.offset));
    if (const auto v = entry_.shared.find(name); v != entry_.shared.end())
      return constant(uint64_t(v->second.offset));
    refuse("'" + name + "' is not known");
  }
  uint32_t constant(uint64_t value) {
    const auto [found, is_new] =
        constants_.emplace(value, uint32_t(p_.registers_ + p_.constants_.size()));
    if (is_new) p_.constants_.push_back(value);
    return found->second;
  }

  Program& p_;
  const Entry& entry_;
  const Statement* statement_ = nullptr;
  std::unordered_map<std::string, uint32_t> slots_;  // of registers
  std::unordered_map<uint64_t, uint32_t> constants_;
  std::vector<std::pair<size_t, std::string>> jumps_;
  std::vector<std::pair<size_t, size_t>> skips_;
};

Program::Program(Entry entry) : entry_(std::move(entry)) { Decoder(*this).decode(); }

// A bound for each thread: the machine sees no loop over registers alone.
constexpr uint64_t kMostInstructions = 1 << 24;

void Program::run(const void* arguments, size_t bytes) const {
  if (int64_t(bytes) != entry_.param_bytes)
    throw Error(entry_.name + " takes " + std::to_string(entry_.param_bytes) +
                " bytes of arguments, and the host gives " + std::to_string(bytes));
  const size_t constants = registers_ + constants_.size();
  Frame f{machine::registers(constants + kSpecials), static_cast<const std::byte*>(arguments),
          machine::shared_memory(size_t(entry_.shared_bytes)), entry_.param_bytes,
          entry_.shared_bytes};
  // Not the data of an earlier kernel: reads of unwritten memory are the same in each run.
  std::fill_n(f.slots, registers_, 0xA5A5A5A5A5A5A5A5u);
  std::copy(constants_.begin(), constants_.end(), f.slots + registers_);
  const auto [thread, threads, block, blocks] = machine::place();
  f.slots[constants] = thread, f.slots[constants + 1] = threads;
  f.slots[constants + 2] = block, f.slots[constants + 3] = blocks;
  const Instruction* i = instructions_.data();
  try {
    for (uint64_t left = kMostInstructions; i != nullptr; --left) {
      if (left == 0) throw simt::Failure("livelock", "no end after so many instructions");
      __atomic_store_n(&executed_[size_t(i->statement)], 1, __ATOMIC_RELAXED);
      if (observer != nullptr) observer->see(f, *i, entry_.statements[size_t(i->statement)]);
      i = i->step(f, i);
    }
  } catch (const simt::Failure& failure) {
    const Statement& s = entry_.statements[size_t(i->statement)];
    throw simt::Failure(failure.kind, std::string(failure.text()) + "\n  at line " +
                                          std::to_string(s.line) + " of the PTX, " + s.opcode +
                                          ", in " + entry_.name);
  }
}

}  // namespace ptx
