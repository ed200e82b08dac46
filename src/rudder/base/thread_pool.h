// A fixed pool of threads for data-parallel loops on the CPU (kernels, weight transforms). One
// thread at a time calls parallel_for and works along; idle workers spin briefly, then sleep. A
// loop ends when its items are done; it does not wait for workers that the kernel has not
// scheduled.
#pragma once

#include <cstdint>
#include <memory>

#include "rudder/base/function_ref.h"

namespace rudder {

// That this process may run on, at least 1.
int usable_cores();

class ThreadPool {
 public:
  // num_threads counts the caller; 0 means every core this process may use.
  explicit ThreadPool(int num_threads = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const;

  // Calls body(i) once for each i in [0, count); returns when all are done. Work is claimed item by
  // item, so which thread runs which i is not fixed: body's result may not depend on it. The first
  // exception that a body throws is thrown again here, when no thread runs the body any more.
  void parallel_for(int64_t count, FunctionRef<void(int64_t)> body);

  // A number that grows with each item that is claimed. Any thread.
  uint64_t progress() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace rudder
