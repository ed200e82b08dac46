#include "rudder/cuda/kernels/launch.h"
#include "rudder/cuda/kernels/states/chunk_runs.cuh"
#include "rudder/cuda/kernels/states/chunk_tiles.cuh"

namespace rudder::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kBlocks = 5;  // of a multiprocessor

struct SolveShared {
  struct Rows {
    ChunkTile<kChunkKeys> q;
    ChunkTile<kChunkKeys> k;
  };
  struct System {
    alignas(16) float a[kChunk][kChunk + 4];  // [i][t], so that a column's rows are side by side
    float solved[kChunk][kChunk + 8];         // T[t][i]
  };
  union {
    Rows rows;
    System system;  // once nobody reads rows
  };
  double sums[kChunk];  // G
  float beta[kChunk];
  float of_query[kChunk];  // 1 / |q| / sqrt(key_dim)
  float of_key[kChunk];    // 1 / |k|
};

template <bool kDelta>
class SolveBlock {
 public:
  __device__ SolveBlock(const RecurParams& p, SolveShared& shared)
      : p_(p),
        shared_(shared),
        thread_(static_cast<int>(threadIdx.x)),
        warp_(thread_ / 32),
        lane_(thread_ % 32),
        head_(static_cast<int>(blockIdx.y)),
        key_head_(head_ / (p.value_heads / p.key_heads)) {}

  __device__ void run(const ChunkOfRun& found, uint8_t* record) {
    send_rows(found);
    if (warp_ == 0) sum_decays(found);
    end_group();
    wait_for_groups<0>();
    __syncthreads();
    find_lengths();
    multiply();
    __syncthreads();  // the rows make room
    store_mixed(record);
    store_factors(record);
    if constexpr (kDelta) {
      write_system();
      __syncthreads();
      if (warp_ < kChunk / 32) solve();
      __syncthreads();
      store_solved(record);
    }
  }

 private:
  __device__ void send_rows(const ChunkOfRun& found) const {
    const auto* const row =
        static_cast<const Bf16*>(p_.qkv) + found.begin * p_.qkv_stride + key_head_ * p_.key_dim;
    const bool is_aligned = has_aligned_rows(p_);
    send_tile<kThreads>(shared_.rows.q, row + p_.q_begin, p_.qkv_stride, found.count, p_.key_dim,
                        is_aligned, thread_);
    send_tile<kThreads>(shared_.rows.k, row + p_.k_begin, p_.qkv_stride, found.count, p_.key_dim,
                        is_aligned, thread_);
  }

  // By one warp: sums in double, as their differences are what counts.
  __device__ void sum_decays(const ChunkOfRun& found) const {
    constexpr float kLeast = -1e30f;  // of which sums and differences are numbers
    const float rate = expf(p_.a_log[head_]);
    const float bias = p_.step_bias[head_];
    double sum[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int t = 2 * lane_ + i;
      float beta = 0.0f;
      if (t < found.count) {
        const int64_t token = found.begin + t;
        const auto* const gates =
            static_cast<const Bf16*>(p_.gates.rows) + token * p_.gates.stride + head_;
        const auto* const of_b =
            static_cast<const Bf16*>(p_.gates.b_rows) + token * p_.gates.b_stride + head_;
        const float a = __bfloat162float(gates[p_.gates.a_begin]);
        const float step = fminf(fmaxf(softplus(__fadd_rn(a, bias)), p_.step_low), p_.step_high);
        beta = p_.gates.b_begin < 0 ? step : sigmoid(__bfloat162float(of_b[p_.gates.b_begin]));
        sum[i] = fmaxf(-__fmul_rn(rate, step), kLeast);
      }
      shared_.beta[t] = beta;
    }
    double total = sum[0] + sum[1];  // of the lanes up to this one
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const double other = __shfl_up_sync(kAllLanes, total, step);
      if (lane_ >= step) total += other;
    }
    shared_.sums[2 * lane_] = total - sum[1];
    shared_.sums[2 * lane_ + 1] = total;
  }

  // A thread has a row of q or of k.
  __device__ void find_lengths() const {
    const int t = thread_ % kChunk;
    const bool is_query = thread_ < kChunk;
    float factor = 1.0f;
    if constexpr (kDelta) {
      const Bf16* const row = is_query ? shared_.rows.q.rows[t] : shared_.rows.k.rows[t];
      float squares = 0.0f;
#pragma unroll 4
      for (int i = 0; i < kChunkKeys; i += kRun) {
        const Floats x = unpack(load_run<true>(row + i, kRun));
#pragma unroll
        for (const float v : x.v) squares = fmaf(v, v, squares);
      }
      factor = __fdiv_rn(is_query ? 1.0f / sqrtf(static_cast<float>(p_.key_dim)) : 1.0f,
                         sqrtf(__fadd_rn(squares, kLengthEps)));
    }
    (is_query ? shared_.of_query : shared_.of_key)[t] = factor;
  }

  // 16 rows of q k^T and k k^T, up to the diagonal.
  __device__ void multiply() {
#pragma unroll
    for (int step = 0; step < kChunkKeys / 16; ++step) {
      uint32_t q[4];
      uint32_t k[4];
      load_matrices(q, shared_.rows.q.rows_first(16 * warp_, 16 * step));
      if constexpr (kDelta) load_matrices(k, shared_.rows.k.rows_first(16 * warp_, 16 * step));
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (i > warp_) continue;
        uint32_t by[4];
        load_matrices(by, shared_.rows.k.columns_first(16 * i, 16 * step));
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          mma<false>(qk_[2 * i + half], q, by[2 * half], by[2 * half + 1]);
          if constexpr (kDelta) mma<false>(kk_[2 * i + half], k, by[2 * half], by[2 * half + 1]);
        }
      }
    }
  }

  // The token of a row, and that of a column, of element e of tile `tile` of qk_ and kk_.
  __device__ int row_of(int e) const {
    return 16 * warp_ + lane_ / 4 + e / 2 * 8;
  }
  __device__ int column_of(int tile, int e) const {
    return 8 * tile + lane_ % 4 * 2 + e % 2;
  }
  __device__ float decay_between(int t, int i) const {
    return expf(static_cast<float>(shared_.sums[t] - shared_.sums[i]));
  }

  __device__ void store_mixed(uint8_t* record) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i > warp_) continue;
#pragma unroll
      for (int tile = 2 * i; tile < 2 * i + 2; ++tile) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int t = row_of(e);
          const int k = column_of(tile, e);
          const float decay = k <= t ? decay_between(t, k) * shared_.of_key[k] : 0.0f;
          qk_[tile][e] *= decay * shared_.of_query[t];
          if constexpr (kDelta) {
            kk_[tile][e] *= k < t ? decay * shared_.of_key[t] * shared_.beta[t] : 0.0f;
          }
        }
      }
      const float(&first)[4] = qk_[2 * i];
      const float(&second)[4] = qk_[2 * i + 1];
      reinterpret_cast<uint4*>(record + ChunkRecord::kMixedBegin +
                               ChunkRecord::mixed_unit(warp_, i) * ChunkRecord::kUnitBytes)[lane_] =
          make_uint4(pack_upper(first[0], first[1]), pack_upper(second[0], second[1]),
                     pack_upper(first[2], first[3]), pack_upper(second[2], second[3]));
    }
  }

  __device__ void store_factors(uint8_t* record) const {
    const int t = thread_;
    if (t >= kChunk) return;
    const double end = shared_.sums[kChunk - 1];
    const float decay = expf(static_cast<float>(shared_.sums[t]));
    const float key = shared_.of_key[t];
    const ChunkFactors factors = {shared_.beta[t], shared_.beta[t] * key * decay,
                                  shared_.of_query[t] * decay,
                                  key * expf(static_cast<float>(end - shared_.sums[t]))};
    reinterpret_cast<ChunkFactors*>(record + ChunkRecord::kFactorsBegin)[t] = factors;
    if (t == 0) {
      *reinterpret_cast<float*>(record + ChunkRecord::kEndBegin) = expf(static_cast<float>(end));
    }
  }

  __device__ void write_system() const {
#pragma unroll
    for (int tile = 0; tile < 8; ++tile) {
      if (tile / 2 > warp_) continue;
#pragma unroll
      for (int e = 0; e < 4; ++e) shared_.system.a[column_of(tile, e)][row_of(e)] = kk_[tile][e];
    }
  }

  // A thread has a column of T, from the warp's first row on: 16 rows at a time, first what rows
  // above them give, then what they give each other.
  __device__ void solve() const {
    SolveShared::System& system = shared_.system;
    const int first = 32 * warp_;
    for (int begin = first; begin < kChunk; begin += 16) {
      float sums[16];
#pragma unroll
      for (int r = 0; r < 16; ++r) sums[r] = begin + r == thread_ ? 1.0f : 0.0f;
#pragma unroll 4
      for (int i = first; i < begin; ++i)
        subtract(sums, system.a[i] + begin, system.solved[i][thread_]);
#pragma unroll
      for (int r = 0; r < 16; ++r) {
        system.solved[begin + r][thread_] = sums[r];
        // Rows up to r get 0 times what they have: A is 0 on and above its diagonal.
        subtract(sums, system.a[begin + r] + begin, sums[r], r + 1);
      }
    }
  }
  __device__ static void subtract(float (&sums)[16], const float* of_rows, float x, int least = 0) {
#pragma unroll
    for (int four = 0; four < 4; ++four) {
      if (4 * four + 3 < least) continue;
      const float4 by = reinterpret_cast<const float4*>(of_rows)[four];
      const float each[4] = {by.x, by.y, by.z, by.w};
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (4 * four + e >= least) sums[4 * four + e] = fmaf(-each[e], x, sums[4 * four + e]);
      }
    }
  }

  __device__ void store_solved(uint8_t* record) const {
    store_tokens(record, warp_);
    store_tokens(record, 7 - warp_);  // as many units for every warp
  }
  __device__ void store_tokens(uint8_t* record, int n) const {
    const float* const row = shared_.system.solved[8 * n + lane_ / 4] + lane_ % 4 * 2;
    for (int k = 0; k <= n / 2; ++k) {
      const float2 x = *reinterpret_cast<const float2*>(row + 16 * k);
      const float2 y = *reinterpret_cast<const float2*>(row + 16 * k + 8);
      const uint32_t upper_x = pack_upper(x.x, x.y);
      const uint32_t upper_y = pack_upper(y.x, y.y);
      reinterpret_cast<uint4*>(record +
                               ChunkRecord::solved_unit(n, k) * ChunkRecord::kUnitBytes)[lane_] =
          make_uint4(upper_x, upper_y, pack_lower(x.x, x.y, upper_x),
                     pack_lower(y.x, y.y, upper_y));
    }
  }

  const RecurParams& p_;
  SolveShared& shared_;
  const int thread_;
  const int warp_;
  const int lane_;
  const int head_;
  const int key_head_;
  float qk_[8][4] = {};
  float kk_[8][4] = {};
};

template <bool kDelta>
__global__ void __launch_bounds__(kThreads, kBlocks) solve_chunks_kernel(const RecurParams p) {
  __shared__ SolveShared shared;
  dependency_wait();
  const auto tile = static_cast<int>(blockIdx.x) / 2;
  const bool is_first = blockIdx.x % 2 != 0;
  const ChunkOfRun found = find_chunk(p.state, tile, is_first);
  if (found.seq >= 0) {
    const int64_t slot = chunk_slot(found.begin, is_first);
    SolveBlock<kDelta> block(p, shared);
    block.run(found, p.chunks + (slot * p.value_heads + blockIdx.y) * ChunkRecord::kBytes);
  }
  dependency_trigger();
}

}  // namespace

cudaError_t launch_solve_chunks(const RecurParams& p, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(chunk_slots(p.state.tokens)),
                  static_cast<unsigned>(p.value_heads));
  const auto kernel =
      p.rule == ops::RecurRule::kDelta ? solve_chunks_kernel<true> : solve_chunks_kernel<false>;
  return launch_pdl(kernel, grid, dim3(kThreads), 0, stream, p);
}

}  // namespace rudder::cuda
