// OracleProposer: drafts of a known quality, for benches. It has seen what each prompt is answered
// with, and guesses each token of it rightly with a given probability. So a step accepts by a fixed
// draw while it verifies as ever. One engine at a time; set between runs, while nothing runs.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "rudder/sched/proposer.h"

namespace rudder::apps {

struct OracleAnswers {
  std::map<std::vector<int32_t>, std::vector<int32_t>> by_prompt;  // greedy, with their prompts
  double acceptance = 0;  // of each guessed token, behind right ones
  int32_t length = 0;     // of drafts; 0: none, and sequences run ahead
};

class OracleProposer final : public sched::DraftProposer {
 public:
  // `answers` outlives the proposer; written while nothing runs.
  explicit OracleProposer(std::shared_ptr<const OracleAnswers> answers)
      : answers_(std::move(answers)) {}

  void begin(const sched::NewSequence& sequence) override;
  void end(sched::SequenceId id, std::span<const int32_t> tokens) override;
  bool waits(sched::SequenceId) override { return answers_->length > 0; }
  void propose(sched::SequenceId id, std::span<const int32_t> tokens, int32_t most,
               std::vector<int32_t>* draft) override;

 private:
  const std::shared_ptr<const OracleAnswers> answers_;
  std::map<sched::SequenceId, const std::vector<int32_t>*> wholes_;
};

}  // namespace rudder::apps
