#include "rudder/draft/ngram_proposer.h"

#include "rudder/base/check.h"

namespace rudder::draft {
namespace {

// Tokens that one call indexes: a long prompt is indexed over several steps and holds none up.
constexpr int64_t kNgramTokensACall = 2048;

}  // namespace

void NgramProposer::begin(const sched::NewSequence& sequence) {
  const bool is_new = indexes_.try_emplace(sequence.id, min_n_, max_n_).second;
  RUDDER_CHECK(is_new, "sequence {} begins twice", sequence.id.value);
  bytes_ += indexes_.at(sequence.id).bytes();
}

void NgramProposer::end(sched::SequenceId id, std::span<const int32_t>) {
  const auto found = indexes_.find(id);
  RUDDER_CHECK(found != indexes_.end(), "sequence {} has not begun", id.value);
  bytes_ -= found->second.bytes();
  indexes_.erase(found);
}

void NgramProposer::propose(sched::SequenceId id, std::span<const int32_t> tokens,
                            const sched::DraftAsk& ask, sched::Draft* draft) {
  NgramIndex& index = indexes_.at(id);
  const int64_t before = index.bytes();
  if (bytes_ - before + index.bytes_after(kNgramTokensACall) > max_bytes_) return;
  const bool is_whole = index.extend(tokens, kNgramTokensACall);
  bytes_ += index.bytes() - before;
  if (is_whole) index.append_guess(tokens, ask.most, &draft->tokens);
}

}  // namespace rudder::draft
