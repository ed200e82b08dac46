// The kernel of few_pairs.h, and its launch. Included by .cu files only.
#pragma once

#include <algorithm>

#include "rudder/cuda/kernels/device_barrier.cuh"
#include "rudder/cuda/kernels/experts/few_pairs.h"
#include "rudder/cuda/kernels/experts/few_pairs_forms.cuh"
#include "rudder/cuda/kernels/experts/gate_experts.cuh"
#include "rudder/cuda/kernels/launch.h"
#include "rudder/cuda/kernels/products/product_finish.cuh"

namespace rudder::cuda {

constexpr int kTeamWarps = 4;  // each has every fourth chunk
constexpr int kMostFewEights = 4;
constexpr int kMostFewShared = 227 << 10;

struct FewWork {
  ExpertProductParams asked;
  int32_t chunks = 0;
  int32_t own_chunks = 0;  // of a warp, of a tile; some may not be there
  int32_t units = 0;       // 16 rows of an expert
  int32_t tiles = 0;       // kUnits of them
  int32_t cuts = 0;        // of a run, by the tokens of a block
  uint32_t stride = 0;     // bytes of a token in shared memory
};

// What the kernel in front wrote, or one further on, read where it stands.
__device__ __forceinline__ int32_t read_list(const int32_t* from) {
  int32_t value;
  asm volatile("ld.global.cg.b32 %0, [%1];" : "=r"(value) : "l"(from));
  return value;
}
__device__ __forceinline__ int4 read_list(const ExpertRun* from) {
  int4 value;
  asm volatile("ld.global.cg.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(from));
  return value;
}

template <typename Form, int kUnits, int kEights>
class FewPairs {
 public:
  static constexpr int kTeams = kEights <= 2 ? 4 : 2;
  static constexpr int kWarps = kTeams * kTeamWarps;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kTokens = 8 * kEights;
  static constexpr int kPieces = kUnits * kEights;  // of a tile, by 16 rows and 8 tokens
  // Chunks that a lane has on their way.
  static constexpr int kDepth = kUnits == 1 ? 4 : 2;

  // Behind the tokens.
  struct Shared {
    float4 sums[kTeams][kTeamWarps][kPieces][32];
    int32_t pairs[kTokens];
    float x_scales[kTokens];
  };
  static size_t shared_bytes(const FewWork& p) {
    return kTokens * size_t{p.stride} + sizeof(Shared);
  }

  __device__ FewPairs(const FewWork& p, uint8_t* memory)
      : p_(p),
        shared_(*reinterpret_cast<Shared*>(memory + kTokens * p.stride)),
        tokens_(shared_address(memory)) {
    lane_ = static_cast<int>(threadIdx.x) % 32;
    const int warp = static_cast<int>(threadIdx.x) / 32;
    quarter_ = warp % kTeamWarps;
    team_ = warp / kTeamWarps;
  }

  __device__ void run() {
    const ExpertList& list = p_.asked.list;
    bool has_waited = false;
    const auto wait = [&] {
      if (has_waited) return;
      dependency_wait();
      dependency_trigger();
      has_waited = true;
    };
    if (!p_.asked.list_is_old) wait();
    const int64_t all = int64_t{read_list(list.num_runs)} * p_.cuts * p_.tiles;
    int64_t at = all * blockIdx.x / gridDim.x;
    const int64_t end = all * (blockIdx.x + 1) / gridDim.x;
#pragma unroll 1
    while (at < end) {
      const auto cut = static_cast<int32_t>(at / p_.tiles);
      first_tile_ = static_cast<int32_t>(at - int64_t{cut} * p_.tiles);
      num_tiles_ = static_cast<int32_t>(min(end - at, int64_t{p_.tiles - first_tile_}));
      at += num_tiles_;
      const int4 run = read_list(list.runs + cut / p_.cuts);
      const int32_t first = cut % p_.cuts * kTokens;
      expert_ = run.x;
      count_ = min(kTokens, run.z - first);
      if (count_ <= 0) continue;
      int32_t pair = 0;
      const auto thread = static_cast<int>(threadIdx.x);
      if (thread < count_) pair = read_list(list.pairs + run.y + first + thread);
      begin_tiles();  // no kernel writes W: it is on its way before the kernel in front has ended
      wait();
      __syncthreads();  // what the run in front had there has been read
      if (thread < count_) keep_pair(thread, pair);
      __syncthreads();
      bring_tokens();
      __syncthreads();
      multiply_tiles();
    }
    wait();
  }

 private:
  using Parts = typename Form::Part[kUnits];
  using Sums = FewSums<kUnits, kEights>;

  // The tile and chunk whose W is asked for next.
  struct Ahead {
    int32_t tile;
    int32_t chunk;
  };

  __device__ __forceinline__ int32_t unit_of(int32_t tile, int u) const {
    return (first_tile_ + tile) * kUnits + u;
  }
  __device__ __forceinline__ FewRows rows_of(int32_t unit) const {
    const bool in_turn = p_.asked.is_gated || p_.asked.interleaves;
    return {expert_, unit, in_turn ? 8 * unit : 16 * unit,
            in_turn ? static_cast<int32_t>(p_.asked.out / 2) + 8 * unit : 16 * unit + 8};
  }

  __device__ __forceinline__ void load_next(Parts& parts) {
    const int32_t chunk = ahead_.chunk * kTeamWarps + quarter_;
    if (ahead_.tile < num_tiles_ && chunk < p_.chunks) {
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
        const int32_t unit = unit_of(ahead_.tile, u);
        if (unit < p_.units) Form::load(p_.asked, rows_of(unit), chunk, lane_, parts[u]);
      }
    }
    if (++ahead_.chunk < p_.own_chunks) return;
    ahead_.chunk = 0;
    ahead_.tile += kTeams;
  }
  __device__ __forceinline__ void begin_tiles() {
    ahead_ = {team_, 0};
#pragma unroll
    for (int d = 0; d < kDepth; ++d) load_next(parts_[d]);
  }

  __device__ __forceinline__ void keep_pair(int token, int32_t pair) const {
    shared_.pairs[token] = pair;
    shared_.x_scales[token] =
        p_.asked.x_scale == nullptr ? 1.0f : p_.asked.x_scale[pair / p_.asked.pairs_each];
  }
  // Rows of x of the run's pairs, in pieces of 16 bytes; zeros up to a whole eight of tokens, and
  // behind the last input.
  __device__ __forceinline__ void bring_tokens() const {
    constexpr int kChunkPieces = Form::kRowBytes / 16;
    const int pieces = p_.chunks * kChunkPieces;
    const auto there = static_cast<int>(p_.asked.in * Form::kRowBytes / Form::kChunk / 16);
    const int tokens = (count_ + 7) / 8 * 8;
    const auto* const x = static_cast<const uint8_t*>(p_.asked.x);
    for (int i = static_cast<int>(threadIdx.x); i < tokens * pieces; i += kThreads) {
      const int token = i / pieces;
      const int piece = i - token * pieces;
      const bool is_there = token < count_ && piece < there;
      const int32_t row = is_there ? shared_.pairs[token] / p_.asked.pairs_each : 0;
      const uint8_t* const from = is_there ? x + (int64_t{row} * there + piece) * 16 : x;
      const int index = piece / kChunkPieces * kChunkPieces + Form::index_of(piece % kChunkPieces);
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                       tokens_ + static_cast<uint32_t>(token) * p_.stride +
                       static_cast<uint32_t>(index) * 16),
                   "l"(from), "r"(is_there ? 16 : 0)
                   : "memory");
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
  }

  // What the end of a tile reads of each of the lane's two rows, for the pieces that the warp ends.
  struct Terms {
    static constexpr int kCount = (kPieces + kTeamWarps - 1) / kTeamWarps;
    float scales[kCount][2];
    float biases[kCount][2];
  };
  // The warp's m-th piece.
  __device__ __forceinline__ int piece_of(int m) const {
    return m * kTeamWarps + quarter_;
  }
  __device__ __forceinline__ Terms terms_of(int32_t tile) const {
    const ExpertProductParams& asked = p_.asked;
    Terms terms = {};
#pragma unroll
    for (int m = 0; m < Terms::kCount; ++m) {
      const int32_t unit = unit_of(tile, piece_of(m) / kEights);
      if (piece_of(m) >= kPieces || unit >= p_.units) continue;
      const FewRows rows = rows_of(unit);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int64_t row =
            expert_ * asked.out + (half == 0 ? rows.first : rows.second) + lane_ / 4;
        terms.biases[m][half] = bias_of(asked.bias, row);
        terms.scales[m][half] = Form::kUnit;
        if constexpr (Form::kScalesRows) {
          // Those of LowBits are as its rows lie.
          const int64_t own = expert_ * asked.out + 16 * unit + 8 * half + lane_ / 4;
          terms.scales[m][half] = asked.w_scale[asked.form == ExpertForm::kLow ? own : row];
        }
      }
    }
    return terms;
  }

  __device__ __forceinline__ void multiply_tiles() {
    const FewTokens first_chunk = {tokens_ + Form::lane_offset(lane_, p_.stride), p_.stride,
                                   (count_ + 7) / 8};
#pragma unroll 1
    for (int32_t tile = team_; tile < num_tiles_; tile += kTeams) {
      const Terms terms = terms_of(tile);
      Sums c = {};
#pragma unroll 1
      for (int32_t i = 0; i < p_.own_chunks; i += kDepth) {
#pragma unroll
        for (int d = 0; d < kDepth; ++d) {
          const int32_t chunk = (i + d) * kTeamWarps + quarter_;
          if (chunk < p_.chunks) {
            FewTokens x = first_chunk;
            x.at += static_cast<uint32_t>(chunk) * Form::kRowBytes;
            Form::template multiply_chunk<kUnits, kEights>(p_.asked, parts_[d], x, lane_, c);
          }
          load_next(parts_[d]);
        }
      }
      finish(tile, c, terms);
    }
  }

  __device__ __forceinline__ void sync_team() const {
    asm volatile("bar.sync %0, 128;" ::"r"(1 + team_) : "memory");
  }
  __device__ __forceinline__ void finish(int32_t tile, const Sums& c, const Terms& terms) const {
    auto& sums = shared_.sums[team_];
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
#pragma unroll
      for (int n = 0; n < kEights; ++n) {
        const float(&four)[4] = c[u][n];
        sums[quarter_][u * kEights + n][lane_] = make_float4(four[0], four[1], four[2], four[3]);
      }
    }
    sync_team();
#pragma unroll
    for (int m = 0; m < Terms::kCount; ++m) {
      const int piece = piece_of(m);
      if (piece >= kPieces) break;
      const int32_t unit = unit_of(tile, piece / kEights);
      if (unit >= p_.units || piece % kEights * 8 >= count_) continue;
      float4 sum = sums[0][piece][lane_];
#pragma unroll
      for (int q = 1; q < kTeamWarps; ++q) {
        const float4 more = sums[q][piece][lane_];
        sum.x += more.x;
        sum.y += more.y;
        sum.z += more.z;
        sum.w += more.w;
      }
      const int token = piece % kEights * 8 + 2 * (lane_ % 4);
      write(unit, token, sum.x, sum.z, terms.scales[m], terms.biases[m]);
      write(unit, token + 1, sum.y, sum.w, terms.scales[m], terms.biases[m]);
    }
    sync_team();  // they have been read
  }
  // Of a token the lane's two rows.
  __device__ __forceinline__ void write(int32_t unit, int token, float first, float second,
                                        const float (&scales)[2], const float (&biases)[2]) const {
    if (token >= count_) return;
    const ExpertProductParams& asked = p_.asked;
    const float x_scale = shared_.x_scales[token];
    first = finished(first, x_scale * scales[0], biases[0]);
    second = finished(second, x_scale * scales[1], biases[1]);
    const FewRows rows = rows_of(unit);
    const int64_t out = asked.is_gated ? asked.out / 2 : asked.out;
    auto* const to = static_cast<__nv_bfloat16*>(asked.y) + shared_.pairs[token] * out + lane_ / 4;
    if (asked.is_gated) {
      to[rows.first] = __float2bfloat16_rn(gated(first, second, asked.activation));
    } else {
      to[rows.first] = __float2bfloat16_rn(first);
      to[rows.second] = __float2bfloat16_rn(second);
    }
  }

  const FewWork& p_;
  Shared& shared_;
  const uint32_t tokens_;
  int lane_;
  int quarter_;  // of the warp in its team
  int team_;
  int32_t expert_ = 0;
  int32_t count_ = 0;  // tokens
  int32_t first_tile_ = 0;
  int32_t num_tiles_ = 0;
  Ahead ahead_ = {};
  Parts parts_[kDepth];
};

template <typename Form, int kUnits, int kEights>
__global__ void __launch_bounds__(FewPairs<Form, kUnits, kEights>::kThreads, 1)
    few_pairs_kernel(const __grid_constant__ FewWork p) {
  extern __shared__ __align__(128) uint8_t memory[];
  FewPairs<Form, kUnits, kEights>(p, memory).run();
}

// With as many eights of tokens as a run has and as fit; zero if not even one does.
template <typename Form, int kUnits, int kEights>
cudaError_t launch_few(const ExpertProductParams& asked, int32_t num_sms, cudaStream_t stream) {
  using Kernel = FewPairs<Form, kUnits, kEights>;
  FewWork p;
  p.asked = asked;
  p.chunks = static_cast<int32_t>((asked.in + Form::kChunk - 1) / Form::kChunk);
  const int32_t own = (p.chunks + kTeamWarps - 1) / kTeamWarps;
  p.own_chunks = (own + Kernel::kDepth - 1) / Kernel::kDepth * Kernel::kDepth;
  p.units = static_cast<int32_t>(asked.out / 16);
  p.tiles = (p.units + kUnits - 1) / kUnits;
  p.cuts = (asked.list.run_pairs + Kernel::kTokens - 1) / Kernel::kTokens;
  p.stride = static_cast<uint32_t>(p.chunks * Form::kRowBytes + Form::kPadBytes);
  const size_t bytes = Kernel::shared_bytes(p);
  if (bytes > kMostFewShared) {
    if constexpr (kEights > 1) {
      return launch_few < Form, kEights == 4 ? 2 : 1, kEights / 2 > (asked, num_sms, stream);
    }
    return cudaErrorInvalidValue;
  }
  auto* const kernel = few_pairs_kernel<Form, kUnits, kEights>;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMostFewShared);
  if (error != cudaSuccess) return error;
  const int64_t blocks = std::min<int64_t>(num_sms, asked.most_runs * p.cuts * p.tiles);
  return launch_pdl(kernel, dim3(static_cast<unsigned>(blocks)), dim3(Kernel::kThreads), bytes,
                    stream, p);
}

// By the tokens of a run.
template <typename Form>
cudaError_t launch_few_of(const ExpertProductParams& asked, int32_t num_sms, cudaStream_t stream) {
  if (asked.list.run_pairs <= 8) return launch_few<Form, 1, 1>(asked, num_sms, stream);
  if (asked.list.run_pairs <= 16) return launch_few<Form, 2, 2>(asked, num_sms, stream);
  return launch_few<Form, 2, 4>(asked, num_sms, stream);
}

}  // namespace rudder::cuda
