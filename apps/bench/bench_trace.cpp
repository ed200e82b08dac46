// rudder bench trace: where the time of a decode step goes on a GPU, as the device ran the replays
// of its graph: by macro-op and by layer, gaps included.
#include <fmt/format.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/bench_commands.h"
#include "bench/bench_dictionary.h"
#include "bench/offline_run.h"
#include "bench/workload.h"
#include "command_line.h"
#include "model_session.h"
#include "report/report.h"
#include "report_error.h"
#include "rudder/base/json.h"
#include "rudder/base/progress.h"
#include "rudder/steer/segments.h"
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
  int32_t warm_up = 48;
  int32_t clamps = 0;
  bool prompts = false;
  std::string output_json;
};

#if RUDDER_HAS_CUDA
namespace json = boost::json;

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

// Steering, with the bench's dictionary in `folder`.
Result<void> arm(const std::string& model, const std::string& folder, SessionSettings& settings) {
  settings.exec.enable_steering = true;
  RUDDER_TRY(const ModelFiles files, open_model_files(model, settings.load));
  RUDDER_TRY(const exec::MemoryBudget budget, budget_session(files, settings));
  settings.steering.dictionaries = {fmt::format("{}={}", kBenchColumns.name(), folder)};
  return write_bench_dictionary(kBenchColumns, budget.geometry, folder);
}

Result<tap::SequenceTaps> clamps_of(const ModelSession& session, const TraceFlags& flags) {
  RUDDER_TRY(const json::value body,
             parse_json(feature_clamps(kBenchColumns, flags.clamps), "request body"));
  RUDDER_TRY(const auto config, session.steering->library().resolve(body.as_object()));
  steer::PromptShape shape;
  shape.prompt_len = flags.context;
  return steer::make_taps(*config, shape);
}

Result<void> run_batch_of(ModelSession& session, const TraceFlags& flags, int32_t tokens) {
  WorkloadSettings workload;
  workload.num_prompts = flags.batch;
  workload.random_input_len = flags.context;
  workload.random_output_len = tokens;
  std::vector<engine::RequestParams> requests;
  std::shared_ptr<const tap::SequenceTaps> kept;
  if (flags.clamps > 0) {
    RUDDER_TRY(tap::SequenceTaps taps, clamps_of(session, flags));
    RUDDER_TRY(kept, session.engine->programs().keep(std::move(taps)));
  }
  for (WorkItem& item :
       make_workload(workload, *session.files.tokenizer, session.memory.max_seq_len)) {
    engine::RequestParams params;
    params.prompt = std::move(item.prompt);
    params.sampling.temperature = 0;
    params.seed = 0;
    params.max_tokens = item.output_len;
    params.ignore_eos = true;
    if (kept != nullptr) params.taps = tap::spec_of(*kept);
    requests.push_back(std::move(params));
  }
  double seconds = 0;
  Progress progress("bench trace", false);
  RUDDER_TRY_VOID(run_requests(session, std::move(requests), progress.callback(), &seconds));
  return {};
}

Result<void> trace_steps(const TraceFlags& flags) {
  SessionSettings settings = flags.session;
  const std::string folder = fmt::format("/tmp/rudder_bench_trace_{}", ::getpid());
  if (flags.clamps > 0) RUDDER_TRY_VOID(arm(flags.model, folder, settings));
  RUDDER_TRY(const std::unique_ptr<cuda::NodeTrace> trace, cuda::start_node_trace());
  Result<ModelSession> opened = open_session(flags.model, settings);
  std::filesystem::remove_all(folder);
  RUDDER_TRY(ModelSession session, std::move(opened));
  RUDDER_TRY_VOID(run_batch_of(session, flags, flags.warm_up));
  trace->clear();
  RUDDER_TRY_VOID(run_batch_of(session, flags, flags.prompts ? 1 : flags.steps + flags.warm_up));
  const auto most = static_cast<size_t>(flags.steps);
  const std::vector<cuda::DeviceNode> nodes = trace->nodes();
  const std::vector<std::vector<cuda::DeviceNode>> replays =
      flags.prompts ? cuda::last_steps(nodes, most) : cuda::last_replays(nodes, most);
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
  table.add("warm-up", &flags.warm_up, 1, 100000,
            "Steps in front of them, and as many before those.");
  table.add("clamps", &flags.clamps, 0, kBenchColumns.num_features,
            "Features of one layer that each sequence clamps.");
  table.add("prompts", &flags.prompts,
            "Steps that compute the prompts in place of those that decode.");
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
