#include "rudder/server/http/work_pool.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "rudder/base/contain.h"
#include "rudder/base/log.h"

namespace rudder::server {

WorkPool::WorkPool(int num_threads, size_t max_queued)
    : max_queued_(max_queued),
      max_long_running_(static_cast<size_t>(std::max(1, num_threads - 1))) {
  threads_.reserve(static_cast<size_t>(num_threads));
  try {
    for (int i = 0; i < num_threads; ++i) {
      threads_.emplace_back([this] {
        pthread_setname_np(pthread_self(), "rudder-tokenize");
        serve();
      });
    }
  } catch (...) {  // the system has no more threads: those that run must end first
    close();
    throw;
  }
}

WorkPool::~WorkPool() {
  close();
}

bool WorkPool::run(size_t body_bytes, std::function<void()> work) {
  const std::lock_guard lock(mutex_);
  if (closed_ || short_jobs_.size() + long_jobs_.size() >= max_queued_) return false;
  std::deque<Job>& jobs = body_bytes > kLongBytes ? long_jobs_ : short_jobs_;
  jobs.push_back({num_jobs_++, std::move(work)});
  changed_.notify_all();  // the one that would be woken may be one that stands still
  return true;
}

// The queue whose first job is next: the older of those that may run. Null: none may.
std::deque<WorkPool::Job>* WorkPool::next() {
  if (long_jobs_.empty() || long_running_ == max_long_running_) {
    return short_jobs_.empty() ? nullptr : &short_jobs_;
  }
  const bool short_first =
      !short_jobs_.empty() && short_jobs_.front().number < long_jobs_.front().number;
  return short_first ? &short_jobs_ : &long_jobs_;
}

void WorkPool::serve() {
  std::unique_lock lock(mutex_);
  while (true) {
    std::deque<Job>* jobs = nullptr;
    changed_.wait(lock, [&] { return closed_ || (jobs = next()) != nullptr; });
    if (closed_) return;
    const bool is_long = jobs == &long_jobs_;
    std::function<void()> work = std::move(jobs->front().work);
    jobs->pop_front();
    long_running_ += is_long ? 1 : 0;
    ++num_running_;
    ++num_steps_;
    lock.unlock();
    if (const Result<void> done = contain(work); !done) {
      log_error("a job of the pool threw: {}", done.error().to_string());
    }
    work = nullptr;  // what it holds goes before the lock comes back
    lock.lock();
    long_running_ -= is_long ? 1 : 0;
    --num_running_;
    ++num_steps_;
    if (is_long) changed_.notify_one();
  }
}

// A thread that stands still may hold the lock.
bool WorkPool::is_still() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return true;
  const bool has_work = num_running_ > 0 || !short_jobs_.empty() || !long_jobs_.empty();
  return std::exchange(watched_steps_, num_steps_) == num_steps_ && has_work;
}

void WorkPool::close() {
  std::deque<Job> dropped_short, dropped_long;  // let go without the lock
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    dropped_short.swap(short_jobs_);
    dropped_long.swap(long_jobs_);
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

}  // namespace rudder::server
