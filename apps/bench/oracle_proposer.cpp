#include "bench/oracle_proposer.h"

#include <algorithm>

#include "rudder/base/philox.h"

namespace rudder::apps {

void OracleProposer::propose(sched::SequenceId id, std::span<const int32_t> tokens,
                             const sched::DraftAsk& ask, sched::Draft* draft) {
  const auto count = static_cast<size_t>(std::min(ask.most, oracle_->length));
  for (size_t i = tokens.size(); i < tokens.size() + count; ++i) {
    const bool is_right = philox_uniform(id.value, i, 0) < oracle_->acceptance;
    draft->tokens.push_back(is_right ? oracle_->token : oracle_->token + 1);
  }
}

}  // namespace rudder::apps
