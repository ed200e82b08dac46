// The option `patterns` of the consumer `response`: of which layers and heads attention patterns
// are told, and how many keys a row may have (ADR 0050). Pure functions; any thread.
#pragma once

#include <boost/json/fwd.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/tap/capture.h"
#include "rudder/tap/site.h"

namespace rudder::steer::capture {

struct PatternAsk {
  struct Layer {
    int32_t layer = 0;
    std::vector<int32_t> heads;  // in the order of the request
  };
  std::vector<Layer> layers;  // ascending; empty: nothing is asked
  int32_t keys = 0;

  bool empty() const { return layers.empty(); }
  // As the device captures them.
  std::vector<tap::CapturePattern> captured() const;
};

// {"layers": forms of numbered.h or "all", "heads"?: likewise, of each layer, "keys"?: 1 to 2^20}.
// Nothing where `fields` has no "patterns". kInvalidArgument at the part that is wrong.
Result<PatternAsk> parse_patterns(const boost::json::object& fields, const std::string& path,
                                  const tap::Geometry& geometry);

// One entry a layer, ascending: all heads that some of `asked` names, and the most keys.
std::vector<tap::CapturePattern> merge_patterns(std::vector<tap::CapturePattern> asked);

}  // namespace rudder::steer::capture
