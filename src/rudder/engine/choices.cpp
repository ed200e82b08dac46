#include "rudder/engine/choices.h"

#include "rudder/base/mutants.h"

namespace rudder::engine {

std::vector<sched::NewSequence> make_sequences(const OpenRequest& request,
                                               const Request& accepted) {
  const RequestParams& params = accepted.params();
  std::vector<sched::NewSequence> sequences;
  for (int32_t i = 0; i < params.n; ++i) {
    sched::NewSequence& sequence = sequences.emplace_back();
    sequence.id = request.sequences[static_cast<size_t>(i)];
    sequence.prompt = params.prompt;
    sequence.sampling = params.sampling;
    sequence.sampling.seed = RUDDER_MUTANT(kOneSeedForAllChoices)
                                 ? request.seed
                                 : request.seed + static_cast<uint64_t>(i);
    sequence.constrained = !params.constraints.empty();
    if (sequence.constrained) sequence.sampling.min_tokens = 0;  // the masks see to it
    if (i > 0) sequence.sampling.num_prompt_logprobs = -1;       // of the prompt, which they share
    sequence.max_len = accepted.max_len();
    sequence.tenant = params.tenant;
    sequence.is_drafted = !params.disable_spec_decode;
    sequence.priority = request.priority;
    sequence.cache_salt = root_salt(params);
    sequence.taps = request.taps.sequence;
    if (request.lease) sequence.tap_lease = *request.lease;
  }
  return sequences;
}

}  // namespace rudder::engine
