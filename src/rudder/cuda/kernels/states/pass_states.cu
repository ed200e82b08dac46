#include <algorithm>

#include "rudder/cuda/kernels/launch.h"
#include "rudder/cuda/kernels/states/chunk_runs.cuh"
#include "rudder/cuda/kernels/states/chunk_tiles.cuh"

namespace rudder::cuda {
namespace {

constexpr int kTakers = 2;   // warps that have 16 columns of a state each
constexpr int kSenders = 2;  // warps that fetch the next chunk
constexpr int kThreads = 32 * (kTakers + kSenders);
constexpr int kColumns = 16 * kTakers;
constexpr int kRecordRuns = ChunkRecord::kUsedBytes / 16;

struct PassStage {
  ChunkTile<kChunkKeys> q;
  ChunkTile<kChunkKeys> k;
  ChunkTile<kColumns> v;  // then out
  alignas(16) uint8_t record[ChunkRecord::kUsedBytes];
};
// Two blocks share a multiprocessor, or one has it alone and fetches further ahead.
constexpr int kStagesOfTwo = 2;
constexpr int kStagesOfOne = 4;

// Rows of a run's chunks, by the warps that send them.
class PassSender {
 public:
  __device__ PassSender(const RecurParams& p, const StatePart& part, int head)
      : p_(p),
        part_(part),
        head_(head),
        column_(static_cast<int>(blockIdx.x) * kColumns),
        is_aligned_(has_aligned_rows(p)),
        thread_(static_cast<int>(threadIdx.x) - 32 * kTakers) {}

  __device__ void send(PassStage& to, int chunk) const {
    constexpr int kOfThese = 32 * kSenders;
    const int begin = part_.begin + chunk * kChunk;
    const int count = min(kChunk, part_.count - chunk * kChunk);
    const auto* const row = static_cast<const Bf16*>(p_.qkv) + begin * p_.qkv_stride;
    const int of_keys = head_ / (p_.value_heads / p_.key_heads) * p_.key_dim;
    send_tile<kOfThese>(to.k, row + p_.k_begin + of_keys, p_.qkv_stride, count, p_.key_dim,
                        is_aligned_, thread_);
    send_tile<kOfThese>(to.q, row + p_.q_begin + of_keys, p_.qkv_stride, count, p_.key_dim,
                        is_aligned_, thread_);
    send_tile<kOfThese>(to.v, row + p_.v_begin + head_ * p_.value_dim + column_, p_.qkv_stride,
                        count, p_.value_dim - column_, is_aligned_, thread_);
    const int64_t slot = chunk_slot(begin, chunk == 0);
    const uint8_t* const record = p_.chunks + (slot * p_.value_heads + head_) * ChunkRecord::kBytes;
    const int first = p_.rule == ops::RecurRule::kDelta ? 0 : ChunkRecord::kMixedBegin / 16;
    for (int i = first + thread_; i < kRecordRuns; i += kOfThese) {
      send_run(to.record + 16 * i, record + 16 * i, true);
    }
  }

 private:
  const RecurParams& p_;
  const StatePart& part_;
  const int head_;
  const int column_;
  const bool is_aligned_;
  const int thread_;
};

// 16 columns of a head's state: rows of the transposed products, so that what one product leaves in
// registers is the left operand of the next.
template <bool kDelta>
class PassTaker {
 public:
  __device__ PassTaker(const RecurParams& p, const StatePart& part, int head)
      : p_(p),
        part_(part),
        head_(head),
        warp_(static_cast<int>(threadIdx.x) / 32),
        lane_(static_cast<int>(threadIdx.x) % 32),
        column_(static_cast<int>(blockIdx.x) * kColumns + 16 * warp_),
        skip_(p.skip == nullptr ? 0.0f : p.skip[head]) {}

  __device__ void load() {
    if (part_.of_pool == nullptr || part_.position == 0) return;
    for_each([](float& s, float& stored) { s = stored; });
  }
  __device__ void store() {
    if (part_.of_pool == nullptr) return;
    for_each([](float& s, float& stored) { stored = s; });
  }

  __device__ void take(PassStage& stage, int chunk) {
    float found[8][4] = {};   // q^T S, then out: columns of the state by tokens
    float change[8][4] = {};  // k^T S, then R, then D
    multiply_state(stage, found, change);
    make_rest(stage, change);
    if constexpr (kDelta) solve(stage, change);
    mix(stage, found, change);
    write(stage, found, chunk);
    move(stage, change);
  }

 private:
  // Of tiles of 8 columns by 8 tokens, or keys, two of which are 16 of a left operand.
  struct Operand {
    uint32_t upper[4];
    uint32_t lower[4];
  };
  __device__ static Operand operand(const float (&x)[4], const float (&y)[4]) {
    Operand of;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      of.upper[i] = pack_upper(x[2 * i], x[2 * i + 1]);
      of.lower[i] = pack_lower(x[2 * i], x[2 * i + 1], of.upper[i]);
      of.upper[2 + i] = pack_upper(y[2 * i], y[2 * i + 1]);
      of.lower[2 + i] = pack_lower(y[2 * i], y[2 * i + 1], of.upper[2 + i]);
    }
    return of;
  }

  template <typename Body>
  __device__ void for_each(const Body& body) {
    float* const head = part_.state() + int64_t{head_} * p_.key_dim * p_.value_dim;
#pragma unroll
    for (int tile = 0; tile < kChunkKeys / 8; ++tile) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int key = 8 * tile + lane_ % 4 * 2 + e % 2;
        const int column = column_ + lane_ / 4 + e / 2 * 8;
        if (key >= p_.key_dim || column >= p_.value_dim) continue;
        body(state_[tile][e], head[int64_t{key} * p_.value_dim + column]);
      }
    }
  }

  __device__ const ChunkFactors& factors_of(const PassStage& stage, int tile, int e) const {
    return reinterpret_cast<const ChunkFactors*>(
        stage.record + ChunkRecord::kFactorsBegin)[8 * tile + lane_ % 4 * 2 + e % 2];
  }
  __device__ uint4 unit(const PassStage& stage, int begin, int index) const {
    return reinterpret_cast<const uint4*>(stage.record + begin +
                                          index * ChunkRecord::kUnitBytes)[lane_];
  }

  __device__ void multiply_state(const PassStage& stage, float (&found)[8][4],
                                 float (&known)[8][4]) const {
#pragma unroll
    for (int step = 0; step < kChunkKeys / 16; ++step) {
      const Operand s = operand(state_[2 * step], state_[2 * step + 1]);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        uint32_t q[4];
        uint32_t k[4];
        load_matrices(q, stage.q.columns_first(16 * i, 16 * step));
        if constexpr (kDelta) {
          load_matrices(k, stage.k.columns_first(16 * i, 16 * step));
          mma<false>(known[2 * i], s.lower, k[0], k[1]);
          mma<false>(known[2 * i + 1], s.lower, k[2], k[3]);
        }
        mma<false>(found[2 * i], s.upper, q[0], q[1]);
        mma<false>(found[2 * i + 1], s.upper, q[2], q[3]);
        if constexpr (kDelta) {
          mma<false>(known[2 * i], s.upper, k[0], k[1]);
          mma<false>(known[2 * i + 1], s.upper, k[2], k[3]);
        }
      }
    }
  }

  // v as tiles 2i and 2i + 1 of products have it.
  __device__ void load_values(const PassStage& stage, int i, float (&v)[2][4]) const {
    uint32_t pairs[4];
    load_matrices_transposed(pairs, stage.v.columns_first(16 * i, 16 * warp_));
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      v[j / 2][j % 2 * 2] = lower_of(pairs[j]);
      v[j / 2][j % 2 * 2 + 1] = upper_of(pairs[j]);
    }
  }

  __device__ void make_rest(const PassStage& stage, float (&change)[8][4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float v[2][4];
      load_values(stage, i, v);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const int tile = 2 * i + j / 4;
        const int e = j % 4;
        const ChunkFactors& of = factors_of(stage, tile, e);
        change[tile][e] = kDelta ? of.of_value * v[j / 4][e] - of.of_known * change[tile][e]
                                 : of.of_value * v[j / 4][e];
      }
    }
  }

  // D^T = R^T T^T
  __device__ void solve(const PassStage& stage, float (&change)[8][4]) const {
    Operand rest[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) rest[k] = operand(change[2 * k], change[2 * k + 1]);
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) change[n][e] = 0.0f;
    }
    // Four sums side by side: none waits for its last product.
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (int first = 2 * k / 4 * 4; first < 8; first += 4) {
        uint4 by[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          if (first + j >= 2 * k) by[j] = unit(stage, 0, ChunkRecord::solved_unit(first + j, k));
        }
#pragma unroll
        for (int part = 0; part < 3; ++part) {
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            if (first + j < 2 * k) continue;
            const auto& of = part == 0 ? rest[k].lower : rest[k].upper;
            mma<false>(change[first + j], of, part == 1 ? by[j].z : by[j].x,
                       part == 1 ? by[j].w : by[j].y);
          }
        }
      }
    }
  }

  // out^T = exp(G) S^T q + D^T M^T
  __device__ void mix(const PassStage& stage, float (&found)[8][4],
                      const float (&change)[8][4]) const {
    uint32_t of[4][4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float(&x)[4] = change[2 * k + i / 2];
        of[k][i] = pack_upper(x[i % 2 * 2], x[i % 2 * 2 + 1]);
      }
    }
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const int tile = 2 * n + j / 4;
        found[tile][j % 4] *= factors_of(stage, tile, j % 4).of_query;
      }
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (int n = k; n < 4; ++n) {
        const uint4 by = unit(stage, ChunkRecord::kMixedBegin, ChunkRecord::mixed_unit(n, k));
        mma<false>(found[2 * n], of[k], by.x, by.y);
        mma<false>(found[2 * n + 1], of[k], by.z, by.w);
      }
    }
  }

  // Through the memory of v, which is this warp's there.
  __device__ void write(PassStage& stage, float (&out)[8][4], int chunk) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (skip_ != 0.0f) {
        float v[2][4];
        load_values(stage, i, v);
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          out[2 * i + j / 4][j % 4] = fmaf(skip_, v[j / 4][j % 4], out[2 * i + j / 4][j % 4]);
        }
      }
      const float(&x)[4] = out[2 * i];
      const float(&y)[4] = out[2 * i + 1];
      store_matrices_transposed(stage.v.columns_first(16 * i, 16 * warp_),
                                {pack_upper(x[0], x[1]), pack_upper(x[2], x[3]),
                                 pack_upper(y[0], y[1]), pack_upper(y[2], y[3])});
    }
    __syncwarp();
    const int count = min(kChunk, part_.count - chunk * kChunk);
    const int half = lane_ % 2 * kRun;
    const bool is_aligned = has_aligned_rows(p_);
    if (column_ + half >= p_.value_dim) return;
    Bf16* const to = static_cast<Bf16*>(p_.out) + int64_t{head_} * p_.value_dim + column_ + half;
    const int64_t width = int64_t{p_.value_heads} * p_.value_dim;
    for (int t = lane_ / 2; t < count; t += 16) {
      const Packed run = load_run<true>(&stage.v.rows[t][16 * warp_ + half], kRun);
      Bf16* const row = to + (part_.begin + chunk * kChunk + t) * width;
      if (is_aligned) {
        store_run<true>(row, kRun, run);
      } else {
        store_run<false>(row, p_.value_dim - column_ - half, run);
      }
    }
  }

  // S^T = exp(G_end) S^T + (exp(G_end - G) D)^T k
  __device__ void move(const PassStage& stage, float (&change)[8][4]) {
    const float end = *reinterpret_cast<const float*>(stage.record + ChunkRecord::kEndBegin);
#pragma unroll
    for (int tile = 0; tile < kChunkKeys / 8; ++tile) {
#pragma unroll
      for (int e = 0; e < 4; ++e) state_[tile][e] *= end;
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const int tile = 2 * k + j / 4;
        change[tile][j % 4] *= factors_of(stage, tile, j % 4).of_key;
      }
      const Operand of = operand(change[2 * k], change[2 * k + 1]);
#pragma unroll
      for (int i = 0; i < kChunkKeys / 16; i += 2) {
        uint32_t by[2][4];
        load_matrices_transposed(by[0], stage.k.rows_first(16 * k, 16 * i));
        load_matrices_transposed(by[1], stage.k.rows_first(16 * k, 16 * i + 16));
#pragma unroll
        for (int part = 0; part < 2; ++part) {
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            mma<false>(state_[2 * i + j], part == 0 ? of.lower : of.upper, by[j / 2][j % 2 * 2],
                       by[j / 2][j % 2 * 2 + 1]);
          }
        }
      }
    }
  }

  const RecurParams& p_;
  const StatePart& part_;
  const int head_;
  const int warp_;
  const int lane_;
  const int column_;
  const float skip_;
  float state_[kChunkKeys / 8][4] = {};
};

template <bool kDelta, int kStages>
__global__ void __launch_bounds__(kThreads, 2) pass_states_kernel(const RecurParams p) {
  extern __shared__ __align__(16) uint8_t memory[];
  auto* const stages = reinterpret_cast<PassStage*>(memory);
  dependency_wait();
  const auto head = static_cast<int>(blockIdx.y);
  const ChunkOfRun first = find_chunk(p.state, static_cast<int>(blockIdx.z), true);
  const StatePart& part = first.part;
  if (first.seq < 0) return;
  const int chunks = (part.count + kChunk - 1) / kChunk;
  if (threadIdx.x < 32 * kTakers) {
    PassTaker<kDelta> taker(p, part, head);
    taker.load();
    for (int i = 0; i < chunks; ++i) {
      __syncthreads();  // the chunk is there
      taker.take(stages[i % kStages], i);
    }
    dependency_trigger();
    taker.store();
  } else {
    const PassSender sender(p, part, head);
    const auto send = [&](int chunk) {
      if (chunk < chunks) sender.send(stages[chunk % kStages], chunk);
      end_group();
    };
    for (int i = 0; i + 1 < kStages; ++i) send(i);
    for (int i = 0; i < chunks; ++i) {
      wait_for_groups<kStages - 2>();
      __syncthreads();  // and the one before is taken
      send(i + kStages - 1);
    }
    dependency_trigger();
  }
  if (blockIdx.x == 0 && head == 0 && threadIdx.x == 0) note_if_alone(p.state, part);
}

template <bool kDelta>
cudaError_t launch_rule(const RecurParams& p, int32_t num_sms, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((p.value_dim + kColumns - 1) / kColumns),
                  static_cast<unsigned>(p.value_heads),
                  static_cast<unsigned>(chunk_slots(p.state.tokens) / 2));
  const auto launch = [&](auto kernel, size_t stages) {
    const size_t bytes = stages * sizeof(PassStage);
    const cudaError_t error = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
    if (error != cudaSuccess) return error;
    return launch_pdl(kernel, grid, dim3(kThreads), bytes, stream, p);
  };
  const bool is_alone = p.state.seqs == 1 && static_cast<int32_t>(grid.x * grid.y) <= num_sms;
  if (is_alone) return launch(pass_states_kernel<kDelta, kStagesOfOne>, kStagesOfOne);
  return launch(pass_states_kernel<kDelta, kStagesOfTwo>, kStagesOfTwo);
}

}  // namespace

cudaError_t launch_pass_states(const RecurParams& p, int32_t num_sms, cudaStream_t stream) {
  if (p.rule == ops::RecurRule::kDelta) return launch_rule<true>(p, num_sms, stream);
  return launch_rule<false>(p, num_sms, stream);
}

bool takes_chunks(const RecurParams& p) {
  // Steps of one token of each sequence, or of its drafts, have no long run.
  const int32_t short_ones = p.state.seqs * std::max(1, p.state.kept_rows);
  return p.chunks != nullptr && p.key_dim <= kChunkKeys && !p.gates.a_by_channel &&
         p.state.tokens - short_ones + 1 >= kLeastRun;
}

cudaError_t launch_chunks(const RecurParams& p, int32_t num_sms, cudaStream_t stream) {
  const cudaError_t error = launch_solve_chunks(p, stream);
  return error != cudaSuccess ? error : launch_pass_states(p, num_sms, stream);
}

}  // namespace rudder::cuda
