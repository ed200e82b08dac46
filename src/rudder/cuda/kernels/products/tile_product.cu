#include "rudder/cuda/kernels/products/tile_product.h"

#include <cuda_bf16.h>

#include <algorithm>
#include <type_traits>

#include "rudder/cuda/kernels/launch.h"
#include "rudder/cuda/kernels/products/product_finish.cuh"
#include "rudder/cuda/kernels/products/product_mma.cuh"
#include "rudder/cuda/kernels/products/product_rows.cuh"
#include "rudder/cuda/kernels/products/ring.cuh"
#include "rudder/cuda/kernels/wgmma.cuh"

namespace rudder::cuda {
namespace {

constexpr int kChunkBytes = kRingChunkBytes;
// Two warpgroups multiply, a warp of a third one fetches.
constexpr int kGroupTokens = 64;
constexpr int kMmaGroups = kTileTokens / kGroupTokens;
constexpr int kMmaThreads = 128 * kMmaGroups;
constexpr int kThreads = kMmaThreads + 128;
constexpr int kFetchWarp = kMmaThreads / 32;
constexpr int kMmaRegisters = 240;
constexpr int kFetchRegisters = 24;
constexpr int kMostSlots = 8;
constexpr int kSlotBytes = 220 << 10;  // of all slots
constexpr int kMostRows = 256;
constexpr int kTokenBytes = kTileTokens * kChunkBytes;
// Tiles that run at once lie in so many rows of tiles, so that L2 has what they read.
constexpr int kTallest = 8;
constexpr int kFp8Chunks = 4;  // as of ring_product.cu

struct TileParams {
  TensorMap weight;  // boxes of 128 bytes of as many rows as a tile has
  TensorMap x;       // boxes of 128 bytes of kTileTokens rows
  GemvParams asked;
  int32_t splits = 1;
  int32_t token_tiles = 0;
  int32_t row_tiles = 0;
  int32_t chunks = 0;       // of a row
  int32_t part_chunks = 0;  // of a part of a row, but for the last one
  int32_t slots = 0;
};

struct TileShared {
  uint64_t full[kMostSlots];
  uint64_t read[kMostSlots];
  uint64_t sums_come;  // from the blocks that have parts of the tile
  // Of the tile's rows of W, for each warpgroup.
  float scales[kMmaGroups][kMostRows];
  float biases[kMmaGroups][kMostRows];
};
constexpr int kSharedBytes = kSlotBytes + sizeof(TileShared);

enum class Parts { kOne, kInTurn, kSideBySide };

__device__ __forceinline__ void store(float* to, float value) {
  *to = value;
}
__device__ __forceinline__ void store(__nv_bfloat16* to, float value) {
  *to = __float2bfloat16_rn(value);
}

template <int kRows, bool kFp8, Parts kParts>
class TileProduct {
 public:
  static constexpr int kSums = kRows / 2;  // of a thread
  static constexpr uint32_t kBytes = kTokenBytes + kRows * kChunkBytes;

  __device__ TileProduct(const TileParams& p, uint8_t* shared) : p_(p) {
    auto& behind = *reinterpret_cast<TileShared*>(shared + kSlotBytes);
    slots_ = {shared_address(shared), kBytes, p.slots, shared_address(behind.full)};
    read_ = shared_address(behind.read);
    sums_come_ = shared_address(&behind.sums_come);
    sums_ = reinterpret_cast<float*>(shared);
    const auto mine = min(static_cast<int>(threadIdx.x) / 128, kMmaGroups - 1);
    scales_ = behind.scales[mine];
    biases_ = behind.biases[mine];
    const auto block = static_cast<int>(blockIdx.x);
    if constexpr (kParts == Parts::kSideBySide) {
      const int shift = __ffs(p.splits) - 1;
      part_ = block & (p.splits - 1);
      first_tile_ = block >> shift;
      tile_step_ = static_cast<int>(gridDim.x) >> shift;
      first_chunk_ = part_ * p.part_chunks;
      num_chunks_ = max(0, min(p.part_chunks, p.chunks - first_chunk_));
    } else {
      part_ = 0;
      first_tile_ = block;
      tile_step_ = static_cast<int>(gridDim.x);
      first_chunk_ = 0;
      num_chunks_ = p.chunks;
    }
  }

  __device__ void init() const {
    for (int32_t i = 0; i < p_.slots; ++i) {
      barrier_init(barrier_of(slots_.full, i), 1);
      barrier_init(barrier_of(read_, i), kMmaThreads / 32);
    }
    if constexpr (kParts == Parts::kSideBySide) {
      barrier_init(sums_come_, 1);
      const int tokens = tokens_of(tile_at(first_tile_));
      barrier_expect(sums_come_, static_cast<uint32_t>(kRows * tokens) * sizeof(float));
    }
    barrier_init_fence();
  }

  // By one lane. No kernel writes weights: those of the first slots are on their way before the
  // last kernel ends.
  __device__ void fetch_all() const {
    const bool read_once = p_.asked.tokens <= kTileTokens;
    const uint64_t weight_policy = read_once ? evict_first() : evict_normal();
    const uint64_t token_policy = read_once ? evict_last() : evict_normal();
    const auto fetch_weight = [&](const Tile& tile, int i, int slot) {
      const uint32_t full = barrier_of(slots_.full, slot);
      barrier_expect(full, kBytes);
      fetch(slots_.slot(slot) + kTokenBytes, p_.weight, column_of(i), tile.row, full,
            weight_policy);
    };
    const auto fetch_tokens = [&](const Tile& tile, int i, int slot) {
      fetch(slots_.slot(slot), p_.x, column_of(i), tile.token, barrier_of(slots_.full, slot),
            token_policy);
    };
    const Tile first = tile_at(first_tile_);
    const int ahead = min(p_.slots, num_chunks_);
    for (int i = 0; i < ahead; ++i) fetch_weight(first, i, i);
    dependency_wait();
    for (int i = 0; i < ahead; ++i) fetch_tokens(first, i, i);
    RingWalk at{ahead == p_.slots ? 0 : ahead, ahead == p_.slots ? 1u : 0u};
    int start = ahead;
#pragma unroll 1
    for (int t = first_tile_; t < num_tiles(); t += tile_step_) {
      const Tile tile = tile_at(t);
#pragma unroll 1
      for (int i = start; i < num_chunks_; ++i) {
        // Of the turn before: in the first one there is nothing to wait for.
        barrier_wait(barrier_of(read_, at.at), at.parity ^ 1);
        fetch_weight(tile, i, at.at);
        fetch_tokens(tile, i, at.at);
        at.next(p_.slots);
      }
      start = 0;
    }
  }

  // By the warps that multiply.
  __device__ void write_tiles() {
#pragma unroll 1
    for (int t = first_tile_; t < num_tiles(); t += tile_step_) {
      const Tile tile = tile_at(t);
      const Terms terms = terms_of(tile);
      float c[kSums];
      multiply_parts(c);
      keep(terms);
      sync_group();
      write(c, tile, terms);
      sync_group();  // the tile's scales have been read
    }
  }
  __device__ void multiply_part(float (&c)[kSums]) {
    multiply(c, num_chunks_);
  }
  // Sums go over the slots, once all blocks of the cluster have read theirs: each block is sent
  // some columns.
  __device__ void send_part(const float (&c)[kSums]) const {
    const int tokens = tokens_of(tile_at(first_tile_));
    const int columns = columns_of_block();
    uint32_t rank = 0;
    int column = lane_column();  // of the block's
#pragma unroll
    for (int i = 0; i < kRows / 8; ++i) {
      const uint32_t barrier = shared_of_rank(sums_come_, rank);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (token_of(half) >= tokens) continue;
        const uint32_t to = shared_address(sums_of(part_, token_of(half), tokens) + column);
        store_to_rank(shared_of_rank(to, rank),
                      make_float2(c[4 * i + 2 * half], c[4 * i + 2 * half + 1]), barrier);
      }
      column += 8;
      if (column < columns) continue;
      column -= columns;
      ++rank;
    }
  }
  // By all threads of a block, of what it has been sent.
  __device__ void write_sums() const {
    const Tile tile = tile_at(first_tile_);
    const int tokens = tokens_of(tile);
    const int columns = columns_of_block();
    barrier_wait(sums_come_, 0);
    for (auto i = static_cast<int>(threadIdx.x); i < columns / 4 * tokens; i += kThreads) {
      const int token = i / (columns / 4);
      const int column = i % (columns / 4) * 4;
      float4 sum = {};
      for (int part = 0; part < p_.splits; ++part) {
        const auto more = *reinterpret_cast<const float4*>(sums_of(part, token, tokens) + column);
        sum.x += more.x;
        sum.y += more.y;
        sum.z += more.z;
        sum.w += more.w;
      }
      write_quad(tile.token + token, int64_t{tile.row} + part_ * columns + column, sum);
    }
  }

 private:
  struct Tile {
    int32_t token;  // its first one
    int32_t row;
  };
  __device__ int num_tiles() const {
    return p_.token_tiles * p_.row_tiles;
  }
  // Bands of kTallest tiles of tokens, and in a band along the tokens first.
  __device__ Tile tile_at(int i) const {
    const int in_band = kTallest * p_.row_tiles;
    const int band = i / in_band;
    const int tall = min(kTallest, p_.token_tiles - band * kTallest);
    const int at = i - band * in_band;
    return {(band * kTallest + at % tall) * kTileTokens, at / tall * kRows};
  }
  __device__ int tokens_of(const Tile& tile) const {
    return min(kTileTokens, p_.asked.tokens - tile.token);
  }
  __device__ int column_of(int chunk) const {
    return (first_chunk_ + chunk) * (kFp8 ? kChunkBytes : kChunkBytes / 2);
  }
  __device__ int columns_of_block() const {
    return kRows / p_.splits;
  }
  __device__ float* sums_of(int part, int token, int tokens) const {
    const int stride = columns_of_block() + 4;  // so that rows begin in different banks
    return sums_ + (part * tokens + token) * stride;
  }

  __device__ __forceinline__ void multiply_parts(float (&c)[kSums]) {
    if constexpr (kParts == Parts::kOne) {
      multiply(c, num_chunks_);
    } else {
#pragma unroll
      for (float& sum : c) sum = 0;
#pragma unroll 1
      for (int part = 0; part < p_.splits; ++part) {
        float more[kSums];
        multiply(more, max(0, min(p_.part_chunks, p_.chunks - part * p_.part_chunks)));
#pragma unroll
        for (int i = 0; i < kSums; ++i) c[i] += more[i];
      }
    }
  }
  __device__ __forceinline__ void multiply(float (&c)[kSums], int chunks) {
#pragma unroll
    for (float& sum : c) sum = 0;
    if constexpr (kParts == Parts::kSideBySide) hold(c);  // zeros are there before the first wgmma
    if constexpr (kFp8) {
#pragma unroll 1
      for (int left = chunks; left > 0; left -= kFp8Chunks) {
        float part[kSums] = {};
        add_chunks(part, min(left, kFp8Chunks));
#pragma unroll
        for (int i = 0; i < kSums; ++i) c[i] += part[i];
      }
    } else {
      add_chunks(c, chunks);
    }
  }
  __device__ __forceinline__ void add_chunks(float (&sums)[kSums], int count) {
    uint32_t given_up = 0;
    const auto give_up = [&] {
      if (threadIdx.x % 32 == 0) barrier_arrive(given_up);
    };
    const SlotOperand tokens(slots_.slots + group() * kGroupTokens * kChunkBytes);
    const SlotOperand weights(slots_.slots + kTokenBytes);
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      at_.wait(slots_.full);
      const SlotOperand a = tokens.of(slots_, at_.at);
      const SlotOperand b = weights.of(slots_, at_.at);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < kChunkBytes; k += 32) {
        ProductMma<kRows, kFp8>::add(sums, a.advanced(k), b.advanced(k));
      }
      wgmma_commit();
      wgmma_wait<1>();
      if (i > 0) give_up();
      given_up = barrier_of(read_, at_.at);
      at_.next(slots_.count);
    }
    wgmma_wait<0>();
    hold(sums);
    if (count > 0) give_up();
  }

  __device__ static uint32_t group() {
    return __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
  }
  // Of the tile, of the two that the thread has sums of.
  __device__ static int token_of(int half) {
    return static_cast<int>(threadIdx.x) / 32 * 16 + 8 * half +
           static_cast<int>(threadIdx.x) % 32 / 4;
  }
  // And the first two of its columns, of each 8.
  __device__ static int lane_column() {
    return 2 * static_cast<int>(threadIdx.x % 4);
  }
  __device__ float x_scale_of(int64_t token) const {
    const bool has_one = p_.asked.w_scale != nullptr && token < p_.asked.tokens;
    return has_one ? p_.asked.x_scale[token] : 1.0f;
  }
  __device__ float w_scale_of(int64_t row) const {
    return p_.asked.w_scale != nullptr && row < p_.asked.out ? __ldg(p_.asked.w_scale + row) : 1.0f;
  }

  // What a thread reads of a tile's scales and biases before it multiplies: of its two tokens, and
  // of some rows of W, for its warpgroup.
  struct Terms {
    static constexpr int kCount = (kRows + 127) / 128;
    float tokens[2];
    float scales[kCount];
    float biases[kCount];
  };
  __device__ __forceinline__ Terms terms_of(const Tile& tile) const {
    Terms terms;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      terms.tokens[half] = x_scale_of(int64_t{tile.token} + token_of(half));
    }
#pragma unroll
    for (int i = 0; i < Terms::kCount; ++i) {
      const int64_t row = int64_t{tile.row} + 128 * i + threadIdx.x % 128;
      terms.scales[i] = w_scale_of(row);
      terms.biases[i] = row < p_.asked.out ? bias_of(p_.asked.bias, row) : kNoBias;
    }
    return terms;
  }
  __device__ __forceinline__ void keep(const Terms& terms) const {
#pragma unroll
    for (int i = 0; i < Terms::kCount; ++i) {
      const auto at = static_cast<int>(128 * i + threadIdx.x % 128);
      scales_[at] = terms.scales[i];
      biases_[at] = terms.biases[i];
    }
  }
  __device__ static void sync_group() {
    asm volatile("bar.sync %0, 128;" ::"r"(1 + group()) : "memory");
  }

  // It is unrolled, so it is short: most of what a long one costs is to fetch its code.
  __device__ __forceinline__ void write(const float (&c)[kSums], const Tile& tile,
                                        const Terms& terms) const {
    const GemvParams& p = p_.asked;
    const auto left = static_cast<int>(min(int64_t{kRows}, p.out - tile.row));
    if (p.y_is_f32 && p.out % 2 == 0) {
      write_each<float2>(c, tile, terms, left);
    } else if (p.y_is_f32) {
      write_each<float>(c, tile, terms, left);
    } else if (p.out % 8 == 0) {
      write_eights(c, tile, terms, left);
    } else {
      write_each<__nv_bfloat16>(c, tile, terms, left);
    }
  }
  // The thread's columns of the i-th eight, of one of its tokens.
  __device__ __forceinline__ float2 finished_pair(const float (&c)[kSums], int i, int half,
                                                  const Terms& terms) const {
    const auto scale = *reinterpret_cast<const float2*>(scales_ + 8 * i + lane_column());
    const auto bias = *reinterpret_cast<const float2*>(biases_ + 8 * i + lane_column());
    return {finished(c[4 * i + 2 * half], terms.tokens[half] * scale.x, bias.x),
            finished(c[4 * i + 2 * half + 1], terms.tokens[half] * scale.y, bias.y)};
  }
  // Of 32 columns at a time a lane gets 8 that follow each other.
  __device__ __forceinline__ void write_eights(const float (&c)[kSums], const Tile& tile,
                                               const Terms& terms, int left) const {
    const GemvParams& p = p_.asked;
    const auto t = static_cast<int>(threadIdx.x % 4);
    const bool odd = (t & 1) != 0;
    const bool high = (t & 2) != 0;
    left -= 8 * t;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t token = int64_t{tile.token} + token_of(half);
      const int columns = token < p.tokens ? left : 0;
      auto* const to = static_cast<__nv_bfloat16*>(p.y) + token * p.out + tile.row + 8 * t;
#pragma unroll
      for (int quad = 0; quad < kRows / 32; ++quad) {
        uint32_t v[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float2 pair = finished_pair(c, 4 * quad + j, half, terms);
          const __nv_bfloat162 packed = __floats2bfloat162_rn(pair.x, pair.y);
          v[j] = *reinterpret_cast<const uint32_t*>(&packed);
        }
        const uint32_t a = __shfl_xor_sync(0xffffffffu, odd ? v[0] : v[1], 1);
        const uint32_t b = __shfl_xor_sync(0xffffffffu, odd ? v[2] : v[3], 1);
        // Columns of the lane and of its neighbour, of one eight each.
        const uint32_t low0 = odd ? a : v[0];
        const uint32_t low1 = odd ? v[1] : a;
        const uint32_t high0 = odd ? b : v[2];
        const uint32_t high1 = odd ? v[3] : b;
        const uint32_t e = __shfl_xor_sync(0xffffffffu, high ? low0 : high0, 2);
        const uint32_t f = __shfl_xor_sync(0xffffffffu, high ? low1 : high1, 2);
        const uint4 eight = high ? make_uint4(e, f, high0, high1) : make_uint4(low0, low1, e, f);
        if (32 * quad < columns) *reinterpret_cast<uint4*>(to + 32 * quad) = eight;
      }
    }
  }
  // Of any number of columns; an even one if T is a pair.
  template <typename T>
  __device__ __forceinline__ void write_each(const float (&c)[kSums], const Tile& tile,
                                             const Terms& terms, int left) const {
    const GemvParams& p = p_.asked;
    left -= lane_column();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t token = int64_t{tile.token} + token_of(half);
      const int columns = token < p.tokens ? left : 0;
      constexpr bool kPairs = std::is_same_v<T, float2>;
      const int64_t at = token * p.out + tile.row + lane_column();
      T* const to = static_cast<T*>(p.y) + (kPairs ? at / 2 : at);
#pragma unroll
      for (int i = 0; i < kRows / 8; ++i) {
        const float2 pair = finished_pair(c, i, half, terms);
        if constexpr (kPairs) {
          if (8 * i < columns) to[4 * i] = pair;
        } else {
          if (8 * i < columns) store(to + 8 * i, pair.x);
          if (8 * i + 1 < columns) store(to + 8 * i + 1, pair.y);
        }
      }
    }
  }
  __device__ void write_quad(int64_t token, int64_t row, const float4& sum) const {
    const float x_scale = x_scale_of(token);
    write_sum(token, row, sum.x, x_scale);
    write_sum(token, row + 1, sum.y, x_scale);
    write_sum(token, row + 2, sum.z, x_scale);
    write_sum(token, row + 3, sum.w, x_scale);
  }
  __device__ void write_sum(int64_t token, int64_t row, float sum, float x_scale) const {
    const GemvParams& p = p_.asked;
    if (token >= p.tokens || row >= p.out) return;
    const float value = finished(sum, x_scale * w_scale_of(row), bias_of(p.bias, row));
    const int64_t at = token * p.out + row;
    if (p.y_is_f32) {
      store(static_cast<float*>(p.y) + at, value);
    } else {
      store(static_cast<__nv_bfloat16*>(p.y) + at, value);
    }
  }

  const TileParams& p_;
  FetchRing slots_;
  uint32_t read_;  // barriers, one a slot
  uint32_t sums_come_;
  float* sums_;
  float* scales_;  // of the thread's warpgroup
  float* biases_;
  RingWalk at_;  // of the warps that multiply: what is read next
  int part_;
  int first_tile_;
  int tile_step_;
  int first_chunk_;
  int num_chunks_;
};

template <int kRows, bool kFp8, Parts kParts>
__global__ void __launch_bounds__(kThreads, 1)
    tile_product_kernel(const __grid_constant__ TileParams p) {
  extern __shared__ __align__(1024) uint8_t shared[];
  using Tiles = TileProduct<kRows, kFp8, kParts>;
  Tiles product(p, shared);
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
  if (threadIdx.x == 0) product.init();
  __syncthreads();
  if (warp >= kFetchWarp) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kFetchRegisters));
    if (warp == kFetchWarp && threadIdx.x % 32 == 0) {
      prefetch_map(p.weight);
      prefetch_map(p.x);
      product.fetch_all();
    }
    __syncwarp();
    if constexpr (kParts == Parts::kSideBySide) {
      dependency_wait();  // before y is written
      cluster_arrive();
      cluster_wait();
    }
    dependency_trigger();
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kMmaRegisters));
    dependency_wait();
    dependency_trigger();
    if constexpr (kParts == Parts::kSideBySide) {
      float c[Tiles::kSums];
      product.multiply_part(c);
      cluster_arrive();
      cluster_wait();
      product.send_part(c);
    } else {
      product.write_tiles();
    }
  }
  if constexpr (kParts == Parts::kSideBySide) product.write_sums();
}

int32_t over(int64_t dividend, int64_t divisor) {  // rounded up
  return static_cast<int32_t>((dividend + divisor - 1) / divisor);
}

template <int kRows, bool kFp8, Parts kParts>
cudaError_t launch_parts(const TileParams& p, int32_t num_sms, cudaStream_t stream) {
  auto* const kernel = tile_product_kernel<kRows, kFp8, kParts>;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  if (error != cudaSuccess) return error;
  constexpr bool kSideBySide = kParts == Parts::kSideBySide;
  const int32_t tiles = p.row_tiles * p.token_tiles;
  const int32_t blocks = kSideBySide ? tiles * p.splits : std::min(tiles, num_sms);
  return launch_pdl_cluster(kernel, dim3(static_cast<unsigned>(blocks)), dim3(kThreads),
                            kSharedBytes, kSideBySide ? static_cast<unsigned>(p.splits) : 1, stream,
                            p);
}

template <int kRows, bool kFp8>
cudaError_t launch_shape(const TileShape& shape, const TileParams& p, int32_t num_sms,
                         cudaStream_t stream) {
  constexpr int kMost = kFp8 ? 192 : 256;  // most_rows()
  if (shape.splits > 1 && !shape.side_by_side) {
    if constexpr (kRows <= kMost - 64) {
      return launch_parts<kRows, kFp8, Parts::kInTurn>(p, num_sms, stream);
    }
  } else if constexpr (kRows <= kMost) {
    return shape.side_by_side ? launch_parts<kRows, kFp8, Parts::kSideBySide>(p, num_sms, stream)
                              : launch_parts<kRows, kFp8, Parts::kOne>(p, num_sms, stream);
  }
  return cudaErrorInvalidValue;
}

template <bool kFp8>
cudaError_t launch_rows(const TileShape& shape, const TileParams& p, int32_t num_sms,
                        cudaStream_t stream) {
  switch (shape.rows) {
    case 64:
      return launch_shape<64, kFp8>(shape, p, num_sms, stream);
    case 96:
      return launch_shape<96, kFp8>(shape, p, num_sms, stream);
    case 128:
      return launch_shape<128, kFp8>(shape, p, num_sms, stream);
    case 160:
      return launch_shape<160, kFp8>(shape, p, num_sms, stream);
    case 192:
      return launch_shape<192, kFp8>(shape, p, num_sms, stream);
    case 224:
      return launch_shape<224, kFp8>(shape, p, num_sms, stream);
    case 256:
      return launch_shape<256, kFp8>(shape, p, num_sms, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace

cudaError_t launch_tile_product(const GemvParams& product, const TileShape& shape, int32_t num_sms,
                                cudaStream_t stream) {
  if (product.tokens <= 0 || product.out <= 0) return cudaSuccess;
  if (!tile_takes(product, shape) || num_sms < 4) return cudaErrorInvalidValue;
  EncodeTensorMap encode = nullptr;
  const cudaError_t error = find_tensor_map_encoder(&encode);
  if (error != cudaSuccess) return error;
  TileParams p;
  p.asked = product;
  p.splits = shape.splits;
  p.token_tiles = over(product.tokens, kTileTokens);
  p.row_tiles = over(product.out, shape.rows);
  p.chunks = over(product.in * (product.is_fp8 ? 1 : 2), kChunkBytes);
  p.part_chunks = over(p.chunks, p.splits);
  p.slots = std::min(kMostSlots, kSlotBytes / ((kTileTokens + shape.rows) * kChunkBytes));
  if (!encode_rows(encode, product.weight, product.out, product, shape.rows, p.weight) ||
      !encode_rows(encode, product.x, product.tokens, product, kTileTokens, p.x)) {
    return cudaErrorInvalidValue;
  }
  return product.is_fp8 ? launch_rows<true>(shape, p, num_sms, stream)
                        : launch_rows<false>(shape, p, num_sms, stream);
}

}  // namespace rudder::cuda
