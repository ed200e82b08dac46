#include "rudder/steer/capture/writer_pool.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "rudder/base/clock.h"
#include "rudder/base/contain.h"
#include "rudder/base/log.h"

namespace rudder::steer::capture {
namespace {

constexpr int64_t kBufferBudget = int64_t{16} << 20;  // of a writer
constexpr int64_t kMinBuffer = 4096;
constexpr int64_t kMaxBuffer = 64 << 10;

}  // namespace

Result<void> FdCache::open(PartialFile& file) {
  const auto found = entries_.find(&file);
  if (found != entries_.end()) {
    files_.splice(files_.begin(), files_, found->second);
    return {};
  }
  while (files_.size() >= max_open_) {
    files_.back()->close_fd();
    entries_.erase(files_.back());
    files_.pop_back();
  }
  RUDDER_TRY_VOID(file.open());
  files_.push_front(&file);
  entries_.emplace(&file, files_.begin());
  return {};
}

void FdCache::forget(const PartialFile& file) {
  const auto found = entries_.find(&file);
  if (found == entries_.end()) return;
  files_.erase(found->second);
  entries_.erase(found);
}

Writer::Writer(std::shared_ptr<Store> store, size_t max_open, ShardBounds bounds, int number)
    : fds_(max_open), shards_(std::move(store), bounds, number), thread_([this] { run(); }) {}

Writer::~Writer() {
  {
    std::lock_guard lock(mutex_);
    is_stopping_ = true;
    posted_.notify_one();
  }
  thread_.join();
}

void Writer::post(Job job) {
  std::lock_guard lock(mutex_);
  jobs_.push_back(std::move(job));
  posted_.notify_one();
}

size_t Writer::buffer_bytes() const {
  return static_cast<size_t>(
      std::clamp(kBufferBudget / std::max<int64_t>(num_keys_, 1), kMinBuffer, kMaxBuffer));
}

void Writer::run() {
  const SteadyClock clock;
  while (true) {
    std::deque<Job> jobs;
    {
      std::unique_lock lock(mutex_);
      const auto wake = [&] { return !jobs_.empty() || is_stopping_; };
      if (const std::optional<int64_t> due_us = shards_.next_due_us()) {
        const int64_t wait_us = std::max<int64_t>(*due_us - clock.now_us(), 0);
        posted_.wait_for(lock, std::chrono::microseconds(wait_us), wake);
      } else {
        posted_.wait(lock, wake);
      }
      if (jobs_.empty() && is_stopping_) break;
      std::swap(jobs, jobs_);
    }
    for (; !jobs.empty(); jobs.pop_front()) {
      // Whoever waits for the job's word hears from the dispatcher that none came in time.
      const Result<void> done = contain([&] { jobs.front()(*this); });
      if (!done) log_error("capture writer: {}", done.error().to_string());
      shards_.publish_due(clock.now_us());
    }
    shards_.publish_due(clock.now_us());
  }
  shards_.publish_all();
}

}  // namespace rudder::steer::capture
