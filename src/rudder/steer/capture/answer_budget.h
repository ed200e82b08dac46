// Bytes of captured rows that answers which are being made may hold together. Consumers that put
// rows into answers share one; any thread.
#pragma once

#include <atomic>
#include <cstdint>

namespace rudder::steer::capture {

class AnswerBudget {
 public:
  explicit AnswerBudget(int64_t bytes) : left_(bytes) {}
  bool take(int64_t bytes) {
    if (left_.fetch_sub(bytes) >= bytes) return true;
    left_ += bytes;
    return false;
  }
  void give_back(int64_t bytes) { left_ += bytes; }

 private:
  std::atomic<int64_t> left_;
};

}  // namespace rudder::steer::capture
