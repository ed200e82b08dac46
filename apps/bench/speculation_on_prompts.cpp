#include "bench/speculation_on_prompts.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

#include "bench/offline_run.h"
#include "bench/statistics.h"
#include "prompt_file.h"

namespace rudder::apps {
namespace {

struct Run {
  std::vector<std::vector<int32_t>> tokens;  // of each answer
  double seconds = 0;
  int64_t num_tokens = 0;
  int64_t accepted = 0;
  int64_t rejected = 0;
};

Result<Run> run_once(ModelSession& session, const std::vector<PromptRow>& prompts, int32_t batch,
                     int32_t max_tokens, bool is_drafted) {
  Run run;
  for (size_t begin = 0; begin < prompts.size(); begin += static_cast<size_t>(batch)) {
    const size_t count = std::min(prompts.size() - begin, static_cast<size_t>(batch));
    std::vector<engine::RequestParams> requests;
    for (const PromptRow& row : std::span(prompts).subspan(begin, count)) {
      engine::RequestParams& params = requests.emplace_back();
      params.prompt = row.prompt;
      params.sampling.temperature = 0;
      params.seed = 0;
      params.max_tokens = max_tokens;
      params.disable_spec_decode = !is_drafted;
    }
    double seconds = 0;
    RUDDER_TRY(std::vector<LocalAnswer> answers,
               run_requests(
                   session, std::move(requests), [](int64_t, int64_t) {}, &seconds));
    run.seconds += seconds;
    for (LocalAnswer& answer : answers) {
      if (answer.error) return tl::unexpected<Error>(*answer.error);
      run.num_tokens += std::ssize(answer.tokens);
      run.accepted += answer.usage.accepted_prediction_tokens;
      run.rejected += answer.usage.rejected_prediction_tokens;
      run.tokens.push_back(std::move(answer.tokens));
    }
  }
  return run;
}

}  // namespace

Result<PromptsMeasured> measure_prompts(ModelSession& session, const std::string& file,
                                        int32_t batch, int32_t max_tokens, int32_t rounds) {
  RUDDER_TRY(const std::vector<PromptRow> prompts, read_prompts(session.files, file, false));
  if (prompts.empty()) return fail(ErrorCode::kInvalidArgument, "has no prompt", "prompts");
  std::vector<double> rates[2];
  Run last[2];
  int64_t compared = 0;
  int64_t same = 0;
  for (int32_t round = 0; round <= rounds; ++round) {
    for (const bool is_drafted : {false, true}) {
      RUDDER_TRY(Run run, run_once(session, prompts, batch, max_tokens, is_drafted));
      if (round > 0) {  // the first warms up
        rates[is_drafted].push_back(static_cast<double>(run.num_tokens) / run.seconds);
      }
      last[is_drafted] = std::move(run);
    }
    for (size_t i = 0; i < prompts.size(); ++i) {
      ++compared;
      same += last[0].tokens[i] == last[1].tokens[i] ? 1 : 0;
    }
  }
  const Run& drafted = last[1];
  const auto guesses = static_cast<double>(drafted.accepted + drafted.rejected);
  PromptsMeasured out;
  out.batch = batch;
  out.plain = summarize(rates[0], {}).median;
  out.drafted = summarize(rates[1], {}).median;
  out.accepted = guesses > 0 ? static_cast<double>(drafted.accepted) / guesses : 0;
  out.tokens_a_step = static_cast<double>(drafted.num_tokens) /
                      static_cast<double>(drafted.num_tokens - drafted.accepted);
  out.same = static_cast<double>(same) / static_cast<double>(compared);
  return out;
}

}  // namespace rudder::apps
