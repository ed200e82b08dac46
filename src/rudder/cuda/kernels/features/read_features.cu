#include "rudder/cuda/kernels/features/read_features.h"

#include "rudder/cuda/kernels/features/choose_features.cuh"
#include "rudder/cuda/kernels/features/encode_batch.cuh"
#include "rudder/cuda/kernels/features/encode_product.cuh"
#include "rudder/cuda/kernels/launch.h"

namespace rudder::cuda {
namespace {

template <typename Which>
__device__ void multiply_given_rows(const ReadFeaturesParams& p, EncodeBatch& batch, Bf16* ring,
                                    const Which& which) {
  __shared__ tap::DictionaryHead head;
  if (encode_warp() == 0) load_head(p.image, head);
  __syncthreads();
  const EncodeDictionary dictionary(head, p.image);
  const auto num_rows = static_cast<int>(p.product.rows);
  const auto width = static_cast<int>(p.product.width);
  if (threadIdx.x == 0) batch.num_rows = num_rows;
  for (int r = encode_warp(); r < num_rows; r += kEncodeWarps) {
    const auto* const row =
        static_cast<const uint16_t*>(p.product.x) + int64_t{r} * p.product.width;
    const EncodeScale scale = encode_scale(row, width, head.norm);
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
  ChoiceShared choice;
  ActiveFeature listed[ops::kMostTopFeatures];
  // Of a feature: its value's bits, and the complement of its number, so that the largest key is
  // the first to be told. 0: none.
  unsigned long long keys[ops::kMostTopFeatures];
};

// What is told of one row, by a block.
class FeaturePick {
 public:
  __device__ FeaturePick(const ReadFeaturesParams& p, PickShared& shared)
      : p_(p),
        shared_(shared),
        values_(p.product.features + int64_t{blockIdx.x} * p.product.feature_stride,
                p.product.largest + int64_t{blockIdx.x} * p.product.feature_stride,
                p.num_features) {}

  __device__ void run() {
    if (p_.num_listed > 0) write_listed();
    if (p_.num_top > 0) write_top();
  }

 private:
  __device__ void write_listed() {
    FeatureChoice choice(values_, shared_.choice);
    if (p_.k > 0) choice.choose(p_.k);
    float* const values = p_.values + int64_t{blockIdx.x} * p_.num_listed;
    for (int i = encode_warp(); i < p_.num_listed; i += kEncodeWarps) {
      const float value = choice.kept_value(p_.listed[i]);
      if (encode_lane() == 0) values[i] = value;
    }
  }

  // The largest of the k largest are the largest of all.
  __device__ void write_top() {
    const int count = p_.k > 0 ? min(p_.k, p_.num_top) : p_.num_top;
    FeatureChoice choice(values_, shared_.choice);
    choice.choose(count);
    const int kept = choice.list(0, count, shared_.listed);
    int num_sorted = 1;
    while (num_sorted < kept) num_sorted *= 2;
    __syncthreads();
    for (int i = thread(); i < num_sorted; i += kEncodeThreads) shared_.keys[i] = key_of(i, kept);
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
  __device__ unsigned long long key_of(int i, int kept) const {
    if (i >= kept) return 0;
    const ActiveFeature one = shared_.listed[i];
    return static_cast<unsigned long long>(__float_as_uint(one.value)) << 32 |
           ~static_cast<unsigned>(one.feature);
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
  const RowValues values_;
};

__global__ void __launch_bounds__(kEncodeThreads)
    pick_features_kernel(const __grid_constant__ ReadFeaturesParams p) {
  __shared__ PickShared shared;
  dependency_wait();
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
  return launch_pdl(pick_features_kernel, dim3(static_cast<unsigned>(p.product.rows)),
                    dim3(kEncodeThreads), 0, stream, p);
}

}  // namespace rudder::cuda
