// FormEngine: a vocabulary, and the compiler of forms for it. GrammarCompiler owns one, made at
// start; its threads call compile(). The matchers of the results run on the engine thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/constraint/constraint.h"
#include "rudder/constraint/form_matcher.h"
#include "rudder/constraint/fuel.h"
#include "rudder/constraint/grammar_spec.h"
#include "rudder/constraint/mask_memo.h"
#include "rudder/constraint/terminal_tables.h"

namespace rudder::constraint {

// What each token spells. A token of no bytes can never come out of a form.
struct Vocabulary {
  std::vector<std::string> token_bytes;  // [tokens]
  int32_t size = 0;                      // of the masks; at least the number of tokens
  std::vector<int32_t> stop_ids;         // allowed where a form may end; at least one
};

// What stands for a special token: bytes that are in no text, so that a form has it only by its id.
std::string special_token_bytes(int32_t id);

struct CompiledConstraint {
  std::shared_ptr<const Constraint> constraint;
  size_t bytes = 0;  // of memory, shared tables left out
};

class FormEngine {
 public:
  // `memo_bytes` bounds the masks that matchers share.
  FormEngine(Vocabulary vocabulary, int64_t memo_bytes);
  FormEngine(const FormEngine&) = delete;
  FormEngine& operator=(const FormEngine&) = delete;

  // kInvalidArgument with `where` = the path inside the spec's text when it is at fault, or takes
  // more than the fuel. Any thread.
  Result<CompiledConstraint> compile(const GrammarSpec& spec, Fuel& fuel) const;
  Result<CompiledConstraint> compile(const GrammarSpec& spec) const;

  MaskMemo::Stats memo_stats() const { return memo_->stats(); }

 private:
  Result<ParserGrammar::Terminal> terminal(Fuel& fuel, const Terminal& terminal,
                                           size_t* bytes) const;

  std::shared_ptr<FormVocabulary> vocabulary_;
  const std::shared_ptr<MaskMemo> memo_;
  mutable std::atomic<uint64_t> num_forms_ = 0;
  mutable std::mutex mutex_;
  mutable TerminalTableCache tables_;
  std::shared_ptr<const TerminalTables> any_string_;  // the strings of every schema have it
};

}  // namespace rudder::constraint
