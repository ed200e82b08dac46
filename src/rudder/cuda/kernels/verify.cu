#include "rudder/cuda/kernels/launch.h"
#include "rudder/cuda/kernels/sample_team.cuh"

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

// Called by the lanes [0, count) of a warp for a row each, all of which were accepted; the last may
// have no token.
__device__ void keep_rows(const SampleParams& p, int64_t row, const ops::SampleRow& params,
                          int token, ops::SampleEnd end, int lane, int count) {
  if (lane >= count) return;
  p.sampled[row * 4 + 1] = static_cast<int32_t>(end);
  if (token >= 0 && params.has_penalties != 0) {
    atomicAdd(p.state.output_count + params.slot * p.state.vocab + token, 1);
  }
  if (lane == count - 1 && end != ops::SampleEnd::kNone) p.state.ended[params.slot] = 1;
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
      keep_rows(p, row, params, token, end, lane, count);
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

__global__ void __launch_bounds__(kThreads) verify_kernel(const SampleParams p) {
  dependency_wait();
  dependency_trigger();
  const int64_t row = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / 32;
  if (row >= p.num_rows || p.rows[row].slot == p.padding_slot) return;
  if (row > 0 && p.rows[row - 1].draft >= 0) return;  // its chain's first row has the warp
  verify_chain(p, row, static_cast<int>(threadIdx.x) % 32);
}

}  // namespace

cudaError_t launch_verify(const SampleParams& p, cudaStream_t stream) {
  if (p.num_rows == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>((p.num_rows * 32 + kThreads - 1) / kThreads));
  return launch_pdl(verify_kernel, grid, dim3(kThreads), 0, stream, p);
}

}  // namespace rudder::cuda
