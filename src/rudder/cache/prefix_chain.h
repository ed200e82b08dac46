// PrefixChain: a sequence's tokens as prefix blocks, and the keys of these blocks. BlockCache makes
// chains for the sequences that it serves; who routes requests makes them likewise, and so finds
// the same keys. Plain values; a ChainHasher is immutable, any thread.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "rudder/cache/block_key.h"

namespace rudder::cache {

struct PrefixChain {
  std::shared_ptr<const std::string> salt;
  BlockKey root;
  std::vector<ContentRun> runs;  // by position in the sequence, as in BlockContent
  std::vector<BlockKey> keys;    // of its full blocks, as far as they were asked for
};

// What block keys depend on besides a sequence.
struct KeyOptions {
  std::array<uint64_t, 2> hash_key = {};
  std::string model_identity;
  int32_t hash_bits = 128;
  int32_t block_size = 16;
};

class ChainHasher {
 public:
  explicit ChainHasher(const KeyOptions& options)
      : hasher_(options.hash_key, options.model_identity, options.hash_bits),
        block_size_(options.block_size) {}

  const KeyHasher& hasher() const { return hasher_; }
  // `runs`: what the sequence's tokens are computed under, those to come among them; ascending,
  // disjoint, of any length.
  PrefixChain begin(std::string salt, std::span<const ContentRun> runs) const;
  // The same sequence under the keys of this hasher, where it had another's.
  void restart(PrefixChain& chain) const;
  static void set_runs(PrefixChain& chain, std::span<const ContentRun> runs);
  // Key of full block `i` of `tokens`; kept in the chain. `runs` is scratch.
  const BlockKey& key(PrefixChain& chain, std::span<const int32_t> tokens, int32_t i,
                      std::vector<ContentRun>& runs) const;
  // Full block `i`; its runs are in `runs`.
  BlockContent content(const PrefixChain& chain, std::span<const int32_t> tokens, int32_t i,
                       std::vector<ContentRun>& runs) const;

 private:
  KeyHasher hasher_;
  int32_t block_size_;
};

}  // namespace rudder::cache
