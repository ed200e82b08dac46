#include "rudder/cuda/step_params.h"

#include "rudder/cuda/elements.h"
#include "rudder/cuda/sample_params.h"
#include "rudder/cuda/tap_params.h"

namespace rudder::cuda {
namespace {

// Of a step of `rows` tokens, which has a KV slot of each group for each.
int32_t num_kv_groups(const ops::View& kv_slot, int64_t rows) {
  return rows == 0 ? 0 : static_cast<int32_t>(kv_slot.shape[0] / rows);
}

}  // namespace

BeginStepParams begin_step_params(const ops::BeginStepArgs& args) {
  BeginStepParams params;
  params.state = slot_state(args.state);
  params.opened = pointer<int32_t>(args.opened);
  params.num_opened = args.opened.empty() ? 0 : args.opened.shape[0];
  params.history = pointer<int32_t>(args.history);
  params.num_history = args.history.empty() ? 0 : args.history.shape[0];
  params.blocks = pointer<int32_t>(args.blocks);
  params.num_blocks = args.blocks.empty() ? 0 : args.blocks.shape[0];
  params.kept = pointer<int32_t>(args.kept);
  params.num_kept = args.kept.empty() ? 0 : args.kept.shape[0];
  params.ids = pointer<int32_t>(args.ids);
  params.kv_slot = pointer<int32_t>(args.kv_slot);
  params.rows = args.ids.empty() ? 0 : args.ids.shape[0];
  params.num_groups = num_kv_groups(args.kv_slot, params.rows);
  if (!args.placement.empty()) {
    params.placement = placement_params(args.placement, args.state);
  }
  if (args.tap_table != nullptr) {
    params.taps[0] = gather_params(*args.tap_table, args.taps);
    params.taps[1] = gather_params(*args.tap_table, args.rows_taps);
  }
  return params;
}

AdvanceStepParams advance_step_params(const ops::AdvanceStepArgs& args) {
  AdvanceStepParams params;
  params.state = slot_state(args.state);
  params.num_slots = static_cast<int32_t>(args.state.ended.shape[0] - 1);
  params.ids = pointer<int32_t>(args.ids);
  params.positions = pointer<int32_t>(args.positions);
  params.kv_slot = pointer<int32_t>(args.kv_slot);
  params.kv_len = pointer<int32_t>(args.kv_len);
  params.sample_rows = static_cast<ops::SampleRow*>(args.sample_rows.data);
  params.since_prompt = pointer<int32_t>(args.since_prompt);
  params.rows = args.ids.shape[0];
  params.num_groups = num_kv_groups(args.kv_slot, params.rows);
  params.block_size = args.block_size;
  return params;
}

}  // namespace rudder::cuda
