// ByteCursor: reads little-endian values of a binary file one after another, and never past its
// end. Parsers of files use it. A plain value; one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

namespace rudder::weights {

// A read that would go past the end fails, and so does every later one.
class ByteCursor {
 public:
  explicit ByteCursor(std::span<const std::byte> bytes, size_t at = 0) : bytes_(bytes), at_(at) {
    if (at > bytes.size()) failed_ = true;
  }

  template <typename T>
  T take() {
    T value = {};
    const auto taken = take_bytes(sizeof(T));
    if (!failed_) std::memcpy(&value, taken.data(), sizeof(T));
    return value;
  }
  std::span<const std::byte> take_bytes(uint64_t count) {
    if (failed_ || count > bytes_.size() - at_) {
      failed_ = true;
      return {};
    }
    const auto taken = bytes_.subspan(at_, count);
    at_ += count;
    return taken;
  }
  std::string_view take_text(uint64_t count) {
    const auto taken = take_bytes(count);
    return {reinterpret_cast<const char*>(taken.data()), taken.size()};
  }

  bool failed() const { return failed_; }
  size_t at() const { return at_; }
  size_t left() const { return failed_ ? 0 : bytes_.size() - at_; }

 private:
  std::span<const std::byte> bytes_;
  size_t at_;
  bool failed_ = false;
};

}  // namespace rudder::weights
