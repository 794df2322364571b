#include "p2p/connector.h"

#include <sys/socket.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <system_error>
#include <utility>

#include "comm/agreement.h"
#include "comm/rendezvous.h"
#include "fault/render.h"

namespace ringkern {
namespace {

// Maximum number of unidentified connections beyond one per rank; the oldest is closed for a new
// one.
constexpr size_t kMaxUnidentified = 16;
constexpr Milliseconds kLongestPause{100};
// For keys that were set: a store that takes longer to return one has failed.
constexpr Milliseconds kStoreAnswers{10000};

static_assert(sizeof(Fault) + sizeof(Fault) / 64 + 8 <= kMaxMessage, "it goes in one message");

// A forked child may hold a copy of the descriptor, and closing alone would leave the socket open.
void shut_down(const Fd& socket) { ::shutdown(socket.get(), SHUT_RDWR); }

}  // namespace

Connector::Connector(std::shared_ptr<Store> store, const std::string& name, int rank, int ranks,
                     const Terms& terms, PeerCalls calls, RankNames names)
    : store_(std::move(store)), rank_(rank), ranks_(ranks), names_(std::move(names)), terms_(terms),
      calls_(std::move(calls)), address_(my_address(terms, random_id())),
      prefix_(unique_prefix(*store_, name, {rank, ranks})),
      listener_(listen_on(socket_name(address_.socket))), bell_(make_bell()) {
  store_->set(key("address", rank_), to_bytes(address_));
  // Peers poll this counter: a wait for a key would block the store for others.
  store_->add(key("present", rank_), 1);
  thread_ = std::thread([this] { work(); });
}

Connector::~Connector() {
  {
    std::lock_guard lock(mutex_);
    requests_.leave = true;
  }
  ring_bell(bell_);
  thread_.join();
  shut_down(listener_);
  for (const Connection& connection : connections_) shut_down(connection.socket);
}

std::string Connector::key(const char* what, int rank) const {
  return prefix_ + "/" + what + "/" + std::to_string(rank);
}

Fault Connector::fault(Event event, const std::string& what, int peer) const {
  Fault f = fault_of(event, names_.number(rank_), names_.number(peer));
  f.evidence = printable(what);
  return f;
}

void Connector::connect_to_peer(int peer) {
  {
    std::lock_guard lock(mutex_);
    requests_.peers.push_back(peer);
  }
  ring_bell(bell_);
}

void Connector::tell_all(const Fault& why) {
  {
    std::lock_guard lock(mutex_);
    if (!requests_.fault) requests_.fault = why;
  }
  ring_bell(bell_);
}

void Connector::work() {
  for (;;) {
    std::vector<pollfd> watched{{bell_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
    for (const Connection& connection : connections_)
      watched.push_back({connection.socket.get(), POLLIN, 0});
    try {
      readable(watched, until_next_attempt());
      if (!take_requests()) return;
      for (size_t i = watched.size() - 2; i-- > 0;)
        if (watched[i + 2].revents != 0 && !receive(connections_[i]))
          connections_.erase(connections_.begin() + ptrdiff_t(i));
      if (watched[1].revents != 0) accept_connections();
    } catch (const std::system_error& e) {
      shut_down(listener_);
      listener_ = Fd();  // otherwise it would stay readable for ever
      calls_.told(rank_, fault(Event::unreachable, e.what()));
    }
    const auto now = Clock::now();
    std::erase_if(pending_, [&](PendingConnect& e) { return e.next <= now && run(e); });
  }
}

// Returns false when the thread is to end.
bool Connector::take_requests() {
  silence_bell(bell_);
  Requests requests;
  {
    std::lock_guard lock(mutex_);
    std::swap(requests.peers, requests_.peers);
    requests.fault = requests_.fault;
    requests.leave = requests_.leave;
  }
  for (const int peer : requests.peers) pending_.push_back({peer, {}, Milliseconds(1), {}});
  if (!fault_ && requests.fault) {
    fault_ = requests.fault;
    for (const Connection& connection : connections_) tell(connection);
  }
  return !requests.leave;
}

// Reports this rank's fault. A rank that has been asked reads the greeting first, and has met this
// one by then.
void Connector::tell(const Connection& connection) const {
  if (connection.stage != Connection::Stage::unidentified && fault_) say(connection, *fault_);
}

void Connector::say(const Connection& connection, const Fault& why) const {
  try {
    send_message(connection.socket, to_bytes(why));
  } catch (const std::system_error&) {
    // It has gone already.
  }
}

void Connector::accept_connections() {
  while (auto socket = accept_from(listener_)) {
    if (peer_uid(*socket) != own_uid()) continue;
    const auto unidentified = [](const Connection& l) {
      return l.stage == Connection::Stage::unidentified;
    };
    if (size_t(std::count_if(connections_.begin(), connections_.end(), unidentified)) >=
        kMaxUnidentified + size_t(ranks_))
      connections_.erase(std::find_if(connections_.begin(), connections_.end(), unidentified));
    connections_.push_back({Connection::Stage::unidentified, std::move(*socket)});
  }
}

// Returns true if the connection is kept.
bool Connector::receive(Connection& connection) {
  try {
    Message message;
    const Received received = receive_message(connection.socket, message);
    if (received == Received::nothing_yet) return true;
    switch (connection.stage) {
      case Connection::Stage::unidentified:
        return received != Received::closed &&
               greeted(connection, received == Received::message, message);
      case Connection::Stage::asked: answered(connection, received, message); return true;
      case Connection::Stage::met:
        if (received == Received::closed) calls_.lost(connection.peer, nullptr);
        else calls_.told(connection.peer, read_fault(message.bytes));
        return received != Received::closed;
    }
  } catch (const PeerLostError&) {
    ended(connection.peer, &connection);
  } catch (const std::exception& e) {
    if (connection.peer < 0) {  // sent data cannot throw here: this rank is deaf
      calls_.told(rank_, fault(Event::deaf, e.what()));
      return false;
    }
    calls_.lost(connection.peer, std::current_exception());
    // The peer may believe that it has met this rank: an end of file alone would give no reason.
    if (connection.stage != Connection::Stage::unidentified)
      say(connection, fault(Event::cannot_exchange, e.what(), connection.peer));
  }
  return false;
}

// Reports that a peer has ended before it was met over this connection, or before there was one. If
// there is another connection, that one reports the end, and may have the peer's last fault.
void Connector::ended(int peer, const Connection* over) const {
  const auto tells = [&](const Connection& l) {
    return &l != over && l.peer == peer && l.stage != Connection::Stage::unidentified;
  };
  if (std::none_of(connections_.begin(), connections_.end(), tells))
    calls_.lost(peer, std::current_exception());
}

// Returns true if the other end is a rank of this group. A rank that cannot be connected is told
// why.
bool Connector::greeted(Connection& connection, bool whole, Message& message) {
  if (!is_greeting(message.bytes, address_.session)) return false;
  Hello hello{};
  std::memcpy(&hello, message.bytes.data(), std::min(message.bytes.size(), sizeof hello));
  if (hello.from < 0 || hello.from >= ranks_ || hello.from == rank_) return false;
  connection.peer = hello.from;
  connection.session = address_.session;
  Offer mine;
  try {
    const Greeting greeting =
        read_greeting(message.bytes, my_hello_to(connection), connection.peer, names_);
    if (!whole) throw RendezvousError(not_whole(connection.peer, rank_, names_));
    mine = calls_.make_offer(connection.peer);
    message.bytes = greeting.offer;
    calls_.map(connection.peer, offer_in(message));
  } catch (const std::exception& e) {
    const std::string why = text_of(fault(Event::cannot_exchange, e.what(), connection.peer));
    calls_.lost(connection.peer, std::current_exception());
    greet(connection, {why});
    return false;
  }
  greet(connection, mine);
  connection.stage = Connection::Stage::met;
  tell(connection);
  return true;
}

void Connector::answered(Connection& connection, Received received, Message& message) {
  const std::string name = names_.text(connection.peer);
  if (received == Received::closed)
    throw PeerLostError(name + " ended before it answered " + names_.text(rank_) +
                            ". Look for the first error in the logs of the ranks",
                        {names_.number(connection.peer)});
  const Greeting greeting =
      read_greeting(message.bytes, my_hello_to(connection), connection.peer, names_);
  if (received == Received::broken)
    throw RendezvousError(not_whole(connection.peer, rank_, names_));
  if (message.fds.empty()) throw SharedMemoryError(printable(greeting.offer));
  message.bytes = greeting.offer;
  calls_.map(connection.peer, offer_in(message));
  connection.stage = Connection::Stage::met;
}

Hello Connector::my_hello_to(const Connection& connection) const {
  return my_hello(terms_, connection.session, ranks_, rank_, connection.peer);
}

void Connector::greet(const Connection& connection, const Offer& offer) const {
  Hello hello = my_hello_to(connection);
  hello.offer_bytes = uint32_t(offer.bytes.size());
  try {
    send_message(connection.socket, to_bytes(hello) + offer.bytes, offer.fds);
  } catch (const std::system_error& e) {
    throw PeerLostError(names_.text(rank_) + " cannot greet " + names_.text(connection.peer) +
                            ": " + e.what() + ". That process has ended or left the group",
                        {names_.number(connection.peer)});
  }
}

// Continues without waiting; returns true when nothing is left to do.
bool Connector::run(PendingConnect& pending) {
  const int peer = pending.peer;
  try {
    pending.next = Clock::now() + pending.pause;
    pending.pause = std::min(pending.pause * 3 / 2 + Milliseconds(1), kLongestPause);
    if (!pending.address) {
      if (store_->add(key("present", peer), 0) == 0) return false;
      pending.address = read_address(store_->get(key("address", peer), kStoreAnswers), peer,
                                     address_, rank_, names_);
      check_reachable(address_, rank_, *pending.address, peer, names_);
    }
    const std::string name =
        names_.text(peer) + " (pid " + std::to_string(pending.address->pid) + ")";
    std::optional<Fd> socket;
    try {
      socket = connect_to(socket_name(pending.address->socket));
    } catch (const std::system_error& e) {
      const std::string text = names_.text(rank_) + " cannot connect to " + name + ": " + e.what() +
                               ". Either that process has ended or left the group, or the two are "
                               "in different network namespaces (docker: --network=host)";
      if (e.code() == std::errc::connection_refused)
        throw PeerLostError(text, {names_.number(peer)});
      throw TransportError(text);
    }
    if (!socket) return false;
    check_same_user(*socket, names_.text(rank_), name);
    Connection connection{Connection::Stage::asked, std::move(*socket), peer,
                          pending.address->session};
    greet(connection, calls_.make_offer(peer));
    tell(connection);
    connections_.push_back(std::move(connection));
  } catch (const PeerLostError&) {
    ended(peer, nullptr);
  } catch (const std::exception&) {
    calls_.lost(peer, std::current_exception());
  }
  return true;
}

// Returns the timeout for poll(); -1: there is none.
Milliseconds Connector::until_next_attempt() const {
  if (pending_.empty()) return Milliseconds(-1);
  auto next = Clock::time_point::max();
  for (const PendingConnect& e : pending_) next = std::min(next, e.next);
  return std::max(Milliseconds(0), std::chrono::ceil<Milliseconds>(next - Clock::now()));
}

}  // namespace ringkern
