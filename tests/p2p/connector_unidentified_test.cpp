// Unidentified peers, other users and mistaken ranks that connect to a connector or answer one.
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <system_error>

#include "p2p/party.h"

using namespace ringkern;
using namespace ringkern::test;

namespace {

Received receive_from(const Fd& socket, Message& message) {
  pollfd watched{socket.get(), POLLIN, 0};
  REQUIRE(readable({&watched, 1}, kLong));
  return receive_message(socket, message);
}

// Runs in rounds, so that a descriptor leaked in one round is not mistaken for a permanent one.
AROUND_EACH_CASE(run) {
  for (int round = 0; round < 3; ++round) {
    const int fds = open_files();
    run();
    CHECK_EQ(open_files(), fds);
  }
}

// The test plays rank 1 and answers anything.
TEST_CASE("a peer's answer is checked") {
  const auto play = [](const std::function<void(const Fd&, const Address&, Hello)>& answer,
                       const std::string& text) {
    const auto store = new_store();
    Party zero(store, 0, 2);
    const Address address = forged_address(*store, [](Address&) {});
    const Fd listener = listen_on(socket_name(address.socket));
    zero.connector->connect_to_peer(1);
    pollfd watched{listener.get(), POLLIN, 0};
    REQUIRE(readable({&watched, 1}, kLong));
    Fd socket = std::move(*accept_from(listener));
    Message greeting;
    CHECK(receive_from(socket, greeting) == Received::message);
    CHECK(is_greeting(greeting.bytes, address.session));
    CHECK_EQ(greeting.fds.size(), size_t(1));
    answer(socket, address, my_hello(some_terms(), address.session, 2, 1, 0));
    socket = Fd();
    CHECK_CONTAINS(zero.lost(1), text);
    CHECK(!zero.met(1));
  };
  play([](const Fd&, const Address&, Hello) {},
       "PeerLostError rank 1 ended before it answered rank 0. Look for the first error in the "
       "logs of the ranks");
  play([](const Fd& s, const Address&, Hello) { send_message(s, "what?"); },
       "RendezvousError the greeting of rank 1 does not belong");
  play(
      [](const Fd& s, const Address&, Hello h) {
        h.session[0] ^= 1;
        send_message(s, to_bytes(h));
      },
      "RendezvousError the greeting of rank 1 does not belong");
  play(
      [](const Fd& s, const Address&, Hello h) {
        h.from = 5;
        send_message(s, to_bytes(h));
      },
      "RendezvousError received a greeting of rank 5 to rank 0, expected one of rank 1");
  play(
      [](const Fd& s, const Address&, Hello h) {
        h.offer_bytes = 10;
        send_message(s, to_bytes(h) + "no memory\n");
      },
      "SharedMemoryError no memory ");
  play([](const Fd& s, const Address&, Hello h) { send_with_too_many_fds(s, to_bytes(h)); },
       "RendezvousError the greeting of rank 1 did not arrive whole");
}

// Two ranks that connect to each other meet twice, and one may end before the second time. Its
// message at the first meeting still counts. The test plays rank 1.
TEST_CASE("a second meeting that fails is no loss") {
  for (const bool answers : {false, true}) {
    const auto store = new_store();
    Party zero(store, 0, 2);
    const Address address = forged_address(*store, [](Address&) {});
    std::optional<Fd> listener(listen_on(socket_name(address.socket)));
    const Fd file(::eventfd(101, EFD_CLOEXEC | EFD_NONBLOCK));
    Hello hello = my_hello(some_terms(), address.session, 2, 1, 0);
    const std::string offer = "from 1";
    hello.offer_bytes = uint32_t(offer.size());
    const auto accept = [&] {
      pollfd watched{listener->get(), POLLIN, 0};
      REQUIRE(readable({&watched, 1}, kLong));
      return std::move(*accept_from(*listener));
    };
    zero.connector->connect_to_peer(1);
    const Fd first = accept();
    Message greeting;
    CHECK(receive_from(first, greeting) == Received::message);
    send_message(first, to_bytes(hello) + offer, std::array{file.get()});
    zero.wait_met(1);
    zero.connector->connect_to_peer(1);
    if (answers) accept();  // hangs up
    else listener.reset();
    std::this_thread::sleep_for(Milliseconds(50));
    send_message(first, to_bytes(aborted_by(1, "enough")));
    CHECK_EQ(zero.told(1), std::string("aborted by rank 1: enough"));
    zero.check_nothing_lost();
    ::shutdown(first.get(), SHUT_RDWR);
    CHECK_EQ(zero.lost(1), std::string("gone"));
  }
}

// None of these meets the rank or does harm; the last is a real rank.
TEST_CASE("unidentified peers are disconnected and harm nobody") {
  const auto store = new_store();
  Party zero(store, 0, 3);
  const Address address = address_of(*store, 0, 3);
  const Hello good = my_hello(some_terms(), address.session, 3, 1, 0);
  const auto changed = [&](const std::function<void(Hello&)>& change) {
    Hello hello = good;
    change(hello);
    return to_bytes(hello);
  };
  const std::string sent[] = {"hello",
                              std::string(1, '\0'),
                              std::string(kMaxMessage, 'x'),
                              std::string(kMaxMessage + 1, 'x'),
                              to_bytes(good).substr(0, 20),
                              changed([](Hello& h) { h.session[3] ^= 4; }),
                              changed([](Hello& h) { h.magic = 1; }),
                              changed([](Hello& h) { h.from = 0; }),
                              changed([](Hello& h) { h.from = 3; }),
                              changed([](Hello& h) { h.from = -1; }),
                              changed([](Hello& h) { h.from = 1 << 30; })};
  std::vector<Fd> silent;
  for (int i = 0; i < 10; ++i) silent.push_back(connect_silently(store, 0, 3));
  for (const std::string& bytes : sent) {
    const Fd socket = connect_silently(store, 0, 3);
    send_message(socket, bytes);
    Message answer;
    CHECK(receive_from(socket, answer) == Received::closed);
  }
  // Enough connections that the first are dropped.
  for (int i = 0; i < 20; ++i) silent.push_back(connect_silently(store, 0, 3));
  Message nothing;
  CHECK(receive_from(silent[0], nothing) == Received::closed);
  CHECK(receive_message(silent.back(), nothing) == Received::nothing_yet);
  Party two(store, 2, 3);
  two.connector->connect_to_peer(0);
  two.wait_met(0);
  zero.check_nothing_lost();
  CHECK(!zero.met(1));
}

// A well-formed greeting that brings no memory, or too much, is answered with the reason.
TEST_CASE("an incomplete greeting is answered with the reason") {
  const auto store = new_store();
  Party zero(store, 0, 3, some_terms(), nullptr, [](int) { throw TransportError("no memory"); });
  const Address address = address_of(*store, 0, 3);
  const Fd socket = connect_silently(store, 0, 3);
  send_message(socket, to_bytes(my_hello(some_terms(), address.session, 3, 1, 0)));
  Message answer;
  CHECK(receive_from(socket, answer) == Received::message);
  CHECK(answer.fds.empty());
  CHECK_CONTAINS(answer.bytes, "rank 0 cannot exchange messages with rank 1: no memory");
  CHECK_EQ(zero.lost(1), std::string("TransportError no memory"));

  const Fd two_files = connect_silently(store, 0, 3);
  send_with_too_many_fds(two_files, to_bytes(my_hello(some_terms(), address.session, 3, 2, 0)));
  CHECK(receive_from(two_files, answer) == Received::message);
  CHECK_CONTAINS(answer.bytes, "the greeting of rank 2 did not arrive whole");
  CHECK_CONTAINS(zero.lost(2), "the greeting of rank 2 did not arrive whole");
}

// Runs as another user in a child, whose exit status is the verdict.
pid_t as_another_user(const std::function<void()>& f) {
  const pid_t pid = ::fork();
  REQUIRE(pid >= 0);
  if (pid == 0) {
    ::alarm(30);
    CHECK(::setgid(65534) == 0 && ::setuid(65534) == 0);
    f();
    ::_exit(0);
  }
  return pid;
}

TEST_CASE("other users are sent away") {
  if (::geteuid() != 0) {
    std::puts("another user: only root can become one, left out");
    return;
  }
  const auto store = new_store();
  Party zero(store, 0, 2);
  const Address address = address_of(*store, 0, 2);
  const pid_t visitor = as_another_user([&] {
    const Fd socket = connect_silently(store, 0, 2);
    try {
      send_message(socket, to_bytes(my_hello(some_terms(), address.session, 2, 1, 0)));
    } catch (const std::system_error&) {
      return;  // it has hung up already
    }
    Message answer;
    CHECK(receive_from(socket, answer) == Received::closed);
  });
  int status = -1;
  CHECK_EQ(::waitpid(visitor, &status, 0), visitor);
  CHECK_EQ(status, 0);
  zero.check_nothing_lost();

  const Address forged = forged_address(*store, [](Address&) {});
  const Fd listens(::eventfd(0, EFD_CLOEXEC));
  const pid_t host = as_another_user([&] {
    const Fd listener = listen_on(socket_name(forged.socket));
    CHECK(::eventfd_write(listens.get(), 1) == 0);
    ::pause();
  });
  eventfd_t count;
  CHECK(::eventfd_read(listens.get(), &count) == 0);
  zero.connector->connect_to_peer(1);
  CHECK_CONTAINS(zero.lost(1), "TransportError rank 0 runs as user 0, rank 1 (pid ");
  CHECK_CONTAINS(zero.lost(1),
                 ") as user 65534: memory is shared between processes of one user "
                 "only; start all ranks as the same user");
  ::kill(host, SIGKILL);
  CHECK_EQ(::waitpid(host, &status, 0), host);
}

// A connector without a free descriptor for a peer tells it so, and does not retry forever.
TEST_CASE("a connector without descriptors tells its peers") {
#if !defined(__SANITIZE_ADDRESS__)  // opens pipes to look at an exception
  const auto store = new_store();
  Party zero(store, 0, 2);
  const Fd go(::eventfd(0, EFD_CLOEXEC));
  const pid_t visitor = ::fork();
  REQUIRE(visitor >= 0);
  if (visitor == 0) {
    ::alarm(30);
    eventfd_t count;
    CHECK(::eventfd_read(go.get(), &count) == 0);
    const Fd socket = connect_silently(store, 0, 2);
    ::pause();
  }
  rlimit limit;
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &limit) == 0);
  const int next = ::dup(0);
  ::close(next);
  const rlimit none{rlim_t(next), limit.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  CHECK(::eventfd_write(go.get(), 1) == 0);
  const std::string text = zero.told(0);
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &limit) == 0);
  CHECK_CONTAINS(text, "rank 0 cannot be reached by others any more: accept4: Too many open files");
  CHECK_THROWS(std::system_error, "Connection refused", connect_silently(store, 0, 2));
  ::kill(visitor, SIGKILL);
  CHECK_EQ(::waitpid(visitor, nullptr, 0), visitor);
#endif
}

}  // namespace
