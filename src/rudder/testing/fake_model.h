// The fake model behind FakeExecutor: the next token is a pure function of every token before it,
// of the sampling parameters that matter and of its position. expected_run gives the tokens of a
// lone request; metamorphic tests compare with it. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "rudder/step/result.h"
#include "rudder/step/sampling.h"
#include "rudder/tap/sequence_taps.h"

namespace rudder::testing {

// True for a token to be sampled (sampling seed, position) whose logits come out as NaN.
using NumericalFault = std::function<bool(uint64_t seed, int32_t position)>;

inline constexpr uint64_t kEmptyPrefixHash = 0x5275646465720001ULL;
// Hash of a prefix and one more token, under a program of this effect (fake_taps.h).
uint64_t extend_hash(uint64_t prefix_hash, int32_t token, uint64_t effect = 0);

struct SampleContext {
  uint64_t prefix_hash = 0;  // of all tokens before `position`
  int32_t position = 0;      // of the token to be sampled
  int32_t num_output = 0;    // output tokens before it
  int32_t max_len = 0;
  int32_t vocab_size = 0;
  const step::SamplingParams& sampling;
  std::span<const int32_t> history;  // when sampling.needs_history(): all tokens before `position`
  int32_t history_prompt_len = 0;
  std::span<const uint32_t> mask = {};  // of a constrained sequence (base/token_mask.h), else empty
};

struct SampledToken {
  int32_t token = 0;
  step::SeqEnd end = step::SeqEnd::kNone;
  step::TokenLogprobs logprobs;  // num_logprobs of them; none when it is negative
};

SampledToken sample_token(const SampleContext& context);

// How likely `token` was behind tokens of that hash.
step::TokenLogprobs score_token(int32_t token, uint64_t prefix_hash, int32_t num_top,
                                int32_t vocab_size);

// The mask of the token after `output`, or nothing where the constraint fails: the run ends there.
using ExpectedMask =
    std::function<std::optional<std::vector<uint32_t>>(std::span<const int32_t> output)>;

struct ExpectedRun {
  std::vector<int32_t> tokens;
  bool constraint_failed = false;  // then `end` is kNone
  step::SeqEnd end = step::SeqEnd::kNone;
  std::vector<uint64_t> hashes;  // by position: of all tokens up to and with this one
};

// `taps` may be null.
ExpectedRun expected_run(const std::vector<int32_t>& prompt, const step::SamplingParams& sampling,
                         int32_t max_len, int32_t vocab_size, const NumericalFault& numerical = {},
                         const tap::SequenceTaps* taps = nullptr, const ExpectedMask& mask = {});

}  // namespace rudder::testing
