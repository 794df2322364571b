#include "comm/doorman.h"

#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <condition_variable>
#include <cstring>
#include <set>

#include "comm/ring_of_threads.h"

using namespace ringkern;
using namespace ringkern::test;

namespace {

constexpr Milliseconds kLong{20000};

std::string text_of(std::exception_ptr error) {
  if (!error) return "gone";
  try {
    std::rethrow_exception(error);
  } catch (const SharedMemoryError& e) {
    return std::string("SharedMemoryError ") + e.what();
  } catch (const TransportError& e) {
    return std::string("TransportError ") + e.what();
  } catch (const RendezvousError& e) {
    return std::string("RendezvousError ") + e.what();
  } catch (const std::exception& e) {
    return e.what();
  }
}

// A rank that offers a file whose name has its number, and notes what it is told.
class Party {
 public:
  Party(std::shared_ptr<Store> store, int rank, int ranks, const Terms& terms = some_terms(),
        std::function<void(int)> before_offer = nullptr,
        std::function<void(int)> before_map = nullptr)
      : rank_(rank), file_(::eventfd(unsigned(100 + rank), EFD_CLOEXEC | EFD_NONBLOCK)) {
    PeerCalls calls;
    calls.make_offer = [this, before_offer](int peer) {
      if (before_offer) before_offer(peer);
      std::lock_guard lock(mutex_);
      offered_.insert(peer);
      return Offer{"from " + std::to_string(rank_), file_.get()};
    };
    calls.map = [this, before_map](int peer, const Offer& offer) {
      if (before_map) before_map(peer);
      std::lock_guard lock(mutex_);
      CHECK(offered_.count(peer) == 1);  // room first: the peer may write at once
      CHECK_EQ(offer.bytes, "from " + std::to_string(peer));
      CHECK_EQ(number_in(offer.fd), 100 + peer);
      met_.insert(peer);
      changed_.notify_all();
    };
    calls.lost = [this](int peer, std::exception_ptr why) {
      std::lock_guard lock(mutex_);
      lost_.emplace(peer, text_of(why));
      changed_.notify_all();
    };
    calls.told = [this](int peer, const std::string& reason) {
      std::lock_guard lock(mutex_);
      told_.emplace(peer, reason);
      changed_.notify_all();
    };
    doorman.emplace(store, "group", rank, ranks, terms, calls);
  }

  bool met(int peer) {
    std::lock_guard lock(mutex_);
    return met_.count(peer) > 0;
  }
  void wait_met(int peer) {
    wait([&] { return met_.count(peer) > 0; });
  }
  std::string lost(int peer) {
    wait([&] { return lost_.count(peer) > 0; });
    return lost_[peer];
  }
  std::string told(int peer) {
    wait([&] { return told_.count(peer) > 0; });
    return told_[peer];
  }
  void check_nothing_lost() {
    std::lock_guard lock(mutex_);
    for (const auto& [peer, why] : lost_) CHECK_EQ(why, std::string("gone"));
  }

 private:
  // Not taken out: a file is offered to all.
  static int number_in(int fd) {
    char path[64], line[128];
    std::snprintf(path, sizeof path, "/proc/self/fdinfo/%d", fd);
    FILE* info = std::fopen(path, "re");
    CHECK(info != nullptr);
    unsigned long long count = 0;
    while (std::fgets(line, sizeof line, info) != nullptr)
      std::sscanf(line, "eventfd-count: %llx", &count);
    std::fclose(info);
    return int(count);
  }
  template <class F>
  void wait(F&& ready) {
    std::unique_lock lock(mutex_);
    CHECK(changed_.wait_for(lock, kLong, ready));
  }

  const int rank_;
  const Fd file_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<int> offered_, met_;
  std::map<int, std::string> lost_, told_;

 public:
  std::optional<Doorman> doorman;  // last, so that it ends first
};

std::shared_ptr<MemoryStore> new_store() { return std::make_shared<MemoryStore>(); }

// ---- meeting ------------------------------------------------------------------------------------

void one_knocks_and_both_have_met() {
  const auto store = new_store();
  Party zero(store, 0, 3), one(store, 1, 3), two(store, 2, 3);
  zero.doorman->knock_at(1);
  zero.wait_met(1);
  one.wait_met(0);
  CHECK(!two.met(0) && !two.met(1) && !zero.met(2));
  for (Party* p : {&zero, &one, &two}) p->check_nothing_lost();
}

void all_knock_at_once(int ranks) {
  const auto store = new_store();
  std::vector<std::unique_ptr<Party>> parties;
  for (int r = 0; r < ranks; ++r) parties.push_back(std::make_unique<Party>(store, r, ranks));
  for (int r = 0; r < ranks; ++r)
    for (int to = 0; to < ranks; ++to)
      if (to != r) parties[size_t(r)]->doorman->knock_at(to);
  for (int r = 0; r < ranks; ++r)
    for (int to = 0; to < ranks; ++to)
      if (to != r) parties[size_t(r)]->wait_met(to);
  for (const auto& party : parties) party->check_nothing_lost();
}

void a_peer_may_come_late() {
  const auto store = new_store();
  Party zero(store, 0, 3), one(store, 1, 3);
  for (const int peer : {2, 1}) zero.doorman->knock_at(peer);
  zero.wait_met(1);  // who is there does not wait for who is not
  CHECK(!zero.met(2));
  Party two(store, 2, 3);
  zero.wait_met(2);
  two.wait_met(0);
  for (Party* p : {&zero, &one, &two}) p->check_nothing_lost();
}

void groups_of_one_name_do_not_mix() {
  const auto store = new_store();
  {
    Party zero(store, 0, 2);  // rank 1 of this group never comes
  }
  Party zero(store, 0, 2);
  Party one_of_the_first(store, 1, 2);
  one_of_the_first.doorman->knock_at(0);
  CHECK_CONTAINS(one_of_the_first.lost(0), "rank 1 cannot connect to rank 0 (pid ");
  Party one(store, 1, 2);
  zero.doorman->knock_at(1);
  zero.wait_met(1);
  CHECK(!one_of_the_first.met(0));
}

// ---- the end ------------------------------------------------------------------------------------

void the_end_of_a_peer_is_seen() {
  const auto store = new_store();
  Party zero(store, 0, 3), one(store, 1, 3), two(store, 2, 3);
  zero.doorman->knock_at(1);
  two.doorman->knock_at(0);
  zero.wait_met(1);
  zero.wait_met(2);
  one.doorman.reset();
  CHECK_EQ(zero.lost(1), std::string("gone"));
  two.doorman.reset();
  CHECK_EQ(zero.lost(2), std::string("gone"));
}

void who_has_left_cannot_be_met() {
  const auto store = new_store();
  Party zero(store, 0, 2);
  Party(store, 1, 2).doorman.reset();
  zero.doorman->knock_at(1);
  const std::string text = "TransportError rank 0 cannot connect to rank 1 (pid " +
                           std::to_string(::getpid()) + "): connect: Connection refused";
  CHECK_CONTAINS(zero.lost(1), text);
}

void all_are_told_the_reason() {
  const auto store = new_store();
  Party zero(store, 0, 4), one(store, 1, 4), two(store, 2, 4), three(store, 3, 4);
  zero.doorman->knock_at(1);
  two.doorman->knock_at(0);
  zero.wait_met(1);
  zero.wait_met(2);
  one.wait_met(0);
  two.wait_met(0);
  zero.doorman->tell_all("enough\n\x01");
  zero.doorman->tell_all("and again");
  CHECK_EQ(one.told(0), std::string("enough ?"));
  CHECK_EQ(two.told(0), std::string("enough ?"));
  three.doorman->knock_at(0);  // who comes later, too
  CHECK_EQ(three.told(0), std::string("enough ?"));
  zero.doorman.reset();
  CHECK_EQ(one.lost(0), std::string("gone"));
}

// ---- what goes wrong ----------------------------------------------------------------------------

void lack_of_memory_is_told_to_both(bool of_who_knocks) {
  const auto store = new_store();
  const auto fails = [](int) { throw SharedMemoryError("no room\nhere"); };
  Party zero(store, 0, 3, some_terms(), of_who_knocks ? fails : std::function<void(int)>());
  Party one(store, 1, 3, some_terms(), of_who_knocks ? std::function<void(int)>() : fails);
  zero.doorman->knock_at(1);
  if (of_who_knocks) {
    CHECK_EQ(zero.lost(1), std::string("SharedMemoryError no room\nhere"));
  } else {
    CHECK_EQ(zero.lost(1), std::string("SharedMemoryError rank 1 cannot exchange messages with "
                                       "rank 0: no room here"));
    CHECK_EQ(one.lost(0), std::string("SharedMemoryError no room\nhere"));
  }
  CHECK(!zero.met(1) && !one.met(0));
  Party two(store, 2, 3);  // the others are not concerned
  two.doorman->knock_at(of_who_knocks ? 1 : 0);
  two.wait_met(of_who_knocks ? 1 : 0);
}

void memory_that_is_refused_is_told(bool by_who_knocks) {
  const auto store = new_store();
  const auto refuses = [](int) { throw TransportError("refused"); };
  const std::function<void(int)> nothing;
  Party zero(store, 0, 2, some_terms(), nothing, by_who_knocks ? refuses : nothing);
  Party one(store, 1, 2, some_terms(), nothing, by_who_knocks ? nothing : refuses);
  zero.doorman->knock_at(1);
  if (by_who_knocks) {
    CHECK_EQ(zero.lost(1), std::string("TransportError refused"));
    CHECK_EQ(one.lost(0), std::string("gone"));
  } else {
    CHECK_CONTAINS(zero.lost(1), "rank 1 cannot exchange messages with rank 0: refused");
    CHECK_EQ(one.lost(0), std::string("TransportError refused"));
  }
}

void ranks_that_disagree_both_learn_of_it() {
  const auto store = new_store();
  Terms other = some_terms();
  other.geometry.slots = 4;
  Party zero(store, 0, 2), one(store, 1, 2, other);
  zero.doorman->knock_at(1);
  const std::string text = "RendezvousError rank 0 has slots 8, rank 1 has 4: all ranks";
  CHECK_CONTAINS(zero.lost(1), text);
  CHECK_CONTAINS(one.lost(0), text);
}

// What rank 1 of two would leave in the store, but for a change.
Address forged_address(Store& store, const std::function<void(Address&)>& change) {
  Address address = my_address(some_terms(), random_id());
  change(address);
  store.set("ringkern/group/2/0/address/1", to_bytes(address));
  store.add("ringkern/group/2/0/present/1", 1);
  return address;
}

void addresses_are_checked() {
  {
    const auto store = new_store();
    Party zero(store, 0, 2);
    forged_address(*store, [](Address& a) { std::strcpy(a.boot, "another"); });
    zero.doorman->knock_at(1);
    CHECK_CONTAINS(zero.lost(1), "TransportError rank 0 is on host ");
  }
  {
    const auto store = new_store();
    Party zero(store, 0, 2);
    forged_address(*store, [](Address& a) { a.version = 77; });
    zero.doorman->knock_at(1);
    CHECK_CONTAINS(zero.lost(1), "RendezvousError rank 0 has ringkern wire version");
  }
}

Fd knock(const std::string& name) {
  for (;;)
    if (auto socket = connect_to(name)) return std::move(*socket);
}

Received receive_from(const Fd& socket, Message& message) {
  pollfd watched{socket.get(), POLLIN, 0};
  CHECK(readable({&watched, 1}, kLong));
  return receive_message(socket, message);
}

// Rank 1 is played by the test, which answers whatever it likes.
void answers_are_checked() {
  const auto play = [](const std::function<void(const Fd&, const Address&, Hello)>& answer,
                       const std::string& text) {
    const auto store = new_store();
    Party zero(store, 0, 2);
    const Address address = forged_address(*store, [](Address&) {});
    const Fd listener = listen_on(socket_name(address.socket));
    zero.doorman->knock_at(1);
    pollfd watched{listener.get(), POLLIN, 0};
    CHECK(readable({&watched, 1}, kLong));
    Fd socket = std::move(*accept_from(listener));
    Message greeting;
    CHECK(receive_from(socket, greeting) == Received::message);
    CHECK(is_greeting(greeting.bytes, address.session));
    CHECK(greeting.fd);
    answer(socket, address, my_hello(some_terms(), address.session, 2, 1, 0));
    socket = Fd();
    CHECK_CONTAINS(zero.lost(1), text);
    CHECK(!zero.met(1));
  };
  play([](const Fd&, const Address&, Hello) {},
       "TransportError rank 1 ended before it answered rank 0");
  play([](const Fd& s, const Address&, Hello) { send_message(s, "what?", -1); },
       "RendezvousError the greeting of rank 1 does not belong");
  play([](const Fd& s, const Address&, Hello h) {
         h.session[0] ^= 1;
         send_message(s, to_bytes(h), -1);
       }, "RendezvousError the greeting of rank 1 does not belong");
  play([](const Fd& s, const Address&, Hello h) {
         h.from = 5;
         send_message(s, to_bytes(h), -1);
       }, "RendezvousError rank 5 takes rank 0");
  play([](const Fd& s, const Address&, Hello h) {
         h.offer_bytes = 10;
         send_message(s, to_bytes(h) + "no memory\n", -1);
       }, "SharedMemoryError no memory ");
}

// None of these is met, or does harm; the last is a real rank.
void strangers_are_sent_away() {
  const auto store = new_store();
  Party zero(store, 0, 3);
  const Address address = read_address(store->get("ringkern/group/3/0/address/0", kLong), 0,
                                       my_address(some_terms(), random_id()), 1);
  const Hello good = my_hello(some_terms(), address.session, 3, 1, 0);
  const std::string name = socket_name(address.socket);
  const auto changed = [&](const std::function<void(Hello&)>& change) {
    Hello hello = good;
    change(hello);
    return to_bytes(hello);
  };
  const std::string sent[] = {
      "hello", std::string(1, '\0'), std::string(kMaxMessage, 'x'),
      std::string(kMaxMessage + 1, 'x'), to_bytes(good).substr(0, 20),
      changed([](Hello& h) { h.session[3] ^= 4; }), changed([](Hello& h) { h.magic = 1; }),
      changed([](Hello& h) { h.from = 0; }), changed([](Hello& h) { h.from = 3; }),
      changed([](Hello& h) { h.from = -1; }), changed([](Hello& h) { h.from = 1 << 30; })};
  std::vector<Fd> silent;
  for (int i = 0; i < 10; ++i) silent.push_back(knock(name));
  for (const std::string& bytes : sent) {
    const Fd socket = knock(name);
    send_message(socket, bytes, -1);
    Message answer;
    CHECK(receive_from(socket, answer) == Received::closed);
  }
  // So many that the first make room.
  for (int i = 0; i < 20; ++i) silent.push_back(knock(name));
  Message nothing;
  CHECK(receive_from(silent[0], nothing) == Received::closed);
  CHECK(receive_message(silent.back(), nothing) == Received::nothing_yet);
  Party two(store, 2, 3);
  two.doorman->knock_at(0);
  two.wait_met(0);
  zero.check_nothing_lost();
  CHECK(!zero.met(1));
}

// A greeting in the right words that brings no memory, or too much, is answered with the reason.
void incomplete_greetings_are_answered() {
  const auto store = new_store();
  Party zero(store, 0, 3, some_terms(), nullptr, [](int) { throw TransportError("no memory"); });
  const Address address = read_address(store->get("ringkern/group/3/0/address/0", kLong), 0,
                                       my_address(some_terms(), random_id()), 1);
  const Fd socket = knock(socket_name(address.socket));
  send_message(socket, to_bytes(my_hello(some_terms(), address.session, 3, 1, 0)), -1);
  Message answer;
  CHECK(receive_from(socket, answer) == Received::message);
  CHECK(!answer.fd);
  CHECK_CONTAINS(answer.bytes, "rank 0 cannot exchange messages with rank 1: no memory");
  CHECK_EQ(zero.lost(1), std::string("TransportError no memory"));

  const Fd cut = knock(socket_name(address.socket));
  std::string longer = to_bytes(my_hello(some_terms(), address.session, 3, 2, 0));
  longer.resize(kMaxMessage + 10);
  send_message(cut, longer, -1);
  CHECK(receive_from(cut, answer) == Received::message);
  CHECK_CONTAINS(zero.lost(2), "RendezvousError the greeting of rank 2");
}

}  // namespace

int main() {
  for (int round = 0; round < 3; ++round) {
    const int fds = open_files();
    one_knocks_and_both_have_met();
    for (const int ranks : {2, 3, 8}) all_knock_at_once(ranks);
    a_peer_may_come_late();
    groups_of_one_name_do_not_mix();
    the_end_of_a_peer_is_seen();
    who_has_left_cannot_be_met();
    all_are_told_the_reason();
    for (const bool of_who_knocks : {false, true}) lack_of_memory_is_told_to_both(of_who_knocks);
    for (const bool by_who_knocks : {false, true}) memory_that_is_refused_is_told(by_who_knocks);
    ranks_that_disagree_both_learn_of_it();
    addresses_are_checked();
    answers_are_checked();
    strangers_are_sent_away();
    incomplete_greetings_are_answered();
    CHECK_EQ(open_files(), fds);
  }
}
