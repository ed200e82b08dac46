// The door to xgrammar: a vocabulary, and grammars compiled for it. No exception and no type of the
// library comes through. Made once at start; compile runs on the compiler's threads, the matchers
// of what it returns on the engine thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/constraint/constraint.h"
#include "rudder/constraint/mask_memo.h"

namespace rudder::constraint {

// What each token spells. A token of no bytes can never come out of a grammar.
struct Vocabulary {
  std::vector<std::string> token_bytes;  // [tokens]
  int32_t size = 0;                      // of the masks; at least the number of tokens
  std::vector<int32_t> stop_ids;         // allowed where a grammar may end; at least one
};

// What stands for a special token: bytes that are in no text, so that a grammar has it only by its
// id, in a structural tag.
std::string special_token_bytes(int32_t id);

struct CompiledConstraint {
  std::shared_ptr<const Constraint> constraint;
  size_t bytes = 0;  // of memory, about
};

class XgrammarEngine {
 public:
  // `rule_cache_bytes` bounds what compiles share of rules that they have in common, `memo_bytes`
  // the masks that matchers share.
  static Result<std::unique_ptr<XgrammarEngine>> create(const Vocabulary& vocabulary,
                                                        int64_t rule_cache_bytes,
                                                        int64_t memo_bytes);
  ~XgrammarEngine();
  XgrammarEngine(const XgrammarEngine&) = delete;
  XgrammarEngine& operator=(const XgrammarEngine&) = delete;

  // kInvalidArgument when the library finds fault with the text. Takes as long as it takes: from
  // milliseconds to minutes, with the number of places in the grammar and of tokens.
  Result<CompiledConstraint> compile_ebnf(const std::string& grammar) const;
  Result<CompiledConstraint> compile_structural_tag(const std::string& tag) const;

  // Any thread.
  MaskMemo::Stats memo_stats() const;

 private:
  struct Impl;
  explicit XgrammarEngine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace rudder::constraint
