#include "rudder/cuda/kernels/sampling/sample.h"

#include "rudder/cuda/kernels/device_philox.cuh"
#include "rudder/cuda/kernels/device_vec.cuh"
#include "rudder/cuda/kernels/launch.h"
#include "rudder/cuda/kernels/sampling/sample_select.cuh"
#include "rudder/cuda/kernels/sampling/sample_team.cuh"

namespace rudder::cuda {
namespace {

// Every row greedy, nothing changed, no log-probabilities: one pass over the logits in memory.
template <bool kMasked>
__global__ void __launch_bounds__(kSampleThreads)
    greedy_kernel(const SampleParams p, bool aligned) {
  __shared__ uint64_t slots[2][kSampleWarps];
  dependency_wait();
  dependency_trigger();
  Team team(slots);
  const int64_t row = blockIdx.x / kCluster;
  const ops::SampleRow& params = p.rows[row];
  if (is_masked(p, row, params, team.is_leader() && threadIdx.x == 0)) return;
  const Slice slice = slice_of(p.vocab, team.rank(), team.warp());
  const float* const logits = p.logits + row * p.vocab;
  const auto keep = [](int, const float4&) {};
  const Ordinal own = kMasked && has_mask(params)
                          ? scan_memory(logits, slice, aligned, mask_of(p, params, slice), keep)
                          : scan_memory(logits, slice, aligned, NoMask{}, keep);
  const Ordinal highest = highest_of(team.exchange(Team::warp_max_of(own)));
  SampledRow sampled;
  if (highest != kNoOrdinal && highest != kBadOrdinal) sampled.token = token_of_ordinal(highest);
  team.sync();  // nobody leaves while its slots are read
  if (team.is_leader() && team.warp() == 0) finish_row(p, row, params, sampled);
}

// Shared memory of a block, written before it is read.
struct Memory {
  ops::SampleRow params;
  double log_sum;  // of the model's own distribution
  uint64_t slots[2][kSampleWarps];
  Ordinal of_warps[kTeamWarps];  // the highest of each warp
  Ordinal bound;
  int32_t token;
  SelectMemory select;
};

// One block's part in sampling one row. Every function is called by all threads of the cluster.
class RowSampler {
 public:
  __device__ RowSampler(const SampleParams& p, int64_t row, Team& team, Memory& memory,
                        float* values)
      : p_(p),
        params_(memory.params),
        row_(row),
        logits_(p.logits + row * p.vocab),
        team_(team),
        memory_(memory),
        values_(values),
        slice_(slice_of(p.vocab, team.rank(), team.warp())) {}

  __device__ SampledRow run(bool aligned) {
    SampledRow out;
    Ordinal highest = load(aligned);
    if (highest == kBadOrdinal || highest == kNoOrdinal) return out;
    if (params_.num_logprobs >= 0) write_top(highest);
    if (is_changed()) {
      change();
      highest = share_highest(scan_values());
      if (highest == kNoOrdinal) return out;
    }
    out.token = params_.temperature == 0.0f ? token_of_ordinal(highest) : draw(highest);
    if (params_.num_logprobs >= 0) tell(out);
    return out;
  }

  // How likely a given token is.
  __device__ SampledRow score(int token, bool aligned) {
    SampledRow out;
    const Ordinal highest = load(aligned);
    if (highest == kBadOrdinal || highest == kNoOrdinal) return out;
    write_top(highest);
    out.token = token;
    tell(out);
    return out;
  }

 private:
  // The row into shared memory; its highest ordinal.
  __device__ Ordinal load(bool aligned) {
    return share_highest(scan_memory(
        logits_, slice_, aligned, NoMask{},
        [this](int i, const float4& x) { *reinterpret_cast<float4*>(values_ + i) = x; }));
  }

  // After write_top: what is told of out.token.
  __device__ void tell(SampledRow& out) {
    const float raw = __fadd_rn(logits_[out.token], 0.0f);
    out.logprob = static_cast<float>(raw - memory_.log_sum);
    out.rank = 1 + static_cast<int>(team_.sum(tokens_before(raw, out.token)));
  }

  // Runs f(i, four) on each lane's tokens of the slice in shared memory; four may be written to.
  template <typename F>
  __device__ void for_each_four(F f) {
    for (int chunk = slice_.first_chunk; chunk < slice_.end_chunk; ++chunk) {
      const int i = chunk * kChunk + team_.lane() * 4;
      f(i, *reinterpret_cast<float4*>(values_ + i));
    }
  }

  __device__ Ordinal share_highest(Ordinal of_thread) {
    const OfWarps all = team_.exchange(Team::warp_max_of(of_thread));
    if (team_.warp() == 0) {
#pragma unroll
      for (int i = 0; i < 4; ++i) memory_.of_warps[team_.lane() * 4 + i] = all.v[i];
    }
    return highest_of(all);
  }

  __device__ Ordinal scan_values() {
    Highest highest;
    for_each_four([&](int i, const float4& x) { highest.see(x, slice_.begin + i); });
    return highest.ordinal();
  }

  __device__ bool bans_stop_ids() const {
    return params_.position < params_.stop_from;
  }

  __device__ bool is_changed() const {
    return params_.num_bias > 0 || (bans_stop_ids() && params_.num_stop_ids > 0) ||
           params_.has_penalties != 0 || has_mask(params_);
  }

  // The mask, bias and bans, then penalties, as change_logits in src/rudder/cpu/sample.cpp. A token
  // has one bias at most.
  __device__ void change() {
    if (has_mask(params_)) {
      const SliceMask mask = mask_of(p_, params_, slice_);
#pragma unroll 4
      for (int i = static_cast<int>(threadIdx.x); i < slice_.count; i += kSampleThreads) {
        if ((mask.words[i / 32] >> (i % 32) & 1) == 0) values_[i] = -__builtin_huge_valf();
      }
      __syncthreads();
    }
    const int32_t* bias = p_.lists + params_.bias_begin;
    for (int n = static_cast<int>(threadIdx.x); n < params_.num_bias; n += kSampleThreads) {
      const int i = bias[2 * n] - slice_.begin;
      if (i >= 0 && i < slice_.count) {
        values_[i] = __fadd_rn(values_[i], __int_as_float(bias[2 * n + 1]));
      }
    }
    __syncthreads();
    if (bans_stop_ids()) {
      for (int n = static_cast<int>(threadIdx.x); n < params_.num_stop_ids; n += kSampleThreads) {
        // Ids of a file may be no token of this model.
        const int64_t i = int64_t{p_.lists[params_.stop_begin + n]} - slice_.begin;
        if (i >= 0 && i < slice_.count) values_[i] = -__builtin_huge_valf();
      }
      __syncthreads();
    }
    if (params_.has_penalties != 0) penalise();
    __syncthreads();
  }

  // In the order of penalize_body in src/rudder/cpu/sample_kernels.cpp; nothing is fused.
  __device__ float penalised(float v, int32_t count, bool in_prompt) const {
    if (count > 0 || in_prompt) {
      v = v > 0.0f ? __fdiv_rn(v, params_.repetition_penalty)
                   : __fmul_rn(v, params_.repetition_penalty);
    }
    v = __fsub_rn(v, __fmul_rn(params_.frequency_penalty, static_cast<float>(count)));
    if (count > 0) v = __fsub_rn(v, params_.presence_penalty);
    return v > kLargest ? kLargest : v;
  }

  // The drafts before this row's token are counted as well: where they are wrong the row is
  // rejected. The slot's counts do not have them yet.
  __device__ void penalise() {
    const int64_t first = params_.slot * p_.state.vocab + slice_.begin;
    const int32_t* counts = p_.state.output_count + first;
    const uint8_t* prompt = p_.state.prompt_seen + first;
    const DraftedToken drafted = drafted_token();
    float of_drafted = 0;
    if (drafted.count > 0) {
      const int i = drafted.index;
      of_drafted = penalised(values_[i], counts[i] + drafted.count, prompt[i] != 0);
    }
    __syncthreads();
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x); i < slice_.count; i += kSampleThreads) {
      const int32_t count = counts[i];
      if (count == 0 && prompt[i] == 0) continue;
      values_[i] = penalised(values_[i], count, prompt[i] != 0);
    }
    if (params_.num_behind == 0 && params_.parent_up == 0) return;
    __syncthreads();
    if (drafted.count > 0) values_[drafted.index] = of_drafted;
  }

  // A token of the slice among the drafts before this row, one a thread at most.
  struct DraftedToken {
    int index = 0;  // in the slice
    int count = 0;  // of drafts that are it; 0: the thread has none
  };
  __device__ DraftedToken drafted_token() const {
    if (params_.parent_up > 0) return drafted_on_path();
    static_assert(ops::kMaxChain <= kSampleThreads);
    const int own = static_cast<int>(threadIdx.x);
    const int num_behind = params_.num_behind;
    if (own >= num_behind) return {};
    const ops::SampleRow* const chain = p_.rows + row_ - num_behind;
    const int token = chain[own].draft;
    DraftedToken drafted;
    drafted.index = token - slice_.begin;
    if (drafted.index < 0 || drafted.index >= slice_.count) return {};
    for (int i = 0; i < num_behind; ++i) {
      if (chain[i].draft != token) continue;
      if (i < own) return {};  // an earlier thread's
      ++drafted.count;
    }
    return drafted;
  }

  // Of a row of a tree: those that it follows, its own draft among them. A thread has the draft so
  // many rows up the path.
  __device__ DraftedToken drafted_on_path() const {
    const int own = static_cast<int>(threadIdx.x);
    const ops::SampleRow* const last = p_.rows + row_;
    const ops::SampleRow* row = last;
    for (int i = 0; i < own && row->parent_up > 0; ++i) row -= row->parent_up;
    if (row->parent_up == 0) return {};  // the path is shorter
    const int token = row->own_draft;
    DraftedToken drafted;
    drafted.index = token - slice_.begin;
    if (drafted.index < 0 || drafted.index >= slice_.count) return {};
    row = last;
    for (int i = 0; row->parent_up > 0; ++i, row -= row->parent_up) {
      if (row->own_draft != token) continue;
      if (i < own) return {};  // an earlier thread's
      ++drafted.count;
    }
    return drafted;
  }

  // An ordinal that at least k tokens reach: the k-th highest of the warps' highest.
  __device__ Ordinal bound_of(int k) {
    const Ordinal lowest = first_ordinal(kLowestKey);
    if (k > kTeamWarps) return lowest;
    __syncthreads();  // of_warps is written
    const int w = static_cast<int>(threadIdx.x);
    if (w < kTeamWarps) {
      const Ordinal own = memory_.of_warps[w];
      int before = 0;
      for (int i = 0; i < kTeamWarps; ++i) {
        const Ordinal other = memory_.of_warps[i];
        before += (other > own || (other == own && i < w)) ? 1 : 0;
      }
      if (before == k - 1) memory_.bound = own;
    }
    __syncthreads();
    return max(memory_.bound, lowest);
  }

  // Weights instead of logits, and their sum over the row. Tokens below `lowest` weigh
  // nothing.
  __device__ double weigh(float highest, float scale, float lowest) {
    double sum = 0;
    for_each_four([&](int, float4& x) {
      // The filler compares as false.
      x.x = x.x >= lowest ? weight_of(x.x, highest, scale) : 0.0f;
      x.y = x.y >= lowest ? weight_of(x.y, highest, scale) : 0.0f;
      x.z = x.z >= lowest ? weight_of(x.z, highest, scale) : 0.0f;
      x.w = x.w >= lowest ? weight_of(x.w, highest, scale) : 0.0f;
      sum += (x.x + x.y) + (x.z + x.w);
    });
    return team_.sum(sum);
  }

  // The sampled token, with the formulas and the order of draw_token in src/rudder/cpu/sample.cpp.
  __device__ int draw(Ordinal highest) {
    const float scale = __fdiv_rn(1.0f, fmaxf(params_.temperature, 1e-30f));
    float lowest = -__builtin_huge_valf();
    const bool has_top_k = params_.top_k > 0 && params_.top_k < p_.vocab;
    if (has_top_k) {
      const Range range = {bound_of(params_.top_k), highest + 1, 0, 0, false};
      const Target target = {false, static_cast<double>(params_.top_k)};
      const Ordinal kth = select(team_, memory_.select, values_, slice_, range, target, false,
                                 [](const Ordinal*) {});
      lowest = value_of_key(key_of_ordinal(kth));  // all of its equals stay
    }
    const double total = weigh(value_of_key(key_of_ordinal(highest)), scale, lowest);
    const float min_p = params_.min_p;
    Ordinal last = first_ordinal(key_of(0.0f) + 1);  // what weighs nothing is out
    if (params_.top_p < 1.0f) {
      // All tokens lighter than `light` weigh less than 1 - top_p together.
      const double light =
          has_top_k ? 0.0 : 0.999 * (1.0 - params_.top_p) * total / static_cast<double>(p_.vocab);
      const Ordinal low = max(last, first_ordinal(key_of(static_cast<float>(light))));
      const Range range = {low, first_ordinal(key_of(1.0f) + 1), 0, 0, false};
      const Target target = {true, params_.top_p * total};
      last = select(team_, memory_.select, values_, slice_, range, target, false,
                    [](const Ordinal*) {});
    }
    const uint32_t last_key = key_of_ordinal(last);
    const auto kept = [&](float weight, int i) {
      const uint32_t key = key_of(weight);
      const bool stays =
          key > last_key || (key == last_key && ordinal_of(key, slice_.begin + i) >= last);
      return stays && weight >= min_p ? weight : 0.0f;
    };
    double sum = 0;
    for_each_four([&](int i, float4& x) {
      x = make_float4(kept(x.x, i), kept(x.y, i + 1), kept(x.z, i + 2), kept(x.w, i + 3));
      sum += (x.x + x.y) + (x.z + x.w);
    });
    return locate(sum);
  }

  // Inverse of the cumulative distribution, in the order of tokens, of the weights in `values_`;
  // `own` is this thread's sum of them.
  __device__ int locate(double own) {
    const OfWarps all = team_.exchange(Team::bits_of(Team::warp_sum_of(own)));
    double of_four = 0;
    double warp_sum[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      warp_sum[i] = Team::double_of(all.v[i]);
      of_four += warp_sum[i];
    }
    const double through = team_.inclusive_sum(of_four);
    const double total = __shfl_sync(0xffffffffu, through, 31);
    const double uniform =
        philox_uniform(params_.seed, static_cast<uint64_t>(int64_t{params_.position}));
    const double target = uniform * total;
    // This lane's first warp that passes the target, else its last with any weight at all.
    double before = __shfl_up_sync(0xffffffffu, through, 1);
    if (team_.lane() == 0) before = 0;
    int passing = -1;
    int weighty = -1;
    double before_passing = 0;
    double before_weighty = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (warp_sum[i] == 0) continue;
      weighty = team_.lane() * 4 + i;
      before_weighty = before;
      before += warp_sum[i];
      if (before > target && passing < 0) {
        passing = weighty;
        before_passing = before_weighty;
      }
    }
    const unsigned lanes_passing = __ballot_sync(0xffffffffu, passing >= 0);
    const unsigned lanes_weighty = __ballot_sync(0xffffffffu, weighty >= 0);
    // Some token has weight: the most likely one is never dropped.
    const int lane = lanes_passing != 0 ? __ffs(static_cast<int>(lanes_passing)) - 1
                                        : 31 - __clz(static_cast<int>(lanes_weighty));
    const int warp = __shfl_sync(0xffffffffu, lanes_passing != 0 ? passing : weighty, lane);
    const double base =
        __shfl_sync(0xffffffffu, lanes_passing != 0 ? before_passing : before_weighty, lane);
    if (warp == team_.rank() * kSampleWarps + team_.warp()) {
      const int token = find_token(base, target);
      if (team_.lane() < kCluster) *team_.of_block(&memory_.token, team_.lane()) = token;
    }
    team_.sync();
    return memory_.token;
  }

  // Called by the one warp whose tokens pass the target; `sum` is the weight of those before.
  __device__ int find_token(double sum, double target) {
    int last = 0;  // the last with any weight, should rounding keep the sum below
    for (int chunk = slice_.first_chunk; chunk < slice_.end_chunk; ++chunk) {
      const int i = chunk * kChunk + team_.lane() * 4;
      const float4 x = *reinterpret_cast<const float4*>(values_ + i);
      const double w[4] = {x.x, x.y, x.z, x.w};
      const double through = team_.inclusive_sum((w[0] + w[1]) + (w[2] + w[3]));
      int passing = -1;
      int weighty = -1;
      double running = sum + (through - ((w[0] + w[1]) + (w[2] + w[3])));
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        running += w[j];
        if (w[j] == 0) continue;
        weighty = slice_.begin + i + j;
        if (running > target && passing < 0) passing = weighty;
      }
      const unsigned lanes_passing = __ballot_sync(0xffffffffu, passing >= 0);
      if (lanes_passing != 0) {
        return __shfl_sync(0xffffffffu, passing, __ffs(static_cast<int>(lanes_passing)) - 1);
      }
      const unsigned lanes_weighty = __ballot_sync(0xffffffffu, weighty >= 0);
      if (lanes_weighty != 0) {
        last = __shfl_sync(0xffffffffu, weighty, 31 - __clz(static_cast<int>(lanes_weighty)));
      }
      sum += __shfl_sync(0xffffffffu, through, 31);
    }
    return last;
  }

  // Log of the sum of the model's own distribution; the best tokens go to `top`. The slice is as it
  // came.
  __device__ void write_top(Ordinal highest) {
    const float max_logit = value_of_key(key_of_ordinal(highest));
    double sum = 0;
    for_each_four([&](int, const float4& x) {
      sum += (weight_of(x.x, max_logit, 1.0f) + weight_of(x.y, max_logit, 1.0f)) +
             (weight_of(x.z, max_logit, 1.0f) + weight_of(x.w, max_logit, 1.0f));
    });
    const double total = team_.sum(sum);
    if (threadIdx.x == 0) memory_.log_sum = max_logit + log(total);
    __syncthreads();
    const int wanted = min(params_.num_logprobs, p_.max_logprobs);
    if (wanted <= 0) return;
    const int k = static_cast<int>(min(int64_t{wanted}, p_.vocab));
    int2* const top = reinterpret_cast<int2*>(p_.top) + row_ * p_.max_logprobs;
    const auto write = [&](const Ordinal* best) {
      for (int n = static_cast<int>(threadIdx.x); n < wanted; n += kSampleThreads) {
        int2 entry = make_int2(-1, 0);
        if (n < k) {
          const float value = value_of_key(key_of_ordinal(best[n]));
          entry = make_int2(token_of_ordinal(best[n]),
                            __float_as_int(static_cast<float>(value - memory_.log_sum)));
        }
        top[n] = entry;
      }
    };
    const Range range = {bound_of(k), highest + 1, 0, 0, false};
    const Target target = {false, static_cast<double>(k)};
    select(team_, memory_.select, values_, slice_, range, target, true, write);
  }

  // Of this thread's part of the row in memory, those that come before `token`.
  __device__ double tokens_before(float value, int token) const {
    int before = 0;
    const float* from = logits_ + slice_.begin;
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x); i < slice_.count; i += kSampleThreads) {
      const float x = from[i];
      before += (x > value || (x == value && slice_.begin + i < token)) ? 1 : 0;
    }
    return before;
  }

  const SampleParams& p_;
  const ops::SampleRow& params_;
  const int64_t row_;
  const float* const logits_;
  Team& team_;
  Memory& memory_;
  float* const values_;
  const Slice slice_;
};

// Empty, as select() wants it and leaves it.
__device__ void clear(SelectMemory& select) {
  for (int i = static_cast<int>(threadIdx.x); i < kBuckets; i += kSampleThreads) {
    select.histogram[i] = 0;
  }
  if (threadIdx.x == 0) select.list_size = 0;
}

// Two blocks a multiprocessor: one computes while the other reads.
__global__ void __launch_bounds__(kSampleThreads, 2)
    sample_kernel(const SampleParams p, bool aligned) {
  extern __shared__ float4 slice_memory[];  // [slice_width(vocab) / 4]
  __shared__ alignas(Memory) unsigned char raw_memory[sizeof(Memory)];
  Memory& memory = *reinterpret_cast<Memory*>(raw_memory);
  clear(memory.select);
  dependency_wait();
  dependency_trigger();
  Team team(memory.slots);
  const int64_t row = blockIdx.x / kCluster;
  if (is_masked(p, row, p.rows[row], team.is_leader() && threadIdx.x == 0)) return;
  if (threadIdx.x == 0) memory.params = p.rows[row];
  __syncthreads();
  RowSampler sampler(p, row, team, memory, reinterpret_cast<float*>(slice_memory));
  const SampledRow sampled = sampler.run(aligned);
  team.sync();  // nobody leaves while its memory is read, and the row's state stays until here
  if (team.is_leader() && team.warp() == 0) finish_row(p, row, memory.params, sampled);
}

__global__ void __launch_bounds__(kSampleThreads, 2)
    score_kernel(const SampleParams p, const int32_t* tokens, int32_t num_top, bool aligned) {
  extern __shared__ float4 slice_memory[];  // [slice_width(vocab) / 4]
  __shared__ alignas(Memory) unsigned char raw_memory[sizeof(Memory)];
  Memory& memory = *reinterpret_cast<Memory*>(raw_memory);
  clear(memory.select);
  if (threadIdx.x == 0) {
    memory.params = ops::SampleRow{};
    memory.params.num_logprobs = num_top;
  }
  dependency_wait();
  dependency_trigger();
  Team team(memory.slots);
  const int64_t row = blockIdx.x / kCluster;
  __syncthreads();
  RowSampler sampler(p, row, team, memory, reinterpret_cast<float*>(slice_memory));
  const SampledRow scored = sampler.score(tokens[row], aligned);
  team.sync();  // nobody leaves while its memory is read
  if (team.is_leader() && threadIdx.x == 0) {
    write_sampled(p, row, scored,
                  scored.token < 0 ? ops::SampleEnd::kNumerical : ops::SampleEnd::kNone);
  }
}

}  // namespace

cudaError_t launch_score(const ScoreParams& p, cudaStream_t stream) {
  if (p.num_rows == 0) return cudaSuccess;
  if (p.vocab < 1 || p.vocab > kMaxSampleVocab || p.max_logprobs > kMaxSampleLogprobs) {
    return cudaErrorInvalidValue;
  }
  SampleParams rows;
  rows.logits = p.logits;
  rows.num_rows = p.num_rows;
  rows.vocab = p.vocab;
  rows.sampled = p.scored;
  rows.top = p.top;
  rows.max_logprobs = p.max_logprobs;
  const size_t bytes = static_cast<size_t>(slice_width(p.vocab)) * sizeof(float);
  const cudaError_t error = cudaFuncSetAttribute(
      score_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (error != cudaSuccess) return error;
  const dim3 grid(static_cast<unsigned>(p.num_rows * kCluster));
  const bool aligned = p.vocab % 4 == 0 && is_aligned(p.logits);
  return launch_pdl_cluster(score_kernel, grid, dim3(kSampleThreads), bytes, kCluster, stream, rows,
                            p.tokens, p.num_top, aligned);
}

namespace {

cudaError_t launch_rows(const SampleParams& p, cudaStream_t stream) {
  if (p.vocab < 1 || p.vocab > kMaxSampleVocab || p.max_logprobs > kMaxSampleLogprobs) {
    return cudaErrorInvalidValue;
  }
  const dim3 grid(static_cast<unsigned>(p.num_rows * kCluster));
  const bool aligned = p.vocab % 4 == 0 && is_aligned(p.logits);
  if (p.all_greedy && !p.any_logprobs && !p.any_changed) {
    const auto kernel = p.any_masked ? greedy_kernel<true> : greedy_kernel<false>;
    return launch_pdl_cluster(kernel, grid, dim3(kSampleThreads), 0, kCluster, stream, p, aligned);
  }
  const size_t bytes = static_cast<size_t>(slice_width(p.vocab)) * sizeof(float);
  const cudaError_t error = cudaFuncSetAttribute(
      sample_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (error != cudaSuccess) return error;
  return launch_pdl_cluster(sample_kernel, grid, dim3(kSampleThreads), bytes, kCluster, stream, p,
                            aligned);
}

}  // namespace

cudaError_t launch_sample(const SampleParams& p, cudaStream_t stream) {
  if (p.num_rows == 0) return cudaSuccess;
  const cudaError_t error = launch_rows(p, stream);
  return error == cudaSuccess && p.any_drafts ? launch_verify(p, stream) : error;
}

}  // namespace rudder::cuda
