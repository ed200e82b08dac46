// Row: a vector inside a buffer. Plain values; any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

namespace rudder::tap {

// A vector inside a buffer that many may share. Equal rows are the same part of one buffer.
struct Row {
  std::shared_ptr<const float[]> buffer;
  int64_t begin = 0;
  int32_t width = 0;

  bool empty() const { return width == 0; }
  std::span<const float> values() const {
    return {buffer.get() + begin, static_cast<size_t>(width)};
  }
  bool operator==(const Row&) const = default;
};

}  // namespace rudder::tap
