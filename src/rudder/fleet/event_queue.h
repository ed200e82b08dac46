// EventQueue: takes down what the prefix cache says of blocks that any request can hit, and hands
// it on in batches, one a step or less; other blocks are withheld and counted. The engine thread
// fills it and never waits: past its bounds a batch is dropped and counted, and the next one says
// so. The publisher's thread empties it.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>

#include "rudder/cache/block_watcher.h"
#include "rudder/fleet/event_batch.h"

namespace rudder::fleet {

struct QueueBounds {
  int64_t max_batches = 100'000;
  int64_t max_bytes = int64_t{64} << 20;  // of batches that wait
};

struct EventCounts {
  std::atomic<uint64_t> stored{0};  // blocks
  std::atomic<uint64_t> removed{0};
  std::atomic<uint64_t> withheld{0};
  std::atomic<uint64_t> cleared{0};
  std::atomic<uint64_t> dropped_batches{0};
};

class EventQueue final : public cache::BlockWatcher {
 public:
  // `wake` is called on the engine thread when there is something to take.
  EventQueue(QueueBounds bounds, std::function<void()> wake);

  // The engine thread's.
  void stored(const cache::CachedBlock& block) override;
  void removed(const cache::CachedBlock& block) override;
  void cleared() override;
  void step_done() override;

  std::optional<EventBatch> take();  // the oldest; any thread
  const EventCounts& counts() const { return counts_; }

 private:
  void add(const BlockEvent& event);
  bool push(EventBatch&& batch);

  const QueueBounds bounds_;
  const std::function<void()> wake_;
  EventCounts counts_;
  EventBatch pending_;  // of this step
  std::mutex mutex_;
  std::deque<EventBatch> waiting_;
  int64_t waiting_bytes_ = 0;
};

}  // namespace rudder::fleet
