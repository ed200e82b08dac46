#include "rudder/constraint/char_set.h"

#include <algorithm>

namespace rudder::constraint {

CharSet::CharSet(std::initializer_list<CharRange> ranges) {
  for (const CharRange& range : ranges) add(range.first, range.last);
}

CharSet CharSet::all() {
  return {{0, 0xD7FF}, {0xE000, 0x10FFFF}};
}

void CharSet::add(uint32_t first, uint32_t last) {
  // What touches the new range becomes part of it.
  const auto begin = std::find_if(ranges_.begin(), ranges_.end(), [&](const CharRange& range) {
    return uint64_t{range.last} + 1 >= first;
  });
  const auto end = std::find_if(begin, ranges_.end(), [&](const CharRange& range) {
    return range.first > uint64_t{last} + 1;
  });
  if (begin != end) {
    first = std::min(first, begin->first);
    last = std::max(last, std::prev(end)->last);
  }
  ranges_.insert(ranges_.erase(begin, end), {first, last});
}

void CharSet::add(const CharSet& other) {
  for (const CharRange& range : other.ranges_) add(range.first, range.last);
}

CharSet CharSet::without(const CharSet& other) const {
  CharSet rest;
  for (CharRange range : ranges_) {
    for (const CharRange& hole : other.ranges_) {
      if (hole.last < range.first) continue;
      if (hole.first > range.last) break;
      if (hole.first > range.first) rest.ranges_.push_back({range.first, hole.first - 1});
      range.first = hole.last + 1;
      if (hole.last >= range.last) break;
    }
    if (range.first <= range.last) rest.ranges_.push_back(range);
  }
  return rest;
}

CharSet CharSet::complement() const {
  return all().without(*this);
}

bool CharSet::contains(uint32_t c) const {
  return std::any_of(ranges_.begin(), ranges_.end(),
                     [&](const CharRange& range) { return range.first <= c && c <= range.last; });
}

}  // namespace rudder::constraint
