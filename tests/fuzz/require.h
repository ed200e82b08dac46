// What fuzz targets share: the check of a property, and the numbers by which a target makes choices
// of its own that depend on the input alone. Every target defines void fuzz_<name>(std::string_view
// input); the bytes are the input's, and live until it returns.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <random>
#include <string_view>

#include "rudder/base/check.h"
#include "rudder/base/cpu_time.h"
#include "rudder/base/result.h"

namespace rudder::fuzz {

// The same input makes the same choices.
inline std::mt19937_64 choices_of(std::string_view input) {
  uint64_t seed = 0xcbf29ce484222325;
  for (const char byte : input) seed = (seed ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
  return std::mt19937_64(seed);
}

// An error that may be told: of one of these kinds, with a message, at a place below `root`.
inline void require_error(const Error& error, std::initializer_list<ErrorCode> codes,
                          std::string_view root = {}) {
  RUDDER_CHECK(std::ranges::find(codes, error.code) != codes.end(), "{}", error.to_string());
  RUDDER_CHECK(!error.message.empty(), "{}", error.to_string());
  RUDDER_CHECK(error.where.starts_with(root), "{} is not at {}", error.to_string(), root);
}

// One input takes at most this much CPU time, sanitizers included: work is bounded by the input's
// size or by a limit.
class CpuBound {
 public:
  explicit CpuBound(double seconds) : seconds_(seconds), begin_(thread_cpu_seconds()) {}
  ~CpuBound() {
    const double taken = thread_cpu_seconds() - begin_;
    RUDDER_CHECK(taken < seconds_, "it took {} s of CPU time", taken);
  }
  CpuBound(const CpuBound&) = delete;
  CpuBound& operator=(const CpuBound&) = delete;

 private:
  const double seconds_;
  const double begin_;
};

}  // namespace rudder::fuzz
