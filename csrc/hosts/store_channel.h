// Tells ranks on several hosts that something is wrong, by words in the store where they have met.
// It is not in the path of any data, and it is slow: a rank looks there only while one of its waits
// takes long.
//
// The store may not answer, because the network is cut or the process that keeps it has died. So
// one thread asks it, and all others wait for that thread no longer than they want to.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/interfaces.h"
#include "fault/fault.h"
#include "hosts/hosts.h"

namespace ringkern {

// A call of a group, by its number and its words; 0 and nothing while the group is made.
struct CallAt {
  uint64_t seq = 0;
  CallWords words{};

  bool operator==(const CallAt&) const = default;
};

// The call in which a rank waits, and the last calls that it has begun: ranks that make different
// calls may have gone on to later ones.
struct CallsAt : CallAt {
  std::array<CallAt, kCallLines> last{};  // by number

  void begin(const CallAt& call) {
    static_cast<CallAt&>(*this) = call;
    last[call.seq % kCallLines] = call;
  }
  // Returns the call with that number, if it is among the last ones; else null.
  const CallAt* find(uint64_t number) const {
    const CallAt& found = last[number % kCallLines];
    return number != 0 && found.seq == number ? &found : nullptr;
  }
};

class StoreChannel {
  class Worker;

 public:
  // `connect`: returns a store for this channel alone, with the same contents as those of all
  // ranks. It is called on the channel's thread when the store is first needed, and again after the
  // store has thrown. It may throw or block. It outlives the channel, and so does its store, if
  // either blocks. `prefix` is used by this group alone, because its words stay in the store.
  // `hears`, if any, is called on the thread with the first failure that comes, but not after the
  // channel has ended; it must not use the channel. The thread starts at the first need.
  StoreChannel(std::function<std::shared_ptr<Store>()> connect, std::string prefix,
               const Hosts& hosts, std::function<void(const Fault&)> hears = nullptr);
  // Takes at most a second: if the store does not answer, the thread is left behind.
  ~StoreChannel();
  StoreChannel(const StoreChannel&) = delete;
  StoreChannel& operator=(const StoreChannel&) = delete;

  // All functions below may be called from any thread. They do not throw because of the store. A
  // forked child may destroy its copy, and must not do anything else with it.

  // `watch` says that a wait of this rank in this call has become long, and `rest` that it is over.
  // In between, the thread looks at the store, every 100 ms at first and every second in the end,
  // and answers query calls.
  void watch(const CallAt& call);
  void rest();
  // A wait of this rank, from its beginning to its end. If it takes longer than 100 ms, the rank
  // hears what was told. Takes two short locks. It may outlive the channel, and then hears nothing
  // more.
  class Listening {
   public:
    // For a call, one at a time. While it is long, query calls are answered as in a watched wait.
    Listening(const StoreChannel& to, const CallAt& call);
    // For another wait, beside calls.
    explicit Listening(const StoreChannel& to);
    ~Listening();
    Listening(const Listening&) = delete;
    Listening& operator=(const Listening&) = delete;
    // The same as those of the channel.
    std::optional<Fault> heard() const;
    Fault tell(Fault mine, Milliseconds patience) const;
    std::optional<Fault> hear(Milliseconds patience) const;

   private:
    const std::shared_ptr<Worker> worker_;
    const int born_in_;
    const bool in_call_;
  };

  // Returns the first failure that any rank has told, if it has come here. Does not ask the store.
  std::optional<Fault> heard() const;
  // Tells a failure to all ranks. Returns the failure that counts on all ranks, which is an earlier
  // one if another rank was first. If the store does not answer within `patience`, returns `mine`,
  // which is told when the store answers.
  Fault tell(Fault mine, Milliseconds patience);
  // Waits until a failure was told, for example by a rank that knows better what is wrong.
  std::optional<Fault> hear(Milliseconds patience);

  // Returns, by rank, the call in which it waits, if it does and answers, and its last calls. Ends
  // after `patience`, or when ranks of all other hosts have answered or a failure was told. Ranks
  // answer when they next look at the store, so allow more than a second. `enough`, if any, is
  // asked at intervals, and also ends it by returning true; but then the query waits for all ranks,
  // not for one per host.
  std::vector<std::optional<CallsAt>> query_status(Milliseconds patience,
                                                   const std::function<bool()>& enough = nullptr);
  // Returns false if the store has not answered for more than a second.
  bool store_answers() const;

 private:
  // Shared with the thread, which may be left behind.
  std::shared_ptr<Worker> worker_;
  const int born_in_;  // pid: a forked child does not have the thread
};

}  // namespace ringkern
