// CharSet: a set of Unicode scalar values (code points but for surrogates) as ordered, disjoint
// ranges. Plain values.
#pragma once

#include <cstdint>
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

}  // namespace rudder::constraint
