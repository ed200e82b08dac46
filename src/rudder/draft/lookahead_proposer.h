// LookaheadProposer: lookahead decoding. The tree of drafts behind a sequence's last token has the
// n-grams of the sequence's pool that begin with it, then its window, whose rows the model answers
// with the tokens that make new n-grams. Those of prompt and output are in the pool too. Bytes are
// bounded over all sequences: beyond the bound a new n-gram takes an old one's place. Engine
// thread.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "rudder/draft/lookahead_pool.h"
#include "rudder/draft/lookahead_window.h"
#include "rudder/sched/proposer.h"

namespace rudder::draft {

class LookaheadProposer final : public sched::DraftProposer {
 public:
  LookaheadProposer(const LookaheadSettings& settings, int64_t max_bytes)
      : settings_(settings), max_bytes_(max_bytes) {}

  void begin(const sched::NewSequence& sequence) override;
  void end(sched::SequenceId id, std::span<const int32_t> tokens) override;
  bool waits(sched::SequenceId) override { return true; }
  void propose(sched::SequenceId id, std::span<const int32_t> tokens, const sched::DraftAsk& ask,
               sched::Draft* draft) override;
  bool learns() const override { return true; }
  void note_rows(sched::SequenceId id, std::span<const int32_t> rows) override;

  int64_t bytes() const { return bytes_; }

 private:
  struct Text {
    LookaheadPool pool;
    LookaheadWindow window;
    size_t num_pooled = 0;            // tokens of the text whose n-grams the pool has had
    size_t num_known = 0;             // tokens when the window last moved
    std::vector<int32_t> asked = {};  // by column that the last tree has: its last row
  };

  void add(Text& text, std::span<const int32_t> ngram);
  void pool_text(Text& text, std::span<const int32_t> tokens);

  const LookaheadSettings settings_;
  const int64_t max_bytes_;
  int64_t bytes_ = 0;  // of the pools
  std::unordered_map<sched::SequenceId, Text> texts_;
};

}  // namespace rudder::draft
