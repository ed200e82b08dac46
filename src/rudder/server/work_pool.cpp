#include "rudder/server/work_pool.h"

#include <pthread.h>

#include <utility>

namespace rudder::server {

WorkPool::WorkPool(int num_threads, size_t max_queued) : queue_(max_queued) {
  threads_.reserve(static_cast<size_t>(num_threads));
  for (int i = 0; i < num_threads; ++i) {
    threads_.emplace_back([this] {
      pthread_setname_np(pthread_self(), "rudder-tokenize");
      while (std::optional<std::function<void()>> work = queue_.pop()) (*work)();
    });
  }
}

WorkPool::~WorkPool() {
  close();
}

bool WorkPool::run(std::function<void()> work) {
  return queue_.try_push(std::move(work));
}

void WorkPool::close() {
  queue_.close();
  while (queue_.try_pop()) {
  }
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

}  // namespace rudder::server
