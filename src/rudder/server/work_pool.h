// WorkPool: a few threads for what would hold up an event loop (parsing a long body, rendering a
// template, tokenising), behind a bounded queue. run is safe from any thread.
#pragma once

#include <functional>
#include <thread>
#include <vector>

#include "rudder/base/queue.h"

namespace rudder::server {

class WorkPool {
 public:
  WorkPool(int num_threads, size_t max_queued);
  ~WorkPool();  // drops what is queued, waits for what runs

  // False when the queue is full: the work is then dropped.
  bool run(std::function<void()> work);
  size_t queued() const { return queue_.size(); }
  void close();

 private:
  BoundedQueue<std::function<void()>> queue_;
  std::vector<std::thread> threads_;
};

}  // namespace rudder::server
