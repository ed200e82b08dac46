// CharSet: a set of Unicode scalar values (code points except surrogates), kept as ordered,
// disjoint ranges. Plain value.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <vector>

namespace rudder::constraint {

struct CharRange {
  uint32_t first = 0;
  uint32_t last = 0;  // inclusive
  bool operator==(const CharRange&) const = default;
};

class CharSet {
 public:
  CharSet() = default;
  CharSet(std::initializer_list<CharRange> ranges);
  // Of ranges in any order, which may overlap; sorts them once.
  static CharSet of(std::vector<CharRange> ranges);
  static CharSet all();

  void add(uint32_t first, uint32_t last);
  void add(const CharSet& other);
  CharSet complement() const;  // within all()
  CharSet without(const CharSet& other) const;
  bool contains(uint32_t c) const;
  bool empty() const { return ranges_.empty(); }
  const std::vector<CharRange>& ranges() const { return ranges_; }
  bool operator==(const CharSet&) const = default;

 private:
  std::vector<CharRange> ranges_;
};

// Characters whose UTF-8 is a product of ranges of bytes, one for each byte.
struct Utf8Range {
  size_t size = 0;
  std::array<uint8_t, 4> first = {};
  std::array<uint8_t, 4> last = {};
};
// Calls `take` for ranges that together are the set.
void for_each_utf8_range(const CharSet& set, const std::function<void(const Utf8Range&)>& take);

}  // namespace rudder::constraint
