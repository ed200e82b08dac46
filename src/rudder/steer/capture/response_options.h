// Reads and checks the request options of the consumer `response`.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "rudder/steer/capture/consumer.h"

namespace rudder::steer::capture {

enum class Measure : uint8_t { kDot, kProjection, kCosine };

struct Probe {
  std::string name;
  std::vector<std::vector<float>> vectors;  // by point of the consumer
  std::vector<double> norms;                // of the vectors
};

class ResponseOptions final : public ConsumerOptions {
 public:
  bool rows = false;
  bool means = false;
  bool norms = false;
  bool as_float32 = false;
  Measure measure = Measure::kDot;
  std::vector<Probe> probes;
};

// Errors as OptionsParser::parse_options gives them.
Result<std::shared_ptr<const ResponseOptions>> parse_response_options(
    const boost::json::object& fields, const std::vector<tap::CapturePoint>& points,
    const std::string& path, const tap::Geometry& geometry, const VectorLookup& lookup);

}  // namespace rudder::steer::capture
