// read_features: the features of captured rows, as a reader tells them outside of any step. Every
// View is device memory.
#pragma once

#include <cstdint>

#include "rudder/ops/top_feature.h"
#include "rudder/tap/dictionary_head.h"
#include "rudder/tensor/view.h"

namespace rudder::ops {

// Values are those of encode() on the same rows, bit for bit: all f_j of tap/dictionary_head.h,
// those that k does not keep being 0. What is not asked for is empty. Where neither `top` nor k
// needs all features, the listed ones alone are computed, and their encoder rows alone are read.
struct ReadFeaturesArgs {
  tensor::View x;            // [N, d_in] act; N at most tap::kEncodedRows
  tensor::View image;        // [.] f32: a dictionary (tap/dictionary_head.h); no decoder is read
  tap::DictionaryHead head;  // the image's, as the host knows it
  tensor::View listed;       // [L] i32: features whose values are told
  tensor::View values;       // [N, L] f32
  tensor::View top;          // [N, n, 2] i32: TopFeature; n at most kMostTopFeatures
  tensor::View
      scratch;  // [N, tap::feature_row_floats(F)] f32; may be empty where needs_all() is false

  bool needs_all() const { return !top.empty() || head.k > 0; }
};

}  // namespace rudder::ops
