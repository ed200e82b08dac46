// The field `capture` of a request: what is accepted names points of the model, in order, and
// positions within the prompt, whatever its length.
#include <boost/json.hpp>
#include <optional>

#include "rudder/base/json.h"
#include "rudder/steer/capture/response_options.h"
#include "rudder/steer/capture/spec.h"
#include "steer_model.h"

namespace rudder::fuzz {
namespace {

using namespace steer::capture;  // NOLINT(google-build-using-namespace)

// The consumer `response` as far as requests see it.
class ResponseParser final : public OptionsParser {
 public:
  std::string_view name() const override { return "response"; }
  Result<std::vector<tap::CapturePattern>> option_patterns(const boost::json::object& fields,
                                                           const std::string& path) const override {
    RUDDER_TRY(const PatternAsk ask, parse_patterns(fields, path, fuzz_model().geometry));
    return ask.captured();
  }
  Result<std::shared_ptr<const ConsumerOptions>> parse_options(
      const boost::json::object& fields, const AskedRows& rows,
      const std::string& path) const override {
    const auto lookup = [](std::string_view, tap::Point) -> Result<std::vector<float>> {
      return std::vector<float>{1, -2, 0.5f, 4};
    };
    RUDDER_TRY(auto options, parse_response_options(fields, rows, path,
                                                    {.geometry = fuzz_model().geometry,
                                                     .lookup = lookup,
                                                     .dictionaries = {},
                                                     .has_lens = true,
                                                     .max_lens_top = 20}));
    return std::shared_ptr<const ConsumerOptions>(std::move(options));
  }
};

// One without options.
class PlainParser final : public OptionsParser {
 public:
  std::string_view name() const override { return "plain"; }
  Result<std::shared_ptr<const ConsumerOptions>> parse_options(
      const boost::json::object& fields, const AskedRows&, const std::string& path) const override {
    if (!fields.empty()) return fail(ErrorCode::kInvalidArgument, "no such option", path);
    return std::make_shared<const ConsumerOptions>();
  }
};

const SpecContext& fuzz_context() {
  static const ResponseParser response;
  static const PlainParser plain;
  static const SpecContext context = {
      fuzz_model().geometry, fuzz_model().limits, {&response, &plain}};
  return context;
}

void require_spec(const CaptureSpec& spec) {
  const auto& points = spec.set->points;
  const auto& patterns = spec.set->patterns;
  RUDDER_CHECK((points.empty() && patterns.empty()) == spec.asks.empty() &&
               spec.offsets.size() == points.size() + patterns.size());
  for (size_t i = 0; i < patterns.size(); ++i) {
    const tap::CapturePattern& pattern = patterns[i];
    const int32_t count = fuzz_model().geometry.heads.at(static_cast<size_t>(pattern.layer)).count;
    RUDDER_CHECK(pattern.keys > 0 && !pattern.heads.empty() && pattern.heads.front() >= 0 &&
                 pattern.heads.back() < count && std::ranges::is_sorted(pattern.heads));
    RUDDER_CHECK(i == 0 || patterns[i - 1].layer < pattern.layer);
  }
  for (size_t i = 0; i < points.size(); ++i) {
    RUDDER_CHECK(fuzz_context().geometry.has(points[i].point));
    if (i == 0) continue;
    const auto order = [](const tap::CapturePoint& p) {
      return std::pair(p.point.index(), p.after);
    };
    RUDDER_CHECK(order(points[i - 1]) < order(points[i]) && spec.offsets[i - 1] < spec.offsets[i]);
  }
  for (const Ask& ask : spec.asks) {
    RUDDER_CHECK(!ask.points.empty() || !ask.patterns.empty());
    for (const int32_t point : ask.points) {
      RUDDER_CHECK(point >= 0 && static_cast<size_t>(point) < points.size());
    }
  }
}

void require_ranges(const Result<std::vector<tap::PositionRange>>& ranges) {
  if (!ranges) return require_error(ranges.error(), {ErrorCode::kInvalidArgument});
  int32_t end = -1;
  for (const tap::PositionRange& range : *ranges) {
    RUDDER_CHECK(range.begin > end && range.end > range.begin, "{} to {}", range.begin, range.end);
    end = range.end;
  }
}

}  // namespace

void fuzz_capture(std::string_view input) {
  const auto field = parse_json(input, "capture");
  if (!field) return;
  auto asks = parse_asks(*field, "capture", fuzz_context());
  if (!asks)
    return require_error(asks.error(), {ErrorCode::kInvalidArgument, ErrorCode::kNotFound},
                         "capture");
  const auto spec = combine(std::move(*asks), std::nullopt, fuzz_context());
  if (!spec) return require_error(spec.error(), {ErrorCode::kInvalidArgument}, "capture");
  require_spec(*spec);
  for (const int32_t prompt_len : {1, 2, 17, 100'000}) {
    require_ranges(captured_ranges(*spec, prompt_len));
    const auto fits = check_pattern_keys(*spec, prompt_len, prompt_len + 8);
    if (!fits) require_error(fits.error(), {ErrorCode::kInvalidArgument}, "capture");
    for (const Ask& ask : spec->asks) require_ranges(asked_ranges(ask, prompt_len));
  }
}

}  // namespace rudder::fuzz
