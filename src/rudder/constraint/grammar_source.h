// GrammarSource: the interface through which the engine gets the Constraint of a GrammarSpec.
// GrammarCompiler implements it for servers. Every member is safe from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "rudder/base/result.h"
#include "rudder/constraint/constraint.h"
#include "rudder/constraint/grammar_spec.h"
#include "rudder/constraint/mask_memo.h"

namespace rudder::constraint {

// Of the time since start.
struct GrammarStats {
  uint64_t hits = 0;
  uint64_t misses = 0;
  uint64_t failures = 0;  // of compiles, timeouts left out
  uint64_t timeouts = 0;
  double compile_seconds = 0;
  size_t cache_bytes = 0;
  size_t cache_entries = 0;
  MaskMemo::Stats masks;
};

// Error.where is a path inside the spec's text, to be put behind the field's name
// (".properties.age.multipleOf"); empty when the text as a whole is at fault.
using CompiledGrammar = Result<std::shared_ptr<const Constraint>>;

class GrammarSource {
 public:
  virtual ~GrammarSource() = default;

  // What is known already; nothing when the spec must be compiled first.
  virtual std::optional<CompiledGrammar> find(const GrammarSpec& spec) = 0;
  // Calls `done` once, at a deadline at the latest, on the caller's thread (known) or on one of the
  // source's, which it must not hold up. kInvalidArgument: the spec is at fault, or too complex to
  // compile in time. kOverloaded: too many compiles wait.
  virtual void compile(const GrammarSpec& spec,
                       std::function<void(const CompiledGrammar&)> done) = 0;
  virtual GrammarStats stats() const = 0;
};

}  // namespace rudder::constraint
