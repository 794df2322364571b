// A kernel in PTX, ready to run: its statements as instructions over numbered slots.
#pragma once

#include "machine.h"
#include "module.h"

namespace ptx {

struct Instruction;

// The state of a thread that runs a kernel.
struct Frame {
  uint64_t* slots;          // registers, constants and special registers
  const std::byte* params;  // the kernel's arguments
  std::byte* shared;        // the block's
  int64_t param_bytes, shared_bytes;
};

// Executes an instruction and returns the next one; null: the thread ends.
using Step = const Instruction* (*)(Frame&, const Instruction*);

struct Instruction {
  Step step = nullptr;
  uint32_t to[4] = {}, from[6] = {};  // slots
  int64_t offset = 0;                 // of an address, in bytes
  const Instruction* target = nullptr;
  machine::Access access;
  uint8_t bytes = 0, count = 1;  // of each of `count` values in memory
  int statement = 0;             // its index
  bool skips = false;            // this is the guard of the next instruction
};

// Sees each instruction before a thread runs it, while the observer is set.
struct Observer {
  virtual void see(const Frame& frame, const Instruction& i, const Statement& s) = 0;
};
inline Observer* observer = nullptr;

class Program {
 public:
  // Raises Error if a statement is not supported, and names it.
  explicit Program(Entry entry);
  Program(Program&&) = default;

  const Entry& entry() const { return entry_; }
  // Runs the kernel on the calling thread. Raises Error if the kernel does not take exactly `bytes`
  // of arguments. A Failure of the machine names the statement.
  void run(const void* arguments, size_t bytes) const;
  // Marks each statement that any thread has executed: 1 or 0.
  const std::vector<uint8_t>& executed() const { return executed_; }

 private:
  friend class Decoder;
  Entry entry_;
  std::vector<Instruction> instructions_;
  // The constants; a thread's slots are the registers, then these, then the special registers.
  std::vector<uint64_t> constants_;
  size_t registers_ = 0;
  mutable std::vector<uint8_t> executed_;  // stored by several threads of the host
};

}  // namespace ptx
