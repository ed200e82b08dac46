#include "rudder/testing/sim_reference.h"

#include <span>
#include <string_view>
#include <utility>

#include "rudder/steer/capture/consumer.h"
#include "rudder/testing/sim_constraint.h"
#include "rudder/testing/tiny_tokenizer.h"

namespace rudder::testing {
namespace {

std::string_view visible_text(int32_t token, bool skip_special) {
  if (!skip_special && token == kTinyEos) return "</s>";
  if (!skip_special && token == kTinyOtherStop) return "<stop>";
  return tiny_text(token);
}

// The stop string that ends first in text[from..], at a byte behind `seen`; of those that end at
// the same byte the longest. Null when there is none; `end` is where it ends.
const std::string* find_stop(const std::vector<std::string>& stops, std::string_view text,
                             size_t from, size_t seen, size_t* end) {
  for (*end = seen + 1; *end <= text.size(); ++*end) {
    const std::string* longest = nullptr;
    for (const std::string& stop : stops) {
      if (!text.substr(from, *end - from).ends_with(stop)) continue;
      if (longest == nullptr || stop.size() > longest->size()) longest = &stop;
    }
    if (longest != nullptr) return longest;
  }
  return nullptr;
}

// Whether `stop_when`, if there is one, counts the token of this hash.
bool is_above(const steer::capture::CaptureSpec* capture, uint64_t hash) {
  if (capture == nullptr || !capture->stop_when) return false;
  const steer::capture::Watch& watch = capture->stop_when->watch;
  const uint64_t word = captured_word(hash, watch.point);
  constexpr size_t kElements = sizeof(word) / 2;  // of bf16; the others are 0
  std::vector<float> row(watch.vector.values().size());
  steer::capture::decode_row(std::as_bytes(std::span(&word, 1)), tensor::DType::kBF16,
                             std::span(row).first(kElements));
  return steer::capture::watch_score(watch, row) > capture->stop_when->above;
}

}  // namespace

SimExpected expected_output(const engine::RequestParams& validated, const tap::SequenceTaps* taps,
                            const steer::capture::CaptureSpec* capture,
                            const std::vector<uint64_t>& constraint_seeds, int32_t max_len,
                            int32_t choice, const FakeOptions& options) {
  const int32_t vocab_size = options.capacity.vocab_size;
  step::SamplingParams sampling = validated.sampling;
  sampling.seed = *validated.seed + static_cast<uint64_t>(choice);
  ExpectedMask mask;
  if (!constraint_seeds.empty()) {
    sampling.min_tokens = 0;  // the masks see to it
    mask = [&](std::span<const int32_t> output) {
      return sim_mask(constraint_seeds, validated, vocab_size, output);
    };
  }
  const ExpectedRun run =
      expected_run(validated.prompt, sampling, max_len, vocab_size, options.numerical, taps, mask);

  SimExpected expected;
  expected.hashes = run.hashes;
  if (validated.echo_prompt_text) {
    for (const int32_t token : validated.prompt) {
      expected.text += visible_text(token, validated.skip_special_tokens);
    }
  }
  size_t from = expected.text.size();
  size_t above = 0;  // tokens in a row whose rows are above the bound of `stop_when`
  for (size_t i = 0; i < run.tokens.size(); ++i) {
    const int32_t token = run.tokens[i];
    expected.tokens.push_back(token);
    const bool is_stop_id = i + 1 == run.tokens.size() && run.end == step::SeqEnd::kStopId;
    // The row of a token is computed where the next one is sampled, or should be.
    const bool has_row = i + 1 < run.tokens.size() ||
                         (run.end == step::SeqEnd::kNumerical && !run.constraint_failed);
    above = has_row && is_above(capture, run.hashes[validated.prompt.size() + i]) ? above + 1 : 0;
    const bool stops = above > 0 && std::cmp_greater_equal(above, capture->stop_when->count) &&
                       std::cmp_greater_equal(i + 1, validated.sampling.min_tokens);
    if (is_stop_id && !validated.include_stop) continue;
    const size_t seen = expected.text.size();
    expected.text += visible_text(token, validated.skip_special_tokens);
    const bool may_match = std::cmp_greater(i + 1, validated.sampling.min_tokens);
    if (!may_match) from = expected.text.size();
    size_t end = 0;
    const std::string* stop =
        may_match ? find_stop(validated.stop, expected.text, from, seen, &end) : nullptr;
    if (stop == nullptr && !stops) continue;
    if (stop == nullptr) {
      expected.reason = engine::FinishReason::kStop;
      expected.stop_reason = "stop_when.probe";
      expected.stopped_by_row = true;
      return expected;
    }
    expected.text.resize(validated.include_stop ? end : end - stop->size());
    expected.reason = engine::FinishReason::kStop;
    expected.stop_reason = *stop;
    return expected;
  }
  if (run.end == step::SeqEnd::kStopId) expected.reason = engine::FinishReason::kStop;
  expected.constraint_failed = run.constraint_failed;
  if (run.end == step::SeqEnd::kNumerical || run.constraint_failed)
    expected.reason = engine::FinishReason::kError;
  return expected;
}

}  // namespace rudder::testing
