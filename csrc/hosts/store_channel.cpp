#include "hosts/store_channel.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <system_error>
#include <utility>

#include "hosts/store_channel_worker.h"

namespace ringkern {
namespace {

// The pauses between two looks: while a wait goes on, while somebody waits for an answer, and after
// the store has thrown.
constexpr Milliseconds kFirstPause{100}, kLongestPause{1000}, kQuick{50}, kAfterThrow{200};
// A word is announced before it is there, and its rank may die in between. These are the times to
// wait for the first word, and for any word.
constexpr Milliseconds kFirstComes{500}, kAnyComes{2000};
constexpr Milliseconds kEnough{10};     // how often `enough` of a caller is asked
constexpr Milliseconds kAnswers{1000};  // a store that takes longer does not answer
constexpr Milliseconds kLeaves{900};    // a thread that takes longer to end is left behind
constexpr Milliseconds kLongest = std::chrono::hours(24 * 365);  // from now, it is a time_point
constexpr Milliseconds kLong{100};                               // a call that is watched
constexpr Milliseconds kIdle{1000};  // without calls for this long, the thread stops looking
constexpr int64_t kMostRecords = 8;  // records to look for

// One counter for both, so that one request tells whether there is anything new.
constexpr int64_t kOneRecord = 1, kOneQuery = int64_t(1) << 32;

// An answer to a query call. Queries are counted from 1.
struct Answer {
  int64_t query = 0;
  CallsAt where;
};

}  // namespace

// ---- requests of other threads -----------------------------------------------------------------

bool StoreChannel::Worker::start() {
  if (thread_.joinable()) return true;
  if (leaving_) return false;  // nobody would wait for its end
  try {
    thread_ = std::thread([self = shared_from_this()] { self->work(); });
    return true;
  } catch (const std::system_error&) {
    return false;  // no thread is available: the same as a store that does not answer
  }
}

void StoreChannel::Worker::hurry() {
  pause_ = kFirstPause;
  next_look_ = Clock::now();
  wanted_.notify_one();
}

void StoreChannel::Worker::leave() {
  std::unique_lock lock(mutex_);
  leaving_ = true;
  hears_ = nullptr;
  if (!thread_.joinable()) return;
  wanted_.notify_one();
  if (!changed_.wait_for(lock, kLeaves, [this] { return left_; })) return thread_.detach();
  lock.unlock();
  thread_.join();
}

void StoreChannel::Worker::watch(const CallAt& call) {
  std::lock_guard lock(mutex_);
  where_.begin(call);
  if (std::exchange(watching_, true)) return;
  start();
  hurry();
}

void StoreChannel::Worker::rest() {
  std::lock_guard lock(mutex_);
  watching_ = false;
}

void StoreChannel::Worker::begin_call(const CallAt& call) {
  std::lock_guard lock(mutex_);
  where_.begin(call);
  in_call_ = true;
  listen_from_now_on();
}

void StoreChannel::Worker::listen_more() {
  std::lock_guard lock(mutex_);
  listen_from_now_on();
}

void StoreChannel::Worker::listen_from_now_on() {
  if (listeners_++ > 0) return;
  began_ = Clock::now();
  pause_ = kFirstPause;
  next_look_ = began_ + kLong;
  if (!thread_.joinable()) start();
  else if (idle_) wanted_.notify_one();
}

void StoreChannel::Worker::end_call() {
  std::lock_guard lock(mutex_);
  in_call_ = false;
  --listeners_;
}

void StoreChannel::Worker::listen_less() {
  std::lock_guard lock(mutex_);
  --listeners_;
}

std::optional<Fault> StoreChannel::Worker::heard() const {
  if (!has_heard_.load(std::memory_order_acquire)) return {};
  return heard_;
}

void StoreChannel::Worker::await(std::unique_lock<std::mutex>& lock, Milliseconds patience,
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
    lock.unlock();  // it may ask a store, call this channel, or throw
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

Fault StoreChannel::Worker::tell(Fault mine, Milliseconds patience) {
  std::unique_lock lock(mutex_);
  if (!has_heard_ && !mine_) mine_ = mine;
  await(lock, patience, [] { return false; });
  return heard().value_or(std::move(mine));
}

std::optional<Fault> StoreChannel::Worker::hear(Milliseconds patience) {
  std::unique_lock lock(mutex_);
  await(lock, patience, [] { return false; });
  return heard();
}

StoreChannel::Worker::Places StoreChannel::Worker::query_status(
    Milliseconds patience, const std::function<bool()>& enough) {
  patience = std::min(patience, kLongest);
  std::unique_lock lock(mutex_);
  if (!query_) {  // else another thread already calls it
    const auto end = Clock::now() + patience;
    query_ = std::make_shared<Query>(Query{end - patience / 4, end, enough != nullptr});
    query_->places.resize(size_t(hosts_.ranks()));
  }
  const std::shared_ptr<Query> query = query_;
  await(lock, patience, [&] { return query->over; }, enough);
  if (query_ == query) query_ = nullptr;
  Places places = query->places;
  if (watching_ || in_call_) places[size_t(hosts_.rank())] = where_;
  return places;
}

bool StoreChannel::Worker::store_answers() const { return store_.in_vain_for() <= kAnswers; }

// ---- the thread ---------------------------------------------------------------------------------

void StoreChannel::Worker::work() {
  ::pthread_setname_np(::pthread_self(), "ringkern-store");
  std::unique_lock lock(mutex_);
  while (!leaving_ || mine_) {  // a fault to be told goes out first, if that is possible at once
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
      threw = true;  // the next look asks again
    }
    lock.lock();
    if (last) break;
    next_look_ = Clock::now() + pause(threw);
  }
  left_ = true;
  changed_.notify_all();
}

bool StoreChannel::Worker::listens() const {
  return watching_ || (listeners_ > 0 && Clock::now() - began_ >= kLong);
}

// Looks at intervals while calls are made: nobody wakes the thread when one becomes long.
void StoreChannel::Worker::idle(std::unique_lock<std::mutex>& lock) {
  if (listeners_ > 0 || Clock::now() - began_ < kIdle) {
    wanted_.wait_for(lock, kLong);
    return;
  }
  idle_ = true;
  wanted_.wait(lock, [this] { return leaving_ || listeners_ > 0 || needed(); });
  idle_ = false;
}

Milliseconds StoreChannel::Worker::pause(bool threw) {
  const Milliseconds pause = waiting_ > 0 ? kQuick : pause_;
  pause_ = std::min(pause_ * 5 / 4, kLongestPause);
  return threw ? std::max(pause, kAfterThrow) : pause;
}

void StoreChannel::Worker::take(Fault first) {
  first.from_outside = 1;
  heard_ = std::move(first);
  has_heard_.store(true, std::memory_order_release);
  mine_.reset();
  changed_.notify_all();
  if (hears_) hears_(*heard_);
}

// Takes a number before it writes the record: the numbers decide who was first, and not the speed
// of writing.
void StoreChannel::Worker::send() {
  std::optional<Fault> mine;
  {
    std::lock_guard lock(mutex_);
    mine = mine_;
  }
  if (!mine) return;
  const std::string record = to_bytes(*mine);
  if (number_ == 0) number_ = store_.add(key("counter"), kOneRecord) % kOneQuery;
  if (!written_) store_.set(key("record", number_), record);
  written_ = true;
  std::lock_guard lock(mutex_);
  mine_.reset();
  if (number_ == 1) take(fault_in(record));  // does not ask a slow store for it
}

void StoreChannel::Worker::listen() {
  const int64_t counter = store_.add(key("counter"), 0);
  if (counter <= 0) return;
  queries_ = counter / kOneQuery;
  if (const int64_t told = counter % kOneQuery; told > 0 && !has_heard_) find_record(told);
}

// Takes the first record; if that does not come, the first one that does.
void StoreChannel::Worker::find_record(int64_t told) {
  if (!announced_) announced_ = Clock::now();
  const auto waited = Clock::now() - *announced_;
  const int64_t records = waited < kFirstComes ? 1 : std::min(told, kMostRecords);
  std::optional<Fault> first;
  for (int64_t n = 1; n <= records && !first; ++n)
    if (const auto record = store_.find(key("record", n))) first = fault_in(*record);
  if (!first && waited < kAnyComes) return;
  if (!first) first = fault_of(Event::unsaid, -1);
  std::lock_guard lock(mutex_);
  take(*std::move(first));
}

// Limits the ranks to this group, because anybody may have written the record.
Fault StoreChannel::Worker::fault_in(const std::string& record) const {
  Fault f = read_fault(record);
  for (int32_t* const rank : {&f.rank, &f.reporter})
    if (*rank >= hosts_.ranks()) *rank = -1;
  return f;
}

void StoreChannel::Worker::answer() {
  Answer mine{queries_, {}};
  {
    std::lock_guard lock(mutex_);
    if (!(watching_ || in_call_) || queries_ == answered_) return;
    mine.where = where_;
  }
  store_.set(key("at", hosts_.rank()), to_bytes(mine));
  store_.add(key("answers"), 1);
  answered_ = mine.query;
}

void StoreChannel::Worker::collect() {
  std::shared_ptr<Query> query;
  {
    std::lock_guard lock(mutex_);
    query = query_;
  }
  if (query == nullptr || query->over) return;
  if (query->number == 0) query->number = store_.add(key("counter"), kOneQuery) / kOneQuery;
  const bool last = Clock::now() >= query->last_sweep;
  const int64_t answers = store_.add(key("answers"), 0);
  if (answers == query->answers && !last) return;
  sweep(*query, false);
  bool all = true;
  for (int host = 0; host < hosts_.count(); ++host)
    all = all && (host == hosts_.host() || some_have(*query, host));
  if (all || last || query->of_all) sweep(*query, true);
  for (int rank = 0; rank < hosts_.ranks() && query->of_all; ++rank)
    all = all && (rank == hosts_.rank() || query->places[size_t(rank)]);
  if (!all && !last) {
    query->answers = answers;  // only now: a sweep that the store has ended is repeated
    return;
  }
  std::lock_guard lock(mutex_);
  query->over = true;
  changed_.notify_all();
}

bool StoreChannel::Worker::some_have(const Query& query, int host) const {
  return std::ranges::any_of(hosts_.ranks_on(host),
                             [&](int rank) { return query.places[size_t(rank)].has_value(); });
}

// Looks for answers on hosts where no rank has answered, or on the other hosts. The latter can
// wait, because it takes long with many ranks.
void StoreChannel::Worker::sweep(Query& query, bool where_some_have) {
  for (int host = 0; host < hosts_.count(); ++host) {
    if (some_have(query, host) != where_some_have) continue;
    for (const int rank : hosts_.ranks_on(host)) {
      if (query.places[size_t(rank)]) continue;
      if (Clock::now() >= query.end || has_heard_) return;
      const auto record = store_.find(key("at", rank));
      const auto answer = record ? from_bytes<Answer>(*record) : std::nullopt;
      if (!answer || answer->query < query.number) continue;  // the answer to a later query will do
      std::lock_guard lock(mutex_);
      query.places[size_t(rank)] = answer->where;
    }
  }
}

// ---- the channel ------------------------------------------------------------------------------

StoreChannel::StoreChannel(std::function<std::shared_ptr<Store>()> connect, std::string prefix,
                           const Hosts& hosts, std::function<void(const Fault&)> hears)
    : worker_(
          std::make_shared<Worker>(std::move(connect), std::move(prefix), hosts, std::move(hears))),
      born_in_(int(::getpid())) {}

StoreChannel::~StoreChannel() {
  if (int(::getpid()) == born_in_) worker_->leave();
  else (void)new std::shared_ptr<Worker>(std::move(worker_));  // thread and lock are the parent's
}

void StoreChannel::watch(const CallAt& call) { worker_->watch(call); }
void StoreChannel::rest() { worker_->rest(); }
StoreChannel::Listening::Listening(const StoreChannel& to, const CallAt& call)
    : worker_(to.worker_), born_in_(to.born_in_), in_call_(true) {
  worker_->begin_call(call);
}
StoreChannel::Listening::Listening(const StoreChannel& to)
    : worker_(to.worker_), born_in_(to.born_in_), in_call_(false) {
  worker_->listen_more();
}
StoreChannel::Listening::~Listening() {
  if (int(::getpid()) != born_in_) return;
  if (in_call_) worker_->end_call();
  else worker_->listen_less();
}
std::optional<Fault> StoreChannel::Listening::heard() const { return worker_->heard(); }
Fault StoreChannel::Listening::tell(Fault mine, Milliseconds patience) const {
  return worker_->tell(std::move(mine), patience);
}
std::optional<Fault> StoreChannel::Listening::hear(Milliseconds patience) const {
  return worker_->hear(patience);
}
std::optional<Fault> StoreChannel::heard() const { return worker_->heard(); }
Fault StoreChannel::tell(Fault mine, Milliseconds patience) {
  return worker_->tell(std::move(mine), patience);
}
std::optional<Fault> StoreChannel::hear(Milliseconds patience) { return worker_->hear(patience); }
std::vector<std::optional<CallsAt>> StoreChannel::query_status(
    Milliseconds patience, const std::function<bool()>& enough) {
  return worker_->query_status(patience, enough);
}
bool StoreChannel::store_answers() const { return worker_->store_answers(); }

}  // namespace ringkern
