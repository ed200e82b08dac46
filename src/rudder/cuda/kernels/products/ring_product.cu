#include "rudder/cuda/kernels/products/ring_product.h"

#include <cuda_bf16.h>

#include <algorithm>

#include "rudder/cuda/kernels/launch.h"
#include "rudder/cuda/kernels/products/product_finish.cuh"
#include "rudder/cuda/kernels/products/product_mma.cuh"
#include "rudder/cuda/kernels/products/product_rows.cuh"
#include "rudder/cuda/kernels/products/ring.cuh"
#include "rudder/cuda/kernels/wgmma.cuh"

namespace rudder::cuda {
namespace {

constexpr int kChunkBytes = kRingChunkBytes;
// One warpgroup multiplies, a warp fetches weights, another one tokens.
constexpr int kMmaWarps = 4;
constexpr int kWeightWarp = kMmaWarps;
constexpr int kTokenWarp = kMmaWarps + 1;
constexpr int kThreads = 32 * (kMmaWarps + 2);
constexpr int kRingBytes = 200 << 10;
constexpr int kMostRows = 256;
constexpr int kMostWeightSlots = 48;
constexpr int kMostTokenSlots = 16;
constexpr int kFewestTokenSlots = 6;
constexpr int kTokenBytes = 32 << 10;  // of all slots, where these are enough
// Of weights, on their way at once while the kernel in front runs, and behind it. That keeps memory
// busy; what that kernel reads, what its peers send, and tokens wait behind all the rest.
constexpr int kAheadBytes = 32 << 10;
constexpr int kSteadyBytes = 64 << 10;
// Tensor cores keep few bits of sums of fp8: they add so many chunks, 512 columns, fp32 adds these.
constexpr int kFp8Chunks = 4;

struct RingParams {
  TensorMap weight;  // boxes of 128 bytes of as many rows as a block has
  TensorMap x;       // boxes of 128 bytes of token_rows
  GemvParams asked;
  int32_t splits = 1;
  bool keeps = false;       // sums are written from shared memory: a block has one tile
  int32_t tiles = 0;        // of rows of W
  int32_t chunks = 0;       // of a row
  int32_t part_chunks = 0;  // of a part of a row, but for the last one
  int32_t token_rows = 0;
  int32_t weight_slots = 0;
  int32_t token_slots = 0;   // at most as many
  int32_t ahead_slots = 0;   // of kAheadBytes
  int32_t steady_slots = 0;  // of kSteadyBytes
};

// Behind the slots of both rings.
struct RingShared {
  uint64_t weights_full[kMostWeightSlots];
  uint64_t tokens_full[kMostTokenSlots];
  uint64_t read[kMostWeightSlots];  // the chunk in the slot, its tokens too
  uint64_t may_read;                // the kernel in front has ended
  uint64_t sums_come;               // from the blocks that have parts of the tile
  float scales[kMostRows];          // of the tile's rows of W
  float x_scales[kRingMaxTokens];
};
// Asked for whatever the slots take: a multiprocessor sets apart 228 KB of shared memory then, and
// the small kernel beside it has what is left. Of 196 KB, which are enough for less, not even one
// of its blocks would have had the kilobyte that each takes.
constexpr int kSharedBytes = kRingBytes + sizeof(RingShared);
static_assert(kSharedBytes > 196 << 10);

__device__ __forceinline__ void add(float4& sum, const float4& more) {
  sum.x += more.x;
  sum.y += more.y;
  sum.z += more.z;
  sum.w += more.w;
}

__device__ __noinline__ float capped(float sum, float cap) {
  return cap * tanhf(sum / cap);
}

template <int kRows, bool kFp8>
class RingProduct {
 public:
  static constexpr int kSums = kRows / 2;  // of a thread
  static constexpr uint32_t kWeightBytes = kRows * kChunkBytes;

  __device__ RingProduct(const RingParams& p, uint8_t* shared) : p_(p) {
    const auto token_bytes = static_cast<uint32_t>(p.token_rows) * kChunkBytes;
    uint8_t* const weights = shared + p.token_slots * token_bytes;
    auto& behind = *reinterpret_cast<RingShared*>(weights + p.weight_slots * kWeightBytes);
    scales_ = behind.scales;
    x_scales_ = behind.x_scales;
    sums_come_ = shared_address(&behind.sums_come);
    sums_ = reinterpret_cast<float*>(shared);
    may_read_ = shared_address(&behind.may_read);
    chunk_read_ = shared_address(behind.read);
    // In front of the weights: rows past the tokens are read, of whatever follows.
    tokens_ = {shared_address(shared), token_bytes, p.token_slots,
               shared_address(behind.tokens_full)};
    weights_ = {shared_address(weights), kWeightBytes, p.weight_slots,
                shared_address(behind.weights_full)};
    token_operand_ = SlotOperand(tokens_.slots);
    weight_operand_ = SlotOperand(weights_.slots);
    const int block = static_cast<int>(blockIdx.x);
    const int shift = __ffs(p.splits) - 1;
    part_ = block & (p.splits - 1);
    first_tile_ = block >> shift;
    tile_step_ = static_cast<int>(gridDim.x) >> shift;
    first_chunk_ = part_ * p.part_chunks;
    num_chunks_ = max(0, min(p.part_chunks, p.chunks - first_chunk_));
  }

  // By a lane of each warp: one after the other, 60 barriers take half a microsecond to make.
  __device__ void init(int warp) const {
    const auto init_all = [&](uint32_t barriers, int32_t count, uint32_t arrivals) {
#pragma unroll 1
      for (int32_t i = warp; i < count; i += kThreads / 32) {
        barrier_init(barrier_of(barriers, i), arrivals);
      }
    };
    init_all(weights_.full, weights_.count, 1);
    init_all(tokens_.full, tokens_.count, 1);
    init_all(chunk_read_, weights_.count, kMmaWarps);
    if (warp == kTokenWarp) {
      barrier_init(may_read_, 1);
      barrier_init(sums_come_, 1);
      barrier_expect(sums_come_, static_cast<uint32_t>(kRows * p_.asked.tokens) * sizeof(float));
    }
    barrier_init_fence();
  }
  // By a warp each.
  __device__ void fetch_weights() const {
    const uint64_t policy = evict_first();
    RingWalk come;  // the oldest slot that may be on its way
    int32_t on_way = 0;
    int32_t most = p_.ahead_slots;
    const auto pace = [&] {
      if (on_way == most && most < p_.steady_slots && !come.wait_unless(weights_.full, may_read_)) {
        most = p_.steady_slots;
      } else if (on_way == most) {
        come.wait(weights_.full);
        come.next(weights_.count);
        --on_way;
      }
      ++on_way;
    };
    walk(weights_, pace, [&](uint32_t to, int column, int tile, uint32_t full) {
      fetch(to, p_.weight, column, tile * kRows, full, policy);
    });
  }
  __device__ void fetch_tokens() const {
    if (is_first_lane()) barrier_arrive(may_read_);
    const uint64_t policy = evict_last();
    const auto pace = [] {};
    walk(tokens_, pace, [&](uint32_t to, int column, int /*tile*/, uint32_t full) {
      fetch(to, p_.x, column, 0, full, policy);
    });
  }

  // By the warps that multiply: all tiles of a block that keeps nothing.
  __device__ void write_tiles() {
    const float x_scales[2] = {x_scale_of(token_of(0)), x_scale_of(token_of(1))};
#pragma unroll 1
    for (int tile = first_tile_; tile < p_.tiles; tile += tile_step_) {
      float c[kSums];
      multiply(c, tile);
      sync_mma_warps();
      if (p_.asked.y_is_f32) {
        write_tile<float2>(c, tile, x_scales);
      } else {
        write_tile<__nv_bfloat162>(c, tile, x_scales);
      }
      sync_mma_warps();  // the tile's scales have been read
    }
  }
  // And the part of one tile.
  __device__ void multiply_part(float (&c)[kSums]) {
    multiply(c, first_tile_);
  }
  // Its sums go over the slots of the rings, once all blocks of the cluster have read theirs: each
  // block is sent some columns. A launch without clusters has no st.async.
  __device__ void send_part(const float (&c)[kSums]) const {
    if (token_of(0) >= p_.asked.tokens) return;
    const int columns = columns_of_block();
    uint32_t rank = 0;
    int column = lane_column();  // of the block's
#pragma unroll
    for (int i = 0; i < kRows / 8; ++i) {
      const uint32_t barrier = shared_of_rank(sums_come_, rank);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (token_of(half) >= p_.asked.tokens) continue;
        const uint32_t to = shared_address(sums_of(part_, token_of(half)) + column);
        store_to_rank(shared_of_rank(to, rank), pair_of(c, i, half), barrier);
      }
      column += 8;
      if (column < columns) continue;
      column -= columns;
      ++rank;
    }
  }
  __device__ void keep_part(const float (&c)[kSums]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (token_of(half) >= p_.asked.tokens) continue;
      auto* const to = reinterpret_cast<float2*>(sums_of(0, token_of(half)) + lane_column());
#pragma unroll
      for (int i = 0; i < kRows / 8; ++i) to[4 * i] = pair_of(c, i, half);
    }
  }
  // By all threads of a block, of what it has been sent, four columns at a time.
  __device__ void write_sums() const {
    const int columns = columns_of_block();
    if (p_.splits > 1) barrier_wait(sums_come_, 0);
    for (auto i = static_cast<int>(threadIdx.x); i < columns / 4 * p_.asked.tokens; i += kThreads) {
      const int token = i / (columns / 4);
      const int column = i % (columns / 4) * 4;
      float4 sum = {};
      for (int part = 0; part < p_.splits; ++part) {
        add(sum, *reinterpret_cast<const float4*>(sums_of(part, token) + column));
      }
      write_quad(token, part_ * columns + column, sum);
    }
  }

 private:
  __device__ int columns_of_block() const {
    return kRows / p_.splits;
  }
  // In the block that has them, those of its columns.
  __device__ float* sums_of(int part, int token) const {
    const int stride = columns_of_block() + 4;  // so that rows begin in different banks
    return sums_ + (part * p_.asked.tokens + token) * stride;
  }
  static constexpr int kChunkElements = kFp8 ? kChunkBytes : kChunkBytes / 2;

  __device__ static bool is_first_lane() {
    return threadIdx.x % 32 == 0;
  }
  // By a warp; fetch_box() by one lane. Tokens have no more slots than weights: so who waits for a
  // chunk to be read knows that its slot of weights has not been read again since.
  template <typename Pace, typename Fetch>
  __device__ void walk(const FetchRing& ring, Pace pace, Fetch fetch_box) const {
    RingWalk at;
    RingWalk read;  // of the slots of weights
    int32_t unused = ring.count;
#pragma unroll 1
    for (int tile = first_tile_; tile < p_.tiles; tile += tile_step_) {
#pragma unroll 1
      for (int i = 0; i < num_chunks_; ++i) {
        if (unused > 0) {
          --unused;
        } else {
          read.wait(chunk_read_);
          read.next(weights_.count);
        }
        pace();
        if (is_first_lane()) {
          const uint32_t full = barrier_of(ring.full, at.at);
          barrier_expect(full, ring.slot_bytes);
          fetch_box(ring.slot(at.at), (first_chunk_ + i) * kChunkElements, tile, full);
        }
        __syncwarp();
        at.next(ring.count);
      }
    }
  }

  // Scales come from memory, so they are asked for before they are needed.
  __device__ void fetch_scales(int tile) const {
    for (int i = static_cast<int>(threadIdx.x); i < kRows; i += 32 * kMmaWarps) {
      const int64_t row = int64_t{tile} * kRows + i;
      if (p_.asked.w_scale == nullptr) {
        scales_[i] = 1.0f;
      } else if (row < p_.asked.out) {
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(scales_ + i)),
                     "l"(p_.asked.w_scale + row)
                     : "memory");
      }
    }
    if (!p_.keeps) return;
    const auto token = static_cast<int>(threadIdx.x);
    if (token < p_.asked.tokens) x_scales_[token] = x_scale_of(token);
  }
  // The block's part of a tile; the thread's scales are there.
  __device__ void multiply(float (&c)[kSums], int tile) {
    fetch_scales(tile);
#pragma unroll
    for (float& sum : c) sum = 0;
    if constexpr (kFp8) {
#pragma unroll 1
      for (int left = num_chunks_; left > 0; left -= kFp8Chunks) {
        float part[kSums] = {};
        add_chunks(part, min(left, kFp8Chunks));
#pragma unroll
        for (int i = 0; i < kSums; ++i) c[i] += part[i];
      }
    } else {
      add_chunks(c, num_chunks_);
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
  }
  __device__ static void sync_mma_warps() {
    asm volatile("bar.sync 1, %0;" ::"n"(32 * kMmaWarps) : "memory");
  }
  __device__ __forceinline__ void add_chunks(float (&sums)[kSums], int count) {
    uint32_t read = 0;  // the barrier of the chunk that is given up next
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      weight_.wait(weights_.full);
      token_.wait(tokens_.full);
      const SlotOperand a = token_operand_.of(tokens_, token_.at);
      const SlotOperand b = weight_operand_.of(weights_, weight_.at);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < kChunkBytes; k += 32) {
        ProductMma<kRows, kFp8>::add(sums, a.advanced(k), b.advanced(k));
      }
      wgmma_commit();
      wgmma_wait<1>();
      if (i > 0) give_up(read);
      read = barrier_of(chunk_read_, weight_.at);
      weight_.next(weights_.count);
      token_.next(tokens_.count);
    }
    wgmma_wait<0>();
    hold(sums);
    if (count > 0) give_up(read);
  }
  __device__ __forceinline__ static void give_up(uint32_t read) {
    if (is_first_lane()) barrier_arrive(read);
  }

  // Of the two tokens that the thread has sums of.
  __device__ static int token_of(int half) {
    return static_cast<int>(threadIdx.x) / 32 * 16 + 8 * half +
           static_cast<int>(threadIdx.x) % 32 / 4;
  }
  __device__ float x_scale_of(int token) const {
    const bool has_one = p_.asked.w_scale != nullptr && token < p_.asked.tokens;
    return has_one ? p_.asked.x_scale[token] : 1.0f;
  }
  __device__ __forceinline__ static float2 pair_of(const float (&c)[kSums], int i, int half) {
    return make_float2(c[4 * i + 2 * half], c[4 * i + 2 * half + 1]);
  }
  // And the first two of its columns, of each 8.
  __device__ static int lane_column() {
    return 2 * static_cast<int>(threadIdx.x % 4);
  }
  __device__ __forceinline__ static void store(float2* to, float low, float high) {
    *to = make_float2(low, high);
  }
  __device__ __forceinline__ static void store(__nv_bfloat162* to, float low, float high) {
    *to = __floats2bfloat162_rn(low, high);
  }
  // Two elements of y at a time, where is_plain. It is unrolled and runs once, so it is short: most
  // of what it costs is to fetch its code.
  template <typename Pair>
  __device__ __forceinline__ void write_tile(const float (&c)[kSums], int tile,
                                             const float (&x_scales)[2]) const {
    const int64_t first_row = int64_t{tile} * kRows + lane_column();
    const auto left = static_cast<int>(min(int64_t{kRows}, p_.asked.out - first_row));
    const auto* const scales = reinterpret_cast<const float2*>(scales_ + lane_column());
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (token_of(half) >= p_.asked.tokens) continue;
      Pair* const to =
          static_cast<Pair*>(p_.asked.y) + (token_of(half) * p_.asked.out + first_row) / 2;
#pragma unroll
      for (int i = 0; i < kRows / 8; ++i) {
        if (8 * i >= left) break;
        const float2 scale = scales[4 * i];
        store(to + 4 * i, c[4 * i + 2 * half] * (x_scales[half] * scale.x),
              c[4 * i + 2 * half + 1] * (x_scales[half] * scale.y));
      }
    }
  }
  __device__ void write_quad(int token, int column, const float4& sum) const {
    const float x_scale = x_scales_[token];
    write_sum(token, column, sum.x, x_scale);
    write_sum(token, column + 1, sum.y, x_scale);
    write_sum(token, column + 2, sum.z, x_scale);
    write_sum(token, column + 3, sum.w, x_scale);
  }
  // Of a column of the first tile.
  __device__ void write_sum(int token, int column, float sum, float x_scale) const {
    const GemvParams& p = p_.asked;
    const int64_t row = int64_t{first_tile_} * kRows + column;
    if (row >= p.out) return;
    sum = finished(sum, x_scale * scales_[column], bias_of(p.bias, row));
    if (p.softcap != 0.0f) sum = capped(sum, p.softcap);
    const int64_t at = token * p.out + row;
    if (p.y_is_f32) {
      static_cast<float*>(p.y)[at] = sum;
    } else {
      static_cast<__nv_bfloat16*>(p.y)[at] = __float2bfloat16_rn(sum);
    }
  }

  const RingParams& p_;
  FetchRing tokens_;
  FetchRing weights_;
  float* scales_;
  float* x_scales_;
  float* sums_;
  uint32_t may_read_;
  uint32_t sums_come_;
  uint32_t chunk_read_;  // barriers, one a slot of weights
  // Of the warps that multiply: what is read next, the operands in the first slots.
  RingWalk token_;
  RingWalk weight_;
  SlotOperand token_operand_;
  SlotOperand weight_operand_;
  int part_;
  int first_tile_;
  int tile_step_;
  int first_chunk_;
  int num_chunks_;
};

// As many registers as two blocks would have: the small kernel beside it needs some, too.
template <int kRows, bool kFp8>
__global__ void __launch_bounds__(kThreads, 2)
    ring_product_kernel(const __grid_constant__ RingParams p) {
  extern __shared__ __align__(1024) uint8_t shared[];
  RingProduct<kRows, kFp8> product(p, shared);
  // Told to be the same for all lanes: behind a branch that may part a warp the compiler lets no
  // wgmma begin before the one in front has ended.
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
  const bool is_first = threadIdx.x % 32 == 0;
  if (is_first && warp == kWeightWarp) prefetch_map(p.weight);
  if (is_first && warp == kTokenWarp) prefetch_map(p.x);
  if (is_first) product.init(warp);
  __syncthreads();
  // No kernel writes weights: they are on their way before the last kernel ends.
  if (warp == kWeightWarp) product.fetch_weights();
  if (warp != kWeightWarp) {
    dependency_wait();
    dependency_trigger();
  }
  if (warp == kTokenWarp) product.fetch_tokens();
  if (!p.keeps) {
    if (warp < kMmaWarps) product.write_tiles();
    return;
  }
  float c[RingProduct<kRows, kFp8>::kSums];
  const bool multiplies = warp < kMmaWarps;
  if (multiplies) product.multiply_part(c);
  __syncthreads();
  if (p.splits > 1) {
    cluster_arrive();
    cluster_wait();
    if (multiplies) product.send_part(c);
  } else {
    if (multiplies) product.keep_part(c);
    __syncthreads();
  }
  product.write_sums();
}

template <int kRows, bool kFp8>
cudaError_t launch_shape(const RingParams& p, int32_t num_sms, cudaStream_t stream) {
  auto* const kernel = ring_product_kernel<kRows, kFp8>;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  if (error != cudaSuccess) return error;
  const int32_t blocks = p.keeps ? p.tiles * p.splits : std::min(p.tiles, num_sms);
  return launch_pdl_cluster(kernel, dim3(static_cast<unsigned>(blocks)), dim3(kThreads),
                            kSharedBytes, static_cast<unsigned>(p.splits), stream, p);
}

template <bool kFp8>
cudaError_t launch_rows(int32_t rows, const RingParams& p, int32_t num_sms, cudaStream_t stream) {
  switch (rows) {
    case 32:
      return launch_shape<32, kFp8>(p, num_sms, stream);
    case 48:
      return launch_shape<48, kFp8>(p, num_sms, stream);
    case 64:
      return launch_shape<64, kFp8>(p, num_sms, stream);
    case 80:
      return launch_shape<80, kFp8>(p, num_sms, stream);
    case 96:
      return launch_shape<96, kFp8>(p, num_sms, stream);
    case 112:
      return launch_shape<112, kFp8>(p, num_sms, stream);
    case 128:
      return launch_shape<128, kFp8>(p, num_sms, stream);
    default:
      break;
  }
  if constexpr (!kFp8) {
    switch (rows) {
      case 160:
        return launch_shape<160, kFp8>(p, num_sms, stream);
      case 192:
        return launch_shape<192, kFp8>(p, num_sms, stream);
      case 224:
        return launch_shape<224, kFp8>(p, num_sms, stream);
      case 256:
        return launch_shape<256, kFp8>(p, num_sms, stream);
      default:
        break;
    }
  }
  return cudaErrorInvalidValue;
}

// Sums can be written as they are, two at a time.
bool is_plain(const GemvParams& product) {
  return product.bias == nullptr && product.softcap == 0.0f && product.out % 2 == 0;
}
int32_t over(int64_t dividend, int64_t divisor) {  // rounded up
  return static_cast<int32_t>((dividend + divisor - 1) / divisor);
}

}  // namespace

cudaError_t launch_ring_product(const GemvParams& product, const RingShape& shape, int32_t num_sms,
                                cudaStream_t stream) {
  if (product.tokens <= 0 || product.out <= 0) return cudaSuccess;
  if (!ring_takes(product, shape) || num_sms < shape.splits) return cudaErrorInvalidValue;
  EncodeTensorMap encode = nullptr;
  const cudaError_t error = find_tensor_map_encoder(&encode);
  if (error != cudaSuccess) return error;
  RingParams p;
  p.asked = product;
  p.splits = shape.splits;
  p.keeps = p.splits > 1 || !is_plain(product);
  p.tiles = over(product.out, shape.rows);
  p.chunks = over(product.in * (product.is_fp8 ? 1 : 2), kChunkBytes);
  p.part_chunks = over(p.chunks, p.splits);
  constexpr int32_t kGroupRows = 8;  // of the swizzle
  p.token_rows = over(product.tokens, kGroupRows) * kGroupRows;
  const int32_t all_rows = kRingBytes / kChunkBytes;
  p.token_slots = std::min(
      std::clamp(kTokenBytes / (p.token_rows * kChunkBytes), kFewestTokenSlots, kMostTokenSlots),
      all_rows / (p.token_rows + shape.rows));
  p.weight_slots =
      std::min(kMostWeightSlots, (all_rows - p.token_slots * p.token_rows) / shape.rows);
  const auto slots_of = [&](int bytes) {
    return std::clamp(bytes / kChunkBytes / shape.rows, 1, p.weight_slots);
  };
  p.ahead_slots = slots_of(kAheadBytes);
  p.steady_slots = slots_of(kSteadyBytes);
  if (!encode_rows(encode, product.weight, product.out, product, shape.rows, p.weight) ||
      !encode_rows(encode, product.x, product.tokens, product, p.token_rows, p.x)) {
    return cudaErrorInvalidValue;
  }
  return product.is_fp8 ? launch_rows<true>(shape.rows, p, num_sms, stream)
                        : launch_rows<false>(shape.rows, p, num_sms, stream);
}

}  // namespace rudder::cuda
