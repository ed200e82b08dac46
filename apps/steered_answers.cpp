#include "steered_answers.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <mutex>
#include <utility>

#include "local_client.h"
#include "rudder/base/progress.h"
#include "rudder/steer/segments.h"
#include "vectors/activations.h"

namespace rudder::apps {
namespace {

// What one request of many asks beside its prompt; `taps` are those of its steering.
struct PromptRequest {
  engine::RequestParams params;
  tap::SequenceTaps taps;
};

// Runs `count` requests at once; the answers in order, or the first error of one.
Result<std::vector<LocalAnswer>> ask_all(ModelSession& session, size_t count,
                                         const steer::capture::CaptureSpec* spec,
                                         const std::string& label,
                                         const std::function<Result<PromptRequest>(size_t)>& make) {
  Progress progress(label, false);
  std::mutex mutex;
  std::vector<LocalAnswer> answers(count);
  int64_t done = 0;
  {
    LocalClient client(*session.engine);
    for (size_t i = 0; i < count; ++i) {
      RUDDER_TRY(PromptRequest request, make(i));
      std::shared_ptr<const tap::SequenceTaps> lease;
      if (spec != nullptr) {
        RUDDER_TRY(lease,
                   add_capture(*session.engine, *spec, std::move(request.taps), request.params));
      } else {
        RUDDER_TRY(lease, session.engine->programs().keep(std::move(request.taps)));
        request.params.taps = tap::spec_of(*lease);
      }
      const auto finish = [&, i](LocalAnswer&& answer) {
        std::lock_guard lock(mutex);
        answers[i] = std::move(answer);
        progress.update(++done, static_cast<int64_t>(count));
      };
      RUDDER_TRY_VOID(client.submit(std::move(request.params), finish));
    }
  }
  for (const LocalAnswer& answer : answers) {
    if (answer.error) return tl::unexpected<Error>(*answer.error);
  }
  return answers;
}

}  // namespace

Result<std::vector<SteeredAnswer>> answer_prompts(ModelSession& session,
                                                  const steer::Config& config,
                                                  const std::vector<PromptRow>& prompts,
                                                  const AnswerSettings& settings,
                                                  const steer::capture::CaptureSpec* spec,
                                                  const std::string& label) {
  const auto make = [&](size_t i) -> Result<PromptRequest> {
    PromptRequest request;
    request.params.prompt = prompts[i].prompt;
    request.params.max_tokens = settings.max_tokens;
    request.params.sampling.temperature = settings.temperature;
    request.params.sampling.num_logprobs = 0;
    request.params.seed = settings.seed + i;
    steer::PromptShape shape;
    shape.prompt_len = static_cast<int32_t>(prompts[i].prompt.size());
    RUDDER_TRY(request.taps, steer::make_taps(config, shape));
    return request;
  };
  RUDDER_TRY(std::vector<LocalAnswer> raw, ask_all(session, prompts.size(), spec, label, make));
  std::vector<SteeredAnswer> answers;
  answers.reserve(raw.size());
  for (LocalAnswer& one : raw) {
    answers.push_back({std::move(one.text), std::move(one.tokens), std::move(one.logprobs),
                       std::move(one.captures)});
  }
  return answers;
}

Result<std::vector<PlainReading>> read_answers(ModelSession& session,
                                               const std::vector<PromptRow>& prompts,
                                               const std::vector<SteeredAnswer>& answers,
                                               const steer::capture::CaptureSpec* spec,
                                               const std::string& label) {
  const auto make = [&](size_t i) -> Result<PromptRequest> {
    PromptRequest request;
    std::vector<int32_t>& prompt = request.params.prompt;
    prompt = prompts[i].prompt;
    prompt.insert(prompt.end(), answers[i].tokens.begin(), answers[i].tokens.end());
    request.params.max_tokens = 1;
    request.params.sampling.temperature = 0;
    request.params.sampling.num_prompt_logprobs = 0;
    return request;
  };
  RUDDER_TRY(std::vector<LocalAnswer> raw, ask_all(session, prompts.size(), spec, label, make));
  std::vector<PlainReading> readings;
  for (size_t i = 0; i < raw.size(); ++i) {
    const std::vector<engine::OutputToken>& all = raw[i].prompt_logprobs;
    const size_t count = answers[i].tokens.size();
    if (all.size() < count) {
      return fail(ErrorCode::kInternal, "the engine scored fewer tokens than it was given");
    }
    PlainReading reading = {{}, std::move(raw[i].captures)};
    for (size_t k = all.size() - count; k < all.size(); ++k) {
      reading.logprobs.push_back(all[k].logprob);
    }
    readings.push_back(std::move(reading));
  }
  return readings;
}

double perplexity(const std::vector<PlainReading>& readings) {
  double sum = 0;
  size_t count = 0;
  for (const PlainReading& reading : readings) {
    for (const float logprob : reading.logprobs) sum += double{logprob};
    count += reading.logprobs.size();
  }
  return std::exp(-sum / static_cast<double>(std::max<size_t>(count, 1)));
}

Divergence divergence(const std::vector<SteeredAnswer>& answers,
                      const std::vector<PlainReading>& readings) {
  double sum = 0;
  double squares = 0;
  double count = 0;
  for (size_t i = 0; i < answers.size(); ++i) {
    for (size_t k = 0; k < answers[i].logprobs.size(); ++k) {
      const double ratio = double{answers[i].logprobs[k]} - double{readings[i].logprobs[k]};
      sum += ratio;
      squares += ratio * ratio;
      count += 1;
    }
  }
  if (count < 2) return {};
  const double mean = sum / count;
  return {mean, std::sqrt(std::max(0.0, squares / count - mean * mean) / (count - 1))};
}

}  // namespace rudder::apps
