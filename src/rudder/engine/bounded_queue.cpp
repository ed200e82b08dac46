#include "rudder/engine/bounded_queue.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "rudder/base/check.h"
#include "rudder/base/mutants.h"

namespace rudder::engine {

namespace {

// Where the queue is as long as deadlines let it be, every wait is about as long as the deadline:
// without a margin half of those that are accepted would miss it.
constexpr int64_t kMarginOf = 8;  // an eighth

}  // namespace

PlaceAsk place_ask(const Request& request) {
  const RequestParams& params = request.params();
  return {.tokens = request.prompt_tokens(),
          .tenant = params.tenant,
          .priority = params.priority,
          .max_wait_us = static_cast<int64_t>(std::ceil(double{params.timeout} * 1e6))};
}

BoundedQueue::Place& BoundedQueue::Place::operator=(Place&& other) noexcept {
  release();
  owner_ = std::exchange(other.owner_, nullptr);
  priority_ = other.priority_;
  request_ = other.request_;
  tokens_ = other.tokens_;
  return *this;
}

BoundedQueue::Place::~Place() {
  if (!RUDDER_MUTANT(kPlaceNotReleased)) release();
}

void BoundedQueue::Place::release() {
  give_back(nullptr);
}

void BoundedQueue::Place::start(int64_t now_us) {
  give_back(&now_us);
}

void BoundedQueue::Place::give_back(const int64_t* started_us) {
  if (owner_ == nullptr) return;
  std::lock_guard lock(owner_->mutex_);
  const auto found = owner_->waiting_.find({priority_, request_});
  if (found != owner_->waiting_.end()) {
    if (started_us != nullptr) owner_->rate_.note_started({1, tokens_}, *started_us);
    owner_->count(found->first, found->second, -1);
    owner_->waiting_.erase(found);
  } else if (RUDDER_MUTANT(kPlaceReleasedTwice)) {
    owner_->load_.requests -= 1;
    owner_->load_.tokens -= tokens_;
  }
  if (!RUDDER_MUTANT(kPlaceReleasedTwice)) owner_ = nullptr;
}

bool BoundedQueue::Place::is_held() const {
  if (owner_ == nullptr) return false;
  std::lock_guard lock(owner_->mutex_);
  return owner_->waiting_.contains({priority_, request_});
}

void BoundedQueue::count(const Rank& rank, const Waiting& waiting, int sign) {
  std::map<int32_t, QueueLoad>& of_tenant = loads_[waiting.tenant];
  QueueLoad& own = of_tenant[rank.priority];
  for (QueueLoad* load : {&own, &load_}) {
    load->requests += sign;
    load->tokens += sign * waiting.tokens;
  }
  if (own.requests == 0) of_tenant.erase(rank.priority);
  if (of_tenant.empty()) loads_.erase(waiting.tenant);
}

bool BoundedQueue::fits(const QueueLoad& load, int64_t tokens) const {
  return load.requests + 1 <= max_requests_ && load.tokens + tokens <= max_tokens_;
}

// What would be left if all of lower priority were displaced.
QueueLoad BoundedQueue::without_lower(const PlaceAsk& ask) const {
  QueueLoad left;
  for (const auto& [tenant, by_priority] : loads_) {
    for (const auto& [priority, load] : by_priority) {
      if (priority > ask.priority) break;
      left.requests += load.requests;
      left.tokens += load.tokens;
    }
  }
  return left;
}

// What runs before it: of its own tenant what is not of lower priority; of each other tenant as
// much as of its own until it has begun, since they take turns.
QueueLoad BoundedQueue::ahead_of(const PlaceAsk& ask) const {
  QueueLoad own;
  if (const auto of_tenant = loads_.find(ask.tenant); of_tenant != loads_.end()) {
    for (const auto& [priority, load] : of_tenant->second) {
      if (priority > ask.priority) break;
      own.requests += load.requests;
      own.tokens += load.tokens;
    }
  }
  const auto others = std::ssize(loads_) - (loads_.contains(ask.tenant) ? 1 : 0);
  return {std::min(load_.requests, own.requests * (1 + others) + others),
          std::min(load_.tokens, own.tokens * (1 + others) + ask.tokens * others)};
}

Result<void> BoundedQueue::check(const PlaceAsk& ask, int64_t now_us) const {
  if (!fits(without_lower(ask), ask.tokens)) {
    if (load_.requests + 1 > max_requests_) {
      return fail(ErrorCode::kOverloaded,
                  fmt::format("{} requests are waiting, the most allowed", load_.requests));
    }
    return fail(ErrorCode::kOverloaded,
                fmt::format("{} prompt tokens are waiting; {} more would pass the {} allowed",
                            load_.tokens, ask.tokens, max_tokens_));
  }
  if (ask.max_wait_us == 0 || waiting_.empty()) return {};
  const int64_t wait_us = rate_.time_for(ahead_of(ask), true, now_us);
  if (wait_us + wait_us / kMarginOf <= ask.max_wait_us) return {};
  return fail(
      ErrorCode::kOverloaded,
      fmt::format("the request would wait for about {:.1f} s, give or take an eighth; it may "
                  "wait for {:.1f} s",
                  static_cast<double>(wait_us) * 1e-6,
                  static_cast<double>(ask.max_wait_us) * 1e-6));
}

Result<BoundedQueue::Taken> BoundedQueue::take(const PlaceAsk& ask, RequestId id, int64_t now_us) {
  std::lock_guard lock(mutex_);
  if (RUDDER_MUTANT(kPlaceTakenOnReject)) load_.tokens += check(ask, now_us) ? 0 : ask.tokens;
  RUDDER_TRY_VOID(check(ask, now_us));
  Taken taken;
  while (!fits(load_, ask.tokens)) {
    RUDDER_CHECK(!waiting_.empty(), "an empty queue is full");
    const auto last = std::prev(waiting_.end());
    taken.displaced.emplace_back(last->first.request);
    count(last->first, last->second, -1);
    waiting_.erase(last);
  }
  if (waiting_.empty()) rate_.note_busy(now_us);
  const Rank rank{ask.priority, id.value};
  const Waiting waiting{ask.tokens, ask.tenant};
  waiting_.emplace(rank, waiting);
  count(rank, waiting, 1);
  taken.place = Place(this, ask.priority, id.value, ask.tokens);
  return taken;
}

Result<void> BoundedQueue::would_accept(const PlaceAsk& ask, int64_t now_us) const {
  std::lock_guard lock(mutex_);
  return check(ask, now_us);
}

QueueLoad BoundedQueue::load() const {
  std::lock_guard lock(mutex_);
  return load_;
}

int64_t BoundedQueue::expected_wait_us(int64_t now_us) const {
  std::lock_guard lock(mutex_);
  return rate_.time_for(load_, !waiting_.empty(), now_us);
}

}  // namespace rudder::engine
