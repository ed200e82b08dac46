// Backlog: the rows that wait for one consumer, in order. It bounds the bytes of rows that the
// consumer holds in memory, queued or taken; the operator's policy decides about rows beyond that.
// Rows that return from the disk may double the bound: as much again as is queued behind them. The
// dispatch thread pushes, the consumer's thread pops, the engine thread may wait for room.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "rudder/steer/capture/consumer.h"
#include "rudder/steer/capture/spill_file.h"

namespace rudder::steer::capture {

struct Seat;  // lane.h: a request at a consumer

enum class OverloadPolicy : uint8_t { kSpill, kDrop, kBlock };

struct BacklogItem {
  enum class Kind : uint8_t { kOpen, kRows, kEnd, kCancel };
  Kind kind = Kind::kOpen;
  std::shared_ptr<Seat> seat;
  RowBatch batch;             // kRows
  bool spilled = false;       // the batch's chunk has no data yet
  std::optional<Error> lost;  // kRows: the spilled rows could not be read back
  bool is_shown = false;      // kRows: to the consumer, ahead of its session
};

class Backlog : public std::enable_shared_from_this<Backlog> {
 public:
  struct Bounds {
    OverloadPolicy policy = OverloadPolicy::kSpill;
    int64_t max_bytes = 0;
    std::string spill_dir;
    int64_t spill_bytes = 0;
  };
  enum class Pushed : uint8_t { kQueued, kSpilled, kDropped };

  explicit Backlog(Bounds bounds) : bounds_(std::move(bounds)) {}

  // Opens, ends and cancels always have room.
  void push(BacklogItem::Kind kind, std::shared_ptr<Seat> seat);
  // A consumer that waits is not woken before announce(): it then finds the rows of a whole step.
  Pushed push_rows(const std::shared_ptr<Seat>& seat, const std::shared_ptr<const Chunk>& chunk,
                   std::vector<Record> records);
  void announce() { changed_.notify_all(); }
  // Empty when it is closed and drained. Rows that were spilled are read back first, when the
  // consumer has released enough of its rows.
  std::optional<BacklogItem> pop();
  // Of what is there, without waiting; rows that were spilled are left to pop().
  std::optional<BacklogItem> pop_ready();
  void close();

  // Waits until the consumer is within its bounds, as long as it makes progress: one that gives
  // nothing back for `timeout_us` is not waited for until it does.
  void wait_for_room(int64_t timeout_us);

  int64_t held_bytes() const;
  int64_t spill_held_bytes() const;

 private:
  // The chunk, counted against the bounds until the last copy of the pointer is gone.
  std::shared_ptr<const Chunk> charge(std::shared_ptr<const Chunk> chunk);
  void give_back(size_t bytes);
  bool spill(const Chunk& chunk);
  bool is_full() const { return held_ > bounds_.max_bytes; }
  void read_back(BacklogItem& item);
  BacklogItem take_front();  // with the mutex held

  const Bounds bounds_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<BacklogItem> items_;
  int64_t held_ = 0;    // bytes of rows in memory, queued or taken
  int64_t queued_ = 0;  // those of them that are queued
  uint64_t num_given_back_ = 0;
  std::optional<uint64_t> stalled_at_;  // num_given_back_ when it was given up on
  bool closed_ = false;
  std::unique_ptr<SpillFile> spill_;  // made at first use, by the dispatch thread
};

}  // namespace rudder::steer::capture
