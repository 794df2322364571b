// Messages between any two ranks of one host: sends and receives that progress side by side on a
// thread of the library, over links that are made when a rank first needs one.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/interfaces.h"

namespace ringkern::cpu {

inline constexpr int kAnySource = -1;
// Longer timeouts are cut to this, so that a time_point can hold the end.
inline constexpr Milliseconds kLongestTimeout = std::chrono::hours(24 * 365);

// One message, from this rank's side. `data` stays valid until `done`.
struct Message {
  bool sends = true;
  int peer = 0;                          // another rank, or, to receive, kAnySource
  uint64_t tag = 0;                      // the two ends must have the same
  Protocol protocol = Protocol::simple;  // of a send; a receiver learns it from the header
  void* data = nullptr;                  // only read in a send
  int64_t bytes = 0;                     // the two ends must have the same
  Milliseconds timeout{0};  // how long it may wait while nothing moves; 0: the engine's
  // Called once on the engine's thread with the error, or null, and the rank at the other end. Must
  // not throw; may post.
  std::function<void(std::exception_ptr, int source)> done;
  int dtype = 0;  // an index of kMoved; the two ends must have the same
};

// An engine that moves this rank's messages. Messages between the same two ranks with the same tag
// match in the order of posting; different tags match in any order, so a message without a receive
// is buffered when a later one is wanted. A send is done when its last byte is in the link. The
// first message that fails makes the engine unusable, and every connected rank is told why.
class P2pEngine {
 public:
  // Sets this rank's address in the store and starts; does not wait for other ranks. `name` is the
  // same on all ranks and may be used again for a later engine.
  P2pEngine(std::shared_ptr<Store> store, std::string name, int rank, int ranks,
            Milliseconds timeout, RankNames names = {});
  ~P2pEngine();
  P2pEngine(const P2pEngine&) = delete;
  P2pEngine& operator=(const P2pEngine&) = delete;

  // Posts all messages and returns at once; if one is invalid, throws and posts none. Any thread.
  void post(std::vector<Message> messages);
  // Fails every message of this rank and of the ranks that it is connected to. Any thread.
  void abort(const std::string& reason);
  // Finishes what was posted, then gives everything back; what has not finished after `patience` is
  // aborted. Any number of times.
  void close(Milliseconds patience = Milliseconds::max());
  // Returns true inside `done` of a message, where the engine can be neither closed nor destroyed.
  bool in_callback() const;

 private:
  class Body;

  bool forked() const;

  const int born_in_;  // pid
  const std::string name_;
  std::unique_ptr<Body> body_;  // a forked child leaks it
};

}  // namespace ringkern::cpu
