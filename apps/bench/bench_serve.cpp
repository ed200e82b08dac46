// rudder bench serve: open-loop (request rate) or closed-loop (concurrency) load on a server that
// speaks the OpenAI API, reported as vLLM's bench reports it.
#include <fmt/format.h>

#include <boost/json.hpp>

#include "bench/bench_commands.h"
#include "bench/load_client.h"
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

struct BenchServeSettings {
  std::string base_url = "http://127.0.0.1:8000";
  std::string api_key;
  std::string model;
  std::string metric_percentiles = "50,90,99";
  std::string save_result;
  std::string plot;
  int32_t max_concurrency = 0;
  int32_t num_warmups = 0;
  int32_t max_model_len = 1 << 20;
  double request_rate = 0;
  double burstiness = 1;
  bool ignore_eos = true;
  double temperature = 0;
  bool text_prompts = false;

  void declare(SettingsTable& table) {
    table.section("bench serve");
    table.add("base-url", &base_url, "The server.");
    table.add("bench-api-key", &api_key, "Sent as a bearer token.");
    table.add("model", &model, "The model's name at the server; without it, the first it lists.");
    table.add("max-concurrency", &max_concurrency, 0, 65536, "Requests open at once; 0 = any.");
    table.add("request-rate", &request_rate, 0, 1e6, "Arrivals a second; 0 = all at once.");
    table.add("burstiness", &burstiness, 0.01, 100, "Of arrivals; 1 = Poisson.");
    table.add("num-warmups", &num_warmups, 0, 10000, "Requests before the clock starts.");
    table.add("max-model-len", &max_model_len, 2, 1 << 24, "Bounds prompt and output together.");
    table.add("ignore-eos", &ignore_eos, "Generate every requested token.");
    table.add("temperature", &temperature, 0, 2, "Of the sampled tokens; 0 = greedy.");
    table.add("text-prompts", &text_prompts, "Send text, not token ids.");
    table.add("metric-percentiles", &metric_percentiles, "Which percentiles to report.");
    table.add("save-result", &save_result, "Write the result as JSON to this file.");
    table.add("plot", &plot, "Write the latency distribution as SVG to this file.");
  }
};

std::vector<std::string> make_bodies(const LoadTarget& target, const std::vector<WorkItem>& items,
                                     const text::Tokenizer& tokenizer) {
  std::vector<std::string> bodies;
  for (const WorkItem& item : items) {
    const std::string text =
        target.text_prompts ? tokenizer.decode(item.prompt, true) : std::string();
    bodies.push_back(completion_body(target, item, text));
  }
  return bodies;
}

Result<ServeReport> measure_server(const BenchServeSettings& settings,
                                   const WorkloadSettings& workload,
                                   const std::string& tokenizer_model) {
  LoadTarget target;
  RUDDER_TRY_VOID(parse_base_url(settings.base_url, &target));
  target.api_key = settings.api_key;
  target.ignore_eos = settings.ignore_eos;
  target.temperature = settings.temperature;
  target.text_prompts = settings.text_prompts;
  target.model = settings.model;
  if (target.model.empty()) {
    RUDDER_TRY(target.model, first_model(target));
  }
  RUDDER_TRY(const ModelFiles files, open_model_files(tokenizer_model));
  const std::vector<std::string> bodies = make_bodies(
      target, make_workload(workload, *files.tokenizer, settings.max_model_len), *files.tokenizer);
  LoadShape shape{settings.max_concurrency, settings.request_rate, settings.burstiness,
                  static_cast<uint64_t>(workload.seed)};
  double duration = 0;
  if (settings.num_warmups > 0) {
    const auto count = std::min<size_t>(static_cast<size_t>(settings.num_warmups), bodies.size());
    run_load(
        target, shape, {bodies.begin(), bodies.begin() + static_cast<ptrdiff_t>(count)},
        [](int64_t, int64_t) {}, &duration);
  }
  ServeReport report;
  report.settings = {parse_percents(settings.metric_percentiles), settings.max_concurrency,
                     settings.request_rate, settings.burstiness, target.model};
  Progress progress("bench serve", false);
  report.requests = run_load(target, shape, bodies, progress.callback(), &duration);
  report.duration = duration;
  return report;
}

Result<void> deliver(const ServeReport& report, const BenchServeSettings& settings) {
  fmt::print("{}", report.to_text());
  if (!settings.save_result.empty()) {
    RUDDER_TRY_VOID(write_file(settings.save_result, to_json_text(report.to_json()) + "\n"));
  }
  if (!settings.plot.empty()) RUDDER_TRY_VOID(write_file(settings.plot, report.to_svg()));
  for (const RequestTiming& request : report.requests) {
    if (!request.error.empty()) return fail(ErrorCode::kInternal, request.error, "first failure");
  }
  return {};
}

}  // namespace

int bench_serve(int argc, char** argv) {
  BenchServeSettings settings;
  WorkloadSettings workload;
  SettingsTable table;
  settings.declare(table);
  workload.declare(table);
  const Result<ParsedArguments> arguments = parse_arguments(
      {"rudder bench serve", "Load a running server and report latency and throughput.",
       "[MODEL for its tokenizer]", 1},
      argc, argv, table);
  if (!arguments) return report_bad_arguments(arguments.error());
  if (arguments->help_shown) return 0;
  const std::string model = arguments->positionals.empty() ? "" : arguments->positionals[0];
  const Result<ServeReport> report = measure_server(settings, workload, model);
  if (!report) return report_failure(report.error());
  const Result<void> delivered = deliver(*report, settings);
  return delivered ? 0 : report_failure(delivered.error());
}

}  // namespace rudder::apps
