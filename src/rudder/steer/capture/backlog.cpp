#include "rudder/steer/capture/backlog.h"

#include <chrono>
#include <cstring>
#include <utility>

#include "rudder/base/log.h"

namespace rudder::steer::capture {

std::shared_ptr<const Chunk> Backlog::charge(std::shared_ptr<const Chunk> chunk) {
  const Chunk* raw = chunk.get();
  return {raw, [self = shared_from_this(), kept = std::move(chunk)](const Chunk*) mutable {
            const size_t bytes = kept->bytes;
            kept.reset();
            self->give_back(bytes);
          }};
}

void Backlog::give_back(size_t bytes) {
  std::lock_guard lock(mutex_);
  held_ -= static_cast<int64_t>(bytes);
  ++num_given_back_;
  changed_.notify_all();
}

void Backlog::push(BacklogItem::Kind kind, std::shared_ptr<Seat> seat) {
  std::lock_guard lock(mutex_);
  if (closed_) return;
  items_.push_back({.kind = kind, .seat = std::move(seat), .batch = {}, .lost = {}});
  changed_.notify_all();
}

bool Backlog::spill(const Chunk& chunk) {
  if (bounds_.policy != OverloadPolicy::kSpill) return false;
  if (spill_ == nullptr) {
    Result<std::unique_ptr<SpillFile>> made =
        SpillFile::create(bounds_.spill_dir, bounds_.spill_bytes);
    if (!made) {
      log_warn("capture: {}", made.error().to_string());
      return false;
    }
    std::lock_guard lock(mutex_);
    spill_ = std::move(*made);
  }
  return spill_->write({chunk.data.get(), chunk.bytes});
}

Backlog::Pushed Backlog::push_rows(const std::shared_ptr<Seat>& seat,
                                   const std::shared_ptr<const Chunk>& chunk,
                                   std::vector<Record> records) {
  BacklogItem item{.kind = BacklogItem::Kind::kRows, .seat = seat, .batch = {}, .lost = {}};
  {
    std::lock_guard lock(mutex_);
    if (closed_) return Pushed::kDropped;
    const bool waited_for =
        bounds_.policy == OverloadPolicy::kBlock && stalled_at_ != std::optional(num_given_back_);
    if (!is_full() || waited_for) {
      held_ += static_cast<int64_t>(chunk->bytes);
      queued_ += static_cast<int64_t>(chunk->bytes);
      item.batch = {charge(chunk), std::move(records)};
      items_.push_back(std::move(item));
      return Pushed::kQueued;
    }
  }
  if (!spill(*chunk)) return Pushed::kDropped;
  auto hollow = std::make_shared<Chunk>();
  hollow->bytes = chunk->bytes;
  item.batch = {std::move(hollow), std::move(records)};
  item.spilled = true;
  std::lock_guard lock(mutex_);
  items_.push_back(std::move(item));
  return Pushed::kSpilled;
}

std::optional<BacklogItem> Backlog::pop() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] {
    if (items_.empty()) return closed_;
    // What is queued behind spilled rows cannot go before they do: only what is taken counts. They
    // may come back into an empty house, however small it is.
    const int64_t taken = held_ - queued_;
    return !items_.front().spilled || taken == 0 || taken < bounds_.max_bytes;
  });
  if (items_.empty()) return std::nullopt;
  BacklogItem item = take_front();
  if (!item.spilled) return item;
  held_ += static_cast<int64_t>(item.batch.chunk->bytes);
  lock.unlock();
  read_back(item);
  return item;
}

std::optional<BacklogItem> Backlog::pop_ready() {
  std::lock_guard lock(mutex_);
  if (items_.empty() || items_.front().spilled) return std::nullopt;
  return take_front();
}

BacklogItem Backlog::take_front() {
  BacklogItem item = std::move(items_.front());
  items_.pop_front();
  if (!item.spilled && item.batch.chunk != nullptr) {
    queued_ -= static_cast<int64_t>(item.batch.chunk->bytes);
  }
  return item;
}

void Backlog::read_back(BacklogItem& item) {
  auto chunk = std::make_shared<Chunk>();
  chunk->bytes = item.batch.chunk->bytes;
  chunk->data = std::make_unique_for_overwrite<std::byte[]>(chunk->bytes);
  const Result<void> read = spill_->read({chunk->data.get(), chunk->bytes});
  if (!read) item.lost = read.error();
  item.batch.chunk = charge(std::move(chunk));
}

void Backlog::close() {
  std::lock_guard lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

void Backlog::wait_for_room(int64_t timeout_us) {
  std::unique_lock lock(mutex_);
  if (stalled_at_ == std::optional(num_given_back_)) return;
  stalled_at_.reset();
  while (is_full() && !closed_) {
    const uint64_t before = num_given_back_;
    changed_.wait_for(lock, std::chrono::microseconds(timeout_us),
                      [&] { return num_given_back_ != before || closed_; });
    if (num_given_back_ != before) continue;
    if (is_full()) stalled_at_ = before;
    return;
  }
}

int64_t Backlog::held_bytes() const {
  std::lock_guard lock(mutex_);
  return held_;
}

int64_t Backlog::spill_held_bytes() const {
  std::lock_guard lock(mutex_);
  return spill_ == nullptr ? 0 : spill_->held_bytes();
}

}  // namespace rudder::steer::capture
