#include "rudder/steer/train/directions.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "rudder/base/check.h"
#include "rudder/steer/dot.h"

namespace rudder::steer {
namespace {

constexpr int kMaxIterations = 2000;
constexpr double kConverged = 1e-9;  // of the component's change in an iteration, squared

std::vector<double> mean_row(const RowSet& rows) {
  std::vector<double> mean(static_cast<size_t>(rows.width));
  for (size_t i = 0; i < rows.count(); ++i) {
    const std::span<const float> row = rows.row(i);
    for (size_t k = 0; k < row.size(); ++k) mean[k] += double{row[k]};
  }
  for (double& value : mean) value /= static_cast<double>(rows.count());
  return mean;
}

// False for a vector of zeros.
bool make_unit(std::vector<double>& vector) {
  const double length = std::sqrt(dot(vector, vector));
  if (!(length > 0)) return false;
  for (double& value : vector) value /= length;
  return true;
}

std::vector<std::vector<double>> differences_of(const RowSet& positive, const RowSet& negative) {
  std::vector<std::vector<double>> differences(positive.count());
  for (size_t i = 0; i < differences.size(); ++i) {
    differences[i].resize(static_cast<size_t>(positive.width));
    for (size_t k = 0; k < differences[i].size(); ++k) {
      differences[i][k] = double{positive.row(i)[k]} - double{negative.row(i)[k]};
    }
  }
  return differences;
}

void subtract_from_each(std::vector<std::vector<double>>& rows, const std::vector<double>& mean) {
  for (std::vector<double>& row : rows) {
    for (size_t k = 0; k < row.size(); ++k) row[k] -= mean[k];
  }
}

// The unit vector u of the largest sum of (row . u)^2, by power iteration on the rows as they are:
// no matrix of width squared. Starts at the longest row, which is not orthogonal to u but by
// accident, and is not zero.
std::vector<double> principal_axis(const std::vector<std::vector<double>>& rows) {
  const auto longest = std::ranges::max_element(
      rows, {}, [](const std::vector<double>& row) { return dot(row, row); });
  std::vector<double> axis = *longest;
  make_unit(axis);
  for (int i = 0; i < kMaxIterations; ++i) {
    std::vector<double> next(axis.size());
    for (const std::vector<double>& row : rows) {
      const double along = dot(row, axis);
      for (size_t k = 0; k < next.size(); ++k) next[k] += along * row[k];
    }
    if (!make_unit(next)) return axis;
    const double change = 2 - 2 * dot(next, axis);  // |next - axis|^2
    axis = std::move(next);
    if (change < kConverged * kConverged) break;
  }
  return axis;
}

Result<void> check_sets(Method method, const RowSet& positive, const RowSet& negative) {
  if (positive.count() == 0 || negative.count() == 0) {
    return fail(ErrorCode::kInvalidArgument, "a set has no rows");
  }
  if (positive.width != negative.width) {
    return fail(ErrorCode::kInvalidArgument, "the sets have rows of different width");
  }
  if (takes_pairs(method) && (positive.count() != negative.count() || positive.count() < 2)) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{} takes pairs, two at least: there are {} positive and {} negative "
                            "rows",
                            method_name(method), positive.count(), negative.count()));
  }
  return {};
}

}  // namespace

std::string_view method_name(Method method) {
  switch (method) {
    case Method::kMeanDifference:
      return "mean-diff";
    case Method::kPca:
      return "pca";
    case Method::kPcaDifference:
      return "pca-diff";
  }
  RUDDER_CHECK(false, "method {}", static_cast<int>(method));
}

std::optional<Method> find_method(std::string_view name) {
  for (const Method method : {Method::kMeanDifference, Method::kPca, Method::kPcaDifference}) {
    if (method_name(method) == name) return method;
  }
  return std::nullopt;
}

bool takes_pairs(Method method) {
  return method == Method::kPca || method == Method::kPcaDifference;
}

Result<Direction> find_direction(Method method, const RowSet& positive, const RowSet& negative) {
  RUDDER_TRY_VOID(check_sets(method, positive, negative));
  std::vector<double> difference = mean_row(positive);
  const std::vector<double> subtracted = mean_row(negative);
  for (size_t k = 0; k < difference.size(); ++k) difference[k] -= subtracted[k];
  if (!(dot(difference, difference) > 0)) {
    return fail(ErrorCode::kInvalidArgument, "the sets have the same mean: nothing to learn");
  }
  Direction direction;
  if (takes_pairs(method)) {
    auto rows = differences_of(positive, negative);
    const bool is_centred = method == Method::kPcaDifference;
    if (is_centred) subtract_from_each(rows, difference);
    const std::vector<double> axis = principal_axis(rows);
    const double shift = is_centred ? dot(difference, axis) : 0;
    double squares = 0;
    double along_axis = 0;
    int64_t votes = 0;  // pairs whose positive row lies further along the axis
    for (const std::vector<double>& row : rows) {
      const double along = dot(row, axis);
      squares += dot(row, row);
      along_axis += along * along;
      votes += along + shift > 0 ? 1 : -1;
    }
    if (!(squares > 0)) {
      return fail(ErrorCode::kInvalidArgument, "all pairs differ alike: pca-diff has no axis");
    }
    direction.explained = along_axis / squares;
    const double length = std::abs(dot(difference, axis)) * (votes >= 0 ? 1 : -1);
    for (size_t k = 0; k < difference.size(); ++k) difference[k] = length * axis[k];
  }
  direction.values.assign(difference.begin(), difference.end());
  if (!(norm(direction.values) > 0)) {
    return fail(ErrorCode::kInvalidArgument,
                "the first component is orthogonal to the difference of the means");
  }
  return direction;
}

Projections project(std::span<const float> direction, const RowSet& positive,
                    const RowSet& negative) {
  const double length = norm(direction);
  const auto moments = [&](const RowSet& rows) {
    double sum = 0;
    double squares = 0;
    for (size_t i = 0; i < rows.count(); ++i) {
      const double along = dot(rows.row(i), direction) / length;
      sum += along;
      squares += along * along;
    }
    const auto count = static_cast<double>(std::max<size_t>(rows.count(), 1));
    const double mean = sum / count;
    return std::pair(mean, std::max(0.0, squares / count - mean * mean));
  };
  const auto [positive_mean, positive_variance] = moments(positive);
  const auto [negative_mean, negative_variance] = moments(negative);
  const auto total = static_cast<double>(std::max<size_t>(positive.count() + negative.count(), 1));
  const double pooled = (positive_variance * static_cast<double>(positive.count()) +
                         negative_variance * static_cast<double>(negative.count())) /
                        total;
  return {positive_mean, negative_mean, std::sqrt(pooled)};
}

double accuracy(std::span<const float> direction, const Projections& middle_of,
                const RowSet& positive, const RowSet& negative) {
  const double length = norm(direction);
  const double middle = (middle_of.positive + middle_of.negative) / 2;
  const double side = middle_of.positive > middle_of.negative ? 1 : -1;
  size_t right = 0;
  for (size_t i = 0; i < positive.count(); ++i) {
    right += (dot(positive.row(i), direction) / length - middle) * side > 0 ? 1 : 0;
  }
  for (size_t i = 0; i < negative.count(); ++i) {
    right += (dot(negative.row(i), direction) / length - middle) * side < 0 ? 1 : 0;
  }
  const size_t total = positive.count() + negative.count();
  return total == 0 ? 0 : static_cast<double>(right) / static_cast<double>(total);
}

double norm(std::span<const float> vector) {
  return std::sqrt(dot(vector, vector));
}

double mean_norm(const RowSet& rows) {
  double sum = 0;
  for (size_t i = 0; i < rows.count(); ++i) sum += norm(rows.row(i));
  return rows.count() == 0 ? 0 : sum / static_cast<double>(rows.count());
}

}  // namespace rudder::steer
