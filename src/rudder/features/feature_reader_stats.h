// Counters of a reader of features: plain values for metrics.
#pragma once

#include <cstdint>

namespace rudder::features {

struct FeatureReaderStats {
  bool on_device = false;
  uint64_t rows = 0;        // read
  uint64_t batches = 0;     // in so many calls of the device, or passes over the encoder
  uint64_t loads = 0;       // dictionaries that were put on the device
  uint64_t load_bytes = 0;  // of those
  uint64_t evictions = 0;   // that made room for others
  int64_t held_bytes = 0;   // that dictionaries take on the device now
};

}  // namespace rudder::features
