#include "rudder/cuda/kernels/launch.h"
#include "rudder/cuda/kernels/sampling/sample_team.cuh"

namespace rudder::cuda {
namespace {

constexpr int kThreads = 128;
constexpr uint32_t kAllLanes = 0xffffffffu;

__device__ int first_lane(uint32_t lanes) {
  return lanes == 0 ? 32 : __ffs(static_cast<int>(lanes)) - 1;
}

__device__ bool is_stop_id(const SampleParams& p, const ops::SampleRow& params, int token) {
  for (int i = 0; i < params.num_stop_ids; ++i) {
    if (p.lists[params.stop_begin + i] == token) return true;
  }
  return false;
}

// Of a row that was accepted; it may have no token. Whatever ends the sequence, no other row is
// accepted behind it.
__device__ void keep_row(const SampleParams& p, int64_t row, const ops::SampleRow& params,
                         int token, ops::SampleEnd end) {
  p.sampled[row * 4 + 1] = static_cast<int32_t>(end);
  if (token >= 0 && params.has_penalties != 0) {
    atomicAdd(p.state.output_count + params.slot * p.state.vocab + token, 1);
  }
  if (end != ops::SampleEnd::kNone) p.state.ended[params.slot] = 1;
}

// A warp goes through a chain, 32 rows at a time.
__device__ void verify_chain(const SampleParams& p, int64_t first, int lane) {
  const bool had_ended = p.state.ended[p.rows[first].slot] != 0;
  bool is_accepted = !had_ended;  // the row at hand, as far as those before it say
  for (int64_t begin = first;; begin += 32) {
    const int64_t row = min(begin + lane, p.num_rows - 1);
    const ops::SampleRow& params = p.rows[row];
    const int draft = begin + lane < p.num_rows ? params.draft : -1;
    const int last =
        first_lane(__ballot_sync(kAllLanes, draft < 0));  // of the chain; 32: it goes on
    const int num_rows = min(last + 1, 32);
    int count = 0;
    if (is_accepted) {
      const int token = p.sampled[row * 4];
      const ops::SampleEnd end = end_of(params, token, is_stop_id(p, params, token));
      const bool goes_on = end == ops::SampleEnd::kNone && token == draft;
      const int wrong = first_lane(__ballot_sync(kAllLanes, lane < num_rows && !goes_on));
      count = min(wrong + 1, num_rows);
      if (lane < count) keep_row(p, row, params, token, end);
      // A row without a token leaves the slot the one before it.
      const int with_token = __popc(__ballot_sync(kAllLanes, lane < count && token >= 0));
      if (lane == with_token - 1) carry_token(p, params, token);
      is_accepted = wrong == 32;
    }
    if (lane >= count && lane < num_rows) {
      const bool is_first = begin + lane == first;
      write_sampled(p, row, SampledRow{},
                    is_first ? ops::SampleEnd::kMasked : ops::SampleEnd::kRejected);
    }
    if (last < 32) return;
  }
}

// A row of a tree, as its lane has it.
struct TreeRow {
  int parent = -1;  // row of the tree; -1: it is the first, or in no tree
  int draft = -1;
  int token = -1;  // that was sampled for it
  ops::SampleEnd end = ops::SampleEnd::kNone;
};

__device__ TreeRow tree_row(const SampleParams& p, int64_t first, int i) {
  const ops::SampleRow& params = p.rows[first + i];
  TreeRow row;
  if (i > 0) {
    row.parent = i - params.parent_up;
    row.draft = params.own_draft;
  }
  row.token = p.sampled[(first + i) * 4];
  row.end = end_of(params, row.token, is_stop_id(p, params, row.token));
  return row;
}

// A warp has a tree: a lane rows `lane` and 32 + lane of it.
__device__ void verify_tree(const SampleParams& p, int64_t first, int lane) {
  const bool had_ended = p.state.ended[p.rows[first].slot] != 0;
  int count = 0;
  TreeRow rows[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int i = half * 32 + lane;
    const bool is_behind = first + i < p.num_rows && p.rows[first + i].parent_up > 0;
    const uint32_t outside = __ballot_sync(kAllLanes, i > 0 && !is_behind);
    if (count == half * 32) count += first_lane(outside);
    if (i < count) rows[half] = tree_row(p, first, i);
  }
  uint64_t path = 0;
  int carried = -1;  // the last row with a token: one without leaves the slot that before it
  for (int at = had_ended ? -1 : 0; at >= 0;) {
    path |= uint64_t{1} << at;
    const int token = __shfl_sync(kAllLanes, at < 32 ? rows[0].token : rows[1].token, at % 32);
    const auto of_lane = static_cast<int>(at < 32 ? rows[0].end : rows[1].end);
    const int end = __shfl_sync(kAllLanes, of_lane, at % 32);
    if (token >= 0) carried = at;
    if (end != static_cast<int>(ops::SampleEnd::kNone)) break;
    const auto follows = [&](const TreeRow& row) {
      return __ballot_sync(kAllLanes, row.parent == at && row.draft == token);
    };
    const uint32_t low = follows(rows[0]);
    const uint32_t high = follows(rows[1]);
    at = low != 0 ? first_lane(low) : high != 0 ? 32 + first_lane(high) : -1;
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int i = half * 32 + lane;
    if (i >= count) continue;
    const int64_t row = first + i;
    if ((path >> i & 1) != 0) {
      keep_row(p, row, p.rows[row], rows[half].token, rows[half].end);
      if (i == carried) carry_token(p, p.rows[row], rows[half].token);
    } else {
      write_sampled(p, row, SampledRow{},
                    i == 0 ? ops::SampleEnd::kMasked : ops::SampleEnd::kRejected);
    }
  }
}

__global__ void __launch_bounds__(kThreads) verify_kernel(const SampleParams p) {
  dependency_wait();
  dependency_trigger();
  const int64_t row = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (row >= p.num_rows || p.rows[row].slot == p.padding_slot) return;
  // The first row of a chain or tree has the warp.
  if (p.rows[row].parent_up > 0 || (row > 0 && p.rows[row - 1].draft >= 0)) return;
  if (row + 1 < p.num_rows && p.rows[row + 1].parent_up > 0) {
    verify_tree(p, row, lane);
  } else {
    verify_chain(p, row, lane);
  }
}

}  // namespace

cudaError_t launch_verify(const SampleParams& p, cudaStream_t stream) {
  if (p.num_rows == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>((p.num_rows * 32 + kThreads - 1) / kThreads));
  return launch_pdl(verify_kernel, grid, dim3(kThreads), 0, stream, p);
}

}  // namespace rudder::cuda
