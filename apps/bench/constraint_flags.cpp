#include "bench/constraint_flags.h"

#include <chrono>

#include "rudder/constraint/grammar_compiler.h"

namespace rudder::apps {
namespace {

using Duration = std::chrono::duration<double, std::micro>;

// Allows every token, so that the tokens are those of the run without it.
class BusyMatcher final : public constraint::Matcher {
 public:
  explicit BusyMatcher(double mask_us) : mask_us_(mask_us) {}

  Result<void> restrict(std::span<uint32_t>) override {
    const auto end = std::chrono::steady_clock::now() + mask_us_;
    while (std::chrono::steady_clock::now() < end) {
    }
    return {};
  }
  Result<void> advance(int32_t) override { return {}; }

 private:
  const Duration mask_us_;
};

class BusyConstraint final : public constraint::Constraint {
 public:
  explicit BusyConstraint(double mask_us) : mask_us_(mask_us) {}
  std::unique_ptr<constraint::Matcher> start() const override {
    return std::make_unique<BusyMatcher>(mask_us_);
  }

 private:
  const double mask_us_;
};

}  // namespace

void ConstraintFlags::declare(SettingsTable& table) {
  table.section("constraint");
  table.add("constrain", &constrain,
            "Sample every token under a mask that allows all of them: what masks cost.");
  table.add("mask-us", &mask_us, 0.0, 1e6,
            "With --constrain: microseconds that working out each mask takes.");
  table.add("constrain-regex", &regex,
            "Keep every output to this expression; outputs have their full length, so it should "
            "not be matched before (\"[^#]*#\").");
}

Result<std::shared_ptr<const constraint::Constraint>> ConstraintFlags::make(
    const ModelSession& session) const {
  if (!regex.empty()) {
    RUDDER_TRY(const auto compiler,
               constraint::GrammarCompiler::create(
                   *session.files.tokenizer, session.engine->limits().vocab_size,
                   session.files.generation.eos_ids, constraint::GrammarSettings()));
    return compiler->compile({.kind = constraint::GrammarKind::kRegex, .text = regex});
  }
  if (!constrain) return nullptr;
  return std::make_shared<const BusyConstraint>(mask_us);
}

}  // namespace rudder::apps
