// How ranks on several hosts tell each other that something is wrong: by words in the store where
// they have met. It is not on the way of any data, and slow: a rank looks there only while a wait
// of its own takes long.
//
// The store may not answer: the network is cut, or the process that keeps it has died. So one
// thread asks it, and everybody else waits for that thread no longer than they want to.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/ports.h"
#include "fault/fault.h"
#include "hosts/hosts.h"

namespace ringkern {

// A call of a group, by its number and what it is; 0 and nothing while the group is made.
struct CallAt {
  uint64_t seq = 0;
  CallWords words{};

  bool operator==(const CallAt&) const = default;
};

// The call in which a rank waits, and the last ones that it has begun: ranks that make different
// calls may have gone on to later ones.
struct CallsAt : CallAt {
  std::array<CallAt, kCallLines> last{};  // by number

  void begin(const CallAt& call) {
    static_cast<CallAt&>(*this) = call;
    last[call.seq % kCallLines] = call;
  }
  // Returns the call of that number, if it is among the last; else null.
  const CallAt* find(uint64_t number) const {
    const CallAt& found = last[number % kCallLines];
    return number != 0 && found.seq == number ? &found : nullptr;
  }
};

class StoreChannel {
  class Worker;

 public:
  // `connect`: gives this channel a store of its own, of which all ranks' have the same contents;
  // called on its thread at the first need, and again after the store has thrown. It may throw or
  // block. It outlives the channel, as what it gives does, where either blocks. `prefix` is this
  // group's alone: its words stay in the store. `hears`, if any, is called with the first failure
  // that comes, on the thread, and not when this is over; nothing of the channel may be asked
  // there. There is no thread before the first need.
  StoreChannel(std::function<std::shared_ptr<Store>()> connect, std::string prefix,
               const Hosts& hosts, std::function<void(const Fault&)> hears = nullptr);
  // Takes no more than a second: of a store that does not answer, the thread is left behind.
  ~StoreChannel();
  StoreChannel(const StoreChannel&) = delete;
  StoreChannel& operator=(const StoreChannel&) = delete;

  // All that follows is for any thread. Nothing throws because of the store. A child forked from
  // here may destroy its copy, and no more.

  // A wait of this rank has become long, in this call; and it is over. In between the store is
  // looked at, every 100 ms at first and every second in the end, and query calls are answered.
  void watch(const CallAt& call);
  void rest();
  // A wait of this rank, from its beginning to its end: what was told is heard where that takes
  // longer than 100 ms. Two short locks. It may outlive the channel, and hears nothing more then.
  class Listening {
   public:
    // A call, one at a time: where it is long, query calls are answered as while a wait is watched.
    Listening(const StoreChannel& to, const CallAt& call);
    // Something else, beside calls.
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

  // The first failure that any rank has told, if it has come here. Does not ask the store.
  std::optional<Fault> heard() const;
  // Tells all ranks, unless one was first: what counts, on all ranks, is what is returned. If the
  // store does not answer within `patience`, that is `mine`, which is told when it does.
  Fault tell(Fault mine, Milliseconds patience);
  // Waits until something was told, as by a rank that knows better what is wrong.
  std::optional<Fault> hear(Milliseconds patience);

  // Returns, by rank, the call in which it waits, if it does and answers, and its last ones. Lasts
  // for `patience`, or until ranks of all other hosts have answered, or a failure was told. Ranks
  // answer when they next look at the store: allow more than a second. `enough`, if any, is asked
  // now and then: true ends it, too, but one rank of a host does not: it waits for all ranks.
  std::vector<std::optional<CallsAt>> query_status(Milliseconds patience,
                                                   const std::function<bool()>& enough = nullptr);
  // False: for more than a second it has been asked in vain.
  bool store_answers() const;

 private:
  // Shared with the thread, which may be left behind.
  std::shared_ptr<Worker> worker_;
  const int born_in_;  // pid: a forked child has not the thread
};

}  // namespace ringkern
