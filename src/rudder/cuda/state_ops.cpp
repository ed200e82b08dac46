#include "rudder/cuda/state_ops.h"

#include "rudder/base/check.h"
#include "rudder/cuda/elements.h"
#include "rudder/cuda/kernels/states/chunks.h"
#include "rudder/cuda/kernels/states/states.h"

namespace rudder::cuda {
namespace {

using tensor::DType;
using tensor::View;

StateParams state_params(const ops::StateAccess& access, int64_t tokens) {
  const ops::LayerState& layer = access.layer;
  RUDDER_CHECK(!access.batch.empty() && !layer.pool.empty(), "no states are given");
  constexpr auto kFloat = static_cast<int64_t>(sizeof(float));
  StateParams params;
  params.q_begin = pointer<int32_t>(access.q_begin);
  params.table_row = pointer<int32_t>(access.table_row);
  params.positions = pointer<int32_t>(access.positions);
  params.state = pointer<int32_t>(access.batch.state);
  params.num_draft = pointer<int32_t>(access.batch.num_draft);
  params.seqs = static_cast<int32_t>(access.batch.state.num_rows());
  params.tokens = static_cast<int32_t>(tokens);
  params.pool = pointer<uint8_t>(layer.pool) + layer.begin;
  params.pool_stride = layer.pool.shape[1];
  if (layer.kept.empty()) return params;
  params.kept = reinterpret_cast<float*>(pointer<uint8_t>(layer.kept) + layer.kept_begin);
  params.kept_rows = static_cast<int32_t>(layer.kept.shape[1]);
  params.row_stride = layer.kept.shape[2] / kFloat;
  params.slot_stride = params.kept_rows * params.row_stride;
  return params;
}

KeptRun kept_run(const View& rows, int64_t begin, int64_t count) {
  return {pointer<uint16_t>(rows) + begin, rows.shape[1], static_cast<int32_t>(count)};
}

ConvolveParams convolve_params(const ops::ConvolveArgs& args) {
  RUDDER_CHECK(args.x.dtype == DType::kBF16 && args.x.shape[1] >= args.channels() &&
                   args.weight.num_rows() == args.channels() * args.length &&
                   args.length <= kMostFilter,
               "convolve of {}", shapes({&args.x, &args.out}));
  ConvolveParams params;
  params.state = state_params(args.state, args.x.shape[0]);
  params.x = args.x.data;
  params.x_stride = args.x.shape[1];
  params.weight = pointer<float>(args.weight);
  params.bias = pointer<float>(args.bias);
  params.channels = static_cast<int32_t>(args.channels());
  params.length = args.length;
  params.silu = args.silu;
  params.out = args.out.data;
  return params;
}

RecurParams recur_params(const ops::RecurArgs& args) {
  RUDDER_CHECK(args.qkv.dtype == DType::kBF16 && args.value_heads % args.key_heads == 0 &&
                   args.out.shape[1] == int64_t{args.value_heads} * args.value_dim &&
                   args.key_dim <= kMostKeyDim &&
                   (args.limits.decay_floor == 0 || args.a_by_channel),
               "recur of {}", shapes({&args.qkv, &args.out}));
  RecurParams params;
  params.state = state_params(args.state, args.qkv.shape[0]);
  params.qkv = args.qkv.data;
  params.qkv_stride = args.qkv.shape[1];
  params.q_begin = static_cast<int32_t>(args.q_begin);
  params.k_begin = static_cast<int32_t>(args.k_begin);
  params.v_begin = static_cast<int32_t>(args.v_begin);
  params.gates.rows = args.gates.data;
  params.gates.stride = args.gates.shape[1];
  params.gates.b_rows = args.b_rows().data;
  params.gates.b_stride = args.b_rows().shape[1];
  params.gates.a_begin = static_cast<int32_t>(args.a_begin);
  params.gates.b_begin = static_cast<int32_t>(args.b.begin);
  params.key_heads = args.key_heads;
  params.value_heads = args.value_heads;
  params.key_dim = args.key_dim;
  params.value_dim = args.value_dim;
  params.gates.a_by_channel = args.a_by_channel;
  params.rule = args.rule;
  params.step_low = args.limits.low;
  params.step_high = args.limits.high;
  params.gates.decay_floor = args.limits.decay_floor;
  params.a_log = pointer<float>(args.a_log);
  params.step_bias = pointer<float>(args.step_bias);
  params.skip = pointer<float>(args.skip);
  params.out = args.out.data;
  return params;
}

}  // namespace

ops::StateLimits StateOps::state_limits() const {
  return {.filter = kMostFilter, .key_dim = kMostKeyDim, .decay_floor = true};
}

Result<void> StateOps::prepare(const ops::StepBounds& bounds) {
  if (!settings_.by_chunks || bounds.max_state_heads == 0) return {};
  const int64_t bytes = chunk_bytes(bounds.max_tokens, bounds.max_state_heads);
  if (static_cast<int64_t>(chunks_.bytes()) >= bytes) return {};
  RUDDER_TRY(chunks_, memory_.allocate_raw(DType::kU8, {bytes}));
  return {};
}

void StateOps::convolve(const ops::ConvolveArgs& args) {
  const ConvolveParams params = convolve_params(args);
  run_("convolve", {&args.x, &args.out},
       [&](cudaStream_t stream) { return launch_convolve(params, stream); });
  if (params.state.kept == nullptr) return;
  const KeepRowsParams keep{params.state, {kept_run(args.x, 0, args.channels())}};
  run_("convolve", {&args.x}, [&](cudaStream_t stream) { return launch_keep_rows(keep, stream); });
}

void StateOps::recur(const ops::RecurArgs& args) {
  RecurParams params = recur_params(args);
  if (chunk_bytes(params.state.tokens, params.value_heads) <=
      static_cast<int64_t>(chunks_.bytes())) {
    params.chunks = pointer<uint8_t>(chunks_);
  }
  run_("recur", {&args.qkv, &args.out},
       [&](cudaStream_t stream) { return launch_recur(params, settings_.num_sms, stream); });
  if (params.state.kept == nullptr) return;
  const int64_t keys = int64_t{args.key_heads} * args.key_dim;
  const int64_t values = int64_t{args.value_heads} * args.value_dim;
  KeepRowsParams keep{
      params.state,
      {kept_run(args.qkv, args.q_begin, keys), kept_run(args.qkv, args.k_begin, keys),
       kept_run(args.qkv, args.v_begin, values),
       kept_run(args.gates, args.a_begin, args.a_width())}};
  if (args.b.begin >= 0) keep.runs[4] = kept_run(args.b_rows(), args.b.begin, args.value_heads);
  run_("recur", {&args.qkv}, [&](cudaStream_t stream) { return launch_keep_rows(keep, stream); });
}

void StateOps::gate_rows(const ops::GateRowsArgs& args) {
  const int64_t width = args.out.shape[1];
  RUDDER_CHECK(args.x.dtype == DType::kBF16 && args.x.shape[1] >= width &&
                   args.gate.shape[1] >= args.gate_begin + width &&
                   (args.norm.empty() || width % args.run == 0),
               "gate_rows of {}", shapes({&args.x, &args.gate, &args.out}));
  GateRowsParams params;
  params.x = args.x.data;
  params.x_stride = args.x.shape[1];
  params.gate = pointer<uint16_t>(args.gate) + args.gate_begin;
  params.gate_stride = args.gate.shape[1];
  params.function = args.function;
  params.norm = pointer<float>(args.norm.weight);
  params.norm_is_whole = !args.norm.empty() && args.norm.weight.num_rows() == width;
  params.eps = args.norm.eps;
  params.run = args.run;
  params.gates_first = args.gates_first;
  params.rows = args.x.shape[0];
  params.width = width;
  params.out = args.out.data;
  run_("gate_rows", {&args.x, &args.gate, &args.out},
       [&](cudaStream_t stream) { return launch_gate_rows(params, stream); });
}

}  // namespace rudder::cuda
