#include "rudder/testing/fake_model.h"

#include <algorithm>
#include <utility>

#include "rudder/base/philox.h"
#include "rudder/base/token_mask.h"
#include "rudder/testing/fake_taps.h"

namespace rudder::testing {

namespace {

// Draws again so often when min_tokens bans the token drawn; a vocabulary of stop ids alone ends
// it.
constexpr uint64_t kMaxDraws = 1000;

// Every token of one sequence, in order.
class ExpectedHashes {
 public:
  ExpectedHashes(const tap::SequenceTaps* taps, int32_t prompt_len)
      : taps_(taps), prompt_len_(prompt_len) {
    if (taps == nullptr) return;
    for (const tap::TapSegment& segment : taps->segments) {
      programs_.emplace_back(segment.program.get());
    }
    if (!taps->thoughts) return;
    for (const tap::TapSegment& segment : taps->thoughts->segments) {
      thought_programs_.emplace_back(segment.program.get());
    }
  }

  void push(int32_t token) {
    const auto position = static_cast<int32_t>(hashes_.size());
    FakeProgram program;
    if (is_thought(position, token)) {
      for (size_t i = 0; i < thought_programs_.size(); ++i) {
        if (taps_->thoughts->segments[i].begin <= position) program = thought_programs_[i];
      }
    } else {
      for (size_t i = 0; i < programs_.size(); ++i) {
        if (taps_->segments[i].begin <= position) program = programs_[i];
      }
    }
    const int32_t since_prompt = position - prompt_len_;
    if (program.writes_latch && since_prompt < 0) latch_ += latch_sample(hash_, token);
    const uint64_t effect = program.effect(since_prompt, latch_, reading_);
    reading_ = reading_of(hash_, token);
    hash_ = extend_hash(hash_, token, effect);
    hashes_.push_back(hash_);
  }

  // Of the token at `position`, behind all tokens before it.
  bool is_thought(int32_t position, int32_t token) {
    if (taps_ == nullptr || !taps_->thoughts || position < prompt_len_) return false;
    const tap::Thoughts& thoughts = *taps_->thoughts;
    const bool opens = position == prompt_len_ && token == thoughts.begin_token;
    if (position == prompt_len_) in_thoughts_ = thoughts.open || opens;
    if (!opens && token == thoughts.end_token) in_thoughts_ = false;
    return in_thoughts_ && !opens;
  }

  uint64_t last() const { return hash_; }
  std::vector<uint64_t>& all() { return hashes_; }

 private:
  const tap::SequenceTaps* taps_;
  const int32_t prompt_len_;
  std::vector<FakeProgram> programs_;
  std::vector<FakeProgram> thought_programs_;
  bool in_thoughts_ = false;
  std::vector<uint64_t> hashes_;
  uint64_t hash_ = kEmptyPrefixHash;
  uint64_t latch_ = 0;
  uint64_t reading_ = 0;
};

step::TokenLogprobs fake_logprobs(int32_t token, uint64_t hash, int32_t count, int32_t vocab_size) {
  step::TokenLogprobs logprobs;
  logprobs.logprob = -0.25f - static_cast<float>(hash % 1024) / 4096.0f;
  logprobs.rank = 1;
  for (int32_t i = 0; i < std::min(count, vocab_size); ++i) {
    logprobs.top.emplace_back((token + i) % vocab_size,
                              logprobs.logprob - 0.5f * static_cast<float>(i));
  }
  return logprobs;
}

}  // namespace

// One multiplication and two shifts.
uint64_t extend_hash(uint64_t prefix_hash, int32_t token, uint64_t effect) {
  uint64_t hash = prefix_hash ^ (static_cast<uint64_t>(static_cast<uint32_t>(token)) + 1) ^ effect;
  hash *= 0x9E3779B97F4A7C15ULL;
  return hash ^ hash >> 29 ^ hash << 17;
}

step::TokenLogprobs score_token(int32_t token, uint64_t prefix_hash, int32_t num_top,
                                int32_t vocab_size) {
  return fake_logprobs(token, prefix_hash, num_top, vocab_size);
}

SampledToken sample_token(const SampleContext& context) {
  const step::SamplingParams& sampling = context.sampling;
  uint64_t key = context.prefix_hash;
  if (sampling.temperature > 0) key = philox_u64(key, sampling.seed, 1);
  if (sampling.needs_history()) {
    uint64_t history = kEmptyPrefixHash + static_cast<uint64_t>(context.history_prompt_len);
    for (const int32_t token : context.history) history = extend_hash(history, token);
    key = philox_u64(key, history, 2);
  }
  const auto stops = [&](int32_t token) {
    return std::ranges::find(sampling.stop_ids, token) != sampling.stop_ids.end();
  };
  SampledToken sampled;
  uint64_t hash = 0;
  for (uint64_t i = 0; i < kMaxDraws; ++i) {
    hash = philox_u64(key, static_cast<uint64_t>(context.position), 3 + i);
    sampled.token = static_cast<int32_t>(hash % static_cast<uint64_t>(context.vocab_size));
    if (context.num_output >= sampling.min_tokens || !stops(sampled.token)) break;
  }
  for (int32_t i = 0; !context.mask.empty() && i < context.vocab_size; ++i) {
    if (is_in_mask(context.mask, sampled.token)) break;
    sampled.token = (sampled.token + 1) % context.vocab_size;
  }
  if (context.num_output >= sampling.min_tokens && stops(sampled.token)) {
    sampled.end = step::SeqEnd::kStopId;
  } else if (context.position + 1 >= context.max_len) {
    sampled.end = step::SeqEnd::kLength;
  }
  if (sampling.num_logprobs >= 0) {
    sampled.logprobs =
        fake_logprobs(sampled.token, hash, sampling.num_logprobs, context.vocab_size);
  }
  return sampled;
}

ExpectedRun expected_run(const std::vector<int32_t>& prompt, const step::SamplingParams& sampling,
                         int32_t max_len, int32_t vocab_size, const NumericalFault& numerical,
                         const tap::SequenceTaps* taps, const ExpectedMask& mask) {
  ExpectedRun run;
  std::vector<int32_t> tokens = prompt;
  ExpectedHashes hashes(taps, static_cast<int32_t>(prompt.size()));
  for (const int32_t token : prompt) hashes.push(token);
  while (run.end == step::SeqEnd::kNone) {
    const auto position = static_cast<int32_t>(tokens.size());
    std::optional<std::vector<uint32_t>> allowed;
    if (mask) allowed = mask(run.tokens);
    run.constraint_failed = mask && !allowed;
    if (run.constraint_failed) break;
    if (numerical && numerical(sampling.seed, position)) {
      run.end = step::SeqEnd::kNumerical;
      break;
    }
    const SampledToken sampled = sample_token(
        {.prefix_hash = hashes.last(),
         .position = position,
         .num_output = static_cast<int32_t>(run.tokens.size()),
         .max_len = max_len,
         .vocab_size = vocab_size,
         .sampling = sampling,
         .history = tokens,
         .history_prompt_len = static_cast<int32_t>(prompt.size()),
         .mask = allowed ? std::span<const uint32_t>(*allowed) : std::span<const uint32_t>()});
    tokens.push_back(sampled.token);
    run.tokens.push_back(sampled.token);
    run.end = sampled.end;
    hashes.push(sampled.token);
  }
  run.hashes = std::move(hashes.all());
  return run;
}

}  // namespace rudder::testing
