// A strict reader of Prometheus' text format, for tests: it returns the samples, or says what is
// wrong.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace rudder::server {

struct ExpositionCheck {
  std::string problem;                    // empty: valid
  std::map<std::string, double> samples;  // by name and labels as written
};

// Families whole and in one piece with HELP and TYPE first, names and labels well formed, no sample
// twice, counters named _total (or of the process), histogram buckets rising to +Inf = _count.
ExpositionCheck check_exposition(std::string_view text);

}  // namespace rudder::server
