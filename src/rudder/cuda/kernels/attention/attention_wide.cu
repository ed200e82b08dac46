// Split attention of heads whose sums are too many for the registers of one warp
// (attention_work.cuh has the division of work, attention_split.cu the kernel of narrower heads). A
// block works on one page after the other, its four warps each on a quarter of the columns: of its
// part of q . K a warp makes what the others lack by adding up all four in shared memory, then each
// has the weights of all tokens and sums up its own columns of V. So a block holds one row tile,
// warps have nothing to add up at the end, and one barrier a page is enough: scores lie in two
// places in turn, and who has passed the barrier of a page knows that the values of the page before
// have been read.
//
// Parts of a segment that several workers share are added up by a second kernel: a partial result
// is 16 rows of kHeadDim numbers, which are too many for the last worker of a long sequence alone.
//
// Floor: attention.h. Two blocks of a multiprocessor have 192 KB of pages on their way or at work.
#include "rudder/cuda/kernels/attention/attention_split.cuh"
#include "rudder/cuda/kernels/launch.h"

namespace rudder::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * 32;
constexpr int kBlocksPerSm = 2;

// The pages [first, first + count) of a segment: a worker's part of it.
struct WidePart {
  int32_t segment_begin;  // unit
  int32_t kv_head;
  int32_t row_tile;
  int32_t first;
  int32_t count;
};

// Walks a worker's range part after part.
class WideWalk {
 public:
  __device__ WideWalk(const WorkerRange& range, int32_t num_kv_heads)
      : entry_(range.entry),
        seq_(range.seq),
        num_kv_heads_(num_kv_heads),
        left_(range.end - range.begin),
        unit_step_(range.unit_step),
        next_{range.begin - range.page, range.kv_head, range.row_tile, range.page, 0} {}

  // False at the end, else the next part; seq() is its sequence then.
  __device__ bool next(WidePart& part) {
    if (left_ <= 0) return false;
    if (next_.kv_head == num_kv_heads_) {
      next_.kv_head = 0;
      seq_ = *++entry_;
    }
    part = next_;
    part.count = min(seq_.num_pages - next_.first, left_);
    const int32_t units = segment_units(seq_.num_pages, unit_step_);
    left_ -= units - next_.first;
    next_.segment_begin += units;
    next_.first = 0;
    if (++next_.row_tile == seq_.row_tiles) {
      next_.row_tile = 0;
      ++next_.kv_head;
    }
    return true;
  }

  __device__ const SplitSeq& seq() const { return seq_; }

 private:
  const SplitSeq* entry_;
  SplitSeq seq_;
  int32_t num_kv_heads_;
  int32_t left_;  // units
  int32_t unit_step_;
  WidePart next_;
};

template <int kHeadDim, KvType kType>
struct WideShared {
  using P = Page<kHeadDim / kWarps, kType>;  // a warp's columns of a page
  static constexpr int kPageBytes = kWarps * P::kBytes;
  static constexpr int kStages = 96 * 1024 / (2 * kPageBytes);
  alignas(1024) uint8_t ring[kStages][2][kPageBytes];
  float4 scores[2][kWarps][2][32];  // of the last two pages, each warp's part
  uint64_t full[kStages];
};

template <int kHeadDim, KvType kType>
class WideBlock {
 public:
  using Shared = WideShared<kHeadDim, kType>;
  using P = typename Shared::P;
  static constexpr int kColumns = kHeadDim / kWarps;
  static constexpr int kStages = Shared::kStages;
  static_assert(P::kFullGroups && kStages >= 3);

  __device__ WideBlock(const AttentionParams& params, const WorkspaceView& work, Shared& shared,
                       const WorkerRange& range)
      : p_(params),
        work_(work),
        shared_(shared),
        range_begin_(range.begin),
        share_(range.share),
        slack_(range.slack),
        warp_(static_cast<int32_t>(threadIdx.x / 32)),
        lane_(static_cast<int32_t>(threadIdx.x % 32)),
        ahead_(range, params.config.num_kv_heads),
        here_(range, params.config.num_kv_heads) {}

  // Sends for the first pages; with `only_old` up to the first that this step writes to.
  __device__ void start(bool only_old) {
    if (warp_ != 0) return;
    for (; started_ < kStages; ++started_) {
      if (only_old && (!find_page() || sent_ >= old_)) break;
      send(started_);
    }
  }

  __device__ void run() {
    start(false);
    WidePart part;
    while (here_.next(part)) attend(here_.seq(), part);
  }

  // What is to be added up behind the block's work: the segment that it has the first part of.
  __device__ const CutSegment& cut() const { return cut_; }

 private:
  // The part that has the next page. False: there is none.
  __device__ bool find_page() {
    while (sent_ == to_send_) {
      WidePart part;
      if (!ahead_.next(part)) return false;
      const SplitSeq& seq = ahead_.seq();
      const int32_t first = seq.first_page + part.first;
      pages_ = p_.block_table + seq.table_row * p_.max_blocks + first;
      to_send_ = part.count;
      kv_head_ = part.kv_head;
      sent_ = 0;
      old_ = (seq.kv_len - seq.q_len) / kPageTokens - first;
    }
    return true;
  }

  // Copies the next page, of this part or a later one, to a stage that is no longer read. Warp 0.
  __device__ void send(int32_t stage) {
    if (!find_page()) return;
    if (sent_ % 32 == 0) ids_ = sent_ + lane_ < to_send_ ? pages_[sent_ + lane_] : 0;
    const int32_t block = __shfl_sync(kAllLanes, ids_, sent_ % 32);
    ++sent_;
    if (lane_ == 0) {
      const uint32_t full = shared_address(&shared_.full[stage]);
      barrier_expect(full, 2 * Shared::kPageBytes);
      copy_whole_page(shared_address(shared_.ring[stage][0]), &p_.kv, kv_head_, block, full);
    }
  }

  // This warp's columns of K (0) or V (1) of the page at hand.
  __device__ uint32_t columns_of(int32_t is_v) const {
    return shared_address(shared_.ring[stage_][is_v]) + warp_ * P::kBytes;
  }

  __device__ void attend(const SplitSeq& seq, const WidePart& part) {
    const QueryRows rows =
        QueryRows::of<kHeadDim>(p_.config, seq.q_begin, seq.q_len, seq.kv_len, part.kv_head);
    const int32_t row = part.row_tile * kRowTile + lane_ / 4;
    const auto* const q_columns = static_cast<const __nv_bfloat16*>(p_.q) + warp_ * kColumns;
    uint32_t q[P::kSteps][4];
    P::load_q(q, row < rows.count ? q_columns + rows.offset<kHeadDim>(row) : nullptr,
              row + 8 < rows.count ? q_columns + rows.offset<kHeadDim>(row + 8) : nullptr,
              lane_ % 4);
    const float scale = p_.scales.v != nullptr ? p_.scales.v[part.kv_head] : 1.0f;
    const SplitSight sight(p_, seq, rows, row);
    SoftmaxWeights weigher(p_, rows, part.kv_head, row);
    float out[P::kOutTiles][4] = {};
    int32_t begin = (seq.first_page + part.first) * kPageTokens;
    for (int32_t i = 0; i < part.count; ++i, begin += kPageTokens) {
      barrier_wait(shared_address(&shared_.full[stage_]), phase_);
      float s[2][4];
      P::scores(s, q, columns_of(0), lane_);
      add_up_scores(s);
      weigher.weigh(s, out, begin, sight, lane_);
      uint32_t weights[4];
      P::pack_weights(weights, s, 0);
      P::template add_values<true>(out, weights, columns_of(1), seq.kv_len - begin, lane_);
      pass_page();
    }
    write(seq, part, rows, row, out, weigher, scale);
  }

  // Of all warps, in their order, so that each has the same bits.
  __device__ void add_up_scores(float (&s)[2][4]) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      shared_.scores[turn_][warp_][n][lane_] = make_float4(s[n][0], s[n][1], s[n][2], s[n][3]);
    }
    __syncthreads();
    if (warp_ == 0 && has_passed_) send(stage_ == 0 ? kStages - 1 : stage_ - 1);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      float4 sum = shared_.scores[turn_][0][n][lane_];
#pragma unroll
      for (int w = 1; w < kWarps; ++w) {
        const float4 other = shared_.scores[turn_][w][n][lane_];
        sum.x += other.x;
        sum.y += other.y;
        sum.z += other.z;
        sum.w += other.w;
      }
      s[n][0] = sum.x;
      s[n][1] = sum.y;
      s[n][2] = sum.z;
      s[n][3] = sum.w;
    }
    turn_ ^= 1;
  }

  __device__ void pass_page() {
    has_passed_ = true;
    if (++stage_ == kStages) {
      stage_ = 0;
      phase_ ^= 1;
    }
  }

  // The result of a segment, or the worker's partial result.
  __device__ void write(const SplitSeq& seq, const WidePart& part, const QueryRows& rows,
                        int32_t row, const float (&out)[P::kOutTiles][4],
                        const SoftmaxWeights& weigher, float scale) {
    const bool whole = part.count == seq.num_pages;
    const int32_t worker = static_cast<int32_t>(blockIdx.x);
    const int32_t first_row =
        (2 * worker + (part.segment_begin >= range_begin_ ? 1 : 0)) * kRowTile;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const RowEnd end = RowEnd::of(p_, scale, rows.head(row + half * 8, part.kv_head));
      const float over = weigher.over(half, end);
      const float2 max_sum = weigher.max_sum(half);
      const int32_t r = row + half * 8;
      if (r >= rows.count) continue;
      if (whole) {
        P::write_row(
            static_cast<__nv_bfloat16*>(p_.out) + rows.offset<kHeadDim>(r) + warp_ * kColumns, out,
            half, over, lane_);
      } else {
        write_partial(first_row + half * 8 + lane_ / 4, out, half, max_sum);
      }
    }
    if (whole || part.first > 0) return;
    // The workers with a bound inside the segment (WorkerRange: none within `slack` of its ends).
    const int32_t last = (part.segment_begin + seq.num_pages - slack_ - 1) / share_;
    cut_ = {last - worker + 1, part.kv_head, part.row_tile, seq.q_begin, seq.q_len};
  }

  __device__ void write_partial(int32_t index, const float (&out)[P::kOutTiles][4], int half,
                                const float2& max_sum) {
    if (warp_ == 0 && lane_ % 4 == 0) work_.partial_max_sum[index] = max_sum;
    float* const to = work_.partial_out + int64_t{index} * kHeadDim + warp_ * kColumns;
#pragma unroll
    for (int i = 0; i < P::kPieces; ++i) {
      float values[P::kPiece];
      P::piece(values, out, i, half);
      float* const piece = to + P::piece_column(i, lane_ % 4);
      if constexpr (P::kPiece == 4) {
        *reinterpret_cast<float4*>(piece) = make_float4(values[0], values[1], values[2], values[3]);
      } else {
        *reinterpret_cast<float2*>(piece) = make_float2(values[0], values[1]);
      }
    }
  }

  const AttentionParams& p_;
  const WorkspaceView& work_;
  Shared& shared_;
  const int32_t range_begin_;
  const int32_t share_;
  const int32_t slack_;
  const int32_t warp_;
  const int32_t lane_;
  // The ring: the stage that is read next, and of its barrier the phase.
  int32_t stage_ = 0;
  uint32_t phase_ = 0;
  bool has_passed_ = false;  // a page
  int32_t turn_ = 0;         // where the next scores go
  WideWalk ahead_;           // of warp 0: where it sends
  WideWalk here_;            // where the block reads
  CutSegment cut_ = {};
  // What is sent next.
  const int32_t* pages_ = nullptr;
  int32_t sent_ = 0;
  int32_t to_send_ = 0;
  int32_t kv_head_ = 0;
  int32_t ids_ = 0;  // lane i has the block of page sent_ / 32 * 32 + i
  // At the start: stages that are sent for; pages of the part that this step does not write to.
  int32_t started_ = 0;
  int32_t old_ = 0;
};

template <int kHeadDim, KvType kType>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm)
    wide_kernel(const __grid_constant__ AttentionParams p) {
  extern __shared__ __align__(1024) uint8_t raw[];
  auto& shared = *reinterpret_cast<WideShared<kHeadDim, kType>*>(raw);
  if (threadIdx.x == 0) {
    prefetch_map(p.kv.page);
    for (uint64_t& barrier : shared.full) barrier_init(shared_address(&barrier), 1);
    barrier_init_fence();
  }
  __syncthreads();
  if (!p.reads_ahead) dependency_wait();
  WorkspaceView work;
  view_workspace(p.workspace, &work);
  const WorkerRange& range = work.workers[blockIdx.x];
  const bool has_work = range.begin < range.end;
  WideBlock<kHeadDim, kType> block(p, work, shared, range);
  if (p.reads_ahead) {
    if (has_work) block.start(true);
    dependency_wait();
  }
  dependency_trigger();
  if (has_work) block.run();
  if (threadIdx.x == 0) work.cuts[blockIdx.x] = block.cut();
  write_zeros<kHeadDim, kThreads>(p, work, range.num_empty);
}

// --- partial results ---

constexpr int kMergeThreads = 512;
constexpr int kMergeBlocksPerSm = 2;  // that registers are enough for

// Four columns of a row over some workers' partial results, relative to the largest score so far.
struct PartialSum {
  float2 max_sum = make_float2(minus_infinity(), 0);
  float4 sum = {};

  __device__ void add(const float2& other, const float4& values) {
    const float top = fmaxf(max_sum.x, other.x);
    const float shift = top == minus_infinity() ? 0.0f : top;
    const float mine = exp2_fast(max_sum.x - shift);
    const float its = exp2_fast(other.x - shift);
    max_sum = make_float2(top, max_sum.y * mine + other.y * its);
    sum.x = sum.x * mine + values.x * its;
    sum.y = sum.y * mine + values.y * its;
    sum.z = sum.z * mine + values.z * its;
    sum.w = sum.w * mine + values.w * its;
  }
};

// The segments of which several workers have a part, numbered by the worker that has the first one.
struct CutList {
  struct Cut {
    CutSegment segment;
    int32_t worker;
  };
  Cut cuts[kMaxWorkers];
  int32_t of_warp[kMergeThreads / 32];
  int32_t count;

  // By the block.
  __device__ void make(const WorkspaceView& work, int32_t workers) {
    const auto thread = static_cast<int32_t>(threadIdx.x);
    if (thread == 0) count = 0;
    for (int32_t first = 0; first < workers; first += kMergeThreads) {
      const int32_t worker = first + thread;
      CutSegment own = {};
      if (worker < workers) own = work.cuts[worker];
      const uint32_t here = __ballot_sync(kAllLanes, own.num_workers > 0);
      if (thread % 32 == 0) of_warp[thread / 32] = __popc(here);
      __syncthreads();
      int32_t at = count + __popc(here & ((1u << thread % 32) - 1));
      for (int32_t w = 0; w < thread / 32; ++w) at += of_warp[w];
      if (own.num_workers > 0) cuts[at] = {own, worker};
      __syncthreads();
      if (thread == kMergeThreads - 1) count = at + (own.num_workers > 0 ? 1 : 0);
      __syncthreads();
    }
  }
};

// Adds up partial results: the rows of all cut segments go to the blocks in turn. A thread has four
// columns of a row over every kGroups-th worker; then the groups' sums are added up in their order.
template <int kHeadDim>
__global__ void __launch_bounds__(kMergeThreads, kMergeBlocksPerSm)
    merge_kernel(const __grid_constant__ AttentionParams p, int32_t workers) {
  constexpr int kColumnThreads = kHeadDim / 4;
  constexpr int kGroups = kMergeThreads / kColumnThreads;
  constexpr int kBatch = 4;  // partial results of a thread that are on their way at once
  __shared__ CutList list;
  __shared__ PartialSum sums[kGroups][kColumnThreads];
  dependency_wait();
  dependency_trigger();
  WorkspaceView work;
  view_workspace(p.workspace, &work);
  list.make(work, workers);
  const int32_t column = static_cast<int32_t>(threadIdx.x) % kColumnThreads;
  const int32_t group = static_cast<int32_t>(threadIdx.x) / kColumnThreads;
#pragma unroll 1
  for (auto item = static_cast<int32_t>(blockIdx.x); item < list.count * kRowTile;
       item += static_cast<int32_t>(gridDim.x)) {
    const CutList::Cut& cut = list.cuts[item / kRowTile];
    const CutSegment& segment = cut.segment;
    const QueryRows rows =
        QueryRows::of<kHeadDim>(p.config, segment.q_begin, segment.q_len, 0, segment.kv_head);
    const int32_t r = segment.row_tile * kRowTile + item % kRowTile;
    if (r >= rows.count) continue;
    PartialSum total;
#pragma unroll 1
    for (int32_t first = group; first < segment.num_workers; first += kBatch * kGroups) {
      float2 max_sum[kBatch];
      float4 values[kBatch];
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        // Behind the last worker its result again, without weight.
        const int32_t nth = min(first + j * kGroups, segment.num_workers - 1);
        // The first worker's part is its range's last one, the others' their first one.
        const int64_t index =
            int64_t{2 * (cut.worker + nth) + (nth == 0 ? 1 : 0)} * kRowTile + item % kRowTile;
        max_sum[j] = __ldcg(&work.partial_max_sum[index]);
        values[j] = __ldcg(
            reinterpret_cast<const float4*>(work.partial_out + index * kHeadDim + column * 4));
      }
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        if (first + j * kGroups < segment.num_workers) total.add(max_sum[j], values[j]);
      }
    }
    sums[group][column] = total;
    __syncthreads();
    if (group == 0) {
#pragma unroll
      for (int g = 1; g < kGroups; ++g) total.add(sums[g][column].max_sum, sums[g][column].sum);
      const float scale = p.scales.v != nullptr ? p.scales.v[segment.kv_head] : 1.0f;
      const RowEnd end = RowEnd::of(p, scale, rows.head(r, segment.kv_head));
      const float over = end.over(total.max_sum.x, total.max_sum.y);
      *reinterpret_cast<uint2*>(static_cast<__nv_bfloat16*>(p.out) + rows.offset<kHeadDim>(r) +
                                column * 4) =
          make_uint2(pack_bf16(total.sum.x * over, total.sum.y * over),
                     pack_bf16(total.sum.z * over, total.sum.w * over));
    }
    __syncthreads();  // the readers of the groups' sums are done
  }
}

template <int kHeadDim, KvType kType, Weighting kWeighting>
struct Launch {
  static_assert(kWeighting == Weighting::kSoftmax);
  static cudaError_t run(const AttentionParams& params, cudaStream_t stream) {
    constexpr size_t kShared = sizeof(WideShared<kHeadDim, kType>);
    static_assert((kShared + 1024) * kBlocksPerSm <= 228 * 1024);
    static_assert(split_blocks_per_sm(kHeadDim, kType) == kBlocksPerSm);
    cudaError_t error = cudaFuncSetAttribute(wide_kernel<kHeadDim, kType>,
                                             cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
    if (error != cudaSuccess) return error;
    const auto workers = static_cast<unsigned>(split_workers(params.config));
    error = launch_pdl(wide_kernel<kHeadDim, kType>, dim3(workers), dim3(kThreads), kShared, stream,
                       params);
    // Else no sequence is split, and the kernel has written zeros alone.
    if (error != cudaSuccess || params.config.whole_sequences) return error;
    const auto blocks = static_cast<unsigned>(params.config.num_sms * kMergeBlocksPerSm);
    return launch_pdl(merge_kernel<kHeadDim>, dim3(blocks), dim3(kMergeThreads), 0, stream, params,
                      static_cast<int32_t>(workers));
  }
};

}  // namespace

cudaError_t launch_attention_wide(const AttentionParams& params, cudaStream_t stream) {
  return launch_of_wide_config<Launch>(params, stream);
}

}  // namespace rudder::cuda
