#include "rudder/cache/block_key.h"

#include <utility>

#include "rudder/base/check.h"
#include "rudder/base/mutants.h"
#include "rudder/base/siphash.h"

namespace rudder::cache {

namespace {

// First word of a message, so that no root message is a block message.
constexpr uint64_t kRootMessage = 1;
constexpr uint64_t kBlockMessage = 2;

void update_with_length(SipHash128& hash, std::span<const std::byte> bytes) {
  hash.update(uint64_t{bytes.size()});
  hash.update(bytes);
}

}  // namespace

KeyHasher::KeyHasher(std::array<uint64_t, 2> secret, std::string model_identity, int32_t bits)
    : secret_(secret), model_identity_(std::move(model_identity)) {
  RUDDER_CHECK(bits >= 1 && bits <= 128, "hash_bits {}", bits);
  mask_.low = bits >= 64 ? ~uint64_t{0} : (uint64_t{1} << bits) - 1;
  mask_.high = bits == 128 ? ~uint64_t{0} : bits > 64 ? (uint64_t{1} << (bits - 64)) - 1 : 0;
}

BlockKey KeyHasher::root(std::string_view salt) const {
  SipHash128 hash(secret_);
  hash.update(kRootMessage);
  update_with_length(hash, std::as_bytes(std::span(model_identity_)));
  if (!RUDDER_MUTANT(kHashWithoutSalt)) update_with_length(hash, std::as_bytes(std::span(salt)));
  return truncate(hash.finish());
}

BlockKey KeyHasher::child(const BlockKey& parent, const BlockContent& block) const {
  SipHash128 hash(secret_);
  hash.update(kBlockMessage);
  hash.update(parent.low);
  hash.update(parent.high);
  update_with_length(hash, std::as_bytes(block.tokens));
  if (!block.runs.empty()) hash.update(uint64_t{block.runs.size()});
  for (const ContentRun& run : block.runs) {
    hash.update(static_cast<uint64_t>(run.begin));
    hash.update(static_cast<uint64_t>(run.end));
    for (const uint64_t word : run.content) hash.update(word);
  }
  return truncate(hash.finish());
}

BlockKey KeyHasher::truncate(const std::array<uint64_t, 2>& hash) const {
  return {hash[0] & mask_.low, hash[1] & mask_.high};
}

}  // namespace rudder::cache
