// A boundary of four streams, as a block of a cluster does it (streams.h): the kernel of
// connect_four.cu is this object. Included by that file only.
#pragma once

#include "rudder/cuda/kernels/bulk_copy.cuh"
#include "rudder/cuda/kernels/device_barrier.cuh"
#include "rudder/cuda/kernels/launch.h"
#include "rudder/cuda/kernels/streams/float_four.cuh"
#include "rudder/cuda/kernels/streams/lane_sums.cuh"
#include "rudder/cuda/kernels/streams/norm_row.cuh"
#include "rudder/cuda/kernels/streams/stream_numbers.cuh"
#include "rudder/cuda/kernels/streams/streams.h"
#include "rudder/cuda/kernels/taps/capture_point.cuh"

namespace rudder::cuda::four {

inline constexpr int kStreams = 4;
inline constexpr int kMapRows = 2 * kStreams + kStreams * kStreams;  // at most
inline constexpr int kOwners = 64;  // threads that have different columns of a slice
inline constexpr int kGroups = 4;   // of so many
inline constexpr int kThreads = kOwners * kGroups;
inline constexpr int kWarps = kThreads / 32;
inline constexpr int kWarpsEach = kOwners / 32;  // of a group
inline constexpr int kPiece = 4;                 // columns that a thread has at a time
inline constexpr int kReadTotals = kStreams + 1;

template <int kMap, int kRows>
struct FourShared {
  static constexpr int kWriteSums = (kMap + 1) * kRows;  // of a thread: dots of its group, squares
  static constexpr int kWriteTotals = (kGroups * kMap + 1) * kRows;
  static constexpr int kEach = (kRows + kGroups - 1) / kGroups;  // rows of a group in the read
  static constexpr int kReadSums = kReadTotals * kEach;
  static constexpr int kSums = kWriteSums > kReadSums ? kWriteSums : kReadSums;

  uint64_t of_x;
  uint64_t of_write[kStreams];  // of the write's map, a stream's columns each
  uint64_t of_read;
  uint64_t of_inbox[2];
  uint64_t of_row;
  float write_inbox[kStreamCluster][kWriteTotals];
  float read_inbox[kStreamCluster][kReadTotals * kRows];
  float sums[kWarps][kSums];
  float totals[kWriteTotals];
  float base[kMapRows + kStreams];  // the write's, the read's
  float scale[4];                   // the write's three, the read's
  float post[kRows][kStreams];
  float mix[kRows][kStreams * kStreams];
  float pre[kRows][kStreams];
  float of_warp[2][32];  // of a norm
};

// A block's part of up to kRows rows. Group g of its threads has kMap rows of the write's map, and
// in the read the rows g, g + 4 ... of the tokens.
template <int kMap, int kRows>
class FourBlock {
 public:
  using Shared = FourShared<kMap, kRows>;

  __device__ FourBlock(const ConnectStreamsParams& p, const TapParams<kStreamPoints>& taps,
                       int slice, float* map, Bf16* x, Shared& s)
      : p_(p),
        taps_(taps),
        s_(s),
        map_(map),
        x_(x),
        slice_(slice),
        rank_(static_cast<int>(cluster_rank())),
        own_(static_cast<int>(
            min(int64_t{slice}, max(int64_t{0}, p.width - int64_t{rank_} * slice)))),
        first_row_(int64_t{blockIdx.x / kStreamCluster} * kRows),
        rows_(static_cast<int>(min(int64_t{kRows}, p.rows - first_row_))),
        thread_(static_cast<int>(threadIdx.x)),
        owner_(thread_ % kOwners),
        group_(thread_ / kOwners) {}

  __device__ void run() {
    begin();
    fetch_maps();
    dependency_wait();
    dependency_trigger();
    fetch_rows();
    cluster_wait();
    if (writes()) {
      sum_write();
      make_write_numbers();
    }
    barrier_wait(shared_address(&s_.of_x), 0);
    float sums[Shared::kReadSums] = {};
    change_rows(sums);
    if (p_.out == nullptr) return;
    make_pre(sums);
    collapse();
    if (!norms() || rank_ >= rows_) return;
    norm_row<kThreads>(p_.norm, reinterpret_cast<const Bf16*>(map_), static_cast<int>(p_.width),
                       first_row_ + rank_, s_.of_row, s_.of_warp);
  }

 private:
  static constexpr int kEach = Shared::kEach;

  __device__ bool writes() const { return p_.delta != nullptr; }
  __device__ bool makes_pre() const {
    return p_.out != nullptr && p_.read.fn != nullptr && p_.pre == nullptr;
  }
  __device__ bool norms() const { return p_.norm.weight != nullptr; }
  // Row 0 of what the write sums is this one of its map: pre is not asked for where it is not kept.
  __device__ int first_map_row() const { return p_.pre == nullptr ? kStreams : 0; }
  __device__ int64_t column() const { return int64_t{rank_} * slice_; }
  __device__ const float* map_row(int row, int stream) const {
    return map_ + (row * kStreams + stream) * slice_;
  }
  __device__ Bf16* x_of(int row, int stream) const {
    return x_ + (row * kStreams + stream) * slice_;
  }

  __device__ void begin() {
    if (thread_ == 0) {
      barrier_init(shared_address(&s_.of_x), 1);
      barrier_init(shared_address(&s_.of_read), 1);
      for (uint64_t& barrier : s_.of_write) barrier_init(shared_address(&barrier), 1);
      for (uint64_t& barrier : s_.of_inbox) barrier_init(shared_address(&barrier), 1);
      barrier_init(shared_address(&s_.of_row), 1);
      barrier_init_fence();
      barrier_expect(shared_address(&s_.of_inbox[0]), sizeof(s_.write_inbox));
      barrier_expect(shared_address(&s_.of_inbox[1]), sizeof(s_.read_inbox));
      barrier_expect(shared_address(&s_.of_row), static_cast<uint32_t>(p_.width) * sizeof(Bf16));
    }
    __syncthreads();
    cluster_arrive();
    if (writes()) {
      const int rows = first_map_row() + kGroups * kMap;
      if (thread_ < rows) s_.base[thread_] = p_.write.base[thread_];
      if (thread_ < (rows > 2 * kStreams ? 3 : 2)) s_.scale[thread_] = p_.write.scale[thread_];
    }
    if (makes_pre()) {
      if (thread_ < kStreams) s_.base[kMapRows + thread_] = p_.read.base[thread_];
      if (thread_ == 0) s_.scale[3] = p_.read.scale[0];
    }
  }

  // Before the kernel in front has ended: maps are weights.
  __device__ void fetch_maps() {
    if (thread_ >= 32) return;
    if (!writes()) return fetch_read_map();
    const uint32_t bytes = static_cast<uint32_t>(own_) * sizeof(float);
    const int rows = kGroups * kMap;
    if (thread_ < kStreams) {
      barrier_expect(shared_address(&s_.of_write[thread_]), static_cast<uint32_t>(rows) * bytes);
    }
    __syncwarp();
    if (own_ == 0) return;
    for (int i = thread_; i < rows * kStreams; i += 32) {
      const int stream = i / rows;
      const int row = i % rows;
      copy_bulk(map_row(row, stream), map_at(p_.write.fn, first_map_row() + row, stream), bytes,
                s_.of_write[stream]);
    }
    if (!makes_pre() || thread_ >= kStreams * kStreams) return;
    prefetch_bulk_copy(map_at(p_.read.fn, thread_ / kStreams, thread_ % kStreams), bytes);
  }
  // By the first warp; nobody uses what is there.
  __device__ void fetch_read_map() {
    if (!makes_pre()) return;
    const uint32_t bytes = static_cast<uint32_t>(own_) * sizeof(float);
    if (thread_ == 0) barrier_expect(shared_address(&s_.of_read), kStreams * kStreams * bytes);
    __syncwarp();
    if (thread_ >= kStreams * kStreams || own_ == 0) return;
    const int row = thread_ / kStreams;
    const int stream = thread_ % kStreams;
    copy_bulk(map_row(row, stream), map_at(p_.read.fn, row, stream), bytes, s_.of_read);
  }
  __device__ const float* map_at(const float* fn, int row, int stream) const {
    return fn + (int64_t{row} * kStreams + stream) * p_.width + column();
  }
  __device__ void fetch_rows() {
    if (thread_ < 32) {
      const uint32_t bytes = static_cast<uint32_t>(own_) * sizeof(Bf16);
      if (thread_ == 0) {
        barrier_expect(shared_address(&s_.of_x), static_cast<uint32_t>(rows_ * kStreams) * bytes);
      }
      __syncwarp();
      if (thread_ < rows_ * kStreams && own_ > 0) {
        const int row = thread_ / kStreams;
        const int stream = thread_ % kStreams;
        copy_bulk(x_of(row, stream), row_of(p_.x, row, stream), bytes, s_.of_x);
      }
    }
    if (!writes() || owner_ * kPiece >= own_) return;
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      if (has_row(k)) branch_[k] = branch_at(k, owner_ * kPiece);
    }
  }
  // Of the streams' rows, from this block's first column.
  __device__ Bf16* row_of(void* rows, int row, int stream) const {
    return static_cast<Bf16*>(rows) + ((first_row_ + row) * kStreams + stream) * p_.width +
           column();
  }
  __device__ int row_at(int k) const {
    return group_ + k * kGroups;
  }
  __device__ bool has_row(int k) const {
    return row_at(k) < rows_;
  }
  __device__ uint2 branch_at(int k, int u) const {
    const auto* const delta = static_cast<const Bf16*>(p_.delta);
    return *reinterpret_cast<const uint2*>(delta + (first_row_ + row_at(k)) * p_.width + column() +
                                           u);
  }

  // Of the streams as they are: dots with the write's map and squares, of all blocks.
  __device__ void sum_write() {
    float sums[Shared::kWriteSums] = {};
    barrier_wait(shared_address(&s_.of_x), 0);
#pragma unroll
    for (int i = 0; i < kStreams; ++i) {
      barrier_wait(shared_address(&s_.of_write[i]), 0);
#pragma unroll 1
      for (int u = owner_ * kPiece; u < own_; u += kOwners * kPiece) {
        float4 fn[kMap];
#pragma unroll
        for (int a = 0; a < kMap; ++a) {
          fn[a] = *reinterpret_cast<const float4*>(map_row(group_ * kMap + a, i) + u);
        }
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          const float4 f = load_four(x_of(r, i) + u);
#pragma unroll
          for (int a = 0; a < kMap; ++a) add_dot(sums[a * kRows + r], f, fn[a]);
          if (i == group_) add_dot(sums[kMap * kRows + r], f, f);
        }
      }
    }
    keep_lane_sums(sums, s_.sums[thread_ / 32]);
    __syncthreads();
    if (thread_ < 32) {
      fence_before_copies();
      fetch_read_map();
    }
    if (thread_ < Shared::kWriteTotals) {
      const int q = thread_ / kRows;
      const int r = thread_ % kRows;
      float total;
      if (q < kGroups * kMap) {
        total = of_group(q / kMap, q % kMap * kRows + r);
      } else {
        total = of_group(0, kMap * kRows + r);
        for (int g = 1; g < kGroups; ++g) total += of_group(g, kMap * kRows + r);
      }
      send(total, s_.write_inbox[rank_][thread_], s_.of_inbox[0]);
    }
  }
  __device__ float of_group(int group, int sum) const {
    return s_.sums[kWarpsEach * group][sum] + s_.sums[kWarpsEach * group + 1][sum];
  }
  // To the same cell of every block.
  __device__ static void send(float value, float& cell, uint64_t& barrier) {
#pragma unroll
    for (int i = 0; i < kStreamCluster; ++i) {
      const auto to = static_cast<uint32_t>(i);
      store_to_rank(shared_of_rank(shared_address(&cell), to), value,
                    shared_of_rank(shared_address(&barrier), to));
    }
  }

  __device__ void make_write_numbers() {
    barrier_wait(shared_address(&s_.of_inbox[0]), 0);
    if (thread_ < Shared::kWriteTotals) {
      float total = 0.0f;
#pragma unroll
      for (int i = 0; i < kStreamCluster; ++i) total += s_.write_inbox[i][thread_];
      s_.totals[thread_] = total;
    }
    __syncthreads();
    // A thread of the first warp has a row's mix, one of the next two a row's post and pre.
    const int lane = thread_ % 32;
    const int first = first_map_row();
    if (thread_ < 32) {
      if (lane < kRows && p_.iterations > 0) {
        float c[kStreams][kStreams];
        const float inverse = inverse_of(lane);
#pragma unroll
        for (int i = 0; i < kStreams; ++i) {
#pragma unroll
          for (int j = 0; j < kStreams; ++j) {
            c[i][j] = logit((2 + i) * kStreams + j, first, lane, inverse, s_.scale[2]);
          }
        }
        make_mix(c, p_.iterations, p_.eps);
#pragma unroll
        for (int i = 0; i < kStreams; ++i) {
#pragma unroll
          for (int j = 0; j < kStreams; ++j) s_.mix[lane][i * kStreams + j] = c[i][j];
        }
      }
    } else if (thread_ < 96 && lane < kStreams * kRows) {
      const int row = lane / kStreams;
      const int j = lane % kStreams;
      if (thread_ < 64) {
        const float open =
            stream_sigmoid(logit(kStreams + j, first, row, inverse_of(row), s_.scale[1]));
        s_.post[row][j] = fmaf(p_.magnitude, open, p_.post_eps);
      } else if (first == 0) {
        s_.pre[row][j] = stream_sigmoid(logit(j, 0, row, inverse_of(row), s_.scale[0])) + p_.eps;
      }
    }
    __syncthreads();
    if (rank_ == 0) keep_numbers();
  }
  __device__ float inverse_of(int row) const {
    return stream_inverse(s_.totals[kGroups * kMap * kRows + row], kStreams * p_.width,
                          p_.norm_eps);
  }
  __device__ float logit(int map_row, int first, int row, float inverse, float scale) const {
    return fmaf(s_.totals[(map_row - first) * kRows + row] * inverse, scale, s_.base[map_row]);
  }
  // Captures, and what the next read takes.
  __device__ void keep_numbers() {
    if (thread_ < rows_) {
      const int64_t token = first_row_ + thread_;
      if (taps_.point[kPostPoint] >= 0) {
        PointTaps<kStreamPoints>{taps_, token, kPostPoint}.keep(s_.post[thread_], kStreams, 0, 1);
      }
      if (taps_.point[kMixPoint] >= 0) {
        PointTaps<kStreamPoints>{taps_, token, kMixPoint}.keep(s_.mix[thread_], kStreams * kStreams,
                                                               0, 1);
      }
    }
    if (p_.pre == nullptr || thread_ >= rows_ * kStreams) return;
    p_.pre[first_row_ * kStreams + thread_] = s_.pre[thread_ / kStreams][thread_ % kStreams];
  }

  // Writes the rows, and sums of them what the read needs.
  __device__ void change_rows(float (&sums)[Shared::kReadSums]) {
    const bool sums_read = makes_pre();
    if (sums_read) barrier_wait(shared_address(&s_.of_read), 0);
#pragma unroll 1
    for (int u = owner_ * kPiece; u < own_; u += kOwners * kPiece) {
      float4 now[kEach][kStreams];
#pragma unroll
      for (int k = 0; k < kEach; ++k) {
#pragma unroll
        for (int i = 0; i < kStreams; ++i) {
          now[k][i] = has_row(k) ? load_four(x_of(row_at(k), i) + u) : float4{};
        }
        if (!writes() || !has_row(k)) continue;
        write_row(k, u, unpack_four(u == owner_ * kPiece ? branch_[k] : branch_at(k, u)), now[k]);
      }
      if (!sums_read) continue;
#pragma unroll
      for (int i = 0; i < kStreams; ++i) {
#pragma unroll
        for (int q = 0; q < kStreams; ++q) {
          const float4 fn = *reinterpret_cast<const float4*>(map_row(q, i) + u);
#pragma unroll
          for (int k = 0; k < kEach; ++k) add_dot(sums[q * kEach + k], now[k][i], fn);
        }
#pragma unroll
        for (int k = 0; k < kEach; ++k) {
          add_dot(sums[kStreams * kEach + k], now[k][i], now[k][i]);
        }
      }
    }
  }
  // A piece of all streams of a row, which is then as it is stored.
  __device__ void write_row(int k, int u, const float4& branch, float4 (&now)[kStreams]) {
    const int row = row_at(k);
    float4 sum[kStreams];
#pragma unroll
    for (int j = 0; j < kStreams; ++j) {
      if (p_.iterations > 0) {
        sum[j] = scaled(s_.post[row][j], branch);
#pragma unroll
        for (int i = 0; i < kStreams; ++i) {
          add_scaled(sum[j], s_.mix[row][i * kStreams + j], now[i]);
        }
      } else {
        sum[j] = now[j];
        add_scaled(sum[j], s_.post[row][j], branch);
      }
    }
#pragma unroll
    for (int j = 0; j < kStreams; ++j) {
      const uint2 bits = pack_four(sum[j]);
      *reinterpret_cast<uint2*>(x_of(row, j) + u) = bits;
      *reinterpret_cast<uint2*>(row_of(p_.x, row, j) + u) = bits;
      now[j] = unpack_four(bits);
    }
  }

  // By which the rows are read.
  __device__ void make_pre(float (&sums)[Shared::kReadSums]) {
    if (makes_pre()) {
      keep_lane_sums(sums, s_.sums[thread_ / 32]);
      __syncthreads();
      if (thread_ < kReadTotals * kRows) {
        const int q = thread_ / kRows;
        const int r = thread_ % kRows;
        send(of_group(r % kGroups, q * kEach + r / kGroups), s_.read_inbox[rank_][thread_],
             s_.of_inbox[1]);
      }
      barrier_wait(shared_address(&s_.of_inbox[1]), 0);
    }
    const int row = thread_ / kStreams;
    const int i = thread_ % kStreams;
    if (row < rows_) {
      if (makes_pre()) {
        float dot = 0.0f;
        float squares = 0.0f;
#pragma unroll
        for (int b = 0; b < kStreamCluster; ++b) {
          dot += s_.read_inbox[b][i * kRows + row];
          squares += s_.read_inbox[b][kStreams * kRows + row];
        }
        const float inverse = stream_inverse(squares, kStreams * p_.width, p_.norm_eps);
        s_.pre[row][i] =
            stream_sigmoid(fmaf(dot * inverse, s_.scale[3], s_.base[kMapRows + i])) + p_.eps;
      } else if (p_.pre == nullptr) {
        s_.pre[row][i] = 1.0f / kStreams;
      } else if (!writes()) {
        s_.pre[row][i] = p_.pre[(p_.pre_is_one ? 0 : (first_row_ + row) * kStreams) + i];
      }
    }
    __syncthreads();
  }

  __device__ void collapse() const {
#pragma unroll 1
    for (int u = owner_ * kPiece; u < own_; u += kOwners * kPiece) {
#pragma unroll
      for (int k = 0; k < kEach; ++k) {
        if (!has_row(k)) continue;
        const int row = row_at(k);
        float4 sum = {};
#pragma unroll
        for (int i = 0; i < kStreams; ++i) {
          add_scaled(sum, s_.pre[row][i], load_four(x_of(row, i) + u));
        }
        Bf16* const out = static_cast<Bf16*>(p_.out) + (first_row_ + row) * p_.width + column() + u;
        const uint2 bits = pack_four(sum);
        *reinterpret_cast<uint2*>(out) = bits;
        if (norms()) send_to_row(row, u, bits);
      }
    }
  }
  // Block `row` of the cluster takes the row, to where maps were: who sends has had the last sums
  // of that block, which has read its maps by then.
  __device__ void send_to_row(int row, int u, uint2 bits) const {
    const auto to = static_cast<uint32_t>(row);
    const Bf16* const cell = reinterpret_cast<const Bf16*>(map_) + column() + u;
    store_to_rank(shared_of_rank(shared_address(cell), to),
                  make_float2(__uint_as_float(bits.x), __uint_as_float(bits.y)),
                  shared_of_rank(shared_address(&s_.of_row), to));
  }

  const ConnectStreamsParams& p_;
  const TapParams<kStreamPoints>& taps_;
  Shared& s_;
  float* const map_;  // [rows][kStreams][slice]: the write's, then the read's
  Bf16* const x_;     // [kRows][kStreams][slice]
  const int slice_;
  const int rank_;  // in the cluster
  const int own_;   // columns of each stream
  const int64_t first_row_;
  const int rows_;
  const int thread_;
  const int owner_;
  const int group_;
  uint2 branch_[kEach] = {};  // of the first piece
};

}  // namespace rudder::cuda::four
