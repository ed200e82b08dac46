// Computes the sizes of the tables and buffers of the taps from the settings. Called once at start.
#pragma once

#include <cstdint>

#include "rudder/base/result.h"
#include "rudder/tap/capture.h"
#include "rudder/tap/site.h"

namespace rudder::exec {

// From the settings; all off: no byte is spent on taps.
struct TapAsk {
  bool enable_steering = false;
  int32_t max_steering_rows = 0;
  int64_t steering_bytes = 0;  // of vectors on the device; 0 = what the rows are likely to need
  int64_t capture_bytes = 0;   // of captured rows on the device; 0 = no capture
  // The same for embeddings alone, where capture is off; what there is of capture does for both.
  int64_t embedding_bytes = 0;
  int32_t max_num_seqs = 0;
  int32_t max_in_flight = 0;
  bool reads_aside = false;  // of the backend: it has ReaderOps
  int64_t reader_bytes = 0;  // of those
  bool encodes = false;      // of the backend: it has FeatureOps
  // Of encoders that captured rows are read by on the device; 0: the host reads them, or there are
  // no dictionaries.
  int64_t feature_bytes = 0;
  bool patterns = false;  // of the backend: it has PatternOps
  bool routers = false;   // RouterTapOps
};

// An Error names the setting to change and what it must be at least.
Result<tap::Limits> tap_limits(const TapAsk& ask, const tap::Geometry& geometry);

}  // namespace rudder::exec
