// validate_request: the one way in. Checks every field, then every pair of fields, and normalises
// what has two spellings, so that nothing behind it needs to look again. Pure; any thread.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "rudder/base/utf8.h"
#include "rudder/engine/request.h"

namespace rudder::engine {
namespace {

// Below it a temperature is greedy; between it and kMinTemperature it is raised to the latter,
// because logits divided by less overflow. Both figures are vLLM's.
constexpr float kGreedyTemperature = 1e-5f;
constexpr float kMinTemperature = 1e-2f;
constexpr float kMaxLogitBias = 100.0f;

struct FloatRange {
  const char* name;
  float step::SamplingParams::*field;
  float min, max;
  bool open_min;  // min itself is refused
};

constexpr FloatRange kFloatRanges[] = {
    {"temperature", &step::SamplingParams::temperature, 0, 100, false},
    {"top_p", &step::SamplingParams::top_p, 0, 1, true},
    {"min_p", &step::SamplingParams::min_p, 0, 1, false},
    {"repetition_penalty", &step::SamplingParams::repetition_penalty, 0, 100, true},
    {"presence_penalty", &step::SamplingParams::presence_penalty, -2, 2, false},
    {"frequency_penalty", &step::SamplingParams::frequency_penalty, -2, 2, false},
};

tl::unexpected<Error> bad(std::string where, std::string message) {
  return fail(ErrorCode::kInvalidArgument, std::move(message), std::move(where));
}

Result<void> check_int(const char* name, int64_t value, int64_t min, int64_t max) {
  if (value < min)
    return bad(name, fmt::format("{} must be at least {}, got {}", name, min, value));
  if (value > max) return bad(name, fmt::format("{} must be at most {}, got {}", name, max, value));
  return {};
}

Result<void> check_bytes(const char* name, std::string_view value, int32_t max) {
  if (std::cmp_greater(value.size(), max)) {
    return bad(name,
               fmt::format("{} must be at most {} bytes long, got {}", name, max, value.size()));
  }
  return {};
}

Result<void> check_count(const char* name, size_t count, int32_t max) {
  if (std::cmp_greater(count, max)) {
    return bad(name, fmt::format("{} must hold at most {} entries, got {}", name, max, count));
  }
  return {};
}

tl::unexpected<Error> bad_token(std::string where, int32_t token, int32_t vocab_size) {
  std::string message =
      fmt::format("{} must be a token id between 0 and {}, got {}", where, vocab_size - 1, token);
  return bad(std::move(where), std::move(message));
}

bool is_token(int32_t token, int32_t vocab_size) {
  return token >= 0 && token < vocab_size;
}

Result<void> check_tokens(const char* name, const std::vector<int32_t>& ids, int32_t vocab_size) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (!is_token(ids[i], vocab_size)) {
      return bad_token(fmt::format("{}[{}]", name, i), ids[i], vocab_size);
    }
  }
  return {};
}

Result<void> check_sampling(const step::SamplingParams& sampling, const RequestLimits& limits) {
  for (const FloatRange& range : kFloatRanges) {
    const float value = sampling.*range.field;
    // Written so that NaN fails.
    const bool in_range =
        value <= range.max && (range.open_min ? value > range.min : value >= range.min);
    if (!in_range) {
      return bad(range.name, fmt::format("{} must be {} {} and at most {}, got {}", range.name,
                                         range.open_min ? "greater than" : "at least", range.min,
                                         range.max, value));
    }
  }
  RUDDER_TRY_VOID(check_int("top_k", sampling.top_k, 0, INT32_MAX));
  RUDDER_TRY_VOID(check_int("min_tokens", sampling.min_tokens, 0, INT32_MAX));
  const int32_t max_logprobs = std::min(limits.max_logprobs, limits.vocab_size);
  RUDDER_TRY_VOID(check_int("logprobs", sampling.num_logprobs, -1, max_logprobs));
  RUDDER_TRY_VOID(check_int("prompt_logprobs", sampling.num_prompt_logprobs, -1, max_logprobs));

  RUDDER_TRY_VOID(check_count("stop_token_ids", sampling.stop_ids.size(), limits.max_stop_ids));
  return check_tokens("stop_token_ids", sampling.stop_ids, limits.vocab_size);
}

Result<void> check_logit_bias(const step::SamplingParams& sampling, const RequestLimits& limits) {
  const auto& bias = sampling.logit_bias;
  RUDDER_TRY_VOID(check_count("logit_bias", bias.size(), limits.max_logit_bias));
  std::vector<int32_t> seen;
  for (const auto& [token, value] : bias) {
    const std::string where = fmt::format("logit_bias.{}", token);
    if (!is_token(token, limits.vocab_size)) return bad_token(where, token, limits.vocab_size);
    if (!(std::abs(value) <= kMaxLogitBias)) {
      return bad(where, fmt::format("{} must be between {} and {}, got {}", where, -kMaxLogitBias,
                                    kMaxLogitBias, value));
    }
    seen.push_back(token);
  }
  std::sort(seen.begin(), seen.end());
  const auto twice = std::adjacent_find(seen.begin(), seen.end());
  if (twice != seen.end()) {
    return bad(fmt::format("logit_bias.{}", *twice),
               fmt::format("logit_bias names token {} twice", *twice));
  }
  return {};
}

// A stop string that is not UTF-8 could match inside a character and cut it.
Result<void> check_stop_strings(const RequestParams& params, const RequestLimits& limits) {
  RUDDER_TRY_VOID(check_count("stop", params.stop.size(), limits.max_stop_strings));
  for (size_t i = 0; i < params.stop.size(); ++i) {
    const std::string where = fmt::format("stop[{}]", i);
    if (params.stop[i].empty()) return bad(where, fmt::format("{} must not be empty", where));
    RUDDER_TRY_VOID(check_bytes(where.c_str(), params.stop[i], limits.max_stop_string_bytes));
    if (find_invalid_utf8(params.stop[i])) {
      return bad(where, fmt::format("{} must be UTF-8", where));
    }
  }
  return {};
}

Result<void> check_repetition(const RepetitionLimits& repetition, const RequestLimits& limits) {
  const int32_t most = limits.max_pattern;
  RUDDER_TRY_VOID(
      check_int("repetition_detection.max_pattern_size", repetition.max_pattern, 0, most));
  RUDDER_TRY_VOID(check_int("repetition_detection.min_pattern_size", repetition.min_pattern, 0,
                            repetition.max_pattern));
  return check_int("repetition_detection.min_count", repetition.min_count,
                   repetition.max_pattern > 0 ? 2 : 0, most);
}

// Lengths bound one another: prompt, max_tokens and min_tokens share the context, and n prompts
// share the queue.
Result<int32_t> check_lengths(const RequestParams& params, const RequestLimits& limits) {
  if (params.prompt.empty()) return bad("prompt", "prompt must hold at least one token");
  const auto prompt_len = static_cast<int64_t>(params.prompt.size());
  if (prompt_len >= limits.max_seq_len) {
    return bad("prompt",
               fmt::format("This model's maximum context length is {} tokens. However, the "
                           "prompt has {} tokens, which leaves no room for output.",
                           limits.max_seq_len, prompt_len));
  }
  RUDDER_TRY_VOID(check_tokens("prompt", params.prompt, limits.vocab_size));
  const int64_t room = limits.max_seq_len - prompt_len;
  const int64_t max_tokens = params.max_tokens.value_or(static_cast<int32_t>(room));
  if (max_tokens < 1) {
    return bad("max_tokens", fmt::format("max_tokens must be at least 1, got {}", max_tokens));
  }
  if (max_tokens > room) {
    return bad(
        "max_tokens",
        fmt::format(
            "This model's maximum context length is {} tokens. However, max_tokens is {} and "
            "the prompt has {} tokens.",
            limits.max_seq_len, max_tokens, prompt_len));
  }
  if (params.sampling.min_tokens > max_tokens) {
    return bad("min_tokens", fmt::format("min_tokens must be at most max_tokens ({}), got {}",
                                         max_tokens, params.sampling.min_tokens));
  }
  if (params.n * prompt_len > limits.max_queued_tokens) {
    return bad("n", fmt::format("n is {} and the prompt holds {} tokens, together more than the {} "
                                "tokens that may be queued",
                                params.n, prompt_len, limits.max_queued_tokens));
  }
  return static_cast<int32_t>(prompt_len + max_tokens);
}

Result<void> check_sequence(const std::string& where, const std::vector<int32_t>& tokens,
                            int32_t vocab_size) {
  if (tokens.empty()) return bad(where, fmt::format("{} must hold at least one token", where));
  return check_tokens(where.c_str(), tokens, vocab_size);
}

// Names are those of the fields that servers make the specs of.
Result<void> check_constraint(const constraint::ConstraintSpec& spec, int32_t vocab_size) {
  if (const auto* allowed = std::get_if<constraint::AllowedTokens>(&spec)) {
    return check_sequence("allowed_token_ids", allowed->tokens, vocab_size);
  }
  if (const auto* words = std::get_if<constraint::ForbiddenWords>(&spec)) {
    for (size_t i = 0; i < words->sequences.size(); ++i) {
      RUDDER_TRY_VOID(
          check_sequence(fmt::format("bad_words[{}]", i), words->sequences[i], vocab_size));
    }
  }
  if (const auto* limit = std::get_if<constraint::ThinkingLimit>(&spec)) {
    RUDDER_TRY_VOID(check_int("thinking_token_budget", limit->budget, 0, INT32_MAX));
    RUDDER_TRY_VOID(check_sequence("thinking_token_budget.begin", limit->begin, vocab_size));
    RUDDER_TRY_VOID(check_sequence("thinking_token_budget.end", limit->end, vocab_size));
  }
  return {};
}

Result<void> check_segments(const std::vector<tap::SegmentSpec>& segments) {
  for (size_t i = 0; i < segments.size(); ++i) {
    const int32_t begin = segments[i].begin;
    if (i == 0 ? begin != 0 : begin <= segments[i - 1].begin) {
      return bad("steering", "segments must begin at 0 and ascend");
    }
  }
  return {};
}

// What the specs name is looked up when the request is submitted.
Result<void> check_taps(const RequestParams& params, const RequestLimits& limits) {
  const tap::TapsSpec& taps = params.taps;
  if (!taps.segments.empty() && !limits.taps.steering()) {
    return bad("steering", "this server runs without steering");
  }
  if (taps.is_controlled && !limits.takes_controls) {
    return bad("steering", "a server that records its steps takes no controls");
  }
  RUDDER_TRY_VOID(check_segments(taps.segments));
  if (taps.thoughts) {
    if (taps.segments.empty()) return bad("steering", "thoughts have segments and answers none");
    RUDDER_TRY_VOID(check_segments(taps.thoughts->segments));
  }
  const bool captures = params.capture.value != 0;
  if (captures && !limits.taps.capture()) {
    return bad("capture", "this server runs without capture");
  }
  if (!captures && !taps.captured.empty()) {
    return bad("capture", "tokens are captured, but nobody gets them");
  }
  int32_t last = 0;
  for (const tap::PositionRange& range : taps.captured) {
    if (range.begin < last || range.end <= range.begin) {
      return bad("capture", "captured positions must ascend and be disjoint");
    }
    last = range.end;
  }
  return {};
}

void normalise(RequestParams& params, const RequestLimits& limits) {
  step::SamplingParams& sampling = params.sampling;
  if (sampling.temperature < kGreedyTemperature) {
    sampling.temperature = 0;
    sampling.top_k = 0;
    sampling.top_p = 1;
    sampling.min_p = 0;
  } else {
    sampling.temperature = std::max(sampling.temperature, kMinTemperature);
  }
  if (sampling.top_k >= limits.vocab_size) sampling.top_k = 0;

  auto& ids = sampling.stop_ids;
  if (!params.ignore_eos) ids.insert(ids.end(), limits.eos_ids.begin(), limits.eos_ids.end());
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
}

}  // namespace

std::string root_salt(const RequestParams& params) {
  if (params.adapter == nullptr) return params.cache_salt;
  const lora::AdapterKey& key = params.adapter->adapter->key;
  std::string salt = "\xff";
  salt.append(reinterpret_cast<const char*>(key.data()), sizeof(key));
  return salt + params.cache_salt;
}

Result<Request> validate_request(RequestParams params, const RequestLimits& limits) {
  RUDDER_TRY_VOID(check_bytes("request_id", params.client_id, limits.max_id_bytes));
  if (!(params.timeout >= 0 && params.timeout <= limits.max_timeout)) {
    return bad("timeout",
               fmt::format("{} seconds are outside [0, {}]", params.timeout, limits.max_timeout));
  }
  RUDDER_TRY_VOID(check_bytes("cache_salt", params.cache_salt, limits.max_cache_salt_bytes));
  RUDDER_TRY_VOID(check_int("n", params.n, 1, limits.max_choices));
  RUDDER_TRY_VOID(check_sampling(params.sampling, limits));
  RUDDER_TRY_VOID(check_logit_bias(params.sampling, limits));
  RUDDER_TRY_VOID(check_stop_strings(params, limits));
  RUDDER_TRY_VOID(check_repetition(params.repetition, limits));
  for (const constraint::ConstraintSpec& spec : params.constraints) {
    RUDDER_TRY_VOID(check_constraint(spec, limits.vocab_size));
  }
  RUDDER_TRY(const int32_t max_len, check_lengths(params, limits));
  RUDDER_TRY_VOID(check_taps(params, limits));
  normalise(params, limits);
  // Before min_tokens every stop id is banned: something must be left to sample.
  if (params.sampling.min_tokens > 0 &&
      std::cmp_greater_equal(params.sampling.stop_ids.size(), limits.vocab_size)) {
    return bad("stop_token_ids", "stop_token_ids must leave a token to sample before min_tokens");
  }
  Request request;
  request.params_ = std::move(params);
  request.max_len_ = max_len;
  return request;
}

}  // namespace rudder::engine
