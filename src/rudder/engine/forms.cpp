#include "rudder/engine/forms.h"

#include <utility>
#include <variant>

#include "rudder/constraint/allowed_tokens.h"
#include "rudder/constraint/bad_words.h"
#include "rudder/constraint/thinking_budget.h"

namespace rudder::engine {
namespace {

using SharedConstraint = std::shared_ptr<const constraint::Constraint>;

tl::unexpected<Error> no_grammars() {
  return fail(ErrorCode::kUnsupported, "needs a model with an end-of-sequence token");
}

template <typename... Overloads>
struct Visitor : Overloads... {
  using Overloads::operator()...;
};
template <typename... Overloads>
Visitor(Overloads...) -> Visitor<Overloads...>;

}  // namespace

Forms::Forms(std::unique_ptr<constraint::GrammarSource> grammars, int32_t vocab_size,
             const Clock& clock)
    : vocab_size_(vocab_size), grammars_(std::move(grammars)) {
  if (grammars_ != nullptr) queue_.emplace(*grammars_, clock);
}

Forms::~Forms() {
  if (queue_) queue_->close();
}

void Forms::compile(const constraint::GrammarSpec& spec, int32_t tenant, FormCompiled done) {
  if (!queue_) return done(no_grammars());
  queue_->compile(
      spec, tenant,
      [this, spec, done = std::move(done)](const constraint::CompiledGrammar& compiled) {
        if (!compiled) return done(tl::unexpected<Error>(compiled.error()));
        done(lease({spec, *compiled}));
      });
}

FormLease Forms::lease(Leased compiled) {
  const auto made = std::make_shared<const Leased>(std::move(compiled));
  const std::lock_guard lock(mutex_);
  std::erase_if(leased_, [](const auto& leased) { return leased.expired(); });
  leased_.push_back(made);
  return made;
}

Result<SharedConstraint> Forms::find(const constraint::GrammarSpec& spec) {
  if (grammars_ == nullptr) return no_grammars();
  {
    const std::lock_guard lock(mutex_);
    for (const std::weak_ptr<const Leased>& weak : leased_) {
      const std::shared_ptr<const Leased> leased = weak.lock();
      if (leased != nullptr && leased->spec == spec) return leased->constraint;
    }
  }
  std::optional<constraint::CompiledGrammar> known = grammars_->find(spec);
  if (known) return std::move(*known);
  return fail(ErrorCode::kUnavailable, "the request's grammar is not compiled");
}

Result<Forms::Constraints> Forms::resolve(std::span<const constraint::ConstraintSpec> specs) {
  Constraints constraints;
  constraints.reserve(specs.size());
  const Visitor make = {[&](const constraint::GrammarSpec& spec) { return find(spec); },
                        [&](const constraint::AllowedTokens& spec) -> Result<SharedConstraint> {
                          return constraint::allow_tokens(spec.tokens, vocab_size_);
                        },
                        [](const constraint::ForbiddenWords& spec) -> Result<SharedConstraint> {
                          return constraint::forbid_words(spec.sequences);
                        },
                        [](const constraint::ThinkingLimit& spec) -> Result<SharedConstraint> {
                          return constraint::limit_thinking(spec.begin, spec.end, spec.budget,
                                                            spec.open);
                        }};
  for (const constraint::ConstraintSpec& spec : specs) {
    RUDDER_TRY(constraints.emplace_back(), std::visit(make, spec));
  }
  return constraints;
}

constraint::GrammarStats Forms::stats() const {
  return grammars_ != nullptr ? grammars_->stats() : constraint::GrammarStats();
}

}  // namespace rudder::engine
