// The thread that looks after the rings of a process while nobody else can: it notices that a rank
// has died, has left, is late, or makes another call than this one, and ends the waits of all.
//
// It asks neither Python nor a device for anything, and takes no lock that a waiting call holds.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/control.h"
#include "comm/rendezvous.h"

namespace ringkern {

// A ring of this process. Everything it refers to outlives it.
struct Watched {
  std::string name;  // of the communicator
  std::string device;
  Milliseconds timeout{0};
  Control* control = nullptr;
  // The ring has failed, here or elsewhere. Once, on the watch's thread.
  std::function<void(const Fault&)> failed;
  // How far a device has come; null where calls have ended when they return.
  std::function<Executor::Progress()> progress;
  std::string key;        // as in RingRecord
  bool if_alone = false;  // a ring of one rank, too
};

// While it lives the ring is looked after. Throws where there can be no thread for it.
class Watch {
 public:
  explicit Watch(Watched ring);
  ~Watch();
  // The ends of their processes are noticed, from now on; they outlive it, too.
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
  std::vector<Call> calls;  // of this rank, the oldest first, as far as all ranks show theirs
  std::string key;  // the same on all ranks, and no other ring's; empty of a ring of one rank
};
// Returns the records of this process's rings, and of the last ones that have failed.
std::vector<RingRecord> recorded_calls();

}  // namespace ringkern
