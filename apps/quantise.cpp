// rudder quantise: writes a model in fewer bits, and tells on a text what that costs.
#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <filesystem>
#include <string>
#include <vector>

#include "calibration.h"
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
#include "token_files.h"

namespace rudder::apps {
namespace {

constexpr int32_t kReportWindow = 512;

struct QuantiseSettings {
  std::string scheme = "fp8";
  std::string calibration;
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
    table.add(
        "calibration", &calibration,
        "A file: channels get scales before w4a16 or w8a16 rounds them, by what products read "
        "on this text (AWQ). Empty: to nearest as they are.");
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

// What the files of tokens say together, in one.
Result<std::shared_ptr<const weights::Checkpoint>> with_whole_config(
    std::shared_ptr<const weights::Checkpoint> checkpoint) {
  RUDDER_TRY(const text::TokenFiles files, read_token_files(*checkpoint));
  if (files.special_tokens.empty()) return checkpoint;
  RUDDER_TRY(const boost::json::object config,
             text::merge_token_files({files.config, files.special_tokens, {}}, nullptr));
  return weights::Checkpoint::with_text(std::move(checkpoint), "tokenizer_config.json",
                                        boost::json::serialize(config));
}

// Writes the model; `scales` are of channels of its products.
Result<void> write_quantised(const std::string& from, const std::string& to,
                             const SessionSettings& settings, const QuantiseSettings& quantise,
                             const model::ChannelScales& scales) {
  RUDDER_TRY(const ModelFiles files, open_model_files(from, settings.load));
  Progress progress("quantise", true);
  if (const model::GgufScheme* const gguf = model::find_gguf_scheme(quantise.scheme)) {
    if (!to.ends_with(".gguf")) {
      return fail(ErrorCode::kInvalidArgument, "a GGUF file has a name that ends in .gguf", to);
    }
    RUDDER_TRY(const auto checkpoint, with_whole_config(files.checkpoint));
    return model::write_gguf(*checkpoint, *gguf, to, progress.callback());
  }
  return model::quantise_checkpoint(*files.checkpoint, *model::find_scheme(quantise.scheme), to,
                                    progress.callback(), scales);
}

Result<model::ChannelScales> found_scales(const std::string& from, const SessionSettings& settings,
                                          const QuantiseSettings& quantise) {
  if (quantise.calibration.empty()) return model::ChannelScales();
  const model::QuantiseScheme* const scheme = model::find_scheme(quantise.scheme);
  if (scheme == nullptr || !scheme->is_packed()) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("is for w4a16 and w8a16, not for {}", quantise.scheme), "calibration");
  }
  RUDDER_TRY(Calibration found, calibrate(from, settings, *scheme, quantise.calibration));
  fmt::print(
      "scales of channels in {} of {} groups of products; there the products' squared error on the "
      "calibration text is {:.3f} of what it was\n",
      found.num_scaled, found.num_groups, found.error);
  return std::move(found.scales);
}

// The divergence of what rounding to nearest alone gives, which is written beside `to` for as long
// as it is scored.
Result<TextDivergence> plain_divergence(const std::string& from, const std::string& to,
                                        const SessionSettings& settings,
                                        const QuantiseSettings& quantise,
                                        const ScoredText& reference) {
  const std::string plain = to + ".plain";
  RUDDER_TRY_VOID(write_quantised(from, plain, settings, quantise, {}));
  const Result<ScoredText> text = scored_by(plain, settings, quantise);
  std::error_code error;
  std::filesystem::remove_all(plain, error);
  if (!text) return tl::unexpected(text.error());
  return divergence_of(reference, *text);
}

Result<void> quantise_model(const std::string& from, const std::string& to,
                            const SessionSettings& settings, const QuantiseSettings& quantise) {
  RUDDER_TRY(const model::ChannelScales scales, found_scales(from, settings, quantise));
  RUDDER_TRY_VOID(write_quantised(from, to, settings, quantise, scales));
  if (quantise.text.empty()) return {};
  RUDDER_TRY(const ScoredText reference, scored_by(from, settings, quantise));
  boost::json::object report;
  if (!quantise.calibration.empty()) {
    RUDDER_TRY(const TextDivergence plain,
               plain_divergence(from, to, settings, quantise, reference));
    fmt::print("to nearest, without scales:\n{}with scales:\n", divergence_text(plain));
    report["without_scales"] = divergence_json(plain);
  }
  RUDDER_TRY(const ScoredText text, scored_by(to, settings, quantise));
  const TextDivergence found = divergence_of(reference, text);
  fmt::print("{}", divergence_text(found));
  if (quantise.output.empty()) return {};
  for (const auto& field : divergence_json(found)) report[field.key()] = field.value();
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
