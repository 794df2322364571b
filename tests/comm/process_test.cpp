// Ranks that are processes: memory passed between them, collectives over it, and death.
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "comm/ring_of_threads.h"
#include "cpu/engine.h"
#include "cpu/shm.h"

using namespace ringkern;
using namespace ringkern::test;

namespace {

// A store in memory that forked processes share.
class SharedStore final : public Store {
 public:
  SharedStore() {
    void* at = ::mmap(nullptr, sizeof(Table), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                      -1, 0);
    CHECK(at != MAP_FAILED);
    table_ = new (at) Table;
    pthread_mutexattr_t shared;
    pthread_mutexattr_init(&shared);
    pthread_mutexattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(&table_->mutex, &shared);
    pthread_mutexattr_destroy(&shared);
  }
  ~SharedStore() override { ::munmap(table_, sizeof(Table)); }

  void set(const std::string& key, const std::string& value) override {
    const Lock lock(table_->mutex);
    Entry& entry = find(key);
    CHECK(value.size() <= sizeof entry.value);
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
    explicit Lock(pthread_mutex_t& m) : mutex(m) { pthread_mutex_lock(&mutex); }
    ~Lock() { pthread_mutex_unlock(&mutex); }
    pthread_mutex_t& mutex;
  };

  Entry& find(const std::string& key) {
    CHECK(key.size() < sizeof(Entry::key));
    for (Entry& entry : table_->entries) {
      if (entry.key[0] == 0) std::strcpy(entry.key, key.c_str());
      if (key == entry.key) return entry;
    }
    fail(__FILE__, __LINE__, "the store is full");
  }

  Table* table_;
};

// One process a rank. Returns when all have ended; `signal` is how rank 1 must have.
void on_processes(int ranks, const std::function<void(int)>& call, int signal = 0) {
  std::vector<pid_t> pids;
  for (int rank = 0; rank < ranks; ++rank) {
    pids.push_back(::fork());
    CHECK(pids.back() >= 0);
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

Geometry small() {
  Geometry g;
  for (int p = 0; p < kProtocols; ++p) g.slot_bytes[p] = 1024;
  return g;
}

// A rank with memory and an engine over it.
struct Rank {
  cpu::ShmTransport transport{cpu::segment_bytes(small())};
  Neighbours neighbours;
  std::unique_ptr<cpu::Engine> engine;

  Rank(Store& store, const std::string& prefix, const Place& place) {
    Joiner joiner{store, prefix, place};
    joiner.make_offer = [&] { return transport.offer(); };
    Segments segments{transport.mine()};
    joiner.map = [&](const Offer& next, const Offer& prev) {
      segments.next = transport.map(next, place.next);
      segments.prev = transport.map(prev, place.prev);
    };
    neighbours = joiner.join();
    engine = std::make_unique<cpu::Engine>(segments, small(), place.rank, place.size,
                                           std::chrono::seconds(20));
  }
};

void processes_reduce(int ranks) {
  SharedStore store;
  on_processes(ranks, [&](int rank) {
    const Place place = place_of(rank, ranks);
    Rank r(store, unique_prefix(store, "group", place), place);
    for (int call = 0; call < 300; ++call) {
      std::vector<int32_t> data(size_t(call * 7), rank + call);
      Task task;
      task.protocol = Protocol(call % kProtocols);
      task.reduction = Reduction::of(Op::sum, DType::i32, ranks);
      task.in = task.out = data.data();
      task.count = int64_t(data.size());
      r.engine->run(task);
      for (const int32_t x : data) CHECK_EQ(x, ranks * (ranks - 1) / 2 + ranks * call);
    }
  });
}

void a_rank_that_dies_while_it_joins_is_named() {
  SharedStore store;
  on_processes(3, [&](int rank) {
    Joiner joiner{store, "ring", place_of(rank, 3)};
    if (rank == 1)
      joiner.make_offer = []() -> Offer {
        ::raise(SIGKILL);
        return {};
      };
    try {
      joiner.join();
      fail(__FILE__, __LINE__, "a ring with a dead rank");
    } catch (const Error& e) {
      const std::string text = e.what();  // by how far it had come
      CHECK(text.find("cannot connect to rank 1 (pid ") != std::string::npos ||
            text.find("cannot greet rank 1: ") != std::string::npos ||
            text.find("rank 1 ended before it answered rank 0") != std::string::npos);
    }
  }, SIGKILL);
}

void the_death_of_a_neighbour_is_the_end_of_file() {
  SharedStore store;
  on_processes(3, [&](int rank) {
    Rank r(store, "ring", place_of(rank, 3));
    if (rank == 1) ::raise(SIGKILL);
    const Neighbour& dead = rank == 0 ? r.neighbours.next : r.neighbours.prev;
    CHECK_EQ(dead.rank, 1);
    pollfd watched{dead.socket.get(), POLLIN, 0};
    CHECK(readable({&watched, 1}, Milliseconds(20000)));
    Message message;
    CHECK(receive_message(dead.socket, message) == Received::closed);
  }, SIGKILL);
}

}  // namespace

int main() {
  const int fds = open_files();
  for (int ranks = 2; ranks <= 4; ++ranks) processes_reduce(ranks);
  a_rank_that_dies_while_it_joins_is_named();
  the_death_of_a_neighbour_is_the_end_of_file();
  CHECK_EQ(open_files(), fds);
}
