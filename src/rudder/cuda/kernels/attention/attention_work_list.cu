// The work list of attention: one block reads the lengths of the step's sequences and writes the
// records of attention_work.cuh. It runs once a step and touches a few KB.
#include "rudder/cuda/kernels/attention/attention_tile_list.cuh"
#include "rudder/cuda/kernels/attention/attention_work.cuh"
#include "rudder/cuda/kernels/launch.h"
#include "rudder/cuda/kernels/tree_path.cuh"

namespace rudder::cuda {
namespace {

constexpr int kThreads = kWorkListThreads;
constexpr int kWarps = kThreads / 32;
constexpr int kSlackParts = 16;  // a share, in slacks

// What one sequence adds to each list.
struct Counts {
  int32_t pages = 0;  // of split segments
  int32_t segments = 0;
  int32_t split = 0;
  int32_t tiled = 0;
  int32_t empty = 0;
  int32_t tiles = 0;

  __device__ Counts& operator+=(const Counts& other) {
    pages += other.pages;
    segments += other.segments;
    split += other.split;
    tiled += other.tiled;
    empty += other.empty;
    tiles += other.tiles;
    return *this;
  }
  // Of the segments, where kGapPages follow each.
  __device__ int32_t units() const { return pages + segments * kGapPages; }
};

__device__ Counts shuffle_up(const Counts& c, int by) {
  constexpr uint32_t kAll = 0xffffffffu;
  return Counts{__shfl_up_sync(kAll, c.pages, by), __shfl_up_sync(kAll, c.segments, by),
                __shfl_up_sync(kAll, c.split, by), __shfl_up_sync(kAll, c.tiled, by),
                __shfl_up_sync(kAll, c.empty, by), __shfl_up_sync(kAll, c.tiles, by)};
}

// Inclusive sums over the block in the order of the threads; `scratch` holds one of each warp.
__device__ Counts block_scan(Counts mine, Counts* scratch) {
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  for (int by = 1; by < 32; by *= 2) {
    const Counts below = shuffle_up(mine, by);
    if (lane >= by) mine += below;
  }
  __syncthreads();  // the last call's readers are done
  if (lane == 31) scratch[warp] = mine;
  __syncthreads();
  if (warp == 0) {
    Counts sum = scratch[lane];
    for (int by = 1; by < kWarps; by *= 2) {
      const Counts below = shuffle_up(sum, by);
      if (lane >= by) sum += below;
    }
    scratch[lane] = sum;
  }
  __syncthreads();
  if (warp > 0) mine += scratch[warp - 1];
  return mine;
}

struct Totals {
  bool splits_short;  // splits_either()
  Counts sum;         // of the sequences so far
  int32_t max_pages;  // of a split sequence
  int32_t min_pages;
  int32_t tiled_pages;  // that tiles of a KV head read
};

// What the search for a unit reads of a SplitSeq, in shared memory for the first kSpans.
struct Span {
  int32_t unit_begin;
  int32_t num_pages;
};
constexpr int kSpans = 2048;

// Which kernel takes a sequence.
enum class Taker { kNone, kSplit, kEither, kTiled };

__device__ Taker taker_of(const AttentionConfig& config, int32_t q_len, int32_t kv_len,
                          bool is_tree) {
  if (q_len <= 0 || kv_len <= 0) return Taker::kNone;
  if (is_tree) return config.whole_sequences ? Taker::kTiled : Taker::kSplit;
  if (attention_is_split(config, q_len)) return Taker::kSplit;
  const int32_t group = config.num_heads / config.num_kv_heads;
  const bool is_short = !config.whole_sequences && q_len * group <= kMaxSplitRows;
  return is_short ? Taker::kEither : Taker::kTiled;
}

__device__ bool is_tree_of(const AttentionWorkParams& p, int32_t begin, int32_t q_len) {
  return p.ancestors != nullptr && q_len > 0 && p.ancestors[begin] != 0;
}

// Its pages and row tiles; all of it but unit_begin.
__device__ SplitSeq split_seq(const AttentionWorkParams& p, int32_t s) {
  const int32_t group = p.config.num_heads / p.config.num_kv_heads;
  SplitSeq seq = {};
  seq.q_begin = p.q_begin[s];
  seq.q_len = p.q_begin[s + 1] - seq.q_begin;
  seq.kv_len = p.kv_len[s];
  seq.table_row = p.table_row[s];
  const int32_t first = first_visible(seq.kv_len - seq.q_len, p.config.window);
  seq.first_page = first / kAttentionBlockSize;
  seq.num_pages = ceil_div(seq.kv_len, kAttentionBlockSize) - seq.first_page;
  seq.row_tiles = ceil_div(seq.q_len * group, kRowTile);
  return seq;
}

// Tiles of a step, in steps of 64 keys.
struct TileLoad {
  unsigned long long all;
  int32_t longest;

  __device__ void add(const SplitSeq& seq, const AttentionConfig& config) {
    const int32_t group = config.num_heads / config.num_kv_heads;
    const int32_t tiles = ceil_div(seq.q_len * group, tile_rows(config));
    const int32_t steps = ceil_div(seq.num_pages * kAttentionBlockSize, 64);
    atomicAdd(&all, static_cast<unsigned long long>(tiles) * config.num_kv_heads * steps);
    atomicMax(&longest, steps);
  }
  // Steps that the device takes one after the other. A multiprocessor that has other tiles of the
  // mma kernel beside one takes two thirds of the time for a step. Those of the wgmma kernel are
  // cut where they are few (cut_tail()).
  __device__ int64_t in_turn(const AttentionConfig& config, bool cuts) const {
    constexpr int64_t kCutSteps = 10;  // that cutting costs
    const auto steps = static_cast<int64_t>(all);
    int64_t last = longest;
    if (cuts) {
      last = min(last, steps / config.num_sms + kCutSteps);
    }
    return max(2 * steps / (3 * config.num_sms), last);
  }
};

struct Either {
  TileLoad with, without;    // the sequences that either kernel may take
  unsigned long long units;  // of these
};

// Are the sequences split that either kernel may take? Where they are few, their tiles leave most
// of the device without work and each goes through a whole context alone; where they are many,
// split ones read it once more for every 16 rows (ADR 0008).
__device__ bool splits_either(const AttentionWorkParams& p, Either* either) {
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  if (p.config.whole_sequences || attention_is_split(p.config, p.bounds.max_q_len)) return false;
  if (thread == 0) *either = Either{};
  __syncthreads();
  for (int32_t s = thread; s < p.bounds.num_seqs; s += kThreads) {
    const SplitSeq seq = split_seq(p, s);
    const Taker taker =
        taker_of(p.config, seq.q_len, seq.kv_len, is_tree_of(p, seq.q_begin, seq.q_len));
    if (taker != Taker::kEither && taker != Taker::kTiled) continue;
    either->with.add(seq, p.config);
    if (taker == Taker::kTiled) {
      either->without.add(seq, p.config);
    } else {
      atomicAdd(&either->units, static_cast<unsigned long long>(seq.num_pages) *
                                    p.config.num_kv_heads * seq.row_tiles);
    }
  }
  __syncthreads();
  const bool cuts = cuts_tiles(p.config, p.bounds);
  const int64_t steps =
      either->with.in_turn(p.config, cuts) - either->without.in_turn(p.config, cuts);
  const auto units = static_cast<int64_t>(either->units);
  const int64_t split_ns = kSplitNs + units * unit_ns(p.config) / split_workers(p.config);
  return split_ns < steps * tile_step_ns(p.config);
}

// Of a tree the tiled kernel has each token for itself, its path as a sequence.
__device__ TiledSeq tiled_token(const AttentionWorkParams& p, const SplitSeq& tree, int32_t i) {
  const TreePath path{p.ancestors[tree.q_begin + i], tree.kv_len - tree.q_len};
  TiledSeq tiled = {};
  tiled.q_begin = tree.q_begin + i;
  tiled.q_len = 1;
  tiled.kv_len = path.end();
  tiled.path_base = path.base;
  tiled.path = path.tokens;
  return tiled;
}

__device__ void list_sequences(const AttentionWorkParams& p, const WorkspaceView& work,
                               Counts* scratch, Totals* totals, Span* spans) {
  const int32_t heads = p.config.num_kv_heads;
  const int32_t group = p.config.num_heads / heads;
  const int32_t rows = tile_rows(p.config);
  for (int32_t base = 0; base < p.bounds.num_seqs; base += kThreads) {
    const int32_t s = base + static_cast<int32_t>(threadIdx.x);
    SplitSeq seq = {};
    bool is_tree = false;
    Counts mine;
    if (s < p.bounds.num_seqs) {
      seq = split_seq(p, s);
      is_tree = is_tree_of(p, seq.q_begin, seq.q_len);
      const Taker taker = taker_of(p.config, seq.q_len, seq.kv_len, is_tree);
      if (taker == Taker::kNone) {
        mine.empty = seq.q_len > 0 ? 1 : 0;
      } else if (taker == Taker::kSplit || (taker == Taker::kEither && totals->splits_short)) {
        mine.split = 1;
        mine.segments = heads * seq.row_tiles;
        mine.pages = seq.num_pages * mine.segments;
        atomicMax(&totals->max_pages, seq.num_pages);
        atomicMin(&totals->min_pages, seq.num_pages);
      } else {
        mine.tiled = is_tree ? seq.q_len : 1;
        mine.tiles = is_tree ? seq.q_len : ceil_div(seq.q_len * group, rows);
        atomicAdd(&totals->tiled_pages, seq.num_pages);
      }
    }
    const Counts upto = block_scan(mine, scratch);
    const Counts before = totals->sum;
    if (mine.split > 0) {
      seq.unit_begin = before.units() + upto.units() - mine.units();
      const int32_t entry = before.split + upto.split - 1;
      work.split[entry] = seq;
      if (entry < kSpans) spans[entry] = Span{seq.unit_begin, seq.num_pages};
    } else if (mine.tiled > 0) {
      for (int32_t i = 0; i < mine.tiled; ++i) {
        TiledSeq tiled = {};
        if (is_tree) {
          tiled = tiled_token(p, seq, i);
        } else {
          tiled.q_begin = seq.q_begin;
          tiled.q_len = seq.q_len;
          tiled.kv_len = seq.kv_len;
        }
        tiled.tile_begin = before.tiles + upto.tiles - mine.tiles + i;
        tiled.table_row = seq.table_row;
        work.tiled[before.tiled + upto.tiled - mine.tiled + i] = tiled;
      }
    } else if (mine.empty > 0) {
      work.empty[before.empty + upto.empty - 1] = EmptySeq{seq.q_begin, seq.q_len};
    }
    __syncthreads();  // every thread has read totals->sum
    if (threadIdx.x == kThreads - 1) totals->sum += upto;
    __syncthreads();
  }
}

// How the line of units is cut.
struct Cut {
  int32_t units;      // of all segments
  int32_t share;      // units a worker
  int32_t unit_step;  // segment_units()
  int32_t slack;      // a bound so near a segment's begin or end moves there
  int32_t even_pages;
};

__device__ int32_t least_share(const AttentionConfig& config, const Totals& totals, int32_t units,
                               int32_t workers) {
  const int32_t floor = is_wide(config.head_dim) ? kMaxWideShareFloor : kMaxShareFloor;
  const int32_t least = min(totals.max_pages, floor);
  return max(max(ceil_div(units, workers), least), 1);
}

// The least share with which each part is a worker's own, if it is not kPartPages more than the
// least of all; 0: there is none. `parts` is of the block.
__device__ int32_t share_of_parts(const AttentionWorkParams& p, const WorkspaceView& work,
                                  const Totals& totals, int32_t workers,
                                  int32_t (&parts)[kPartPages + 1]) {
  const int32_t least = least_share(p.config, totals, totals.sum.pages, workers);
  const int32_t entry = static_cast<int32_t>(threadIdx.x);
  if (totals.sum.split == 0 || totals.sum.split * p.config.num_kv_heads > workers) return 0;
  if (entry <= kPartPages) parts[entry] = 0;
  __syncthreads();
  if (entry < totals.sum.split) {
    const SplitSeq& seq = work.split[entry];
    for (int32_t more = 0; more <= kPartPages; ++more) {
      const int32_t of_segment = ceil_div(seq.num_pages, least + more);
      atomicAdd(&parts[more], of_segment * seq.row_tiles * p.config.num_kv_heads);
    }
  }
  __syncthreads();
  for (int32_t more = 0; more <= kPartPages; ++more) {
    if (parts[more] <= workers) return least + more;
  }
  return 0;
}

// Numbers units anew, so that each segment begins with a share. Returns how many there are.
__device__ int32_t space_segments(const AttentionWorkParams& p, const WorkspaceView& work,
                                  int32_t share, Counts* scratch, const Totals& totals, Span* spans,
                                  int32_t* units) {
  const int32_t entry = static_cast<int32_t>(threadIdx.x);
  const bool exists = entry < totals.sum.split;
  Counts mine;
  if (exists) {
    const SplitSeq& seq = work.split[entry];
    mine.pages = segment_units(seq.num_pages, share) * seq.row_tiles * p.config.num_kv_heads;
  }
  const Counts upto = block_scan(mine, scratch);
  if (exists) {
    spans[entry].unit_begin = upto.pages - mine.pages;
    work.split[entry].unit_begin = spans[entry].unit_begin;
  }
  if (threadIdx.x == kThreads - 1) *units = upto.pages;
  __syncthreads();
  return *units;
}

// Have all segments one length?
__device__ bool is_even(const Totals& totals) {
  return totals.min_pages == totals.max_pages;
}

// Units a worker, of segments that kGapPages follow.
__device__ int32_t share_of(const AttentionConfig& config, const Totals& totals, int32_t workers) {
  const int32_t share = least_share(config, totals, totals.sum.units(), workers);
  // Segments of one length need not be cut when that costs no more than the slack.
  const int32_t segment = segment_units(totals.max_pages, 0);
  const int32_t whole = ceil_div(share, segment) * segment;
  return is_even(totals) && whole <= share + share / kSlackParts ? whole : share;
}

// WorkerRange::even_pages. Parts of segments that differ in length end at different times, and then
// keys and values that come together keep the copy engine busy where keys alone would not
// (measured, ADR 0037).
__device__ int32_t even_pages(const AttentionConfig& config, const Totals& totals,
                              int32_t workers) {
  const int32_t mean = ceil_div(totals.sum.pages, workers);
  const int32_t uneven = config.head_dim == 128 ? 6 : 12;
  return is_even(totals) ? mean : max(mean / uneven, 1);
}

// As many KV heads as fit, in even sections. All of them, where blocks that run at the same time
// read the same keys anyway.
__device__ int32_t section_heads(const AttentionConfig& config, const Totals& totals) {
  const int32_t heads = config.num_kv_heads;
  if (totals.sum.tiled * heads <= config.num_sms) return heads;
  const int64_t head_bytes = int64_t{2} * totals.tiled_pages * kAttentionBlockSize *
                             config.head_dim * (config.kv_type == KvType::kBf16 ? 2 : 1);
  const int64_t fit = max(config.section_bytes / head_bytes, int64_t{1});
  if (fit >= heads) return heads;
  const int32_t sections = ceil_div(heads, static_cast<int32_t>(fit));
  return ceil_div(heads, sections);
}

// Blocks that take tiles in turns stay side by side and read the same keys, which is faster where
// they have few tiles each; with many they drift apart, and where every section begins anew with
// its longest tiles turns give blocks unequal work (ADR 0008).
__device__ bool takes_in_turns(const AttentionConfig& config, const Totals& totals,
                               int32_t section_heads) {
  constexpr int32_t kMostRounds = 16;
  const int64_t items = int64_t{totals.sum.tiles} * config.num_kv_heads;
  return section_heads >= config.num_kv_heads && items <= int64_t{kMostRounds} * config.num_sms;
}

// Cuts the line of units.
__device__ void divide(const AttentionWorkParams& p, const WorkspaceView& work,
                       const Totals& totals, const Cut& cut, const Span* spans) {
  const int32_t units = cut.units;
  const int32_t workers = split_workers(p.config);
  const int32_t share = cut.share;
  const int32_t slack = cut.slack;
  const auto span_of = [&](int32_t e) {
    return e < kSpans ? spans[e] : Span{work.split[e].unit_begin, work.split[e].num_pages};
  };
  const auto entry_of = [&](int32_t unit) {
    return last_not_above(totals.sum.split, unit, [&](int32_t e) { return span_of(e).unit_begin; });
  };
  // Bounds near a segment's begin or end move there.
  const auto bound = [&](int32_t worker) {
    // share * workers may pass 2^31 by rounding only when units is near it.
    const int64_t at = int64_t{share} * worker;
    if (at >= units) return units;
    const auto unit = static_cast<int32_t>(at);
    const Span span = span_of(entry_of(unit));
    const int32_t segment = segment_units(span.num_pages, cut.unit_step);
    const int32_t into = (unit - span.unit_begin) % segment;
    if (into <= slack) return unit - into;
    return into + slack >= span.num_pages ? unit - into + segment : unit;
  };
  for (int32_t w = threadIdx.x; w < workers; w += kThreads) {
    WorkerRange range = {};
    range.begin = bound(w);
    range.end = bound(w + 1);
    range.share = share;
    range.slack = slack;
    range.num_empty = totals.sum.empty;
    range.unit_step = cut.unit_step;
    range.even_pages = cut.even_pages;
    if (range.begin < range.end) {
      range.entry = work.split + entry_of(range.begin);
      range.seq = *range.entry;
      const int32_t into = range.begin - range.seq.unit_begin;
      const int32_t units_of_one = segment_units(range.seq.num_pages, cut.unit_step);
      const int32_t segment = into / units_of_one;
      range.page = into % units_of_one;
      range.kv_head = segment / range.seq.row_tiles;
      range.row_tile = segment % range.seq.row_tiles;
    }
    work.workers[w] = range;
    work.arrivals[w] = 0;
  }
  if (threadIdx.x == 0) {
    WorkHeader header = {};
    header.num_tiles = totals.sum.tiles;
    header.section_heads = section_heads(p.config, totals);
    header.in_turns = takes_in_turns(p.config, totals, header.section_heads) ? 1 : 0;
    *work.header = header;
  }
}

__global__ void __launch_bounds__(kThreads) work_kernel(const AttentionWorkParams p) {
  __shared__ Counts scratch[kWarps];
  __shared__ Totals totals;
  __shared__ Span spans[kSpans];
  __shared__ TileOrder order;
  __shared__ TailCut tail;
  __shared__ Either either;
  __shared__ int32_t parts[kPartPages + 1];
  __shared__ int32_t units;
  dependency_wait();
  dependency_trigger();
  const bool splits = splits_either(p, &either);
  if (threadIdx.x == 0) totals = Totals{splits, Counts{}, 0, INT32_MAX, 0};
  __syncthreads();
  WorkspaceView work;
  view_workspace(p.workspace, &work);
  list_sequences(p, work, scratch, &totals, spans);
  const int32_t workers = split_workers(p.config);
  Cut cut{totals.sum.units(), share_of_parts(p, work, totals, workers, parts), 0, 0,
          even_pages(p.config, totals, workers)};
  if (cut.share > 0) {
    cut.unit_step = cut.share;
    cut.units = space_segments(p, work, cut.share, scratch, totals, spans, &units);
    cut.slack = cut.share / kSlackParts;
  } else {
    cut.share = share_of(p.config, totals, workers);
    cut.slack = max(cut.share / kSlackParts, is_wide(p.config.head_dim) ? 0 : kUncutPages);
  }
  divide(p, work, totals, cut, spans);
  order_tiles(p.config, work, totals.sum.tiled, totals.sum.tiles, &order);
  __syncthreads();  // the list and the header are there
  if (cuts_tiles(p.config, p.bounds)) cut_tail(p.config, work, totals.sum.tiles, &tail);
}

}  // namespace

cudaError_t launch_attention_work(const AttentionWorkParams& params, cudaStream_t stream) {
  const AttentionConfig& config = params.config;
  if (config.num_kv_heads <= 0 || config.num_heads % config.num_kv_heads != 0 ||
      config.num_heads / config.num_kv_heads > kMaxGroup ||
      params.bounds.num_seqs > params.workspace.max_seqs ||
      params.bounds.num_tokens > params.workspace.max_tokens) {
    return cudaErrorInvalidValue;
  }
  if (params.bounds.num_seqs == 0) return cudaSuccess;
  AttentionWorkParams resolved = params;
  resolved.config.prefill_kernel = prefill_kernel_of(config, params.bounds);
  return launch_pdl(work_kernel, dim3(1), dim3(kThreads), 0, stream, resolved);
}

}  // namespace rudder::cuda
