#include "rudder/base/range_pool.h"

#include <algorithm>

#include "rudder/base/check.h"

namespace rudder {

RangePool::RangePool(int64_t size) : size_(size) {
  if (size > 0) holes_.push_back({0, size});
}

int64_t RangePool::allocate(int64_t length) {
  if (length == 0) return 0;
  const auto hole =
      std::ranges::find_if(holes_, [&](const Hole& one) { return one.length >= length; });
  if (hole == holes_.end()) return -1;
  const int64_t begin = hole->begin;
  hole->begin += length;
  hole->length -= length;
  if (hole->length == 0) holes_.erase(hole);
  used_ += length;
  return begin;
}

void RangePool::free(int64_t begin, int64_t length) {
  if (length == 0) return;
  auto next = std::ranges::lower_bound(holes_, begin, {}, &Hole::begin);
  const bool joins_next = next != holes_.end() && begin + length == next->begin;
  const bool joins_last = next != holes_.begin() && (next - 1)->begin + (next - 1)->length == begin;
  RUDDER_CHECK((next == holes_.end() || begin + length <= next->begin) &&
                   (next == holes_.begin() || (next - 1)->begin + (next - 1)->length <= begin),
               "range [{}, {}) is freed twice", begin, begin + length);
  used_ -= length;
  if (joins_last && joins_next) {
    (next - 1)->length += length + next->length;
    holes_.erase(next);
  } else if (joins_last) {
    (next - 1)->length += length;
  } else if (joins_next) {
    next->begin = begin;
    next->length += length;
  } else {
    holes_.insert(next, {begin, length});
  }
}

}  // namespace rudder
