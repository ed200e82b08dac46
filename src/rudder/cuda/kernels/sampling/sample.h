// Kernels that sample tokens from logits. ops/sample_args.h defines them, src/rudder/cpu/sample.cpp
// is the reference: the same logits and seed give the same token, unless the order of a sum of
// doubles decides. Launched by the host class of this room, last in a step.
//
// One cluster of 8 blocks a row. The general kernel keeps the row in the cluster's shared memory,
// so each logit is read from memory once. When every row is greedy without further options, the
// greedy kernel streams the row instead, under its mask if it has one. No workspace; `logits` are
// only read. Floor: R * vocab * 4 bytes, and 5 bytes a token more for rows with penalties, a bit a
// token for rows with a mask.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "rudder/cuda/kernels/sampling/step.h"
#include "rudder/ops/sample_row.h"

namespace rudder::cuda {

// What a cluster's shared memory holds.
inline constexpr int64_t kMaxSampleVocab = 393216;
// num_logprobs of a row.
inline constexpr int32_t kMaxSampleLogprobs = 1024;

struct SampleParams {
  const float* logits = nullptr;         // [R, vocab]
  const ops::SampleRow* rows = nullptr;  // [R]
  const int32_t* lists = nullptr;
  const uint32_t* masks = nullptr;  // [M, ceil(vocab / 32)]; no row has one where it is null
  SlotStateParams state;
  int32_t padding_slot = 0;    // S: nothing at all is written for its rows
  int64_t num_rows = 0;        // R
  int64_t vocab = 0;           // 1 <= vocab <= kMaxSampleVocab
  int32_t* sampled = nullptr;  // [R, 4] ops::SampledToken
  int32_t* top = nullptr;      // [R, max_logprobs, 2] ops::TopLogprob
  int32_t max_logprobs = 0;    // num_logprobs of every row is at most this
  bool all_greedy = false;     // as in ops::SampleArgs
  bool any_logprobs = true;
  bool any_changed = true;
  bool any_masked = true;
  bool any_drafts = true;
};
// With drafts every row is sampled as if all drafts before it, those that it follows in a tree,
// were right, at once; then launch_verify finds which are, and keeps what was accepted.
cudaError_t launch_sample(const SampleParams& params, cudaStream_t stream);

// Of rows that are sampled and not kept: rejects those behind a draft that was not sampled or an
// end, and keeps the others in their slots. A warp a chain, or a tree, which has 64 rows at most.
// Reference: sample_chain and sample_path in cpu/sample.cpp.
cudaError_t launch_verify(const SampleParams& params, cudaStream_t stream);

// ops/score_args.h: the general kernel without drawing, on tokens that are given. Floor: R * vocab
// * 4 bytes, read twice: the rank is counted in memory, as sample does.
struct ScoreParams {
  const float* logits = nullptr;    // [R, vocab]
  const int32_t* tokens = nullptr;  // [R], 0 <= token < vocab
  int64_t num_rows = 0;             // R
  int64_t vocab = 0;                // 1 <= vocab <= kMaxSampleVocab
  int32_t num_top = 0;              // 0 <= num_top <= max_logprobs
  int32_t* scored = nullptr;        // [R, 4] ops::SampledToken
  int32_t* top = nullptr;           // [R, max_logprobs, 2] ops::TopLogprob
  int32_t max_logprobs = 0;
};
cudaError_t launch_score(const ScoreParams& params, cudaStream_t stream);

}  // namespace rudder::cuda
