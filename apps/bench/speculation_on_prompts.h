// SpeculationOnPrompts: what the proposer that a server would have brings on prompts of a file,
// beside plain decoding by the same engine. Part of `rudder bench speculation`; main thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model_session.h"
#include "rudder/base/result.h"

namespace rudder::apps {

struct PromptsMeasured {
  int32_t batch = 0;
  double plain = 0;          // tokens a second, all sequences; medians
  double drafted = 0;        // likewise
  double accepted = 0;       // of the verified guesses
  double tokens_a_step = 0;  // of a sequence
  double same = 0;           // share of the answers that have the tokens of plain decoding
};

// Every prompt of the file, so many at once, greedily to its end or `max_tokens`; plain and drafted
// runs in turn, `rounds` of each after one to warm up. The tokens of both are compared: they are
// the same, but on a GPU without --batch-invariant, where a step's tokens have a part in rounding.
Result<PromptsMeasured> measure_prompts(ModelSession& session, const std::string& file,
                                        int32_t batch, int32_t max_tokens, int32_t rounds);

}  // namespace rudder::apps
