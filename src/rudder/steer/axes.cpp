#include "rudder/steer/axes.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "rudder/steer/dot.h"

namespace rudder::steer {
namespace {

// An axis that keeps less than this part of its length beside the ones before it is in their span.
constexpr double kDependent = 1e-6;

}  // namespace

Row to_row(std::span<const double> values) {
  auto buffer = std::make_shared_for_overwrite<float[]>(values.size());
  std::ranges::transform(values, buffer.get(), [](double x) { return static_cast<float>(x); });
  return {std::move(buffer), 0, static_cast<int32_t>(values.size())};
}

std::vector<Row> orthonormal(const std::vector<Row>& rows) {
  std::vector<std::vector<double>> axes;
  for (const Row& row : rows) {
    std::vector<double> axis(row.values().begin(), row.values().end());
    const double length = std::sqrt(dot(axis, axis));
    for (int pass = 0; pass < 2; ++pass) {
      for (const auto& other : axes) {
        const double along = dot(axis, other);
        for (size_t i = 0; i < axis.size(); ++i) axis[i] -= along * other[i];
      }
    }
    const double rest = std::sqrt(dot(axis, axis));
    if (rest <= kDependent * length) continue;
    for (double& value : axis) value /= rest;
    axes.push_back(std::move(axis));
  }
  std::vector<Row> result;
  result.reserve(axes.size());
  for (const auto& axis : axes) result.push_back(to_row(axis));
  return result;
}

}  // namespace rudder::steer
