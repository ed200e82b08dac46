// rudder features eval: clamps a feature over a sweep of values, and shows what comes of it beside
// what it costs. Activation: the feature's mean value over the generated tokens, as the model
// without the clamp reads them, so the clamp itself is not in it. Cost: perplexity of the answers
// under the model without the clamp.
#include <fmt/format.h>

#include <boost/json.hpp>
#include <optional>

#include "command_line.h"
#include "features/feature_commands.h"
#include "features/prompt_features.h"
#include "prompt_file.h"
#include "report/report.h"
#include "report/svg_plot.h"
#include "report_error.h"
#include "rudder/base/json.h"
#include "rudder/base/thread_pool.h"
#include "steered_answers.h"
#include "sweep.h"

namespace rudder::apps {
namespace {

namespace json = boost::json;

struct ClampSettings {
  int32_t layer = -1;
  int32_t feature = -1;
  std::string kind = "set";
  std::string values;
  std::string prompts;
  std::string phase = "all";
  int32_t max_tokens = 64;
  bool chat = false;
  std::string output;
  std::string plot;

  void declare(SettingsTable& table) {
    table.section("features");
    table.add("layer", &layer, -1, 100000, "Layer of a dictionary that has several.");
    table.add("feature", &feature, -1, 1 << 30, "Number of the feature that is clamped.");
    table.add_choice("kind", &kind, {"set", "add", "multiply", "min", "max"},
                     "What becomes of its value.");
    table.add("values", &values, "The sweep, as 0,20,40.");
    table.add("prompts", &prompts,
              "What is answered under the clamp: a prompt a line, or JSONL objects.");
    table.add_choice("phase", &phase, {"all", "prefill", "decode"}, "Tokens that are clamped.");
    table.add("max-tokens", &max_tokens, 1, 4096, "Tokens of an answer, at most.");
    table.add("chat", &chat, "Wrap plain lines as user messages.");
    table.add("output", &output, "File for the report, with every answer, as JSON.");
    table.add("plot", &plot, "File for perplexity against activation as SVG.");
  }
};

struct ClampPoint {
  std::optional<double> value;  // none: nothing is clamped
  double activation = 0;
  double perplexity = 0;
  int64_t num_tokens = 0;
  std::vector<std::string> texts;  // by prompt
};

std::string value_text(const ClampPoint& point) {
  return point.value ? fmt::format("{:.4g}", *point.value) : "plain";
}

class ClampSweep {
 public:
  ClampSweep(ModelSession& session, std::shared_ptr<const features::Dictionary> dictionary,
             const ClampSettings& settings)
      : session_(session), dictionary_(std::move(dictionary)), settings_(settings) {}

  Result<ClampPoint> run(std::optional<double> value, const std::vector<PromptRow>& prompts);

 private:
  // Null: none at all.
  Result<std::shared_ptr<const steer::Config>> config(std::optional<double> value) const;
  // The feature's mean over the answers' tokens; `readings` have the rows of prompts and answers.
  Result<double> mean_activation(const std::vector<PromptRow>& prompts,
                                 const std::vector<PlainReading>& readings) const;

  ModelSession& session_;
  const std::shared_ptr<const features::Dictionary> dictionary_;
  const ClampSettings& settings_;
};

Result<std::shared_ptr<const steer::Config>> ClampSweep::config(std::optional<double> value) const {
  if (!value) {
    return steer::Config::build(
        std::make_shared<const steer::Model>(session_.steering->library().model()), {});
  }
  const json::object body = {
      {"steering",
       {{"op", "feature"},
        {"dictionary", session_.steering->library().dictionaries().front()->name},
        {"layer", dictionary_->read.layer},
        {"feature", settings_.feature},
        {"kind", settings_.kind},
        {"value", *value},
        {"select", {{"phase", settings_.phase}}}}}};
  return session_.steering->library().resolve(body);
}

Result<double> ClampSweep::mean_activation(const std::vector<PromptRow>& prompts,
                                           const std::vector<PlainReading>& readings) const {
  const auto width = static_cast<size_t>(dictionary_->d_in);
  std::vector<std::vector<float>> rows;
  for (const PlainReading& reading : readings) {
    RUDDER_TRY(rows.emplace_back(), token_rows(reading.captures, *dictionary_));
  }
  std::vector<double> sums(rows.size());
  double count = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const size_t num_rows = rows[i].size() / width;
    count += static_cast<double>(num_rows - prompts[i].prompt.size());
  }
  ThreadPool threads;
  threads.parallel_for(static_cast<int64_t>(rows.size()), [&](int64_t index) {
    const auto i = static_cast<size_t>(index);
    std::vector<float> features(static_cast<size_t>(dictionary_->num_features));
    for (size_t token = prompts[i].prompt.size(); token < rows[i].size() / width; ++token) {
      features::encode(*dictionary_, std::span(rows[i]).subspan(token * width, width), features);
      sums[i] += double{features[static_cast<size_t>(settings_.feature)]};
    }
  });
  double sum = 0;
  for (const double one : sums) sum += one;
  return count == 0 ? 0 : sum / count;
}

Result<ClampPoint> ClampSweep::run(std::optional<double> value,
                                   const std::vector<PromptRow>& prompts) {
  ClampPoint point;
  point.value = value;
  const std::string name = value_text(point);
  RUDDER_TRY(const auto steering, config(value));
  RUDDER_TRY(std::vector<SteeredAnswer> answers,
             answer_prompts(session_, *steering, prompts, {.max_tokens = settings_.max_tokens},
                            nullptr, fmt::format("answers at {}", name)));
  RUDDER_TRY(const auto spec, rows_spec(session_, *dictionary_));
  RUDDER_TRY(const auto readings, read_answers(session_, prompts, answers, spec.get(),
                                               fmt::format("reading at {}", name)));
  RUDDER_TRY(point.activation, mean_activation(prompts, readings));
  point.perplexity = perplexity(readings);
  for (SteeredAnswer& answer : answers) {
    point.num_tokens += static_cast<int64_t>(answer.tokens.size());
    point.texts.push_back(std::move(answer.text));
  }
  return point;
}

Result<void> write_clamps(const ClampSettings& settings, const std::vector<ClampPoint>& points) {
  fmt::print("feature {}, kind {}\n\n    value   activation   perplexity   tokens\n",
             settings.feature, settings.kind);
  std::vector<std::pair<double, double>> plotted;
  json::array rows;
  for (size_t i = 0; i < points.size(); ++i) {
    const ClampPoint& point = points[i];
    fmt::print("{}  {:>6}   {:>10.4g}   {:>10.3f}   {:>6}\n", plot_letter(i), value_text(point),
               point.activation, point.perplexity, point.num_tokens);
    plotted.emplace_back(point.activation, point.perplexity);
    rows.push_back({{"value", point.value ? json::value(*point.value) : json::value()},
                    {"activation", point.activation},
                    {"perplexity", point.perplexity},
                    {"num_tokens", point.num_tokens},
                    {"texts", json::value_from(point.texts)}});
  }
  fmt::print("\n{}", text_plot(plotted, "activation", "perplexity"));
  if (!settings.output.empty()) {
    const json::object report = {{"feature", settings.feature},
                                 {"kind", settings.kind},
                                 {"phase", settings.phase},
                                 {"points", std::move(rows)}};
    RUDDER_TRY_VOID(write_file(settings.output, to_json_text(report) + "\n"));
  }
  if (settings.plot.empty()) return {};
  const PlotLine line{fmt::format("feature {}", settings.feature), plotted};
  return write_file(settings.plot,
                    svg_plot({.title = fmt::format("feature {}: cost of a clamp", settings.feature),
                              .x_label = "activation in the answers",
                              .y_label = "perplexity without the clamp"},
                             {line}));
}

Result<void> sweep_clamp(ModelSession& session, const ClampSettings& settings) {
  RUDDER_TRY(const std::vector<double> values, parse_numbers(settings.values, "values"));
  RUDDER_TRY(const auto dictionary, session_dictionary(session, settings.layer));
  if (settings.feature < 0 || settings.feature >= dictionary->num_features) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("must be from 0 to {}", dictionary->num_features - 1), "feature");
  }
  RUDDER_TRY(const std::vector<PromptRow> prompts,
             read_prompts(session.files, settings.prompts, settings.chat));
  if (prompts.empty()) return fail(ErrorCode::kInvalidArgument, "no prompts", settings.prompts);
  ClampSweep sweep(session, dictionary, settings);
  std::vector<ClampPoint> points;
  RUDDER_TRY(points.emplace_back(), sweep.run(std::nullopt, prompts));
  for (const double value : values) {
    RUDDER_TRY(points.emplace_back(), sweep.run(value, prompts));
  }
  return write_clamps(settings, points);
}

}  // namespace

int features_eval(int argc, char** argv) {
  SessionSettings settings = feature_session_settings();
  ClampSettings clamp_settings;
  SettingsTable table;
  clamp_settings.declare(table);
  settings.declare(table);
  const Result<ParsedArguments> arguments = parse_arguments(
      {"rudder features eval", "Sweep a clamp of a feature: what it does against perplexity.",
       "[MODEL]", 1},
      argc, argv, table);
  if (!arguments) return report_bad_arguments(arguments.error());
  if (arguments->help_shown) return 0;
  if (clamp_settings.prompts.empty() || clamp_settings.values.empty()) {
    return report_bad_arguments(
        Error{ErrorCode::kInvalidArgument, "give --feature, --values and --prompts", ""});
  }
  const std::string model = arguments->positionals.empty() ? "" : arguments->positionals[0];
  Result<ModelSession> session = open_session(model, settings);
  if (!session) return report_failure(session.error());
  const Result<void> done = sweep_clamp(*session, clamp_settings);
  return done ? 0 : report_failure(done.error());
}

}  // namespace rudder::apps
