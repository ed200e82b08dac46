#include "rudder/cuda/kernels/sampling/keep_paths.h"

#include "rudder/cuda/kernels/launch.h"
#include "rudder/ops/sample_row.h"

namespace rudder::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kBatch = 4;  // tokens whose loads are on their way at once
constexpr uint32_t kAllLanes = 0xffffffffu;

__device__ int64_t first_row_of(const KeepPathsParams& p, int32_t token) {
  int64_t low = 0;
  int64_t high = p.num_rows;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (p.logits_rows[middle] < token) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// By a warp: which of the tokens [begin, end), 64 at most, were sampled, a bit each.
__device__ uint64_t sampled_tokens(const KeepPathsParams& p, int32_t begin, int32_t end, int lane) {
  uint32_t low = 0;
  uint32_t high = 0;
  for (int64_t row = first_row_of(p, begin) + lane; row < p.num_rows; row += 32) {
    const int32_t token = p.logits_rows[row];
    if (token >= end) break;
    if (p.sampled[row * 4 + 1] == static_cast<int32_t>(ops::SampleEnd::kRejected)) continue;
    const int32_t bit = token - begin;
    (bit < 32 ? low : high) |= 1u << (bit % 32);
  }
  low = __reduce_or_sync(kAllLanes, low);
  high = __reduce_or_sync(kAllLanes, high);
  return uint64_t{high} << 32 | low;
}

// Moves tokens of a sequence that has `base` others in front of them, column by column.
template <typename Column>
__device__ void move_path(const KeepPathsParams& p, const KeptLayer& layer, int64_t seq,
                          int32_t base, uint64_t path) {
  const int32_t* const blocks =
      p.block_table + (int64_t{layer.group} * p.group_rows + p.table_row[seq]) * p.max_blocks;
  const int32_t row_columns = layer.row_bytes / static_cast<int32_t>(sizeof(Column));
  const int32_t num_kept = __ffsll(static_cast<long long>(~path)) - 1;
  const uint64_t moving = path >> num_kept << num_kept;
  const int64_t block_bytes = layer.block_bytes > 0
                                  ? layer.block_bytes
                                  : int64_t{layer.heads} * layer.block_size * layer.row_bytes;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < layer.heads * row_columns;
       i += kThreads) {
    const int32_t head = i / row_columns;
    const int32_t column = i % row_columns;
    const auto at = [&](int32_t token) {
      const int32_t block = blocks[token / layer.block_size] / layer.group_layers;
      const int64_t row = int64_t{head} * layer.block_size + token % layer.block_size;
      return reinterpret_cast<Column*>(static_cast<uint8_t*>(layer.storage) + block * block_bytes) +
             row * row_columns + column;
    };
    int32_t to = base + num_kept;
    for (uint64_t left = moving; left != 0;) {
      Column values[kBatch];
      int32_t count = 0;
#pragma unroll
      for (int n = 0; n < kBatch; ++n) {
        if (left == 0) break;
        values[n] = *at(base + __ffsll(static_cast<long long>(left)) - 1);
        left &= left - 1;
        ++count;
      }
#pragma unroll
      for (int n = 0; n < kBatch; ++n) {
        if (n < count) *at(to + n) = values[n];
      }
      to += count;
    }
  }
}

// A sequence along x, a layer along y.
__global__ void __launch_bounds__(kThreads)
    keep_paths_kernel(const __grid_constant__ KeepPathsParams p) {
  __shared__ uint64_t shared_path;
  dependency_wait();
  dependency_trigger();
  const int64_t seq = blockIdx.x;
  const int32_t begin = p.q_begin[seq];
  const int32_t end = p.q_begin[seq + 1];
  if (begin == end || p.ancestors[begin] == 0) return;
  if (threadIdx.x < 32) {
    const uint64_t path = sampled_tokens(p, begin, end, static_cast<int>(threadIdx.x));
    if (threadIdx.x == 0) shared_path = path;
  }
  __syncthreads();
  const uint64_t path = shared_path;
  if ((path & (path + 1)) == 0) return;  // all lie where they belong
  const KeptLayer& layer = p.layers[blockIdx.y];
  const int32_t base = p.kv_len[seq] - (end - begin);
  if (layer.row_bytes % static_cast<int32_t>(sizeof(uint4)) == 0) {
    move_path<uint4>(p, layer, seq, base, path);
  } else {
    move_path<uint8_t>(p, layer, seq, base, path);
  }
}

}  // namespace

cudaError_t launch_keep_paths(const KeepPathsParams& p, cudaStream_t stream) {
  if (p.num_layers < 0 || p.num_layers > kMaxKeptLayers) return cudaErrorInvalidValue;
  if (p.num_seqs == 0 || p.num_layers == 0 || p.ancestors == nullptr) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(p.num_seqs), static_cast<unsigned>(p.num_layers));
  return launch_pdl(keep_paths_kernel, grid, dim3(kThreads), 0, stream, p);
}

}  // namespace rudder::cuda
