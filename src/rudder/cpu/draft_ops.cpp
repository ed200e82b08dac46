#include "rudder/cpu/draft_ops.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace rudder::cpu {

void HostDraftOps::spread_logits(const ops::SpreadLogitsArgs& args) {
  const int64_t count = args.ids.num_rows();
  const int64_t vocab = args.out.shape[1];
  const auto* const ids = args.ids.as<int32_t>();
  for (int64_t r = 0; r < args.x.shape[0]; ++r) {
    float* const out = args.out.as<float>() + r * vocab;
    std::fill_n(out, vocab, std::numeric_limits<float>::lowest());
    for (int64_t j = 0; j < count; ++j) out[ids[j]] = args.x.as<float>()[r * count + j];
  }
}

void HostDraftOps::residual_act(const ops::ResidualActArgs& args) {
  float* const x = args.x.as<float>();
  const float* const y = args.y.as<float>();
  for (int64_t i = 0; i < args.x.shape.numel(); ++i) x[i] += y[i] / (1.0f + std::exp(-y[i]));
}

}  // namespace rudder::cpu
