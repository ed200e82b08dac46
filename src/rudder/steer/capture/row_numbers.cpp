#include "rudder/steer/capture/row_numbers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

namespace rudder::steer::capture {

RowNumbers describe_row(std::span<const float> row) {
  RowNumbers numbers{.min = std::numeric_limits<float>::max(),
                     .max = std::numeric_limits<float>::lowest()};
  double sum = 0;
  double squares = 0;
  for (const float value : row) {
    if (!std::isfinite(value)) {
      ++numbers.num_bad;
      continue;
    }
    sum += value;
    squares += double{value} * value;
    numbers.min = std::min(numbers.min, value);
    numbers.max = std::max(numbers.max, value);
  }
  const auto num_good = static_cast<int64_t>(row.size()) - numbers.num_bad;
  if (num_good == 0) return {.num_bad = numbers.num_bad};
  numbers.norm = std::sqrt(squares);
  numbers.mean = sum / static_cast<double>(num_good);
  return numbers;
}

void append_number(std::string& out, float value) {
  if (std::isfinite(value)) {
    fmt::format_to(std::back_inserter(out), "{}", value);
  } else {
    out += "null";
  }
}

}  // namespace rudder::steer::capture
