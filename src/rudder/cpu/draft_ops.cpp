#include "rudder/cpu/draft_ops.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "rudder/base/check.h"

namespace rudder::cpu {

void HostDraftOps::place_rows(const ops::PlaceRowsArgs& args) {
  const size_t element = tensor::dtype_bytes(args.x.dtype);
  const auto bytes = static_cast<size_t>(args.x.shape[1]) * element;
  const auto pitch = static_cast<size_t>(args.out.shape[1]) * element;
  const auto first = static_cast<size_t>(args.column) * element;
  RUDDER_CHECK(args.out.dtype == args.x.dtype && first + bytes <= pitch);
  for (int64_t t = 0; t < args.x.shape[0]; ++t) {
    int64_t row = args.rows.empty() ? t : args.rows.as<int32_t>()[t];
    if (row < 0) continue;
    if (args.block_size > 0) {
      const int64_t size = args.block_size;
      row = row / size / args.group_layers * size + row % size;
    }
    RUDDER_CHECK(row < args.out.shape[0], "row {} of {}", row, args.out.shape[0]);
    std::memcpy(static_cast<std::byte*>(args.out.data) + static_cast<size_t>(row) * pitch + first,
                static_cast<const std::byte*>(args.x.data) + static_cast<size_t>(t) * bytes, bytes);
  }
}

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
