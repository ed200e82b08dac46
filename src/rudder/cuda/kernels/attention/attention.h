// Paged attention on sm_90a. Called by CudaOps on the thread that owns the stream.
//
// q and out bf16 [T, num_heads * head_dim]; cache bf16 or codes (fp8 e4m3, int8)
// [num_blocks, 2 (k, v), num_kv_heads, 16, head_dim]; sums and softmax fp32. Formula:
// cpu/plain_attention.cpp. With an fp8 cache whose heads have scales the wgmma kernel rounds each
// row of q to e4m3 (docs/adr/0069-e4m3-queries.md).
//
// Where tokens have scales (docs/adr/0115-kv-scales-of-tokens.md), those of a page come with it
// through the copy engine; a score is multiplied by its key's, a weight by its value's. Then there
// are no gates, heads of 256 at most, and rows that are not split go to the mma kernel.
//
// The q_len new tokens of a sequence are the last of its kv_len tokens, and the one at position p
// sees (p - window, p]. Those of a tree of drafts, 64 at most, see all in front of them and what
// their words of `ancestors` name; with trees there is neither a window nor a gate.
//
// Once a step launch_attention_work divides the step's work on the device, in a workspace; then
// launch_attention runs once a layer. One work list serves every layer with an equal
// AttentionConfig: layers that differ (a window on every other layer) have a work list and a
// workspace each. Both can be captured: their grids depend on AttentionBounds only, and no length
// is read by the host.
//
// Two kernels share a step; of heads of 512 split rows have a third, which adds up partial results.
// Short rows (attention_is_split) go to the split one, and so do somewhat longer ones where the
// work list foresees that this is faster, such as a short prompt behind a long cached context: the
// tokens of all sequences and KV heads lie on one line that the blocks of the grid cut in equal
// parts, so that one sequence of 128k tokens and 256 of 500 both fill the device. All q heads of a
// KV head share each byte of it. All other rows go to the tiled one: 64 or 128 pairs (token, q head
// of the group) against the whole sequence, or against parts of it where such tiles are few. Trees
// are split whatever their length, under a mask in the pages that the step writes. Where rows must
// not depend on their company a token of a tree has a tile of its own, for which its path is laid
// out in shared memory as plain decoding has it.
//
// Floor: split rows read 2 * kv_len * num_kv_heads * head_dim cache elements of each sequence once
// (where they are more than 16 pairs once for each 16, from the second on out of L2), and 8 bytes a
// token of a tree; tiled rows do 4 * head_dim flop for each (token, head, visible position). Under
// a gate split rows read the keys, and the values of tokens that some head of the group weighs.
#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda_runtime_api.h>

#include "rudder/cuda/kernels/kv_type.h"
#include "rudder/ops/fir_length.h"

namespace rudder::cuda {

inline constexpr int32_t kAttentionBlockSize = 16;  // tokens of a KV block
inline constexpr int32_t kMaxGatedHeadDim = 256;    // wider heads have a softmax
inline constexpr int32_t kMaxTokenScaledHeadDim = 256;
// AttentionConfig::section_bytes, as measured.
inline constexpr int64_t kSectionBytes = int64_t{32} << 20;

// The kernel of tiled rows. kAuto: wgmma, but for short prompts, which would leave most of its
// tiles of 128 rows empty.
enum class PrefillKernel : uint8_t { kAuto, kMmaSync, kWgmma };

// GateParams::least_sparse_pages, as measured (docs/adr/0037-gates-on-a-gpu.md): the fewer bytes a
// page has, the more of them it takes.
__host__ __device__ constexpr int32_t least_sparse_pages_of(int32_t head_dim, KvType kv_type) {
  constexpr int32_t kNever = 1 << 30;
  if (kv_type == KvType::kBf16) return head_dim == 64 ? 32 : 8;
  if (head_dim == 64) return kNever;
  return head_dim == 256 ? 8 : 16;
}

// What layers have in common that share a work list.
struct AttentionConfig {
  int32_t num_heads = 0;  // 1 to 16 for each KV head
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;  // 64, 96, 128, 256 or 512
  int32_t window = 0;    // 0 = all
  KvType kv_type = KvType::kBf16;
  PrefillKernel prefill_kernel = PrefillKernel::kAuto;
  // One kernel for every row, the tiled one of wgmma unless prefill_kernel says another, and its
  // tiles of keys begin at multiples of their size: a row's bits then depend neither on the other
  // sequences of the step nor on how its own tokens are cut into steps. Slow for few long
  // sequences, and a decode fills a tile of 128 rows with one token.
  bool whole_sequences = false;
  int32_t num_sms = 132;  // multiprocessors of the device
  // Of keys and values that tiles read side by side: what stays in the L2 cache (ADR 0053).
  int64_t section_bytes = kSectionBytes;
};

// What the host knows of a step. A captured step keeps those of its capture.
struct AttentionBounds {
  int32_t num_seqs = 0;
  int32_t num_tokens = 0;  // T
  int32_t max_q_len = 0;   // of sequences that are no trees
};

// Device memory, 256-byte aligned, of attention_workspace_bytes(max_seqs, max_tokens, ...) bytes;
// need not be initialised. Written by the work list and by each launch_attention.
struct AttentionWorkspace {
  void* data = nullptr;
  int32_t max_seqs = 0;
  int32_t max_tokens = 0;
};

size_t attention_workspace_bytes(int32_t max_seqs, int32_t max_tokens, int32_t max_head_dim);

struct AttentionWorkParams {
  AttentionConfig config;
  AttentionBounds bounds;
  const int32_t* q_begin = nullptr;     // [num_seqs + 1] prefix sums of q_len
  const int32_t* kv_len = nullptr;      // [num_seqs]; 0 = padding, its rows of out become zeros
  const int32_t* table_row = nullptr;   // [num_seqs] row of block_table
  const uint64_t* ancestors = nullptr;  // [T] ops::AttentionBatch.ancestors; nullptr: no trees
  AttentionWorkspace workspace;
};

// The cache of one layer as the copy engine sees it: four CUtensorMaps.
struct alignas(128) KvTensorMap {
  uint64_t box[16] = {};     // 128 bytes of the 16 rows of one page of K or V of a head
  uint64_t packed[16] = {};  // the same, of 64 bytes where a row has no more (Page::kPitch)
  uint64_t page[16] = {};    // all of a page of a head, K and V, its boxes as packed
  uint64_t runs[16] = {};    // a box whose rows are in another order (token_of_row)
};

// Once a layer at start; `storage` 16-byte aligned device memory. Needs a current context.
cudaError_t make_kv_tensor_map(const void* storage, KvType kv_type, int64_t num_blocks,
                               int32_t num_kv_heads, int32_t head_dim, KvTensorMap* map);

// Weights without a softmax (ops::FirGate).
struct GateParams {
  const float* sigma = nullptr;  // [num_heads]
  const float* gamma = nullptr;  // [num_heads]
  int32_t length = 0;            // 1 to ops::kMaxFirLength; 0: the weights are a softmax
  bool relu_pre = false;
  float low = 0;
  float high = 1;
  // Where the split kernel's blocks have at least so many pages on average, they read the values of
  // the tokens alone that some row weighs; with fewer, waiting for the scores costs more than the
  // bytes.
  int32_t least_sparse_pages = 0;
};

struct AttentionParams {
  AttentionConfig config;  // equal to the work list's
  AttentionBounds bounds;  // equal to the work list's
  KvTensorMap kv;
  const void* kv_storage = nullptr;      // what `kv` maps
  KvScales scales;                       // value = stored * scale
  const int32_t* block_table = nullptr;  // [S + 1, max_blocks] block ids
  int64_t max_blocks = 0;
  const uint64_t* ancestors = nullptr;  // the work list's
  float scale = 1.0f;                   // of q . k
  float softcap = 0.0f;                 // 0 = off
  // [num_heads] of natural exponents, or nullptr: a score of each head that counts in the
  // denominators of its rows' softmax, once.
  const float* sinks = nullptr;
  GateParams gate;          // with it there are neither soft-cap nor sinks
  const void* q = nullptr;  // [T, num_heads * head_dim] bf16, 16-byte aligned
  void* out = nullptr;      // [T, num_heads * head_dim] bf16, 16-byte aligned
  AttentionWorkspace workspace;
  // The kernel in front of this one is none that writes the work list, the block table or KV of
  // tokens that are not the step's: they may be read before it has ended (launch.h: all kernels in
  // front of that one have).
  bool reads_ahead = false;
};

// Is a sequence with q_len new tokens, which is no tree, a split one in every step?
__host__ __device__ constexpr bool attention_is_split(const AttentionConfig& config,
                                                      int32_t q_len) {
  const int32_t group = config.num_heads / config.num_kv_heads;
  return !config.whole_sequences && q_len <= 16 && q_len * group <= 64;
}

// Both return cudaErrorInvalidValue for a config that no kernel serves, and what the launch
// returned otherwise. Nothing is launched for num_seqs == 0.
cudaError_t launch_attention_work(const AttentionWorkParams& params, cudaStream_t stream);
cudaError_t launch_attention(const AttentionParams& params, cudaStream_t stream);

}  // namespace rudder::cuda
