#include "rudder/constraint/bad_words.h"

#include <algorithm>
#include <string>
#include <utility>

#include "rudder/base/check.h"

namespace rudder::constraint {
namespace {

using Sequences = std::vector<std::vector<int32_t>>;

class BadWordsMatcher final : public Matcher {
 public:
  explicit BadWordsMatcher(std::shared_ptr<const Sequences> sequences)
      : sequences_(std::move(sequences)) {
    for (const auto& sequence : *sequences_) longest_ = std::max(longest_, sequence.size());
  }

  Result<void> restrict(std::span<uint32_t> words) override {
    for (const std::vector<int32_t>& sequence : *sequences_) {
      const auto before = std::span(sequence).first(sequence.size() - 1);
      if (ends_with(before) && std::cmp_less(sequence.back(), words.size() * 32)) {
        clear_in_mask(words, sequence.back());
      }
    }
    return {};
  }

  Result<void> advance(int32_t token) override {
    // As much as the longest sequence looks back at, moved down now and then.
    if (trials_.empty() && output_.size() >= 2 * longest_) {
      output_.erase(output_.begin(), output_.end() - static_cast<ptrdiff_t>(longest_));
    }
    output_.push_back(token);
    return {};
  }
  void begin_trial() override { trials_.push_back(output_.size()); }
  void end_trial() override {
    output_.resize(trials_.back());
    trials_.pop_back();
  }

 private:
  bool ends_with(std::span<const int32_t> tokens) const {
    return tokens.size() <= output_.size() &&
           std::equal(tokens.begin(), tokens.end(),
                      output_.end() - static_cast<ptrdiff_t>(tokens.size()));
  }

  const std::shared_ptr<const Sequences> sequences_;
  size_t longest_ = 1;
  std::vector<int32_t> output_;  // its last tokens
  std::vector<size_t> trials_;   // what output_ had at their begins
};

class BadWords final : public Constraint {
 public:
  explicit BadWords(Sequences sequences)
      : sequences_(std::make_shared<const Sequences>(std::move(sequences))) {}

  std::unique_ptr<Matcher> start() const override {
    return std::make_unique<BadWordsMatcher>(sequences_);
  }

 private:
  const std::shared_ptr<const Sequences> sequences_;
};

}  // namespace

Result<Sequences> spellings_of(std::string_view word, const text::Tokenizer& tokenizer) {
  word.remove_prefix(std::min(word.find_first_not_of(" \t\n\r\f\v"), word.size()));
  const text::EncodeOptions plain{.add_special_tokens = false};
  RUDDER_TRY(std::vector<int32_t> alone, tokenizer.encode(word, plain));
  if (alone.empty()) return fail(ErrorCode::kInvalidArgument, "has no token");
  RUDDER_TRY(std::vector<int32_t> behind_space, tokenizer.encode(" " + std::string(word), plain));
  Sequences spellings = {std::move(alone)};
  if (behind_space != spellings.front()) spellings.push_back(std::move(behind_space));
  return spellings;
}

std::shared_ptr<const Constraint> forbid_words(Sequences sequences) {
  for (const auto& sequence : sequences) RUDDER_CHECK(!sequence.empty());
  return std::make_shared<BadWords>(std::move(sequences));
}

}  // namespace rudder::constraint
