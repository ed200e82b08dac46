#include "rudder/cuda/attention_layers.h"

#include <fmt/format.h>

#include <algorithm>

#include "rudder/base/check.h"
#include "rudder/cuda/device_status.h"
#include "rudder/cuda/elements.h"
#include "rudder/cuda/kernels/attention/plain_attention.h"

namespace rudder::cuda {

using tensor::DType;

namespace {

constexpr int32_t kTunedHeadDims[] = {64, 96, 128, 256, 512};
constexpr int32_t kMaxTunedGroup = 16;

// `least_sparse_pages` 0: what was measured.
GateParams gate_params(const ops::FirGate& gate, const AttentionConfig& config,
                       int32_t least_sparse_pages) {
  GateParams params;
  if (gate.empty()) return params;
  params.sigma = static_cast<const float*>(gate.sigma.data);
  params.gamma = static_cast<const float*>(gate.gamma.data);
  params.length = gate.length;
  params.relu_pre = gate.relu_pre;
  params.low = gate.low;
  params.high = gate.high;
  params.least_sparse_pages = least_sparse_pages;
  if (least_sparse_pages == 0) {
    params.least_sparse_pages = least_sparse_pages_of(config.head_dim, config.kv_type);
  }
  return params;
}

// Steps of a backend that was not told its bounds (tests) have at least this much room.
constexpr int32_t kLeastSeqs = 64;
constexpr int32_t kLeastTokens = 1024;

}  // namespace

std::string AttentionLayers::Kind::to_string() const {
  if (is_latent()) {
    return fmt::format("{} heads over rows of {} elements with {} values, {}", num_heads, head_dim,
                       value_dim, kv_type_name(kv_type));
  }
  return fmt::format("{} heads, {} KV heads, head_dim {}, window {}, blocks of {} {}", num_heads,
                     num_kv_heads, head_dim, window, block_size, kv_type_name(kv_type));
}

Result<void> AttentionLayers::check(const Kind& kind, bool has_gate) const {
  const auto refused = [&](const std::string& why) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("no attention kernel takes {}: {}", kind.to_string(), why), "device");
  };
  if (kind.num_kv_heads < 1 || kind.num_heads % kind.num_kv_heads != 0) {
    return refused("heads are no multiple of KV heads");
  }
  if (settings_.plain && kind.head_dim >= 1 && kind.head_dim <= kPlainAttentionMaxHeadDim) {
    return {};
  }
  if (is_tuned(kind, has_gate)) return {};
  if (kind.is_latent()) {
    return refused(
        "rows are kept in bf16, of 512 or 256 values and 64 elements besides, or of 512 alone");
  }
  if (has_gate && kind.head_dim > kMaxGatedHeadDim) {
    return refused(fmt::format("under a gate it is head_dim {} at most", kMaxGatedHeadDim));
  }
  if (scales_tokens(kind.kv_type) && (has_gate || kind.head_dim > kMaxTokenScaledHeadDim)) {
    return refused(fmt::format("where tokens have scales it is a softmax and head_dim {} at most",
                               kMaxTokenScaledHeadDim));
  }
  return refused(
      fmt::format("it is head_dim {}, blocks of {} tokens and at most {} heads a KV head",
                  fmt::join(kTunedHeadDims, " or "), kAttentionBlockSize, kMaxTunedGroup));
}

bool AttentionLayers::is_tuned(const Kind& kind, bool has_gate) {
  if (kind.is_latent()) {
    return !has_gate && kind.window == 0 && kind.num_kv_heads == 1 &&
           kind.kv_type == KvType::kBf16 && has_latent_attention(kind.head_dim, kind.value_dim);
  }
  if (has_gate && kind.head_dim > kMaxGatedHeadDim) return false;
  if (scales_tokens(kind.kv_type) && (has_gate || kind.head_dim > kMaxTokenScaledHeadDim)) {
    return false;
  }
  return kind.block_size == kAttentionBlockSize &&
         kind.num_heads / kind.num_kv_heads <= kMaxTunedGroup &&
         std::find(std::begin(kTunedHeadDims), std::end(kTunedHeadDims), kind.head_dim) !=
             std::end(kTunedHeadDims);
}

AttentionLayers::Kind AttentionLayers::kind_of(const ops::KvLayer& kv, int32_t num_heads,
                                               int32_t window, int32_t value_dim) {
  return {num_heads, kv.num_kv_heads, kv.head_dim, kv.block_size,
          window,    kv_type_of(kv),  kv.parts,    value_dim};
}

LatentAttentionConfig AttentionLayers::latent_config_of(const Kind& kind) const {
  return {kind.num_heads, kind.head_dim, kind.value_dim, settings_.batch_invariant, num_sms_};
}

AttentionConfig AttentionLayers::config_of(const Kind& kind) const {
  AttentionConfig config;
  config.num_heads = kind.num_heads;
  config.num_kv_heads = kind.num_kv_heads;
  config.head_dim = kind.head_dim;
  config.window = kind.window;
  config.kv_type = kind.kv_type;
  config.whole_sequences = settings_.batch_invariant;
  config.num_sms = num_sms_;
  return config;
}

Result<void> AttentionLayers::prepare(std::span<const ops::AttentionShape> shapes, int32_t max_seqs,
                                      int32_t max_tokens) {
  for (const ops::AttentionShape& shape : shapes) {
    const Kind kind = kind_of(shape.kv, shape.num_heads, shape.window, shape.value_dim);
    RUDDER_TRY_VOID(check(kind, shape.has_gate));
    if (!is_tuned(kind, shape.has_gate)) continue;
    RUDDER_TRY_VOID(make_room(kind, max_seqs, max_tokens));
    if (!kind.is_latent()) RUDDER_TRY_VOID(tensor_map(shape.kv, kind));
  }
  return {};
}

Result<void> AttentionLayers::make_room(const Kind& kind, int32_t max_seqs, int32_t max_tokens) {
  AttentionWorkspace& room = work_lists_[kind].workspace;
  if (room.data != nullptr && room.max_seqs >= max_seqs && room.max_tokens >= max_tokens) return {};
  const int32_t seqs = std::max({max_seqs, room.max_seqs, kLeastSeqs});
  const int32_t tokens = std::max({max_tokens, room.max_tokens, kLeastTokens});
  const auto bytes = static_cast<int64_t>(
      kind.is_latent() ? latent_workspace_bytes(latent_config_of(kind), seqs)
                       : attention_workspace_bytes(seqs, tokens, kind.head_dim));
  RUDDER_TRY(const ops::View data, memory_.allocate_raw(DType::kU8, {bytes}));
  room = {data.data, seqs, tokens};
  return {};
}

Result<const KvTensorMap*> AttentionLayers::tensor_map(const ops::KvLayer& kv, const Kind& kind) {
  const auto [entry, is_new] = maps_.try_emplace({kv.storage.data, kind});
  if (is_new) {
    const cudaError_t error =
        make_kv_tensor_map(kv.storage.data, config_of(kind).kv_type, kv.storage.shape[0],
                           kind.num_kv_heads, kind.head_dim, &entry->second);
    if (error != cudaSuccess) {
      maps_.erase(entry);
      return tl::unexpected(device_error(error, "make_kv_tensor_map", kind.to_string()));
    }
  }
  return &entry->second;
}

void AttentionLayers::begin_step(const ops::AttentionBatch& batch) {
  batch_ = batch;
  for (auto& [kind, work] : work_lists_) work.is_current = false;
}

Result<void> AttentionLayers::attend(const ops::AttentionArgs& args) {
  const Kind kind = kind_of(args.kv, args.num_heads, args.window, args.value_dim);
  const bool has_gate = !args.gate.empty();
  if (is_tuned(kind, has_gate)) {
    return kind.is_latent() ? attend_latent(args, kind) : attend_tuned(args, kind);
  }
  RUDDER_TRY_VOID(check(kind, has_gate));
  return attend_plain(args, kind);
}

Result<void> AttentionLayers::attend_tuned(const ops::AttentionArgs& args, const Kind& kind) {
  AttentionBounds bounds;
  bounds.num_seqs = static_cast<int32_t>(batch_.kv_len.shape[0]);
  bounds.num_tokens = static_cast<int32_t>(args.q.shape[0]);
  bounds.max_q_len = batch_.max_q_len;
  RUDDER_TRY_VOID(make_room(kind, bounds.num_seqs, bounds.num_tokens));
  RUDDER_TRY(const KvTensorMap* const map, tensor_map(args.kv, kind));
  WorkList& work = work_lists_[kind];
  const bool work_is_older = work.is_current;  // than the kernel in front
  if (!work.is_current) {
    AttentionWorkParams params;
    params.config = config_of(kind);
    params.bounds = bounds;
    params.q_begin = static_cast<const int32_t*>(batch_.q_begin.data);
    params.kv_len = static_cast<const int32_t*>(batch_.kv_len.data);
    params.table_row = static_cast<const int32_t*>(batch_.table_row.data);
    params.ancestors = static_cast<const uint64_t*>(batch_.ancestors.data);
    params.workspace = work.workspace;
    RUDDER_CUDA_TRY(launch_attention_work(params, stream_), "begin_attention", kind.to_string());
    work.is_current = true;
  }
  AttentionParams params;
  params.config = config_of(kind);
  params.bounds = bounds;
  params.kv = *map;
  params.kv_storage = args.kv.storage.data;
  params.scales.k = static_cast<const float*>(args.kv.k_scale.data);
  params.scales.v = static_cast<const float*>(args.kv.v_scale.data);
  if (scales_tokens(kind.kv_type)) {
    params.scales.tokens = static_cast<float*>(args.kv.token_scales.data);
    params.scales.token_pitch = args.kv.token_scales.shape[1];
  }
  params.block_table = static_cast<const int32_t*>(batch_.table_of(args.kv.group).data);
  params.max_blocks = batch_.block_table.shape[1];
  params.ancestors = static_cast<const uint64_t*>(batch_.ancestors.data);
  params.scale = args.scale;
  params.softcap = args.softcap;
  params.sinks = static_cast<const float*>(args.sinks.data);
  params.gate = gate_params(args.gate, config_of(kind), settings_.least_sparse_pages);
  params.q = args.q.data;
  params.out = args.out.data;
  params.workspace = work.workspace;
  params.reads_ahead = work_is_older;
  RUDDER_CUDA_TRY(launch_attention(params, stream_), "attention", kind.to_string());
  return {};
}

Result<void> AttentionLayers::attend_latent(const ops::AttentionArgs& args, const Kind& kind) {
  RUDDER_CHECK(args.softcap == 0, "latent rows with a soft-cap");
  LatentAttentionParams params;
  params.config = latent_config_of(kind);
  params.bounds.num_seqs = static_cast<int32_t>(batch_.kv_len.shape[0]);
  params.bounds.num_tokens = static_cast<int32_t>(args.q.shape[0]);
  params.bounds.max_q_len = batch_.max_q_len;
  RUDDER_TRY_VOID(make_room(kind, params.bounds.num_seqs, params.bounds.num_tokens));
  WorkList& work = work_lists_[kind];
  params.workspace = work.workspace.data;
  params.q_begin = static_cast<const int32_t*>(batch_.q_begin.data);
  params.kv_len = static_cast<const int32_t*>(batch_.kv_len.data);
  params.table_row = static_cast<const int32_t*>(batch_.table_row.data);
  params.ancestors = static_cast<const uint64_t*>(batch_.ancestors.data);
  params.reads_ahead = work.is_current;  // and so older than the kernel in front
  if (!work.is_current) {
    RUDDER_CUDA_TRY(launch_latent_plan(params, stream_), "begin_attention", kind.to_string());
    work.is_current = true;
  }
  params.block_table = static_cast<const int32_t*>(batch_.table_of(args.kv.group).data);
  params.max_blocks = batch_.block_table.shape[1];
  params.kv = args.kv.storage.data;
  params.block_size = kind.block_size;
  params.scale = args.scale;
  params.sinks = static_cast<const float*>(args.sinks.data);
  params.q = args.q.data;
  params.out = args.out.data;
  RUDDER_CUDA_TRY(launch_latent_attention(params, stream_), "attention", kind.to_string());
  return {};
}

Result<void> AttentionLayers::attend_plain(const ops::AttentionArgs& args, const Kind& kind) {
  PlainAttentionParams params;
  params.q = args.q.data;
  params.kv.data = args.kv.storage.data;
  params.kv.type = kind.kv_type;
  params.kv.parts = kind.parts;
  params.kv.scales.k = static_cast<const float*>(args.kv.k_scale.data);
  params.kv.scales.v =
      kind.is_latent() ? params.kv.scales.k : static_cast<const float*>(args.kv.v_scale.data);
  params.q_begin = static_cast<const int32_t*>(batch_.q_begin.data);
  params.kv_len = static_cast<const int32_t*>(batch_.kv_len.data);
  params.table_row = static_cast<const int32_t*>(batch_.table_row.data);
  if (scales_tokens(kind.kv_type)) {
    params.kv.scales.tokens = static_cast<float*>(args.kv.token_scales.data);
    params.kv.scales.token_pitch = args.kv.token_scales.shape[1];
  }
  params.block_table = static_cast<const int32_t*>(batch_.table_of(args.kv.group).data);
  params.max_blocks = batch_.block_table.shape[1];
  params.ancestors = static_cast<const uint64_t*>(batch_.ancestors.data);
  params.num_seqs = static_cast<int32_t>(batch_.kv_len.shape[0]);
  params.num_tokens = static_cast<int32_t>(args.q.shape[0]);
  params.num_heads = kind.num_heads;
  params.num_kv_heads = kind.num_kv_heads;
  params.head_dim = kind.head_dim;
  params.block_size = kind.block_size;
  params.window = kind.window;
  params.scale = args.scale;
  params.softmax = {args.softcap, static_cast<const float*>(args.sinks.data)};
  params.gate = gate_params(args.gate, config_of(kind), settings_.least_sparse_pages);
  params.out = args.out.data;
  RUDDER_CUDA_TRY(launch_plain_attention(params, stream_), "attention", kind.to_string());
  return {};
}

}  // namespace rudder::cuda
