// Keys of prefix blocks: 128-bit keyed hashes, chained. The key of a prompt's first block hangs on
// a root key of {model identity, tenant salt}; each further key covers its parent key and the token
// ids of its own block. Every field is preceded by its length. Any thread; plain values.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace rudder::kv {

struct BlockKey {
  uint64_t low = 0;
  uint64_t high = 0;
  bool operator==(const BlockKey&) const = default;
};

class KeyHasher {
 public:
  // Keeps `bits` (1 to 128) of each hash: tests force collisions with few.
  KeyHasher(std::array<uint64_t, 2> secret, std::string model_identity, int32_t bits);

  BlockKey root(std::string_view salt) const;
  BlockKey child(const BlockKey& parent, std::span<const int32_t> tokens) const;

 private:
  BlockKey truncate(const std::array<uint64_t, 2>& hash) const;

  std::array<uint64_t, 2> secret_;
  std::string model_identity_;
  BlockKey mask_;
};

}  // namespace rudder::kv
