// Keys of prefix blocks: chained 128-bit keyed hashes. Each key covers its parent key, the token
// ids of its own block, and the steering programs that ran on them; the parent key of a prompt's
// first block is a root key of {model identity, tenant salt}. Every field is preceded by its
// length. Plain values; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace rudder::cache {

struct BlockKey {
  uint64_t low = 0;
  uint64_t high = 0;
  bool operator==(const BlockKey&) const = default;
};

// Tokens [begin, end) were computed under the steering program with the key `content`. Tokens
// outside all runs were computed without one.
struct ContentRun {
  int32_t begin = 0;
  int32_t end = 0;
  std::array<uint64_t, 2> content = {};
  bool operator==(const ContentRun&) const = default;
};

// What a full block holds. Runs are ascending and disjoint, neighbours of equal content are one,
// and positions count from the block's first token: equal blocks, equal runs.
struct BlockContent {
  std::span<const int32_t> tokens;
  std::span<const ContentRun> runs;
};

class KeyHasher {
 public:
  // Keeps `bits` (1 to 128) of each hash: tests force collisions with few.
  KeyHasher(std::array<uint64_t, 2> secret, std::string model_identity, int32_t bits);

  BlockKey root(std::string_view salt) const;
  BlockKey child(const BlockKey& parent, const BlockContent& block) const;

 private:
  BlockKey truncate(const std::array<uint64_t, 2>& hash) const;

  std::array<uint64_t, 2> secret_;
  std::string model_identity_;
  BlockKey mask_;
};

}  // namespace rudder::cache
