// The thread that watches the rings of a process: it notices that a rank has died, has left, is
// late, or makes another call than this one, and ends the waits of all.
//
// It calls neither Python nor a device, and takes no lock that a waiting call holds.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/control.h"
#include "comm/rendezvous.h"

namespace ringkern {

// A ring of this process. The objects that it refers to must outlive it.
struct Watched {
  std::string name;  // of the communicator
  std::string device;
  Milliseconds timeout{0};
  Control* control = nullptr;
  // Called once, on the watch's thread, when the ring has failed, on this or another rank.
  std::function<void(const Fault&)> failed;
  // The progress of a device; null if calls have ended when they return.
  std::function<Executor::Progress()> progress;
  std::string key;        // as in RingRecord
  bool if_alone = false;  // watch a ring of one rank, too
};

// Watches a ring for its lifetime. Throws if no thread can be started.
class Watch {
 public:
  explicit Watch(Watched ring);
  ~Watch();
  // Watches the neighbours' processes from now on; `neighbours` must outlive this object.
  void meet(const Neighbours& neighbours);
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

 private:
  const uint64_t number_;
};

// The record of the last calls of a ring, for diagnosis.
struct RingRecord {
  std::string name, device;
  int rank = 0, ranks = 1;
  int64_t timeout_ms = 0;
  std::optional<Fault> failure{};  // why it is unusable
  // This rank's calls, the oldest first, from the first one that all ranks show.
  std::vector<CallRecord> calls;
  std::string key;  // unique, the same on all ranks; empty for a ring of one rank
};
// Returns the records of this process's rings, and of the last ones that have failed.
std::vector<RingRecord> recorded_calls();

}  // namespace ringkern
