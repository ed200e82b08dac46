// MaskMemo: keeps masks that took long to compute, under keys that cover everything that a mask
// depends on (parser_shape.h). Equal parser states recur within an output and in all outputs of a
// form. One memo serves all forms of a vocabulary; it is bounded in bytes and drops the least
// recently used first. Matchers on several threads share it; a thread waits for a lookup at most.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace rudder::constraint {

class MaskMemo {
 public:
  struct Stats {
    uint64_t lookups = 0;
    uint64_t hits = 0;
    size_t bytes = 0;
  };

  explicit MaskMemo(size_t max_bytes) : max_bytes_(max_bytes) {}

  // Adds the bits that are kept under `key`; returns how many words of the mask have some. Nothing,
  // and no change, when none are kept.
  std::optional<size_t> add_to(std::span<uint32_t> mask, std::string_view key);
  void keep(std::span<const uint32_t> mask, std::string_view key);

  Stats stats() const;

 private:
  struct Word {
    uint32_t at = 0;
    uint32_t bits = 0;
  };
  using Words = std::vector<Word>;  // those of a mask that are not 0: few where many are kept
  struct Entry {
    std::string key;
    std::shared_ptr<const Words> words;
    size_t bytes() const;
  };

  const size_t max_bytes_;
  mutable std::mutex mutex_;
  std::list<Entry> entries_;  // the one used last is first
  std::unordered_map<std::string_view, std::list<Entry>::iterator> index_;
  Stats stats_;
};

}  // namespace rudder::constraint
