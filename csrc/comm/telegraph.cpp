#include "comm/telegraph.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <system_error>
#include <utility>

#include "comm/telegraph_clerk.h"

namespace ringkern {
namespace {

// From one look to the next: while a wait goes on, while somebody waits for an answer, and after
// the store has thrown.
constexpr Milliseconds kFirstPause{100}, kLongestPause{1000}, kQuick{50}, kAfterThrow{200};
// A word is announced before it is there, and its rank may die in between: so long the first is
// waited for, and any.
constexpr Milliseconds kFirstComes{500}, kAnyComes{2000};
constexpr Milliseconds kEnough{10};     // how often a caller is asked whether it is
constexpr Milliseconds kAnswers{1000};  // a store that takes no longer does answer
constexpr Milliseconds kLeaves{900};    // and a thread that takes longer to end is left behind
constexpr Milliseconds kLongest = std::chrono::hours(24 * 365);  // from now, it is a time_point
constexpr Milliseconds kLong{100};                               // a call that is watched
constexpr Milliseconds kIdle{1000};  // without a call, after which the thread takes no more looks
constexpr int64_t kMostWords = 8;    // that are looked for

// One counter for both, so that one question tells whether there is anything new.
constexpr int64_t kOneWord = 1, kOneRoll = int64_t(1) << 32;

// An answer to a roll call; these are counted from 1.
struct Answer {
  int64_t roll = 0;
  CallsAt where;
};

}  // namespace

// ---- what others ask for ------------------------------------------------------------------------

bool Telegraph::Clerk::start() {
  if (thread_.joinable()) return true;
  if (leaving_) return false;  // and nobody would wait for its end
  try {
    thread_ = std::thread([self = shared_from_this()] { self->work(); });
    return true;
  } catch (const std::system_error&) {
    return false;  // no thread can be had: as if the store did not answer
  }
}

void Telegraph::Clerk::hurry() {
  pause_ = kFirstPause;
  next_look_ = Clock::now();
  wanted_.notify_one();
}

void Telegraph::Clerk::leave() {
  std::unique_lock lock(mutex_);
  leaving_ = true;
  hears_ = nullptr;
  if (!thread_.joinable()) return;
  wanted_.notify_one();
  if (!changed_.wait_for(lock, kLeaves, [this] { return left_; })) return thread_.detach();
  lock.unlock();
  thread_.join();
}

void Telegraph::Clerk::watch(const CallAt& call) {
  std::lock_guard lock(mutex_);
  where_.begin(call);
  if (std::exchange(watching_, true)) return;
  start();
  hurry();
}

void Telegraph::Clerk::rest() {
  std::lock_guard lock(mutex_);
  watching_ = false;
}

void Telegraph::Clerk::begin_call(const CallAt& call) {
  std::lock_guard lock(mutex_);
  where_.begin(call);
  in_call_ = true;
  listen_from_now_on();
}

void Telegraph::Clerk::listen_more() {
  std::lock_guard lock(mutex_);
  listen_from_now_on();
}

void Telegraph::Clerk::listen_from_now_on() {
  if (listeners_++ > 0) return;
  began_ = Clock::now();
  pause_ = kFirstPause;
  next_look_ = began_ + kLong;
  if (!thread_.joinable()) start();
  else if (idle_) wanted_.notify_one();
}

void Telegraph::Clerk::end_call() {
  std::lock_guard lock(mutex_);
  in_call_ = false;
  --listeners_;
}

void Telegraph::Clerk::listen_less() {
  std::lock_guard lock(mutex_);
  --listeners_;
}

std::optional<Fault> Telegraph::Clerk::heard() const {
  if (!has_heard_.load(std::memory_order_acquire)) return {};
  return heard_;
}

void Telegraph::Clerk::await(std::unique_lock<std::mutex>& lock, Milliseconds patience,
                             const std::function<bool()>& done,
                             const std::function<bool()>& enough) {
  if (has_heard_ || !start()) return;
  ++waiting_;
  hurry();
  const auto over = [&] { return has_heard_ || done(); };
  const auto end = Clock::now() + std::min(patience, kLongest);
  for (bool is = over(); !is && Clock::now() < end;) {
    is = changed_.wait_until(lock, std::min(end, Clock::now() + (enough ? kEnough : kLongest)),
                             over);
    if (is || !enough) continue;
    lock.unlock();  // it may ask a store, or tell something here, or throw
    std::exception_ptr thrown;
    try {
      is = enough();
    } catch (...) {
      thrown = std::current_exception();
    }
    lock.lock();
    if (thrown) {
      --waiting_;
      std::rethrow_exception(thrown);
    }
  }
  --waiting_;
}

Fault Telegraph::Clerk::tell(Fault mine, Milliseconds patience) {
  std::unique_lock lock(mutex_);
  if (!has_heard_ && !mine_) mine_ = mine;
  await(lock, patience, [] { return false; });
  return heard().value_or(std::move(mine));
}

std::optional<Fault> Telegraph::Clerk::hear(Milliseconds patience) {
  std::unique_lock lock(mutex_);
  await(lock, patience, [] { return false; });
  return heard();
}

Telegraph::Clerk::Places Telegraph::Clerk::call_roll(Milliseconds patience,
                                                     const std::function<bool()>& enough) {
  patience = std::min(patience, kLongest);
  std::unique_lock lock(mutex_);
  if (!roll_) {  // or another thread calls it just now
    const auto end = Clock::now() + patience;
    roll_ = std::make_shared<Roll>(Roll{end - patience / 4, end, enough != nullptr});
    roll_->places.resize(size_t(hosts_.ranks()));
  }
  const std::shared_ptr<Roll> roll = roll_;
  await(lock, patience, [&] { return roll->over; }, enough);
  if (roll_ == roll) roll_ = nullptr;
  Places places = roll->places;
  if (watching_ || in_call_) places[size_t(hosts_.rank())] = where_;
  return places;
}

bool Telegraph::Clerk::store_answers() const { return store_.in_vain_for() <= kAnswers; }

// ---- the thread ---------------------------------------------------------------------------------

void Telegraph::Clerk::work() {
  ::pthread_setname_np(::pthread_self(), "ringkern-words");
  std::unique_lock lock(mutex_);
  while (!leaving_ || mine_) {  // what is to be told goes out first, if it can at once
    if (!needed()) {
      idle(lock);
      continue;
    }
    if (!leaving_ && Clock::now() < next_look_) {
      wanted_.wait_until(lock, next_look_);
      continue;
    }
    const bool last = leaving_;
    bool threw = false;
    lock.unlock();
    try {
      send();
      if (!last) listen(), answer(), collect();
    } catch (const std::exception&) {
      threw = true;  // it is asked again
    }
    lock.lock();
    if (last) break;
    next_look_ = Clock::now() + pause(threw);
  }
  left_ = true;
  changed_.notify_all();
}

bool Telegraph::Clerk::listens() const {
  return watching_ || (listeners_ > 0 && Clock::now() - began_ >= kLong);
}

// While calls are made one may become long, of which nobody tells the thread.
void Telegraph::Clerk::idle(std::unique_lock<std::mutex>& lock) {
  if (listeners_ > 0 || Clock::now() - began_ < kIdle) {
    wanted_.wait_for(lock, kLong);
    return;
  }
  idle_ = true;
  wanted_.wait(lock, [this] { return leaving_ || listeners_ > 0 || needed(); });
  idle_ = false;
}

Milliseconds Telegraph::Clerk::pause(bool threw) {
  const Milliseconds pause = waiting_ > 0 ? kQuick : pause_;
  pause_ = std::min(pause_ * 5 / 4, kLongestPause);
  return threw ? std::max(pause, kAfterThrow) : pause;
}

void Telegraph::Clerk::take(Fault first) {
  first.given = 1;
  heard_ = std::move(first);
  has_heard_.store(true, std::memory_order_release);
  mine_.reset();
  changed_.notify_all();
  if (hears_) hears_(*heard_);
}

// Announced first: the numbers say who was first, whoever writes quicker.
void Telegraph::Clerk::send() {
  std::optional<Fault> mine;
  {
    std::lock_guard lock(mutex_);
    mine = mine_;
  }
  if (!mine) return;
  const std::string word = to_bytes(*mine);
  if (word_ == 0) word_ = store_.add(key("bell"), kOneWord) % kOneRoll;
  if (!written_) store_.set(key("word", word_), word);
  written_ = true;
  std::lock_guard lock(mutex_);
  mine_.reset();
  if (word_ == 1) take(fault_in(word));  // a slow store is not asked for it
}

void Telegraph::Clerk::listen() {
  const int64_t bell = store_.add(key("bell"), 0);
  if (bell <= 0) return;
  rolls_ = bell / kOneRoll;
  if (const int64_t told = bell % kOneRoll; told > 0 && !has_heard_) find_word(told);
}

// The first counts; where it does not come, the first that does.
void Telegraph::Clerk::find_word(int64_t told) {
  if (!announced_) announced_ = Clock::now();
  const auto waited = Clock::now() - *announced_;
  const int64_t words = waited < kFirstComes ? 1 : std::min(told, kMostWords);
  std::optional<Fault> first;
  for (int64_t n = 1; n <= words && !first; ++n)
    if (const auto word = store_.find(key("word", n))) first = fault_in(*word);
  if (!first && waited < kAnyComes) return;
  if (!first) first = fault_of(Event::unsaid, -1);
  std::lock_guard lock(mutex_);
  take(*std::move(first));
}

// Its ranks are of this group, whoever has written it.
Fault Telegraph::Clerk::fault_in(const std::string& word) const {
  Fault f = read_fault(word);
  for (int32_t* const rank : {&f.rank, &f.reporter})
    if (*rank >= hosts_.ranks()) *rank = -1;
  return f;
}

void Telegraph::Clerk::answer() {
  Answer mine{rolls_, {}};
  {
    std::lock_guard lock(mutex_);
    if (!(watching_ || in_call_) || rolls_ == answered_) return;
    mine.where = where_;
  }
  store_.set(key("at", hosts_.rank()), to_bytes(mine));
  store_.add(key("answers"), 1);
  answered_ = mine.roll;
}

void Telegraph::Clerk::collect() {
  std::shared_ptr<Roll> roll;
  {
    std::lock_guard lock(mutex_);
    roll = roll_;
  }
  if (roll == nullptr || roll->over) return;
  if (roll->number == 0) roll->number = store_.add(key("bell"), kOneRoll) / kOneRoll;
  const bool last = Clock::now() >= roll->last_sweep;
  const int64_t answers = store_.add(key("answers"), 0);
  if (answers == roll->answers && !last) return;
  sweep(*roll, false);
  bool all = true;
  for (int host = 0; host < hosts_.count(); ++host)
    all = all && (host == hosts_.host() || some_have(*roll, host));
  if (all || last || roll->of_all) sweep(*roll, true);
  for (int rank = 0; rank < hosts_.ranks() && roll->of_all; ++rank)
    all = all && (rank == hosts_.rank() || roll->places[size_t(rank)]);
  if (!all && !last) {
    roll->answers = answers;  // not before: a sweep that the store has ended is made again
    return;
  }
  std::lock_guard lock(mutex_);
  roll->over = true;
  changed_.notify_all();
}

bool Telegraph::Clerk::some_have(const Roll& roll, int host) const {
  return std::ranges::any_of(hosts_.ranks_on(host),
                             [&](int rank) { return roll.places[size_t(rank)].has_value(); });
}

// Looks for answers on hosts where no rank has answered, or on the others, which can wait: with
// many ranks, it takes long.
void Telegraph::Clerk::sweep(Roll& roll, bool where_some_have) {
  for (int host = 0; host < hosts_.count(); ++host) {
    if (some_have(roll, host) != where_some_have) continue;
    for (const int rank : hosts_.ranks_on(host)) {
      if (roll.places[size_t(rank)]) continue;
      if (Clock::now() >= roll.end || has_heard_) return;
      const auto word = store_.find(key("at", rank));
      const auto answer = word ? from_bytes<Answer>(*word) : std::nullopt;
      if (!answer || answer->roll < roll.number) continue;  // a later one's will do
      std::lock_guard lock(mutex_);
      roll.places[size_t(rank)] = answer->where;
    }
  }
}

// ---- the telegraph ------------------------------------------------------------------------------

Telegraph::Telegraph(std::function<std::shared_ptr<Store>()> connect, std::string prefix,
                     const Hosts& hosts, std::function<void(const Fault&)> hears)
    : clerk_(
          std::make_shared<Clerk>(std::move(connect), std::move(prefix), hosts, std::move(hears))),
      born_in_(int(::getpid())) {}

Telegraph::~Telegraph() {
  if (int(::getpid()) == born_in_) clerk_->leave();
  else (void)new std::shared_ptr<Clerk>(std::move(clerk_));  // its thread and lock are the parent's
}

void Telegraph::watch(const CallAt& call) { clerk_->watch(call); }
void Telegraph::rest() { clerk_->rest(); }
Telegraph::Listening::Listening(const Telegraph& to, const CallAt& call)
    : clerk_(to.clerk_), born_in_(to.born_in_), in_call_(true) {
  clerk_->begin_call(call);
}
Telegraph::Listening::Listening(const Telegraph& to)
    : clerk_(to.clerk_), born_in_(to.born_in_), in_call_(false) {
  clerk_->listen_more();
}
Telegraph::Listening::~Listening() {
  if (int(::getpid()) != born_in_) return;
  if (in_call_) clerk_->end_call();
  else clerk_->listen_less();
}
std::optional<Fault> Telegraph::Listening::heard() const { return clerk_->heard(); }
Fault Telegraph::Listening::tell(Fault mine, Milliseconds patience) const {
  return clerk_->tell(std::move(mine), patience);
}
std::optional<Fault> Telegraph::Listening::hear(Milliseconds patience) const {
  return clerk_->hear(patience);
}
std::optional<Fault> Telegraph::heard() const { return clerk_->heard(); }
Fault Telegraph::tell(Fault mine, Milliseconds patience) {
  return clerk_->tell(std::move(mine), patience);
}
std::optional<Fault> Telegraph::hear(Milliseconds patience) { return clerk_->hear(patience); }
std::vector<std::optional<CallsAt>> Telegraph::call_roll(Milliseconds patience,
                                                         const std::function<bool()>& enough) {
  return clerk_->call_roll(patience, enough);
}
bool Telegraph::store_answers() const { return clerk_->store_answers(); }

}  // namespace ringkern
