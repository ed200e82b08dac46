// rudder vectors train: runs two sets of prompts, takes what tells their activations apart, and
// writes it as files that steering loads.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "command_line.h"
#include "prompt_file.h"
#include "report/report.h"
#include "report_error.h"
#include "rudder/steer/train/vector_files.h"
#include "vectors/activations.h"
#include "vectors/vector_commands.h"
#include "vectors/vector_scale.h"

namespace rudder::apps {
namespace {

struct TrainSettings {
  std::string positive;
  std::string negative;
  std::string site = "resid_post";
  std::string layers = "all";
  std::string method = "mean-diff";
  std::string tokens = "last";
  double holdout = 0.2;
  bool chat = false;
  std::string name = "vector";
  std::string output = ".";
  bool gguf = false;
  double kl_budget = 0.25;

  void declare(SettingsTable& table) {
    table.section("vectors");
    table.add("positive", &positive,
              "Prompts that show what the vector is for: a prompt a line, or JSONL objects with "
              "prompt, prompt_ids or messages.");
    table.add(
        "negative", &negative,
        "Prompts that show the opposite, or nothing of it; for pca and pca-diff the n-th is the "
        "partner of the n-th positive one.");
    table.add("site", &site, "Where the rows are taken, and the vectors are to be added.");
    table.add("layers", &layers, "Layers: all, or a list as 4,8-12,-1. One vector each.");
    table.add_choice("method", &method, {"mean-diff", "pca", "pca-diff"},
                     "The difference of the sets' means; or the first principal component of the "
                     "pairs about their middles; or that of the pairs' differences.");
    table.add_choice("tokens", &tokens, {"last", "mean"},
                     "A prompt's row: that of its last token, or the mean over its tokens.");
    table.add("holdout", &holdout, 0.0, 0.9,
              "Share of each set that is kept for the accuracy in the card, from the end.");
    table.add("chat", &chat, "Wrap plain lines as user messages.");
    table.add("name", &name, "Of the vectors and their files.");
    table.add("output", &output, "The folder that NAME.safetensors, NAME.md and NAME.json go to.");
    table.add("kl-budget", &kl_budget, 0.0, 100.0,
              "Scale 1 of the module adds the largest part of the vectors at which all layers "
              "together, with either sign, change the next token's distribution by at most so many "
              "nats a token; 0: the whole vectors, unmeasured.");
    table.add("gguf", &gguf,
              "Also write NAME.gguf, for llama.cpp and repeng. Site resid_post only.");
  }
};

std::vector<std::vector<int32_t>> tokens_of(std::vector<PromptRow> rows) {
  std::vector<std::vector<int32_t>> prompts;
  prompts.reserve(rows.size());
  for (PromptRow& row : rows) prompts.push_back(std::move(row.prompt));
  return prompts;
}

// The first `count` rows, and those behind them.
std::pair<steer::RowSet, steer::RowSet> split(const steer::RowSet& rows, size_t count) {
  const auto middle =
      rows.values.begin() + static_cast<std::ptrdiff_t>(count * static_cast<size_t>(rows.width));
  return {steer::RowSet{rows.width, {rows.values.begin(), middle}},
          steer::RowSet{rows.width, {middle, rows.values.end()}}};
}

size_t num_trained(size_t count, double holdout) {
  const auto held = static_cast<size_t>(std::floor(static_cast<double>(count) * holdout));
  return count - std::min(held, count - 1);
}

Result<steer::TrainedVector> train_one(steer::Method method, tap::Point point,
                                       const steer::RowSet& positive, const steer::RowSet& negative,
                                       double holdout) {
  const auto [train_positive, held_positive] =
      split(positive, num_trained(positive.count(), holdout));
  const auto [train_negative, held_negative] =
      split(negative, num_trained(negative.count(), holdout));
  steer::TrainedVector vector;
  vector.point = point;
  Result<steer::Direction> found = steer::find_direction(method, train_positive, train_negative);
  if (!found) {
    return fail(found.error().code, found.error().message,
                fmt::format("{}.{}", tap::site_name(point.site), point.layer));
  }
  vector.direction = std::move(*found);
  const std::vector<float>& values = vector.direction.values;
  vector.train = steer::project(values, train_positive, train_negative);
  vector.row_norm = (steer::mean_norm(train_positive) + steer::mean_norm(train_negative)) / 2;
  vector.train_accuracy = steer::accuracy(values, vector.train, train_positive, train_negative);
  vector.held_out_accuracy = steer::accuracy(values, vector.train, held_positive, held_negative);
  return vector;
}

// Prompts that the unit is measured on: of either set, from its beginning.
std::vector<PromptRow> some_of(const std::vector<PromptRow>& positive,
                               const std::vector<PromptRow>& negative) {
  constexpr size_t kOfEach = 8;
  std::vector<PromptRow> prompts;
  for (const std::vector<PromptRow>* set : {&positive, &negative}) {
    const auto count = static_cast<std::ptrdiff_t>(std::min(kOfEach, set->size()));
    prompts.insert(prompts.end(), set->begin(), set->begin() + count);
  }
  return prompts;
}

// Finds what scale 1 of the module is to be.
Result<void> set_unit(ModelSession& session, double budget, const std::vector<PromptRow>& prompts,
                      steer::VectorCard& card) {
  constexpr int32_t kMaxTokens = 32;
  std::vector<int32_t> layers;
  layers.reserve(card.vectors.size());
  for (const steer::TrainedVector& vector : card.vectors) layers.push_back(vector.point.layer);
  const auto divergence_at = [&](double scale) -> Result<Divergence> {
    Divergence worst;
    for (const double signed_scale : {scale, -scale}) {
      RUDDER_TRY(const auto steering,
                 add_vectors(session.engine->limits(), card.vectors, layers, signed_scale));
      RUDDER_TRY(const Divergence found,
                 divergence_under(session, *steering, prompts, kMaxTokens, signed_scale));
      if (found.kl >= worst.kl) worst = found;
    }
    return worst;
  };
  RUDDER_TRY(const ScaleLimit found, find_scale(1, budget, divergence_at));
  if (found.scale == 0) {
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("no part of the vectors that was tried keeps within {} nats a token", budget),
        "kl-budget");
  }
  card.unit = {found.scale, budget, found.divergence.kl, found.divergence.error};
  return {};
}

Result<steer::VectorCard> train(ModelSession& session, const TrainSettings& settings) {
  if (settings.kl_budget > 0 && !session.engine->limits().taps.steering()) {
    return fail(ErrorCode::kInvalidArgument, "needs --enable-steering", "kl-budget");
  }
  if (session.engine->captures() == nullptr) {
    return fail(ErrorCode::kInvalidArgument, "must be more than 0: vectors come from captures",
                "capture-memory-mb");
  }
  RUDDER_TRY(const tap::SiteRef site, tap::parse_op_site(settings.site));
  if (site.layer >= 0) {
    return fail(ErrorCode::kInvalidArgument, "layers are named by --layers", "site");
  }
  RUDDER_TRY(const std::vector<int32_t> layers,
             parse_layers(settings.layers, site.site, session.engine->limits().geometry));
  const int32_t streams = session.engine->limits().geometry.residual.streams;
  if (settings.gguf && streams > 1) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("a control vector is of one row of the model's width, and the residual "
                            "of this model has {}",
                            streams),
                "gguf");
  }
  RUDDER_TRY(std::vector<PromptRow> positive,
             read_prompts(session.files, settings.positive, settings.chat));
  RUDDER_TRY(std::vector<PromptRow> negative,
             read_prompts(session.files, settings.negative, settings.chat));
  if (positive.empty()) return fail(ErrorCode::kInvalidArgument, "no prompts", settings.positive);
  if (negative.empty()) return fail(ErrorCode::kInvalidArgument, "no prompts", settings.negative);
  const size_t num_positive = num_trained(positive.size(), settings.holdout);
  const size_t num_negative = num_trained(negative.size(), settings.holdout);

  steer::VectorCard card;
  card.name = settings.name;
  card.model = session.files.name;
  card.method = *steer::find_method(settings.method);
  card.site = tap::site_name(site.site);
  card.tokens = settings.tokens;
  card.positive_file = std::filesystem::path(settings.positive).filename();
  card.negative_file = std::filesystem::path(settings.negative).filename();
  card.num_positive = static_cast<int64_t>(num_positive);
  card.num_negative = static_cast<int64_t>(num_negative);
  card.num_held_out =
      static_cast<int64_t>(positive.size() + negative.size() - num_positive - num_negative);
  const bool mean = settings.tokens == "mean";
  const std::vector<PromptRow> measured = some_of(positive, negative);
  RUDDER_TRY(const auto positive_rows,
             rows_of_prompts(session, tokens_of(std::move(positive)), site.site, layers, mean,
                             "positive prompts"));
  RUDDER_TRY(const auto negative_rows,
             rows_of_prompts(session, tokens_of(std::move(negative)), site.site, layers, mean,
                             "negative prompts"));
  for (size_t i = 0; i < layers.size(); ++i) {
    RUDDER_TRY(steer::TrainedVector vector,
               train_one(card.method, {layers[i], site.site}, positive_rows[i], negative_rows[i],
                         settings.holdout));
    card.vectors.push_back(std::move(vector));
  }
  if (settings.kl_budget > 0) {
    RUDDER_TRY_VOID(set_unit(session, settings.kl_budget, measured, card));
  }
  return card;
}

Result<void> write(const steer::VectorCard& card, const TrainSettings& settings) {
  std::error_code error;
  std::filesystem::create_directories(settings.output, error);
  if (error) return fail(ErrorCode::kIo, error.message(), settings.output);
  const std::string stem = (std::filesystem::path(settings.output) / settings.name).string();
  RUDDER_TRY_VOID(steer::write_vectors_safetensors(card, stem + ".safetensors"));
  RUDDER_TRY_VOID(write_file(stem + ".json", steer::card_json(card) + "\n"));
  RUDDER_TRY_VOID(write_file(stem + ".md", steer::card_markdown(card)));
  if (settings.gguf) RUDDER_TRY_VOID(steer::write_control_vector(card, stem + ".gguf"));
  fmt::print("{}", steer::card_markdown(card));
  return {};
}

}  // namespace

int vectors_train(int argc, char** argv) {
  SessionSettings settings;
  settings.log_level = "warn";
  settings.exec.enable_steering = true;
  settings.exec.capture_memory_mb = 64;
  TrainSettings train_settings;
  SettingsTable table;
  train_settings.declare(table);
  settings.declare(table);
  const Result<ParsedArguments> arguments = parse_arguments(
      {"rudder vectors train", "Learn steering vectors from two sets of prompts.", "[MODEL]", 1},
      argc, argv, table);
  if (!arguments) return report_bad_arguments(arguments.error());
  if (arguments->help_shown) return 0;
  if (train_settings.positive.empty() || train_settings.negative.empty()) {
    return report_bad_arguments(
        Error{ErrorCode::kInvalidArgument, "give --positive and --negative", ""});
  }
  const std::string model = arguments->positionals.empty() ? "" : arguments->positionals[0];
  Result<ModelSession> session = open_session(model, settings);
  if (!session) return report_failure(session.error());
  const Result<steer::VectorCard> card = train(*session, train_settings);
  if (!card) return report_failure(card.error());
  const Result<void> written = write(*card, train_settings);
  return written ? 0 : report_failure(written.error());
}

}  // namespace rudder::apps
