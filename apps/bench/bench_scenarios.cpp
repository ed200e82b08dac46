// rudder bench scenarios: fixed batches of prompts and output lengths, greedy, on several models in
// turn in one run. The time of a scenario is that from the first prompt to the last token.
#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bench/bench_commands.h"
#include "bench/offline_run.h"
#include "bench/workload.h"
#include "command_line.h"
#include "model_session.h"
#include "report/report.h"
#include "report/statistics.h"
#include "report_error.h"
#include "rudder/base/json.h"
#include "rudder/base/progress.h"

namespace rudder::apps {
namespace {

namespace json = boost::json;

struct Scenario {
  std::string_view name;
  int32_t batch;
  std::vector<int32_t> prompts;  // lengths, in turn
  int32_t output;
};

const std::vector<Scenario>& scenarios() {
  static const std::vector<Scenario> all = {
      {"decode_heavy_b32", 32, {64}, 256},
      {"balanced_b32", 32, {256}, 128},
      {"mixed_prefill_b32", 32, {32, 64, 96, 128, 192, 256, 384, 512}, 64},
      {"large_batch_short_b128", 128, {48}, 64},
      {"long_decode_b32", 32, {1024}, 256},
      {"prefill_heavy_b16", 16, {1024}, 16},
      {"long_prefill_b4", 4, {2048}, 8},
  };
  return all;
}

struct ScenarioFlags {
  SessionSettings session;
  std::vector<std::string> like = {"asynct-0.6b", "asynct-0.6b-28l", "qwen3-0.6b"};
  int32_t repeats = 5;
  std::string output_json;
};

std::vector<engine::RequestParams> requests_of(const Scenario& scenario,
                                               const text::Tokenizer& tokenizer) {
  std::vector<engine::RequestParams> requests;
  for (int32_t i = 0; i < scenario.batch; ++i) {
    WorkloadSettings workload;
    workload.num_prompts = 1;
    workload.random_input_len = scenario.prompts[static_cast<size_t>(i) % scenario.prompts.size()];
    workload.random_output_len = scenario.output;
    workload.seed = i;
    const int32_t room = workload.random_input_len + scenario.output;
    engine::RequestParams params;
    params.prompt = make_workload(workload, tokenizer, room).front().prompt;
    params.sampling.temperature = 0;
    params.seed = 0;
    params.max_tokens = scenario.output;
    params.ignore_eos = true;
    requests.push_back(std::move(params));
  }
  return requests;
}

// The model of a session that is alone on its device for the time of a scenario.
struct Contender {
  std::string name;
  ModelSession session;
  std::vector<double> seconds;  // of the scenario at hand
};

Result<std::vector<Contender>> open_contenders(const ScenarioFlags& flags) {
  std::vector<Contender> contenders;
  for (const std::string& name : flags.like) {
    SessionSettings settings = flags.session;
    settings.load.load_format = "dummy";
    settings.load.like = name;
    RUDDER_TRY(ModelSession session, open_session("", settings));
    contenders.push_back({name, std::move(session), {}});
  }
  return contenders;
}

Result<void> run_scenario(const Scenario& scenario, int32_t repeats,
                          std::vector<Contender>& contenders) {
  for (Contender& contender : contenders) contender.seconds.clear();
  for (int32_t repeat = 0; repeat <= repeats; ++repeat) {
    for (Contender& contender : contenders) {
      double seconds = 0;
      RUDDER_TRY_VOID(run_requests(
          contender.session, requests_of(scenario, *contender.session.files.tokenizer),
          [](int64_t, int64_t) {}, &seconds));
      if (repeat > 0) contender.seconds.push_back(seconds);  // the first one warms up
    }
  }
  return {};
}

Result<void> measure(const ScenarioFlags& flags) {
  RUDDER_TRY(std::vector<Contender> contenders, open_contenders(flags));
  fmt::print("{:<24} {:>5} {:>8} {:>7}", "scenario", "batch", "prompt", "output");
  for (const Contender& contender : contenders) fmt::print(" {:>16}", contender.name + ", s");
  for (size_t i = 0; i + 1 < contenders.size(); ++i) {
    fmt::print(" {:>8}", fmt::format("{} / {}", i + 1, contenders.size()));
  }
  fmt::print("\n");
  json::array rows;
  for (const Scenario& scenario : scenarios()) {
    fmt::print(stderr, "bench scenarios: {}\n", scenario.name);
    RUDDER_TRY_VOID(run_scenario(scenario, flags.repeats, contenders));
    const auto [shortest, longest] = std::ranges::minmax(scenario.prompts);
    const std::string prompt =
        shortest == longest ? fmt::format("{}", longest) : fmt::format("{}-{}", shortest, longest);
    fmt::print("{:<24} {:>5} {:>8} {:>7}", scenario.name, scenario.batch, prompt, scenario.output);
    json::object row{{"scenario", scenario.name}};
    std::vector<double> medians;
    for (const Contender& contender : contenders) {
      medians.push_back(summarize(contender.seconds, {}).median);
      fmt::print(" {:>16.4f}", medians.back());
      row[contender.name] = json::value_from(contender.seconds);
    }
    for (size_t i = 0; i + 1 < medians.size(); ++i) {
      fmt::print(" {:>8.3f}", medians[i] / medians.back());
    }
    fmt::print("\n");
    std::fflush(stdout);
    rows.push_back(std::move(row));
  }
  if (flags.output_json.empty()) return {};
  return write_file(flags.output_json, to_json_text(json::object{{"scenarios", rows}}) + "\n");
}

}  // namespace

int bench_scenarios(int argc, char** argv) {
  ScenarioFlags flags;
  std::string like;
  SettingsTable table;
  table.section("bench scenarios");
  table.add("models", &like,
            "Shapes with random weights, by commas (names: rudder make-model --help); times are "
            "divided by the last one's. Empty: asynct-0.6b, asynct-0.6b-28l, qwen3-0.6b.");
  table.add("repeats", &flags.repeats, 1, 1000, "Of each scenario on each model; medians count.");
  flags.session.log_level = "warn";
  flags.session.engine.enable_prefix_caching = false;  // prompts come again
  flags.session.exec.max_model_len = 4096;
  flags.session.exec.kv_cache_memory_bytes = int64_t{6} << 30;  // each
  flags.session.declare(table);
  table.section("result");
  table.add("output-json", &flags.output_json, "Write every time as JSON to this file.");
  const Result<ParsedArguments> arguments = parse_arguments(
      {"rudder bench scenarios", "Time fixed batches on several models in turn.", "", 0}, argc,
      argv, table);
  if (!arguments) return report_bad_arguments(arguments.error());
  if (arguments->help_shown) return 0;
  if (!like.empty()) {
    flags.like.clear();
    for (size_t begin = 0; begin <= like.size();) {
      const size_t end = std::min(like.find(',', begin), like.size());
      flags.like.push_back(like.substr(begin, end - begin));
      begin = end + 1;
    }
  }
  const Result<void> done = measure(flags);
  return done ? 0 : report_failure(done.error());
}

}  // namespace rudder::apps
