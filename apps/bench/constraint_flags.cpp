#include "bench/constraint_flags.h"

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <utility>

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
  void begin_trial() override {}
  void end_trial() override {}

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

// Whatever is asked of it is the busy constraint.
class BusyGrammars final : public constraint::GrammarSource {
 public:
  explicit BusyGrammars(double mask_us) : busy_(std::make_shared<BusyConstraint>(mask_us)) {}

  std::optional<constraint::CompiledGrammar> find(const constraint::GrammarSpec&) override {
    return constraint::CompiledGrammar(busy_);
  }
  void compile(const constraint::GrammarSpec&,
               std::function<void(const constraint::CompiledGrammar&)> done) override {
    done(busy_);
  }
  constraint::GrammarStats stats() const override { return {}; }

 private:
  const std::shared_ptr<const constraint::Constraint> busy_;
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

GrammarFactory ConstraintFlags::grammars() const {
  if (!regex.empty()) return compile_grammars({});
  if (!constrain) return {};
  return [mask_us = mask_us](const ModelFiles&, int32_t) {
    return std::make_unique<BusyGrammars>(mask_us);
  };
}

Result<BenchConstraint> ConstraintFlags::make(const ModelSession& session) const {
  if (regex.empty() && !constrain) return BenchConstraint{};
  const constraint::GrammarSpec spec = {.kind = constraint::GrammarKind::kRegex, .text = regex};
  std::promise<Result<engine::FormLease>> compiled;
  session.engine->compile(
      spec, 0, [&](const Result<engine::FormLease>& lease) { compiled.set_value(lease); });
  RUDDER_TRY(engine::FormLease lease, compiled.get_future().get());
  return BenchConstraint{{spec}, std::move(lease)};
}

}  // namespace rudder::apps
