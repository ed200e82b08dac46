#include "rudder/testing/named_grammars.h"

#include <map>
#include <mutex>
#include <string>
#include <utility>

namespace rudder::testing {
namespace {

using SharedConstraint = std::shared_ptr<const constraint::Constraint>;

struct Names {
  std::mutex mutex;
  std::map<std::string, SharedConstraint> constraints;
};

Names& names() {
  static Names* const all = new Names;  // outlives every engine
  return *all;
}

}  // namespace

constraint::ConstraintSpec name_constraint(SharedConstraint named) {
  Names& all = names();
  const std::lock_guard lock(all.mutex);
  std::string name = "named-" + std::to_string(all.constraints.size());
  all.constraints.emplace(name, std::move(named));
  return constraint::GrammarSpec{.kind = constraint::GrammarKind::kEbnf, .text = std::move(name)};
}

SharedConstraint named_constraint(const constraint::ConstraintSpec& spec) {
  const auto* grammar = std::get_if<constraint::GrammarSpec>(&spec);
  if (grammar == nullptr) return nullptr;
  Names& all = names();
  const std::lock_guard lock(all.mutex);
  const auto found = all.constraints.find(grammar->text);
  return found == all.constraints.end() ? nullptr : found->second;
}

std::optional<constraint::CompiledGrammar> NamedGrammars::find(
    const constraint::GrammarSpec& spec) {
  SharedConstraint constraint = named_constraint(spec);
  if (constraint == nullptr) return std::nullopt;
  return constraint::CompiledGrammar(std::move(constraint));
}

void NamedGrammars::compile(const constraint::GrammarSpec& spec,
                            std::function<void(const constraint::CompiledGrammar&)> done) {
  const std::optional<constraint::CompiledGrammar> known = find(spec);
  done(known ? *known
             : constraint::CompiledGrammar(fail(ErrorCode::kInvalidArgument, "is not named")));
}

}  // namespace rudder::testing
