#include "rudder/cuda/draft_ops.h"

#include <algorithm>

#include "rudder/cuda/kernels/rows/rows.h"
#include "rudder/cuda/kernels/sampling/look_up.h"
#include "rudder/cuda/kernels/sampling/tails.h"
#include "rudder/cuda/row_params.h"
#include "rudder/cuda/sample_params.h"

namespace rudder::cuda {
namespace {

LookUpParams look_up_params(const ops::LookUpArgs& args) {
  LookUpParams params;
  params.rows = static_cast<ops::SampleRow*>(args.rows.data);
  params.sampled = static_cast<int32_t*>(args.sampled.data);
  params.history = static_cast<int32_t*>(args.state.history.data);
  params.guess = static_cast<int32_t*>(args.state.guess.data);
  params.max_len = args.state.history.shape[1];
  params.num_rows = static_cast<int32_t>(args.rows.num_rows());
  params.most = static_cast<int32_t>(args.state.guess.shape[1]);
  params.padding_slot = static_cast<int32_t>(args.state.carry.shape[0] - 1);
  params.min_n = args.min_n;
  params.max_n = args.max_n;
  return params;
}

PlaceTailsParams place_tails_params(const ops::PlaceTailsArgs& args) {
  PlaceTailsParams params;
  params.model = slot_state(args.model);
  params.own = slot_state(args.own);
  params.q_begin = static_cast<int32_t*>(args.q_begin.data);
  params.table_row = static_cast<int32_t*>(args.table_row.data);
  params.ids = static_cast<int32_t*>(args.ids.data);
  params.positions = static_cast<int32_t*>(args.positions.data);
  params.kv_slot = static_cast<int32_t*>(args.kv_slot.data);
  params.kv_len = static_cast<int32_t*>(args.kv_len.data);
  params.logits_rows = static_cast<int32_t*>(args.logits_rows.data);
  params.sample_rows = static_cast<ops::SampleRow*>(args.sample_rows.data);
  params.step_rows = static_cast<ops::SampleRow*>(args.step_rows.data);
  params.goes_on_rows = static_cast<int32_t*>(args.goes_on_rows.data);
  params.num_seqs =
      static_cast<int32_t>(std::min(args.kv_len.num_rows(), args.sample_rows.num_rows()));
  params.padding_slot = static_cast<int32_t>(args.model.carry.shape[0] - 1);
  params.keeps_kv = args.keeps_kv;
  params.num_ahead = args.num_ahead;
  params.shift = args.shift;
  params.block_size = args.block_size;
  return params;
}

KeepGuessParams keep_guess_params(const ops::KeepGuessArgs& args) {
  KeepGuessParams params;
  params.rows = static_cast<ops::SampleRow*>(args.rows.data);
  params.sampled = static_cast<int32_t*>(args.sampled.data);
  params.guess = static_cast<int32_t*>(args.model.guess.data);
  params.num_rows = static_cast<int32_t>(args.rows.num_rows());
  params.most = static_cast<int32_t>(args.model.guess.shape[1]);
  params.index = args.index;
  params.padding_slot = static_cast<int32_t>(args.model.carry.shape[0] - 1);
  return params;
}

}  // namespace

void DraftOps::place_rows(const ops::PlaceRowsArgs& args) {
  run_("place_rows", {&args.x, &args.out},
       [&](cudaStream_t stream) { return launch_place_rows(place_rows_params(args), stream); });
}

void DraftOps::spread_logits(const ops::SpreadLogitsArgs& args) {
  run_("spread_logits", {&args.x, &args.out}, [&](cudaStream_t stream) {
    return launch_spread_logits(spread_logits_params(args), stream);
  });
}

void DraftOps::residual_act(const ops::ResidualActArgs& args) {
  run_("residual_act", {&args.x, &args.y},
       [&](cudaStream_t stream) { return launch_residual_act(residual_act_params(args), stream); });
}

void DraftOps::look_up(const ops::LookUpArgs& args) {
  run_("look_up", {&args.rows},
       [&](cudaStream_t stream) { return launch_look_up(look_up_params(args), stream); });
}

void DraftOps::place_tails(const ops::PlaceTailsArgs& args) {
  run_("place_tails", {&args.ids},
       [&](cudaStream_t stream) { return launch_place_tails(place_tails_params(args), stream); });
}

void DraftOps::keep_guess(const ops::KeepGuessArgs& args) {
  run_("keep_guess", {&args.rows},
       [&](cudaStream_t stream) { return launch_keep_guess(keep_guess_params(args), stream); });
}

}  // namespace rudder::cuda
