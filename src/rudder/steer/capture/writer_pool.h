// Threads that write files. Jobs of one writer run in order; the jobs of a key always go to the
// same writer, so its rows stay in order. The pool does not bound jobs: the bytes of the rows that
// they hold are bounded elsewhere (Backlog).
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/steer/capture/shard.h"
#include "rudder/steer/capture/store.h"

namespace rudder::steer::capture {

// Keeps the files open that were used last. One writer's.
class FdCache {
 public:
  explicit FdCache(size_t max_open) : max_open_(max_open) {}
  Result<void> open(PartialFile& file);
  void forget(const PartialFile& file);

 private:
  const size_t max_open_;
  std::list<PartialFile*> files_;  // open ones, the last used first
  std::unordered_map<const PartialFile*, std::list<PartialFile*>::iterator> entries_;
};

class Writer {
 public:
  using Job = std::function<void(Writer&)>;

  Writer(std::shared_ptr<Store> store, size_t max_open, ShardBounds bounds, int number);
  ~Writer();  // runs what is queued, publishes open shards
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  void post(Job job);

  // For jobs.
  FdCache& fds() { return fds_; }
  ShardSet& shards() { return shards_; }
  // Bytes that a key may hold back before it writes: less the more keys there are.
  size_t buffer_bytes() const;
  void count_keys(int64_t change) { num_keys_ += change; }

 private:
  void run();

  FdCache fds_;
  ShardSet shards_;
  int64_t num_keys_ = 0;
  std::mutex mutex_;
  std::condition_variable posted_;
  std::deque<Job> jobs_;
  bool is_stopping_ = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace rudder::steer::capture
