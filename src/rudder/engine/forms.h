// Forms: from the specs of a request's constraints to the Constraints that its choices are held to.
// Grammars are compiled beforehand, off the engine thread, and held by a lease until the request is
// submitted; the rest is made at once. Owned by EngineCore; every member is safe from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "rudder/base/clock.h"
#include "rudder/base/result.h"
#include "rudder/constraint/constraint_spec.h"
#include "rudder/constraint/grammar_source.h"
#include "rudder/engine/form_queue.h"

namespace rudder::engine {

// Keeps what a grammar was compiled to while it lives: a request with that grammar is not refused
// for want of it. Opaque.
using FormLease = std::shared_ptr<const void>;
using FormCompiled = std::function<void(const Result<FormLease>&)>;

class Forms {
 public:
  using Constraints = std::vector<std::shared_ptr<const constraint::Constraint>>;

  // `grammars` may be null: a request with a grammar is then kUnsupported.
  // `clock` outlives it.
  Forms(std::unique_ptr<constraint::GrammarSource> grammars, int32_t vocab_size,
        const Clock& clock);
  ~Forms();
  Forms(const Forms&) = delete;
  Forms& operator=(const Forms&) = delete;

  // As Engine::compile.
  void compile(const constraint::GrammarSpec& spec, int32_t tenant, FormCompiled done);
  // One Constraint a spec. kUnavailable: a grammar is neither known nor leased.
  Result<Constraints> resolve(std::span<const constraint::ConstraintSpec> specs);
  constraint::GrammarStats stats() const;

 private:
  // What a FormLease points at.
  struct Leased {
    constraint::GrammarSpec spec;
    std::shared_ptr<const constraint::Constraint> constraint;
  };

  Result<std::shared_ptr<const constraint::Constraint>> find(const constraint::GrammarSpec& spec);
  FormLease lease(Leased compiled);

  const int32_t vocab_size_;
  std::mutex mutex_;
  // Few: a lease lasts from a compile to its submission.
  std::vector<std::weak_ptr<const Leased>> leased_;
  std::optional<FormQueue> queue_;                             // of grammars_
  const std::unique_ptr<constraint::GrammarSource> grammars_;  // first to go: it calls the others
};

}  // namespace rudder::engine
