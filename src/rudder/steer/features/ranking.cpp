#include "rudder/steer/features/ranking.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "rudder/base/check.h"

namespace rudder::steer {
namespace {

void copy_column(const RowSet& rows, size_t column, std::vector<float>& out) {
  out.clear();
  for (size_t i = 0; i < rows.count(); ++i) out.push_back(rows.row(i)[column]);
}

double mean_of(const std::vector<float>& values) {
  if (values.empty()) return 0;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

}  // namespace

// By the ranks of the positive values among all: (their sum - p (p + 1) / 2) / (p n).
double auroc(std::span<const float> positive, std::span<const float> negative) {
  if (positive.empty() || negative.empty()) return 0.5;
  std::vector<std::pair<float, bool>> all;  // value, of the positive set
  for (const float value : positive) all.emplace_back(value, true);
  for (const float value : negative) all.emplace_back(value, false);
  std::ranges::sort(all, {}, &std::pair<float, bool>::first);
  double rank_sum = 0;
  for (size_t begin = 0; begin < all.size();) {
    size_t end = begin;
    size_t num_positive = 0;
    for (; end < all.size() && all[end].first == all[begin].first; ++end) {
      num_positive += all[end].second ? 1 : 0;
    }
    const double rank = static_cast<double>(begin + end + 1) / 2;  // of each, counted from 1
    rank_sum += rank * static_cast<double>(num_positive);
    begin = end;
  }
  const auto p = static_cast<double>(positive.size());
  const auto n = static_cast<double>(negative.size());
  return (rank_sum - p * (p + 1) / 2) / (p * n);
}

std::vector<FeatureRank> rank_features(const RowSet& positive, const RowSet& negative) {
  RUDDER_CHECK(positive.width == negative.width, "{} and {} features", positive.width,
               negative.width);
  std::vector<FeatureRank> ranks;
  std::vector<float> of_positive;
  std::vector<float> of_negative;
  for (int32_t feature = 0; feature < positive.width; ++feature) {
    copy_column(positive, static_cast<size_t>(feature), of_positive);
    copy_column(negative, static_cast<size_t>(feature), of_negative);
    ranks.push_back(
        {feature, mean_of(of_positive), mean_of(of_negative), auroc(of_positive, of_negative)});
  }
  std::ranges::stable_sort(ranks, std::ranges::greater{}, &FeatureRank::difference);
  return ranks;
}

}  // namespace rudder::steer
