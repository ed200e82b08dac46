// rudder generate: one prompt from the command line, or a file of them, to text or JSONL. All
// prompts of a file run batched; answers keep the file's order.
#include <fmt/format.h>

#include <boost/json.hpp>
#include <cstdio>
#include <mutex>

#include "batch_file.h"
#include "command_line.h"
#include "commands.h"
#include "local_client.h"
#include "model_session.h"
#include "prompt_file.h"
#include "report_error.h"
#include "row_request.h"
#include "rudder/base/json.h"
#include "rudder/base/progress.h"
#include "sampling_flags.h"

namespace rudder::apps {
namespace {

namespace json = boost::json;

constexpr int64_t kEmbeddingMemoryMb = 4;  // as a server has it

struct GenerateSettings {
  std::string prompt;
  std::string input;
  std::string output = "-";
  bool chat = false;

  void declare(SettingsTable& table) {
    table.section("generate");
    table.add("prompt", &prompt, "The prompt. Its text goes to standard output as it comes.");
    table.add("input", &input,
              "A file of prompts, '-' for standard input: a prompt a line, or JSONL objects, each "
              "the body of a request with prompt, prompt_ids or messages. The sampling flags are "
              "for fields that a line does not have. A line's keys are copied to the output. Or "
              "OpenAI's batch lines: custom_id, method, url and body, answered in their form.");
    table.add("output", &output, "Where the JSONL answers of --input go; '-' is standard output.");
    table.add("chat", &chat, "Wrap --prompt or plain lines as a user message.");
  }
};

std::string_view finish_name(const LocalAnswer& answer) {
  switch (answer.finish) {
    case engine::FinishReason::kStop:
      return "stop";
    case engine::FinishReason::kLength:
      return "length";
    case engine::FinishReason::kCancelled:
      return "cancelled";
    case engine::FinishReason::kError:
      return "error";
  }
  return "error";
}

void add_answer(json::object& row, const LocalAnswer& answer) {
  row["text"] = answer.text;
  row["finish_reason"] = finish_name(answer);
  row["token_ids"] = json::value_from(answer.tokens);
  row["usage"] = {{"prompt_tokens", answer.usage.prompt_tokens},
                  {"cached_tokens", answer.usage.cached_tokens},
                  {"completion_tokens", answer.usage.completion_tokens}};
  const Result<void> captured = add_capture_results(answer.captures, &row);
  if (!captured) row["error"] = captured.error().to_string();
  if (answer.error) row["error"] = answer.error->to_string();
}

Result<void> write_rows(const std::vector<PromptLine>& lines, const std::string& path) {
  std::FILE* file = path == "-" ? stdout : std::fopen(path.c_str(), "w");
  if (file == nullptr) return fail(ErrorCode::kIo, "cannot be written", path);
  for (const PromptLine& line : lines) {
    const std::string text = to_json_text(line.row) + "\n";
    std::fwrite(text.data(), 1, text.size(), file);
  }
  const bool written = std::fflush(file) == 0 && std::ferror(file) == 0;
  if (file != stdout) std::fclose(file);
  if (!written) return fail(ErrorCode::kIo, "cannot be written", path);
  return {};
}

Result<void> generate_batch(const ModelSession& session, std::vector<PromptLine>& lines,
                            const GenerateSettings& settings, const json::object& fields) {
  Progress progress("generate", false);
  RUDDER_TRY_VOID(answer_batch(session, fields, progress.callback(), &lines));
  return write_rows(lines, settings.output);
}

Result<void> generate_file(ModelSession& session, std::vector<PromptLine>& lines,
                           const GenerateSettings& settings, const SamplingFlags& sampling) {
  RUDDER_TRY(const RowRequests requests, RowRequests::create(session, sampling));
  Progress progress("generate", false);
  std::mutex mutex;
  int64_t done = 0;
  {
    LocalClient client(*session.engine);
    for (PromptLine& line : lines) {
      const auto finish = [&](LocalAnswer&& answer) {
        std::lock_guard lock(mutex);
        add_answer(line.row, answer);
        progress.update(++done, static_cast<int64_t>(lines.size()));
      };
      Result<RowRequest> read = requests.read(line, settings.chat);
      const Result<engine::RequestId> id =
          read ? client.submit(read->request, finish) : tl::unexpected<Error>(read.error());
      if (id) continue;
      std::lock_guard lock(mutex);
      line.row["error"] = id.error().to_string();
      progress.update(++done, static_cast<int64_t>(lines.size()));
    }
  }
  return write_rows(lines, settings.output);
}

Result<void> generate_one(ModelSession& session, const GenerateSettings& settings,
                          const SamplingFlags& sampling) {
  RUDDER_TRY(std::vector<int32_t> prompt,
             encode_prompt(session.files, settings.prompt, settings.chat));
  LocalClient client(*session.engine);
  RUDDER_TRY(const LocalAnswer answer,
             client.ask(sampling.params(std::move(prompt)), [](const std::string& text) {
               fmt::print("{}", text);
               std::fflush(stdout);
             }));
  fmt::print("\n");
  if (answer.error) return tl::unexpected<Error>(*answer.error);
  return {};
}

}  // namespace

int run_generate(int argc, char** argv) {
  SessionSettings settings;
  settings.log_level = "warn";
  GenerateSettings generate;
  SamplingFlags sampling;
  SettingsTable table;
  generate.declare(table);
  sampling.declare(table);
  settings.declare(table);
  const Result<ParsedArguments> arguments = parse_arguments(
      {"rudder generate", "Generate from one prompt or from a file of prompts.", "[MODEL]", 1},
      argc, argv, table);
  if (!arguments) return report_bad_arguments(arguments.error());
  if (arguments->help_shown) return 0;
  if (generate.prompt.empty() == generate.input.empty()) {
    return report_bad_arguments(
        Error{ErrorCode::kInvalidArgument, "give either --prompt or --input", ""});
  }
  std::vector<PromptLine> lines;
  if (!generate.input.empty()) {
    Result<std::vector<PromptLine>> read = read_prompt_lines(generate.input);
    if (!read) return report_failure(read.error());
    lines = std::move(*read);
    if (!is_batch(lines)) {
      if (const Result<void> fine = check_prompt_lines(lines); !fine) {
        return report_failure(fine.error());
      }
    }
    settings.grammars = compile_grammars({});
    if (is_batch(lines)) settings.exec.embedding_memory_mb = kEmbeddingMemoryMb;
  }
  const std::string model = arguments->positionals.empty() ? "" : arguments->positionals[0];
  Result<ModelSession> session = open_session(model, settings);
  if (!session) return report_failure(session.error());
  const json::object given = sampling.given(table);
  sampling.take_defaults(session->files.generation.defaults, table);
  const auto run = [&]() -> Result<void> {
    if (generate.input.empty()) return generate_one(*session, generate, sampling);
    if (!is_batch(lines)) return generate_file(*session, lines, generate, sampling);
    return generate_batch(*session, lines, generate, given);
  };
  const Result<void> done = run();
  return done ? 0 : report_failure(done.error());
}

}  // namespace rudder::apps
