#include "rudder/cuda/tap_params.h"

#include <algorithm>
#include <array>
#include <iterator>

#include "rudder/base/check.h"
#include "rudder/cuda/elements.h"
#include "rudder/tap/dictionary_head.h"

namespace rudder::cuda {
namespace {

// Taps of the points that a kernel passes, in its order.
template <size_t kPoints>
TapParams<kPoints> params_of(const std::array<const ops::Taps*, kPoints>& all) {
  TapParams<kPoints> params;
  const ops::Taps* any = nullptr;
  for (size_t i = 0; i < kPoints; ++i) {
    const ops::Taps& taps = *all[i];
    params.point[i] = taps.empty() ? -1 : taps.point;
    if (taps.empty()) continue;
    RUDDER_CHECK(any == nullptr || (any->table == taps.table && any->batch == taps.batch),
                 "the taps of an op are of one table and batch");
    any = &taps;
  }
  RUDDER_CHECK(any != nullptr, "an op without taps");
  const ops::TapTable& table = *any->table;
  const ops::TapBatch& batch = *any->batch;
  params.table.ops = pointer<tap::TapOp>(table.ops);
  params.table.vectors = pointer<float>(table.vectors);
  params.table.latches = pointer<unsigned long long>(table.latches);
  params.table.captures = pointer<int32_t>(table.captures);
  params.table.ring = table.ring.data;
  params.table.relays = pointer<float>(table.relays);
  params.table.carried = pointer<float>(table.carried);
  params.table.num_points = static_cast<int32_t>(table.points.shape[1]);
  params.batch.entries = pointer<ops::TapEntry>(batch.entries);
  params.batch.since_prompt = pointer<int32_t>(batch.since_prompt);
  params.batch.slot = pointer<int32_t>(batch.slot);
  params.batch.capture_set = pointer<int32_t>(batch.capture_set);
  params.batch.capture_begin = pointer<int32_t>(batch.capture_begin);
  params.batch.token = pointer<int32_t>(batch.token);
  params.batch.only_adds = batch.only_adds;
  return params;
}
// Of an op that may have none: every point is -1 then.
template <size_t kPoints>
TapParams<kPoints> params_of_some(const std::array<const ops::Taps*, kPoints>& all) {
  TapParams<kPoints> none;
  std::fill(std::begin(none.point), std::end(none.point), -1);
  const bool has_any =
      std::any_of(all.begin(), all.end(), [](const ops::Taps* taps) { return !taps->empty(); });
  return has_any ? params_of(all) : none;
}

}  // namespace

GatherTapsParams gather_params(const ops::TapTable& table, const ops::TapBatch& batch) {
  GatherTapsParams params;
  params.points = pointer<ops::TapEntry>(table.points);
  params.captures = pointer<int32_t>(table.captures);
  params.row = pointer<int32_t>(batch.row);
  params.capture_set = pointer<int32_t>(batch.capture_set);
  params.entries = pointer<ops::TapEntry>(batch.entries);
  params.tokens = batch.num_tokens();
  params.num_points = static_cast<int32_t>(table.points.shape[1]);
  return params;
}

bool is_tapped(const ops::ResidualNormArgs& args) {
  return !(args.delta_taps.empty() && args.x_taps[0].empty() && args.x_taps[1].empty() &&
           args.out_taps.empty());
}

TapParams<kResidualPoints> tap_params(const ops::ResidualNormArgs& args) {
  return params_of<kResidualPoints>(
      {&args.delta_taps, &args.x_taps[0], &args.x_taps[1], &args.out_taps});
}

bool is_tapped(const ops::GatedActArgs& args) {
  return !args.taps.empty();
}

TapParams<1> tap_params(const ops::GatedActArgs& args) {
  return params_of<1>({&args.taps});
}

TapParams<kRouterPoints> tap_params(const ops::RouteTappedArgs& args) {
  return params_of<kRouterPoints>({&args.logits, &args.chosen});
}

TapParams<kStreamPoints> tap_params(const ops::ConnectStreamsArgs& args) {
  return params_of_some<kStreamPoints>({&args.post_taps, &args.mix_taps});
}

TapParams<1> tap_params(const ops::GateStreamsArgs& args) {
  return params_of_some<1>({&args.post_taps});
}

EncodeParams encode_params(const ops::EncodeArgs& args, int num_blocks) {
  const TapParams<1> taps = params_of<1>({&args.taps});
  const tensor::View& features = args.taps.table->features;
  EncodeParams params;
  params.table = taps.table;
  params.batch = taps.batch;
  params.point = args.taps.point;
  params.num_blocks = num_blocks;
  params.x = args.x.data;
  params.rows = args.x.shape[0];
  params.width = args.x.shape[1];
  params.features = pointer<float>(features);
  params.feature_stride = features.shape[1];
  params.largest = params.features + tap::feature_tiles_begin(params.feature_stride);
  const tensor::View& before = args.taps.table->encoded_rows;
  RUDDER_CHECK(params.width <= before.shape[1], "a row of {} is encoded, {} fit", params.width,
               before.shape[1]);
  params.before = before.data;
  return params;
}

ResidualNormParams rows_of(const ops::EncodeArgs& args) {
  ResidualNormParams params;
  params.x = args.x.data;
  params.rows = args.x.shape[0];
  params.hidden = args.x.shape[1];
  return params;
}

TapParams<kResidualPoints> params_behind_encode(const ops::EncodeArgs& args) {
  const ops::Taps none;
  TapParams<kResidualPoints> params = params_of<kResidualPoints>({&none, &args.taps, &none, &none});
  params.batch.is_behind_encode = true;
  return params;
}

}  // namespace rudder::cuda
