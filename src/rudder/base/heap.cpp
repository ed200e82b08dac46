#include "rudder/base/heap.h"

#include <malloc.h>

namespace rudder {
namespace {

constexpr int kMappedFrom = 256 << 10;
constexpr int kKeptEnd = 256 << 10;  // of each arena

}  // namespace

void limit_kept_memory() {
  mallopt(M_MMAP_THRESHOLD, kMappedFrom);
  mallopt(M_TRIM_THRESHOLD, kKeptEnd);
}

void return_freed_memory() {
  malloc_trim(0);
}

}  // namespace rudder
