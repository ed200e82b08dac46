// rudder bench trace: where the time of a decode step goes on a GPU, as the device ran the replays
// of its graph: by macro-op and by layer, gaps included.
#include <fmt/format.h>

#include <boost/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "bench/bench_commands.h"
#include "bench/offline_run.h"
#include "bench/report.h"
#include "bench/workload.h"
#include "command_line.h"
#include "model_session.h"
#include "report_error.h"
#include "rudder/base/json.h"
#if RUDDER_HAS_CUDA
#include "rudder/cuda/node_trace.h"
#endif

namespace rudder::apps {
namespace {

struct TraceFlags {
  SessionSettings session;
  std::string model;
  int32_t batch = 32;
  int32_t context = 512;
  int32_t steps = 50;
  std::string output_json;
};

#if RUDDER_HAS_CUDA
namespace json = boost::json;

constexpr int32_t kWarmUpTokens = 8;

json::array lines_json(const std::vector<cuda::AttributedLine>& lines) {
  json::array out;
  for (const cuda::AttributedLine& line : lines) {
    out.push_back(json::object{{"op", line.op},
                               {"layer", line.layer},
                               {"kernels", line.count},
                               {"time_us", line.time_us},
                               {"gap_us", line.gap_us}});
  }
  return out;
}

Result<void> run_batch_of(ModelSession& session, const TraceFlags& flags, int32_t tokens) {
  WorkloadSettings workload;
  workload.num_prompts = flags.batch;
  workload.random_input_len = flags.context;
  workload.random_output_len = tokens;
  std::vector<engine::RequestParams> requests;
  for (WorkItem& item :
       make_workload(workload, *session.files.tokenizer, session.memory.max_seq_len)) {
    engine::RequestParams params;
    params.prompt = std::move(item.prompt);
    params.sampling.temperature = 0;
    params.seed = 0;
    params.max_tokens = item.output_len;
    params.ignore_eos = true;
    requests.push_back(std::move(params));
  }
  double seconds = 0;
  RUDDER_TRY_VOID(run_requests(
      session, std::move(requests), [](int64_t, int64_t) {}, &seconds));
  return {};
}

Result<void> trace_steps(const TraceFlags& flags) {
  RUDDER_TRY(const std::unique_ptr<cuda::NodeTrace> trace, cuda::start_node_trace());
  RUDDER_TRY(ModelSession session, open_session(flags.model, flags.session));
  RUDDER_TRY_VOID(run_batch_of(session, flags, kWarmUpTokens));
  trace->clear();
  RUDDER_TRY_VOID(run_batch_of(session, flags, flags.steps + kWarmUpTokens));
  const std::vector<std::vector<cuda::DeviceNode>> replays =
      cuda::last_replays(trace->nodes(), static_cast<size_t>(flags.steps));
  if (replays.empty()) {
    return fail(ErrorCode::kUnsupported, "no step was the replay of a graph", "enforce-eager");
  }
  const cuda::Attribution found = cuda::attribute_replays(replays);
  fmt::print("{} sequences after {} tokens\n{}", flags.batch, flags.context, to_table(found));
  if (flags.output_json.empty()) return {};
  return write_file(flags.output_json,
                    to_json_text(json::object{{"span_us", found.span_us},
                                              {"replays", found.replays},
                                              {"ops", lines_json(found.ops)},
                                              {"layers", lines_json(found.layers)},
                                              {"all", lines_json(found.all)}}) +
                        "\n");
}
#else
Result<void> trace_steps(const TraceFlags& /*flags*/) {
  return fail(ErrorCode::kUnsupported, "this build has no CUDA backend", "device");
}
#endif

}  // namespace

int bench_trace(int argc, char** argv) {
  TraceFlags flags;
  SettingsTable table;
  table.section("bench trace");
  table.add("batch", &flags.batch, 1, 1024, "Sequences that decode.");
  table.add("context", &flags.context, 1, 1 << 20, "Tokens of each prompt.");
  table.add("steps", &flags.steps, 1, 100000, "Steps whose mean is taken, the last ones.");
  flags.session.log_level = "warn";
  flags.session.engine.enable_prefix_caching = false;
  flags.session.declare(table);
  table.section("result");
  table.add("output-json", &flags.output_json, "Write every op of every layer to this file.");
  const Result<ParsedArguments> arguments =
      parse_arguments({"rudder bench trace",
                       "Attribute a step's time to its ops, from CUPTI's records.", "[MODEL]", 1},
                      argc, argv, table);
  if (!arguments) return report_bad_arguments(arguments.error());
  if (arguments->help_shown) return 0;
  if (!arguments->positionals.empty()) flags.model = arguments->positionals[0];
  const Result<void> done = trace_steps(flags);
  return done ? 0 : report_failure(done.error());
}

}  // namespace rudder::apps
