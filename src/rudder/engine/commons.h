// Commons: what the replicas of one engine have in common: the facts of the model, what requests
// name before they are submitted to one of them (grammars, programs, captures), and the numbers of
// requests. Any thread, but for the end of `captures`.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "rudder/base/clock.h"
#include "rudder/base/result.h"
#include "rudder/engine/engine.h"
#include "rudder/engine/entropy.h"
#include "rudder/engine/forms.h"
#include "rudder/steer/capture/dispatcher.h"
#include "rudder/steer/program_table.h"
#include "rudder/step/executor.h"
#include "rudder/text/tokenizer.h"

namespace rudder::engine {

struct Commons {
  // Takes from `parts` what is not one replica's. kInvalidArgument: a part is missing, or an
  // end-of-sequence id is outside the vocabulary.
  static Result<std::shared_ptr<Commons>> make(Engine::Parts& parts, const Entropy& entropy);

  Commons(Engine::Parts& parts, const Entropy& drawn, const step::Capacity& capacity);

  const std::shared_ptr<const text::Tokenizer> tokenizer;
  const std::shared_ptr<const Clock> clock;
  const std::string model_identity;
  const std::vector<int32_t> eos_ids;
  const std::vector<int32_t> turn_ends;
  const Entropy entropy;
  std::atomic<uint64_t> next_request{1};  // ids and, from them, drawn seeds: in order of arrival
  Forms forms;
  steer::ProgramTable programs;
  // Null: nothing is captured. Goes before the executors, whose memory captured rows are in.
  std::unique_ptr<steer::capture::Dispatcher> captures;
};

}  // namespace rudder::engine
