#include "rudder/base/thread_pool.h"

#include <immintrin.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "rudder/base/check.h"

namespace rudder {
namespace {

// A pause is about 40 ns where it is long, so this is tens of microseconds: the gap between two
// loops of a decode step. Then a worker sleeps, and a caller lets others have its core.
constexpr int kSpins = 2000;
// Of a core that it lets others have, so often; a caller that still waits then sleeps between
// looks: a worker that never comes back must not look like work.
constexpr int kYields = 100'000;
constexpr auto kNap = std::chrono::microseconds(50);

constexpr uint64_t kClosed = 0xffffffff;

}  // namespace

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1u, std::thread::hardware_concurrency());
}

// The loop in progress is published in one word, `ticket`: its number in the high half, the next
// unclaimed item in the low half. A worker claims an item by compare-and-swap of the word. While
// count and body change the word says kClosed under a number of its own, so a worker that comes
// late, with the ticket of one loop and the body of the next, claims nothing. The caller thus waits
// for items, never for a worker that the kernel has not scheduled yet.
struct ThreadPool::Impl {
  std::vector<std::thread> workers;
  std::mutex mutex;
  std::condition_variable wake;
  std::atomic<uint64_t> ticket{0};
  std::atomic<int64_t> count{0};
  std::atomic<const FunctionRef<void(int64_t)>*> body{nullptr};
  alignas(64) std::atomic<int64_t> done{0};
  alignas(64) std::atomic<int> sleepers{0};
  std::atomic<bool> stopping{false};
  std::atomic<uint64_t> alone{0};  // items of loops that no worker took part in
  std::mutex failure_mutex;
  std::exception_ptr failure;  // the first that a body of the loop in progress threw

  // A thread of the pool has nowhere to throw to, and the caller may not leave while others run.
  void run_item(const FunctionRef<void(int64_t)>& run, int64_t item) noexcept {
    try {
      run(item);
    } catch (...) {
      std::lock_guard lock(failure_mutex);
      if (failure == nullptr) failure = std::current_exception();
    }
  }

  // Claims and runs items of the loop that `seen` is a ticket of, until none is left.
  void drain(uint64_t seen) {
    const uint64_t loop = seen >> 32;
    const int64_t items = count.load(std::memory_order_acquire);
    const auto* run = body.load(std::memory_order_acquire);
    while (seen >> 32 == loop && static_cast<int64_t>(seen & kClosed) < items) {
      if (!ticket.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel,
                                        std::memory_order_acquire)) {
        continue;
      }
      run_item(*run, static_cast<int64_t>(seen & kClosed));
      done.fetch_add(1, std::memory_order_release);
      seen = ticket.load(std::memory_order_acquire);
    }
  }

  // Until a loop other than number `last` has begun. False when the pool stops.
  bool wait_for_loop(uint64_t last) {
    const auto ready = [&] { return ticket.load() >> 32 != last || stopping.load(); };
    for (int spin = 0; spin < kSpins; ++spin) {
      if (ready()) return !stopping.load();
      _mm_pause();
    }
    std::unique_lock lock(mutex);
    sleepers.fetch_add(1);
    wake.wait(lock, ready);
    sleepers.fetch_sub(1);
    return !stopping.load();
  }

  void worker_loop() {
    uint64_t last = 0;
    while (wait_for_loop(last)) {
      const uint64_t seen = ticket.load(std::memory_order_acquire);
      last = seen >> 32;
      if ((seen & kClosed) != kClosed) drain(seen);
    }
  }

  void stop() {
    stopping.store(true);
    wake_sleepers();
    for (std::thread& worker : workers) worker.join();
  }

  void wake_sleepers() {
    if (sleepers.load() == 0) return;
    // With the lock held nobody is between looking at `ticket` and sleeping.
    std::lock_guard lock(mutex);
    wake.notify_all();
  }
};

ThreadPool::ThreadPool(int num_threads) : impl_(std::make_unique<Impl>()) {
  const int total = num_threads > 0 ? num_threads : usable_cores();
  try {
    for (int i = 1; i < total; ++i) impl_->workers.emplace_back([this] { impl_->worker_loop(); });
  } catch (...) {  // the system has no more threads: those that run must end first
    impl_->stop();
    throw;
  }
}

ThreadPool::~ThreadPool() {
  impl_->stop();
}

// The ticket grows with each loop and with each item of it.
uint64_t ThreadPool::progress() const {
  return impl_->ticket.load(std::memory_order_relaxed) +
         impl_->alone.load(std::memory_order_relaxed);
}

int ThreadPool::num_threads() const {
  return static_cast<int>(impl_->workers.size()) + 1;
}

void ThreadPool::parallel_for(int64_t count, FunctionRef<void(int64_t)> body) {
  if (impl_->workers.empty() || count <= 1) {
    for (int64_t i = 0; i < count; ++i) {
      impl_->alone.fetch_add(1, std::memory_order_relaxed);
      body(i);
    }
    return;
  }
  RUDDER_CHECK(count < static_cast<int64_t>(kClosed), "{} items", count);
  const uint64_t number = impl_->ticket.load(std::memory_order_relaxed) >> 32;
  impl_->ticket.store((number + 1) << 32 | kClosed);
  impl_->count.store(count, std::memory_order_release);
  impl_->body.store(&body, std::memory_order_release);
  impl_->done.store(0, std::memory_order_relaxed);
  const uint64_t loop = (number + 2) << 32;
  impl_->ticket.store(loop);
  impl_->wake_sleepers();
  impl_->drain(loop);
  for (int64_t spin = 0; impl_->done.load(std::memory_order_acquire) != count; ++spin) {
    if (spin < kSpins) {
      _mm_pause();
    } else if (spin < kSpins + kYields) {
      sched_yield();
    } else {
      std::this_thread::sleep_for(kNap);
    }
  }
  // Every item is done: nobody touches `failure` now.
  if (impl_->failure != nullptr) std::rethrow_exception(std::exchange(impl_->failure, nullptr));
}

}  // namespace rudder
