// SuffixProposer: SuffixDecoding. What follows a sequence's last tokens is counted in its own
// prompt and output and, where the operator wants it, in finished outputs of the same tenant under
// the same steering; the draft is what all of them make likely, a tree where a step takes one.
// Bytes are bounded, those of running sequences and those of finished outputs alike; a sequence
// whose tree would go past the bound is drafted for from the others alone. Engine thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "rudder/draft/output_store.h"
#include "rudder/draft/suffix_guess.h"
#include "rudder/draft/suffix_tree.h"
#include "rudder/sched/proposer.h"

namespace rudder::draft {

struct SuffixSettings {
  int32_t max_tree_depth = 24;      // tokens of match and draft together
  int32_t max_cached_requests = 0;  // finished outputs of one tenant; 0: none are kept
  double max_spec_factor = 1;       // as in SuffixLimits
  double min_token_prob = 0.1;
  bool makes_trees = true;  // where a step takes one; else chains alone
};

class SuffixProposer final : public sched::DraftProposer {
 public:
  SuffixProposer(const SuffixSettings& settings, int64_t max_bytes);

  void begin(const sched::NewSequence& sequence) override;
  void end(sched::SequenceId id, std::span<const int32_t> tokens) override;
  bool waits(sched::SequenceId) override { return true; }
  void propose(sched::SequenceId id, std::span<const int32_t> tokens, const sched::DraftAsk& ask,
               sched::Draft* draft) override;

  // Of running sequences' trees, and of finished outputs.
  int64_t bytes() const { return bytes_ + finished_.bytes(); }

 private:
  struct Text {
    SuffixTree tree;
    std::string key;  // whose finished outputs it sees
    size_t prompt_len = 0;
  };

  void grow(Text& text, std::span<const int32_t> tokens);

  const SuffixSettings settings_;
  const int64_t max_bytes_;
  int64_t bytes_ = 0;  // of the sequences' trees
  std::unordered_map<sched::SequenceId, Text> texts_;
  OutputStore finished_;
  SuffixGuess guess_;  // the last one, for its memory
};

}  // namespace rudder::draft
