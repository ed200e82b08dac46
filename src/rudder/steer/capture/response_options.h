// Reads and checks the request options of the consumer `response`.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rudder/features/feature_reader.h"
#include "rudder/steer/capture/consumer.h"
#include "rudder/steer/capture/feature_ask.h"
#include "rudder/steer/capture/pattern_ask.h"
#include "rudder/steer/heads.h"

namespace rudder::steer::capture {

enum class Measure : uint8_t { kDot, kProjection, kCosine };

struct Probe {
  std::string name;
  std::vector<std::vector<float>> vectors;  // by point of the consumer
  std::vector<double> norms;                // of the vectors
};

// What the lens reads: rows of resid_post of some layers.
struct LensAsk {
  std::vector<int32_t> layers;  // ascending; empty: nothing
  int32_t top = 0;
  std::optional<int32_t> stream = {};  // of a residual that has several; none: collapsed
};

class ResponseOptions final : public ConsumerOptions {
 public:
  std::vector<tap::CapturePoint> points;  // of `sites`: rows, means, norms and probes are of these
  std::vector<PartList> heads;            // by point, or none: rows are whole
  LensAsk lens;
  features::FeatureAsk features;
  PatternAsk patterns;
  bool rows = false;
  bool means = false;
  bool norms = false;
  bool as_float32 = false;
  Measure measure = Measure::kDot;
  std::vector<Probe> probes;
};

// What parse_response_options needs to know.
struct ResponseContext {
  tap::Geometry geometry;
  VectorLookup lookup;
  DictionaryLookup dictionaries = {};
  bool has_lens = false;
  int32_t max_lens_top = 0;
  std::shared_ptr<features::FeatureReader> features = nullptr;
};

// Errors as OptionsParser::parse_options gives them.
Result<std::shared_ptr<const ResponseOptions>> parse_response_options(
    const boost::json::object& fields, const AskedRows& rows, const std::string& path,
    const ResponseContext& context);

// {"layers": as of a site, "top"?: 5}; nothing where `fields` has no "lens". kUnsupported where
// there is no lens.
Result<LensAsk> parse_lens(const boost::json::object& fields, const std::string& path,
                           const ResponseContext& context);

}  // namespace rudder::steer::capture
