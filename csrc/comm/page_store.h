// A store in the control pages of a ring, by which the ranks that go on meet after a failure
// (comm/regroup.h). It needs no server: each rank keeps what it sets on its own page, and the rank
// that proposed the round keeps the counters. It has no more than one round's keys.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "comm/interfaces.h"
#include "comm/regroup.h"

namespace ringkern {

class PageStore final : public Store {
 public:
  // For members of the round. It keeps the pages mapped, also once their communicator is closed.
  PageStore(std::shared_ptr<Control> control, Regroup::Round round);

  // Throws RendezvousError if this rank's page is full.
  void set(const std::string& key, const std::string& value) override;
  // Until the new ring stands, these throw PeerLostError once a member is gone, and RendezvousError
  // once one could not join.
  std::string get(const std::string& key, Milliseconds timeout) override;
  int64_t add(const std::string& key, int64_t amount) override;
  // Returns the value that a rank has set, if any.
  std::optional<std::string> find(const std::string& key);

 private:
  void check_round();
  std::optional<std::string> find_in(int rank, const std::string& key) const;
  uint64_t& counter(const std::string& key);

  const std::shared_ptr<Control> control_;
  const Regroup::Round round_;
  Regroup regroup_;
  std::mutex mutex_;
  Clock::time_point next_look_{};
};

}  // namespace ringkern
