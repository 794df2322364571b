// Misbehaving stores, for ranks of two or more hosts in one process.
#pragma once

#include <dirent.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "check.h"
#include "comm/memory_store.h"
#include "fault/render.h"
#include "hosts/store_channel.h"

namespace ringkern::test {

// Never reached: a test that waits this long in vain fails by its own time limit.
inline constexpr Milliseconds kForEver = std::chrono::hours(1);

inline int threads_of_this_process() {
  int n = 0;
  DIR* dir = ::opendir("/proc/self/task");
  REQUIRE(dir != nullptr);
  while (const dirent* entry = ::readdir(dir)) n += entry->d_name[0] != '.';
  ::closedir(dir);
  return n;
}

inline void until(const std::function<bool()>& come) {
  while (!come()) std::this_thread::sleep_for(Milliseconds(1));
}

// Counts its uses; before each, `use` is called, which may throw or block.
struct OddStore final : Store {
  explicit OddStore(std::shared_ptr<MemoryStore> of) : store(std::move(of)) {}

  void set(const std::string& key, const std::string& value) override {
    ask("set");
    store->set(key, value);
  }
  std::string get(const std::string& key, Milliseconds timeout) override {
    ask("get");
    return store->get(key, timeout);
  }
  int64_t add(const std::string& key, int64_t amount) override {
    ask(amount == 0 ? "look" : "add");
    return store->add(key, amount);
  }
  void ask(const std::string& how) {
    ++questions;
    if (use) use(how);
  }

  const std::shared_ptr<MemoryStore> store;
  std::atomic<int> questions{0};
  std::function<void(const std::string&)> use;
};

// Callers wait while it is shut.
class Gate {
 public:
  void shut(bool is = true) {
    {
      std::lock_guard lock(mutex_);
      shut_ = is;
    }
    changed_.notify_all();
  }
  void pass() {
    std::unique_lock lock(mutex_);
    ++waiting_;
    changed_.wait(lock, [this] { return !shut_; });
    --waiting_;
  }
  int waiting() {
    std::lock_guard lock(mutex_);
    return waiting_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool shut_ = false;
  int waiting_ = 0;
};

// Two ranks on host a, two on host b, unless given otherwise; each with a store channel, over one
// store.
struct Group {
  explicit Group(std::vector<int> host_of = {0, 0, 1, 1}) : hosts_of(std::move(host_of)) {
    for (size_t r = 0; r < hosts_of.size(); ++r) {
      stores.push_back(std::make_shared<OddStore>(memory));
      ranks.push_back(channel(int(r), [store = stores.back()] { return store; }));
    }
  }
  std::unique_ptr<StoreChannel> channel(int rank, std::function<std::shared_ptr<Store>()> connect,
                                        std::function<void(const Fault&)> hears = nullptr) {
    std::vector<std::string> names;
    for (const int host : hosts_of)
      if (host == int(names.size())) names.emplace_back(1, char('a' + host));
    return std::make_unique<StoreChannel>(std::move(connect), "group", Hosts(rank, hosts_of, names),
                                          std::move(hears));
  }
  StoreChannel& operator[](int rank) { return *ranks[size_t(rank)]; }
  // Writes a record as if from a rank.
  void write(const std::string& key, const std::string& value) {
    memory->set("group/channel/" + key, value);
  }
  int64_t count(const std::string& key, int64_t amount = 0) {
    return memory->add("group/channel/" + key, amount);
  }

  const std::vector<int> hosts_of;
  std::shared_ptr<MemoryStore> memory = std::make_shared<MemoryStore>();
  std::vector<std::shared_ptr<OddStore>> stores;
  std::vector<std::unique_ptr<StoreChannel>> ranks;
};

inline Fault lost(int reporter, int rank, const std::string& text = "rank 3 on host b died") {
  Fault f = fault_of(Event::quoted_loss, reporter, rank, 17);
  f.evidence = text;
  return f;
}

// A call with this many elements.
inline CallAt call_at(uint64_t seq, int64_t count = 1) {
  return {seq, words_of(Collective::reduce, {}, Algorithm::ring, Protocol::simple, 0, count)};
}

}  // namespace ringkern::test
