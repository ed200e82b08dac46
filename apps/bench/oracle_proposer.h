// OracleProposer: drafts of a known quality, for benches whose answers are one token again and
// again. It guesses each token of them rightly with a given probability. So a step accepts by a
// fixed draw while it verifies as ever. One engine at a time; set between runs, while nothing runs.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "rudder/sched/proposer.h"

namespace rudder::apps {

struct Oracle {
  int32_t token = 0;      // that every answer is made of
  double acceptance = 0;  // of each guessed token, behind right ones
  int32_t length = 0;     // of drafts; 0: none, and sequences run ahead
};

class OracleProposer final : public sched::DraftProposer {
 public:
  // `oracle` is written while nothing runs.
  explicit OracleProposer(std::shared_ptr<const Oracle> oracle) : oracle_(std::move(oracle)) {}

  void begin(const sched::NewSequence&) override {}
  void end(sched::SequenceId, std::span<const int32_t>) override {}
  bool waits(sched::SequenceId) override { return oracle_->length > 0; }
  void propose(sched::SequenceId id, std::span<const int32_t> tokens, const sched::DraftAsk& ask,
               sched::Draft* draft) override;

 private:
  const std::shared_ptr<const Oracle> oracle_;
};

}  // namespace rudder::apps
