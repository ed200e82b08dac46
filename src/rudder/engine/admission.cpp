#include "rudder/engine/admission.h"

#include <fmt/format.h>

#include "rudder/base/mutants.h"

namespace rudder::engine {

Admission::Place& Admission::Place::operator=(Place&& other) noexcept {
  release();
  owner_ = std::exchange(other.owner_, nullptr);
  tokens_ = other.tokens_;
  return *this;
}

Admission::Place::~Place() {
  if (!RUDDER_MUTANT(kPlaceNotReleased)) release();
}

void Admission::Place::release() {
  if (owner_ == nullptr) return;
  std::lock_guard lock(owner_->mutex_);
  owner_->load_.requests -= 1;
  owner_->load_.tokens -= tokens_;
  if (!RUDDER_MUTANT(kPlaceReleasedTwice)) owner_ = nullptr;
}

Result<void> Admission::check(int64_t tokens) const {
  if (load_.requests + 1 > max_requests_) {
    return fail(ErrorCode::kOverloaded,
                fmt::format("{} requests are waiting, the most allowed", load_.requests));
  }
  if (load_.tokens + tokens > max_tokens_) {
    return fail(ErrorCode::kOverloaded,
                fmt::format("{} prompt tokens are waiting; {} more would pass the {} allowed",
                            load_.tokens, tokens, max_tokens_));
  }
  return {};
}

Result<Admission::Place> Admission::take(int64_t tokens) {
  std::lock_guard lock(mutex_);
  if (RUDDER_MUTANT(kPlaceTakenOnReject)) load_.tokens += check(tokens) ? 0 : tokens;
  RUDDER_TRY_VOID(check(tokens));
  load_.requests += 1;
  load_.tokens += tokens;
  return Place(this, tokens);
}

Result<void> Admission::would_accept(int64_t tokens) const {
  std::lock_guard lock(mutex_);
  return check(tokens);
}

Admission::Load Admission::load() const {
  std::lock_guard lock(mutex_);
  return load_;
}

}  // namespace rudder::engine
