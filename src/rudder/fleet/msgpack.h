// Writes MessagePack, each value in its shortest form (github.com/msgpack/msgpack, spec.md). Only
// what KV events need. Values are appended to a string; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace rudder::fleet {

class MsgpackWriter {
 public:
  void array(size_t size);  // its elements follow
  void map(size_t size);    // its keys and values follow, in turn
  void uint(uint64_t value);
  void float64(double value);
  void text(std::string_view utf8);
  void nil();

  std::string take() { return std::move(out_); }

 private:
  void byte(uint8_t value) { out_.push_back(static_cast<char>(value)); }
  void big_endian(uint64_t value, int bytes);
  void head(size_t size, uint8_t fixed, size_t most_fixed, uint8_t sized16);

  std::string out_;
};

}  // namespace rudder::fleet
