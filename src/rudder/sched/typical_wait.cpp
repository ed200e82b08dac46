#include "rudder/sched/typical_wait.h"

#include <algorithm>
#include <cmath>

namespace rudder::sched {

namespace {

constexpr double kGrowth = 1.0005;  // of the weight, a step
constexpr double kMostWeight = 1e9;
constexpr double kBucketWidth = 0.02;  // of the logarithm
constexpr double kLeast = 0.03;        // the end of the first bucket
// Steps without prompts that it begins with, so that a new server's first burst is not typical.
constexpr double kFirstSteps = 512;

size_t bucket_of(double times, size_t num_buckets) {
  const double at = std::ceil(std::log(std::max(kLeast, times) / kLeast) / kBucketWidth);
  return std::min(num_buckets - 1, static_cast<size_t>(at));
}

}  // namespace

TypicalWait::TypicalWait() : total_(kFirstSteps) {
  steps_[bucket_of(1, kBuckets)] = kFirstSteps;
}

void TypicalWait::add(double times) {
  steps_[bucket_of(times, kBuckets)] += weight_;
  total_ += weight_;
  weight_ *= kGrowth;
  if (weight_ < kMostWeight) return;
  for (double& steps : steps_) steps /= weight_;
  total_ /= weight_;
  weight_ = 1;
}

double TypicalWait::quantile(double share) const {
  double below = 0;
  size_t bucket = 0;
  while (bucket + 1 < kBuckets && below + steps_[bucket] < share * total_) {
    below += steps_[bucket++];
  }
  return kLeast * std::exp((static_cast<double>(bucket) - 0.5) * kBucketWidth);
}

}  // namespace rudder::sched
