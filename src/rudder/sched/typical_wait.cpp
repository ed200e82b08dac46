#include "rudder/sched/typical_wait.h"

#include <algorithm>
#include <cmath>

namespace rudder::sched {

namespace {

constexpr double kGrowth = 1.0005;  // of the weight, a step
constexpr double kMostWeight = 1e9;
constexpr double kBucketWidth = 0.022;  // of the logarithm; the first bucket is up to a microsecond

}  // namespace

void TypicalWait::add(double us, double num_tokens) {
  const double at = std::log(std::max(1.0, us)) / kBucketWidth;
  tokens_[std::min(kBuckets - 1, static_cast<size_t>(at))] += weight_ * num_tokens;
  total_ += weight_ * num_tokens;
  weight_ *= kGrowth;
  if (weight_ < kMostWeight) return;
  for (double& tokens : tokens_) tokens /= weight_;
  total_ /= weight_;
  weight_ = 1;
}

double TypicalWait::quantile(double share) const {
  if (is_empty()) return 0;
  double below = 0;
  size_t bucket = 0;
  while (bucket + 1 < kBuckets && below + tokens_[bucket] < share * total_) {
    below += tokens_[bucket++];
  }
  return std::exp((static_cast<double>(bucket) + 0.5) * kBucketWidth);
}

}  // namespace rudder::sched
