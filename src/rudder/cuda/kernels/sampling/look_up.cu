#include "rudder/cuda/kernels/sampling/look_up.h"

#include "rudder/cuda/kernels/device_vec.cuh"
#include "rudder/cuda/kernels/launch.h"

namespace rudder::cuda {
namespace {

constexpr int kThreads = 1024;

// An occurrence as a number: of two the one that counts is larger. Its n, then where it goes on.
__device__ unsigned long long occurrence(int n, int from) {
  return static_cast<unsigned long long>(n) << 32 | static_cast<unsigned>(from);
}

// What a block knows of its sequence; in shared memory.
struct Found {
  int len;  // of the history
  int has_ended;
  unsigned long long best;        // occurrence
  int32_t ngram[ops::kMaxNgram];  // the last tokens, the last one first
};

// Tokens in front of `from` that are those in front of the end, at most max_n.
__device__ int match_len(const int32_t* history, const Found& found, int from, int max_n) {
  const int most = min(max_n, from);
  int n = 1;
  while (n < most && history[from - 1 - n] == found.ngram[n]) ++n;
  return n;
}

// Token `at` of the history is the last one's twin: it goes on behind it.
__device__ unsigned long long occurrence_behind(const LookUpParams& p, const int32_t* history,
                                                const Found& found, int at) {
  const int n = match_len(history, found, at + 1, p.max_n);
  return n < p.min_n ? 0 : occurrence(n, at + 1);
}

__device__ unsigned long long search(const LookUpParams& p, const int32_t* history,
                                     const Found& found) {
  const int32_t last = found.ngram[0];
  const int count = found.len - 1;  // tokens that something follows
  unsigned long long best = 0;
  for (int at = static_cast<int>(threadIdx.x) * 4; at < count; at += kThreads * 4) {
    const int4 four = *reinterpret_cast<const int4*>(history + at);
    const int32_t tokens[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (tokens[i] != last || at + i >= count) continue;
      best = max(best, occurrence_behind(p, history, found, at + i));
    }
  }
  return best;
}

// The tokens of the rows from `first` on that are of one slot, and that count.
__device__ void keep_tokens(const LookUpParams& p, int first, int32_t slot, int32_t* history,
                            Found& found) {
  for (int begin = first;; begin += kThreads) {
    const int row = begin + static_cast<int>(threadIdx.x);
    const bool is_own = row < p.num_rows && p.rows[row].slot == slot;
    if (is_own) {
      const int32_t token = p.sampled[int64_t{row} * 4];
      const auto end = static_cast<ops::SampleEnd>(p.sampled[int64_t{row} * 4 + 1]);
      const bool counts = end != ops::SampleEnd::kRejected;
      if (counts && end != ops::SampleEnd::kNone) found.has_ended = 1;
      const int position = p.rows[row].position;
      if (counts && token >= 0 && position < p.max_len) {
        history[position] = token;
        atomicMax(&found.len, position + 1);
      }
    }
    if (__syncthreads_and(is_own) == 0) return;
  }
}

__global__ void __launch_bounds__(kThreads) look_up_kernel(const LookUpParams p) {
  __shared__ Found found;
  dependency_wait();
  dependency_trigger();
  const int first = static_cast<int>(blockIdx.x);
  const int32_t slot = p.rows[first].slot;
  if (slot == p.padding_slot || (first > 0 && p.rows[first - 1].slot == slot)) return;
  int32_t* const history = p.history + slot * p.max_len;
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) {
    found.len = 0;
    found.has_ended = 0;
    found.best = 0;
  }
  __syncthreads();
  keep_tokens(p, first, slot, history, found);
  const ops::SampleRow& params = p.rows[first];
  const int len = found.len;
  const int count =
      found.has_ended != 0 ? 0 : min(min(params.num_guess, p.most), params.max_len - len - 1);
  if (count > 0) {
    if (thread < min(p.max_n, len)) found.ngram[thread] = history[len - 1 - thread];
    __syncthreads();
    const unsigned long long own = search(p, history, found);
    if (own != 0) atomicMax(&found.best, own);
    __syncthreads();
  }
  if (thread >= p.most) return;
  int32_t token = -1;
  if (thread < count && found.best != 0) {
    const int from = static_cast<int>(found.best & 0xffffffffu);
    token = history[from + thread % (len - from)];  // as far as it goes, again and again
  }
  p.guess[int64_t{slot} * p.most + thread] = token;
}

}  // namespace

cudaError_t launch_look_up(const LookUpParams& p, cudaStream_t stream) {
  if (p.num_rows == 0) return cudaSuccess;
  const bool fits = p.most <= kThreads && p.max_n <= ops::kMaxNgram && p.max_len % 4 == 0 &&
                    is_aligned(p.history);
  if (!fits) return cudaErrorInvalidValue;
  return launch_pdl(look_up_kernel, dim3(static_cast<unsigned>(p.num_rows)), dim3(kThreads), 0,
                    stream, p);
}

}  // namespace rudder::cuda
