// Ranks that are processes, and a store for them.
#pragma once

#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "comm/ring_of_threads.h"

namespace ringkern::test {

// A store in memory that forked processes share.
class SharedStore final : public Store {
 public:
  SharedStore() {
    void* at =
        ::mmap(nullptr, sizeof(Table), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(at != MAP_FAILED);
    table_ = new (at) Table;
    pthread_mutexattr_t shared;
    pthread_mutexattr_init(&shared);
    pthread_mutexattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&shared, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&table_->mutex, &shared);
    pthread_mutexattr_destroy(&shared);
  }
  ~SharedStore() override { ::munmap(table_, sizeof(Table)); }

  void set(const std::string& key, const std::string& value) override {
    const Lock lock(table_->mutex);
    Entry& entry = find(key);
    REQUIRE(value.size() <= sizeof entry.value);
    std::memcpy(entry.value, value.data(), value.size());
    entry.size = int(value.size());
  }

  std::string get(const std::string& key, Milliseconds timeout) override {
    const auto deadline = Clock::now() + timeout;
    for (;;) {
      {
        const Lock lock(table_->mutex);
        const Entry& entry = find(key);
        if (entry.size >= 0) return std::string(entry.value, size_t(entry.size));
      }
      if (Clock::now() >= deadline) throw TimeoutError(key);
      ::usleep(1000);
    }
  }

  int64_t add(const std::string& key, int64_t amount) override {
    const Lock lock(table_->mutex);
    return find(key).counter += amount;
  }

 private:
  struct Entry {
    char key[80] = {};
    int size = -1;  // no value
    char value[1200];
    int64_t counter = 0;
  };
  struct Table {
    pthread_mutex_t mutex;
    Entry entries[200];
  };
  struct Lock {
    // A rank may be killed while it holds the lock: only its own entry is half written.
    explicit Lock(pthread_mutex_t& m) : mutex(m) {
      if (pthread_mutex_lock(&mutex) == EOWNERDEAD) pthread_mutex_consistent(&mutex);
    }
    ~Lock() { pthread_mutex_unlock(&mutex); }
    pthread_mutex_t& mutex;
  };

  Entry& find(const std::string& key) {
    REQUIRE(key.size() < sizeof(Entry::key));
    for (Entry& entry : table_->entries) {
      if (entry.key[0] == 0) std::strcpy(entry.key, key.c_str());
      if (key == entry.key) return entry;
    }
    FAIL("the store is full");
  }

  Table* table_;
};

// Runs one process for each rank. Returns when all have ended; `signal` is the required end of rank
// 1.
inline void on_processes(int ranks, const std::function<void(int)>& call, int signal = 0) {
  std::vector<pid_t> pids;
  for (int rank = 0; rank < ranks; ++rank) {
    pids.push_back(::fork());
    REQUIRE(pids.back() >= 0);
    if (pids.back() == 0) {
      ::alarm(60);
      call(rank);
      ::_exit(0);
    }
  }
  for (int rank = 0; rank < ranks; ++rank) {
    int status = 0;
    CHECK_EQ(::waitpid(pids[size_t(rank)], &status, 0), pids[size_t(rank)]);
    CHECK_EQ(status, rank == 1 ? signal : 0);
  }
}

}  // namespace ringkern::test
