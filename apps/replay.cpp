// rudder replay: runs a recording of --record again, on this machine's backend, and compares the
// tokens. The executor gets the room that the recorded one had.
#include "rudder/record/replay.h"

#include <fmt/format.h>

#include "backend.h"
#include "command_line.h"
#include "commands.h"
#include "model_session.h"
#include "report_error.h"

namespace rudder::apps {
namespace {

struct ReplaySettings {
  LoadSettings load;
  exec::ExecSettings exec;

  void declare(SettingsTable& table) {
    load.declare(table);
    exec.declare(table);
    exec.embedding_memory_mb = 4;
    table.section("replay");
    table.add("embedding-memory-mb", &exec.embedding_memory_mb, 0, 1 << 20,
              "As the recorded server had it.");
  }
};

// As the recorded executor: as many slots, as many blocks, the same sizes.
Result<std::unique_ptr<step::Executor>> make_executor(const ModelFiles& files,
                                                      const exec::ExecSettings& settings,
                                                      const step::Capacity& recorded) {
  exec::ExecSettings resolved = resolve_device(settings);
  resolved.block_size = recorded.block_size;
  resolved.max_model_len = recorded.max_seq_len;
  const exec::StepLimits limits = {.max_num_seqs = recorded.num_slots,
                                   .max_num_batched_tokens = recorded.max_tokens_per_step,
                                   .max_repeat = recorded.max_repeat,
                                   .max_draft = recorded.drafts.max_draft,
                                   .host_trees = recorded.drafts.takes_trees,
                                   .look_up = recorded.drafts.look_up,
                                   .make_decoder = decoder_of(resolved)};
  RUDDER_TRY(std::vector<exec::Ranks> replicas, make_replicas(resolved, 1, *files.checkpoint));
  RUDDER_TRY(const exec::MemoryBudget budget,
             exec::budget_model(*files.checkpoint, replicas, resolved, limits));
  resolved.kv_cache_memory_bytes = budget.kv.block_bytes * recorded.num_blocks;
  RUDDER_TRY(
      exec::LoadedModel loaded,
      exec::load_model(*files.checkpoint, std::move(replicas.front()), resolved, limits, {}));
  return std::move(loaded.executor);
}

void print_report(const record::ReplayReport& report) {
  fmt::print("{} steps, {} iterations, {} tokens compared: {} rows differ\n", report.num_steps,
             report.num_iterations, report.num_tokens, report.num_different);
  if (!report.first) return;
  fmt::print("the first is sequence {} of step {}, iteration {}: {}\n", report.first->seq,
             report.first->step, report.first->iteration, report.first->what);
}

// True when every token came out as it was recorded.
Result<bool> replay_file(const std::string& file, const std::string& model,
                         const ReplaySettings& settings) {
  RUDDER_TRY(const auto recording, record::RecordingReader::open(file));
  RUDDER_TRY(const ModelFiles files, open_model_files(model, settings.load));
  const record::RecordingHeader& header = recording->header();
  if (header.model != files.name) {
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("the recording is of '{}', the model is '{}'", header.model, files.name),
        "model");
  }
  RUDDER_TRY(const auto executor, make_executor(files, settings.exec, header.capacity));
  record::ReplayReport report;
  const Result<void> done = record::replay(*recording, *executor, &report);
  print_report(report);  // also of a recording that is damaged further on
  if (!done) return tl::unexpected<Error>(done.error());
  return report.num_different == 0;
}

}  // namespace

int run_replay(int argc, char** argv) {
  ReplaySettings settings;
  SettingsTable table;
  settings.declare(table);
  const Result<ParsedArguments> arguments =
      parse_arguments({"rudder replay",
                       "Run a recording of --record again and compare its tokens. Flags are those "
                       "that the recorded "
                       "server had; its sizes are in the recording.",
                       "FILE [MODEL]", 2},
                      argc, argv, table);
  if (!arguments) return report_bad_arguments(arguments.error());
  if (arguments->help_shown) return 0;
  if (arguments->positionals.empty()) {
    return report_bad_arguments({ErrorCode::kInvalidArgument, "which recording?", "FILE"});
  }
  const std::string model = arguments->positionals.size() > 1 ? arguments->positionals[1] : "";
  const Result<bool> same = replay_file(arguments->positionals[0], model, settings);
  if (!same) return report_failure(same.error());
  return *same ? 0 : 1;
}

}  // namespace rudder::apps
