// rudder vectors eval: steers a model with trained vectors over a sweep of scales, and shows what
// comes of it beside what it costs. Effect: where the generated tokens lie between the sets that
// the vectors were learned from, at a layer that reads them (0: the negative set's mean, 1: the
// positive's). Cost: perplexity of what was generated, as the model without steering sees it.
#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <charconv>
#include <cmath>
#include <mutex>
#include <optional>
#include <tuple>
#include <utility>

#include "bench/report.h"
#include "bench/svg_plot.h"
#include "command_line.h"
#include "local_client.h"
#include "prompt_file.h"
#include "report_error.h"
#include "rudder/base/json.h"
#include "rudder/base/progress.h"
#include "rudder/steer/segments.h"
#include "rudder/steer/train/vector_files.h"
#include "vectors/activations.h"
#include "vectors/vector_commands.h"

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

struct Answer {
  std::string text;
  std::vector<int32_t> tokens;
  std::vector<float> mean_row;  // of the generated tokens, at the read layer; empty: none was read
  double logprob = 0;           // of the tokens, without steering
};

Result<std::vector<double>> parse_scales(std::string_view text) {
  std::vector<double> scales;
  while (!text.empty()) {
    const std::string_view part = text.substr(0, text.find(','));
    text.remove_prefix(std::min(part.size() + 1, text.size()));
    double scale = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), scale);
    if (error != std::errc{} || end != part.data() + part.size() || !std::isfinite(scale)) {
      return fail(ErrorCode::kInvalidArgument, fmt::format("'{}' is no number", part), "scales");
    }
    scales.push_back(scale);
  }
  if (scales.empty()) return fail(ErrorCode::kInvalidArgument, "names no scale", "scales");
  return scales;
}

class Evaluation {
 public:
  Evaluation(ModelSession& session, steer::VectorCard card)
      : session_(session), card_(std::move(card)), limits_(session.engine->limits()) {}

  // Picks what is steered and what is read, and checks that they fit the model.
  Result<void> prepare(const EvalSettings& settings);
  Result<ScalePoint> run(double scale, const std::vector<PromptRow>& prompts, int32_t max_tokens);

  std::string steered_layers() const { return fmt::format("{}", fmt::join(layers_, ",")); }
  int32_t read_layer() const { return read_->point.layer; }

 private:
  Result<std::shared_ptr<const steer::Config>> config(double scale) const;
  Result<std::vector<Answer>> generate(const steer::Config& config,
                                       const std::vector<PromptRow>& prompts, int32_t max_tokens,
                                       const std::string& label);
  Result<void> score(const std::vector<PromptRow>& prompts, std::vector<Answer>& answers,
                     const std::string& label);

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

Result<std::shared_ptr<const steer::Config>> Evaluation::config(double scale) const {
  const auto model = std::make_shared<const steer::Model>(
      steer::Model{.geometry = limits_.geometry, .limits = limits_.taps, .hash_secret = {}});
  std::vector<steer::OpSpec> ops;
  for (const steer::TrainedVector& vector : card_.vectors) {
    if (std::ranges::find(layers_, vector.point.layer) == layers_.end()) continue;
    const std::vector<float>& values = vector.direction.values;
    const std::shared_ptr<float[]> buffer = std::make_shared<float[]>(values.size());
    std::ranges::copy(values, buffer.get());
    steer::OpSpec op;
    op.op = steer::OpName::kAdd;
    op.point = vector.point;
    op.vector = {buffer, 0, static_cast<int32_t>(values.size())};
    op.scale = scale;
    op.where = fmt::format("layer {}", vector.point.layer);
    ops.push_back(std::move(op));
  }
  return steer::Config::build(model, std::move(ops));
}

Result<std::vector<Answer>> Evaluation::generate(const steer::Config& config,
                                                 const std::vector<PromptRow>& prompts,
                                                 int32_t max_tokens, const std::string& label) {
  const tap::Point point = read_->point;
  RUDDER_TRY(const auto spec,
             mean_spec(session_, point.site, {point.layer}, "all_generated", "post"));
  Progress progress(label, false);
  std::mutex mutex;
  std::vector<LocalAnswer> raw(prompts.size());
  int64_t done = 0;
  {
    LocalClient client(*session_.engine);
    for (size_t i = 0; i < prompts.size(); ++i) {
      engine::RequestParams params;
      params.prompt = prompts[i].prompt;
      params.max_tokens = max_tokens;
      params.sampling.temperature = 0;
      steer::PromptShape shape;
      shape.prompt_len = static_cast<int32_t>(params.prompt.size());
      RUDDER_TRY(tap::SequenceTaps taps, steer::make_taps(config, shape));
      RUDDER_TRY(const auto lease, add_capture(*session_.engine, *spec, std::move(taps), params));
      const auto finish = [&, i](LocalAnswer&& answer) {
        std::lock_guard lock(mutex);
        raw[i] = std::move(answer);
        progress.update(++done, static_cast<int64_t>(prompts.size()));
      };
      RUDDER_TRY_VOID(client.submit(std::move(params), finish));
    }
  }
  std::vector<Answer> answers;
  for (LocalAnswer& one : raw) {
    if (one.error) return tl::unexpected<Error>(*one.error);
    RUDDER_TRY(auto rows, mean_rows(one.captures, point.site, 1));
    answers.push_back({std::move(one.text), std::move(one.tokens), std::move(rows[0]), 0});
  }
  return answers;
}

// A token's logprob is that of the raw logits, before the bias that makes it the one that is
// sampled: one request a token, whose prompt is what came before it and lies in the prefix cache.
Result<void> Evaluation::score(const std::vector<PromptRow>& prompts, std::vector<Answer>& answers,
                               const std::string& label) {
  constexpr float kForced = 100;
  Progress progress(label, false);
  std::mutex mutex;
  std::optional<Error> error;
  int64_t total = 0;
  for (const Answer& answer : answers) total += static_cast<int64_t>(answer.tokens.size());
  int64_t done = 0;
  {
    LocalClient client(*session_.engine);
    for (size_t i = 0; i < prompts.size(); ++i) {
      std::vector<int32_t> before = prompts[i].prompt;
      for (const int32_t token : answers[i].tokens) {
        engine::RequestParams params;
        params.prompt = before;
        params.max_tokens = 1;
        params.sampling.temperature = 0;
        params.sampling.num_logprobs = 0;
        params.sampling.logit_bias = {{token, kForced}};
        const auto finish = [&, i](LocalAnswer&& answer) {
          std::lock_guard lock(mutex);
          if (answer.error) error = answer.error;
          if (!answer.logprobs.empty()) answers[i].logprob += double{answer.logprobs[0]};
          progress.update(++done, total);
        };
        RUDDER_TRY_VOID(client.submit(std::move(params), finish));
        before.push_back(token);
      }
    }
  }
  if (error) return tl::unexpected<Error>(*error);
  return {};
}

Result<ScalePoint> Evaluation::run(double scale, const std::vector<PromptRow>& prompts,
                                   int32_t max_tokens) {
  RUDDER_TRY(const std::shared_ptr<const steer::Config> steering, config(scale));
  RUDDER_TRY(std::vector<Answer> answers,
             generate(*steering, prompts, max_tokens, fmt::format("scale {}", scale)));
  RUDDER_TRY_VOID(score(prompts, answers, fmt::format("perplexity at {}", scale)));
  ScalePoint point;
  point.scale = scale;
  const std::vector<float>& direction = read_->direction.values;
  const double length = steer::norm(direction);
  int64_t num_read = 0;
  double logprob = 0;
  for (Answer& answer : answers) {
    logprob += answer.logprob;
    point.num_tokens += static_cast<int64_t>(answer.tokens.size());
    point.texts.push_back(std::move(answer.text));
    if (answer.mean_row.empty()) continue;
    double along = 0;
    for (size_t k = 0; k < direction.size(); ++k) {
      along += double{direction[k]} * double{answer.mean_row[k]};
    }
    point.effect +=
        (along / length - read_->train.negative) / (read_->train.positive - read_->train.negative);
    ++num_read;
  }
  point.effect /= static_cast<double>(std::max<int64_t>(num_read, 1));
  point.perplexity =
      std::exp(-logprob / static_cast<double>(std::max<int64_t>(point.num_tokens, 1)));
  return point;
}

// Perplexity (logarithmic, upwards) against effect; a letter a scale.
std::string text_plot(const std::vector<ScalePoint>& points) {
  constexpr size_t kColumns = 60;
  constexpr size_t kLines = 14;
  const auto effect = [](const ScalePoint& point) { return point.effect; };
  const auto height = [](const ScalePoint& point) { return std::log(point.perplexity); };
  const auto range = [&](auto value) {
    const auto low = value(*std::ranges::min_element(points, {}, value));
    const auto high = value(*std::ranges::max_element(points, {}, value));
    return std::pair(low, std::max(high - low, 1e-9));
  };
  const auto [left, width] = range(effect);
  const auto [bottom, tall] = range(height);
  std::vector<std::string> grid(kLines, std::string(kColumns, ' '));
  for (size_t i = 0; i < points.size(); ++i) {
    const auto x = static_cast<size_t>((points[i].effect - left) / width * (kColumns - 1));
    const auto y = static_cast<size_t>((height(points[i]) - bottom) / tall * (kLines - 1));
    grid[kLines - 1 - y][x] = static_cast<char>('a' + static_cast<int>(i % 26));
  }
  std::string out = "perplexity\n";
  for (size_t line = 0; line < kLines; ++line) {
    const double share = static_cast<double>(kLines - 1 - line) / (kLines - 1);
    out += fmt::format("{:>9.3g} |{}\n", std::exp(bottom + share * tall), grid[line]);
  }
  out += fmt::format("{:>9} +{}\n{:>11}{:<{}.3g}{:.3g} effect\n", "", std::string(kColumns, '-'),
                     "", left, kColumns - 4, left + width);
  return out;
}

std::string report_text(const std::vector<ScalePoint>& points) {
  std::string out = "    scale   effect   perplexity   tokens\n";
  for (size_t i = 0; i < points.size(); ++i) {
    const ScalePoint& point = points[i];
    out += fmt::format("{}  {:>6.3g}   {:>6.3f}   {:>10.3f}   {:>6}\n",
                       static_cast<char>('a' + static_cast<int>(i % 26)), point.scale, point.effect,
                       point.perplexity, point.num_tokens);
  }
  return out + "\n" + text_plot(points);
}

Result<void> write_report(const steer::VectorCard& card, const Evaluation& evaluation,
                          const EvalSettings& settings, const std::vector<ScalePoint>& points) {
  fmt::print("{} at {}, layer {} steered, effect read at layer {}\n\n{}", card.name, card.site,
             evaluation.steered_layers(), evaluation.read_layer(), report_text(points));
  if (!settings.output.empty()) {
    json::array rows;
    for (const ScalePoint& point : points) {
      rows.push_back({{"scale", point.scale},
                      {"effect", point.effect},
                      {"perplexity", point.perplexity},
                      {"num_tokens", point.num_tokens},
                      {"texts", json::value_from(point.texts)}});
    }
    const json::object report = {{"vectors", card.name},
                                 {"model", card.model},
                                 {"site", card.site},
                                 {"steered_layers", evaluation.steered_layers()},
                                 {"read_layer", evaluation.read_layer()},
                                 {"points", std::move(rows)}};
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

Result<void> evaluate(const std::string& model, SessionSettings settings,
                      const EvalSettings& eval_settings) {
  RUDDER_TRY(const std::vector<double> scales, parse_scales(eval_settings.scales));
  RUDDER_TRY(const steer::VectorCard card, steer::read_vectors_safetensors(eval_settings.vectors));
  RUDDER_TRY(ModelSession session, open_session(model, settings));
  RUDDER_TRY(const std::vector<PromptRow> prompts,
             read_prompts(session.files, eval_settings.prompts, eval_settings.chat));
  if (prompts.empty()) {
    return fail(ErrorCode::kInvalidArgument, "no prompts", eval_settings.prompts);
  }
  Evaluation evaluation(session, card);
  RUDDER_TRY_VOID(evaluation.prepare(eval_settings));
  std::vector<ScalePoint> points;
  for (const double scale : scales) {
    RUDDER_TRY(ScalePoint point, evaluation.run(scale, prompts, eval_settings.max_tokens));
    points.push_back(std::move(point));
  }
  return write_report(card, evaluation, eval_settings, points);
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
