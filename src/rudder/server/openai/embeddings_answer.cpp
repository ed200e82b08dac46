// The answer of /v1/embeddings: one vector for each input, as pooled by the capture consumer
// `response`.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <vector>

#include "rudder/base/json.h"
#include "rudder/server/generation/answer_format.h"
#include "rudder/steer/capture/base64.h"

namespace rudder::server {

namespace {

void normalise(std::vector<float>& row) {
  double squares = 0;
  for (const float value : row) squares += double{value} * double{value};
  const double scale = squares > 0 ? 1 / std::sqrt(squares) : 1;
  for (float& value : row) value = static_cast<float>(double{value} * scale);
}

class EmbeddingsFormat final : public AnswerFormat {
 public:
  EmbeddingsFormat(AnswerOptions options, std::shared_ptr<const text::Tokenizer> tokenizer)
      : AnswerFormat(std::move(options), std::move(tokenizer), "list", "list") {}

  void append_events(std::string&, const ChoicePiece&) override {}  // never streamed
  std::string document(std::span<const ChoicePiece> choices, const engine::Usage& total) override;
  int64_t computed_bytes() const override;
  // The embedding as it stands in the answer.
  Result<std::string> keep_captures(const steer::capture::CaptureResults& results) const override;

 private:
  void append_whole_choice(std::string& out, const ChoicePiece& piece) const override;
};

// A number is at most a sign, 16 digits and a point, or 9 digits with an exponent.
int64_t EmbeddingsFormat::computed_bytes() const {
  constexpr int64_t kBytesPerNumber = 19;  // with its comma
  constexpr int64_t kBytesBeside = 64;     // of the object around a vector
  const int64_t numbers = options_.embedding.dimensions;
  const int64_t bytes =
      options_.embedding.as_base64 ? (numbers * 4 + 2) / 3 * 4 + 2 : numbers * kBytesPerNumber + 2;
  return options_.num_choices * (bytes + kBytesBeside);
}

Result<std::string> EmbeddingsFormat::keep_captures(
    const steer::capture::CaptureResults& results) const {
  const auto result =
      std::ranges::find(results, "response", &steer::capture::ConsumerResult::consumer);
  if (result == results.end() || result->status != steer::capture::Status::kOk) {
    return fail(ErrorCode::kOverloaded, fmt::format("the states of the input were lost: {}",
                                                    result == results.end() ? "" : result->error));
  }
  if (!result->values || result->values->means.size() != 1 ||
      result->values->means.front().layers.size() != 1) {
    return fail(ErrorCode::kInternal, "the pooled states are not there");
  }
  std::vector<float> row = result->values->means.front().to_floats();  // [hidden]
  if (!std::ranges::all_of(row, [](float value) { return std::isfinite(value); })) {
    return fail(ErrorCode::kNumerical, "the pooled states have a value that is not a number");
  }
  const EmbeddingOptions& wanted = options_.embedding;
  if (wanted.normalised && wanted.is_cut_last) normalise(row);
  row.resize(static_cast<size_t>(wanted.dimensions));
  if (wanted.normalised && !wanted.is_cut_last) normalise(row);
  std::string out;
  if (wanted.as_base64) {
    out.push_back('"');
    steer::capture::append_base64(out, std::as_bytes(std::span(row)));
    out.push_back('"');
  } else {
    fmt::format_to(std::back_inserter(out), "[{}]", fmt::join(row, ","));
  }
  return out;
}

void EmbeddingsFormat::append_whole_choice(std::string& out, const ChoicePiece& piece) const {
  fmt::format_to(std::back_inserter(out),
                 "{{\"object\":\"embedding\",\"index\":{},\"embedding\":{}}}", piece.index,
                 piece.capture_results);
}

std::string EmbeddingsFormat::document(std::span<const ChoicePiece> choices,
                                       const engine::Usage& total) {
  std::string out = "{\"object\":\"list\",\"id\":";
  append_json_string(out, options_.id);
  out += ",\"model\":";
  append_json_string(out, options_.model);
  out += ",\"data\":[";
  for (const ChoicePiece& choice : choices) {
    if (&choice != &choices.front()) out.push_back(',');
    append_whole_choice(out, choice);
  }
  fmt::format_to(std::back_inserter(out),
                 "],\"usage\":{{\"prompt_tokens\":{0},\"total_tokens\":{0}}}}}",
                 total.prompt_tokens);
  return out;
}

}  // namespace

std::unique_ptr<AnswerFormat> make_embeddings_format(
    AnswerOptions options, std::shared_ptr<const text::Tokenizer> tokenizer) {
  return std::make_unique<EmbeddingsFormat>(std::move(options), std::move(tokenizer));
}

}  // namespace rudder::server
