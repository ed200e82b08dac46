#include "rudder/cpu/read_features.h"

#include <algorithm>
#include <span>
#include <vector>

#include "rudder/base/check.h"
#include "rudder/cpu/encode.h"
#include "rudder/cpu/tap_program.h"

namespace rudder::cpu {
namespace {

class FeatureReading {
 public:
  explicit FeatureReading(const ops::ReadFeaturesArgs& args)
      : args_(args),
        dictionary_(dictionary_at(args.image.as<float>())),
        head_(*dictionary_.head),
        normed_(static_cast<size_t>(head_.d_in)) {
    RUDDER_CHECK(args.x.shape[1] == head_.d_in && args.head.num_features == head_.num_features,
                 "a dictionary of {} features of rows of {}", head_.num_features, head_.d_in);
  }

  void read_row(int64_t r) {
    const float* const h = args_.x.as<float>() + r * head_.d_in;
    normalise_row(head_.norm, h, head_.d_in, normed_.data());
    if (!args_.needs_all()) {
      for (size_t i = 0; i < num_listed(); ++i) values(r)[i] = value_of(listed(i));
      return;
    }
    const std::span<float> all(args_.scratch.as<float>() + r * head_.num_features,
                               static_cast<size_t>(head_.num_features));
    for (int32_t j = 0; j < head_.num_features; ++j) all[static_cast<size_t>(j)] = value_of(j);
    if (head_.k > 0) keep_largest(all, head_.k);
    for (size_t i = 0; i < num_listed(); ++i) values(r)[i] = all[static_cast<size_t>(listed(i))];
    if (!args_.top.empty()) write_top(r, all);
  }

 private:
  float value_of(int32_t feature) const { return feature_of(dictionary_, feature, normed_.data()); }
  size_t num_listed() const { return static_cast<size_t>(args_.listed.num_rows()); }
  int32_t listed(size_t i) const { return args_.listed.as<int32_t>()[i]; }
  std::span<float> values(int64_t r) const {
    return {args_.values.as<float>() + r * args_.values.shape[1], num_listed()};
  }

  void write_top(int64_t r, std::span<const float> all) const {
    std::vector<ops::TopFeature> active;
    for (int32_t j = 0; j < head_.num_features; ++j) {
      const float value = all[static_cast<size_t>(j)];
      if (value > 0) active.push_back({j, value});
    }
    const auto most = static_cast<size_t>(args_.top.shape[1]);
    const size_t kept = std::min(most, active.size());
    std::ranges::partial_sort(active, active.begin() + static_cast<std::ptrdiff_t>(kept),
                              [](const ops::TopFeature& a, const ops::TopFeature& b) {
                                return a.value > b.value ||
                                       (a.value == b.value && a.feature < b.feature);
                              });
    active.resize(most, {ops::kNoFeature, 0});
    std::ranges::copy(
        active, static_cast<ops::TopFeature*>(args_.top.data) + r * static_cast<int64_t>(most));
  }

  const ops::ReadFeaturesArgs& args_;
  const DictionaryView dictionary_;
  const tap::DictionaryHead& head_;
  std::vector<float> normed_;
};

}  // namespace

void read_features(const ops::ReadFeaturesArgs& args, ThreadPool* pool) {
  const auto read = [&](int64_t r) { FeatureReading(args).read_row(r); };
  if (pool != nullptr) return pool->parallel_for(args.x.shape[0], read);
  for (int64_t r = 0; r < args.x.shape[0]; ++r) read(r);
}

}  // namespace rudder::cpu
