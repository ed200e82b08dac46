// RangePool: first-fit allocation of ranges out of [0, size). Plain bookkeeping, one thread.
#pragma once

#include <cstdint>
#include <vector>

namespace rudder {

class RangePool {
 public:
  explicit RangePool(int64_t size);

  // The lowest place with room, or -1. A range of length 0 is at 0 and costs nothing.
  int64_t allocate(int64_t length);
  void free(int64_t begin, int64_t length);

  int64_t size() const { return size_; }
  int64_t used() const { return used_; }

 private:
  struct Hole {
    int64_t begin = 0;
    int64_t length = 0;
  };
  int64_t size_;
  int64_t used_ = 0;
  std::vector<Hole> holes_;  // ascending, not adjacent
};

}  // namespace rudder
