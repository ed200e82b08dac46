// TokenTable: token strings by id and ids by string, in flat memory (no node per token), because
// vocabularies have 100,000s of entries and the lookups are on the encode path. Built at load, then
// immutable: safe from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace rudder::text {

// A fast hash of a short byte string; not for untrusted tables that grow.
uint64_t hash_bytes(std::string_view text);

// String -> id, open addressing over strings that live elsewhere.
class StringIndex {
 public:
  void reserve(size_t count);
  // The first of two equal keys stays; false for the second. `key` must outlive the index.
  bool insert(std::string_view key, int32_t id);
  // -1 if absent.
  int32_t find(std::string_view key) const;

 private:
  struct Slot {
    std::string_view key;
    int32_t id = -1;
  };
  std::vector<Slot> slots_;
  size_t count_ = 0;
};

// id -> string. Holes are empty strings with contains() false.
class TokenTable {
 public:
  void set(int32_t id, std::string_view text);
  bool contains(int32_t id) const {
    return id >= 0 && static_cast<size_t>(id) < spans_.size() && spans_[id].present;
  }
  // Empty if absent. The view is stable only once the table is complete.
  std::string_view get(int32_t id) const {
    if (!contains(id)) return {};
    return {bytes_.data() + spans_[id].begin, spans_[id].size};
  }
  int32_t size() const { return static_cast<int32_t>(spans_.size()); }

 private:
  struct Span {
    uint32_t begin = 0;
    uint32_t size : 31 = 0;
    uint32_t present : 1 = 0;
  };
  std::vector<char> bytes_;  // a vector: views stay good when the table is moved
  std::vector<Span> spans_;
};

}  // namespace rudder::text
