// SpeculationOnPrompts: what the proposer that a server would have brings on prompts of a file,
// beside plain decoding by the same engine. Part of `rudder bench speculation`; main thread.
#pragma once

#include <cstdint>
#include <span>

#include "model_session.h"
#include "row_request.h"
#include "rudder/base/progress.h"
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

// All requests, so many at once, to their ends; plain and drafted runs in turn, `rounds` of each
// after one to warm up. The tokens of both are compared: they are the same, but on a GPU without
// --batch-invariant, where a step's tokens have a part in rounding. `progress` counts answers of
// all runs.
Result<PromptsMeasured> measure_prompts(ModelSession& session, std::span<const RowRequest> requests,
                                        int32_t batch, int32_t rounds, const ProgressFn& progress);

}  // namespace rudder::apps
