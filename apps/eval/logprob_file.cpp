#include "eval/logprob_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <optional>
#include <unordered_set>
#include <utility>

#include "rudder/weights/mapped_file.h"
#include "rudder/weights/safetensors.h"
#include "rudder/weights/safetensors_writer.h"

namespace rudder::apps {
namespace {

using tensor::DType;
using weights::TensorShape;

constexpr const char* kTokens = "tokens";
constexpr const char* kPositions = "positions";
constexpr const char* kLogprobs = "logprobs";
constexpr const char* kTopTokens = "top_tokens";
constexpr const char* kTopLogprobs = "top_logprobs";
// A log-probability is a logit less the sum of all in float32: a certain token may come out above
// 0.
constexpr float kMostLogprob = 1e-3F;
constexpr double kMostProbability = 1 + 1e-2;  // of the likeliest tokens together

class LogprobReader {
 public:
  LogprobReader(const weights::Safetensors& file, std::string path)
      : file_(file), path_(std::move(path)) {}

  Result<ScoredText> read() const;

 private:
  tl::unexpected<Error> corrupt(std::string_view field, std::string message) const {
    return fail(ErrorCode::kCorruptFile, std::move(message), fmt::format("{}: {}", path_, field));
  }
  std::optional<std::string_view> find(std::string_view key) const;
  Result<std::string_view> text(std::string_view key) const;
  Result<int32_t> number(std::string_view key) const;
  template <typename T>
  Result<std::vector<T>> numbers(const char* name, DType dtype, size_t rank) const;
  Result<WindowSettings> windows() const;
  Result<void> check_metadata() const;
  Result<void> check_text(const ScoredText& text) const;
  Result<void> check_row(const ScoredText& text, size_t i) const;

  const weights::Safetensors& file_;
  const std::string path_;
};

std::optional<std::string_view> LogprobReader::find(std::string_view key) const {
  for (const auto& [name, value] : file_.metadata) {
    if (name == key) return value;
  }
  return {};
}

Result<std::string_view> LogprobReader::text(std::string_view key) const {
  if (const auto value = find(key)) return *value;
  return corrupt(key, "the file's metadata do not have it");
}

Result<int32_t> LogprobReader::number(std::string_view key) const {
  RUDDER_TRY(const std::string_view value, text(key));
  int32_t number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error == std::errc() && end == value.data() + value.size()) return number;
  return corrupt(key, fmt::format("'{}' is no whole number", value.substr(0, 40)));
}

template <typename T>
Result<std::vector<T>> LogprobReader::numbers(const char* name, DType dtype, size_t rank) const {
  const weights::TensorEntry* tensor = file_.find(name);
  if (tensor == nullptr) return corrupt(name, "the file has no such tensor");
  if (tensor->dtype != dtype || tensor->shape.rank != rank) {
    return corrupt(
        name, fmt::format("must be {} with {} extents, is {} {}", tensor::dtype_name(dtype), rank,
                          tensor::dtype_name(tensor->dtype), tensor->shape.to_string()));
  }
  std::vector<T> values(tensor->bytes() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), file_.bytes_of(*tensor).data(), tensor->bytes());
  return values;
}

Result<void> LogprobReader::check_metadata() const {
  const auto format = find("format");
  if (!format || *format != kLogprobFileFormat) {
    return corrupt("format", "it is no file of log-probabilities that rudder eval wrote");
  }
  RUDDER_TRY(const int32_t version, number("version"));
  if (version != kLogprobFileVersion) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("is {}; {} is read", version, kLogprobFileVersion),
                path_ + ": version");
  }
  constexpr std::string_view kKeys[] = {"format", "version", "model", "windows",
                                        "window", "stride",  "prefix"};
  for (const auto& [name, value] : file_.metadata) {
    if (std::ranges::find(kKeys, name) == std::end(kKeys)) {
      return corrupt(name, "is no field of this format");
    }
  }
  constexpr std::string_view kTensors[] = {kTokens, kPositions, kLogprobs, kTopTokens,
                                           kTopLogprobs};
  for (const weights::TensorEntry& tensor : file_.tensors) {
    if (std::ranges::find(kTensors, tensor.name) == std::end(kTensors)) {
      return corrupt(tensor.name, "is no tensor of this format");
    }
  }
  return {};
}

Result<WindowSettings> LogprobReader::windows() const {
  WindowSettings settings;
  RUDDER_TRY(const std::string_view name, text("windows"));
  const Result<WindowKind> kind = parse_window_kind(name);
  if (!kind) return corrupt("windows", kind.error().message);
  settings.kind = *kind;
  RUDDER_TRY(settings.window, number("window"));
  RUDDER_TRY(settings.stride, number("stride"));
  return settings;
}

Result<void> LogprobReader::check_row(const ScoredText& text, size_t i) const {
  const auto is_logprob = [](float value) { return std::isfinite(value) && value <= kMostLogprob; };
  if (!is_logprob(text.logprobs[i])) {
    return corrupt(kLogprobs, fmt::format("[{}] is {}", i, text.logprobs[i]));
  }
  const auto logprobs = text.top_logprobs_at(i);
  double sum = 0;
  for (size_t k = 0; k < logprobs.size(); ++k) {
    if (!is_logprob(logprobs[k]) || (k > 0 && logprobs[k] > logprobs[k - 1])) {
      return corrupt(kTopLogprobs, fmt::format("[{}, {}] is {}", i, k, logprobs[k]));
    }
    sum += std::exp(double{logprobs[k]});
  }
  if (sum > kMostProbability) {
    return corrupt(kTopLogprobs, fmt::format("[{}] are of {} together", i, sum));
  }
  std::unordered_set<int32_t> seen;
  for (const int32_t token : text.top_tokens_at(i)) {
    if (token < 0 || !seen.insert(token).second) {
      return corrupt(kTopTokens, fmt::format("[{}] has {}", i, token));
    }
  }
  return {};
}

Result<void> LogprobReader::check_text(const ScoredText& text) const {
  for (size_t i = 0; i < text.tokens.size(); ++i) {
    if (text.tokens[i] < 0) return corrupt(kTokens, fmt::format("[{}] is {}", i, text.tokens[i]));
  }
  const auto num_tokens = static_cast<int32_t>(std::min<size_t>(text.tokens.size(), INT32_MAX));
  const auto windows = make_windows(num_tokens, text.windows, text.prefix >= 0);
  if (!windows) return corrupt(windows.error().where, windows.error().message);
  std::vector<int32_t> positions;
  for (const TextWindow& window : *windows) {
    for (int32_t i = window.first_scored; i < window.end; ++i) positions.push_back(i);
  }
  if (text.positions != positions) {
    return corrupt(kPositions, "are not those of such windows over the tokens");
  }
  if (text.logprobs.size() != positions.size()) {
    return corrupt(kLogprobs, fmt::format("has {} numbers for {} positions", text.logprobs.size(),
                                          positions.size()));
  }
  for (size_t i = 0; i < positions.size(); ++i) RUDDER_TRY_VOID(check_row(text, i));
  return {};
}

Result<ScoredText> LogprobReader::read() const {
  RUDDER_TRY_VOID(check_metadata());
  ScoredText result;
  RUDDER_TRY(const std::string_view model, text("model"));
  result.model = model;
  RUDDER_TRY(result.windows, windows());
  RUDDER_TRY(result.prefix, number("prefix"));
  if (result.prefix < -1) return corrupt("prefix", fmt::format("is {}", result.prefix));
  RUDDER_TRY(result.tokens, numbers<int32_t>(kTokens, DType::kI32, 1));
  RUDDER_TRY(result.positions, numbers<int32_t>(kPositions, DType::kI32, 1));
  RUDDER_TRY(result.logprobs, numbers<float>(kLogprobs, DType::kF32, 1));
  RUDDER_TRY(result.top_tokens, numbers<int32_t>(kTopTokens, DType::kI32, 2));
  RUDDER_TRY(result.top_logprobs, numbers<float>(kTopLogprobs, DType::kF32, 2));
  const TensorShape& shape = file_.find(kTopTokens)->shape;
  constexpr uint64_t kMostTop = 1 << 20;
  if (shape.dims[0] != result.positions.size() || shape.dims[1] < 1 || shape.dims[1] > kMostTop) {
    return corrupt(kTopTokens, fmt::format("is {} for {} positions", shape.to_string(),
                                           result.positions.size()));
  }
  if (file_.find(kTopLogprobs)->shape != shape) {
    return corrupt(kTopLogprobs,
                   fmt::format("is {}, top_tokens {}", file_.find(kTopLogprobs)->shape.to_string(),
                               shape.to_string()));
  }
  result.top = static_cast<int32_t>(shape.dims[1]);
  RUDDER_TRY_VOID(check_text(result));
  return result;
}

}  // namespace

Result<void> write_logprobs(const ScoredText& text, const std::string& path) {
  const uint64_t scored = text.num_scored();
  const auto top = static_cast<uint64_t>(text.top);
  const std::vector<weights::TensorDecl> tensors = {
      {kTokens, DType::kI32, TensorShape::of({text.tokens.size()})},
      {kPositions, DType::kI32, TensorShape::of({scored})},
      {kLogprobs, DType::kF32, TensorShape::of({scored})},
      {kTopTokens, DType::kI32, TensorShape::of({scored, top})},
      {kTopLogprobs, DType::kF32, TensorShape::of({scored, top})}};
  const weights::Metadata metadata = {{"format", kLogprobFileFormat},
                                      {"version", fmt::format("{}", kLogprobFileVersion)},
                                      {"model", text.model},
                                      {"windows", std::string(window_kind_name(text.windows.kind))},
                                      {"window", fmt::format("{}", text.windows.window)},
                                      {"stride", fmt::format("{}", text.windows.stride)},
                                      {"prefix", fmt::format("{}", text.prefix)}};
  RUDDER_TRY(const auto writer, weights::SafetensorsWriter::create(path, tensors, metadata));
  const std::span<const std::byte> data[] = {
      std::as_bytes(std::span(text.tokens)), std::as_bytes(std::span(text.positions)),
      std::as_bytes(std::span(text.logprobs)), std::as_bytes(std::span(text.top_tokens)),
      std::as_bytes(std::span(text.top_logprobs))};
  for (size_t i = 0; i < std::size(data); ++i) RUDDER_TRY_VOID(writer->write(i, 0, data[i]));
  return writer->finish(false);
}

Result<ScoredText> read_logprobs(const std::string& path) {
  RUDDER_TRY(const auto mapped, weights::MappedFile::open(path));
  RUDDER_TRY(const weights::Safetensors file, weights::parse_safetensors(mapped->bytes(), path));
  return LogprobReader(file, path).read();
}

}  // namespace rudder::apps
