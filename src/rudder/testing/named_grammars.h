// NamedGrammars: a source of grammars for tests: a spec stands for any Constraint that a test made.
// Any thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "rudder/constraint/constraint_spec.h"
#include "rudder/constraint/grammar_source.h"

namespace rudder::testing {

// A spec that every NamedGrammars knows to mean this constraint, for the life of the process.
constraint::ConstraintSpec name_constraint(std::shared_ptr<const constraint::Constraint> named);
// What such a spec means; null for any other.
std::shared_ptr<const constraint::Constraint> named_constraint(
    const constraint::ConstraintSpec& spec);

class NamedGrammars final : public constraint::GrammarSource {
 public:
  std::optional<constraint::CompiledGrammar> find(const constraint::GrammarSpec& spec) override;
  void compile(const constraint::GrammarSpec& spec,
               std::function<void(const constraint::CompiledGrammar&)> done) override;
  constraint::GrammarStats stats() const override { return {}; }
};

}  // namespace rudder::testing
