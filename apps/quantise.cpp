// rudder quantise: writes a model in fewer bits, and tells on a text what that costs.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "command_line.h"
#include "commands.h"
#include "eval/divergence_of_texts.h"
#include "eval/divergence_report.h"
#include "eval/score_text.h"
#include "model_session.h"
#include "report/report.h"
#include "report_error.h"
#include "rudder/base/json.h"
#include "rudder/base/progress.h"
#include "rudder/model/gguf/write_gguf.h"
#include "rudder/model/quantise_checkpoint.h"
#include "rudder/step/sampling.h"

namespace rudder::apps {
namespace {

constexpr int32_t kReportWindow = 512;

struct QuantiseSettings {
  std::string scheme = "fp8";
  std::string text;
  std::string output;

  void declare(SettingsTable& table) {
    std::vector<std::string> names;
    names.reserve(model::kQuantiseSchemes.size());
    for (const model::QuantiseScheme& one : model::kQuantiseSchemes) names.emplace_back(one.name);
    for (const model::GgufScheme& one : model::kGgufSchemes) names.emplace_back(one.name);
    table.section("quantise");
    table.add_choice("scheme", &scheme, names,
                     "Of the layers' products, written as compressed-tensors into the folder OUT; "
                     "embedding and head stay as they are. gguf-...: all of it as one GGUF file, "
                     "OUT.");
    table.add("text", &text,
              "A file: its perplexity under both models, and KL of the one written from IN, with "
              "the flags of a server that are given.");
    table.add("output", &output, "With --text: file for the report as JSON.");
  }
};

// Of the model, over windows side by side; the session ends with it.
Result<ScoredText> scored_by(const std::string& model, const SessionSettings& settings,
                             const QuantiseSettings& quantise) {
  RUDDER_TRY(ModelSession session, open_session(model, settings));
  const WindowSettings windows = {.kind = WindowKind::kRolling, .window = kReportWindow};
  RUDDER_TRY(ScoredText text, encode_text_file(session.files, quantise.text, windows, false));
  RUDDER_TRY_VOID(score_text(session, step::kMaxLogprobs, session.files.name, &text));
  return text;
}

Result<void> quantise_model(const std::string& from, const std::string& to,
                            const SessionSettings& settings, const QuantiseSettings& quantise) {
  {
    RUDDER_TRY(const ModelFiles files, open_model_files(from, settings.load));
    Progress progress("quantise", true);
    if (const model::GgufScheme* const gguf = model::find_gguf_scheme(quantise.scheme)) {
      if (!to.ends_with(".gguf")) {
        return fail(ErrorCode::kInvalidArgument, "a GGUF file has a name that ends in .gguf", to);
      }
      RUDDER_TRY_VOID(model::write_gguf(*files.checkpoint, *gguf, to, progress.callback()));
    } else {
      RUDDER_TRY_VOID(model::quantise_checkpoint(
          *files.checkpoint, *model::find_scheme(quantise.scheme), to, progress.callback()));
    }
  }
  if (quantise.text.empty()) return {};
  RUDDER_TRY(const ScoredText reference, scored_by(from, settings, quantise));
  RUDDER_TRY(const ScoredText text, scored_by(to, settings, quantise));
  const TextDivergence found = divergence_of(reference, text);
  fmt::print("{}", divergence_text(found));
  if (quantise.output.empty()) return {};
  boost::json::object report = divergence_json(found);
  report["scheme"] = quantise.scheme;
  return write_file(quantise.output, to_json_text(report) + "\n");
}

}  // namespace

int run_quantise(int argc, char** argv) {
  SessionSettings settings;
  settings.log_level = "warn";
  QuantiseSettings quantise;
  SettingsTable table;
  quantise.declare(table);
  settings.declare(table);
  const Result<ParsedArguments> arguments = parse_arguments(
      {"rudder quantise", "Write the model IN into the folder or GGUF file OUT, in fewer bits.",
       "IN OUT", 2},
      argc, argv, table);
  if (!arguments) return report_bad_arguments(arguments.error());
  if (arguments->help_shown) return 0;
  const auto& given = arguments->positionals;
  if (given.size() != 2) {
    return report_bad_arguments(
        Error{ErrorCode::kInvalidArgument, "name the model IN and the folder or file OUT", ""});
  }
  const Result<void> done = quantise_model(given[0], given[1], settings, quantise);
  return done ? 0 : report_failure(done.error());
}

}  // namespace rudder::apps
