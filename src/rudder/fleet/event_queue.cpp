#include "rudder/fleet/event_queue.h"

#include <utility>

namespace rudder::fleet {

EventQueue::EventQueue(QueueBounds bounds, std::function<void()> wake)
    : bounds_(bounds), wake_(std::move(wake)) {}

void EventQueue::add(const BlockEvent& event) {
  if (pending_.events.size() == kMaxBatchEvents) step_done();
  pending_.events.push_back(event);
}

void EventQueue::stored(const cache::CachedBlock& block) {
  if (!block.is_public) {
    counts_.withheld.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  add({.kind = BlockEvent::Kind::kStored,
       .has_parent = block.parent.has_value(),
       .group = block.group,
       .medium = block.medium,
       .hash = block.hash,
       .parent = block.parent.value_or(0)});
  pending_.tokens.insert(pending_.tokens.end(), block.tokens.begin(), block.tokens.end());
  counts_.stored.fetch_add(1, std::memory_order_relaxed);
}

void EventQueue::removed(const cache::CachedBlock& block) {
  if (!block.is_public) return;
  add({.kind = BlockEvent::Kind::kRemoved,
       .group = block.group,
       .medium = block.medium,
       .hash = block.hash});
  counts_.removed.fetch_add(1, std::memory_order_relaxed);
}

void EventQueue::cleared() {
  pending_.events.clear();  // there is none of it any more
  pending_.tokens.clear();
  add({.kind = BlockEvent::Kind::kCleared});
  counts_.cleared.fetch_add(1, std::memory_order_relaxed);
}

void EventQueue::step_done() {
  if (pending_.events.empty()) return;
  pending_.time_s = EventBatch::now_s();
  if (push(std::move(pending_))) {
    pending_ = {};
    wake_();
    return;
  }
  const uint64_t dropped = pending_.dropped_before + 1;
  pending_ = {.dropped_before = dropped};
  counts_.dropped_batches.fetch_add(1, std::memory_order_relaxed);
}

// Leaves the batch alone where there is no room.
bool EventQueue::push(EventBatch&& batch) {
  const int64_t bytes = batch.bytes();
  const std::lock_guard lock(mutex_);
  const bool is_full =
      std::ssize(waiting_) >= bounds_.max_batches || waiting_bytes_ + bytes > bounds_.max_bytes;
  if (is_full) return false;
  waiting_.push_back(std::move(batch));
  waiting_bytes_ += bytes;
  return true;
}

std::optional<EventBatch> EventQueue::take() {
  const std::lock_guard lock(mutex_);
  if (waiting_.empty()) return std::nullopt;
  EventBatch batch = std::move(waiting_.front());
  waiting_.pop_front();
  waiting_bytes_ -= batch.bytes();
  return batch;
}

}  // namespace rudder::fleet
