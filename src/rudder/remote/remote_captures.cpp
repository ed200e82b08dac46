#include "rudder/remote/remote_captures.h"

#include <boost/json.hpp>
#include <utility>

#include "rudder/base/check.h"

namespace rudder::remote {
namespace {

constexpr size_t kMaxKnown = 256;

[[noreturn]] void not_here() {
  RUDDER_CHECK(false, "captures run in the engine process");
  std::abort();
}

}  // namespace

Result<std::optional<SpecText>> RemoteCaptures::ask(const CaptureText& text) {
  const bool may_be_known = !text.stop;
  if (may_be_known) {
    const std::lock_guard lock(mutex_);
    const auto found = known_.find(text.field);
    if (found != known_.end()) return found->second;
  }
  // All have the same settings: the first that is there answers.
  Result<std::optional<SpecText>> spec =
      fail(ErrorCode::kUnavailable, "there is no engine process");
  for (const auto& link : links_) {
    if (links_.size() > 1 && !link->health() && link != links_.back()) continue;
    spec = link->capture(text);
    if (spec || spec.error().code != ErrorCode::kUnavailable) break;
  }
  if (spec && may_be_known) {
    const std::lock_guard lock(mutex_);
    if (known_.size() >= kMaxKnown) known_.clear();
    known_.emplace(text.field, *spec);
  }
  return spec;
}

Result<std::shared_ptr<const steer::capture::CaptureSpec>> RemoteCaptures::spec(
    const boost::json::value* field, std::optional<steer::capture::StopWhen> stop_when) {
  CaptureText text;
  if (field != nullptr && !field->is_null()) text.field = boost::json::serialize(*field);
  if (stop_when) {
    RUDDER_TRY(text.stop, text_of(*stop_when));
  }
  RUDDER_TRY(const std::optional<SpecText> told, ask(text));
  if (!told) return std::shared_ptr<const steer::capture::CaptureSpec>();
  steer::capture::CaptureSpec made = spec_of(*told);
  made.stop_when = std::move(stop_when);
  std::shared_ptr<const steer::capture::CaptureSpec> spec = specs_.keep(std::move(made));
  const std::lock_guard lock(mutex_);
  if (texts_.size() >= prune_at_) {
    std::erase_if(texts_, [](const auto& entry) { return entry.second.spec.expired(); });
    prune_at_ = 64 + 2 * texts_.size();
  }
  texts_.emplace(spec->id.value, Kept{spec, std::move(text)});
  return spec;
}

std::optional<CaptureText> RemoteCaptures::text(steer::capture::SpecId id) const {
  const std::lock_guard lock(mutex_);
  const auto found = texts_.find(id.value);
  if (found == texts_.end() || found->second.spec.expired()) return std::nullopt;
  return found->second.text;
}

steer::capture::CaptureId RemoteCaptures::begin(steer::capture::CaptureRequest /*request*/) {
  not_here();
}
void RemoteCaptures::push(std::shared_ptr<const tap::CapturedRows> /*rows*/,
                          std::span<const steer::capture::CaptureId> /*by_seq*/) {
  not_here();
}
void RemoteCaptures::end(steer::capture::CaptureId /*id*/) {
  not_here();
}
void RemoteCaptures::cancel(steer::capture::CaptureId /*id*/) {
  not_here();
}

steer::capture::CaptureStats RemoteCaptures::stats() const {
  steer::capture::CaptureStats all = links_.front()->pulse(true).captures;
  for (size_t i = 1; i < links_.size(); ++i) {
    const steer::capture::CaptureStats other = links_[i]->pulse(true).captures;
    for (size_t k = 0; k < all.consumers.size() && k < other.consumers.size(); ++k) {
      steer::capture::ConsumerStats& sum = all.consumers[k];
      const steer::capture::ConsumerStats& more = other.consumers[k];
      sum.rows += more.rows;
      sum.bytes += more.bytes;
      sum.dropped_rows += more.dropped_rows;
      sum.spilled_rows += more.spilled_rows;
      sum.spilled_bytes += more.spilled_bytes;
      sum.queued_bytes += more.queued_bytes;
      sum.spill_bytes += more.spill_bytes;
      sum.results_ok += more.results_ok;
      sum.results_partial += more.results_partial;
      sum.results_error += more.results_error;
    }
    all.batches += other.batches;
    all.tokens += other.tokens;
    all.lost_tokens += other.lost_tokens;
    all.open_requests += other.open_requests;
    all.block_us += other.block_us;
  }
  return all;
}

}  // namespace rudder::remote
