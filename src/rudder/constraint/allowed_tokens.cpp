#include "rudder/constraint/allowed_tokens.h"

#include <utility>
#include <vector>

#include "rudder/base/check.h"

namespace rudder::constraint {
namespace {

using Mask = std::vector<uint32_t>;

class AllowedTokensMatcher final : public Matcher {
 public:
  explicit AllowedTokensMatcher(std::shared_ptr<const Mask> mask) : mask_(std::move(mask)) {}

  Result<void> restrict(std::span<uint32_t> words) override {
    RUDDER_CHECK(words.size() == mask_->size());
    for (size_t i = 0; i < words.size(); ++i) words[i] &= (*mask_)[i];
    return {};
  }
  Result<void> advance(int32_t) override { return {}; }
  void begin_trial() override {}
  void end_trial() override {}

 private:
  const std::shared_ptr<const Mask> mask_;
};

class AllowedTokensConstraint final : public Constraint {
 public:
  explicit AllowedTokensConstraint(Mask mask)
      : mask_(std::make_shared<const Mask>(std::move(mask))) {}

  std::unique_ptr<Matcher> start() const override {
    return std::make_unique<AllowedTokensMatcher>(mask_);
  }

 private:
  const std::shared_ptr<const Mask> mask_;
};

}  // namespace

std::shared_ptr<const Constraint> allow_tokens(std::span<const int32_t> tokens,
                                               int32_t vocab_size) {
  Mask mask(mask_words(vocab_size));
  for (const int32_t token : tokens) {
    RUDDER_CHECK(token >= 0 && token < vocab_size, "token {}", token);
    set_in_mask(mask, token);
  }
  return std::make_shared<AllowedTokensConstraint>(std::move(mask));
}

}  // namespace rudder::constraint
