// The kernel of low_gemv.h. Included by .cu files only.
#pragma once

#include <cuda_bf16.h>

#include "rudder/cuda/kernels/device_barrier.cuh"
#include "rudder/cuda/kernels/launch.h"
#include "rudder/cuda/kernels/products/low_bits.cuh"
#include "rudder/cuda/kernels/products/low_mma.cuh"
#include "rudder/cuda/kernels/products/low_product.h"
#include "rudder/cuda/kernels/products/ring.cuh"

namespace rudder::cuda {

constexpr int kMmaRows = 16;                   // of operand A of a warp
constexpr int kChunkRowBytes = kLowChunk * 2;  // of a token
constexpr int kRowPadBytes = 16;               // so that tokens begin in different banks
constexpr int kPieceBytes = 2048;              // of a token, that a thread asks for
// What a multiprocessor has, less what small kernels beside the product need.
constexpr int kMostSharedBytes = 203 << 10;
// So that no two blocks share a multiprocessor while another one has none.
constexpr int kLeastSharedBytes = 116 << 10;

struct LowGemvWork {
  LowProductParams asked;
  int32_t block_bytes = 0;
  int32_t chunks = 0;
  int32_t units = 0;
  int32_t splits = 1;  // blocks of a cluster: 2^split_shift
  int32_t split_shift = 0;
  int32_t most_units = 0;    // of a cluster
  int32_t parts = 1;         // of a block's inputs
  int32_t part_chunks = 0;   // of a part; some of the last ones may not be there
  int32_t token_stride = 0;  // bytes
  uint32_t of_token = 0;     // 2^16 over the tokens, rounded up
};

// Into shared memory, past L1.
__device__ __forceinline__ void bring_16(uint32_t to, const uint8_t* from, uint64_t policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::256B [%0], [%1], 16, %2;" ::"r"(to),
               "l"(from), "l"(policy)
               : "memory");
}
__device__ __forceinline__ void bring_4(uint32_t to, const uint8_t* from, uint64_t policy) {
  asm volatile("cp.async.ca.shared.global.L2::cache_hint [%0], [%1], 4, %2;" ::"r"(to), "l"(from),
               "l"(policy)
               : "memory");
}
__device__ __forceinline__ void commit_brought() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void wait_brought() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

__device__ __noinline__ float capped_sum(float sum, float cap) {
  return cap * tanhf(sum / cap);
}

// A warp's tasks of a part of the inputs, one after the other.
struct TaskWalk {
  int32_t unit = 0;   // of the block
  int32_t chunk = 0;  // of the part
  int32_t left = 0;

  // True at the end of a unit.
  __device__ __forceinline__ bool next(int32_t part_chunks) {
    --left;
    if (++chunk < part_chunks) return false;
    chunk = 0;
    ++unit;
    return true;
  }
};

// What a lane has of a task, and the bytes of all lanes' share: of each 16 rows pieces of 16 bytes
// of codes, and of each of its two rows one scale or two. Of codes of 4 bits a unit has 32 rows, so
// that what tokens cost is shared.
template <LowCode kCode, int kParts>
struct LowTask {
  static constexpr int kMmas = low_code_bits(kCode) == 4 ? 2 : 1;
  static constexpr int kRows = kMmas * kMmaRows;
  static constexpr int kPieces = 2 * LowCodes<kCode>::kWords;
  static constexpr int kScales = kParts == 8 ? 2 : 1;
  static constexpr int kCodeBytes = 32 * 16 * kPieces;
  static constexpr int kMmaBytes = kCodeBytes + 32 * 8 * kScales;
  static constexpr int kBytes = kMmas * kMmaBytes;
};

// kParts: of a chunk, whose sums are scaled each by itself.
template <LowCode kCode, int kParts, int kWarps, int kDepth>
class LowGemv {
 public:
  static constexpr int kThreads = 32 * kWarps;
  using Task = LowTask<kCode, kParts>;
  static constexpr int kUnitRows = Task::kRows;
  static constexpr int kRingBytes = kWarps * kDepth * Task::kBytes;

  struct Offsets {  // bytes behind the rings
    int32_t tokens = kRingBytes;
    int32_t rows;
    int32_t warps;
    int32_t sums;
    int32_t come;
    int32_t end;
  };
  __host__ __device__ static Offsets offsets(const LowGemvWork& p) {
    Offsets at;
    const int32_t come = p.splits == 1 ? 0 : p.splits * units_of_block(p);
    at.rows = at.tokens + p.asked.tokens * p.token_stride;
    at.warps = at.rows + p.most_units * kUnitRows * 8;
    at.sums = at.warps + (p.most_units + 1) / 2 * 8;
    at.come = at.sums + (p.most_units + kWarps) * p.asked.tokens * kUnitRows * 4;
    at.end = at.come + come * p.asked.tokens * kUnitRows * 4;
    return at;
  }

  __device__ LowGemv(const LowGemvWork& p, uint8_t* shared, uint32_t x_full, uint32_t sums_come)
      : p_(p), x_full_(x_full), sums_come_(sums_come) {
    lane_ = static_cast<int>(threadIdx.x) % 32;
    warp_ = static_cast<int>(threadIdx.x) / 32;
    const auto block = static_cast<int32_t>(blockIdx.x);
    rank_ = block & (p.splits - 1);
    first_unit_ = (block >> p.split_shift) * p.most_units;
    units_ = min(p.most_units, p.units - first_unit_);
    const Offsets at = offsets(p);
    ring_ = shared_address(shared) + static_cast<uint32_t>(warp_ * kDepth * Task::kBytes);
    tokens_ = shared_address(shared + at.tokens);
    shared_.rows = reinterpret_cast<float2*>(shared + at.rows);
    shared_.warps = reinterpret_cast<ushort2*>(shared + at.warps);
    shared_.sums = reinterpret_cast<float*>(shared + at.sums);
    shared_.come = reinterpret_cast<float*>(shared + at.come);
    // Tokens behind the last one are read as the first one, and their sums dropped.
    lane_token_ = tokens_ + static_cast<uint32_t>((lane_ % 8 < p.asked.tokens ? lane_ % 8 : 0) *
                                                      p.token_stride +
                                                  lane_ / 8 * 16);
    const int32_t warps = warps_at_work();
    const int32_t first = min(warp_, warps) * (units_ * p.part_chunks) / warps;
    mine_.left = min(warp_ + 1, warps) * (units_ * p.part_chunks) / warps - first;
    mine_.unit = first / p.part_chunks;
    mine_.chunk = first - mine_.unit * p.part_chunks;
  }

  __device__ __forceinline__ void run() {
    if (p_.splits > 1) await_sums();
    bring_rows();
    begin_part(0);  // no kernel writes weights: they are on their way before the last kernel ends
    set_warps();
    if (p_.parts > 1) clear_sums();
    dependency_wait();
    dependency_trigger();
#pragma unroll 1
    for (int32_t part = 0; part < p_.parts; ++part) {
      if (part > 0) {
        begin_part(part);
        __syncthreads();  // the part in front has been read
      }
      bring_tokens();
      barrier_wait(x_full_, static_cast<uint32_t>(part) & 1);
      multiply_part();
    }
    wait_brought<0>();
    __syncthreads();
    if (p_.splits == 1) {
      write_own();
    } else {
      send();
      write_come();
    }
  }

 private:
  __device__ __forceinline__ void begin_part(int32_t part) {
    first_chunk_ = (rank_ * p_.parts + part) * p_.part_chunks;
    there_ = min(p_.part_chunks, p_.chunks - first_chunk_);
    at_ = mine_;
    ahead_.task = mine_;
    slot_ = ring_;
    seek();
#pragma unroll 1
    for (int i = 0; i < kDepth; ++i) bring_next();
  }
  __device__ __forceinline__ int32_t warps_at_work() const {
    return min(kWarps, units_ * p_.part_chunks);
  }
  // Factors and biases of the rows. Factors come with the first task.
  __device__ __forceinline__ void bring_rows() const {
    const LowProductParams& p = p_.asked;
    for (int i = static_cast<int>(threadIdx.x); i < units_ * kUnitRows; i += kThreads) {
      const int64_t row = int64_t{first_unit_} * kUnitRows + i;
      if (row >= p.out) break;
      const uint32_t to = shared_address(&shared_.rows[i]);
      asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(p.row_factor + row)
                   : "memory");
      const bool has_bias = p.bias != nullptr;
      shared_.rows[i].y =
          has_bias ? __bfloat162float(static_cast<const __nv_bfloat16*>(p.bias)[row]) : 0;
    }
  }
  // The last warps whose first tasks are not behind a unit's first and last ones.
  __device__ __forceinline__ void set_warps() const {
    const int32_t warps = warps_at_work();
    const int32_t tasks = units_ * p_.part_chunks;
    for (int unit = static_cast<int>(threadIdx.x); unit < units_; unit += kThreads) {
      const int32_t first = ((unit * p_.part_chunks + 1) * warps - 1) / tasks;
      const int32_t last = ((unit + 1) * p_.part_chunks * warps - 1) / tasks;
      shared_.warps[unit] =
          make_ushort2(static_cast<unsigned short>(first), static_cast<unsigned short>(last));
    }
  }
  __device__ __forceinline__ void clear_sums() const {
    const int count = (p_.most_units + kWarps) * p_.asked.tokens * kUnitRows;
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) shared_.sums[i] = 0;
    __syncthreads();
  }
  // To the lane's codes of the next task to bring.
  __device__ __forceinline__ void seek() {
    const int32_t unit = first_unit_ + ahead_.task.unit;
    const int64_t block =
        int64_t{unit * kUnitRows / kLowBlockRows} * p_.chunks + first_chunk_ + ahead_.task.chunk;
    const int in_block = unit * kUnitRows % kLowBlockRows / kMmaRows;
    ahead_.codes = static_cast<const uint8_t*>(p_.asked.weight) + block * p_.block_bytes +
                   in_block * 512 + lane_ * 16;
    // Lane t of four has the scales of group t of as many.
    const int group = lane_ % 4 * min(4, kLowChunk / p_.asked.form.group) / 4;
    ahead_.scales = LowCodes<kCode>::kCodeBytes +
                    (group * kLowBlockRows + in_block * kMmaRows + lane_ / 4) * kLowPairBytes -
                    in_block * 512 - lane_ * 16;
  }
  // What the lane multiplies of the next task, into the slot; and on to the next slot.
  __device__ __forceinline__ void bring_next() {
    if (ahead_.task.left > 0) {
      if (ahead_.task.chunk < there_) {
        const uint64_t policy = evict_first();
#pragma unroll
        for (int m = 0; m < Task::kMmas; ++m) {
          const uint32_t to = slot_ + static_cast<uint32_t>(m * Task::kMmaBytes + lane_ * 16);
          const uint8_t* const codes = ahead_.codes + m * 512;
#pragma unroll
          for (int i = 0; i < Task::kPieces; ++i) {
            bring_16(to + static_cast<uint32_t>(i) * 512, codes + i * 2048, policy);
          }
          const uint32_t pair =
              slot_ + static_cast<uint32_t>(m * Task::kMmaBytes + Task::kCodeBytes + lane_ * 8);
          const uint8_t* const scales = ahead_.codes + ahead_.scales + m * kMmaRows * kLowPairBytes;
#pragma unroll
          for (int i = 0; i < Task::kScales; ++i) {
            const uint8_t* const of_group = scales + 4 * i * kLowBlockRows * kLowPairBytes;
            bring_4(pair + static_cast<uint32_t>(i) * 256, of_group, policy);
            bring_4(pair + static_cast<uint32_t>(i) * 256 + 4, of_group + 8 * kLowPairBytes,
                    policy);
          }
        }
      }
      ahead_.codes += p_.block_bytes;
      if (ahead_.task.next(p_.part_chunks)) seek();
    }
    commit_brought();
    slot_ += Task::kBytes;
    if (slot_ == ring_ + kDepth * Task::kBytes) slot_ = ring_;
  }
  __device__ __forceinline__ void bring_tokens() const {
    const LowProductParams& p = p_.asked;
    const int64_t first = int64_t{first_chunk_} * kChunkRowBytes;
    const int32_t all = p_.part_chunks * kChunkRowBytes;
    const auto bytes = static_cast<int32_t>(max(int64_t{0}, min(int64_t{all}, p.in * 2 - first)));
    const int32_t pieces = (bytes + kPieceBytes - 1) / kPieceBytes;
    if (threadIdx.x == 0) barrier_expect(x_full_, static_cast<uint32_t>(bytes * p.tokens));
    for (int i = static_cast<int>(threadIdx.x); i < pieces * p.tokens; i += kThreads) {
      const int token = i / pieces;
      const int32_t at = i % pieces * kPieceBytes;
      const auto* const from = static_cast<const uint8_t*>(p.x) + token * p.in * 2 + first + at;
      fetch_bytes(tokens_ + static_cast<uint32_t>(token * p_.token_stride + at), from,
                  static_cast<uint32_t>(min(kPieceBytes, bytes - at)), x_full_);
    }
    if (bytes == all) return;
    // Behind the last input are zeros.
    const int32_t words = (all - bytes) / 4;
    for (int i = static_cast<int>(threadIdx.x); i < words * p.tokens; i += kThreads) {
      const uint32_t to =
          tokens_ + static_cast<uint32_t>(i / words * p_.token_stride + bytes + i % words * 4);
      asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(0) : "memory");
    }
    __syncthreads();
  }
  // Of the lane, of the unit's mma of 16 rows and 8 tokens.
  using Sums = float[Task::kMmas][4];
  struct Operands {
    uint32_t words[Task::kMmas][4 * Task::kPieces];
    uint32_t pairs[Task::kMmas][2 * Task::kScales];
  };

  __device__ __forceinline__ void multiply_part() {
    Sums c = {};
    uint32_t tokens = lane_token_ + static_cast<uint32_t>(at_.chunk) * kChunkRowBytes;
#pragma unroll 1
    while (at_.left > 0) {
      wait_brought<kDepth - 1>();
      Operands a;
      load(a);
      bring_next();
      if (at_.chunk < there_) multiply_task(c, a, tokens);
      tokens += kChunkRowBytes;
      const int32_t unit = at_.unit;
      const bool is_end = at_.next(p_.part_chunks);
      if (is_end) tokens = lane_token_;
      if (is_end || at_.left == 0) leave_sums(c, unit);
    }
  }
  __device__ __forceinline__ void load(Operands& a) const {
#pragma unroll
    for (int m = 0; m < Task::kMmas; ++m) {
      const uint32_t from = slot_ + static_cast<uint32_t>(m * Task::kMmaBytes);
#pragma unroll
      for (int i = 0; i < Task::kPieces; ++i) {
        load_shared_16(a.words[m] + 4 * i, from + static_cast<uint32_t>(i * 512 + lane_ * 16));
      }
#pragma unroll
      for (int i = 0; i < Task::kScales; ++i) {
        load_shared_8(a.pairs[m] + 2 * i,
                      from + static_cast<uint32_t>(Task::kCodeBytes + i * 256 + lane_ * 8));
      }
    }
  }
  __device__ __forceinline__ void multiply_task(Sums& c, const Operands& operands,
                                                uint32_t tokens) const {
    Sums sums = {};
    float ones[4] = {};
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      uint32_t b[4];
      load_inputs(b, tokens + static_cast<uint32_t>(q) * 64);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
#pragma unroll
        for (int m = 0; m < Task::kMmas; ++m) {
          const uint32_t* const words = operands.words[m] + (2 * q + j) * LowCodes<kCode>::kWords;
          uint32_t a[4];
#pragma unroll
          for (int k = 0; k < 4; ++k) a[k] = bits_of(LowCodes<kCode>::shifted(words, k));
          multiply_add(sums[m], a, b[2 * j], b[2 * j + 1]);
        }
        add_tokens(ones, b[2 * j], b[2 * j + 1]);
        const int done = 2 * q + j + 1;  // sixteens
        if (done * kParts % 8 == 0) {
          scale_part(c, sums, ones, operands.pairs, done * kParts / 8 - 1);
        }
      }
    }
  }
  __device__ __forceinline__ void scale_part(
      Sums& c, Sums& sums, float (&ones)[4],
      const uint32_t (&pairs)[Task::kMmas][2 * Task::kScales], int part) const {
#pragma unroll
    for (int m = 0; m < Task::kMmas; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t pair = pairs[m][part / 4 * 2 + half];
        if (kParts > 1) pair = __shfl_sync(0xffffffffu, pair, (lane_ & ~3) | (part % 4));
        const LowScale by =
            low_scale<kCode>(reinterpret_cast<const __half2&>(pair), p_.asked.form.is_zero);
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          float& sum = c[m][2 * half + k];
          sum = fmaf(sums[m][2 * half + k], by.scale, fmaf(-by.less, ones[k], sum));
          sums[m][2 * half + k] = 0;
        }
      }
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) ones[k] = 0;
  }
  // Warps one after the other have units one after the other, so no two leave sums in one slot; and
  // in all parts a warp has the same.
  __device__ __forceinline__ float* sums_of(int32_t unit, int32_t warp) const {
    return shared_.sums + (unit + warp) * p_.asked.tokens * kUnitRows;
  }
  __device__ __forceinline__ void leave_sums(Sums& c, int32_t unit) const {
    const int token = 2 * (lane_ % 4);
    float* const to = sums_of(unit, warp_) + token * kUnitRows + lane_ / 4;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      if (token + k >= p_.asked.tokens) continue;
#pragma unroll
      for (int m = 0; m < Task::kMmas; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float& sum = to[k * kUnitRows + m * kMmaRows + 8 * half];
          const float more = c[m][2 * half + k];
          sum = p_.parts > 1 ? sum + more : more;
        }
      }
    }
#pragma unroll
    for (int m = 0; m < Task::kMmas; ++m) {
#pragma unroll
      for (int k = 0; k < 4; ++k) c[m][k] = 0;
    }
  }
  // Of the block, the i-th of [units][tokens][rows].
  __device__ __forceinline__ float2 own_sums(int32_t unit, int32_t in_unit) const {
    const ushort2 warps = shared_.warps[unit];
    float2 sum = {};
#pragma unroll 1
    for (int32_t warp = warps.x; warp <= warps.y; ++warp) {
      const float2 more = *reinterpret_cast<const float2*>(sums_of(unit, warp) + in_unit);
      sum.x += more.x;
      sum.y += more.y;
    }
    return sum;
  }
  template <typename Do>
  __device__ __forceinline__ void for_pairs(int32_t units, Do run_pair) const {
    constexpr int kPairs = kUnitRows / 2;
    const int pair = static_cast<int>(threadIdx.x) % kPairs;
    const int count = units * p_.asked.tokens;
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x) / kPairs; i < count; i += kThreads / kPairs) {
      const auto unit = static_cast<int32_t>(static_cast<uint32_t>(i) * p_.of_token >> 16);
      run_pair(unit, (i - unit * p_.asked.tokens) * kUnitRows + 2 * pair);
    }
  }
  __device__ __forceinline__ void write_own() const {
    for_pairs(units_, [&](int32_t unit, int32_t in_unit) {
      write(unit, in_unit, own_sums(unit, in_unit));
    });
  }
  // Of the cluster's units each block is sent one of so many.
  __host__ __device__ static int32_t units_of_block(const LowGemvWork& p) {
    return (p.most_units + p.splits - 1) >> p.split_shift;
  }
  __device__ __forceinline__ int32_t units_here() const {
    return (units_ - rank_ + p_.splits - 1) >> p_.split_shift;
  }
  __device__ __forceinline__ float* come_of(int32_t rank, int32_t unit, int32_t in_unit) const {
    return shared_.come + (rank * units_of_block(p_) + unit) * kUnitRows * p_.asked.tokens +
           in_unit;
  }
  // In front of all else: who has begun may be sent sums.
  __device__ __forceinline__ void await_sums() const {
    if (threadIdx.x == 0) {
      const int32_t sums = units_here() * p_.splits * kUnitRows * p_.asked.tokens;
      barrier_expect(sums_come_, static_cast<uint32_t>(sums * 4));
    }
    cluster_arrive();
  }
  __device__ __forceinline__ void send() const {
    cluster_wait();
    for_pairs(units_, [&](int32_t unit, int32_t in_unit) {
      const auto rank = static_cast<uint32_t>(unit & (p_.splits - 1));
      const float* const to = come_of(rank_, unit >> p_.split_shift, in_unit);
      store_to_rank(shared_of_rank(shared_address(to), rank), own_sums(unit, in_unit),
                    shared_of_rank(sums_come_, rank));
    });
  }
  __device__ __forceinline__ void write_come() const {
    barrier_wait(sums_come_, 0);
    for_pairs(units_here(), [&](int32_t unit, int32_t in_unit) {
      float2 sum = {};
#pragma unroll 1
      for (int32_t rank = 0; rank < p_.splits; ++rank) {
        const float2 more = *reinterpret_cast<const float2*>(come_of(rank, unit, in_unit));
        sum.x += more.x;
        sum.y += more.y;
      }
      write((unit << p_.split_shift) + rank_, in_unit, sum);
    });
  }
  // Of two rows.
  __device__ __forceinline__ void write(int32_t unit, int32_t in_unit, float2 sums) const {
    const LowProductParams& p = p_.asked;
    const int32_t first = unit * kUnitRows + in_unit % kUnitRows;
    const int64_t row = int64_t{first_unit_} * kUnitRows + first;
    const int64_t at = in_unit / kUnitRows * p.out + row;
    const float low = finished_sum(sums.x, shared_.rows[first]);
    const float high = finished_sum(sums.y, shared_.rows[first + 1]);
    if (row < p.out) store(at, low);
    if (row + 1 < p.out) store(at + 1, high);
  }
  __device__ __forceinline__ float finished_sum(float sum, float2 of_row) const {
    sum = fmaf(sum, of_row.x, of_row.y);
    return p_.asked.softcap == 0.0f ? sum : capped_sum(sum, p_.asked.softcap);
  }
  __device__ __forceinline__ void store(int64_t at, float sum) const {
    if (p_.asked.y_is_f32) {
      static_cast<float*>(p_.asked.y)[at] = sum;
    } else {
      static_cast<__nv_bfloat16*>(p_.asked.y)[at] = __float2bfloat16_rn(sum);
    }
  }

  const LowGemvWork& p_;
  const uint32_t x_full_;
  const uint32_t sums_come_;
  int lane_;
  int warp_;
  int32_t rank_;        // of the block in its cluster
  int32_t first_unit_;  // of the cluster
  int32_t units_;
  TaskWalk mine_;        // the warp's tasks of a part, from the first one
  uint32_t ring_;        // of the warp
  uint32_t tokens_;      // [tokens][token_stride]
  uint32_t lane_token_;  // its row of operand B, of the first inputs
  struct {
    float2* rows;    // of each its factor and its bias
    ushort2* warps;  // of each unit the first and the last one that has sums of it
    float* sums;     // [units + warps][tokens][kUnitRows]
    float* come;     // [blocks of the cluster][units of this one][tokens][kUnitRows]
  } shared_;
  int32_t first_chunk_ = 0;
  TaskWalk at_;
  int32_t there_ = 0;  // chunks of the part
  struct {
    TaskWalk task;
    const uint8_t* codes;  // the lane's
    int32_t scales;        // its scales behind these
  } ahead_;                // the next task to bring
  uint32_t slot_;          // of the next task
};

}  // namespace rudder::cuda
