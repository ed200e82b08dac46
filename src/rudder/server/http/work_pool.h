// WorkPool: a few threads, behind a bounded queue, for work that would block an event loop (parsing
// a long body, rendering a template, tokenising). With two threads or more, one of them takes only
// short work, so a client's megabytes, which may take seconds, do not delay other requests. Any
// thread may call run.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace rudder::server {

class WorkPool {
 public:
  static constexpr size_t kLongBytes = size_t{128} << 10;  // of a body: more is long work

  WorkPool(int num_threads, size_t max_queued);
  ~WorkPool();  // drops what is queued, waits for what runs
  WorkPool(const WorkPool&) = delete;
  WorkPool& operator=(const WorkPool&) = delete;

  // False when the queue is full; the work is then dropped. `body_bytes` is the measure of its
  // length.
  bool run(size_t body_bytes, std::function<void()> work);
  // It has work, and since the last call none began or ended. One thread asks; it never waits.
  bool is_still();
  void close();

 private:
  struct Job {
    uint64_t number;  // by arrival
    std::function<void()> work;
  };

  void serve();
  std::deque<Job>* next();

  const size_t max_queued_;
  const size_t max_long_running_;
  std::mutex mutex_;  // of all below but the threads
  std::condition_variable changed_;
  std::deque<Job> short_jobs_, long_jobs_;
  uint64_t num_jobs_ = 0;
  size_t long_running_ = 0;
  size_t num_running_ = 0;
  uint64_t num_steps_ = 0;      // jobs that began, and jobs that ended
  uint64_t watched_steps_ = 0;  // when is_still() was called last
  bool closed_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace rudder::server
