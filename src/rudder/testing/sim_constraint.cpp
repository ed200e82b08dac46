#include "rudder/testing/sim_constraint.h"

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>

#include "rudder/base/token_mask.h"
#include "rudder/testing/sim_random.h"
#include "rudder/testing/tiny_tokenizer.h"

namespace rudder::testing {
namespace {

// Allowed by every constraint but at its end, so that two of them leave something.
constexpr int32_t kAlwaysAllowed = 2;

enum class State : uint8_t { kSome, kEndOnly, kNothing, kFails };

// Never an end before the first token: which tokens of a prompt were captured by then depends on
// its chunks.
State state_of(uint64_t hash, size_t num_output) {
  if (num_output == 0) return State::kSome;
  switch (mix64(hash ^ 0xE4D) % 256) {
    case 0:
      return State::kNothing;
    case 1:
      return State::kFails;
    case 2:
    case 3:
    case 4:
      return State::kEndOnly;
    default:
      return State::kSome;
  }
}

bool allows(uint64_t hash, size_t num_output, int32_t token) {
  switch (state_of(hash, num_output)) {
    case State::kEndOnly:
      return token == kTinyEos || token == kTinyOtherStop;
    case State::kSome:
      return token == kAlwaysAllowed || mix64(hash ^ static_cast<uint64_t>(token)) % 3 == 0;
    default:
      return false;
  }
}

uint64_t next_hash(uint64_t hash, int32_t token) {
  return mix64(hash * 31 + static_cast<uint64_t>(token) + 1);
}

class SimMatcher final : public constraint::Matcher {
 public:
  explicit SimMatcher(uint64_t seed) : hash_(seed) {}

  Result<void> restrict(std::span<uint32_t> words) override {
    for (int32_t token = 0; std::cmp_less(token, words.size() * 32); ++token) {
      if (!allows(hash_, num_output_, token)) clear_in_mask(words, token);
    }
    return {};
  }
  Result<void> advance(int32_t token) override {
    hash_ = next_hash(hash_, token);
    ++num_output_;
    if (state_of(hash_, num_output_) == State::kFails) {
      return fail(ErrorCode::kUnsupported, "the constraint fails here");
    }
    return {};
  }
  void begin_trial() override { trials_.emplace_back(hash_, num_output_); }
  void end_trial() override {
    std::tie(hash_, num_output_) = trials_.back();
    trials_.pop_back();
  }

 private:
  uint64_t hash_;
  size_t num_output_ = 0;
  std::vector<std::pair<uint64_t, size_t>> trials_;
};

class SimConstraint final : public constraint::Constraint {
 public:
  explicit SimConstraint(uint64_t seed) : seed_(seed) {}
  std::unique_ptr<constraint::Matcher> start() const override {
    return std::make_unique<SimMatcher>(seed_);
  }

 private:
  const uint64_t seed_;
};

}  // namespace

constraint::ConstraintSpec sim_constraint(uint64_t seed) {
  return constraint::GrammarSpec{.kind = constraint::GrammarKind::kEbnf,
                                 .text = std::to_string(seed)};
}

std::optional<constraint::CompiledGrammar> SimGrammars::find(const constraint::GrammarSpec& spec) {
  return std::make_shared<const SimConstraint>(std::stoull(spec.text));
}

std::optional<std::vector<uint32_t>> sim_mask(std::span<const uint64_t> seeds,
                                              const engine::RequestParams& validated,
                                              int32_t vocab_size, std::span<const int32_t> output) {
  std::vector<uint64_t> hashes(seeds.begin(), seeds.end());
  for (uint64_t& hash : hashes) {
    for (const int32_t token : output) hash = next_hash(hash, token);
    if (state_of(hash, output.size()) == State::kFails) return std::nullopt;
  }
  std::vector<int32_t> allowed;
  for (int32_t token = 0; token < vocab_size; ++token) {
    if (std::ranges::all_of(hashes,
                            [&](uint64_t hash) { return allows(hash, output.size(), token); })) {
      allowed.push_back(token);
    }
  }
  if (allowed.empty()) return std::nullopt;
  const auto ends = [&](int32_t token) {
    return std::ranges::count(validated.sampling.stop_ids, token) > 0;
  };
  const bool is_early = std::cmp_less(output.size(), validated.sampling.min_tokens);
  if (is_early && !std::ranges::all_of(allowed, ends)) std::erase_if(allowed, ends);
  std::vector<uint32_t> mask(mask_words(vocab_size));
  for (const int32_t token : allowed) set_in_mask(mask, token);
  return mask;
}

}  // namespace rudder::testing
