// Answers prompts under a steering, and reads the answers again as the model without it does: what
// the commands need that show what steering does and what it costs. Main thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model_session.h"
#include "prompt_file.h"
#include "rudder/base/result.h"
#include "rudder/steer/capture/result.h"
#include "rudder/steer/capture/spec.h"
#include "rudder/steer/config.h"

namespace rudder::apps {

struct SteeredAnswer {
  std::string text;
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;  // of the tokens, under the steering
  steer::capture::CaptureResults captures;
};

struct AnswerSettings {
  int32_t max_tokens = 32;
  float temperature = 0;
  uint64_t seed = 0;  // the i-th prompt has seed + i
};

// One answer a prompt, in order; all run batched. `spec` may be null: nothing is captured.
Result<std::vector<SteeredAnswer>> answer_prompts(ModelSession& session,
                                                  const steer::Config& config,
                                                  const std::vector<PromptRow>& prompts,
                                                  const AnswerSettings& settings,
                                                  const steer::capture::CaptureSpec* spec,
                                                  const std::string& label);

struct PlainReading {
  std::vector<float> logprobs;              // of the answer's tokens, without steering
  steer::capture::CaptureResults captures;  // of prompt and answer, read as one prompt
};

// Each prompt with its answer behind it, read without steering.
Result<std::vector<PlainReading>> read_answers(ModelSession& session,
                                               const std::vector<PromptRow>& prompts,
                                               const std::vector<SteeredAnswer>& answers,
                                               const steer::capture::CaptureSpec* spec,
                                               const std::string& label);

// exp(-mean logprob) over the tokens of all readings; 1 when there are none.
double perplexity(const std::vector<PlainReading>& readings);

// An estimate of KL(steered || plain) a token, in nats, and its standard error: the mean of
// log p_steered - log p_plain over tokens that were sampled at temperature 1 under the steering.
struct Divergence {
  double kl = 0;
  double error = 0;
};
Divergence divergence(const std::vector<SteeredAnswer>& answers,
                      const std::vector<PlainReading>& readings);

}  // namespace rudder::apps
