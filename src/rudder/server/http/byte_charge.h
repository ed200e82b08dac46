// Bytes that requests and answers hold, counted against a bound on those of all together. Any
// thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

namespace rudder::server {

// Bytes held by everybody who counts here. Shared: an engine's sinks may let go of a request after
// the server has been destroyed.
using ByteTotal = std::shared_ptr<std::atomic<int64_t>>;

// Bytes that one holder has, part of the total until they are let go. One thread at a time.
class ByteCharge {
 public:
  explicit ByteCharge(ByteTotal total) : total_(std::move(total)) {}
  ~ByteCharge() { release(); }
  ByteCharge(const ByteCharge&) = delete;
  ByteCharge& operator=(const ByteCharge&) = delete;

  // It holds `bytes` now. False when it has grown and all together are then more than `limit`.
  bool set(int64_t bytes, int64_t limit) {
    const int64_t more = bytes - std::exchange(bytes_, bytes);
    if (more == 0) return true;
    return total_->fetch_add(more, std::memory_order_relaxed) + more <= limit || more < 0;
  }
  void release() { total_->fetch_sub(std::exchange(bytes_, 0), std::memory_order_relaxed); }

 private:
  const ByteTotal total_;
  int64_t bytes_ = 0;
};

// A text that several answers may be at the same time. It is held, and counted, once.
using SharedText = std::shared_ptr<const std::string>;

inline SharedText share_text(std::string text, const ByteTotal& total) {
  struct Charged {
    explicit Charged(const ByteTotal& all) : charge(all) {}
    std::string text;
    ByteCharge charge;
  };
  auto charged = std::make_shared<Charged>(total);
  charged->charge.set(static_cast<int64_t>(text.size()), INT64_MAX);
  charged->text = std::move(text);
  return {charged, &charged->text};
}

}  // namespace rudder::server
