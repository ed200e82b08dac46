#include "rudder/base/heap.h"

#include <malloc.h>

namespace rudder {
namespace {

// What a body of a megabyte of vectors is read into stays the thread's. Mapped anew for each
// request, 32 of them at once wait for one another's page tables: 23 ms in place of 7 on two cores.
constexpr int kMappedFrom = 4 << 20;
constexpr int kKeptEnd = 4 << 20;  // of each arena

}  // namespace

void limit_kept_memory() {
  mallopt(M_MMAP_THRESHOLD, kMappedFrom);
  mallopt(M_TRIM_THRESHOLD, kKeptEnd);
}

void return_freed_memory() {
  malloc_trim(0);
}

}  // namespace rudder
