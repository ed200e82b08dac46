// Computes and prints numbers that describe a row. Sums in double. Any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace rudder::steer::capture {

struct RowNumbers {
  double norm = 0;  // L2
  double mean = 0;
  float min = 0;
  float max = 0;
  int64_t num_bad = 0;  // NaN and Inf, which are in none of the others
};
RowNumbers describe_row(std::span<const float> row);

// JSON: shortest text that reads back as the same float; null for NaN and Inf.
void append_number(std::string& out, float value);

}  // namespace rudder::steer::capture
