// What the link between a device's memory and the host's carries, and what of it records of cached
// prefixes get: part of `rudder bench tiers`. Nothing else runs; main thread.
#pragma once

#include <cstdint>
#include <string>

#include "rudder/base/result.h"
#include "rudder/exec/memory_budget.h"
#include "rudder/ops/ops.h"

namespace rudder::apps {

// In GB/s, 10^9 bytes; medians. In: to the device.
struct LinkRates {
  int64_t record_bytes = 0;
  double start_seconds = 0;  // to get so much host memory and pin it
  double start_gib = 0;
  double piece_in = 0;  // one copy of many MiB: the link's own rate
  double piece_out = 0;
  double pieces_in = 0;    // of a record's size, in one call
  double checksum = 0;     // of one thread, over memory that no cache has
  double records_in = 0;   // checksums compared
  double records_out = 0;  // and made
  double files_out = 0;    // from host memory to files; 0: without a folder
  double files_in = 0;     // from files to the device
};

// Of records of a block of the model that `budget` is of; files go to `folder`, empty: none.
Result<LinkRates> measure_link(ops::Ops& ops, const exec::MemoryBudget& budget,
                               const std::string& folder);

}  // namespace rudder::apps
