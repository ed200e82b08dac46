// rudder vectors eval: steers a model with trained vectors over a sweep of scales, and shows what
// comes of it beside what it costs. Effect: where the generated tokens lie between the sets that
// the vectors were learned from, at a layer that reads them (0: the negative set's mean, 1: the
// positive's). Cost: perplexity of what was generated, as the model without steering sees it.
#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <optional>
#include <span>
#include <tuple>
#include <utility>

#include "command_line.h"
#include "prompt_file.h"
#include "report/report.h"
#include "report/svg_plot.h"
#include "report_error.h"
#include "rudder/base/json.h"
#include "rudder/steer/train/vector_files.h"
#include "steered_answers.h"
#include "sweep.h"
#include "vectors/activations.h"
#include "vectors/vector_commands.h"
#include "vectors/vector_scale.h"

namespace rudder::apps {
namespace {

namespace json = boost::json;

struct EvalSettings {
  std::string vectors;
  std::string prompts;
  std::string layers = "best";
  int32_t read_layer = -1;
  std::string scales = "-2,-1,-0.5,0,0.5,1,2";
  int32_t max_tokens = 32;
  bool chat = false;
  double kl_budget = 0;
  std::string output;
  std::string plot;

  void declare(SettingsTable& table) {
    table.section("vectors");
    table.add("vectors", &vectors, "A file that rudder vectors train wrote: NAME.safetensors.");
    table.add("prompts", &prompts,
              "What is answered under steering: a prompt a line, or JSONL objects.");
    table.add("layers", &layers,
              "Layers that are steered: best (by the card's accuracy), all, or a list as 4,8-12.");
    table.add("read-layer", &read_layer, -1, 100000,
              "Layer of the file where the effect is read; -1 is the last.");
    table.add("scales", &scales, "The sweep.");
    table.add("max-tokens", &max_tokens, 1, 4096, "Tokens of an answer, at most.");
    table.add("chat", &chat, "Wrap plain lines as user messages.");
    table.add("kl-budget", &kl_budget, 0.0, 100.0,
              "Recommend the largest scale up to that of the sweep at which the next token's "
              "distribution diverges from the model's own by so many nats a token; 0: none.");
    table.add("output", &output, "File for the report as JSON.");
    table.add("plot", &plot, "File for perplexity against effect as SVG.");
  }
};

struct ScalePoint {
  double scale = 0;
  double effect = 0;
  double perplexity = 0;
  int64_t num_tokens = 0;
  std::vector<std::string> texts;  // by prompt
};

class Evaluation {
 public:
  Evaluation(ModelSession& session, steer::VectorCard card)
      : session_(session), card_(std::move(card)), limits_(session.engine->limits()) {}

  // Picks what is steered and what is read, and checks that they fit the model.
  Result<void> prepare(const EvalSettings& settings);
  Result<ScalePoint> run(double scale, const std::vector<PromptRow>& prompts, int32_t max_tokens);
  // Of the next token, under a scale against none.
  Result<Divergence> divergence_at(double scale, const std::vector<PromptRow>& prompts,
                                   int32_t max_tokens);

  std::string steered_layers() const { return fmt::format("{}", fmt::join(layers_, ",")); }
  int32_t read_layer() const { return read_->point.layer; }
  // The row that the effect is read from has the added vector in it.
  bool reads_what_it_adds() const {
    return std::ranges::find(layers_, read_layer()) != layers_.end();
  }

 private:
  double effect_of(std::span<const float> mean_row) const;

  ModelSession& session_;
  const steer::VectorCard card_;
  const engine::RequestLimits limits_;
  std::vector<int32_t> layers_;
  const steer::TrainedVector* read_ = nullptr;  // in card_
};

Result<void> Evaluation::prepare(const EvalSettings& settings) {
  if (session_.engine->captures() == nullptr || !limits_.taps.steering()) {
    return fail(ErrorCode::kInvalidArgument, "needs --enable-steering and --capture-memory-mb");
  }
  if (card_.vectors.empty()) {
    return fail(ErrorCode::kInvalidArgument, "holds no vectors", settings.vectors);
  }
  for (const steer::TrainedVector& vector : card_.vectors) {
    RUDDER_TRY_VOID(limits_.geometry.check(vector.point));
    const int32_t width = limits_.geometry.width(vector.point);
    if (static_cast<int32_t>(vector.direction.values.size()) == width) continue;
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("its vectors have {} numbers, this model's rows {}",
                            vector.direction.values.size(), width),
                settings.vectors);
  }
  const auto better = [](const steer::TrainedVector& a, const steer::TrainedVector& b) {
    const auto merit = [](const steer::TrainedVector& v) {
      return std::tuple(v.held_out_accuracy, v.train_accuracy,
                        (v.train.positive - v.train.negative) / std::max(v.train.spread, 1e-12));
    };
    return merit(a) < merit(b);
  };
  if (settings.layers == "best") {
    layers_ = {std::ranges::max_element(card_.vectors, better)->point.layer};
  } else if (settings.layers == "all") {
    for (const steer::TrainedVector& vector : card_.vectors) layers_.push_back(vector.point.layer);
  } else {
    RUDDER_TRY(layers_,
               parse_layers(settings.layers, card_.vectors[0].point.site, limits_.geometry));
  }
  const auto in_file = [&](int32_t layer) -> const steer::TrainedVector* {
    for (const steer::TrainedVector& vector : card_.vectors) {
      if (vector.point.layer == layer) return &vector;
    }
    return nullptr;
  };
  for (const int32_t layer : layers_) {
    if (in_file(layer) != nullptr) continue;
    return fail(ErrorCode::kInvalidArgument, fmt::format("the file has no layer {}", layer),
                "layers");
  }
  read_ = settings.read_layer < 0 ? &card_.vectors.back() : in_file(settings.read_layer);
  if (read_ != nullptr) return {};
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("the file has no layer {}", settings.read_layer), "read-layer");
}

// Where a row lies between the sets' means, along the vector of the read layer.
double Evaluation::effect_of(std::span<const float> mean_row) const {
  const std::vector<float>& direction = read_->direction.values;
  double along = 0;
  for (size_t k = 0; k < direction.size(); ++k) along += double{direction[k]} * double{mean_row[k]};
  const steer::Projections& sets = read_->train;
  return (along / steer::norm(direction) - sets.negative) / (sets.positive - sets.negative);
}

Result<ScalePoint> Evaluation::run(double scale, const std::vector<PromptRow>& prompts,
                                   int32_t max_tokens) {
  RUDDER_TRY(const std::shared_ptr<const steer::Config> steering,
             add_vectors(limits_, card_.vectors, layers_, scale));
  const tap::Point point = read_->point;
  RUDDER_TRY(const auto spec,
             mean_spec(session_, point.site, {point.layer}, "all_generated", "post"));
  RUDDER_TRY(std::vector<SteeredAnswer> answers,
             answer_prompts(session_, *steering, prompts, {.max_tokens = max_tokens}, spec.get(),
                            fmt::format("scale {}", scale)));
  RUDDER_TRY(const auto readings, read_answers(session_, prompts, answers, nullptr,
                                               fmt::format("perplexity at {}", scale)));
  ScalePoint result;
  result.scale = scale;
  int64_t num_read = 0;
  for (SteeredAnswer& answer : answers) {
    result.num_tokens += static_cast<int64_t>(answer.tokens.size());
    result.texts.push_back(std::move(answer.text));
    RUDDER_TRY(const auto rows, mean_rows(answer.captures, point.site, 1));
    if (rows[0].empty()) continue;
    result.effect += effect_of(rows[0]);
    ++num_read;
  }
  result.effect /= static_cast<double>(std::max<int64_t>(num_read, 1));
  result.perplexity = perplexity(readings);
  return result;
}

Result<Divergence> Evaluation::divergence_at(double scale, const std::vector<PromptRow>& prompts,
                                             int32_t max_tokens) {
  RUDDER_TRY(const std::shared_ptr<const steer::Config> steering,
             add_vectors(limits_, card_.vectors, layers_, scale));
  return divergence_under(session_, *steering, prompts, max_tokens, scale);
}

std::string report_text(const std::vector<ScalePoint>& points) {
  std::string out = "    scale   effect   perplexity   tokens\n";
  for (size_t i = 0; i < points.size(); ++i) {
    const ScalePoint& point = points[i];
    out += fmt::format("{}  {:>6.3g}   {:>6.3f}   {:>10.3f}   {:>6}\n", plot_letter(i), point.scale,
                       point.effect, point.perplexity, point.num_tokens);
  }
  std::vector<std::pair<double, double>> plotted;
  plotted.reserve(points.size());
  for (const ScalePoint& point : points) plotted.emplace_back(point.effect, point.perplexity);
  return out + "\n" + text_plot(plotted, "effect", "perplexity");
}

Result<void> write_report(const steer::VectorCard& card, const Evaluation& evaluation,
                          const EvalSettings& settings, const std::vector<ScalePoint>& points,
                          const std::optional<ScaleLimit>& recommended) {
  fmt::print("{} at {}, layer {} steered, effect read at layer {}\n\n{}", card.name, card.site,
             evaluation.steered_layers(), evaluation.read_layer(), report_text(points));
  if (card.unit.part != 1) {
    fmt::print("\nscales are of the whole vectors: scale 1 of the module is {:.3g} of them\n",
               card.unit.part);
  }
  if (recommended) {
    fmt::print(
        "\nrecommended scale {:.3g}: the largest up to {:.3g} with a divergence of {} nats a "
        "token or less ({:.3f} +- {:.3f})\n",
        recommended->scale, std::ranges::max(points, {}, &ScalePoint::scale).scale,
        settings.kl_budget, recommended->divergence.kl, recommended->divergence.error);
  }
  if (!settings.output.empty()) {
    json::array rows;
    for (const ScalePoint& point : points) {
      rows.push_back({{"scale", point.scale},
                      {"effect", point.effect},
                      {"perplexity", point.perplexity},
                      {"num_tokens", point.num_tokens},
                      {"texts", json::value_from(point.texts)}});
    }
    json::object report = {{"vectors", card.name},
                           {"model", card.model},
                           {"site", card.site},
                           {"steered_layers", evaluation.steered_layers()},
                           {"read_layer", evaluation.read_layer()},
                           {"reads_what_it_adds", evaluation.reads_what_it_adds()},
                           {"points", std::move(rows)}};
    if (recommended) {
      report["recommended"] = {{"scale", recommended->scale},
                               {"kl", recommended->divergence.kl},
                               {"kl_error", recommended->divergence.error},
                               {"kl_budget", settings.kl_budget}};
    }
    RUDDER_TRY_VOID(write_file(settings.output, to_json_text(report) + "\n"));
  }
  if (settings.plot.empty()) return {};
  PlotLine line{card.name, {}};
  for (const ScalePoint& point : points) line.points.emplace_back(point.effect, point.perplexity);
  return write_file(settings.plot,
                    svg_plot({.title = fmt::format("{}: cost of its effect", card.name),
                              .x_label = "effect (0: negative set, 1: positive set)",
                              .y_label = "perplexity without steering"},
                             {line}));
}

Result<void> evaluate(const std::string& model, const SessionSettings& settings,
                      const EvalSettings& eval_settings) {
  RUDDER_TRY(const std::vector<double> scales, parse_numbers(eval_settings.scales, "scales"));
  if (eval_settings.kl_budget > 0 && *std::ranges::max_element(scales) <= 0) {
    return fail(ErrorCode::kInvalidArgument,
                "needs a scale above 0 in the sweep: it is the largest that is tried", "kl-budget");
  }
  RUDDER_TRY(const steer::VectorCard card, steer::read_vectors_safetensors(eval_settings.vectors));
  RUDDER_TRY(ModelSession session, open_session(model, settings));
  RUDDER_TRY(const std::vector<PromptRow> prompts,
             read_prompts(session.files, eval_settings.prompts, eval_settings.chat));
  if (prompts.empty()) {
    return fail(ErrorCode::kInvalidArgument, "no prompts", eval_settings.prompts);
  }
  Evaluation evaluation(session, card);
  RUDDER_TRY_VOID(evaluation.prepare(eval_settings));
  if (evaluation.reads_what_it_adds()) {
    fmt::print(stderr,
               "warning: the effect is read at layer {}, which is steered: it contains the added "
               "vector itself. --read-layer names a later layer of the file.\n",
               evaluation.read_layer());
  }
  std::vector<ScalePoint> points;
  for (const double scale : scales) {
    RUDDER_TRY(ScalePoint point, evaluation.run(scale, prompts, eval_settings.max_tokens));
    points.push_back(std::move(point));
  }
  std::optional<ScaleLimit> recommended;
  if (eval_settings.kl_budget > 0) {
    const auto divergence_at = [&](double scale) {
      return evaluation.divergence_at(scale, prompts, eval_settings.max_tokens);
    };
    RUDDER_TRY(recommended, find_scale(*std::ranges::max_element(scales), eval_settings.kl_budget,
                                       divergence_at));
  }
  return write_report(card, evaluation, eval_settings, points, recommended);
}

}  // namespace

int vectors_eval(int argc, char** argv) {
  SessionSettings settings;
  settings.log_level = "warn";
  settings.exec.enable_steering = true;
  settings.exec.capture_memory_mb = 64;
  EvalSettings eval_settings;
  SettingsTable table;
  eval_settings.declare(table);
  settings.declare(table);
  const Result<ParsedArguments> arguments = parse_arguments(
      {"rudder vectors eval", "Sweep the scale of trained vectors: effect against perplexity.",
       "[MODEL]", 1},
      argc, argv, table);
  if (!arguments) return report_bad_arguments(arguments.error());
  if (arguments->help_shown) return 0;
  if (eval_settings.vectors.empty() || eval_settings.prompts.empty()) {
    return report_bad_arguments(
        Error{ErrorCode::kInvalidArgument, "give --vectors and --prompts", ""});
  }
  const std::string model = arguments->positionals.empty() ? "" : arguments->positionals[0];
  const Result<void> done = evaluate(model, settings, eval_settings);
  return done ? 0 : report_failure(done.error());
}

}  // namespace rudder::apps
