// A constraint for the simulator: a hash of every token that its matcher was told decides which
// tokens it allows. So a token too many, a token too few, or a token of another sequence changes
// the output. Sometimes it allows only the end of the text, or nothing, or fails.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "rudder/constraint/constraint_spec.h"
#include "rudder/constraint/grammar_source.h"
#include "rudder/engine/request.h"

namespace rudder::testing {

constraint::ConstraintSpec sim_constraint(uint64_t seed);

// Knows what sim_constraint gives.
class SimGrammars final : public constraint::GrammarSource {
 public:
  std::optional<constraint::CompiledGrammar> find(const constraint::GrammarSpec& spec) override;
  void compile(const constraint::GrammarSpec& spec,
               std::function<void(const constraint::CompiledGrammar&)> done) override {
    done(*find(spec));
  }
  constraint::GrammarStats stats() const override { return {}; }
};

// The mask after `output` of a request under sim_constraints of these seeds, worked out from the
// first token; nothing where it ends with an error.
std::optional<std::vector<uint32_t>> sim_mask(std::span<const uint64_t> seeds,
                                              const engine::RequestParams& validated,
                                              int32_t vocab_size, std::span<const int32_t> output);

}  // namespace rudder::testing
