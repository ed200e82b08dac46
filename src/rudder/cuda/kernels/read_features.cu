#include "rudder/cuda/kernels/read_features.h"

#include "rudder/cuda/kernels/encode_batch.cuh"
#include "rudder/cuda/kernels/encode_product.cuh"
#include "rudder/cuda/kernels/launch.h"
#include "rudder/cuda/kernels/select_largest.cuh"

namespace rudder::cuda {
namespace {

template <typename Which>
__device__ void multiply_given_rows(const ReadFeaturesParams& p, EncodeBatch& batch, Bf16* ring,
                                    const Which& which) {
  const EncodeDictionary dictionary(p.image);
  const auto num_rows = static_cast<int>(p.product.rows);
  const auto width = static_cast<int>(p.product.width);
  if (threadIdx.x == 0) batch.num_rows = num_rows;
  for (int r = encode_warp(); r < num_rows; r += kEncodeWarps) {
    const auto* const row =
        static_cast<const uint16_t*>(p.product.x) + int64_t{r} * p.product.width;
    const EncodeScale scale = encode_scale(row, width, dictionary.head().norm);
    if (encode_lane() != 0) continue;
    batch.token[r] = r;
    batch.scale[r] = scale;
  }
  __syncthreads();
  multiply_encoder(p.product, batch, dictionary, ring, which);
}

__global__ void __launch_bounds__(kEncodeThreads, 1)
    read_all_kernel(const __grid_constant__ ReadFeaturesParams p) {
  extern __shared__ uint4 memory[];
  __shared__ EncodeBatch batch;
  multiply_given_rows(p, batch, reinterpret_cast<Bf16*>(memory), AllFeatures{});
}

__global__ void __launch_bounds__(kEncodeThreads, 1)
    read_listed_kernel(const __grid_constant__ ReadFeaturesParams p) {
  extern __shared__ uint4 memory[];
  __shared__ EncodeBatch batch;
  multiply_given_rows(p, batch, reinterpret_cast<Bf16*>(memory),
                      ListedFeatures{p.listed, p.num_listed});
}

struct PickShared {
  SelectShared select;
  // Of a feature: its value's bits, and the complement of its number, so that the largest key is
  // the first to be told. 0: none.
  unsigned long long keys[ops::kMostTopFeatures];
  unsigned num_keys;
  unsigned of_warp[kEncodeWarps];
};

// What is told of one row, by a block.
class FeaturePick {
 public:
  __device__ FeaturePick(const ReadFeaturesParams& p, PickShared& shared)
      : p_(p),
        shared_(shared),
        features_(p.product.features + int64_t{blockIdx.x} * p.product.feature_stride) {}

  __device__ void run() {
    if (p_.num_listed > 0) write_listed();
    if (p_.num_top > 0) write_top();
  }

 private:
  __device__ unsigned bits_at(int j) const { return __float_as_uint(features_[j]); }

  // The `count` largest; all above 0 where there are no more.
  __device__ Kept largest(int count) {
    if (count >= p_.num_features) return {};
    return find_largest<kEncodeThreads>([this](int j) { return bits_at(j); }, p_.num_features,
                                        count, shared_.select);
  }

  __device__ void write_listed() {
    const Kept kept = p_.k > 0 ? largest(p_.k) : Kept{};
    float* const values = p_.values + int64_t{blockIdx.x} * p_.num_listed;
    for (int i = encode_warp(); i < p_.num_listed; i += kEncodeWarps) {
      const float value = kept_value(p_.listed[i], kept);
      if (encode_lane() == 0) values[i] = value;
    }
  }
  // By a warp, to all its lanes.
  __device__ float kept_value(int feature, const Kept& kept) const {
    const unsigned bits = bits_at(feature);
    if (bits > kept.least) return __uint_as_float(bits);
    if (bits < kept.least || bits == 0) return 0.0f;
    unsigned before = 0;  // equal ones
    for (int j = encode_lane(); j < feature; j += 32) before += bits_at(j) == bits ? 1 : 0;
    return __reduce_add_sync(kEncodeLanes, before) < kept.equal ? __uint_as_float(bits) : 0.0f;
  }

  // The largest of the k largest are the largest of all.
  __device__ void write_top() {
    const int count = p_.k > 0 ? min(p_.k, p_.num_top) : p_.num_top;
    const Kept kept = largest(count);
    int num_sorted = 1;
    while (num_sorted < count) num_sorted *= 2;
    for (int i = thread(); i < num_sorted; i += kEncodeThreads) shared_.keys[i] = 0;
    if (thread() == 0) shared_.num_keys = 0;
    __syncthreads();
    list_kept(kept);
    __syncthreads();
    sort_keys(num_sorted);
    ops::TopFeature* const top = p_.top + int64_t{blockIdx.x} * p_.num_top;
    for (int i = thread(); i < p_.num_top; i += kEncodeThreads) {
      const unsigned long long key = i < num_sorted ? shared_.keys[i] : 0;
      const auto number = static_cast<int32_t>(~static_cast<unsigned>(key));
      const float value = __uint_as_float(static_cast<unsigned>(key >> 32));
      top[i] = key == 0 ? ops::TopFeature{ops::kNoFeature, 0.0f} : ops::TopFeature{number, value};
    }
  }

  // A thread has features next to each other: which of the equal ones are kept goes by their order.
  __device__ void list_kept(const Kept& kept) {
    const int part = (p_.num_features + kEncodeThreads - 1) / kEncodeThreads;
    const int begin = min(thread() * part, p_.num_features);
    const int end = min(begin + part, p_.num_features);
    unsigned own = 0;  // equal ones
    for (int j = begin; j < end; ++j) {
      const unsigned bits = bits_at(j);
      if (bits > kept.least) add_key(j, bits);
      own += bits == kept.least ? 1 : 0;
    }
    if (kept.equal == 0) return;  // for all threads alike
    unsigned rank = equal_before(own);
    for (int j = begin; own > 0 && j < end; ++j) {
      if (bits_at(j) != kept.least) continue;
      if (rank++ < kept.equal) add_key(j, kept.least);
    }
  }
  __device__ void add_key(int feature, unsigned bits) {
    const unsigned at = atomicAdd(&shared_.num_keys, 1u);
    shared_.keys[at] =
        static_cast<unsigned long long>(bits) << 32 | ~static_cast<unsigned>(feature);
  }
  // Those of the threads before.
  __device__ unsigned equal_before(unsigned own) {
    unsigned sum = own;
    for (int step = 1; step < 32; step *= 2) {
      const unsigned other = __shfl_up_sync(kEncodeLanes, sum, step);
      if (encode_lane() >= step) sum += other;
    }
    if (encode_lane() == 31) shared_.of_warp[encode_warp()] = sum;
    __syncthreads();
    unsigned before = sum - own;
    for (int w = 0; w < encode_warp(); ++w) before += shared_.of_warp[w];
    return before;
  }

  // The largest first: a bitonic sort of a power of two of keys.
  __device__ void sort_keys(int count) {
    for (int run = 2; run <= count; run *= 2) {
      for (int step = run / 2; step > 0; step /= 2) {
        for (int i = thread(); i < count; i += kEncodeThreads) {
          const int other = i ^ step;
          if (other < i) continue;
          const unsigned long long a = shared_.keys[i];
          const unsigned long long b = shared_.keys[other];
          const bool descends = (i & run) == 0;
          if (descends ? a >= b : a <= b) continue;
          shared_.keys[i] = b;
          shared_.keys[other] = a;
        }
        __syncthreads();
      }
    }
  }

  __device__ static int thread() { return static_cast<int>(threadIdx.x); }

  const ReadFeaturesParams& p_;
  PickShared& shared_;
  const float* const features_;  // of the row
};

__global__ void __launch_bounds__(kEncodeThreads)
    pick_features_kernel(const __grid_constant__ ReadFeaturesParams p) {
  __shared__ PickShared shared;
  FeaturePick(p, shared).run();
}

using ReadKernel = void (*)(ReadFeaturesParams);

cudaError_t multiply(ReadKernel kernel, const ReadFeaturesParams& p, cudaStream_t stream) {
  constexpr auto kBytes = static_cast<int>(EncodeRing::kBytes);
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return error;
  kernel<<<dim3(static_cast<unsigned>(p.product.num_blocks)), dim3(kEncodeThreads), kBytes,
           stream>>>(p);
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_read_features(const ReadFeaturesParams& p, cudaStream_t stream) {
  if (p.product.rows == 0) return cudaSuccess;
  if (p.product.rows > kBatchRows || p.num_top > ops::kMostTopFeatures) {
    return cudaErrorInvalidValue;
  }
  if (!p.needs_all) {
    return p.num_listed == 0 ? cudaSuccess : multiply(read_listed_kernel, p, stream);
  }
  const cudaError_t error = multiply(read_all_kernel, p, stream);
  if (error != cudaSuccess) return error;
  pick_features_kernel<<<dim3(static_cast<unsigned>(p.product.rows)), dim3(kEncodeThreads), 0,
                         stream>>>(p);
  return cudaGetLastError();
}

}  // namespace rudder::cuda
