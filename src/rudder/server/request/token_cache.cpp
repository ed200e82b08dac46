#include "rudder/server/request/token_cache.h"

#include <random>
#include <span>
#include <utility>

#include "rudder/base/siphash.h"

namespace rudder::server {
namespace {

// Shorter ones are tokenised about as fast as they are found.
constexpr size_t kLeastBytes = 256;
constexpr int64_t kTokenEntryBytes = 160;  // of a list, a map and a vector, roughly
constexpr int64_t kLeastEntries = 4;       // that have room: a larger one is not kept

std::array<uint64_t, 2> draw_secret() {
  std::random_device device;
  const auto word = [&] { return uint64_t{device()} << 32 | device(); };
  return {word(), word()};
}

int64_t size_of(const std::vector<int32_t>& ids) {
  return kTokenEntryBytes + static_cast<int64_t>(ids.size() * sizeof(int32_t));
}

}  // namespace

TokenCache::TokenCache(int64_t max_bytes) : max_bytes_(max_bytes), secret_(draw_secret()) {}

// 128 bits under a secret: equal keys are equal texts.
TokenCache::Key TokenCache::key_of(std::string_view text, const text::EncodeOptions& options,
                                   int32_t tenant) const {
  SipHash128 hash(secret_);
  hash.update(static_cast<uint64_t>(tenant));
  hash.update(uint64_t{options.add_special_tokens} << 1 | uint64_t{options.parse_special});
  hash.update(uint64_t{options.max_ids});
  hash.update(std::as_bytes(std::span(text)));
  return hash.finish();
}

Result<std::vector<int32_t>> TokenCache::encode(const text::Tokenizer& tokenizer,
                                                std::string_view text,
                                                const text::EncodeOptions& options,
                                                int32_t tenant) {
  if (max_bytes_ == 0 || text.size() < kLeastBytes) return tokenizer.encode(text, options);
  const Key key = key_of(text, options, tenant);
  if (const Ids found = find(key)) return *found;
  Result<std::vector<int32_t>> ids = tokenizer.encode(text, options);
  if (ids) keep(key, *ids);
  return ids;
}

TokenCache::Ids TokenCache::find(const Key& key) {
  const std::lock_guard lock(mutex_);
  ++stats_.queries;
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return nullptr;
  ++stats_.hits;
  entries_.splice(entries_.begin(), entries_, found->second);
  return found->second->ids;
}

void TokenCache::keep(const Key& key, const std::vector<int32_t>& ids) {
  const int64_t bytes = size_of(ids);
  if (bytes > max_bytes_ / kLeastEntries) return;
  auto kept = std::make_shared<const std::vector<int32_t>>(ids);
  const std::lock_guard lock(mutex_);
  if (by_key_.contains(key)) return;  // another thread was faster
  entries_.push_front({key, std::move(kept)});
  by_key_.emplace(key, entries_.begin());
  stats_.bytes += bytes;
  while (stats_.bytes > max_bytes_) {
    stats_.bytes -= size_of(*entries_.back().ids);
    by_key_.erase(entries_.back().key);
    entries_.pop_back();
  }
}

TokenCache::Stats TokenCache::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

}  // namespace rudder::server
