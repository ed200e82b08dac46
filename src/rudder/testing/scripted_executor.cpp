#include "rudder/testing/scripted_executor.h"

#include <algorithm>
#include <utility>

#include "rudder/base/check.h"
#include "rudder/base/token_mask.h"

namespace rudder::testing {

step::Capacity ScriptedExecutor::default_capacity() {
  return {.num_slots = 8,
          .num_blocks = 64,
          .block_size = 4,
          .max_tokens_per_step = 64,
          .max_seq_len = 128,
          .vocab_size = 37,
          .max_in_flight = 2};
}

ScriptedExecutor::Hold::Hold(std::shared_ptr<Device> device) : device_(std::move(device)) {
  std::lock_guard lock(device_->mutex);
  device_->num_holds += 1;
}

ScriptedExecutor::Hold::~Hold() {
  let_go();
}

void ScriptedExecutor::Hold::wait_until_collecting() {
  std::unique_lock lock(device_->mutex);
  device_->changed.wait(lock, [&] { return device_->num_collecting > 0; });
}

void ScriptedExecutor::Hold::let_go() {
  const std::shared_ptr<Device> device = std::move(device_);
  if (device == nullptr) return;
  std::lock_guard lock(device->mutex);
  device->num_holds -= 1;
  device->changed.notify_all();
}

ScriptedExecutor::Hold ScriptedExecutor::hold() {
  return Hold(device_);
}

ScriptedExecutor::ScriptedExecutor(std::vector<int32_t> script, step::Capacity capacity)
    : script_(std::move(script)),
      capacity_(std::move(capacity)),
      slots_(static_cast<size_t>(capacity_.num_slots)) {
  RUDDER_CHECK(!script_.empty());
}

Result<step::Ticket> ScriptedExecutor::launch(std::shared_ptr<const step::StepPlan> plan) {
  std::lock_guard lock(mutex_);
  if (launches_fail_) return fail(ErrorCode::kInternal, "the device is gone");
  num_launched_ += 1;
  RUDDER_CHECK(masks_awaited_ == 0);
  masks_awaited_ = plan->num_masks();
  for (const step::SlotEdit& edit : plan->slots) {
    slots_[static_cast<size_t>(edit.slot.value)] = {.generation = edit.generation,
                                                    .num_output = edit.num_output,
                                                    .max_len = edit.max_len,
                                                    .ended = false,
                                                    .sampling = edit.sampling};
    seeds_.push_back(edit.sampling.seed);
  }
  for (int32_t i = 0; i < plan->repeat; ++i) {
    step::StepResult result;
    result.id = plan->id;
    result.iteration = i;
    result.seqs.reserve(plan->seqs.size());
    for (const step::SeqWork& work : plan->seqs) result.seqs.push_back(run_sequence(work, i));
    in_flight_.push_back(std::move(result));
  }
  return step::Ticket{plan->id};
}

Result<void> ScriptedExecutor::supply(step::Ticket, std::span<const uint32_t> masks) {
  std::lock_guard lock(mutex_);
  const size_t words = mask_words(capacity_.vocab_size);
  RUDDER_CHECK(masks_awaited_ > 0 && masks.size() == static_cast<size_t>(masks_awaited_) * words);
  masks_awaited_ = 0;
  for (; !masks.empty(); masks = masks.subspan(words)) {
    masks_.emplace_back(masks.begin(), masks.begin() + static_cast<ptrdiff_t>(words));
  }
  return {};
}

step::SeqResult ScriptedExecutor::run_sequence(const step::SeqWork& work, int32_t iteration) {
  Slot& slot = slots_[static_cast<size_t>(work.slot.value)];
  step::SeqResult result;
  result.slot = work.slot;
  result.generation = work.generation;
  RUDDER_CHECK(slot.generation == work.generation);
  result.masked = slot.ended;
  if (iteration == 0 && !slot.ended) {
    result.scores.assign(work.score_tokens.size(), {.logprob = -0.25f, .rank = 2, .top = {}});
  }
  if (slot.ended || work.logits == step::LogitsWanted::kNone) return result;

  const int32_t token = script_[static_cast<size_t>(slot.num_output) % script_.size()];
  slot.num_output += 1;
  if (token == kScriptNan) {
    result.end = step::SeqEnd::kNumerical;
    slot.ended = true;
    return result;
  }
  result.tokens.push_back(token);
  if (slot.sampling.num_logprobs >= 0) {
    step::TokenLogprobs logprobs{.logprob = -0.5f, .rank = 1, .top = {}};
    for (int32_t i = 0; i < slot.sampling.num_logprobs; ++i) logprobs.top.emplace_back(i, -1.0f);
    result.logprobs.push_back(std::move(logprobs));
  }
  const auto& stops = slot.sampling.stop_ids;
  if (std::find(stops.begin(), stops.end(), token) != stops.end()) {
    result.end = step::SeqEnd::kStopId;
  } else if (work.kv_len + iteration + work.q_len + 1 >= slot.max_len) {
    result.end = step::SeqEnd::kLength;
  }
  slot.ended = result.end != step::SeqEnd::kNone;
  return result;
}

Result<step::StepResult> ScriptedExecutor::collect(step::Ticket ticket) {
  {
    std::unique_lock lock(device_->mutex);
    device_->num_collecting += 1;
    device_->changed.notify_all();
    device_->changed.wait(lock, [&] { return device_->num_holds == 0; });
    device_->num_collecting -= 1;
  }
  std::lock_guard lock(mutex_);
  if (collects_fail_) return fail(ErrorCode::kInternal, "the device is gone");
  RUDDER_CHECK(!in_flight_.empty() && in_flight_.front().id == ticket.id);
  step::StepResult result = std::move(in_flight_.front());
  in_flight_.pop_front();
  return result;
}

bool ScriptedExecutor::ready(step::Ticket) {
  std::lock_guard lock(device_->mutex);
  return device_->num_holds == 0;
}

void ScriptedExecutor::fail_launches() {
  std::lock_guard lock(mutex_);
  launches_fail_ = true;
}

void ScriptedExecutor::fail_collects() {
  std::lock_guard lock(mutex_);
  collects_fail_ = true;
}

uint64_t ScriptedExecutor::num_launched() const {
  std::lock_guard lock(mutex_);
  return num_launched_;
}

std::vector<std::vector<uint32_t>> ScriptedExecutor::masks() const {
  std::lock_guard lock(mutex_);
  return masks_;
}

std::vector<uint64_t> ScriptedExecutor::seeds() const {
  std::lock_guard lock(mutex_);
  return seeds_;
}

}  // namespace rudder::testing
