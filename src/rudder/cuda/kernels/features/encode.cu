#include "rudder/cuda/kernels/features/encode.h"

#include <cooperative_groups.h>

#include <algorithm>

#include "rudder/cuda/kernels/features/encode_apply.cuh"
#include "rudder/cuda/kernels/features/encode_batch.cuh"
#include "rudder/cuda/kernels/features/encode_product.cuh"
#include "rudder/cuda/kernels/launch.h"
#include "rudder/tap/dictionary_head.h"

namespace rudder::cuda {
namespace {

// Of dynamic shared memory: the ring, or what is told of a row and the row. No more than that: what
// is left is L1, through which the encoder's numbers come, and which bounds how many are on the
// way.
size_t memory_bytes(int64_t width) {
  return std::max(EncodeRing::kBytes,
                  sizeof(EncodeApplyShared) + static_cast<size_t>(width) * sizeof(Bf16));
}

struct Shared {
  tap::DictionaryHead head;
  EncodeBatch batch;
  int of_warp[kEncodeWarps];
};

// What all threads of all blocks know in the same way.
class Encoder {
 public:
  __device__ Encoder(const EncodeParams& p, Shared& shared, uint4* memory)
      : p_(p), shared_(shared), batch_(shared.batch), memory_(memory) {}

  __device__ void run() {
    mark_encode(p_, EncodeMark::kBegin);
    for (int64_t first = 0; first < p_.rows; first += kEncodeThreads) {
      const int64_t token = first + threadIdx.x;
      next_ = -1;
      if (token < p_.rows) look_up(token);
      for (;;) {
        const int32_t offset = first_dictionary();
        if (offset == tap::kNoVector) break;
        take_rows(static_cast<int>(token), offset);
        encode(p_.table.vectors + offset);
      }
    }
    if (!is_behind_another_) dependency_wait();
    mark_encode(p_, EncodeMark::kEnd);
  }

 private:
  // Of this thread's token: its first kEncode. Tables are read past L1, which might hold what a
  // step before left there.
  __device__ void look_up(int64_t token) {
    const int4 bits = __ldcg(
        reinterpret_cast<const int4*>(p_.batch.entries + token * p_.table.num_points + p_.point));
    const ops::TapEntry entry = {bits.x, bits.y, __int_as_float(bits.z), bits.w};
    if ((entry.flags & ops::TapEntry::kEncodes) == 0) return;
    const int begin = entry.ops >> 8;
    const int end = begin + (entry.ops & 0xff);
    for (int op = begin; op < end && next_ < 0; ++op) set_next(op, end);
  }
  // Of `op`, if it is there and encodes.
  __device__ void set_next(int op, int end) {
    end_ = end;
    next_ = -1;
    if (op >= end) return;
    // All at once: each is a wait for memory.
    const tap::TapOp* const from = p_.table.ops + op;
    const int kind = __ldcg(reinterpret_cast<const int*>(&from->kind));
    const int dictionary = __ldcg(&from->v1);
    const float lo = __ldcg(&from->lo);
    const int run = __ldcg(&from->run);
    if (kind != static_cast<int>(tap::OpKind::kEncode)) return;
    next_ = op;
    dictionary_ = dictionary;
    run_ = run;
    is_full_ = lo > 0.0f;
  }

  // The least offset of a dictionary that some token encodes by next; kNoVector: none does.
  __device__ int32_t first_dictionary() {
    const int mine = next_ >= 0 ? dictionary_ : INT32_MAX;
    const int of_warp = __reduce_min_sync(kEncodeLanes, mine);
    __syncthreads();  // of_warp has been read
    if (encode_lane() == 0) shared_.of_warp[encode_warp()] = of_warp;
    __syncthreads();
    int least = INT32_MAX;
#pragma unroll
    for (int w = 0; w < kEncodeWarps; ++w) least = min(least, shared_.of_warp[w]);
    return least == INT32_MAX ? tap::kNoVector : least;
  }

  // The first tokens that encode by it are the batch; they go on to what is behind.
  __device__ void take_rows(int token, int32_t dictionary) {
    const bool asks = next_ >= 0 && dictionary_ == dictionary;
    const unsigned asking = __ballot_sync(kEncodeLanes, asks);
    __syncthreads();  // of_warp has been read
    if (encode_lane() == 0) shared_.of_warp[encode_warp()] = __popc(asking);
    __syncthreads();
    int before = __popc(asking & ((1u << encode_lane()) - 1));
    int total = 0;
    for (int w = 0; w < kEncodeWarps; ++w) {
      if (w < encode_warp()) before += shared_.of_warp[w];
      total += shared_.of_warp[w];
    }
    if (threadIdx.x == 0) batch_.num_rows = min(total, kBatchRows);
    if (asks && before < kBatchRows) {
      batch_.token[before] = token;
      batch_.op[before] = next_;
      batch_.run[before] = run_;
      batch_.is_full[before] = is_full_;
      set_next(next_ + run_, end_);
    }
    __syncthreads();
  }

  // Between two waits of all blocks nobody writes what others read.
  __device__ void encode(const float* image) {
    if (is_behind_another_) wait_for_blocks();
    if (encode_warp() == 0) load_head(image, shared_.head);
    __syncthreads();
    const EncodeDictionary dictionary(shared_.head, image);
    prefetch_apply(p_, batch_, dictionary);
    if (!is_behind_another_) begin_batches(dictionary);
    is_behind_another_ = true;
    keep_rows();
    take_scales(shared_.head.norm);
    multiply_encoder(p_, batch_, dictionary, reinterpret_cast<Bf16*>(memory_), AllFeatures{});
    mark_encode(p_, EncodeMark::kMultiplied);
    wait_for_blocks();
    mark_encode(p_, EncodeMark::kMet);
    apply_features(p_, batch_, dictionary, memory_);
  }

  // Of the first. Nobody writes entries, ops and dictionaries while the kernel ahead runs.
  __device__ void begin_batches(const EncodeDictionary& dictionary) const {
    prefetch_encoder(p_, batch_, dictionary);
    mark_encode(p_, EncodeMark::kFound);
    dependency_wait();
    dependency_trigger();
  }

  __device__ static void wait_for_blocks() {
    cooperative_groups::this_grid().sync();
  }

  // Elements of a row, past L1: another block may have written it.
  __device__ const uint16_t* row(int r) const {
    return static_cast<const uint16_t*>(p_.x) + int64_t{batch_.token[r]} * p_.width;
  }

  // As they are before the batch: blocks that share a row write parts of it while others read it.
  __device__ void keep_rows() const {
    for (int r = p_.num_blocks - 1 - static_cast<int>(blockIdx.x); r < batch_.num_rows;
         r += p_.num_blocks) {
      auto* const to = static_cast<uint16_t*>(p_.before) + r * p_.width;
      copy_encoded_row(row(r), static_cast<int>(p_.width), [to](int column, auto bits) {
        __stcg(reinterpret_cast<decltype(bits)*>(to + column), bits);
      });
    }
  }

  __device__ void take_scales(tap::FeatureNorm norm) {
    for (int r = encode_warp(); r < batch_.num_rows; r += kEncodeWarps) {
      const EncodeScale scale = encode_scale(row(r), static_cast<int>(p_.width), norm);
      if (encode_lane() == 0) batch_.scale[r] = scale;
    }
    __syncthreads();
  }

  const EncodeParams& p_;
  Shared& shared_;
  EncodeBatch& batch_;
  uint4* const memory_;
  bool is_behind_another_ = false;
  // Of this thread's token.
  int next_ = -1;  // of table.ops: its next kEncode; -1: none
  int end_ = 0;
  int32_t dictionary_ = tap::kNoVector;
  int run_ = 0;
  bool is_full_ = false;
};

__global__ void __launch_bounds__(kEncodeThreads, 1)
    encode_kernel(const __grid_constant__ EncodeParams p) {
  extern __shared__ uint4 memory[];
  __shared__ Shared shared;
  Encoder(p, shared, memory).run();
}

}  // namespace

cudaError_t launch_encode(const EncodeParams& p, cudaStream_t stream) {
  if (p.rows == 0 || p.width == 0) return cudaSuccess;
  if (p.width > kMaxEncodedWidth || p.num_blocks <= 0) return cudaErrorInvalidValue;
  const size_t bytes = memory_bytes(p.width);
  cudaError_t error = cudaFuncSetAttribute(
      encode_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (error != cudaSuccess) return error;
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeCooperative;
  attributes[0].val.cooperative = 1;
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(p.num_blocks));
  config.blockDim = dim3(kEncodeThreads);
  config.dynamicSmemBytes = bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = 2;
  error = cudaLaunchKernelEx(&config, encode_kernel, p);
  return error != cudaSuccess ? error : cudaGetLastError();
}

}  // namespace rudder::cuda
