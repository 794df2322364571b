// The thread of a channel, and the state that it shares with the threads that use the channel.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "hosts/asked_store.h"
#include "hosts/store_channel.h"

namespace ringkern {

// The only user of the store. The lock guards the requests of other threads and the results; it is
// never held while the store is asked.
class StoreChannel::Worker : public std::enable_shared_from_this<Worker> {
 public:
  using Connect = std::function<std::shared_ptr<Store>()>;
  using Places = std::vector<std::optional<CallsAt>>;  // by rank
  using Hears = std::function<void(const Fault&)>;

  Worker(Connect connect, std::string prefix, Hosts hosts, Hears hears)
      : hosts_(std::move(hosts)), prefix_(std::move(prefix)), store_(std::move(connect)),
        hears_(std::move(hears)) {}

  void leave();
  void watch(const CallAt& call);
  void rest();
  void begin_call(const CallAt& call);
  void end_call();
  void listen_more();
  void listen_less();
  std::optional<Fault> heard() const;
  Fault tell(Fault mine, Milliseconds patience);
  std::optional<Fault> hear(Milliseconds patience);
  Places query_status(Milliseconds patience, const std::function<bool()>& enough);
  bool store_answers() const;

 private:
  // Written on the thread; `places` with the lock held.
  struct Query {
    Clock::time_point last_sweep, end;
    bool of_all = false;  // waits for all ranks; until the end, the rest is the thread's
    int64_t number = 0;   // 0: it has not been called yet
    int64_t answers = 0;  // answers to any query that had come at the last sweep
    bool over = false;
    Places places{};
  };

  // With the lock held.
  bool start();
  void listen_from_now_on();
  void hurry();
  void await(std::unique_lock<std::mutex>& lock, Milliseconds patience,
             const std::function<bool()>& done, const std::function<bool()>& enough = nullptr);
  bool listens() const;
  bool needed() const { return listens() || waiting_ > 0 || mine_; }
  void idle(std::unique_lock<std::mutex>& lock);
  Milliseconds pause(bool threw);
  void take(Fault first);

  // On the thread, without the lock.
  void work();
  void send();
  void listen();
  void find_record(int64_t told);
  void answer();
  void collect();
  void sweep(Query& query, bool where_some_have);
  bool some_have(const Query& query, int host) const;
  Fault fault_in(const std::string& record) const;
  std::string key(const std::string& name) const { return prefix_ + "/channel/" + name; }
  std::string key(const std::string& name, int64_t n) const {
    return key(name) + "/" + std::to_string(n);
  }

  const Hosts hosts_;
  const std::string prefix_;
  AskedStore store_;

  std::atomic<bool> has_heard_{false};
  std::optional<Fault> heard_;  // written once, before has_heard_

  std::mutex mutex_;  // guards what follows
  std::condition_variable wanted_, changed_;
  std::thread thread_;
  bool leaving_ = false, left_ = false;
  Hears hears_;
  bool watching_ = false, in_call_ = false;
  bool idle_ = false;  // the thread sleeps until it is woken
  CallsAt where_;
  int listeners_ = 0;          // including the call
  Clock::time_point began_;    // when the first of the current listeners came
  int waiting_ = 0;            // callers that wait for something in the store
  std::optional<Fault> mine_;  // to be told
  std::shared_ptr<Query> query_;
  Milliseconds pause_{0};
  Clock::time_point next_look_;

  // Used by the thread alone.
  int64_t number_ = 0;    // the number of this rank's word; 0: it has none yet
  bool written_ = false;  // the word is in the store
  int64_t queries_ = 0;   // number of queries that it has seen
  int64_t answered_ = 0;  // the last of them that it has answered
  std::optional<Clock::time_point> announced_;  // since when a word is announced that has not come
};

}  // namespace ringkern
