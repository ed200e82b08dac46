// Lane: one consumer with its backlog and its thread. Faults of the consumer stay in its lane. The
// dispatcher makes it and pushes to it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "rudder/steer/capture/backlog.h"
#include "rudder/steer/capture/consumer.h"
#include "rudder/steer/capture/stats.h"

namespace rudder::steer::capture {

// A request at a consumer.
struct Seat {
  SessionInfo info;
  std::vector<tap::PositionRange> ranges;
  std::function<void(ConsumerResult)> deliver;  // its result; any thread, the first one counts
  std::atomic<int64_t> num_dropped{0};          // rows that it did not get

  // The consumer's thread.
  std::shared_ptr<Session> session;
  std::optional<Error> error;
};

class Lane {
 public:
  // Starts the thread, which keeps the lane alive.
  static std::shared_ptr<Lane> start(std::shared_ptr<Consumer> consumer,
                                     const Backlog::Bounds& bounds);
  ~Lane();

  // The dispatch thread's.
  void open(const std::shared_ptr<Seat>& seat);
  void rows(const std::shared_ptr<Seat>& seat, const std::shared_ptr<const Chunk>& chunk);
  void announce_rows() { backlog_->announce(); }  // behind those of a step
  void end(const std::shared_ptr<Seat>& seat, bool cancelled);
  void close() { backlog_->close(); }
  // True when the thread ended in time; else it is left behind for good.
  bool join(int64_t timeout_us);

  // Any thread.
  Backlog& backlog() { return *backlog_; }
  const Consumer& consumer() const { return *consumer_; }
  // One call into the consumer has taken longer than this.
  bool is_stuck(int64_t timeout_us) const;
  void count_result(Status status);
  ConsumerStats stats() const;

 private:
  Lane(std::shared_ptr<Consumer> consumer, const Backlog::Bounds& bounds);

  void run();
  void add_ready(std::deque<BacklogItem>& items);
  void read_ahead(std::deque<BacklogItem>& items);
  void handle(BacklogItem& item);
  void note_failure(BacklogItem& item, const Error& error);
  void take(Seat& seat, BacklogItem& item);

  const std::shared_ptr<Consumer> consumer_;
  const std::shared_ptr<Backlog> backlog_;
  std::thread thread_;
  std::mutex mutex_;
  std::condition_variable done_;
  bool is_done_ = false;

  std::atomic<int64_t> call_began_us_{0};  // 0: in no call
  std::atomic<uint64_t> rows_{0};
  std::atomic<uint64_t> bytes_{0};
  std::atomic<uint64_t> dropped_rows_{0};
  std::atomic<uint64_t> spilled_rows_{0};
  std::atomic<uint64_t> spilled_bytes_{0};
  std::atomic<uint64_t> results_ok_{0};
  std::atomic<uint64_t> results_partial_{0};
  std::atomic<uint64_t> results_error_{0};
};

// Tells lanes of their rows once a step, also of one that was handed out in part.
struct RowsAnnounced {
  const std::vector<std::shared_ptr<Lane>>& lanes;
  ~RowsAnnounced() {
    for (const std::shared_ptr<Lane>& lane : lanes) lane->announce_rows();
  }
};

}  // namespace rudder::steer::capture
