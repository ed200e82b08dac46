// rudder features rank: which features of a dictionary tell two sets of prompts apart.
#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>

#include "command_line.h"
#include "features/feature_commands.h"
#include "features/prompt_features.h"
#include "prompt_file.h"
#include "report/report.h"
#include "report_error.h"
#include "rudder/base/json.h"
#include "rudder/steer/features/ranking.h"

namespace rudder::apps {
namespace {

namespace json = boost::json;

struct RankSettings {
  std::string positive;
  std::string negative;
  int32_t layer = -1;
  std::string tokens = "mean";
  double holdout = 0.2;
  bool chat = false;
  int32_t top = 10;
  std::string output;

  void declare(SettingsTable& table) {
    table.section("features");
    table.add(
        "positive", &positive,
        "Prompts that show what is looked for: a prompt a line, or JSONL objects with prompt, "
        "prompt_ids or messages.");
    table.add("negative", &negative, "Prompts that show the opposite, or nothing of it.");
    table.add("layer", &layer, -1, 100000, "Layer of a dictionary that has several.");
    table.add_choice("tokens", &tokens, {"mean", "max", "last"},
                     "A prompt's value of a feature: the mean or the largest over its tokens but "
                     "the special ones, or that of its last token.");
    table.add("holdout", &holdout, 0.0, 0.9,
              "Share of each set, from its end, that is not ranked by and tells how the ranked "
              "features do on other prompts.");
    table.add("chat", &chat, "Wrap plain lines as user messages.");
    table.add("top", &top, 1, 1000000, "Features that are shown.");
    table.add("output", &output, "File for the ranks of all features as JSON.");
  }
};

// A prompt's values, [prompts, features].
Result<steer::RowSet> pooled_features(ModelSession& session, const features::Dictionary& dictionary,
                                      std::vector<PromptRow> rows, const std::string& pool,
                                      const std::string& label) {
  std::vector<std::vector<int32_t>> prompts;
  prompts.reserve(rows.size());
  for (PromptRow& row : rows) prompts.push_back(std::move(row.prompt));
  const auto width = static_cast<size_t>(dictionary.num_features);
  steer::RowSet values{dictionary.num_features, std::vector<float>(prompts.size() * width)};
  const text::Tokenizer& tokenizer = *session.files.tokenizer;
  std::vector<size_t> counts(prompts.size());
  for (size_t i = 0; i < prompts.size(); ++i) {
    counts[i] = static_cast<size_t>(
        std::ranges::count_if(prompts[i], [&](int32_t id) { return !tokenizer.is_special(id); }));
  }
  const auto take = [&](size_t prompt, size_t token, std::span<const float> features) {
    const bool counted = pool == "last" ? token + 1 == prompts[prompt].size()
                                        : !tokenizer.is_special(prompts[prompt][token]);
    if (!counted) return;
    const auto out = std::span(values.values).subspan(prompt * width, width);
    const auto share = pool == "mean" ? 1.0f / static_cast<float>(counts[prompt]) : 1.0f;
    for (size_t j = 0; j < width; ++j) {
      out[j] = pool == "max" ? std::max(out[j], features[j]) : out[j] + share * features[j];
    }
  };
  RUDDER_TRY_VOID(encode_prompts(session, dictionary, prompts, label, take));
  return values;
}

struct SplitRows {
  steer::RowSet ranked;
  steer::RowSet held_out;
};

SplitRows split_off(const steer::RowSet& rows, double holdout) {
  const auto held =
      std::min(static_cast<size_t>(std::floor(static_cast<double>(rows.count()) * holdout)),
               rows.count() - 1);
  const auto middle =
      rows.values.end() - static_cast<std::ptrdiff_t>(held * static_cast<size_t>(rows.width));
  return {{rows.width, {rows.values.begin(), middle}}, {rows.width, {middle, rows.values.end()}}};
}

struct RankReport {
  std::vector<steer::FeatureRank> ranks;
  std::vector<steer::FeatureRank> held_out;  // by feature; empty: none are held out
};

void print_ranks(const RankReport& report, size_t top) {
  fmt::print("feature  difference   positive   negative   AUROC   held out\n");
  for (size_t i = 0; i < std::min(top, report.ranks.size()); ++i) {
    const steer::FeatureRank& rank = report.ranks[i];
    const auto feature = static_cast<size_t>(rank.feature);
    fmt::print("{:>7}  {:>10.4g}   {:>8.4g}   {:>8.4g}   {:>5.3f}   {}\n", rank.feature,
               rank.difference(), rank.positive, rank.negative, rank.auroc,
               report.held_out.empty() ? std::string("-")
                                       : fmt::format("{:>8.3f}", report.held_out[feature].auroc));
  }
}

Result<void> write_ranks(const RankReport& report, const std::string& path) {
  json::array features;
  for (const steer::FeatureRank& rank : report.ranks) {
    json::object entry = {{"feature", rank.feature},
                          {"difference", rank.difference()},
                          {"positive", rank.positive},
                          {"negative", rank.negative},
                          {"auroc", rank.auroc}};
    if (!report.held_out.empty()) {
      entry["held_out_auroc"] = report.held_out[static_cast<size_t>(rank.feature)].auroc;
    }
    features.push_back(std::move(entry));
  }
  return write_file(path, to_json_text(json::object{{"features", std::move(features)}}) + "\n");
}

Result<void> rank(ModelSession& session, const RankSettings& settings) {
  RUDDER_TRY(const auto dictionary, session_dictionary(session, settings.layer));
  RUDDER_TRY(std::vector<PromptRow> positive,
             read_prompts(session.files, settings.positive, settings.chat));
  RUDDER_TRY(std::vector<PromptRow> negative,
             read_prompts(session.files, settings.negative, settings.chat));
  if (positive.empty()) return fail(ErrorCode::kInvalidArgument, "no prompts", settings.positive);
  if (negative.empty()) return fail(ErrorCode::kInvalidArgument, "no prompts", settings.negative);
  RUDDER_TRY(const steer::RowSet positive_values,
             pooled_features(session, *dictionary, std::move(positive), settings.tokens,
                             "positive prompts"));
  RUDDER_TRY(const steer::RowSet negative_values,
             pooled_features(session, *dictionary, std::move(negative), settings.tokens,
                             "negative prompts"));
  const SplitRows of_positive = split_off(positive_values, settings.holdout);
  const SplitRows of_negative = split_off(negative_values, settings.holdout);
  RankReport report;
  report.ranks = steer::rank_features(of_positive.ranked, of_negative.ranked);
  if (of_positive.held_out.count() > 0 && of_negative.held_out.count() > 0) {
    report.held_out = steer::rank_features(of_positive.held_out, of_negative.held_out);
    std::ranges::sort(report.held_out, {}, &steer::FeatureRank::feature);
  }
  print_ranks(report, static_cast<size_t>(settings.top));
  return settings.output.empty() ? Result<void>() : write_ranks(report, settings.output);
}

}  // namespace

int features_rank(int argc, char** argv) {
  SessionSettings settings = feature_session_settings();
  RankSettings rank_settings;
  SettingsTable table;
  rank_settings.declare(table);
  settings.declare(table);
  const Result<ParsedArguments> arguments =
      parse_arguments({"rudder features rank",
                       "Find the features that tell two sets of prompts apart.", "[MODEL]", 1},
                      argc, argv, table);
  if (!arguments) return report_bad_arguments(arguments.error());
  if (arguments->help_shown) return 0;
  if (rank_settings.positive.empty() || rank_settings.negative.empty()) {
    return report_bad_arguments(
        Error{ErrorCode::kInvalidArgument, "give --positive and --negative", ""});
  }
  const std::string model = arguments->positionals.empty() ? "" : arguments->positionals[0];
  Result<ModelSession> session = open_session(model, settings);
  if (!session) return report_failure(session.error());
  const Result<void> done = rank(*session, rank_settings);
  return done ? 0 : report_failure(done.error());
}

}  // namespace rudder::apps
