// Which attention kernels a step needs, and the copy engine's view of a cache.
#include "rudder/cuda/kernels/attention/attention_work.cuh"
#include "rudder/cuda/kernels/tensor_map.h"

namespace rudder::cuda {
namespace {

static_assert(sizeof(KvTensorMap) == 4 * sizeof(CUtensorMap));
static_assert(alignof(KvTensorMap) >= alignof(CUtensorMap));

// Dimensions from the innermost; strides in bytes of all but that one.
template <int kRank>
struct TensorShape {
  cuuint64_t size[kRank];
  cuuint64_t stride[kRank - 1];
  cuuint32_t box[kRank];
};

template <int kRank>
bool encode_map(EncodeTensorMap encode, const void* storage, KvType type,
                const TensorShape<kRank>& shape, CUtensorMapSwizzle swizzle, uint64_t (&map)[16]) {
  cuuint32_t steps[kRank];
  for (cuuint32_t& step : steps) step = 1;
  return encode(reinterpret_cast<CUtensorMap*>(map),
                is_narrow(type) ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                kRank, const_cast<void*>(storage), shape.size, shape.stride, shape.box, steps,
                CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

bool served(const AttentionConfig& config) {
  if (config.num_kv_heads <= 0 || config.num_heads % config.num_kv_heads != 0) return false;
  const int32_t group = config.num_heads / config.num_kv_heads;
  return group >= 1 && group <= kMaxGroup;
}

}  // namespace

size_t attention_workspace_bytes(int32_t max_seqs, int32_t max_tokens, int32_t max_head_dim) {
  WorkspaceView view;
  const size_t front = view_workspace(AttentionWorkspace{nullptr, max_seqs, max_tokens}, &view);
  return front + sizeof(float) * 2 * kMaxWorkers * kRowTile * static_cast<size_t>(max_head_dim);
}

cudaError_t make_kv_tensor_map(const void* storage, KvType kv_type, int64_t num_blocks,
                               int32_t num_kv_heads, int32_t head_dim, KvTensorMap* map) {
  EncodeTensorMap encode = nullptr;
  const cudaError_t error = find_tensor_map_encoder(&encode);
  if (error != cudaSuccess) return error;
  const cuuint64_t element = is_narrow(kv_type) ? 1 : 2;
  const auto columns = static_cast<cuuint32_t>(128 / element);  // of a column group
  const auto head = static_cast<cuuint64_t>(head_dim);
  const auto heads = static_cast<cuuint64_t>(num_kv_heads);
  const cuuint64_t parts = static_cast<cuuint64_t>(num_blocks) * 2;  // K, V, K, V
  const cuuint64_t row = head * element;                             // bytes
  const cuuint64_t page = row * kAttentionBlockSize;
  // [rows, head_dim]. Columns past head_dim come as zeros.
  const TensorShape<2> box{
      {head, parts * heads * kAttentionBlockSize}, {row}, {columns, kAttentionBlockSize}};
  const bool is_packed = row <= 64;
  TensorShape<2> packed = box;
  if (is_packed) packed.box[0] = static_cast<cuuint32_t>(head);
  // [parts, heads, column groups, 16 rows, columns]: the order in shared memory. Not for a last
  // column group that is not full, which would run over into the next row.
  const cuuint64_t groups = (head + columns - 1) / columns;
  const TensorShape<5> whole{
      {head < columns ? head : columns, kAttentionBlockSize, groups, heads, parts},
      {row, 128, page, page * heads},
      {packed.box[0], kAttentionBlockSize, static_cast<cuuint32_t>(groups), 1, 2}};
  // [pages, 2 (i), 4 (t), 2 (e), columns]: token 4t + 2i + e of a page.
  const TensorShape<5> runs{
      {head, 2, 4, 2, parts * heads}, {row, row * 4, row * 2, page}, {columns, 2, 4, 2, 1}};
  constexpr auto kWide = CU_TENSOR_MAP_SWIZZLE_128B;
  const auto swizzle = is_packed ? CU_TENSOR_MAP_SWIZZLE_64B : kWide;
  const bool good = encode_map(encode, storage, kv_type, box, kWide, map->box) &&
                    encode_map(encode, storage, kv_type, packed, swizzle, map->packed) &&
                    encode_map(encode, storage, kv_type, runs, kWide, map->runs) &&
                    encode_map(encode, storage, kv_type, whole, swizzle, map->page);
  return good ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t launch_attention(const AttentionParams& params, cudaStream_t stream) {
  if (!served(params.config)) return cudaErrorInvalidValue;
  if (params.bounds.num_seqs == 0) return cudaSuccess;
  if (scales_tokens(params.config.kv_type) != (params.scales.tokens != nullptr)) {
    return cudaErrorInvalidValue;
  }
  if (params.ancestors != nullptr && (params.config.window > 0 || params.gate.length > 0)) {
    return cudaErrorInvalidValue;
  }
  if (params.sinks != nullptr && params.gate.length > 0) return cudaErrorInvalidValue;
  // Always: it also writes the zeros of padding.
  const cudaError_t error = is_wide(params.config.head_dim)
                                ? launch_attention_wide(params, stream)
                                : launch_attention_split(params, stream);
  if (error != cudaSuccess) return error;
  if (attention_is_split(params.config, params.bounds.max_q_len)) return cudaSuccess;
  AttentionParams resolved = params;
  resolved.config.prefill_kernel = prefill_kernel_of(params.config, params.bounds);
  // Else it has no row of a tree.
  const bool may_have_trees = params.ancestors != nullptr && params.config.whole_sequences;
  if (may_have_trees && resolved.config.prefill_kernel != PrefillKernel::kWgmma) {
    return cudaErrorInvalidValue;
  }
  return resolved.config.prefill_kernel == PrefillKernel::kWgmma
             ? launch_attention_wgmma(resolved, stream)
             : launch_attention_mma(resolved, stream);
}

}  // namespace rudder::cuda
