// Replaces csrc/comm/memory_file.h: files are pages of this process, all of them present from the
// start, and a descriptor is a page's number.
#pragma once

#include "comm/interfaces.h"

namespace ringkern {

struct ModelPages {
  static constexpr int kPages = 4;
  static constexpr size_t kBytes = 32 << 10;
  alignas(4096) static inline char pages[kPages][kBytes];
  static inline int used = 0;
};

class MemoryFile {
 public:
  explicit MemoryFile(int64_t) : fd_(ModelPages::used++) {}
  int fd() const { return fd_; }
  void allocate(int64_t, int64_t) {}

 private:
  int fd_;
};

inline void check_memory_of(int, int, int64_t, const RankNames&) {}

class Mappings {
 public:
  void* map(int fd, int64_t, int64_t, const std::string& = "") { return ModelPages::pages[fd]; }
};

}  // namespace ringkern
