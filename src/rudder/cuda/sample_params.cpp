#include "rudder/cuda/sample_params.h"

namespace rudder::cuda {

SlotStateParams slot_state(const ops::SlotState& state) {
  SlotStateParams params;
  params.carry = static_cast<int32_t*>(state.carry.data);
  params.carry_position = static_cast<int32_t*>(state.carry_position.data);
  params.ended = static_cast<int32_t*>(state.ended.data);
  params.block_table = static_cast<int32_t*>(state.block_table.data);
  params.output_count = static_cast<int32_t*>(state.output_count.data);
  params.prompt_seen = static_cast<uint8_t*>(state.prompt_seen.data);
  params.history = static_cast<int32_t*>(state.history.data);
  params.guess = static_cast<int32_t*>(state.guess.data);
  params.max_blocks = state.block_table.shape[1];
  params.vocab = state.output_count.shape[1];
  params.max_len = state.history.empty() ? 0 : state.history.shape[1];
  params.most_guessed = state.guess.empty() ? 0 : static_cast<int32_t>(state.guess.shape[1]);
  return params;
}

PlacementParams placement_params(const ops::BeginStepArgs::Placement& placement,
                                 const ops::SlotState& state) {
  PlacementParams params;
  params.q_begin = static_cast<int32_t*>(placement.q_begin.data);
  params.kv_len = static_cast<int32_t*>(placement.kv_len.data);
  params.positions = static_cast<int32_t*>(placement.positions.data);
  params.sample_rows = static_cast<ops::SampleRow*>(placement.sample_rows.data);
  params.logits_rows = static_cast<int32_t*>(placement.logits_rows.data);
  params.since_prompt = static_cast<int32_t*>(placement.since_prompt.data);
  params.rows_since_prompt = static_cast<int32_t*>(placement.rows_since_prompt.data);
  params.num_seqs = placement.kv_len.shape[0];
  params.num_rows = placement.logits_rows.shape[0];
  params.block_size = placement.block_size;
  params.num_slots = static_cast<int32_t>(state.ended.shape[0] - 1);
  return params;
}

SampleParams sample_params(const ops::SampleArgs& args) {
  SampleParams params;
  params.logits = static_cast<float*>(args.logits.data);
  params.rows = static_cast<ops::SampleRow*>(args.rows.data);
  params.lists = static_cast<int32_t*>(args.lists.data);
  params.masks = static_cast<uint32_t*>(args.masks.data);
  params.state = slot_state(args.state);
  params.padding_slot = static_cast<int32_t>(args.state.carry.shape[0] - 1);
  params.num_rows = args.logits.shape[0];
  params.vocab = args.logits.shape[1];
  params.sampled = static_cast<int32_t*>(args.sampled.data);
  params.top = static_cast<int32_t*>(args.top.data);
  params.max_logprobs = args.top.empty() ? 0 : static_cast<int32_t>(args.top.shape[1]);
  params.all_greedy = args.all_greedy;
  params.any_logprobs = args.any_logprobs;
  params.any_changed = args.any_changed;
  params.any_masked = args.any_masked;
  params.any_drafts = args.any_drafts;
  return params;
}

ScoreParams score_params(const ops::ScoreArgs& args) {
  ScoreParams params;
  params.logits = static_cast<float*>(args.logits.data);
  params.tokens = static_cast<int32_t*>(args.tokens.data);
  params.num_rows = args.logits.shape[0];
  params.vocab = args.logits.shape[1];
  params.num_top = args.num_top;
  params.scored = static_cast<int32_t*>(args.scored.data);
  params.top = static_cast<int32_t*>(args.top.data);
  params.max_logprobs = static_cast<int32_t>(args.top.shape[1]);
  return params;
}

}  // namespace rudder::cuda
