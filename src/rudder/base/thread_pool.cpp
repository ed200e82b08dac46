#include "rudder/base/thread_pool.h"

#include <immintrin.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace rudder {
namespace {

constexpr int kSpinsBeforeSleep = 4000;  // tens of microseconds: the gap between two ops of a step

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1u, std::thread::hardware_concurrency());
}

}  // namespace

struct ThreadPool::Impl {
  std::vector<std::thread> workers;
  std::mutex mutex;
  std::condition_variable wake;
  std::atomic<uint64_t> epoch{0};
  std::atomic<int64_t> next{0};
  std::atomic<int> running{0};
  std::atomic<bool> stopping{false};
  int64_t count = 0;
  const std::function<void(int64_t)>* body = nullptr;

  void drain() {
    for (;;) {
      const int64_t i = next.fetch_add(1, std::memory_order_relaxed);
      if (i >= count) return;
      (*body)(i);
    }
  }

  bool wait_for_work(uint64_t seen) {
    for (int spin = 0; spin < kSpinsBeforeSleep; ++spin) {
      if (epoch.load(std::memory_order_acquire) != seen || stopping) return !stopping;
      _mm_pause();
    }
    std::unique_lock lock(mutex);
    wake.wait(lock, [&] { return epoch.load(std::memory_order_acquire) != seen || stopping; });
    return !stopping;
  }

  void worker_loop() {
    uint64_t seen = 0;
    while (wait_for_work(seen)) {
      seen = epoch.load(std::memory_order_acquire);
      drain();
      running.fetch_sub(1, std::memory_order_release);
    }
  }
};

ThreadPool::ThreadPool(int num_threads) : impl_(std::make_unique<Impl>()) {
  const int total = num_threads > 0 ? num_threads : usable_cores();
  for (int i = 1; i < total; ++i) impl_->workers.emplace_back([this] { impl_->worker_loop(); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(impl_->mutex);
    impl_->stopping = true;
  }
  impl_->wake.notify_all();
  for (std::thread& worker : impl_->workers) worker.join();
}

int ThreadPool::num_threads() const {
  return static_cast<int>(impl_->workers.size()) + 1;
}

void ThreadPool::parallel_for(int64_t count, const std::function<void(int64_t)>& body) {
  if (impl_->workers.empty() || count <= 1) {
    for (int64_t i = 0; i < count; ++i) body(i);
    return;
  }
  {
    std::lock_guard lock(impl_->mutex);
    impl_->count = count;
    impl_->body = &body;
    impl_->next.store(0, std::memory_order_relaxed);
    impl_->running.store(static_cast<int>(impl_->workers.size()), std::memory_order_relaxed);
    impl_->epoch.fetch_add(1, std::memory_order_release);
  }
  impl_->wake.notify_all();
  impl_->drain();
  while (impl_->running.load(std::memory_order_acquire) != 0) _mm_pause();
}

}  // namespace rudder
