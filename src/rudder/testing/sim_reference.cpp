#include "rudder/testing/sim_reference.h"

#include <string_view>

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

}  // namespace

SimExpected expected_output(const engine::RequestParams& validated, const tap::SequenceTaps* taps,
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
  for (size_t i = 0; i < run.tokens.size(); ++i) {
    const int32_t token = run.tokens[i];
    expected.tokens.push_back(token);
    const bool is_stop_id = i + 1 == run.tokens.size() && run.end == step::SeqEnd::kStopId;
    if (is_stop_id && !validated.include_stop) continue;
    const size_t seen = expected.text.size();
    expected.text += visible_text(token, validated.skip_special_tokens);
    if (std::cmp_less_equal(i + 1, validated.sampling.min_tokens)) {
      from = expected.text.size();
      continue;
    }
    size_t end = 0;
    const std::string* stop = find_stop(validated.stop, expected.text, from, seen, &end);
    if (stop == nullptr) continue;
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
