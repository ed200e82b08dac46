#include "rudder/server/request/json_numbers.h"

#include <fmt/format.h>

#include <cstdlib>

namespace rudder::server {

double as_written(float value) {
  return std::strtod(fmt::format("{}", value).c_str(), nullptr);
}

}  // namespace rudder::server
