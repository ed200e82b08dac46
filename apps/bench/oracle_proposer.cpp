#include "bench/oracle_proposer.h"

#include <algorithm>

#include "rudder/base/philox.h"

namespace rudder::apps {

void OracleProposer::begin(const sched::NewSequence& sequence) {
  const auto found = answers_->by_prompt.find(sequence.prompt);
  if (found != answers_->by_prompt.end()) wholes_[sequence.id] = &found->second;
}

void OracleProposer::end(sched::SequenceId id, std::span<const int32_t>) {
  wholes_.erase(id);
}

void OracleProposer::propose(sched::SequenceId id, std::span<const int32_t> tokens, int32_t most,
                             std::vector<int32_t>* draft) {
  const auto found = wholes_.find(id);
  if (found == wholes_.end()) return;
  const std::vector<int32_t>& whole = *found->second;
  const auto count = static_cast<size_t>(std::min(most, answers_->length));
  const size_t end = std::min(whole.size(), tokens.size() + count);
  for (size_t i = tokens.size(); i < end; ++i) {
    const bool is_right = philox_uniform(id.value, i, 0) < answers_->acceptance;
    draft->push_back(is_right ? whole[i] : (whole[i] == 0 ? 1 : 0));
  }
}

}  // namespace rudder::apps
