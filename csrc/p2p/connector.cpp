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

// Strangers whose greeting is awaited, beyond one of each rank; the oldest makes room.
constexpr size_t kMaxUnidentified = 16;
constexpr Milliseconds kLongestPause{100};
// What has been set is there; a store that takes longer is in trouble.
constexpr Milliseconds kStoreAnswers{10000};

static_assert(sizeof(Fault) + sizeof(Fault) / 64 + 8 <= kMaxMessage, "it goes in one message");

// A forked child may hold a copy of the descriptor, and closing alone would leave the socket open.
void hang_up(const Fd& socket) { ::shutdown(socket.get(), SHUT_RDWR); }

}  // namespace

Connector::Connector(std::shared_ptr<Store> store, const std::string& name, int rank, int ranks,
                     const Terms& terms, PeerCalls calls, RankNames names)
    : store_(std::move(store)), rank_(rank), ranks_(ranks), names_(std::move(names)), terms_(terms),
      calls_(std::move(calls)), address_(my_address(terms, random_id())),
      prefix_(unique_prefix(*store_, name, {rank, ranks})),
      listener_(listen_on(socket_name(address_.socket))), bell_(make_bell()) {
  store_->set(key("address", rank_), to_bytes(address_));
  // Peers look at this counter, because to wait for a key would keep others from the store.
  store_->add(key("present", rank_), 1);
  thread_ = std::thread([this] { work(); });
}

Connector::~Connector() {
  {
    std::lock_guard lock(mutex_);
    orders_.leave = true;
  }
  ring_bell(bell_);
  thread_.join();
  hang_up(listener_);
  for (const Line& line : lines_) hang_up(line.socket);
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
    orders_.peers.push_back(peer);
  }
  ring_bell(bell_);
}

void Connector::tell_all(const Fault& why) {
  {
    std::lock_guard lock(mutex_);
    if (!orders_.word) orders_.word = why;
  }
  ring_bell(bell_);
}

void Connector::work() {
  for (;;) {
    std::vector<pollfd> watched{{bell_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
    for (const Line& line : lines_) watched.push_back({line.socket.get(), POLLIN, 0});
    try {
      readable(watched, until_next_attempt());
      if (!take_orders()) return;
      for (size_t i = watched.size() - 2; i-- > 0;)
        if (watched[i + 2].revents != 0 && !hear(lines_[i]))
          lines_.erase(lines_.begin() + ptrdiff_t(i));
      if (watched[1].revents != 0) accept_connections();
    } catch (const std::system_error& e) {
      hang_up(listener_);
      listener_ = Fd();  // or it would be readable for ever
      calls_.told(rank_, fault(Event::unreachable, e.what()));
    }
    const auto now = Clock::now();
    std::erase_if(pending_, [&](PendingConnect& e) { return e.next <= now && run(e); });
  }
}

// False when it is time to leave.
bool Connector::take_orders() {
  silence_bell(bell_);
  Orders orders;
  {
    std::lock_guard lock(mutex_);
    std::swap(orders.peers, orders_.peers);
    orders.word = orders_.word;
    orders.leave = orders_.leave;
  }
  for (const int peer : orders.peers) pending_.push_back({peer, {}, Milliseconds(1), {}});
  if (!word_ && orders.word) {
    word_ = orders.word;
    for (const Line& line : lines_) tell(line);
  }
  return !orders.leave;
}

// A rank that has been asked reads the greeting first, and has met this one by then.
void Connector::tell(const Line& line) const {
  if (line.stage != Line::Stage::stranger && word_) say(line, *word_);
}

void Connector::say(const Line& line, const Fault& why) const {
  try {
    send_message(line.socket, to_bytes(why));
  } catch (const std::system_error&) {
    // It has gone already.
  }
}

void Connector::accept_connections() {
  while (auto socket = accept_from(listener_)) {
    if (peer_uid(*socket) != own_uid()) continue;
    const auto strange = [](const Line& l) { return l.stage == Line::Stage::stranger; };
    if (size_t(std::count_if(lines_.begin(), lines_.end(), strange)) >=
        kMaxUnidentified + size_t(ranks_))
      lines_.erase(std::find_if(lines_.begin(), lines_.end(), strange));
    lines_.push_back({Line::Stage::stranger, std::move(*socket)});
  }
}

// Whether the line is to be kept.
bool Connector::hear(Line& line) {
  try {
    Message message;
    const Received received = receive_message(line.socket, message);
    if (received == Received::nothing_yet) return true;
    switch (line.stage) {
      case Line::Stage::stranger:
        return received != Received::closed &&
               greeted(line, received == Received::message, message);
      case Line::Stage::asked: answered(line, received, message); return true;
      case Line::Stage::met:
        if (received == Received::closed) calls_.lost(line.peer, nullptr);
        else calls_.told(line.peer, read_fault(message.bytes));
        return received != Received::closed;
    }
  } catch (const PeerLostError&) {
    ended(line.peer, &line);
  } catch (const std::exception& e) {
    if (line.peer < 0) {  // nothing that it has sent is an exception: this rank is deaf
      calls_.told(rank_, fault(Event::deaf, e.what()));
      return false;
    }
    calls_.lost(line.peer, std::current_exception());
    // The peer has met this rank, for all it knows: an end of file alone would not say why.
    if (line.stage != Line::Stage::stranger)
      say(line, fault(Event::cannot_exchange, e.what(), line.peer));
  }
  return false;
}

// A peer has ended before it was met over this line, or before there was one. Where there is
// another, that one tells how it ended, and may have its last word.
void Connector::ended(int peer, const Line* over) const {
  const auto tells = [&](const Line& l) {
    return &l != over && l.peer == peer && l.stage != Line::Stage::stranger;
  };
  if (std::none_of(lines_.begin(), lines_.end(), tells))
    calls_.lost(peer, std::current_exception());
}

// Whether it is a peer. One that cannot be met learns why.
bool Connector::greeted(Line& line, bool whole, Message& message) {
  if (!is_greeting(message.bytes, address_.session)) return false;
  Hello hello{};
  std::memcpy(&hello, message.bytes.data(), std::min(message.bytes.size(), sizeof hello));
  if (hello.from < 0 || hello.from >= ranks_ || hello.from == rank_) return false;
  line.peer = hello.from;
  line.session = address_.session;
  Offer mine;
  try {
    const Greeting greeting = read_greeting(message.bytes, my_hello_to(line), line.peer, names_);
    if (!whole) throw RendezvousError(not_whole(line.peer, rank_, names_));
    mine = calls_.make_offer(line.peer);
    message.bytes = greeting.offer;
    calls_.map(line.peer, offer_in(message));
  } catch (const std::exception& e) {
    const std::string why = text_of(fault(Event::cannot_exchange, e.what(), line.peer));
    calls_.lost(line.peer, std::current_exception());
    greet(line, {why});
    return false;
  }
  greet(line, mine);
  line.stage = Line::Stage::met;
  tell(line);
  return true;
}

void Connector::answered(Line& line, Received received, Message& message) {
  const std::string name = names_.text(line.peer);
  if (received == Received::closed)
    throw PeerLostError(name + " ended before it answered " + names_.text(rank_) +
                            ". Look for the first error in the logs of the ranks",
                        {names_.number(line.peer)});
  const Greeting greeting = read_greeting(message.bytes, my_hello_to(line), line.peer, names_);
  if (received == Received::broken) throw RendezvousError(not_whole(line.peer, rank_, names_));
  if (message.fds.empty()) throw SharedMemoryError(printable(greeting.offer));
  message.bytes = greeting.offer;
  calls_.map(line.peer, offer_in(message));
  line.stage = Line::Stage::met;
}

Hello Connector::my_hello_to(const Line& line) const {
  return my_hello(terms_, line.session, ranks_, rank_, line.peer);
}

void Connector::greet(const Line& line, const Offer& offer) const {
  Hello hello = my_hello_to(line);
  hello.offer_bytes = uint32_t(offer.bytes.size());
  try {
    send_message(line.socket, to_bytes(hello) + offer.bytes, offer.fds);
  } catch (const std::system_error& e) {
    throw PeerLostError(names_.text(rank_) + " cannot greet " + names_.text(line.peer) + ": " +
                            e.what() + ". That process has ended or left the group",
                        {names_.number(line.peer)});
  }
}

// Goes as far as it can without waiting; whether that was all the way.
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
    Line line{Line::Stage::asked, std::move(*socket), peer, pending.address->session};
    greet(line, calls_.make_offer(peer));
    tell(line);
    lines_.push_back(std::move(line));
  } catch (const PeerLostError&) {
    ended(peer, nullptr);
  } catch (const std::exception&) {
    calls_.lost(peer, std::current_exception());
  }
  return true;
}

// For poll(): -1 where there is none.
Milliseconds Connector::until_next_attempt() const {
  if (pending_.empty()) return Milliseconds(-1);
  auto next = Clock::time_point::max();
  for (const PendingConnect& e : pending_) next = std::min(next, e.next);
  return std::max(Milliseconds(0), std::chrono::ceil<Milliseconds>(next - Clock::now()));
}

}  // namespace ringkern
