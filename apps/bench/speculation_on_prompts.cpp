#include "bench/speculation_on_prompts.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "bench/offline_run.h"
#include "report/statistics.h"

namespace rudder::apps {
namespace {

struct Run {
  std::vector<std::vector<int32_t>> tokens;  // of each answer
  double seconds = 0;
  int64_t num_tokens = 0;
  int64_t accepted = 0;
  int64_t rejected = 0;
};

// `answered`: of how many prompts there are answers.
Result<Run> run_once(ModelSession& session, std::span<const RowRequest> rows, int32_t batch,
                     bool is_drafted, const std::function<void(size_t answered)>& progress) {
  Run run;
  for (size_t begin = 0; begin < rows.size(); begin += static_cast<size_t>(batch)) {
    const size_t count = std::min(rows.size() - begin, static_cast<size_t>(batch));
    std::vector<engine::RequestParams> requests;
    for (const RowRequest& row : rows.subspan(begin, count)) {
      requests.push_back(row.request.params());
      requests.back().disable_spec_decode = !is_drafted;
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
    progress(run.tokens.size());
  }
  return run;
}

}  // namespace

Result<PromptsMeasured> measure_prompts(ModelSession& session, std::span<const RowRequest> requests,
                                        int32_t batch, int32_t rounds, const ProgressFn& progress) {
  const size_t total = requests.size() * 2 * static_cast<size_t>(1 + rounds);
  size_t done = 0;  // in earlier runs
  const auto report = [&](size_t answered) {
    progress(static_cast<int64_t>(done + answered), static_cast<int64_t>(total));
  };
  std::vector<double> rates[2];
  Run last[2];
  int64_t compared = 0;
  int64_t same = 0;
  for (int32_t round = 0; round <= rounds; ++round) {
    for (const bool is_drafted : {false, true}) {
      RUDDER_TRY(Run run, run_once(session, requests, batch, is_drafted, report));
      done += requests.size();
      if (round > 0) {  // the first warms up
        rates[is_drafted].push_back(static_cast<double>(run.num_tokens) / run.seconds);
      }
      last[is_drafted] = std::move(run);
    }
    for (size_t i = 0; i < requests.size(); ++i) {
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
