// Which features are clamped where, while ops are lowered. Internal to the room.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "rudder/features/dictionary.h"
#include "rudder/steer/lower.h"
#include "rudder/steer/op_spec.h"

namespace rudder::steer {

class ClampedFeatures {
 public:
  // The first dictionary with the feature that is clamped: one that was registered under two names,
  // or anew while the server's steering holds it, has one clamp a feature.
  const features::Dictionary* first_with(const FeatureClamp& clamp) {
    const features::Dictionary* const own = clamp.dictionary.get();
    for (const features::Dictionary* dictionary : dictionaries_) {
      if (is_same(*dictionary, *own, clamp.feature)) return dictionary;
    }
    dictionaries_.push_back(own);
    return own;
  }

  void note(const LoweredOp& form) { specs_.try_emplace(key_of(form), form.spec); }

  // Whether an earlier spec changes the same feature there.
  bool is_clamped_before(const LoweredOp& form) const {
    const auto found = specs_.find(key_of(form));
    return found != specs_.end() && found->second != form.spec;
  }

 private:
  // Whether both read and write the feature alike, to the bit.
  static bool is_same(const features::Dictionary& a, const features::Dictionary& b,
                      int32_t feature) {
    const auto kind = [&](const features::Dictionary& of) {
      return std::tuple(of.read.index(), of.write.index(), of.num_writes, of.d_in, of.d_out,
                        of.num_features, of.activation, of.k, of.norm);
    };
    if (&a == &b) return true;
    if (feature == FeatureClamp::kNoFeature || kind(a) != kind(b)) return false;
    const auto formula = [&](const features::Dictionary& of) {
      const features::FeatureForm form = of.form(feature);
      return std::tuple(form.scale, form.bias, form.gate);
    };
    const auto are_equal = [](const tap::Row& left, const tap::Row& right) {
      return std::ranges::equal(left.values(), right.values());
    };
    if (!are_equal(a.encoder_row(feature), b.encoder_row(feature))) return false;
    for (int32_t i = 0; i < a.num_writes; ++i) {
      if (!are_equal(a.decoder_row(feature, i), b.decoder_row(feature, i))) return false;
    }
    return formula(a) == formula(b);
  }

  using Key = std::tuple<int32_t, const features::Dictionary*, int32_t>;

  static Key key_of(const LoweredOp& form) {
    return {form.point.index(), form.clamped, form.clamped_feature};
  }

  std::map<Key, int32_t> specs_;  // the first that clamps it
  std::vector<const features::Dictionary*> dictionaries_;
};

}  // namespace rudder::steer
