#include "rudder/cuda/kernels/encode.h"

#include <cooperative_groups.h>

#include "rudder/cuda/kernels/keep_largest.cuh"
#include "rudder/cuda/kernels/launch.h"
#include "rudder/cuda/kernels/tap_features.cuh"
#include "rudder/tap/dictionary_head.h"

namespace rudder::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kMostRows = static_cast<int>(tap::kEncodedRows);
constexpr int kFeaturesOfWarp = 4;         // that a warp computes at a time
constexpr int kSliceWidth = 32 * kRun;     // columns of a row that a block decodes at a time
constexpr int kActiveAtOnce = 4;           // decoder rows that are on the way together
constexpr size_t kRowsBytes = 200 * 1024;  // of shared memory, for rows
constexpr unsigned kAllLanes = 0xffffffffu;
static_assert(kMostRows <= kWarps && kThreads >= kSliceWidth);

// How a dictionary normalises a row: norm(h) = (h - mean) by, h = norm(h) back + mean.
struct RowScale {
  float mean, by, back;
};

struct Shared {
  int num_rows;          // of the batch at hand
  int token[kMostRows];  // ascending
  int op[kMostRows];     // of table.ops: its kEncode
  RowScale scale[kMostRows];
  float factor[tap::kMaxOpsPerPoint + 1];  // of the decoder row of an edit
  int of_warp[kWarps];
  float skipped[kSliceWidth];  // of the columns at hand
  union {
    KeepLargestShared select;
    float sums[kWarps][kSliceWidth];
  };
};

__device__ inline int lane_id() {
  return static_cast<int>(threadIdx.x) % 32;
}
__device__ inline int warp_id() {
  return static_cast<int>(threadIdx.x) / 32;
}

// The batch's dictionary.
struct Dictionary {
  const tap::DictionaryHead* head;
  const float* values;  // the head's own begin

  __device__ explicit Dictionary(const float* begin)
      : head(reinterpret_cast<const tap::DictionaryHead*>(begin)), values(begin) {}
  __device__ const float* encoder_row(int feature) const {
    return values + head->encoder + int64_t{feature} * head->d_in;
  }
  __device__ const float* decoder_row(int feature) const {
    return values + head->decoder + int64_t{feature} * head->d_out;
  }
  // Rows are read 16 bytes at a time.
  __device__ bool is_encoder_aligned() const {
    return head->d_in % kRun == 0 && reinterpret_cast<uintptr_t>(encoder_row(0)) % 16 == 0;
  }
  __device__ bool is_decoder_aligned() const {
    return head->d_out % kRun == 0 && reinterpret_cast<uintptr_t>(decoder_row(0)) % 16 == 0;
  }
};

// What all threads of all blocks know in the same way.
class Encoder {
 public:
  __device__ Encoder(const EncodeParams& p, Shared& shared, Bf16* rows, int most_rows)
      : p_(p),
        shared_(shared),
        rows_(rows),
        most_rows_(most_rows),
        stride_(static_cast<int>((p.width + kRun - 1) / kRun * kRun)) {}

  __device__ void run() {
    for (int64_t first = 0; first < p_.rows; first += kThreads) {
      const int64_t token = first + threadIdx.x;
      next_ = -1;
      if (token < p_.rows) look_up(token);
      for (;;) {
        const int32_t offset = first_dictionary();
        if (offset == tap::kNoVector) break;
        take_rows(static_cast<int>(token), offset);
        encode(Dictionary(p_.table.vectors + offset));
      }
    }
  }

 private:
  // Of this thread's token: its first kEncode.
  __device__ void look_up(int64_t token) {
    const ops::TapEntry entry = p_.batch.entries[token * p_.table.num_points + p_.point];
    if ((entry.flags & ops::TapEntry::kEncodes) == 0) return;
    const int begin = entry.ops >> 8;
    const int end = begin + (entry.ops & 0xff);
    for (int op = begin; op < end; ++op) {
      if (p_.table.ops[op].kind != tap::OpKind::kEncode) continue;
      set_next(op, end);
      return;
    }
  }
  __device__ void set_next(int op, int end) {
    end_ = end;
    next_ = op < end && p_.table.ops[op].kind == tap::OpKind::kEncode ? op : -1;
    if (next_ >= 0) dictionary_ = p_.table.ops[op].v1;
  }

  // The least offset of a dictionary that some token encodes by next; kNoVector: none does.
  __device__ int32_t first_dictionary() {
    const int mine = next_ >= 0 ? dictionary_ : INT32_MAX;
    const int of_warp = __reduce_min_sync(kAllLanes, mine);
    __syncthreads();  // of_warp has been read
    if (lane_id() == 0) shared_.of_warp[warp_id()] = of_warp;
    __syncthreads();
    int least = INT32_MAX;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) least = min(least, shared_.of_warp[w]);
    return least == INT32_MAX ? tap::kNoVector : least;
  }

  // The first tokens that encode by it are the batch; they go on to what is behind.
  __device__ void take_rows(int token, int32_t dictionary) {
    const bool asks = next_ >= 0 && dictionary_ == dictionary;
    const unsigned asking = __ballot_sync(kAllLanes, asks);
    __syncthreads();  // of_warp has been read
    if (lane_id() == 0) shared_.of_warp[warp_id()] = __popc(asking);
    __syncthreads();
    int before = __popc(asking & ((1u << lane_id()) - 1));
    int total = 0;
    for (int w = 0; w < kWarps; ++w) {
      if (w < warp_id()) before += shared_.of_warp[w];
      total += shared_.of_warp[w];
    }
    if (threadIdx.x == 0) shared_.num_rows = min(total, most_rows_);
    if (asks && before < most_rows_) {
      shared_.token[before] = token;
      shared_.op[before] = next_;
      set_next(next_ + p_.table.ops[next_].run, end_);
    }
    __syncthreads();
  }

  // Every block has the rows as they are before the batch; between two barriers of all blocks
  // nobody writes what others read.
  __device__ void encode(const Dictionary& dictionary) {
    load_rows(dictionary.head->norm);
    multiply(dictionary);
    wait_for_blocks();
    const tap::DictionaryHead& head = *dictionary.head;
    if (head.k > 0 && head.k < head.num_features) {
      for (int r = static_cast<int>(blockIdx.x); r < shared_.num_rows; r += p_.num_blocks) {
        keep_largest<kThreads>(features(r), head.num_features, head.k, shared_.select);
      }
      wait_for_blocks();
    }
    const int slices = (head.d_out + kSliceWidth - 1) / kSliceWidth;
    for (int i = static_cast<int>(blockIdx.x); i < shared_.num_rows * slices; i += p_.num_blocks) {
      apply(dictionary, i / slices, i % slices);
    }
    wait_for_blocks();
  }

  __device__ static void wait_for_blocks() {
    cooperative_groups::this_grid().sync();
  }

  __device__ Bf16* row(int r) const {
    return rows_ + r * stride_;
  }
  __device__ float value_of(int r, int column) const {
    return __bfloat162float(row(r)[column]);
  }
  __device__ float* features(int r) const {
    return p_.features + r * p_.feature_stride;
  }

  // To shared memory, past L1: another block may have written it; then what the norm needs.
  __device__ void load_rows(tap::FeatureNorm norm) {
    const auto width = static_cast<int>(p_.width);
    for (int r = 0; r < shared_.num_rows; ++r) {
      const auto* from = static_cast<const uint16_t*>(p_.x) + int64_t{shared_.token[r]} * width;
      auto* to = reinterpret_cast<uint16_t*>(row(r));
      if (width % kRun == 0) {
        for (int c = static_cast<int>(threadIdx.x) * kRun; c < width; c += kThreads * kRun) {
          *reinterpret_cast<uint4*>(to + c) = __ldcg(reinterpret_cast<const uint4*>(from + c));
        }
      } else {
        for (int c = static_cast<int>(threadIdx.x); c < stride_; c += kThreads) {
          to[c] = c < width ? __ldcg(from + c) : uint16_t{0};
        }
      }
    }
    __syncthreads();
    if (warp_id() < shared_.num_rows) {
      const RowScale scale = scale_of(warp_id(), norm);
      if (lane_id() == 0) shared_.scale[warp_id()] = scale;
    }
    __syncthreads();
  }

  // By a warp.
  __device__ RowScale scale_of(int r, tap::FeatureNorm norm) const {
    if (norm == tap::FeatureNorm::kNone) return {0.0f, 1.0f, 1.0f};
    const auto width = static_cast<int>(p_.width);
    const auto count = static_cast<float>(width);
    float mean = 0.0f;
    if (norm == tap::FeatureNorm::kLayerNorm) {
      float sum = 0.0f;
      for (int c = lane_id(); c < width; c += 32) sum += value_of(r, c);
      mean = warp_sum(sum) / count;
    }
    float squares = 0.0f;
    for (int c = lane_id(); c < width; c += 32) {
      const float off = value_of(r, c) - mean;
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

  // All features of the batch's rows, each with its activation, but for the k largest.
  __device__ void multiply(const Dictionary& dictionary) const {
    if (!dictionary.is_encoder_aligned()) {
      multiply_by<kMostRows, 1, false>(dictionary);
    } else if (shared_.num_rows == 1) {
      multiply_by<1, kFeaturesOfWarp, true>(dictionary);
    } else if (shared_.num_rows <= 4) {
      multiply_by<4, kFeaturesOfWarp, true>(dictionary);
    } else if (shared_.num_rows <= 8) {
      multiply_by<8, kFeaturesOfWarp, true>(dictionary);
    } else {
      multiply_by<kMostRows, kFeaturesOfWarp, true>(dictionary);
    }
  }

  // A warp has kFeatures features of all rows.
  template <int kRows, int kFeatures, bool kAligned>
  __device__ void multiply_by(const Dictionary& dictionary) const {
    const int count = dictionary.head->num_features;
    const int step = p_.num_blocks * kWarps * kFeatures;
    const int warp = static_cast<int>(blockIdx.x) * kWarps + warp_id();
#pragma unroll 1
    for (int first = warp * kFeatures; first < count; first += step) {
      float sums[kRows][kFeatures] = {};
      float weights[kFeatures] = {};  // their sum, which the mean is multiplied with
      const float* from[kFeatures];
#pragma unroll
      for (int f = 0; f < kFeatures; ++f) {
        from[f] = dictionary.encoder_row(min(first + f, count - 1));
      }
      if constexpr (kAligned) {
        add_products<kRows, kFeatures>(from, sums, weights);
      } else {
        add_odd_products<kRows>(from[0], sums, weights[0]);
      }
#pragma unroll
      for (int f = 0; f < kFeatures; ++f) weights[f] = warp_sum(weights[f]);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int f = 0; f < kFeatures; ++f) {
          const float sum = warp_sum(sums[r][f]);
          const bool is_mine = lane_id() == (r * kFeatures + f) % 32;
          if (is_mine && r < shared_.num_rows && first + f < count) {
            store_feature(dictionary, r, first + f, sum, weights[f]);
          }
        }
      }
    }
  }

  template <int kRows, int kFeatures>
  __device__ void add_products(const float* const (&from)[kFeatures],
                               float (&sums)[kRows][kFeatures], float (&weights)[kFeatures]) const {
    const auto width = static_cast<int>(p_.width);
    // With few rows the loads of several columns are on the way together.
#pragma unroll(kRows == 1 ? 2 : 1)
    for (int c = lane_id() * kRun; c < width; c += 32 * kRun) {
      Floats w[kFeatures];
#pragma unroll
      for (int f = 0; f < kFeatures; ++f) w[f] = load_floats<true>(from[f] + c, kRun);
#pragma unroll
      for (int f = 0; f < kFeatures; ++f) {
#pragma unroll
        for (const float value : w[f].v) weights[f] += value;
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        // Rows behind the last are what lies in shared memory: their sums are dropped.
        const Floats h = unpack(load_run<true>(row(r < most_rows_ ? r : 0) + c, kRun));
#pragma unroll
        for (int f = 0; f < kFeatures; ++f) add_dot(sums[r][f], h, w[f]);
      }
    }
  }
  template <int kRows>
  __device__ void add_odd_products(const float* from, float (&sums)[kRows][1],
                                   float& weights) const {
    for (int c = lane_id(); c < static_cast<int>(p_.width); c += 32) {
      const float w = from[c];
      weights += w;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        sums[r][0] = fmaf(value_of(r < most_rows_ ? r : 0, c), w, sums[r][0]);
      }
    }
  }

  __device__ void store_feature(const Dictionary& dictionary, int r, int feature, float sum,
                                float weights) const {
    const tap::DictionaryHead& head = *dictionary.head;
    const RowScale& scale = shared_.scale[r];
    const float y = fmaf(-scale.mean, weights, sum) * scale.by;
    const float value =
        fmaf(dictionary.values[head.scale + feature], y, dictionary.values[head.bias + feature]);
    const bool is_open = y > dictionary.values[head.gate + feature];
    __stcg(features(r) + feature, is_open ? fmaxf(value, 0.0f) : 0.0f);
  }

  // Columns of row `r`: decode(f) where the run asks for it, and what its edits change.
  __device__ void apply(const Dictionary& dictionary, int r, int slice) {
    const tap::DictionaryHead& head = *dictionary.head;
    const tap::TapOp* const run = p_.table.ops + shared_.op[r];
    const int num_ops = run->run;
    const bool is_full = run->lo > 0.0f;
    for (int i = 1 + warp_id(); i < num_ops; i += kWarps) {
      const float factor = factor_of(run[i], r);
      if (lane_id() == 0) shared_.factor[i] = factor;
    }
    if (is_full) {
      add_active(dictionary, r, slice * kSliceWidth);
      if (head.skip != 0) skip_row(dictionary, r, slice * kSliceWidth);
    }
    __syncthreads();
    const int64_t at = p_.batch.token[shared_.token[r]];  // of what the token leaves for later
    const int column = slice * kSliceWidth + static_cast<int>(threadIdx.x);
    if (static_cast<int>(threadIdx.x) < kSliceWidth && column < head.d_out) {
      if (head.writes_elsewhere == 0) {
        float h = is_full ? decoded(dictionary, r, column) : value_of(r, column);
        for (int i = 1; i < num_ops; ++i) {
          if (shared_.factor[i] == 0.0f) continue;
          h = fmaf(shared_.factor[i], dictionary.decoder_row(run[i].feature)[column], h);
        }
        auto* const x = static_cast<Bf16*>(p_.x) + int64_t{shared_.token[r]} * p_.width;
        x[column] = __float2bfloat16(h);
      } else if (is_full) {
        p_.table.carried[at * head.d_out + column] = decoded(dictionary, r, column);
      }
    }
    if (head.writes_elsewhere != 0 && slice == 0) {
      for (int i = 1 + static_cast<int>(threadIdx.x); i < num_ops; i += kThreads) {
        __stcg(p_.table.relays + at * tap::kNumRelays + run[i].relay, shared_.factor[i]);
      }
    }
    __syncthreads();  // the next columns may come
  }

  // s g c (f' - f); by a warp, to all its lanes.
  __device__ float factor_of(const tap::TapOp& op, int r) const {
    const int token = shared_.token[r];
    const TokenTapState state{p_.batch.since_prompt + token, p_.batch.slot + token,
                              p_.table.latches};
    const float f = __ldcg(features(r) + op.feature);
    const float s = op.strength * scheduled(op.schedule, op, state);
    if (s == 0.0f || (op.hi > 0.0f && f <= 0.0f)) return 0.0f;
    float dot = 0.0f;
    if (op.gate == tap::GateKind::kHard || op.gate == tap::GateKind::kSoft) {
      const float* const gate = p_.table.vectors + op.gate_vector;
      for (int c = lane_id(); c < static_cast<int>(p_.width); c += 32) {
        dot = fmaf(value_of(r, c), gate[c], dot);
      }
      dot = warp_sum(dot);
    }
    const float g = opened(op.gate, op, dot, state);
    return g * s * shared_.scale[r].back * (edited_feature(op.edit, f, op.value) - f);
  }

  // sum_j f_j decoder_j of the columns from `begin`, a part for each warp.
  __device__ void add_active(const Dictionary& dictionary, int r, int begin) {
    const tap::DictionaryHead& head = *dictionary.head;
    const int column = begin + lane_id() * kRun;
    const int left = head.d_out - column;
    const bool is_aligned = dictionary.is_decoder_aligned();
    Floats sums = {};
#pragma unroll 2
    for (int first = warp_id() * 32; first < head.num_features; first += kThreads) {
      const int mine = first + lane_id();
      const float f = mine < head.num_features ? __ldcg(features(r) + mine) : 0.0f;
      unsigned active = __ballot_sync(kAllLanes, f != 0.0f);
      while (active != 0) {
        float by[kActiveAtOnce];
        Floats rows[kActiveAtOnce];
#pragma unroll
        for (int k = 0; k < kActiveAtOnce; ++k) {
          const int lane = active != 0 ? __ffs(static_cast<int>(active)) - 1 : 0;
          by[k] = __shfl_sync(kAllLanes, f, lane);
          if (active == 0) by[k] = 0.0f;
          active &= active - 1;
          rows[k] = {};
          if (by[k] == 0.0f) continue;
          const float* const from = dictionary.decoder_row(first + lane) + column;
          rows[k] = is_aligned ? load_floats<true>(from, left) : load_floats<false>(from, left);
        }
#pragma unroll
        for (int k = 0; k < kActiveAtOnce; ++k) {
#pragma unroll
          for (int j = 0; j < kRun; ++j) sums.v[j] = fmaf(by[k], rows[k].v[j], sums.v[j]);
        }
      }
    }
#pragma unroll
    for (int j = 0; j < kRun; ++j) shared_.sums[warp_id()][lane_id() * kRun + j] = sums.v[j];
  }

  // skip x of the columns from `begin`: a warp has one at a time.
  __device__ void skip_row(const Dictionary& dictionary, int r, int begin) {
    const tap::DictionaryHead& head = *dictionary.head;
    for (int i = warp_id(); i < min(kSliceWidth, head.d_out - begin); i += kWarps) {
      const float* const by = dictionary.values + head.skip + int64_t{begin + i} * head.d_in;
      float sum = 0.0f;
      for (int c = lane_id(); c < head.d_in; c += 32) sum = fmaf(value_of(r, c), by[c], sum);
      sum = warp_sum(sum);
      if (lane_id() == 0) shared_.skipped[i] = sum;
    }
  }

  // decode(f) at a column of the slice that add_active() has summed.
  __device__ float decoded(const Dictionary& dictionary, int r, int column) const {
    const tap::DictionaryHead& head = *dictionary.head;
    float sum = dictionary.values[head.output_bias + column];
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += shared_.sums[w][column % kSliceWidth];
    sum = fmaf(sum, shared_.scale[r].back, shared_.scale[r].mean);
    return head.skip != 0 ? sum + shared_.skipped[column % kSliceWidth] : sum;
  }

  const EncodeParams& p_;
  Shared& shared_;
  Bf16* const rows_;  // [most_rows_][stride_]
  const int most_rows_;
  const int stride_;
  // Of this thread's token.
  int next_ = -1;  // of table.ops: its next kEncode; -1: none
  int end_ = 0;
  int32_t dictionary_ = tap::kNoVector;
};

__global__ void __launch_bounds__(kThreads, 1)
    encode_kernel(const __grid_constant__ EncodeParams p, int most_rows) {
  extern __shared__ uint4 rows[];
  __shared__ Shared shared;
  Encoder(p, shared, reinterpret_cast<Bf16*>(rows), most_rows).run();
}

}  // namespace

cudaError_t launch_encode(const EncodeParams& p, cudaStream_t stream) {
  if (p.rows == 0 || p.width == 0) return cudaSuccess;
  if (p.width > kMaxEncodedWidth || p.num_blocks <= 0) return cudaErrorInvalidValue;
  const size_t row_bytes = static_cast<size_t>((p.width + kRun - 1) / kRun * kRun) * sizeof(Bf16);
  const auto fitting = static_cast<int>(kRowsBytes / row_bytes);
  const int most_rows = fitting < kMostRows ? fitting : kMostRows;
  const size_t bytes = most_rows * row_bytes;
  cudaError_t error = cudaFuncSetAttribute(
      encode_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (error != cudaSuccess) return error;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeCooperative;
  attribute.val.cooperative = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(p.num_blocks));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  error = cudaLaunchKernelEx(&config, encode_kernel, p, most_rows);
  return error != cudaSuccess ? error : cudaGetLastError();
}

}  // namespace rudder::cuda
