// TokenCache: the ids of texts that were tokenised lately. A router asks each of its workers to
// render a request and then sends it to one of them, with fields of its own added: so a text is
// looked up and not a body. Tenants do not see each other's texts, not even by the time that an
// answer takes. Bounded in bytes, least recently used first. Any thread.
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/text/tokenizer.h"

namespace rudder::server {

class TokenCache {
 public:
  struct Stats {
    uint64_t queries = 0;
    uint64_t hits = 0;
    int64_t bytes = 0;
  };

  // 0 bytes: nothing is kept.
  explicit TokenCache(int64_t max_bytes);

  // As tokenizer.encode(); `tokenizer` is the same in every call.
  Result<std::vector<int32_t>> encode(const text::Tokenizer& tokenizer, std::string_view text,
                                      const text::EncodeOptions& options, int32_t tenant);
  Stats stats() const;

 private:
  using Key = std::array<uint64_t, 2>;
  using Ids = std::shared_ptr<const std::vector<int32_t>>;
  struct KeyHash {
    size_t operator()(const Key& key) const { return key[0]; }
  };
  struct Entry {
    Key key;
    Ids ids;
  };

  Key key_of(std::string_view text, const text::EncodeOptions& options, int32_t tenant) const;
  Ids find(const Key& key);
  void keep(const Key& key, const std::vector<int32_t>& ids);

  const int64_t max_bytes_;
  const Key secret_;
  mutable std::mutex mutex_;
  std::list<Entry> entries_;  // the last used first
  std::unordered_map<Key, std::list<Entry>::iterator, KeyHash> by_key_;
  Stats stats_;
};

// Where prompts of one tenant may be looked up; no cache: nowhere.
struct TokenLookup {
  TokenCache* cache = nullptr;
  int32_t tenant = 0;
};

}  // namespace rudder::server
