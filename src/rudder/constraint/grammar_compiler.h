// GrammarCompiler: turns a GrammarSpec into a Constraint, for one vocabulary. It compiles on
// threads of its own, within the bounds of its fuel, and stops a compile that nobody waits for any
// longer. It keeps results and failures in a cache that is bounded in bytes. Requests for a form
// that is being compiled share that compile. The engine owns it; it is made once at start. Every
// member is safe from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/base/settings.h"
#include "rudder/constraint/grammar_source.h"
#include "rudder/text/tokenizer.h"

namespace rudder::constraint {

struct GrammarSettings {
  int64_t grammar_cache = int64_t{256} << 20;  // bytes of compiled grammars kept
  double grammar_timeout = 10;                 // seconds that a request waits for a compile
  int32_t grammar_threads = 2;                 // compiles at a time
  int64_t max_grammar = int64_t{256} << 10;    // bytes of a schema, grammar, expression or list

  void declare(SettingsTable& table);
  // Of grammar_cache: the masks that matchers share; compiled forms have the rest.
  int64_t memo_bytes() const { return grammar_cache / 4; }
  int64_t form_bytes() const { return grammar_cache - memo_bytes(); }
};

class GrammarCompiler final : public GrammarSource {
 public:
  // `vocab_size` is the model's, masks have as many bits; `stop_ids` end a choice. kUnsupported
  // when there are none: such a model cannot end where a grammar does.
  static Result<std::unique_ptr<GrammarCompiler>> create(const text::Tokenizer& tokenizer,
                                                         int32_t vocab_size,
                                                         std::vector<int32_t> stop_ids,
                                                         const GrammarSettings& settings);
  ~GrammarCompiler() override;  // calls what still waits, with kCancelled
  GrammarCompiler(const GrammarCompiler&) = delete;
  GrammarCompiler& operator=(const GrammarCompiler&) = delete;

  // What the cache has; nothing when the spec must be compiled first.
  std::optional<CompiledGrammar> find(const GrammarSpec& spec) override;
  // Calls `done` once, at the deadline at the latest, on the caller's thread (cached) or on one of
  // the compiler's, which it must not hold up. kInvalidArgument: the spec is at fault, or too
  // complex to compile in time. kOverloaded: too many compiles wait.
  void compile(const GrammarSpec& spec, std::function<void(const CompiledGrammar&)> done) override;
  // The same, waiting for it.
  CompiledGrammar compile(const GrammarSpec& spec);

  GrammarStats stats() const override;

 private:
  struct Impl;
  explicit GrammarCompiler(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;  // shared with compiles that outlive their deadline
};

}  // namespace rudder::constraint
