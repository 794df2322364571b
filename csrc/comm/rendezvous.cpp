#include "comm/rendezvous.h"

#include <algorithm>
#include <map>
#include <system_error>
#include <thread>
#include <vector>

#include "comm/agreement.h"
#include "fault/render.h"

namespace ringkern {
namespace {

// The most connections without a greeting; with more, the oldest is dropped.
constexpr size_t kMaxPending = 16;

constexpr Milliseconds kEndShows{200};

const char* const kSeeLogs = ". Look for the first error in the logs of the ranks";

// Returns the facts of an error in sending: a rank that closed its end before it voted has died.
Facts facts_of(const std::system_error& error, const Place& place, int rank) {
  const int code = error.code().value();
  return code == EPIPE || code == ECONNRESET ? Facts{place.names.number(rank)} : Facts{};
}

// The exchange of greetings and offers with both neighbours.
class Exchange {
 public:
  Exchange(Agreement& agreement, const Place& place, const Terms& terms)
      : agreement_(agreement), place_(place), terms_(terms) {
    agreement_.look_closer([this] { check_known_live(); });
  }

  void publish(const Fitting& fitting);
  void run(const Offer& mine);
  std::vector<Offer> offers() const;
  std::string word(const MakeWord& make_word);
  const Id& session() const { return session_; }
  Neighbours take();

 private:
  // The known facts about a neighbour. The socket stays open after an error, too: the neighbour
  // must see this rank's vote before the end of file, or it would blame this rank.
  struct Met {
    Fd socket;
    Hello hello{};
    Message offer;
  };

  std::string name_of(int rank) const { return place_.names.text(rank); }
  Address address_of(int rank);
  void check_known_live() const;
  void connect_next(const Address& next);
  void greet(const Met& to, int rank, const Offer& mine) const;
  void accept_prev();
  bool is_from_prev(size_t pending);
  void await_next();
  void pass_round();
  std::pair<Received, Message> await_message(const Fd& socket, int rank, const std::string& to_do);
  void take_greeting(Met& from, int rank, Received received, Message&& message) const;

  Agreement& agreement_;
  const Place place_;
  Terms terms_;
  Address address_{};
  Id session_{};
  Fd listener_;
  std::vector<Fd> pending_;
  std::map<int, Address> known_;  // the addresses read so far
  Met next_, prev_;
  std::vector<Message> others_;  // offers of the ranks behind prev, the nearest first
};

void Exchange::publish(const Fitting& fitting) {
  agreement_.arrive();
  if (fitting.room) terms_.room = fitting.room();
  address_ = my_address(terms_, random_id());
  listener_ = listen_on(socket_name(address_.socket));
  agreement_.set_note(to_bytes(address_));
  if (!fitting.terms) return;
  std::vector<DeviceRoom> rooms;
  for (int rank = 0; rank < place_.size; ++rank) rooms.push_back(room_in(address_of(rank)));
  terms_ = fitting.terms(rooms);
}

void Exchange::run(const Offer& mine) {
  const Address next = address_of(place_.next);
  address_of(place_.prev);
  session_ = address_of(0).session;
  connect_next(next);
  greet(next_, place_.next, mine);  // before accept_prev(), or all ranks would wait for a greeting
  accept_prev();
  greet(prev_, place_.prev, mine);
  await_next();
  pass_round();
}

Address Exchange::address_of(int rank) {
  if (const auto found = known_.find(rank); found != known_.end()) return found->second;
  const std::string bytes = agreement_.note_of(rank, "the address of " + name_of(rank));
  const Address address = read_address(bytes, rank, address_, place_.rank, place_.names);
  check_reachable(address_, place_.rank, address, rank, place_.names);
  return known_[rank] = address;
}

// Throws Lost if a known rank has died: before there is a connection, no end of file shows it.
void Exchange::check_known_live() const {
  for (const auto& [rank, address] : known_)
    if (has_ended(address_, address))
      throw Lost(name_of(rank) + " (pid " + std::to_string(address.pid) +
                     ") died while the ranks connected. See the log of that rank",
                 {place_.names.number(rank)});
}

void Exchange::connect_next(const Address& next) {
  const std::string name = name_of(place_.next) + " (pid " + std::to_string(next.pid) + ")";
  for (;;) {
    try {
      if (auto socket = connect_to(socket_name(next.socket))) {
        next_.socket = std::move(*socket);
        break;
      }
    } catch (const std::system_error& e) {
      // If that rank has given up or died, report that; a process may show its end late.
      for (const auto end = Clock::now() + kEndShows; Clock::now() < end;) {
        agreement_.look(name);
        std::this_thread::sleep_for(Milliseconds(5));
      }
      throw TransportError(name_of(place_.rank) + " cannot connect to " + name + ": " + e.what() +
                           ". Either that process has ended, or the two are in different network "
                           "namespaces (docker: --network=host, or one container for both)");
    }
    std::this_thread::sleep_for(std::min(agreement_.slice(), Milliseconds(10)));
    agreement_.look(name + " to accept a connection");
  }
  check_same_user(next_.socket, name_of(place_.rank), name);
}

void Exchange::greet(const Met& to, int rank, const Offer& mine) const {
  Hello hello = my_hello(terms_, session_, place_.size, place_.rank, rank);
  hello.offer_bytes = uint32_t(mine.bytes.size());
  const std::string bytes = to_bytes(hello) + mine.bytes;
  if (bytes.size() > kMaxMessage)
    throw TransportError("an offer of " + std::to_string(mine.bytes.size()) +
                         " bytes does not fit in a greeting of at most " +
                         std::to_string(kMaxMessage));
  try {
    send_message(to.socket, bytes, mine.fds);
  } catch (const std::system_error& e) {
    throw Lost(name_of(place_.rank) + " cannot greet " + name_of(rank) + ": " + e.what() + kSeeLogs,
               facts_of(e, place_, rank));
  }
}

// Unidentified peers may connect and send nothing, so all open connections are watched at once.
void Exchange::accept_prev() {
  const std::string what = name_of(place_.prev) + " to connect";
  for (;;) {
    std::vector<pollfd> watched{{listener_.get(), POLLIN, 0}};
    for (const Fd& fd : pending_) watched.push_back({fd.get(), POLLIN, 0});
    if (readable(watched, agreement_.slice()))
      for (size_t i = pending_.size(); i-- > 0;)
        if (watched[i + 1].revents != 0 && is_from_prev(i)) return;
    agreement_.look(what);  // also after unidentified peers: they must not delay it
    if (watched[0].revents == 0) continue;
    auto socket = accept_from(listener_);
    if (!socket) continue;
    if (pending_.size() == kMaxPending) pending_.erase(pending_.begin());
    pending_.push_back(std::move(*socket));  // first: it must not close before this rank's vote
    if (peer_uid(pending_.back()) != own_uid()) pending_.pop_back();
  }
}

// Returns whether prev has sent its greeting over the connection. Closes the connection if its peer
// is unidentified.
bool Exchange::is_from_prev(size_t i) {
  Message message;
  const Received received = receive_message(pending_[i], message);
  if (received == Received::nothing_yet) return false;
  const bool ours = is_greeting(message.bytes, session_);
  if (ours) prev_.socket = std::move(pending_[i]);
  pending_.erase(pending_.begin() + ptrdiff_t(i));
  if (ours) take_greeting(prev_, place_.prev, received, std::move(message));
  return ours;
}

void Exchange::await_next() {
  auto [received, message] = await_message(next_.socket, place_.next, "to answer");
  take_greeting(next_, place_.next, received, std::move(message));
}

// Gets the offers of ranks other than neighbours: each rank passes on the offers that it got from
// prev, round the ring, so that no rank connects to all.
void Exchange::pass_round() {
  const int back = place_.prev - place_.rank + place_.size;
  Offer last = offer_in(prev_.offer);
  int owner = place_.prev;
  for (int i = 3; i < place_.size; ++i) {
    try {
      send_message(next_.socket, passed_on(terms_, session_, owner, last.bytes), last.fds);
    } catch (const std::system_error& e) {
      throw Lost(name_of(place_.rank) + " cannot pass the offer of " + name_of(owner) + " to " +
                     name_of(place_.next) + ": " + e.what() + kSeeLogs,
                 facts_of(e, place_, place_.next));
    }
    owner = (owner + back) % place_.size;
    auto [received, message] =
        await_message(prev_.socket, place_.prev, "to pass the offer of " + name_of(owner));
    if (received == Received::broken)
      throw RendezvousError(not_whole(place_.prev, place_.rank, place_.names));
    const Hello mine = my_hello(terms_, session_, place_.size, place_.rank, place_.prev);
    message.bytes = read_passed_on(message.bytes, mine, owner, place_.prev, place_.names);
    others_.push_back(std::move(message));
    last = offer_in(others_.back());
  }
}

std::pair<Received, Message> Exchange::await_message(const Fd& socket, int rank,
                                                     const std::string& to_do) {
  const std::string name = name_of(rank);
  for (;;) {
    pollfd watched{socket.get(), POLLIN, 0};
    if (!readable({&watched, 1}, agreement_.slice())) {
      agreement_.look(name + " " + to_do);
      continue;
    }
    Message message;
    const Received received = receive_message(socket, message);
    if (received == Received::closed)
      throw Lost(name + " ended before it answered " + name_of(place_.rank) + kSeeLogs,
                 {place_.names.number(rank)});
    if (received != Received::nothing_yet) return {received, std::move(message)};
  }
}

void Exchange::take_greeting(Met& from, int rank, Received received, Message&& message) const {
  if (received == Received::broken)
    throw RendezvousError(not_whole(rank, place_.rank, place_.names));
  const Hello mine = my_hello(terms_, session_, place_.size, place_.rank, rank);
  Greeting greeting = read_greeting(message.bytes, mine, rank, place_.names);
  from.hello = greeting.hello;
  from.offer = std::move(message);
  from.offer.bytes = std::move(greeting.offer);
}

std::vector<Offer> Exchange::offers() const {
  std::vector<Offer> offers(size_t(place_.size));
  offers[size_t(place_.next)] = offer_in(next_.offer);
  offers[size_t(place_.prev)] = offer_in(prev_.offer);
  int owner = place_.prev;
  for (const Message& other : others_) {
    owner = (owner + place_.prev - place_.rank + place_.size) % place_.size;
    offers[size_t(owner)] = offer_in(other);
  }
  return offers;
}

std::string Exchange::word(const MakeWord& make_word) {
  if (place_.rank != 0) return agreement_.word();
  std::vector<std::string> buses;
  for (int rank = 0; rank < place_.size && !terms_.room.bus.empty(); ++rank)
    buses.push_back(room_in(address_of(rank)).bus);
  const std::string word = make_word(buses);
  agreement_.set_word(word);
  return word;
}

Neighbours Exchange::take() {
  return {{place_.next, next_.hello.pid, std::move(next_.socket)},
          {place_.prev, prev_.hello.pid, std::move(prev_.socket)}};
}

// Returns the fault with which this rank votes against the ring; `is_lost`: the named rank is lost.
Fault refusal(const Place& place, bool is_lost = false) {
  Fault f = fault_of(std::current_exception(), place.names.number(place.rank));
  if (!is_quoted(f.event)) return f;
  f.event = is_lost ? Event::lost_joining : Event::cannot_join;
  f.cause = cause_of(f.event);
  return f;
}

}  // namespace

Neighbours join_ring(
    Store& store, const std::string& prefix, const Place& place, const Terms& terms,
    Milliseconds timeout, const MakeWord& make_word, const std::function<Offer()>& make_offer,
    const std::function<void(const std::vector<Offer>& offers, const std::string& word)>& map,
    const Probe& probe, const Fitting& fitting) {
  if (place.size == 1) return {};
  Agreement agreement(store, prefix, place.rank, place.size, timeout, place.names);
  Exchange exchange(agreement, place, terms);
  try {
    exchange.publish(fitting);
    exchange.run(make_offer());
    map(exchange.offers(), exchange.word(make_word));
    if (probe)
      probe(exchange.session(),
            [&](const std::string& waiting_for) { agreement.look(waiting_for); });
    agreement.agree();
  } catch (const Lost& lost) {
    const auto reason = agreement.refuse(refusal(place, lost.facts.rank >= 0));
    if (reason && reason->cause == Cause::peer_lost) throw_fault(*reason);
    if (reason) throw RendezvousError(text_of(*reason), facts_of(*reason));
  } catch (const std::system_error& e) {
    agreement.refuse(refusal(place));
    throw TransportError(place.names.text(place.rank) + " cannot join the ring: " + e.what());
  } catch (...) {
    agreement.refuse(refusal(place));
    throw;
  }
  return exchange.take();
}

void check_same_user(const Fd& socket, const std::string& here, const std::string& name) {
  if (const uid_t theirs = peer_uid(socket), mine = own_uid(); theirs != mine)
    throw TransportError(here + " runs as user " + std::to_string(mine) + ", " + name +
                         " as user " + std::to_string(theirs) +
                         ": memory is shared between "
                         "processes of one user only; start all ranks as the same user, in one "
                         "user namespace");
}

std::string unique_prefix(Store& store, const std::string& name, const Place& place) {
  const std::string base = "ringkern/" + name + "/" + std::to_string(place.size);
  const int64_t calls = store.add(base + "/calls/" + std::to_string(place.rank), 1);
  return base + "/" + std::to_string(calls - 1);
}

}  // namespace ringkern
