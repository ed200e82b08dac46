// Split attention (attention_work.cuh has the division of work): a persistent grid whose blocks
// read equal shares of the cache. The warps of a block work independently: the pages of a part go
// to the four warps in turn. Each warp has its own softmax and a ring of pages, which its lane 0
// keeps full through the copy engine, ahead over the ends of parts. At the end of a part the warps
// add their sums in shared memory. A short segment goes to one warp, which waits for no other.
//
// Under a gate a warp has neighbouring pages, as the filter needs the scores of the last tokens
// before a page: in front of its first one it reads so many keys past the ring. Where there is much
// to read, keys come first, and of the values only those that some row weighs
// (attention_sparse.cuh).
//
// mma.m16n8k16: all q heads of a group (times a few tokens) are rows of one product, so each byte
// of the cache is read once for all of them. Up to 8 rows, as nearly all decodes have, are columns
// of the products (attention_few_rows.cuh), which halves these; else 16 are rows. Codes become
// f16 in registers.
//
// A token of a tree lies where the step's tokens are in a row; what it sees of them is a mask in
// the pages that not all rows see, so all other pages cost what they cost without trees.
#include "rudder/cuda/kernels/attention/attention_device.cuh"
#include "rudder/cuda/kernels/attention/attention_few_rows.cuh"
#include "rudder/cuda/kernels/attention/attention_few_rows_weights.cuh"
#include "rudder/cuda/kernels/attention/attention_sparse.cuh"
#include "rudder/cuda/kernels/attention/attention_split.cuh"
#include "rudder/cuda/kernels/attention/attention_weights.cuh"
#include "rudder/cuda/kernels/attention/attention_work.cuh"
#include "rudder/cuda/kernels/launch.h"

namespace rudder::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * 32;
constexpr int kMergeRows = 8;  // of a pass
constexpr int kLeastSoloPages = 1;
constexpr int kMostSoloPages = 16;
constexpr int kSoloWarps = 2;  // with work, so that short segments stay whole

// *counter as it was before 1 was added. What the block has written is seen by who adds later, what
// was written before earlier ones is seen by the block.
__device__ uint32_t add_and_fence(uint32_t* counter) {
  uint32_t before;
  asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;"
               : "=r"(before)
               : "l"(counter)
               : "memory");
  return before;
}

constexpr int stages_of(int head_dim, KvType type) {
  if (is_narrow(type)) return head_dim == 256 ? 2 : 5;
  return head_dim == 64 ? 5 : 3;
}

// The pages first, first + stride, ... of a segment.
struct PageRun {
  int32_t first;
  int32_t count;
  int32_t stride;

  // Does a filter need keys in front of it?
  __device__ bool has_past() const { return first > 0 && count > 0; }
};

// The part of a worker's range that lies in one segment.
struct Part {
  int32_t segment_begin;  // unit
  int32_t kv_head;
  int32_t row_tile;
  int32_t first;  // pages [first, first + count) of the segment
  int32_t count;
  int32_t owner;  // the warp that does all of it, -1 = all warps

  // What a warp reads of it: every fourth page, of a gate a quarter.
  template <bool kGated>
  __device__ PageRun run_of(int32_t warp) const {
    if (owner >= 0) return {first, owner == warp ? count : 0, 1};
    if constexpr (kGated) {
      const int32_t each = ceil_div(count, kWarps);
      const int32_t begin = first + warp * each;
      return {begin, max(0, min(each, first + count - begin)), 1};
    } else {
      const int32_t own = count > warp ? (count - warp + kWarps - 1) / kWarps : 0;
      return {first + warp, own, kWarps};
    }
  }
};

// Walks a worker's range part after part. In shared memory, where each byte counts.
class Cursor {
 public:
  Cursor() = default;
  __device__ explicit Cursor(const WorkerRange& range)
      : entry_(range.entry),
        left_(range.end - range.begin),
        segment_begin_(range.begin - range.page),
        seq_(range.seq),
        first_(range.page),
        unit_step_(range.unit_step),
        kv_head_(static_cast<int16_t>(range.kv_head)),
        row_tile_(static_cast<int8_t>(range.row_tile)) {
    const int32_t pages = max(kLeastSoloPages, min(kMostSoloPages, left_ / kSoloWarps));
    solo_pages_ = static_cast<int8_t>(pages);
  }

  // False at the end, else the next part; seq() is its sequence then.
  __device__ bool next(int32_t num_kv_heads, Part& part) {
    if (left_ == 0) return false;
    if (kv_head_ == num_kv_heads) {
      kv_head_ = 0;
      seq_ = *++entry_;
    }
    const int32_t count = min(seq_.num_pages - first_, left_);
    const int32_t units = segment_units(seq_.num_pages, unit_step_);
    const bool solo = count == seq_.num_pages && count <= solo_pages_;
    part = Part{segment_begin_, kv_head_, row_tile_, first_, count, solo ? solos_++ % kWarps : -1};
    left_ -= min(units - first_, left_);
    segment_begin_ += units;
    first_ = 0;
    if (++row_tile_ == seq_.row_tiles) {
      row_tile_ = 0;
      ++kv_head_;
    }
    return true;
  }

  __device__ const SplitSeq& seq() const { return seq_; }

 private:
  const SplitSeq* entry_;
  int32_t left_;  // units
  // The next part.
  int32_t segment_begin_;
  SplitSeq seq_;
  int32_t first_;
  int32_t unit_step_;
  int16_t kv_head_;
  int8_t row_tile_;
  // Short segments go to one warp each: those of a page, and others if the range has one for every
  // second warp. Where rows must not depend on their company, by the segment alone.
  int8_t solo_pages_;
  int32_t solos_ = 0;
};
static_assert(sizeof(Cursor) == 64);

// How a warp has query rows: up to 16 of them, or up to 8 (attention_few_rows.cuh). By the sequence
// alone, so that a row's bits do not depend on what else is in the step.
template <int kHeadDim, KvType kType, Weighting kWeighting>
struct ManyRows {
  using P = Page<kHeadDim, kType>;
  using Query = typename P::Query;
  using Scores = typename P::Scores;
  using Weights = typename P::Weights;
  using Sums = typename P::Sums;
  using Sight = SplitSight;
  using Weigher = typename WeightsOf<kWeighting>::Type;
  static constexpr bool kInPairs = false;
};
template <int kHeadDim, KvType kType, Weighting kWeighting>
struct FewRows {
  using P = FewRowsPage<kHeadDim, kType>;
  using Query = typename P::Query;
  using Scores = typename P::Scores;
  using Weights = typename P::Weights;
  using Sums = typename P::Sums;
  using Sight = FewRowsSight;
  using Weigher = typename FewRowsWeightsOf<kWeighting>::Type;
  // Two pages go through one step of the softmax, where pages come so fast that its chain of
  // shuffles would be waited for.
  static constexpr bool kInPairs =
      kWeighting == Weighting::kSoftmax && stages_of(kHeadDim, kType) >= 5;
};

// Of the pages of the rings.
template <int kStages, bool kScalesTokens>
struct ScaleRings {
  alignas(16) PageScales of[kWarps][kStages];
};
template <int kStages>
struct ScaleRings<kStages, false> {};

template <int kHeadDim, KvType kType>
struct SplitShared {
  using P = PageShape<kHeadDim, kType>;
  static constexpr int kStages = stages_of(kHeadDim, kType);
  alignas(1024) uint8_t ring[kWarps][kStages][2][P::kBytes];
  float sums[kWarps][kMergeRows][kHeadDim];
  float2 max_sum[kWarps][kMergeRows];
  uint64_t full[kWarps][kStages];
  // Of each warp, here because they take registers in the page loop: where it sends, where it
  // reads.
  Cursor ahead[kWarps];
  Cursor here[kWarps];
  Part part[kWarps];
  uint32_t arrived;
  ScaleRings<kStages, scales_tokens(kType)> scales;
};

// kOnlyFewRows: no sequence has more than kFewRows rows.
template <int kHeadDim, KvType kType, Weighting kWeighting, bool kOnlyFewRows>
class SplitWarp {
 public:
  static constexpr bool kGated = kWeighting != Weighting::kSoftmax;
  using Many = ManyRows<kHeadDim, kType, kWeighting>;
  using Few = FewRows<kHeadDim, kType, kWeighting>;
  using P = PageShape<kHeadDim, kType>;
  using Shared = SplitShared<kHeadDim, kType>;

  __device__ SplitWarp(const AttentionParams& params, const WorkspaceView& work, Shared& shared,
                       const WorkerRange& range)
      : p_(params),
        work_(work),
        shared_(shared),
        range_(range),
        warp_(static_cast<int32_t>(threadIdx.x / 32)),
        lane_(static_cast<int32_t>(threadIdx.x % 32)),
        is_sparse_(kGated && clips_at_zero(params.gate) &&
                   range.even_pages >= params.gate.least_sparse_pages) {
    if (lane_ == 0) {
      shared_.ahead[warp_] = Cursor(range_);
      shared_.here[warp_] = Cursor(range_);
    }
    __syncwarp();
  }

  // Sends for the warp's first pages; with `only_old` up to the first that this step writes to.
  __device__ void start(bool only_old) {
    for (; started_ < Shared::kStages; ++started_) {
      if (only_old && (!find_page() || sent_ >= old_)) break;
      send(started_);
    }
  }

  __device__ void run() {
    start(false);
    Part part;
    while (step(shared_.here[warp_], part)) {
      if (lane_ == 0) shared_.part[warp_] = part;
      __syncwarp();
      if (part.owner >= 0 && part.owner != warp_) continue;
      const SplitSeq& seq = shared_.here[warp_].seq();
      if (kOnlyFewRows || has_few_rows(p_.config, seq.q_len)) {
        attend<Few>(seq, shared_.part[warp_]);
      } else {
        attend<Many>(seq, shared_.part[warp_]);
      }
    }
  }

 private:
  // The next part of a cursor that the warp shares.
  __device__ bool step(Cursor& cursor, Part& part) {
    Cursor moved = cursor;
    const bool found = moved.next(p_.config.num_kv_heads, part);
    __syncwarp();
    if (lane_ == 0) cursor = moved;
    __syncwarp();
    return found;
  }

  // The part that has the warp's next page. False: there is none.
  __device__ bool find_page() {
    while (sent_ == to_send_) {
      Part part;
      if (!step(shared_.ahead[warp_], part)) return false;
      const SplitSeq& seq = shared_.ahead[warp_].seq();
      const PageRun run = part.run_of<kGated>(warp_);
      const int32_t first = seq.first_page + run.first;
      pages_ = p_.block_table + seq.table_row * p_.max_blocks + first;
      stride_ = run.stride;
      to_send_ = run.count;
      has_past_ = run.has_past();
      kv_head_ = part.kv_head;
      sent_ = 0;
      old_ = ceil_div((seq.kv_len - seq.q_len) / kPageTokens - first, stride_);
    }
    return true;
  }

  // Copies the warp's next page, of this part or a later one, to a stage that is no longer read.
  __device__ void send(int32_t stage) {
    if (!find_page()) return;
    if (sent_ % 32 == 0) {
      const int32_t mine = sent_ + lane_;
      ids_ = mine < to_send_ ? pages_[mine * stride_] : 0;
      if (kGated && has_past_ && sent_ == 0) past_block_ = pages_[-1];
    }
    const int32_t block = __shfl_sync(kAllLanes, ids_, sent_ % 32);
    ++sent_;
    if (lane_ == 0) {
      const uint32_t full = shared_address(&shared_.full[warp_][stage]);
      const uint32_t k = shared_address(shared_.ring[warp_][stage][0]);
      const bool keys_only = kGated && is_sparse_;
      constexpr uint32_t kScaleBytes = scales_tokens(kType) ? sizeof(PageScales) : 0;
      barrier_expect(full, keys_only ? P::kBytes : 2 * P::kBytes + kScaleBytes);
      if constexpr (scales_tokens(kType)) {
        copy_scales(shared_.scales.of[warp_][stage], p_, kv_head_, block, full);
      }
      if (keys_only) {
        copy_keys<P>(&p_.kv, p_.config.num_kv_heads, kv_head_, block, k, full);
      } else if constexpr (P::kFullGroups) {
        copy_whole_page(k, &p_.kv, kv_head_, block, full);
      } else {
        copy_page<P>(&p_.kv, p_.config.num_kv_heads, kv_head_, block, k, k + P::kBytes, full);
      }
    }
    if (kGated && has_past_ && sent_ == 1) prefetch_past();
  }

  // The keys in front of a run that the filter looks back at are the last ones of a page.
  __device__ const uint8_t* past_keys(int32_t block, int32_t kv_head, int32_t back) const {
    const int64_t page = int64_t{2} * block * p_.config.num_kv_heads + kv_head;
    return static_cast<const uint8_t*>(p_.kv_storage) +
           ((page + 1) * kPageTokens - back) * P::kRowBytes;
  }
  // To L2, where they are when the warp comes to the run that is being sent for.
  __device__ void prefetch_past() const {
    constexpr int kSector = 32;
    const int32_t back = p_.gate.length - 1;
    const uint8_t* const keys = past_keys(past_block_, kv_head_, back);
    for (int32_t i = lane_ * kSector; i < back * P::kRowBytes; i += 32 * kSector) {
      asm volatile("prefetch.global.L2 [%0];" ::"l"(keys + i));
    }
  }
  __device__ void load_past(typename P::Keys& keys, const SplitSeq& seq, const Part& part,
                            const PageRun& run) const {
    const int32_t* const pages =
        p_.block_table + seq.table_row * p_.max_blocks + seq.first_page + run.first;
    const int32_t block = pages == pages_ ? past_block_ : pages[-1];
    const int32_t back = 8 - lane_ / 4;  // of the lane's token
    P::load_keys(keys, back < p_.gate.length ? past_keys(block, part.kv_head, back) : nullptr,
                 lane_ % 4);
  }

  template <typename Rows>
  __device__ void attend(const SplitSeq& seq, const Part& part) {
    const int g = lane_ / 4;
    const QueryRows rows =
        QueryRows::of<kHeadDim>(p_.config, seq.q_begin, seq.q_len, seq.kv_len, part.kv_head);
    const int32_t row = part.row_tile * kRowTile;
    const PageRun run = part.run_of<kGated>(warp_);
    const bool looks_back = kGated && run.has_past();
    typename P::Keys past;
    if (looks_back) load_past(past, seq, part, run);
    typename Rows::Sums out = {};
    typename Rows::Query q;
    const auto* q_rows = static_cast<const __nv_bfloat16*>(p_.q);
    Rows::P::load_q(
        q, row + g < rows.count ? q_rows + rows.offset<kHeadDim>(row + g) : nullptr,
        row + g + 8 < rows.count ? q_rows + rows.offset<kHeadDim>(row + g + 8) : nullptr,
        lane_ % 4);
    const int32_t own_row = row + Rows::P::row_of(lane_, 0);
    typename Rows::Weigher weigher(p_, rows, part.kv_head, own_row);
    // Read here, so that nobody waits for it at the end. Of the rows that the thread writes.
    RowEnd ends[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int32_t r = part.owner < 0 ? half * kMergeRows + static_cast<int32_t>(threadIdx.x) / 16
                                       : Rows::P::row_of(lane_, half);
      ends[half] = end_of_row(rows, row + r, part.kv_head);
    }
    if (run.count > 0) {
      // Pages that all rows of the segment see whole need no mask.
      const typename Rows::Sight sight(p_, seq, rows, own_row);
      if constexpr (kGated) {
        if (looks_back) {
          float s[4];
          Rows::P::scores_of(s, q, past);
          weigher.look_back(s, (seq.first_page + run.first) * kPageTokens - 8, sight, lane_);
        }
      }
      if (is_sparse_) {
        add_sparse_pages<Rows>(seq, part, run, q, sight, weigher, out);
      } else {
        add_pages<Rows>(seq, run, q, sight, weigher, out);
      }
    }
    weigher.settle(out);
    if (part.owner < 0) {
      finish<Rows>(seq, part, rows, out, weigher, ends);
    } else {
      write_alone<Rows>(part, rows, out, weigher, ends);
    }
    // The weights of sparse values lie where the warps' sums do: their readers are done then.
    if (is_sparse_ && part.owner < 0) __syncthreads();
  }

  // Waits for the keys of the page `ahead` (0 or 1) pages behind the ring's begin: their raw
  // products.
  template <typename Rows, typename Scores>
  __device__ void score(Scores& s, const typename Rows::Query& q, int32_t ahead) const {
    const bool wraps = stage_ + ahead >= Shared::kStages;
    const int32_t stage = wraps ? stage_ + ahead - Shared::kStages : stage_ + ahead;
    barrier_wait(shared_address(&shared_.full[warp_][stage]), wraps ? phase_ ^ 1 : phase_);
    Rows::P::scores(s, q, shared_address(shared_.ring[warp_][stage][0]), lane_);
    if constexpr (scales_tokens(kType)) {
      Rows::P::scale_keys(s, shared_.scales.of[warp_][stage], lane_);
    }
  }
  // Leaves the page at the ring's begin.
  __device__ void pass_page() {
    __syncwarp();
    send(stage_);
    if (++stage_ == Shared::kStages) {
      stage_ = 0;
      phase_ ^= 1;
    }
  }

  template <typename Rows>
  __device__ void add_pages(const SplitSeq& seq, const PageRun& run, const typename Rows::Query& q,
                            const typename Rows::Sight& sight, typename Rows::Weigher& weigher,
                            typename Rows::Sums& out) {
    const int32_t step = run.stride * kPageTokens;
    int32_t begin = (seq.first_page + run.first) * kPageTokens;
    int32_t i = 0;
    if constexpr (Rows::kInPairs) {
      for (; i + 1 < run.count; i += 2, begin += 2 * step) {
        float s[2][4];
        score<Rows>(s[0], q, 0);
        score<Rows>(s[1], q, 1);
        weigher.weigh(s, out, begin, sight, lane_, step);
        add_values<Rows>(s[0], seq.kv_len - begin, out);
        add_values<Rows>(s[1], seq.kv_len - begin - step, out);
      }
    }
    for (; i < run.count; ++i, begin += step) {
      typename Rows::Scores s;
      score<Rows>(s, q, 0);
      weigher.weigh(s, out, begin, sight, lane_);
      add_values<Rows>(s, seq.kv_len - begin, out);
    }
  }
  // Of the page at the ring's begin, which it leaves; `s`: its weights.
  template <typename Rows, typename Scores>
  __device__ void add_values(Scores& s, int32_t tokens, typename Rows::Sums& out) {
    if constexpr (scales_tokens(kType)) {
      Rows::P::scale_values(s, shared_.scales.of[warp_][stage_], tokens, lane_);
    }
    typename Rows::Weights weights;
    Rows::P::pack_weights(weights, s);
    Rows::P::template add_values<true>(out, weights, shared_address(shared_.ring[warp_][stage_][1]),
                                       tokens, lane_);
    pass_page();
  }

  template <typename Rows>
  __device__ void add_sparse_pages(const SplitSeq& seq, const Part& part, const PageRun& run,
                                   const typename Rows::Query& q, const typename Rows::Sight& sight,
                                   typename Rows::Weigher& weigher, typename Rows::Sums& out) {
    if constexpr (kGated) {
      const int32_t first = seq.first_page + run.first;
      const int32_t* pages = p_.block_table + seq.table_row * p_.max_blocks + first;
      SparseValues<Shared, typename Rows::P> values(p_, shared_, warp_, lane_);
      int32_t ids = 0;  // lane i has the block of page i / 32 * 32 + i
      for (int32_t i = 0; i < run.count; ++i) {
        if (i % 32 == 0) ids = i + lane_ < run.count ? pages[i + lane_] : 0;
        const int32_t block = __shfl_sync(kAllLanes, ids, i % 32);
        typename Rows::Scores s;
        score<Rows>(s, q, 0);
        weigher.weigh(s, out, (first + i) * kPageTokens, sight, lane_);
        pass_page();
        values.add(s, ((2 * block + 1) * p_.config.num_kv_heads + part.kv_head) * kPageTokens, out);
      }
      values.finish(out);
    }
  }

  // The result of a part that this warp had for itself.
  template <typename Rows>
  __device__ void write_alone(const Part& part, const QueryRows& rows,
                              const typename Rows::Sums& out, const typename Rows::Weigher& weigher,
                              const RowEnd (&ends)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int32_t r = part.row_tile * kRowTile + Rows::P::row_of(lane_, half);
      const float over = weigher.over(half, ends[half]);
      if (r >= rows.count) continue;
      Rows::P::write_row(static_cast<__nv_bfloat16*>(p_.out) + rows.offset<kHeadDim>(r), out, half,
                         over, lane_);
    }
  }

  // Adds up the warps' sums, 8 rows a pass, and writes the result or the worker's partial result.
  template <typename Rows>
  __device__ void finish(const SplitSeq& seq, const Part& part, const QueryRows& rows,
                         const typename Rows::Sums& out, const typename Rows::Weigher& weigher,
                         const RowEnd (&ends)[2]) {
    const int32_t begin = part.row_tile * kRowTile;
    const int32_t count = min(kRowTile, rows.count - begin);
    const int32_t warps = min(kWarps, part.count);
    const bool whole = part.count == seq.num_pages;
    const int32_t index =
        2 * static_cast<int32_t>(blockIdx.x) + (part.segment_begin >= range_.begin ? 1 : 0);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (half * kMergeRows >= count) break;
      const int32_t r = half * kMergeRows + static_cast<int32_t>(threadIdx.x) / 16;
      __syncthreads();  // the buffer's last readers are done
      if (warp_ < warps) store_sums<Rows>(out, weigher, half);
      __syncthreads();
      if (r >= count) continue;
      float2 total;
      float factor[kWarps];
      merge_factors(r % kMergeRows, warps, factor, total);
      if (whole) {
        write_row<Rows>(rows.offset<kHeadDim>(begin + r), r % kMergeRows, warps, factor,
                        over_of(ends[half], total));
      } else {
        write_partial<Rows>(index * kRowTile + r, r % kMergeRows, warps, factor, total);
      }
    }
    if (!whole) arrive(part, part.segment_begin + seq.num_pages, rows, count);
  }

  template <typename Rows>
  __device__ void store_sums(const typename Rows::Sums& out, const typename Rows::Weigher& weigher,
                             int half) {
    if constexpr (!kGated) weigher.store(shared_.max_sum[warp_], half, lane_);
    Rows::P::store_sums(shared_.sums[warp_], out, half, lane_);
  }

  // By what the warps' sums of a row are multiplied when they are added up, and the row's total.
  __device__ void merge_factors(int row, int warps, float (&factor)[kWarps], float2& total) {
    total = make_float2(minus_infinity(), 0);
    if constexpr (kGated) {
#pragma unroll
      for (float& one : factor) one = 1;
    } else {
      for (int w = 0; w < warps; ++w) total.x = fmaxf(total.x, shared_.max_sum[w][row].x);
      const float shift = total.x == minus_infinity() ? 0.0f : total.x;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        factor[w] = 0;
        if (w < warps) {
          const float2 one = shared_.max_sum[w][row];
          factor[w] = exp2_fast(one.x - shift);
          total.y += one.y * factor[w];
        }
      }
    }
  }

  // Four columns of a row over all warps.
  template <typename Rows>
  __device__ float4 merged(int row, int column, int warps, const float (&factor)[kWarps]) {
    float4 sum = {};
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      if (w < warps) {
        const float4 one = *reinterpret_cast<const float4*>(
            &shared_.sums[w][row][Rows::P::column_at(row, column)]);
        sum.x += one.x * factor[w];
        sum.y += one.y * factor[w];
        sum.z += one.z * factor[w];
        sum.w += one.w * factor[w];
      }
    }
    return sum;
  }

  template <typename Rows>
  __device__ void write_row(int64_t offset, int row, int warps, const float (&factor)[kWarps],
                            float over) {
    for (int column = static_cast<int>(threadIdx.x) % 16 * 4; column < kHeadDim; column += 64) {
      write_four(offset + column, merged<Rows>(row, column, warps, factor), over);
    }
  }

  __device__ void write_four(int64_t at, const float4& sum, float over) {
    *reinterpret_cast<uint2*>(static_cast<__nv_bfloat16*>(p_.out) + at) =
        make_uint2(pack_bf16(sum.x * over, sum.y * over), pack_bf16(sum.z * over, sum.w * over));
  }

  template <typename Rows>
  __device__ void write_partial(int32_t index, int row, int warps, const float (&factor)[kWarps],
                                const float2& total) {
    const int lane = static_cast<int>(threadIdx.x) % 16;
    if (!kGated && lane == 0) work_.partial_max_sum[index] = total;
    for (int column = lane * 4; column < kHeadDim; column += 64) {
      *reinterpret_cast<float4*>(work_.partial_out + int64_t{index} * kHeadDim + column) =
          merged<Rows>(row, column, warps, factor);
    }
  }

  // Tells that this worker's partial result is in index; the last of a segment adds them up.
  __device__ void arrive(const Part& part, int32_t end, const QueryRows& rows, int32_t count) {
    // The workers with a bound inside the segment (WorkerRange: none within `slack` of its ends).
    const int32_t first = (part.segment_begin + range_.slack) / range_.share;
    const int32_t last = (end - range_.slack - 1) / range_.share;
    __syncthreads();
    if (threadIdx.x == 0) shared_.arrived = add_and_fence(&work_.arrivals[first]);
    __syncthreads();
    if (shared_.arrived != static_cast<uint32_t>(last - first)) return;
    if (threadIdx.x == 0) work_.arrivals[first] = 0;
    add_partials(part, first, last, rows, count);
  }

  // Adds up the partial results of workers [first, last], four columns of a row a thread, and
  // writes the segment's. Short code: a block runs it once, and fetching instructions takes longer.
  __device__ void add_partials(const Part& part, int32_t first, int32_t last, const QueryRows& rows,
                               int32_t count) {
    constexpr int kQuads = kHeadDim / 4;
    constexpr int kBatch = 8;  // workers whose loads are on their way at once
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < count * kQuads; i += kThreads) {
      const int32_t row = i / kQuads;
      const int32_t column = i % kQuads * 4;
      const int32_t r = part.row_tile * kRowTile + row;
      const RowEnd end = end_of_row(rows, r, part.kv_head);
      float2 total = make_float2(minus_infinity(), 0);
      float4 sum = {};
#pragma unroll 1
      for (int32_t from = first; from <= last; from += kBatch) {
        float2 totals[kBatch];
        float4 values[kBatch];
#pragma unroll
        for (int j = 0; j < kBatch; ++j) {
          const int32_t w = from + j;
          // The first worker's part is its range's last one, the others' their first one.
          const int32_t index = (2 * w + (w == first ? 1 : 0)) * kRowTile + row;
          load_partial(index, column, w <= last, totals[j], values[j]);
        }
#pragma unroll
        for (int j = 0; j < kBatch; ++j) add_partial(total, sum, totals[j], values[j]);
      }
      write_four(rows.offset<kHeadDim>(r) + column, sum, over_of(end, total));
    }
  }

  __device__ void load_partial(int32_t index, int32_t column, bool exists, float2& total,
                               float4& values) const {
    total = make_float2(minus_infinity(), 0);
    values = float4{};
    if (!exists) return;
    if (!kGated) total = __ldcg(&work_.partial_max_sum[index]);
    values = __ldcg(
        reinterpret_cast<const float4*>(work_.partial_out + int64_t{index} * kHeadDim + column));
  }

  __device__ static void add_partial(float2& total, float4& sum, const float2& other,
                                     const float4& values) {
    float mine = 1;
    float its = 1;
    if constexpr (!kGated) {
      const float top = fmaxf(total.x, other.x);
      const float shift = top == minus_infinity() ? 0.0f : top;
      mine = exp2_fast(total.x - shift);
      its = exp2_fast(other.x - shift);
      total = make_float2(top, total.y * mine + other.y * its);
    }
    sum.x = sum.x * mine + values.x * its;
    sum.y = sum.y * mine + values.y * its;
    sum.z = sum.z * mine + values.z * its;
    sum.w = sum.w * mine + values.w * its;
  }

  // What the sums of a row over the whole segment are multiplied with. `end` is read in front of
  // what they wait for.
  __device__ static float over_of(const RowEnd& end, const float2& total) {
    return kGated ? end.scale : end.over(total.x, total.y);
  }
  // Row r may lie past the end.
  __device__ RowEnd end_of_row(const QueryRows& rows, int32_t r, int32_t kv_head) const {
    const float v_scale = value_scale_of<kType>(p_, kv_head);
    return Many::Weigher::end_of(p_, v_scale, rows.head(r, kv_head));
  }

  const AttentionParams& p_;
  const WorkspaceView& work_;
  Shared& shared_;
  const WorkerRange& range_;
  const int32_t warp_;
  const int32_t lane_;
  const bool is_sparse_;  // values are read for the tokens that some row weighs
  // The ring: the stage that is read next, and of its barrier the phase.
  int32_t stage_ = 0;
  uint32_t phase_ = 0;
  // What is sent next.
  const int32_t* pages_ = nullptr;
  int32_t stride_ = 1;
  bool has_past_ = false;   // PageRun::has_past()
  int32_t past_block_ = 0;  // then: of the page in front of pages_, once the first one is sent for
  int32_t sent_ = 0;
  int32_t to_send_ = 0;
  int32_t kv_head_ = 0;
  int32_t ids_ = 0;  // lane i has the block of page sent_ / 32 * 32 + i
  // At the start: stages that are sent for; pages of the part that this step does not write to.
  int32_t started_ = 0;
  int32_t old_ = 0;
};

template <int kHeadDim, KvType kType, Weighting kWeighting, bool kOnlyFewRows>
__global__ void __launch_bounds__(kThreads, split_blocks_per_sm(kHeadDim, kType))
    split_kernel(const __grid_constant__ AttentionParams p) {
  extern __shared__ __align__(1024) uint8_t raw[];
  using Warp = SplitWarp<kHeadDim, kType, kWeighting, kOnlyFewRows>;
  auto& shared = *reinterpret_cast<typename Warp::Shared*>(raw);
  if (threadIdx.x == 0) {
    prefetch_map(kHeadDim == 96 ? p.kv.packed : p.kv.page);
    for (auto& ring : shared.full) {
      for (uint64_t& barrier : ring) barrier_init(shared_address(&barrier), 1);
    }
    barrier_init_fence();
  }
  if constexpr (kWeighting != Weighting::kSoftmax) prefetch_gate(p);
  __syncthreads();
  if (!p.reads_ahead) dependency_wait();
  WorkspaceView work;
  view_workspace(p.workspace, &work);
  const WorkerRange& range = work.workers[blockIdx.x];
  const bool has_work = range.begin < range.end;
  Warp warp(p, work, shared, range);
  if (p.reads_ahead) {
    if (has_work) warp.start(true);
    dependency_wait();
  }
  dependency_trigger();
  if (has_work) warp.run();
  write_zeros<kHeadDim, kThreads>(p, work, range.num_empty);
}

template <int kHeadDim, KvType kType, Weighting kWeighting, bool kOnlyFewRows>
cudaError_t launch_rows(const AttentionParams& params, cudaStream_t stream) {
  constexpr auto* kKernel = split_kernel<kHeadDim, kType, kWeighting, kOnlyFewRows>;
  constexpr size_t kShared =
      sizeof(typename SplitWarp<kHeadDim, kType, kWeighting, kOnlyFewRows>::Shared);
  static_assert((kShared + 1024) * split_blocks_per_sm(kHeadDim, kType) <= 228 * 1024);
  const cudaError_t error =
      cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  if (error != cudaSuccess) return error;
  return launch_pdl(kKernel, dim3(static_cast<unsigned>(split_workers(params.config))),
                    dim3(kThreads), kShared, stream, params);
}

template <int kHeadDim, KvType kType, Weighting kWeighting>
struct Launch {
  static cudaError_t run(const AttentionParams& params, cudaStream_t stream) {
    // Bounds are of sequences that are no trees.
    const bool only_few_rows =
        params.ancestors == nullptr && has_few_rows(params.config, params.bounds.max_q_len);
    return only_few_rows ? launch_rows<kHeadDim, kType, kWeighting, true>(params, stream)
                         : launch_rows<kHeadDim, kType, kWeighting, false>(params, stream);
  }
};

}  // namespace

cudaError_t launch_attention_split(const AttentionParams& params, cudaStream_t stream) {
  return launch_of_config<Launch, true>(params, stream);
}

}  // namespace rudder::cuda
