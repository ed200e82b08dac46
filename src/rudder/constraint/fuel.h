// Fuel: how much work and how many bytes of memory one compile of a form may still use, and whether
// anybody still waits for it. Every loop of translation and compilation whose length a client
// decides burns some. When it is used up it stays so: functions then return early with what they
// have, and the caller that began the compile reports error(). Each compile has one, on one thread;
// any thread may set `cancelled`.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "rudder/base/result.h"

namespace rudder::constraint {

class Fuel {
 public:
  // A unit of work is some 10 to 15 ns: a step of an automaton over a byte. What a piece of work
  // burns was measured on forms that consist of it (compile_limits_test prints both), so that
  // none takes two seconds.
  static constexpr int64_t kWork = 110'000'000;
  // Of what is counted; with what the allocator adds, and copies for a moment, 64 MiB at the most.
  static constexpr int64_t kBytes = int64_t{48} << 20;
  // Of what is translated on a thread that other requests wait for, in all for one request.
  static constexpr int64_t kRequestWork = kWork / 8;

  // Of what could wait, in all for one form: twenty milliseconds.
  static constexpr int64_t kAhead = 2'000'000;

  explicit Fuel(int64_t work = kWork, int64_t bytes = kBytes,
                const std::atomic<bool>* cancelled = nullptr)
      : work_(work), bytes_(bytes), cancelled_(cancelled) {}
  Fuel(const Fuel&) = delete;
  Fuel& operator=(const Fuel&) = delete;

  // False when it is out.
  bool burn(int64_t work) {
    work_ -= work;
    used_ += work;
    return !out();
  }
  // Counts memory that the compiled form, or an intermediate step, holds.
  bool hold(int64_t bytes) {
    bytes_ -= bytes;
    held_ += bytes;
    return !out();
  }
  // Memory of an intermediate step that is free again.
  void release(int64_t bytes) {
    if (bytes_ >= 0) bytes_ += bytes;
    held_ -= bytes;
  }
  // Of work that could wait until it is needed, a part does at most half of what is left for it: a
  // form of many parts is not much dearer than one of few.
  int64_t left_ahead() const { return std::min(ahead_ / 2, left() / 16); }
  void burn_ahead(int64_t work) {
    ahead_ -= std::min(ahead_, work);
    burn(work);
  }
  // Work that may still be done.
  int64_t left() const { return out() ? 0 : work_; }
  // Whether so much more memory may be held; it is out when not.
  bool can_hold(int64_t bytes) {
    const bool fits = hold(bytes);
    release(bytes);
    return fits;
  }
  bool out() const {
    return work_ < 0 || bytes_ < 0 ||
           (cancelled_ != nullptr && cancelled_->load(std::memory_order_relaxed));
  }
  int64_t held() const { return held_; }
  int64_t used() const { return used_; }  // of the work

  // Why it is out. kCancelled when nobody waits; otherwise the form is at fault.
  Error error() const {
    if (cancelled_ != nullptr && cancelled_->load(std::memory_order_relaxed)) {
      return {ErrorCode::kCancelled, "nobody waits for the form any longer", ""};
    }
    return {ErrorCode::kInvalidArgument,
            bytes_ < 0 ? "is too complex: it takes too much memory to compile"
                       : "is too complex: it takes too long to compile",
            ""};
  }

 private:
  int64_t work_;
  int64_t bytes_;
  int64_t ahead_ = kAhead;
  int64_t held_ = 0;
  int64_t used_ = 0;
  const std::atomic<bool>* const cancelled_;
};

// Memory of an intermediate step, counted while this lives.
class Held {
 public:
  explicit Held(Fuel& fuel, int64_t bytes = 0) : fuel_(fuel) { add(bytes); }
  ~Held() { fuel_.release(bytes_); }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

  // False when the fuel is out.
  bool add(int64_t bytes) {
    bytes_ += bytes;
    return fuel_.hold(bytes);
  }

 private:
  Fuel& fuel_;
  int64_t bytes_ = 0;
};

}  // namespace rudder::constraint
