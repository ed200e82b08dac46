#include "rudder/server/request/field_ranges.h"

#include <algorithm>
#include <limits>

#include "rudder/base/check.h"

namespace rudder::server {
namespace {

constexpr int64_t kInt32Max = std::numeric_limits<int32_t>::max();
constexpr int64_t kInt32Min = std::numeric_limits<int32_t>::min();
constexpr int64_t kInt64Max = std::numeric_limits<int64_t>::max();
constexpr int64_t kInt64Min = std::numeric_limits<int64_t>::min();
constexpr int64_t kMaxPingSeconds = 3600;
constexpr int64_t kMaxPattern = 1024;
constexpr int64_t kMaxAllowedTokens = 1 << 19;  // more than any vocabulary
constexpr int64_t kMaxBadWords = 1024;
constexpr int64_t kMaxBadWordBytes = 256;
constexpr engine::RequestLimits kDefaultLimits{};

constexpr IntegerField kIntegers[] = {
    {"n", FieldOf::kBoth, 1, kInt32Max, RangeLimit::kChoices, "Choices of each prompt."},
    {"best_of", FieldOf::kCompletions, 1, kInt32Max, RangeLimit::kChoices,
     "Accepted when equal to n."},
    {"max_tokens", FieldOf::kBoth, 0, kInt32Max, RangeLimit::kContext,
     "Tokens of output at most; absent: of a chat as many as the context has room for, of a "
     "completion 16. 0 only for a completion with echo: the prompt alone."},
    {"max_completion_tokens", FieldOf::kBoth, 1, kInt32Max, RangeLimit::kContext,
     "The same; goes before max_tokens."},
    {"min_tokens", FieldOf::kBoth, 0, kInt32Max, RangeLimit::kContext,
     "Tokens of output before an end or a stop counts; at most max_tokens."},
    {"top_k", FieldOf::kBoth, -1, kInt32Max, RangeLimit::kNone,
     "Only the k likeliest tokens are drawn; 0 and -1: all."},
    {"seed", FieldOf::kBoth, kInt64Min, kInt64Max, RangeLimit::kNone,
     "The same seed draws the same tokens; choice i uses seed + i."},
    {"priority", FieldOf::kBoth, kInt32Min, kInt32Max, RangeLimit::kNone, "Lower runs first."},
    {"logprobs", FieldOf::kCompletions, 0, kInt32Max, RangeLimit::kLogprobs,
     "Log-probabilities of each token and of so many of the likeliest beside it."},
    {"top_logprobs", FieldOf::kChat, 0, kInt32Max, RangeLimit::kLogprobs,
     "So many of the likeliest tokens beside each; needs logprobs."},
    {"prompt_logprobs", FieldOf::kBoth, 0, kInt32Max, RangeLimit::kLogprobs,
     "The same of each token of the prompt but the first; not with stream."},
    {"thinking_token_budget", FieldOf::kBoth, -1, kInt32Max, RangeLimit::kNone,
     "Tokens of a thought at most; then the mark that ends it is all that may come. -1: no bound."},
    {"truncate_prompt_tokens", FieldOf::kBoth, -1, kInt32Max, RangeLimit::kContext,
     "Only the prompt's last tokens are kept, so many at most; -1: as many as fit."},
    {"sse_ping_interval", FieldOf::kBoth, -1, kMaxPingSeconds, RangeLimit::kNone,
     "Seconds of silence after which a stream gets a comment; 0 and -1: none. Absent: the "
     "server's."},
    {"repetition_detection.max_pattern_size", FieldOf::kBoth, 0, kMaxPattern, RangeLimit::kNone,
     "The longest pattern looked for, in tokens; 0: none."},
    {"repetition_detection.min_pattern_size", FieldOf::kBoth, 0, kMaxPattern, RangeLimit::kNone,
     "The shortest; 0 is 1. At most max_pattern_size."},
    {"repetition_detection.min_count", FieldOf::kBoth, 0, kMaxPattern, RangeLimit::kNone,
     "So many times in a row end the choice; at least 2 where a pattern is looked for."},
};

constexpr RealField kReals[] = {
    {"temperature", FieldOf::kBoth, 0, 100, false, "0 is greedy."},
    {"top_p", FieldOf::kBoth, 0, 1, true, "The likeliest tokens of this share are drawn."},
    {"min_p", FieldOf::kBoth, 0, 1, false, "Tokens below this share of the likeliest are not."},
    {"repetition_penalty", FieldOf::kBoth, 0, 100, true,
     "Divides logits of tokens that prompt or output have; 1: off."},
    {"presence_penalty", FieldOf::kBoth, -2, 2, false, "Off logits of tokens that output has."},
    {"frequency_penalty", FieldOf::kBoth, -2, 2, false, "The same, each time that it has them."},
    {"logit_bias.*", FieldOf::kBoth, -100, 100, false, "Added to the logit of a token id."},
    {"length_penalty", FieldOf::kBoth, -100, 100, false, "Of beam search; without effect."},
    {"timeout", FieldOf::kBoth, 0, kDefaultLimits.max_timeout, true,
     "Seconds that the request may wait before it runs; past them 503."},
};

constexpr SizedField kSized[] = {
    {"stop", FieldOf::kBoth, kDefaultLimits.max_stop_strings, "Strings."},
    {"stop[]", FieldOf::kBoth, kDefaultLimits.max_stop_string_bytes, "Bytes."},
    {"stop_token_ids", FieldOf::kBoth, kDefaultLimits.max_stop_ids, "Token ids."},
    {"logit_bias", FieldOf::kBoth, kDefaultLimits.max_logit_bias, "Token ids."},
    {"allowed_token_ids", FieldOf::kBoth, kMaxAllowedTokens, "Token ids; at least one."},
    {"bad_words", FieldOf::kBoth, kMaxBadWords, "Strings."},
    {"bad_words[]", FieldOf::kBoth, kMaxBadWordBytes, "Bytes; at least one token."},
    {"cache_salt", FieldOf::kBoth, 256, "Bytes; at least one."},
    {"request_id", FieldOf::kBoth, 128, "Bytes of visible ASCII."},
    {"user", FieldOf::kBoth, 4096, "Bytes; without effect."},
};

template <typename Field>
const Field& find(std::span<const Field> fields, std::string_view path) {
  const auto found = std::ranges::find(fields, path, &Field::path);
  RUDDER_CHECK(found != fields.end(), "no range for {}", path);
  return *found;
}

}  // namespace

std::span<const IntegerField> integer_fields() {
  return kIntegers;
}
std::span<const RealField> real_fields() {
  return kReals;
}
std::span<const SizedField> sized_fields() {
  return kSized;
}

const IntegerField& integer_field(std::string_view path) {
  return find(integer_fields(), path);
}
const RealField& real_field(std::string_view path) {
  return find(real_fields(), path);
}
size_t size_limit(std::string_view path) {
  return static_cast<size_t>(find(sized_fields(), path).max);
}

int64_t max_of(const IntegerField& field, const engine::RequestLimits& limits) {
  switch (field.limit) {
    case RangeLimit::kNone:
      return field.max;
    case RangeLimit::kContext:
      return std::min<int64_t>(field.max, int64_t{limits.max_seq_len} - 1);
    case RangeLimit::kChoices:
      return std::min<int64_t>(field.max, limits.max_choices);
    case RangeLimit::kLogprobs:
      return std::min<int64_t>(field.max, std::min(limits.max_logprobs, limits.vocab_size));
  }
  RUDDER_CHECK(false, "limit {}", static_cast<int>(field.limit));
}

}  // namespace rudder::server
