// What the parts of an encode share: the batch of rows at hand, and the dictionary that encodes
// them. Included by .cu files only.
#pragma once

#include "rudder/cuda/kernels/device_barrier.cuh"
#include "rudder/cuda/kernels/features/encode.h"
#include "rudder/cuda/kernels/taps/tap_features.cuh"
#include "rudder/tap/dictionary_head.h"

namespace rudder::cuda {

inline constexpr int kEncodeThreads = 512;
inline constexpr int kEncodeWarps = kEncodeThreads / 32;
inline constexpr int kBatchRows = static_cast<int>(tap::kEncodedRows);
inline constexpr unsigned kEncodeLanes = 0xffffffffu;

__device__ inline int encode_lane() {
  return static_cast<int>(threadIdx.x) % 32;
}
__device__ inline int encode_warp() {
  return static_cast<int>(threadIdx.x) / 32;
}

__device__ inline void mark_encode(const EncodeParams& p, EncodeMark what) {
  if (p.marks == nullptr || threadIdx.x != 0) return;
  p.marks[blockIdx.x * kNumEncodeMarks + static_cast<int>(what)] = clock64();
}

// How a dictionary normalises a row: norm(h) = (h - mean) by, h = norm(h) back + mean.
struct EncodeScale {
  float mean, by, back;
};

// In shared memory; all blocks have the same.
struct EncodeBatch {
  int num_rows;
  int token[kBatchRows];  // ascending
  int op[kBatchRows];     // of table.ops: its kEncode
  int run[kBatchRows];    // and the length of that one's run
  bool is_full[kBatchRows];
  EncodeScale scale[kBatchRows];
};

// Of a row, by a warp. Past L1: another block may have written it.
__device__ inline EncodeScale encode_scale(const uint16_t* row, int width, tap::FeatureNorm norm) {
  if (norm == tap::FeatureNorm::kNone) return {0.0f, 1.0f, 1.0f};
  const auto element = [row](int column) {
    return __bfloat162float(__ushort_as_bfloat16(__ldcg(row + column)));
  };
  const auto count = static_cast<float>(width);
  float mean = 0.0f;
  if (norm == tap::FeatureNorm::kLayerNorm) {
    float sum = 0.0f;
#pragma unroll 8
    for (int c = encode_lane(); c < width; c += 32) sum += element(c);
    mean = warp_sum(sum) / count;
  }
  float squares = 0.0f;
#pragma unroll 8
  for (int c = encode_lane(); c < width; c += 32) {
    const float off = element(c) - mean;
    squares = fmaf(off, off, squares);
  }
  squares = warp_sum(squares);
  if (norm == tap::FeatureNorm::kConstantNorm) {
    const float back = sqrtf(squares / count);
    return {0.0f, back > 0.0f ? 1.0f / back : 0.0f, back};
  }
  const float back = width > 1 ? sqrtf(squares / (count - 1.0f)) : 0.0f;
  return {mean, 1.0f / (back + static_cast<float>(tap::kLayerNormEpsilon)), back};
}

// By all threads of a block; past L1, since another block may have written the row, or will read
// it.
template <typename Store>
__device__ inline void copy_encoded_row(const uint16_t* from, int width, const Store& store) {
  if (width % kRun == 0) {
    for (int c = static_cast<int>(threadIdx.x) * kRun; c < width; c += kEncodeThreads * kRun) {
      store(c, __ldcg(reinterpret_cast<const uint4*>(from + c)));
    }
    return;
  }
  for (int c = static_cast<int>(threadIdx.x); c < width; c += kEncodeThreads) {
    store(c, __ldcg(from + c));
  }
}

// By a warp: what stands at `from`, past L1, which might hold what was there before an edit of the
// table.
__device__ inline void load_head(const float* from, tap::DictionaryHead& head) {
  constexpr int kPieces = sizeof(tap::DictionaryHead) / sizeof(int4);
  const int i = encode_lane();
  if (i >= kPieces) return;
  const int4 piece = __ldcg(reinterpret_cast<const int4*>(from) + i);
  memcpy(reinterpret_cast<char*>(&head) + i * sizeof(piece), &piece, sizeof(piece));
}

// Asks for it to come to L2; bulks are 16-byte aligned and of whole 16 bytes.
__device__ inline void prefetch_line(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}
__device__ inline void prefetch_bulk(const void* address, int bytes) {
  if (bytes <= 0) return;
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(address), "r"(bytes));
}

class EncodeDictionary {
 public:
  // `head` is what stands at `begin`, in shared memory.
  __device__ EncodeDictionary(const tap::DictionaryHead& head, const float* begin)
      : head_(&head), values_(begin) {}

  __device__ const tap::DictionaryHead& head() const { return *head_; }
  __device__ const float* at(int32_t offset) const { return values_ + offset; }
  // Rows are read 16 bytes at a time.
  __device__ bool is_encoder_aligned() const { return is_aligned(head_->encoder, head_->d_in); }
  __device__ bool is_decoder_aligned() const { return is_aligned(head_->decoder, head_->d_out); }
  __device__ float decoder_at(int feature, int column) const {
    const int64_t i = int64_t{feature} * head_->d_out + column;
    if (head_->is_bf16 == 0) return at(head_->decoder)[i];
    return __bfloat162float(reinterpret_cast<const Bf16*>(at(head_->decoder))[i]);
  }
  // From `column` on; 0 behind the row's end.
  template <bool kAligned>
  __device__ Floats decoder_run(int feature, int column) const {
    const int64_t i = int64_t{feature} * head_->d_out + column;
    const int left = head_->d_out - column;
    if (head_->is_bf16 == 0) return load_floats<kAligned>(at(head_->decoder) + i, left);
    return unpack(load_run<kAligned>(reinterpret_cast<const Bf16*>(at(head_->decoder)) + i, left));
  }
  // Asks for columns [begin, end) of a decoder row, where rows are aligned.
  __device__ void prefetch_decoder(int feature, int begin, int end) const {
    const int bytes = head_->is_bf16 != 0 ? 2 : 4;  // of a number
    const int64_t at = (int64_t{feature} * head_->d_out + begin) * bytes;
    prefetch_bulk(reinterpret_cast<const char*>(this->at(head_->decoder)) + at,
                  (min(end, head_->d_out) - begin) * bytes);
  }

 private:
  __device__ bool is_aligned(int32_t begin, int width) const {
    return width % kRun == 0 && reinterpret_cast<uintptr_t>(at(begin)) % 16 == 0;
  }

  const tap::DictionaryHead* head_;
  const float* values_;
};

}  // namespace rudder::cuda
