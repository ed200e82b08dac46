// rudder eval perplexity: how likely a model holds a text, by one of three definitions.
#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <string>

#include "command_line.h"
#include "eval/divergence_of_texts.h"
#include "eval/eval_commands.h"
#include "eval/logprob_file.h"
#include "eval/score_text.h"
#include "model_session.h"
#include "report/report.h"
#include "report_error.h"
#include "rudder/base/json.h"

namespace rudder::apps {
namespace {

struct PerplexitySettings {
  std::string windows = "rolling";
  int32_t window = 512;
  int32_t stride = 0;
  int32_t top = 20;
  std::string save;
  bool parse_special = false;
  std::string output;

  void declare(SettingsTable& table) {
    table.section("eval");
    table.add_choice("windows", &windows, {"rolling", "halves", "strided"},
                     "How the text is cut: rolling scores each token once (lm-eval), halves the "
                     "second half of each window (llama.cpp), strided what is new in windows that "
                     "overlap (transformers).");
    table.add("window", &window, 4, 1 << 24, "Tokens of a window.");
    table.add("stride", &stride, 0, 1 << 24,
              "With --windows strided: tokens from one window to the next; 0: half a window.");
    table.add("top", &top, 1, 1 << 20,
              "Likeliest tokens of each position that --save-logprobs stores, or as many as the "
              "engine tells.");
    table.add("save-logprobs", &save,
              "File for the log-probabilities: the --reference of rudder eval kl.");
    table.add(
        "parse-special", &parse_special,
        "Spellings of special tokens in the text are these tokens, as transformers takes them; "
        "else they are text.");
    table.add("output", &output, "File for the report as JSON.");
  }
};

Result<void> score_file(const std::string& path, const std::string& model,
                        const SessionSettings& settings, const PerplexitySettings& eval) {
  WindowSettings windows;
  RUDDER_TRY(windows.kind, parse_window_kind(eval.windows));
  windows.window = eval.window;
  if (windows.kind == WindowKind::kStrided) {
    windows.stride = eval.stride == 0 ? std::max(1, eval.window / 2) : eval.stride;
  } else if (eval.stride != 0) {
    return fail(ErrorCode::kInvalidArgument, "it is for --windows strided", "stride");
  }
  RUDDER_TRY(ModelSession session, open_session(model, settings));
  RUDDER_TRY(ScoredText text, encode_text_file(session.files, path, windows, eval.parse_special));
  RUDDER_TRY_VOID(score_text(session, eval.save.empty() ? 0 : eval.top, "perplexity", &text));
  const Estimate perplexity = perplexity_of(text);
  fmt::print("perplexity {:.4f} +- {:.4f} of {} tokens ({} windows of {}), {} {}\n",
             perplexity.value, perplexity.error, text.num_scored(), eval.windows, eval.window,
             session.files.name, session.dtype);
  if (!eval.output.empty()) {
    boost::json::object report = {
        {"model", session.files.name},    {"formats", session.dtype},
        {"windows", eval.windows},        {"window", windows.window},
        {"stride", windows.stride},       {"num_tokens", text.num_scored()},
        {"perplexity", perplexity.value}, {"perplexity_error", perplexity.error}};
    RUDDER_TRY_VOID(write_file(eval.output, to_json_text(report) + "\n"));
  }
  return eval.save.empty() ? Result<void>() : write_logprobs(text, eval.save);
}

}  // namespace

int eval_perplexity(int argc, char** argv) {
  SessionSettings settings;
  settings.log_level = "warn";
  PerplexitySettings eval;
  SettingsTable table;
  eval.declare(table);
  settings.declare(table);
  const Result<ParsedArguments> arguments = parse_arguments(
      {"rudder eval perplexity", "Perplexity of the text of a file.", "FILE [MODEL]", 2}, argc,
      argv, table);
  if (!arguments) return report_bad_arguments(arguments.error());
  if (arguments->help_shown) return 0;
  const auto& given = arguments->positionals;
  if (given.empty()) {
    return report_bad_arguments(Error{ErrorCode::kInvalidArgument, "name the FILE", ""});
  }
  const Result<void> done = score_file(given[0], given.size() > 1 ? given[1] : "", settings, eval);
  return done ? 0 : report_failure(done.error());
}

}  // namespace rudder::apps
