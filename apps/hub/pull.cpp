// rudder pull: fetches a model of the hub into the cache, and prints its folder.
#include <fmt/format.h>

#include <cstdint>
#include <string>

#include "command_line.h"
#include "commands.h"
#include "model_folder.h"
#include "report_error.h"
#include "rudder/base/log.h"

namespace rudder::apps {

int run_pull(int argc, char** argv) {
  hub::PullRequest request;
  int32_t connections = request.download.connections;
  SettingsTable table;
  table.section("pull");
  table.add("revision", &request.revision, "A branch, a tag or a commit of the repository.");
  table.add("connections", &connections, 1, 64, "Ranges of files that are fetched side by side.");
  const Result<ParsedArguments> arguments = parse_arguments(
      {"rudder pull",
       "Fetch a model of the hub into the cache and print its folder: configuration, "
       "tokenizer, templates and safetensors, nothing else; or, with :QUANT, one GGUF file. "
       "What was cut goes on where it was cut.",
       "ORG/NAME[:QUANT]", 1},
      argc, argv, table);
  if (!arguments) return report_bad_arguments(arguments.error());
  if (arguments->help_shown) return 0;
  if (arguments->positionals.empty()) {
    return report_bad_arguments(
        {ErrorCode::kInvalidArgument, "name a repository: rudder pull ORG/NAME", "model"});
  }
  request.model = arguments->positionals[0];
  request.download.connections = connections;
  const Result<hub::Pulled> pulled = pull_model(request);
  if (!pulled) return report_failure(pulled.error());
  log_info("{} at {}: commit {}, {:.1f} MiB fetched", pulled->repository, request.revision,
           pulled->commit, static_cast<double>(pulled->bytes_fetched) / (1 << 20));
  flush_logs();
  fmt::print("{}\n", pulled->path);
  return 0;
}

}  // namespace rudder::apps
