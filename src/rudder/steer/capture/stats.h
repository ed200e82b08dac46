// Counters and gauges of capture: plain values for metrics. Any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rudder/features/feature_reader_stats.h"

namespace rudder::steer::capture {

struct ConsumerStats {
  std::string name;
  uint64_t rows = 0;          // handed to it
  uint64_t bytes = 0;         // of those rows
  uint64_t dropped_rows = 0;  // it was too slow, or had failed
  uint64_t spilled_rows = 0;  // went over the disk to it
  uint64_t spilled_bytes = 0;
  int64_t queued_bytes = 0;  // held for it in memory now
  int64_t spill_bytes = 0;   // held for it on the disk now
  uint64_t results_ok = 0;
  uint64_t results_partial = 0;
  uint64_t results_error = 0;
};

struct CaptureStats {
  std::vector<ConsumerStats> consumers;
  uint64_t batches = 0;      // steps that captured something
  uint64_t tokens = 0;       // records that came from the executor
  uint64_t lost_tokens = 0;  // records that it had no room for
  int64_t open_requests = 0;
  uint64_t block_us = 0;  // time that the engine waited, under the policy `block`
  features::FeatureReaderStats features;
};

}  // namespace rudder::steer::capture
