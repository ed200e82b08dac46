// Directions from two sets of rows: what tells "positive" from "negative" at one point. Pure
// functions over rows in memory, sums in double; used by `rudder vectors train`. Formulas:
//   mean-diff  mean(positive) - mean(negative)
//   pca        the first principal component of the rows of each pair about the pair's middle
//   (repeng's
//              pca_center): of the differences positive_i - negative_i about zero, so that what
//              they have in common counts; its sign by which side most pairs lie on, its length
//              that of the mean difference along it
//   pca-diff   the same of the differences about their mean (repeng's pca_diff): the axis along
//              which the pairs differ most from one another
// so that with each, scale 1 moves the mean of the negative rows onto that of the positive ones,
// along the direction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "rudder/base/result.h"

namespace rudder::steer {

// Rows of one width, side by side.
struct RowSet {
  int32_t width = 0;
  std::vector<float> values;  // [count * width]

  size_t count() const { return width == 0 ? 0 : values.size() / static_cast<size_t>(width); }
  std::span<const float> row(size_t i) const {
    return std::span(values).subspan(i * static_cast<size_t>(width), static_cast<size_t>(width));
  }
};

enum class Method : uint8_t { kMeanDifference, kPca, kPcaDifference };
std::string_view method_name(Method method);  // "mean-diff", "pca", "pca-diff"
std::optional<Method> find_method(std::string_view name);
// The method takes pairs: the n-th row of either set. Its card tells how much of them it explains.
bool takes_pairs(Method method);

struct Direction {
  std::vector<float> values;
  double explained = 0;  // pca, pca-diff: share of the squares that the axis is found on
};

// kInvalidArgument when a set is empty, when the rows do not tell the sets apart (a difference of
// zero), or for a method of pairs when the sets have not the same number of rows or fewer than 2.
Result<Direction> find_direction(Method method, const RowSet& positive, const RowSet& negative);

// How well a direction tells rows apart: projections h . v/|v|, and the share of rows on the right
// side of the middle between the means of `middle_of`.
struct Projections {
  double positive = 0;  // means
  double negative = 0;
  double spread = 0;  // standard deviation within the sets, pooled
};
Projections project(std::span<const float> direction, const RowSet& positive,
                    const RowSet& negative);
double accuracy(std::span<const float> direction, const Projections& middle_of,
                const RowSet& positive, const RowSet& negative);

double norm(std::span<const float> vector);
double mean_norm(const RowSet& rows);

}  // namespace rudder::steer
