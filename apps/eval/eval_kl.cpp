// rudder eval kl: how far a model's distributions on a text are from those that a run stored.
#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <string>

#include "command_line.h"
#include "eval/divergence_of_texts.h"
#include "eval/divergence_report.h"
#include "eval/eval_commands.h"
#include "eval/logprob_file.h"
#include "eval/score_text.h"
#include "model_session.h"
#include "report/report.h"
#include "report_error.h"
#include "rudder/base/json.h"
#include "rudder/step/sampling.h"

namespace rudder::apps {
namespace {

struct KlSettings {
  std::string reference;
  bool parse_special = false;
  std::string output;

  void declare(SettingsTable& table) {
    table.section("eval");
    table.add("reference", &reference,
              "The file that rudder eval perplexity --save-logprobs wrote of the same text; its "
              "windows are used.");
    table.add(
        "parse-special", &parse_special,
        "Spellings of special tokens in the text are these tokens, as transformers takes them; "
        "else they are text.");
    table.add("output", &output, "File for the report as JSON.");
  }
};

Result<void> check_same_text(const ScoredText& reference, const ScoredText& text,
                             const std::string& path) {
  const auto differ = [&](const char* field, std::string message) {
    return fail(ErrorCode::kInvalidArgument, std::move(message),
                fmt::format("{}: {}", path, field));
  };
  if (reference.prefix != text.prefix) {
    return differ("prefix", fmt::format("is {}, this model's texts begin with {}", reference.prefix,
                                        text.prefix));
  }
  const auto [there, here] = std::ranges::mismatch(reference.tokens, text.tokens);
  const auto at = here - text.tokens.begin();
  if (there == reference.tokens.end() && here == text.tokens.end()) return {};
  return differ("tokens",
                fmt::format("are of another text or tokenizer: {} tokens, this text has {}; they "
                            "differ from token {} on",
                            reference.tokens.size(), text.tokens.size(), at));
}

Result<void> compare(const std::string& path, const std::string& model,
                     const SessionSettings& settings, const KlSettings& eval) {
  RUDDER_TRY(const ScoredText reference, read_logprobs(eval.reference));
  RUDDER_TRY(ModelSession session, open_session(model, settings));
  RUDDER_TRY(ScoredText text,
             encode_text_file(session.files, path, reference.windows, eval.parse_special));
  RUDDER_TRY_VOID(check_same_text(reference, text, eval.reference));
  RUDDER_TRY_VOID(score_text(session, step::kMaxLogprobs, "kl", &text));
  const TextDivergence found = divergence_of(reference, text);
  fmt::print("{} {} beside {}\n{}", session.files.name, session.dtype, reference.model,
             divergence_text(found));
  if (eval.output.empty()) return {};
  boost::json::object report = divergence_json(found);
  report["model"] = session.files.name;
  report["formats"] = session.dtype;
  report["reference"] = reference.model;
  return write_file(eval.output, to_json_text(report) + "\n");
}

}  // namespace

int eval_kl(int argc, char** argv) {
  SessionSettings settings;
  settings.log_level = "warn";
  KlSettings eval;
  SettingsTable table;
  eval.declare(table);
  settings.declare(table);
  const Result<ParsedArguments> arguments = parse_arguments(
      {"rudder eval kl", "Divergence, first choices and perplexity beside a stored run.",
       "FILE [MODEL]", 2},
      argc, argv, table);
  if (!arguments) return report_bad_arguments(arguments.error());
  if (arguments->help_shown) return 0;
  const auto& given = arguments->positionals;
  if (given.empty() || eval.reference.empty()) {
    return report_bad_arguments(
        Error{ErrorCode::kInvalidArgument, "name the FILE and give --reference", ""});
  }
  const Result<void> done = compare(given[0], given.size() > 1 ? given[1] : "", settings, eval);
  return done ? 0 : report_failure(done.error());
}

}  // namespace rudder::apps
