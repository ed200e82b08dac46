// The answers of /v1/rerank and /v1/score. Two choices are one pair: the model's "yes", and its
// "no"; the score is the share of the first.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <numeric>
#include <vector>

#include "rudder/base/json.h"
#include "rudder/server/generation/answer_format.h"

namespace rudder::server {
namespace {

constexpr int64_t kBytesBesideText = 96;

class RerankFormat final : public AnswerFormat {
 public:
  RerankFormat(AnswerOptions options, std::shared_ptr<const text::Tokenizer> tokenizer)
      : AnswerFormat(std::move(options), std::move(tokenizer), "list", "list") {}

  void append_events(std::string&, const ChoicePiece&) override {}  // never streamed
  std::string document(std::span<const ChoicePiece> choices, const engine::Usage& total) override;
  int64_t computed_bytes() const override;

 private:
  void append_whole_choice(std::string&, const ChoicePiece&) const override {}
  void append_results(std::string& out, const std::vector<double>& scores) const;
  void append_scores(std::string& out, const std::vector<double>& scores) const;
};

int64_t RerankFormat::computed_bytes() const {
  int64_t bytes = options_.num_choices / 2 * kBytesBesideText;
  for (const std::string& text : options_.rerank.documents) bytes += 2 * std::ssize(text);
  return bytes;
}

// The best first; those that are alike in the client's order.
void RerankFormat::append_results(std::string& out, const std::vector<double>& scores) const {
  std::vector<size_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::ranges::greater(), [&](size_t i) { return scores[i]; });
  if (const auto most = static_cast<size_t>(options_.rerank.top_n);
      most > 0 && most < order.size()) {
    order.resize(most);
  }
  for (const size_t i : order) {
    if (i != order.front()) out.push_back(',');
    fmt::format_to(std::back_inserter(out), "{{\"index\":{},", i);
    if (!options_.rerank.documents.empty()) {
      out += "\"document\":{\"text\":";
      append_json_string(out, options_.rerank.documents[i]);
      out += "},";
    }
    fmt::format_to(std::back_inserter(out), "\"relevance_score\":{}}}", scores[i]);
  }
}

void RerankFormat::append_scores(std::string& out, const std::vector<double>& scores) const {
  for (size_t i = 0; i < scores.size(); ++i) {
    fmt::format_to(std::back_inserter(out), "{}{{\"index\":{},\"object\":\"score\",\"score\":{}}}",
                   i > 0 ? "," : "", i, scores[i]);
  }
}

std::string RerankFormat::document(std::span<const ChoicePiece> choices,
                                   const engine::Usage& total) {
  std::vector<double> scores;
  for (size_t i = 0; i + 1 < choices.size(); i += 2) {
    const double yes = choices[i].tokens.front().logprob;
    const double no = choices[i + 1].tokens.front().logprob;
    scores.push_back(1 / (1 + std::exp(no - yes)));
  }
  const bool is_score = options_.api == Api::kScore;
  std::string out = "{\"id\":";
  append_json_string(out, options_.id);
  out += ",\"model\":";
  append_json_string(out, options_.model);
  if (is_score) {
    fmt::format_to(std::back_inserter(out), ",\"object\":\"list\",\"created\":{},\"data\":[",
                   options_.created);
    append_scores(out, scores);
  } else {
    out += ",\"results\":[";
    append_results(out, scores);
  }
  // Both questions of a pair are the same prompt.
  fmt::format_to(std::back_inserter(out),
                 "],\"usage\":{{\"prompt_tokens\":{0},\"total_tokens\":{0}}}}}",
                 total.prompt_tokens / 2);
  return out;
}

}  // namespace

std::unique_ptr<AnswerFormat> make_rerank_format(AnswerOptions options,
                                                 std::shared_ptr<const text::Tokenizer> tokenizer) {
  return std::make_unique<RerankFormat>(std::move(options), std::move(tokenizer));
}

}  // namespace rudder::server
