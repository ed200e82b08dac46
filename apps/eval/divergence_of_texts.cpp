#include "eval/divergence_of_texts.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <vector>

#include "report/statistics.h"
#include "rudder/base/check.h"

namespace rudder::apps {
namespace {

// Below this a rest is what rounding of log-probabilities left.
constexpr double kLeastRest = 1e-7;

Estimate mean_of(const std::vector<double>& samples) {
  const auto count = static_cast<double>(samples.size());
  if (samples.empty()) return {};
  const double mean = std::accumulate(samples.begin(), samples.end(), 0.0) / count;
  if (samples.size() < 2) return {mean, 0};
  double squares = 0;
  for (const double sample : samples) squares += (sample - mean) * (sample - mean);
  return {mean, std::sqrt(squares / (count - 1) / count)};
}

// exp of a mean, with the error that first order gives.
Estimate exp_of(const Estimate& mean) {
  const double value = std::exp(mean.value);
  return {value, value * mean.error};
}

// What `text` tells of `token` at its scored token i.
std::optional<double> told(const ScoredText& text, size_t i, int32_t token) {
  if (token == text.token_at(i)) return double{text.logprobs[i]};
  const auto tokens = text.top_tokens_at(i);
  const auto found = std::ranges::find(tokens, token);
  if (found == tokens.end()) return {};
  return double{text.top_logprobs_at(i)[static_cast<size_t>(found - tokens.begin())]};
}

struct Cells {
  double kl = 0;
  double within = 0;  // KL of the named cells among themselves
  double rest = 0;
};

Cells compare_cells(const ScoredText& reference, const ScoredText& other, size_t i) {
  double named = 0;  // probability of the named cells in the reference
  double named_other = 0;
  double sum = 0;  // of p * log(p / q) over the named cells
  const auto add = [&](int32_t token, double log_p) {
    const std::optional<double> log_q = told(other, i, token);
    if (!log_q) return;
    const double p = std::exp(log_p);
    named += p;
    named_other += std::exp(*log_q);
    sum += p * (log_p - *log_q);
  };
  const int32_t own = reference.token_at(i);
  add(own, double{reference.logprobs[i]});
  const auto tokens = reference.top_tokens_at(i);
  for (size_t k = 0; k < tokens.size(); ++k) {
    if (tokens[k] != own) add(tokens[k], double{reference.top_logprobs_at(i)[k]});
  }
  Cells cells;
  cells.rest = std::max(1 - named, kLeastRest);
  const double rest_other = std::max(1 - named_other, kLeastRest);
  cells.kl = std::max(0.0, sum + cells.rest * std::log(cells.rest / rest_other));
  cells.within = std::max(0.0, sum / named - std::log(named / named_other));
  return cells;
}

}  // namespace

Estimate perplexity_of(const ScoredText& text) {
  std::vector<double> losses;
  losses.reserve(text.num_scored());
  for (const float logprob : text.logprobs) losses.push_back(-double{logprob});
  return exp_of(mean_of(losses));
}

TextDivergence divergence_of(const ScoredText& reference, const ScoredText& other) {
  RUDDER_CHECK(reference.positions == other.positions && reference.tokens == other.tokens);
  RUDDER_CHECK(reference.top > 0 && other.top > 0);
  TextDivergence result;
  std::vector<double> divergences;
  std::vector<double> with_rest;
  std::vector<double> rests;
  std::vector<double> same;
  std::vector<double> log_ratios;
  for (size_t i = 0; i < reference.num_scored(); ++i) {
    const Cells cells = compare_cells(reference, other, i);
    divergences.push_back(cells.kl);
    with_rest.push_back(cells.kl + cells.rest * cells.within);
    rests.push_back(cells.rest);
    same.push_back(reference.top_tokens_at(i)[0] == other.top_tokens_at(i)[0] ? 1 : 0);
    log_ratios.push_back(double{reference.logprobs[i]} - double{other.logprobs[i]});
  }
  result.num_tokens = static_cast<int64_t>(reference.num_scored());
  result.kl = mean_of(divergences);
  result.kl_with_rest = mean_of(with_rest).value;
  result.rest = mean_of(rests).value;
  result.first_choice = mean_of(same);
  result.perplexity = perplexity_of(other);
  result.reference_perplexity = perplexity_of(reference);
  result.perplexity_ratio = exp_of(mean_of(log_ratios));
  std::ranges::sort(divergences);
  result.median = percentile(divergences, 50);
  result.percentile_99 = percentile(divergences, 99);
  result.most = divergences.empty() ? 0 : divergences.back();
  return result;
}

}  // namespace rudder::apps
