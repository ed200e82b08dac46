// NgramProposer: prompt lookup. The guess behind a sequence's last tokens is what followed them
// where they stood last, in its own prompt or output. Bytes are bounded over all sequences: one
// whose index would go past the bound is not drafted for. Engine thread.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "rudder/draft/ngram_index.h"
#include "rudder/sched/proposer.h"

namespace rudder::draft {

class NgramProposer final : public sched::DraftProposer {
 public:
  // Matches of `min_n` to `max_n` tokens, the longest first; indexes of `max_bytes` altogether.
  NgramProposer(int32_t min_n, int32_t max_n, int64_t max_bytes)
      : min_n_(min_n), max_n_(max_n), max_bytes_(max_bytes) {}

  void begin(const sched::NewSequence& sequence) override;
  void end(sched::SequenceId id, std::span<const int32_t> tokens) override;
  bool waits(sched::SequenceId) override { return true; }
  void propose(sched::SequenceId id, std::span<const int32_t> tokens, const sched::DraftAsk& ask,
               sched::Draft* draft) override;

  int64_t bytes() const { return bytes_; }

 private:
  const int32_t min_n_;
  const int32_t max_n_;
  const int64_t max_bytes_;
  int64_t bytes_ = 0;
  std::unordered_map<sched::SequenceId, NgramIndex> indexes_;
};

}  // namespace rudder::draft
