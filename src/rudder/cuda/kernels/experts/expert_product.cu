#include "rudder/cuda/kernels/experts/expert_product.h"

#include <cuda_bf16.h>

#include <algorithm>

#include "rudder/cuda/kernels/experts/expert_codes.cuh"
#include "rudder/cuda/kernels/experts/few_pairs.h"
#include "rudder/cuda/kernels/experts/gate_experts.cuh"
#include "rudder/cuda/kernels/experts/tile_turns.cuh"
#include "rudder/cuda/kernels/launch.h"
#include "rudder/cuda/kernels/products/product_finish.cuh"
#include "rudder/cuda/kernels/products/product_mma.cuh"
#include "rudder/cuda/kernels/products/product_rows.cuh"
#include "rudder/cuda/kernels/products/ring.cuh"
#include "rudder/cuda/kernels/wgmma.cuh"

namespace rudder::cuda {
namespace {

constexpr int kChunkBytes = kRingChunkBytes;
constexpr int kGroupPairs = 64;  // of a warpgroup that multiplies
constexpr int kMostSlots = 32;
constexpr int kSlotBytes = 208 << 10;  // of all slots
constexpr int kMostRows = 192;
constexpr int kMostGroups = kManyPairs / kGroupPairs;
constexpr int kFp8Chunks = 4;  // as of products/ring_product.cu
// The last warpgroup fetches: a warp W, the others rows of x.
constexpr int kFetchThreads = 128;
constexpr int kTokenThreads = 96;
constexpr int kPieceBytes = 16;
constexpr int kPieces = kChunkBytes / kPieceBytes;
constexpr int kRowsAtOnce = kTokenThreads / kPieces;

// Of all slots; codes lie behind them.
template <ExpertForm kForm>
constexpr int kRingBytes = kSlotBytes - (kForm == ExpertForm::kE2m1 ? kCodeRingBytes : 0);

struct TileParams {
  TensorMap weight;  // boxes of 128 bytes of half as many rows as a tile has
  ExpertProductParams asked;
  int32_t row_tiles = 0;  // of an expert
  int32_t chunks = 0;     // of a row
  int32_t slots = 0;
  int32_t x_bytes = 0;  // of a slot, of x; W follows
};

struct TileShared {
  uint64_t full[kMostSlots];
  uint64_t read[kMostSlots];
  CodeBarriers codes;
  // Of the tile's rows of W, for each warpgroup.
  float scales[kMostGroups][kMostRows];
  float biases[kMostGroups][kMostRows];
  int rows[2][kManyPairs];  // of x, of a tile and of the next one
  // The tensor cores read 64 rows of x, of which a slot may have fewer: what follows is read, too.
  uint8_t behind[kGroupPairs * kChunkBytes];
};
constexpr int kSharedBytes = kSlotBytes + sizeof(TileShared);
static_assert(kSharedBytes <= 227 << 10);

__device__ __forceinline__ void copy_piece(uint32_t to, const void* from, uint32_t bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes));
}
// Of what the kernel in front wrote: asked for where it stands, not where it is first used.
__device__ __forceinline__ int load_now(const int32_t* from) {
  int value;
  asm volatile("ld.global.cg.b32 %0, [%1];" : "=r"(value) : "l"(from));
  return value;
}
__device__ __forceinline__ float load_now(const float* from) {
  float value;
  asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(value) : "l"(from));
  return value;
}
__device__ __forceinline__ int4 load_now(const ExpertRun* from) {
  int4 value;
  asm volatile("ld.global.cg.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(from));
  return value;
}
// Once the copies of this thread so far are there, which it does not wait for.
__device__ __forceinline__ void arrive_when_copied(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
// By a warp: it has read what the barrier guards.
__device__ __forceinline__ void give_up(uint32_t read) {
  if (threadIdx.x % 32 == 0) barrier_arrive(read);
}
// kGroups warpgroups have 64 pairs each of a tile, by kRows rows of W: of gate and of up, half of
// them each, or kRows that follow each other. Where one has all pairs of a tile, two have tiles in
// turn: one multiplies while the other writes what it has multiplied.
template <int kGroups, int kRows, ExpertForm kForm, bool kGated>
class ExpertTiles {
 public:
  static constexpr bool kFp8 = kForm == ExpertForm::kE4m3;
  static constexpr bool kOfCodes = kForm == ExpertForm::kE2m1;
  using Codes = CodeRing<kRows, kGroups == 1 ? 3 : 1>;
  static constexpr int kSums = kRows / 2;                  // of a thread
  static constexpr int kHalf = kRows / 2;                  // rows of a box
  static constexpr int kColumns = kGated ? kHalf : kRows;  // of y
  static constexpr uint32_t kHalfBytes = kHalf * kChunkBytes;
  // Barriers 1 to kMostGroups are those of sync_group().
  using Turns = TileTurns<kGroups == 1 && !kOfCodes, 1 + kMostGroups>;
  static constexpr int kMmaThreads = 128 * kGroups * Turns::kCount;
  static constexpr int kThreads = kMmaThreads + kFetchThreads + (kOfCodes ? Codes::kThreads : 0);
  // Of the warps that multiply and of the others, where registers move: 65,536 in all.
  enum Registers : int {
    kMmaRegisters = !kOfCodes     ? 152
                    : kGroups > 1 ? 120
                                  : 192,
    kOtherRegisters = kOfCodes && kGroups == 1 ? 72 : 56
  };
  static constexpr int kRowsEach = (kGroups * kGroupPairs + kRowsAtOnce - 1) / kRowsAtOnce;
  // A warp of them copies each third four rows of a tile, and looks up which these are.
  static constexpr int kRowsOfWarp = kRowsAtOnce / 3;
  struct Rows {
    static constexpr int kCount = (kRowsOfWarp * kRowsEach + 31) / 32;
    int of[kCount];
  };

  __device__ ExpertTiles(const TileParams& p, uint8_t* shared) : p_(p) {
    auto& behind = *reinterpret_cast<TileShared*>(shared + kSlotBytes);
    slots_ = {shared_address(shared), static_cast<uint32_t>(p.x_bytes) + 2 * kHalfBytes, p.slots,
              shared_address(behind.full)};
    read_ = shared_address(behind.read);
    if constexpr (kOfCodes) codes_ = Codes(shared + kRingBytes<kForm>, behind.codes);
    rows_ = behind.rows[0];
    const auto mine = min(static_cast<int>(threadIdx.x) / 128, kGroups * Turns::kCount - 1);
    scales_ = behind.scales[mine];
    biases_ = behind.biases[mine];
  }

  __device__ void init() const {
    for (int32_t i = 0; i < p_.slots; ++i) {
      barrier_init(barrier_of(slots_.full, i), (kOfCodes ? kCodeWarps : 1) + kTokenThreads);
      barrier_init(barrier_of(read_, i), 4 * kGroups);
    }
    if constexpr (kOfCodes) codes_.init();
    barrier_init_fence();
  }
  // Once the list is there. The first run is asked for whether there is one or not.
  __device__ void begin() {
    const ExpertList& list = p_.asked.list;
    first_run_ = load_now(list.runs + first_tile() / p_.row_tiles);
    num_tiles_ = load_now(list.num_runs) * p_.row_tiles;
  }

  // By one lane.
  __device__ void fetch_weights() const {
    const ExpertProductParams& asked = p_.asked;
    const uint64_t policy = kGroups == 1 ? evict_first() : evict_normal();
    const int to_second = kGated ? static_cast<int>(asked.out / 2) : kHalf;
    RingWalk at;
    Tile next = tile_at(first_tile());
#pragma unroll 1
    for (int t = first_tile(); t < num_tiles_; t += tile_step()) {
      const Tile tile = next;
      next = tile_at(t + tile_step());  // is there when this one's chunks have been asked for
      const int row = tile.expert * static_cast<int>(asked.out) + tile.column;
#pragma unroll 1
      for (int i = 0; i < p_.chunks; ++i) {
        // Of the turn before: in the first one there is nothing to wait for.
        barrier_wait(barrier_of(read_, at.at), at.parity ^ 1);
        const uint32_t full = barrier_of(slots_.full, at.at);
        const uint32_t to = slots_.slot(at.at) + p_.x_bytes;
        const int column = i * (kFp8 ? kChunkBytes : kChunkBytes / 2);
        barrier_expect(full, 2 * kHalfBytes);
        fetch(to, p_.weight, column, row, full, policy);
        fetch(to + kHalfBytes, p_.weight, column, row + to_second, full, policy);
        at.next(p_.slots);
      }
    }
  }

  // Of codes, by one lane; and by Codes::kThreads, the `thread`-th of them.
  __device__ void fetch_codes() {
    const ExpertProductParams& asked = p_.asked;
    const auto end = static_cast<int>(kGated ? asked.out / 2 : asked.out);
    const int to_second = kGated ? end : kHalf;
    Tile next = tile_at(first_tile());
#pragma unroll 1
    for (int t = first_tile(); t < num_tiles_; t += tile_step()) {
      const Tile tile = next;
      next = tile_at(t + tile_step());
      const int second_end = kGated ? 2 * end : end;
      codes_.fetch(asked.weight, asked.in, asked.out, tile.expert,
                   {tile.column, min(kHalf, end - tile.column)},
                   {tile.column + to_second, min(kHalf, second_end - tile.column - to_second)});
    }
  }
  __device__ void expand_codes(int thread) {
#pragma unroll 1
    for (int t = first_tile(); t < num_tiles_; t += tile_step()) {
      codes_.expand(slots_, static_cast<uint32_t>(p_.x_bytes), read_, p_.chunks, thread);
    }
  }

  // By kTokenThreads, the `thread`-th of them.
  __device__ void fetch_tokens(int thread) const {
    const ExpertProductParams& asked = p_.asked;
    const auto row_pieces = static_cast<uint32_t>(asked.in * (kFp8 ? 1 : 2) / kPieceBytes);
    const auto piece = static_cast<uint32_t>(thread % kPieces);
    const int first = thread / kPieces;
    const auto* const x = static_cast<const uint8_t*>(asked.x);
    // Where a thread's rows of a slot begin, by turns: a swizzle has 8 rows, of which each third
    // four are a thread's.
    static_assert(kRowsAtOnce % 8 == 4);
    const auto to_of = [&](int row) {
      return static_cast<uint32_t>(first * kChunkBytes) +
             (piece ^ static_cast<uint32_t>(row & 7)) * kPieceBytes;
    };
    const uint32_t to[2] = {to_of(first), to_of(first + kRowsAtOnce)};
    RingWalk at;
    // Rows of the next tile, and the tile behind it, are looked up while this one's are copied.
    int turn = 0;
    const int begin = first_tile();
    if (begin >= num_tiles_) return;
    Tile tile = tile_at(begin);
    Tile next = tile_at(begin + tile_step());
    keep_rows(rows_of(tile, thread), thread, 0);
#pragma unroll 1
    for (int t = begin; t < num_tiles_; t += tile_step()) {
      const int count = tile.count;
      const Rows of_next = rows_of(next, thread);
      const Tile after = tile_at(t + 2 * tile_step());
      uint32_t from[kRowsEach];  // pieces
#pragma unroll
      for (int j = 0; j < kRowsEach; ++j) {
        const int row = rows_[turn * kManyPairs + min(first + j * kRowsAtOnce, kManyPairs - 1)];
        from[j] = static_cast<uint32_t>(row) * row_pieces + piece;
      }
#pragma unroll 1
      for (int i = 0; i < p_.chunks; ++i) {
        barrier_wait(barrier_of(read_, at.at), at.parity ^ 1);
        const uint32_t slot = slots_.slot(at.at);
        const uint32_t column = static_cast<uint32_t>(i) * kPieces;
        const uint32_t bytes = column + piece < row_pieces ? kPieceBytes : 0;
        const uint8_t* const of_chunk = bytes == 0 ? x : x + column * kPieceBytes;
#pragma unroll
        for (int j = 0; j < kRowsEach; ++j) {
          if (first + j * kRowsAtOnce >= count) break;
          copy_piece(slot + to[j % 2] + j * kRowsAtOnce * kChunkBytes,
                     of_chunk + uint64_t{from[j]} * kPieceBytes, bytes);
        }
        arrive_when_copied(barrier_of(slots_.full, at.at));
        at.next(p_.slots);
      }
      turn ^= 1;
      keep_rows(of_next, thread, turn);
      tile = next;
      next = after;
    }
  }

  // By the warps that multiply.
  __device__ void write_tiles() {
    // Nothing that is asked for in front of a tile depends on what is still on its way: the tile
    // and its pairs were asked for one tile ago, the next tile two.
    const int begin = first_tile() + Turns::own() * tile_step();
    const int step = Turns::kCount * tile_step();
    Turns::begin(at_, p_.chunks, slots_.count);
    Tile tile = tile_at(begin);
    Tile next = tile_at(begin + step);
    Pairs pairs = pairs_of(tile);
#pragma unroll 1
    for (int t = begin; t < num_tiles_; t += step) {
      const Terms terms = terms_of(tile, pairs);
      const Pairs of_next = pairs_of(next);
      const Tile after = tile_at(t + 2 * step);
      float c[kSums];
#pragma unroll
      for (float& sum : c) sum = 0;
      // Told to be the same for all lanes: else no wgmma begins before the one in front has ended.
      const int count = __shfl_sync(0xffffffffu, tile.count, 0);
      if (static_cast<int>(group()) * kGroupPairs < count) {
        Turns::wait();
        multiply(c);
        Turns::end(at_, p_.chunks, slots_.count);
        keep(terms);
        sync_group();
        write(c, tile, terms);
        sync_group();  // the tile's scales have been read
      } else {
        pass_over();
      }
      tile = next;
      pairs = of_next;
      next = after;
    }
  }

 private:
  struct Tile {
    int32_t expert;
    int32_t first;   // of the list's pairs
    int32_t count;   // of pairs
    int32_t column;  // of y; and the row of the expert's W
  };
  __device__ static int first_tile() {
    return static_cast<int>(blockIdx.x);
  }
  __device__ static int tile_step() {
    return static_cast<int>(gridDim.x);
  }
  // All rows of W of a run, then the next run's. Past the last one: the last one.
  __device__ Tile tile_at(int i) const {
    i = max(min(i, num_tiles_ - 1), 0);
    const int run = i / p_.row_tiles;
    int4 bits = first_run_;
    if (i != first_tile()) bits = load_now(p_.asked.list.runs + run);
    return {bits.x, bits.y, bits.z, (i - run * p_.row_tiles) * kColumns};
  }
  __device__ int pair_of(const Tile& tile, int row) const {
    return load_now(p_.asked.list.pairs + tile.first + min(row, tile.count - 1));
  }
  // The m-th row of a tile that a lane looks up.
  __device__ static int row_to_look_up(int thread, int m) {
    const int n = thread % 32 + 32 * m;
    return thread / 32 * kRowsOfWarp + n % kRowsOfWarp + n / kRowsOfWarp * kRowsAtOnce;
  }
  // Rows of x, of those.
  __device__ Rows rows_of(const Tile& tile, int thread) const {
    Rows rows = {};
#pragma unroll
    for (int m = 0; m < Rows::kCount; ++m) {
      const int row = row_to_look_up(thread, m);
      if (row < tile.count) rows.of[m] = pair_of(tile, row) / p_.asked.pairs_each;
    }
    return rows;
  }
  __device__ void keep_rows(const Rows& rows, int thread, int turn) const {
    __syncwarp();  // those of the turn before the last have been read
#pragma unroll
    for (int m = 0; m < Rows::kCount; ++m) {
      const int row = row_to_look_up(thread, m);
      if (row < kManyPairs) rows_[turn * kManyPairs + row] = rows.of[m];
    }
    __syncwarp();
  }

  __device__ __forceinline__ void multiply(float (&c)[kSums]) {
    if constexpr (kFp8) {
#pragma unroll 1
      for (int left = p_.chunks; left > 0; left -= kFp8Chunks) {
        float part[kSums] = {};
        add_chunks(part, min(left, kFp8Chunks));
#pragma unroll
        for (int i = 0; i < kSums; ++i) c[i] += part[i];
      }
    } else {
      add_chunks(c, p_.chunks);
    }
  }
  __device__ __forceinline__ void add_chunks(float (&sums)[kSums], int count) {
    uint32_t given_up = 0;
    const SlotOperand pairs(slots_.slots + group() * kGroupPairs * kChunkBytes);
    const SlotOperand weights(slots_.slots + p_.x_bytes);
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      at_.wait(slots_.full);
      // Rows of x were written as by any thread, and tensor cores read them. Of the threads that
      // wrote, each would wait for all that it has on its way.
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
      const SlotOperand a = pairs.of(slots_, at_.at);
      const SlotOperand b = weights.of(slots_, at_.at);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < kChunkBytes; k += 32) {
        ProductMma<kRows, kFp8>::add(sums, a.advanced(k), b.advanced(k));
      }
      wgmma_commit();
      wgmma_wait<1>();
      if (i > 0) give_up(given_up);
      given_up = barrier_of(read_, at_.at);
      at_.next(slots_.count);
    }
    wgmma_wait<0>();
    hold(sums);
    if (count > 0) give_up(given_up);
  }
  // A tile of which this warpgroup has no pair.
  __device__ void pass_over() {
#pragma unroll 1
    for (int i = 0; i < p_.chunks; ++i) {
      at_.wait(slots_.full);
      give_up(barrier_of(read_, at_.at));
      at_.next(slots_.count);
    }
  }
  // Of the tile's pairs.
  __device__ static uint32_t group() {
    return Turns::kCount > 1 ? 0 : Turns::warpgroup();
  }
  // Of the tile, of the two that the thread has sums of.
  __device__ static int row_of(int half) {
    return static_cast<int>(threadIdx.x) % (128 * kGroups) / 32 * 16 + 8 * half +
           static_cast<int>(threadIdx.x) % 32 / 4;
  }

  // And the first two of its columns, of each 8.
  __device__ static int lane_column() {
    return 2 * static_cast<int>(threadIdx.x % 4);
  }

  // The two of a tile that a thread has sums of.
  struct Pairs {
    int of[2];
  };
  __device__ __forceinline__ Pairs pairs_of(const Tile& tile) const {
    return {pair_of(tile, row_of(0)), pair_of(tile, row_of(1))};
  }
  // What a thread reads of scales and biases before it multiplies: of its two pairs, and of some
  // rows of W, for its warpgroup.
  struct Terms {
    static constexpr int kCount = (kRows + 127) / 128;
    Pairs pairs;
    float x_scales[2];
    float scales[kCount];
    float biases[kCount];
  };
  __device__ __forceinline__ Terms terms_of(const Tile& tile, const Pairs& pairs) const {
    const ExpertProductParams& asked = p_.asked;
    Terms terms;
    terms.pairs = pairs;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      terms.x_scales[half] =
          asked.x_scale == nullptr
              ? 1.0f
              : load_now(asked.x_scale + terms.pairs.of[half] / asked.pairs_each);
    }
#pragma unroll
    for (int i = 0; i < Terms::kCount; ++i) {
      const auto at = static_cast<int>(128 * i + threadIdx.x % 128);
      const int64_t row = weight_row(tile, at);
      const float scale = kOfCodes ? kCodeUnit : 1.0f;
      terms.scales[i] = row < 0 || asked.w_scale == nullptr ? scale : load_now(asked.w_scale + row);
      terms.biases[i] = row < 0 ? kNoBias : bias_of(asked.bias, row);
    }
    return terms;
  }
  // Of all experts' rows; below 0: past those of the expert.
  __device__ int64_t weight_row(const Tile& tile, int at) const {
    const auto out = static_cast<int>(p_.asked.out);
    const int in_half = kGated && at >= kHalf ? at - kHalf : at;
    const int half = kGated && at >= kHalf ? out / 2 : 0;
    const int end = kGated ? out / 2 : out;
    if (at >= kRows || tile.column + in_half >= end) return -1;
    return int64_t{tile.expert} * out + half + tile.column + in_half;
  }
  __device__ __forceinline__ void keep(const Terms& terms) const {
#pragma unroll
    for (int i = 0; i < Terms::kCount; ++i) {
      const auto at = static_cast<int>(128 * i + threadIdx.x % 128);
      if (at >= kRows) break;
      scales_[at] = terms.scales[i];
      biases_[at] = terms.biases[i];
    }
  }
  __device__ static void sync_group() {
    asm volatile("bar.sync %0, 128;" ::"r"(1 + Turns::warpgroup()) : "memory");
  }

  // It is unrolled, so it is short: most of what a long one costs is to fetch its code.
  __device__ __forceinline__ void write(float (&c)[kSums], const Tile& tile,
                                        const Terms& terms) const {
    const auto out = static_cast<int>(kGated ? p_.asked.out / 2 : p_.asked.out);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      // Eight rows of a warp follow each other: none of them may be there.
      if (row_of(half) - static_cast<int>(threadIdx.x) % 32 / 4 >= tile.count) break;
      const bool is_there = row_of(half) < tile.count;
      const int left = is_there ? min(kColumns, out - tile.column) : 0;
      auto* const to = static_cast<__nv_bfloat16*>(p_.asked.y) +
                       int64_t{terms.pairs.of[half]} * out + tile.column;
      if (out % 8 == 0) {
        write_eights(c, half, terms.x_scales[half], to, left);
      } else {
        write_each(c, half, terms.x_scales[half], to, left);
      }
    }
  }
  // The thread's columns of the i-th eight of y.
  __device__ __forceinline__ float2 finished_pair(const float (&c)[kSums], int i, int half,
                                                  float x_scale) const {
    const auto of = [&](int eight) -> float2 {
      const auto scale = *reinterpret_cast<const float2*>(scales_ + 8 * eight + lane_column());
      const auto bias = *reinterpret_cast<const float2*>(biases_ + 8 * eight + lane_column());
      return {finished(c[4 * eight + 2 * half], x_scale * scale.x, bias.x),
              finished(c[4 * eight + 2 * half + 1], x_scale * scale.y, bias.y)};
    };
    const float2 first = of(i);
    if constexpr (!kGated) return first;
    const float2 up = of(i + kHalf / 8);
    return {gated(first.x, up.x, p_.asked.activation), gated(first.y, up.y, p_.asked.activation)};
  }
  // Of each eight a lane of four has two columns, which are 4 bytes.
  __device__ __forceinline__ void write_eights(const float (&c)[kSums], int half, float x_scale,
                                               __nv_bfloat16* to, int left) const {
#pragma unroll
    for (int i = 0; i < kColumns / 8; ++i) {
      // Of few pairs the registers are there to work out all of them at once.
      if constexpr (kGroups > 1) {
        if (8 * i >= left) break;
      }
      const float2 pair = finished_pair(c, i, half, x_scale);
      if (8 * i >= left) continue;
      *reinterpret_cast<__nv_bfloat162*>(to + 8 * i + lane_column()) =
          __floats2bfloat162_rn(pair.x, pair.y);
    }
  }
  __device__ __forceinline__ void write_each(const float (&c)[kSums], int half, float x_scale,
                                             __nv_bfloat16* to, int left) const {
#pragma unroll
    for (int i = 0; i < kColumns / 8; ++i) {
      const int column = 8 * i + lane_column();
      const float2 pair = finished_pair(c, i, half, x_scale);
      if (column < left) to[column] = __float2bfloat16_rn(pair.x);
      if (column + 1 < left) to[column + 1] = __float2bfloat16_rn(pair.y);
    }
  }

  const TileParams& p_;
  FetchRing slots_;
  Codes codes_;
  uint32_t read_;  // barriers, one a slot
  float* scales_;  // of the thread's warpgroup
  float* biases_;
  int* rows_;
  RingWalk at_;  // of the warps that multiply: what is read next
  int num_tiles_ = 0;
  int4 first_run_ = {};
};

template <int kGroups, int kRows, ExpertForm kForm, bool kGated>
__global__ void __launch_bounds__(ExpertTiles<kGroups, kRows, kForm, kGated>::kThreads, 1)
    expert_product_kernel(const __grid_constant__ TileParams p) {
  extern __shared__ __align__(1024) uint8_t shared[];
  using Tiles = ExpertTiles<kGroups, kRows, kForm, kGated>;
  Tiles tiles(p, shared);
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
  constexpr int kFetchWarp = Tiles::kMmaThreads / 32;
  if (threadIdx.x == 0) tiles.init();
  __syncthreads();
  if (warp >= kFetchWarp) {
    if constexpr (kGroups > 1 || Tiles::kOfCodes) {
      asm volatile(
          "setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(static_cast<int>(Tiles::kOtherRegisters)));
    }
    if (warp == kFetchWarp) {
      // No kernel writes W.
      if (!p.asked.list_is_old) dependency_wait();
      if (threadIdx.x % 32 == 0) {
        if constexpr (Tiles::kOfCodes) {
          tiles.begin();
          tiles.fetch_codes();
        } else {
          prefetch_map(p.weight);
          tiles.begin();
          tiles.fetch_weights();
        }
      }
      __syncwarp();
      if (p.asked.list_is_old) dependency_wait();
      dependency_trigger();
    } else {
      dependency_wait();
      dependency_trigger();
      tiles.begin();
      const int thread = static_cast<int>(threadIdx.x) - Tiles::kMmaThreads;
      if (thread < kFetchThreads) {
        tiles.fetch_tokens(thread - 32);
      } else if constexpr (Tiles::kOfCodes) {
        tiles.expand_codes(thread - kFetchThreads);
      }
    }
  } else {
    if constexpr (kGroups > 1 || Tiles::kOfCodes) {
      asm volatile(
          "setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(static_cast<int>(Tiles::kMmaRegisters)));
    }
    dependency_wait();
    dependency_trigger();
    tiles.begin();
    tiles.write_tiles();
  }
}

template <int kGroups, int kRows, ExpertForm kForm, bool kGated>
cudaError_t launch_shape(const ExpertProductParams& asked, int32_t num_sms, cudaStream_t stream) {
  using Tiles = ExpertTiles<kGroups, kRows, kForm, kGated>;
  TileParams p;
  p.asked = asked;
  p.row_tiles = static_cast<int32_t>(ratio_up(kGated ? asked.out / 2 : asked.out, Tiles::kColumns));
  p.chunks = static_cast<int32_t>(ratio_up(asked.in * (Tiles::kFp8 ? 1 : 2), kChunkBytes));
  p.x_bytes = asked.list.run_pairs * kChunkBytes;
  p.slots = std::min(kMostSlots,
                     kRingBytes<kForm> / (p.x_bytes + static_cast<int32_t>(2 * Tiles::kHalfBytes)));
  // Two slots are made of a chunk of codes, and one is given up when the next one is there.
  if (Tiles::kOfCodes && p.slots < 3) return cudaErrorInvalidValue;
  cudaError_t error = cudaSuccess;
  if constexpr (!Tiles::kOfCodes) {
    EncodeTensorMap encode = nullptr;
    error = find_tensor_map_encoder(&encode);
    if (error != cudaSuccess) return error;
    GemvParams rows;
    rows.in = asked.in;
    rows.is_fp8 = Tiles::kFp8;
    if (!encode_rows(encode, asked.weight, asked.experts * asked.out, rows, Tiles::kHalf,
                     p.weight)) {
      return cudaErrorInvalidValue;
    }
  }
  auto* const kernel = expert_product_kernel<kGroups, kRows, kForm, kGated>;
  error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  if (error != cudaSuccess) return error;
  const int64_t blocks = std::min<int64_t>(num_sms, asked.most_runs * p.row_tiles);
  return launch_pdl(kernel, dim3(static_cast<unsigned>(blocks)), dim3(Tiles::kThreads),
                    kSharedBytes, stream, p);
}

template <ExpertForm kForm, bool kGated>
cudaError_t launch_pairs(const ExpertProductParams& asked, int32_t num_sms, cudaStream_t stream) {
  constexpr int kFewest = kGated ? 48 : 64;
  constexpr int kFew = kGated ? 96 : 128;
  constexpr int kMany = kForm == ExpertForm::kBf16 ? 192 : 128;
  if (asked.list.run_pairs <= kFewestPairs) {
    return launch_shape<1, kFewest, kForm, kGated>(asked, num_sms, stream);
  }
  if (asked.list.run_pairs <= kFewPairs) {
    return launch_shape<1, kFew, kForm, kGated>(asked, num_sms, stream);
  }
  return launch_shape<kMostGroups, kMany, kForm, kGated>(asked, num_sms, stream);
}

template <ExpertForm kForm>
cudaError_t launch_form(const ExpertProductParams& asked, int32_t num_sms, cudaStream_t stream) {
  return asked.is_gated ? launch_pairs<kForm, true>(asked, num_sms, stream)
                        : launch_pairs<kForm, false>(asked, num_sms, stream);
}

}  // namespace

cudaError_t launch_expert_product(const ExpertProductParams& asked, int32_t num_sms,
                                  cudaStream_t stream) {
  if (asked.most_runs == 0 || asked.out == 0) return cudaSuccess;
  if (asked.form == ExpertForm::kLow &&
      (!expert_product_takes(asked.form, asked.in, asked.out, asked.is_gated) ||
       (asked.is_gated && !asked.interleaves))) {
    return cudaErrorInvalidValue;
  }
  if (few_pairs_take(asked)) return launch_few_pairs(asked, num_sms, stream);
  const int32_t run = asked.list.run_pairs;
  const bool fits = expert_product_takes(asked.form, asked.in, asked.out, asked.is_gated) &&
                    run % 8 == 0 && run >= 8 && (run <= kFewPairs || run == kManyPairs) &&
                    asked.experts * asked.out < int64_t{1} << 31;
  if (!fits) return cudaErrorInvalidValue;
  switch (asked.form) {
    case ExpertForm::kBf16:
      return launch_form<ExpertForm::kBf16>(asked, num_sms, stream);
    case ExpertForm::kE4m3:
      return launch_form<ExpertForm::kE4m3>(asked, num_sms, stream);
    case ExpertForm::kE2m1:
      return launch_form<ExpertForm::kE2m1>(asked, num_sms, stream);
    case ExpertForm::kLow:  // few_pairs.h
      break;
  }
  return cudaErrorInvalidValue;
}

}  // namespace rudder::cuda
