#include "rudder/constraint/char_set.h"

#include <algorithm>
#include <string>

#include "rudder/base/utf8.h"

namespace rudder::constraint {
namespace {

// What is not a product of ranges of bytes is cut until it is.
void add_utf8_range(uint32_t first, uint32_t last,
                    const std::function<void(const Utf8Range&)>& take) {
  const auto cut = [&](uint32_t at) {  // behind `at`
    add_utf8_range(first, at, take);
    add_utf8_range(at + 1, last, take);
  };
  for (const uint32_t most : {0x7Fu, 0x7FFu, 0xFFFFu}) {
    if (first <= most && last > most) return cut(most);
  }
  const int bytes = first <= 0x7F ? 1 : first <= 0x7FF ? 2 : first <= 0xFFFF ? 3 : 4;
  for (int low = 1; low < bytes; ++low) {
    const uint32_t bits = (uint32_t{1} << (6 * low)) - 1;
    if ((first & ~bits) == (last & ~bits)) continue;
    if ((first & bits) != 0) return cut(first | bits);
    if ((last & bits) != bits) return cut((last & ~bits) - 1);
  }
  std::string lowest;
  std::string highest;
  append_utf8(lowest, first);
  append_utf8(highest, last);
  Utf8Range range = {.size = lowest.size()};
  std::copy(lowest.begin(), lowest.end(), range.first.begin());
  std::copy(highest.begin(), highest.end(), range.last.begin());
  take(range);
}

}  // namespace

void for_each_utf8_range(const CharSet& set, const std::function<void(const Utf8Range&)>& take) {
  const CharSet encodable = set.without({{0xD800, 0xDFFF}});  // surrogates have no UTF-8 form
  for (const CharRange& range : encodable.ranges()) {
    add_utf8_range(range.first, range.last, take);
  }
}

CharSet::CharSet(std::initializer_list<CharRange> ranges) {
  for (const CharRange& range : ranges) add(range.first, range.last);
}

CharSet CharSet::of(std::vector<CharRange> ranges) {
  std::ranges::sort(ranges, {}, &CharRange::first);
  CharSet set;
  std::vector<CharRange>& merged = set.ranges_;
  for (const CharRange& range : ranges) {
    if (merged.empty() || range.first > uint64_t{merged.back().last} + 1) {
      merged.push_back(range);
    } else {
      merged.back().last = std::max(merged.back().last, range.last);
    }
  }
  return set;
}

CharSet CharSet::all() {
  return {{0, 0xD7FF}, {0xE000, 0x10FFFF}};
}

void CharSet::add(uint32_t first, uint32_t last) {
  // What touches the new range becomes part of it.
  const auto begin = std::partition_point(
      ranges_.begin(), ranges_.end(),
      [&](const CharRange& range) { return uint64_t{range.last} + 1 < first; });
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
