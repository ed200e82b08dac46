// SHA-256 (FIPS 180-4), so that `sha256sum` can check captured files. It uses the CPU's SHA
// instructions where there are any. One thread for each hasher.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace rudder::steer::capture {

class Sha256 {
 public:
  Sha256();
  void update(std::span<const std::byte> bytes);
  std::string finish_hex();  // 64 digits, lower case; once

 private:
  void compress(const std::byte* blocks, size_t count);

  std::array<uint32_t, 8> state_;
  std::array<std::byte, 64> pending_ = {};
  uint64_t length_ = 0;  // bytes; the last length_ % 64 of them are in pending_
};

// The two forms of the same function, for the test that compares them.
void sha256_blocks_portable(std::array<uint32_t, 8>& state, const std::byte* blocks, size_t count);
bool sha256_has_instructions();
void sha256_blocks_instructions(std::array<uint32_t, 8>& state, const std::byte* blocks,
                                size_t count);

}  // namespace rudder::steer::capture
