// rudder bench latency and throughput: the engine in this process, no HTTP. Outputs and JSON keys
// are those of vLLM's benches of the same names.
#include <fmt/format.h>

#include <boost/json.hpp>
#include <cstdint>

#include "bench/bench_commands.h"
#include "bench/constraint_flags.h"
#include "bench/offline_run.h"
#include "bench/workload.h"
#include "command_line.h"
#include "local_client.h"
#include "model_session.h"
#include "report/report.h"
#include "report/statistics.h"
#include "report_error.h"
#include "rudder/base/json.h"
#include "rudder/base/progress.h"

namespace rudder::apps {
namespace {

namespace json = boost::json;

// What every request of a run asks for beside its tokens.
struct Asked {
  BenchConstraint constraint;
  int32_t prompt_logprobs = -1;
};

engine::RequestParams params_of(const WorkItem& item, const Asked& asked) {
  engine::RequestParams params;
  params.prompt = item.prompt;
  params.sampling.temperature = 0;
  params.seed = 0;
  params.max_tokens = item.output_len;
  params.ignore_eos = true;
  params.sampling.num_prompt_logprobs = asked.prompt_logprobs;
  params.constraints = asked.constraint.specs;
  return params;
}

Result<std::vector<LocalAnswer>> run_batch(ModelSession& session,
                                           const std::vector<WorkItem>& items, const Asked& asked,
                                           const ProgressFn& progress, double* seconds) {
  std::vector<engine::RequestParams> requests;
  requests.reserve(items.size());
  for (const WorkItem& item : items) requests.push_back(params_of(item, asked));
  return run_requests(session, std::move(requests), progress, seconds);
}

struct OfflineBench {
  SessionSettings session;
  WorkloadSettings workload;
  ConstraintFlags constraint;
  int32_t prompt_logprobs = -1;
  std::string output_json;
  SettingsTable table;
  std::string model;

  // The exit status when the command ends here.
  std::optional<int> parse(const CommandLine& line, int argc, char** argv) {
    workload.declare(table);
    table.add("prompt-logprobs", &prompt_logprobs, -1, 20,
              "Score every prompt, and tell so many likely tokens beside each of its own; -1 does "
              "not.");
    constraint.declare(table);
    session.log_level = "warn";
    session.declare(table);
    table.section("result");
    table.add("output-json", &output_json, "Write the result as JSON to this file.");
    const Result<ParsedArguments> arguments = parse_arguments(line, argc, argv, table);
    if (!arguments) return report_bad_arguments(arguments.error());
    if (arguments->help_shown) return 0;
    if (!arguments->positionals.empty()) model = arguments->positionals[0];
    session.grammars = constraint.grammars();
    return std::nullopt;
  }

  Result<Asked> asked(const ModelSession& opened) const {
    RUDDER_TRY(BenchConstraint made, constraint.make(opened));
    return Asked{std::move(made), prompt_logprobs};
  }

  Result<void> write(const json::object& result) const {
    if (output_json.empty()) return {};
    return write_file(output_json, to_json_text(result) + "\n");
  }
};

Result<void> measure_latency(OfflineBench& bench, int32_t warmups, int32_t iterations) {
  // A cached prompt would turn every repetition after the first into a decode-only run.
  bench.session.engine.enable_prefix_caching = false;
  RUDDER_TRY(ModelSession session, open_session(bench.model, bench.session));
  const std::vector<WorkItem> items =
      make_workload(bench.workload, *session.files.tokenizer, session.memory.max_seq_len);
  RUDDER_TRY(const Asked asked, bench.asked(session));
  std::vector<double> latencies;
  std::vector<double> first_token;
  std::vector<double> per_token;
  Progress progress("bench latency", false);
  for (int32_t i = 0; i < warmups + iterations; ++i) {
    double seconds = 0;
    RUDDER_TRY(const std::vector<LocalAnswer> answers,
               run_batch(
                   session, items, asked, [](int64_t, int64_t) {}, &seconds));
    progress.update(i + 1, warmups + iterations);
    if (i < warmups) continue;
    latencies.push_back(seconds);
    for (const LocalAnswer& answer : answers) {
      first_token.push_back(seconds_between(answer.submit_us, answer.token_us.front()));
    }
    const DecodeWindow window = decode_window(answers);
    if (window.tokens > 0) per_token.push_back(window.per_token(answers.size()));
  }
  const std::vector<double> percents = {10, 25, 50, 75, 90, 99};
  const Summary summary = summarize(latencies, percents);
  fmt::print("Avg latency: {:.6f} seconds\n", summary.mean);
  json::object by_percent;
  for (size_t i = 0; i < percents.size(); ++i) {
    fmt::print("{:g}% percentile latency: {:.6f} seconds\n", percents[i], summary.percentiles[i]);
    by_percent[fmt::format("{:g}", percents[i])] = summary.percentiles[i];
  }
  const Summary ttft = summarize(first_token, {});
  const Summary tpot = summarize(per_token, {});
  const double decode_rate =
      tpot.median > 0 ? static_cast<double>(items.size()) / tpot.median : 0.0;
  if (per_token.empty()) {
    fmt::print(stderr,
               "no sequence was still running when the last began: outputs are too short "
               "to time tokens by\n");
  }
  fmt::print(
      "Median time to first token: {:.3f} ms\nMedian time per output token: {:.3f} ms\n"
      "Decode throughput: {:.1f} tok/s\n",
      ttft.median * 1e3, tpot.median * 1e3, decode_rate);
  return bench.write({{"avg_latency", summary.mean},
                      {"latencies", json::value_from(latencies)},
                      {"percentiles", by_percent},
                      {"median_ttft_ms", ttft.median * 1e3},
                      {"median_tpot_ms", tpot.median * 1e3},
                      {"decode_tokens_per_second", decode_rate}});
}

Result<void> measure_throughput(OfflineBench& bench) {
  RUDDER_TRY(ModelSession session, open_session(bench.model, bench.session));
  const std::vector<WorkItem> items =
      make_workload(bench.workload, *session.files.tokenizer, session.memory.max_seq_len);
  RUDDER_TRY(const Asked asked, bench.asked(session));
  Progress progress("bench throughput", false);
  double seconds = 0;
  RUDDER_TRY(const std::vector<LocalAnswer> answers,
             run_batch(session, items, asked, progress.callback(), &seconds));
  int64_t prompt_tokens = 0;
  int64_t output_tokens = 0;
  for (const LocalAnswer& answer : answers) {
    prompt_tokens += answer.usage.prompt_tokens;
    output_tokens += answer.usage.completion_tokens;
  }
  const auto requests = static_cast<double>(items.size());
  const auto total = static_cast<double>(prompt_tokens + output_tokens);
  fmt::print(
      "Throughput: {:.2f} requests/s, {:.2f} total tokens/s, {:.2f} output tokens/s\n"
      "Total num prompt tokens:  {}\nTotal num output tokens:  {}\n",
      requests / seconds, total / seconds, static_cast<double>(output_tokens) / seconds,
      prompt_tokens, output_tokens);
  return bench.write({{"elapsed_time", seconds},
                      {"num_requests", items.size()},
                      {"total_num_tokens", prompt_tokens + output_tokens},
                      {"requests_per_second", requests / seconds},
                      {"tokens_per_second", total / seconds},
                      {"output_tokens_per_second", static_cast<double>(output_tokens) / seconds}});
}

}  // namespace

int bench_latency(int argc, char** argv) {
  OfflineBench bench;
  bench.workload.num_prompts = 8;
  bench.workload.random_input_len = 32;
  int32_t warmups = 2;
  int32_t iterations = 5;
  bench.table.section("bench latency");
  bench.table.add("num-iters-warmup", &warmups, 0, 10000, "Repetitions that are not counted.");
  bench.table.add("num-iters", &iterations, 1, 10000, "Repetitions that are.");
  const std::optional<int> status = bench.parse(
      {"rudder bench latency", "Time one batch from prompt to last token.", "[MODEL]", 1}, argc,
      argv);
  if (status) return *status;
  const Result<void> done = measure_latency(bench, warmups, iterations);
  return done ? 0 : report_failure(done.error());
}

int bench_throughput(int argc, char** argv) {
  OfflineBench bench;
  const std::optional<int> status = bench.parse(
      {"rudder bench throughput", "Run many requests at once and count tokens.", "[MODEL]", 1},
      argc, argv);
  if (status) return *status;
  const Result<void> done = measure_throughput(bench);
  return done ? 0 : report_failure(done.error());
}

}  // namespace rudder::apps
