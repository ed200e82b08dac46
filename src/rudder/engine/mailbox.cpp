#include "rudder/engine/mailbox.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

#include "rudder/base/check.h"
#include "rudder/base/mutants.h"

namespace rudder::engine {

Result<void> Mailbox::submit(Submission submission) {
  std::lock_guard lock(mutex_);
  if (closed_) return tl::unexpected(*closed_);
  if (refused_) return tl::unexpected(*refused_);
  commands_.submissions.push_back(std::move(submission));
  posted_.notify_one();
  return {};
}

void Mailbox::cancel(RequestId id) {
  std::lock_guard lock(mutex_);
  commands_.cancels.push_back(id);
  posted_.notify_one();
}

void Mailbox::displace(const std::vector<RequestId>& ids) {
  std::lock_guard lock(mutex_);
  std::ranges::copy(ids, std::back_inserter(commands_.displaced));
  posted_.notify_one();
}

void Mailbox::reset_prefix_cache() {
  std::lock_guard lock(mutex_);
  commands_.reset_prefix_cache = true;
  posted_.notify_one();
}

void Mailbox::pin(std::vector<steer::KeyedProgram> programs) {
  std::lock_guard lock(mutex_);
  std::ranges::move(programs, std::back_inserter(commands_.pins));
  posted_.notify_one();
}

void Mailbox::unpin(std::vector<tap::ContentKey> programs) {
  std::lock_guard lock(mutex_);
  std::ranges::copy(programs, std::back_inserter(commands_.unpins));
  posted_.notify_one();
}

void Mailbox::capture_news(CaptureNews news) {
  std::lock_guard lock(mutex_);
  commands_.captures.push_back(std::move(news));
  posted_.notify_one();
}

uint64_t Mailbox::rest(RestOrder order) {
  std::lock_guard lock(mutex_);
  refused_ = order.ask ? order.ask->refusal : std::nullopt;
  order.number = ++num_rest_orders_;
  commands_.rest = std::move(order);
  posted_.notify_one();
  return num_rest_orders_;
}

void Mailbox::close(Error reason) {
  if (RUDDER_MUTANT(kDrainAdmits)) return;
  std::lock_guard lock(mutex_);
  if (!closed_) closed_ = std::move(reason);
}

Result<void> Mailbox::open() const {
  std::lock_guard lock(mutex_);
  if (closed_) return tl::unexpected(*closed_);
  if (refused_) return tl::unexpected(*refused_);
  return {};
}

void Mailbox::take(Commands& commands) {
  RUDDER_CHECK(commands.empty());
  std::lock_guard lock(mutex_);
  std::swap(commands, commands_);
}

void Mailbox::wait(int64_t timeout_us) {
  std::unique_lock lock(mutex_);
  posted_.wait_for(lock, std::chrono::microseconds(timeout_us),
                   [&] { return woken_ || !commands_.empty(); });
  woken_ = false;
}

void Mailbox::wake() {
  std::lock_guard lock(mutex_);
  woken_ = true;
  posted_.notify_one();
}

}  // namespace rudder::engine
