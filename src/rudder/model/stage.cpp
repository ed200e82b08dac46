#include "rudder/model/stage.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "rudder/model/tensors.h"

namespace rudder::model {
namespace {

Result<std::vector<int64_t>> layer_costs(const ModelSpec& whole, const WeightNames& names,
                                         const FormatOf& format_of, const ops::KvFormat& kv) {
  std::vector<int64_t> costs;
  for (size_t i = 0; i < whole.layers.size(); ++i) {
    const KvGeometry geometry = kv_geometry(whole.layers[i]);
    const int64_t tokens =
        geometry.window > 0 ? std::min<int64_t>(geometry.window, kStageContext) : kStageContext;
    RUDDER_TRY(const int64_t weights, tensor_bytes(layer_tensors(whole, names, i), format_of));
    costs.push_back(weights + state_bytes(whole.layers[i]).state +
                    tokens * geometry.rows() * kv.row_bytes(geometry.head_dim));
  }
  RUDDER_TRY(const int64_t head, linear_bytes(head_module(whole, names), format_of));
  costs.back() += head;
  return costs;
}

// Whether the layers from `begin` on make at most `count` stages that cost at most `most` each.
bool fits_from(const std::vector<int64_t>& costs, size_t begin, int32_t count, int64_t most) {
  int32_t used = 0;
  int64_t sum = most + 1;
  for (size_t i = begin; i < costs.size(); ++i) {
    if (costs[i] > most) return false;
    if (sum + costs[i] > most) {
      ++used;
      sum = 0;
    }
    sum += costs[i];
  }
  return used <= count;
}

int64_t least_most(const std::vector<int64_t>& costs, int32_t count) {
  int64_t low = 0;
  int64_t high = 0;
  for (const int64_t cost : costs) high += cost;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (fits_from(costs, 0, count, middle) ? high : low) = middle;
  }
  return high;
}

}  // namespace

Result<std::vector<Stage>> divide_layers(const ModelSpec& whole, const WeightNames& names,
                                         int32_t count, const FormatOf& format_of,
                                         const ops::KvFormat& kv) {
  const auto num_layers = static_cast<int32_t>(whole.layers.size());
  if (count > num_layers) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("the {} layers of the model cannot be divided among {} stages",
                            num_layers, count),
                "pipeline-parallel-size");
  }
  if (whole.layer_embedding.exists()) {
    return fail(ErrorCode::kUnsupported, "stages do not hand over embeddings by layer",
                "hidden_size_per_layer_input");
  }
  if (shares_kv(whole)) {
    return fail(ErrorCode::kUnsupported, "stages do not share the KV of a layer",
                "num_kv_shared_layers");
  }
  if (is_delayed(whole.residual)) {
    return fail(ErrorCode::kUnsupported,
                "stages do not hand over the numbers by which the next branch reads the streams",
                "hc_pre_from_prev_sublayer");
  }
  RUDDER_TRY(const std::vector<int64_t> costs, layer_costs(whole, names, format_of, kv));
  const int64_t most = least_most(costs, count);
  std::vector<Stage> stages;
  int32_t begin = 0;
  for (int32_t i = 0; i < count; ++i) {
    const int32_t behind = count - i - 1;
    int32_t end = begin + 1;
    while (behind == 0 ? end < num_layers
                       : !fits_from(costs, static_cast<size_t>(end), behind, most)) {
      ++end;
    }
    stages.push_back({.index = i, .count = count, .first_layer = begin, .num_layers = end - begin});
    begin = end;
  }
  return stages;
}

ModelSpec stage_spec(const ModelSpec& whole, const Stage& stage) {
  ModelSpec spec = whole;
  if (stage.is_alone()) return spec;
  const auto first = whole.layers.begin() + stage.first_layer;
  spec.layers.assign(first, first + stage.num_layers);
  spec.tied_head = false;
  spec.stage = stage;
  return spec;
}

}  // namespace rudder::model
