#include "rudder/steer/capture/spec.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>

#include "rudder/base/check.h"
#include "rudder/steer/capture/pattern_ask.h"
#include "rudder/steer/invalid_field.h"
#include "rudder/steer/layers.h"
#include "rudder/steer/streams.h"

namespace rudder::steer::capture {
namespace {

namespace json = boost::json;

std::string_view to_view(const json::string& text) {
  return {text.data(), text.size()};
}

// A whole number in [low, high]; 10.0 counts as one.
Result<int32_t> read_int(const json::value& value, int64_t low, int64_t high,
                         const std::string& path) {
  double number = 0;
  if (const int64_t* whole = value.if_int64()) {
    if (*whole >= low && *whole <= high) return static_cast<int32_t>(*whole);
  } else if (value.is_double()) {
    number = value.get_double();
    if (number == std::floor(number) && number >= static_cast<double>(low) &&
        number <= static_cast<double>(high)) {
      return static_cast<int32_t>(number);
    }
  }
  return invalid_field(fmt::format("must be a whole number from {} to {}", low, high), path);
}

class SiteParser {
 public:
  SiteParser(const tap::Geometry& geometry, bool after) : geometry_(geometry), after_(after) {}

  Result<void> add_sites(const json::value& sites, const std::string& path) {
    const json::object* object = sites.if_object();
    if (object == nullptr || object->empty()) {
      return invalid_field("must be an object of at least one site: {\"resid_post\": [10]}", path);
    }
    for (const auto& [key, layers] : *object) {
      const std::string at = fmt::format("{}.{}", path, std::string_view(key));
      Result<tap::SiteRef> site = tap::parse_site(std::string_view(key));
      if (!site) return invalid_field(site.error().message, at);
      if (site->layer >= 0) {
        RUDDER_TRY_VOID(one_layer(*site, layers, at));
      } else {
        RUDDER_TRY_VOID(add_layers(site->site, layers, at));
      }
    }
    return {};
  }

  Result<std::vector<tap::CapturePoint>> take(const std::string& path) {
    std::ranges::sort(points_, {}, [](const tap::CapturePoint& p) { return p.point.index(); });
    const auto twice = std::ranges::adjacent_find(points_);
    if (twice != points_.end()) {
      return invalid_field(fmt::format("names layer {} of {} twice", twice->point.layer,
                                       tap::site_name(twice->point.site)),
                           path);
    }
    return std::move(points_);
  }

 private:
  // "resid_post.10": the layer is in the name, the value can only say yes.
  Result<void> one_layer(const tap::SiteRef& site, const json::value& value,
                         const std::string& path) {
    const bool yes = (value.is_bool() && value.get_bool()) ||
                     (value.is_string() && to_view(value.get_string()) == "all");
    if (!yes) return invalid_field("the name has a layer: its value must be true", path);
    return add({site.layer, site.site}, path);
  }

  Result<void> add_layers(tap::Site site, const json::value& value, const std::string& path) {
    const bool is_final = site == tap::Site::kFinalNorm && value.is_bool() && value.get_bool();
    RUDDER_TRY(const std::vector<int32_t> layers,
               read_layers(is_final ? json::value("all") : value, site, geometry_, path));
    for (const int32_t layer : layers) RUDDER_TRY_VOID(add({layer, site}, path));
    return {};
  }

  Result<void> add(tap::Point point, const std::string& path) {
    const Result<void> known = geometry_.check(point);
    if (!known) return invalid_field(known.error().message, path);
    if (points_.size() >= static_cast<size_t>(geometry_.num_points())) {
      return invalid_field("names more points than the model has", path);
    }
    points_.push_back({point, after_});
    return {};
  }

  const tap::Geometry& geometry_;
  bool after_;
  std::vector<tap::CapturePoint> points_;
};

Result<void> parse_positions(const json::value& value, const std::string& path, Ask& ask) {
  if (const json::array* list = value.if_array()) {
    if (list->empty()) return invalid_field("names no position", path);
    if (list->size() > kMaxListedPositions) {
      return invalid_field(
          fmt::format("{} positions, the limit is {}", list->size(), kMaxListedPositions), path);
    }
    ask.positions = Positions::kListed;
    for (size_t i = 0; i < list->size(); ++i) {
      RUDDER_TRY(const int32_t position, read_int((*list)[i], -tap::kNoEnd, tap::kNoEnd - 1,
                                                  fmt::format("{}[{}]", path, i)));
      ask.listed.push_back(position);
    }
    return {};
  }
  if (const json::object* object = value.if_object()) {
    if (object->size() != 1 || !object->contains("from")) {
      return invalid_field(R"(an object has "from" alone: {"from": 3})", path);
    }
    ask.positions = Positions::kFrom;
    RUDDER_TRY(const int32_t from,
               read_int(object->at("from"), -tap::kNoEnd, tap::kNoEnd - 1, path + ".from"));
    ask.listed = {from};
    return {};
  }
  static constexpr std::pair<std::string_view, Positions> kNames[] = {
      {"last_prompt", Positions::kLastPrompt},
      {"all_prompt", Positions::kAllPrompt},
      {"all_generated", Positions::kAllGenerated},
      {"all", Positions::kAll}};
  for (const auto& [name, positions] : kNames) {
    if (value.is_string() && to_view(value.get_string()) == name) {
      ask.positions = positions;
      return {};
    }
  }
  return invalid_field(
      R"(must be last_prompt, all_prompt, all_generated, all, a list of positions or {"from": n})",
      path);
}

Result<bool> parse_point(const json::value& value, const std::string& path) {
  const std::string_view text =
      value.is_string() ? to_view(value.get_string()) : std::string_view();
  if (text == "pre") return false;
  if (text == "post") return true;
  return invalid_field(R"(must be "pre" (before this site's own ops) or "post" (after them))",
                       path);
}

bool before(const tap::CapturePoint& a, const tap::CapturePoint& b) {
  const int32_t left = a.point.index();
  const int32_t right = b.point.index();
  return left != right ? left < right : a.after < b.after;
}

// "stream": rows at residual points are those of one stream, where the residual has several. Rows
// that options of the consumer need are whole.
Result<std::optional<int32_t>> parse_stream(const json::object& object,
                                            const std::vector<tap::CapturePoint>& points,
                                            const std::vector<tap::CapturePoint>& of_options,
                                            const tap::Geometry& geometry,
                                            const std::string& path) {
  const json::value* const value = object.if_contains("stream");
  if (value == nullptr) return std::optional<int32_t>();
  const std::string at = path + ".stream";
  const auto is_of_residual = [](const tap::CapturePoint& p) {
    return tap::is_residual(p.point.site);
  };
  std::vector<tap::Point> streamed;
  for (const tap::CapturePoint& p : points) {
    if (is_of_residual(p)) streamed.push_back(p.point);
  }
  RUDDER_TRY(const StreamChoice choice, read_stream(*value, streamed, geometry, at));
  if (streamed.empty()) {
    return invalid_field("is of resid_pre, resid_mid and resid_post: sites name none of them", at);
  }
  if (choice.stream == StreamChoice::kAll || geometry.residual.streams == 1) {
    return std::optional<int32_t>();
  }
  if (std::ranges::any_of(of_options, is_of_residual)) {
    return invalid_field("the rows that lens and dictionary read are whole", at);
  }
  return std::optional(choice.stream);
}

Result<ParsedAsk> parse_ask(const json::object& object, int32_t consumer, const std::string& path,
                            const SpecContext& context) {
  ParsedAsk parsed;
  parsed.ask.consumer = consumer;
  parsed.ask.path = path;
  bool after = false;
  if (const json::value* point = object.if_contains("point")) {
    RUDDER_TRY(after, parse_point(*point, path + ".point"));
  }
  json::object options(object);
  for (const char* known : {"sites", "positions", "point", "stream"}) options.erase(known);
  const OptionsParser& parser = *context.consumers[static_cast<size_t>(consumer)];
  RUDDER_TRY(const std::vector<tap::CapturePoint> more, parser.option_points(options, after, path));
  RUDDER_TRY(parsed.ask.patterns, parser.option_patterns(options, path));
  if (!parsed.ask.patterns.empty() && !context.limits.patterns) {
    return fail(ErrorCode::kUnsupported,
                "the backend of this server captures no attention patterns", path + ".patterns");
  }
  const json::value* sites = object.if_contains("sites");
  if (sites == nullptr && more.empty() && !parsed.ask.patterns.empty() &&
      object.contains("point")) {
    return invalid_field("says nothing of patterns: no op works on them", path + ".point");
  }
  if (sites == nullptr && more.empty() && parsed.ask.patterns.empty())
    return invalid_field("is required", path + ".sites");
  if (sites != nullptr) {
    SiteParser site_parser(context.geometry, after);
    RUDDER_TRY_VOID(site_parser.add_sites(*sites, path + ".sites"));
    RUDDER_TRY(parsed.points, site_parser.take(path + ".sites"));
  }
  RUDDER_TRY(parsed.ask.stream, parse_stream(object, parsed.points, more, context.geometry, path));
  if (const json::value* positions = object.if_contains("positions")) {
    RUDDER_TRY_VOID(parse_positions(*positions, path + ".positions", parsed.ask));
  }
  AskedRows rows{.points = parsed.points, .widths = {}};
  for (const tap::CapturePoint& point : parsed.points) {
    rows.widths.push_back(asked_width(parsed.ask, point.point, context.geometry));
  }
  RUDDER_TRY(parsed.ask.options, parser.parse_options(options, rows, path));
  parsed.points.insert(parsed.points.end(), more.begin(), more.end());
  std::ranges::sort(parsed.points, before);
  parsed.points.erase(std::unique(parsed.points.begin(), parsed.points.end()), parsed.points.end());
  return parsed;
}

std::vector<tap::PositionRange> merge(std::vector<tap::PositionRange> ranges) {
  std::ranges::sort(ranges, {}, &tap::PositionRange::begin);
  std::vector<tap::PositionRange> merged;
  for (const tap::PositionRange& range : ranges) {
    if (range.begin >= range.end) continue;
    if (!merged.empty() && range.begin <= merged.back().end) {
      merged.back().end = std::max(merged.back().end, range.end);
    } else {
      merged.push_back(range);
    }
  }
  return merged;
}

// At a field that makes the records of these asks long.
std::string long_field(const std::vector<ParsedAsk>& asks) {
  if (asks.empty()) return "stop_when";
  const ParsedAsk& last = asks.back();
  return last.ask.path + (last.ask.patterns.empty() ? ".sites" : ".patterns");
}

}  // namespace

Result<std::vector<tap::CapturePattern>> OptionsParser::option_patterns(
    const json::object& fields, const std::string& path) const {
  if (!fields.contains("patterns")) return std::vector<tap::CapturePattern>();
  return invalid_field(
      fmt::format("attention patterns go to the consumer response alone, not to {}", name()),
      path + ".patterns");
}

Result<void> check_pattern_keys(const CaptureSpec& spec, int32_t prompt_len, int32_t max_len) {
  for (const Ask& ask : spec.asks) {
    if (ask.patterns.empty() || ask.by_operator) continue;  // what the operator asks is not told
    RUDDER_TRY(const std::vector<tap::PositionRange> ranges, asked_ranges(ask, prompt_len));
    const int32_t needed = ranges.empty() ? 0 : std::min(ranges.back().end, max_len - 1);
    const int32_t keys = std::ranges::min(ask.patterns, {}, &tap::CapturePattern::keys).keys;
    if (needed <= keys) continue;
    return invalid_field(
        fmt::format("a row may have {} keys, and a captured position {} (max_tokens counts, too)",
                    keys, needed),
        ask.path + ".patterns.keys");
  }
  return {};
}

int32_t asked_width(const Ask& ask, tap::Point point, const tap::Geometry& geometry) {
  return ask.stream && tap::is_residual(point.site) ? geometry.parts(point).dim
                                                    : geometry.width(point);
}

Result<std::vector<tap::PositionRange>> asked_ranges(const Ask& ask, int32_t prompt_len) {
  switch (ask.positions) {
    case Positions::kLastPrompt:
      return std::vector<tap::PositionRange>{{prompt_len - 1, prompt_len}};
    case Positions::kAllPrompt:
      return std::vector<tap::PositionRange>{{0, prompt_len}};
    case Positions::kAllGenerated:
      return std::vector<tap::PositionRange>{{prompt_len, tap::kNoEnd}};
    case Positions::kAll:
      return std::vector<tap::PositionRange>{{0, tap::kNoEnd}};
    case Positions::kFrom: {
      const int32_t from = ask.listed[0] < 0 ? prompt_len + ask.listed[0] : ask.listed[0];
      if (from >= 0) return std::vector<tap::PositionRange>{{from, tap::kNoEnd}};
      return invalid_field(fmt::format("{} of a prompt of {} tokens", ask.listed[0], prompt_len),
                           ask.path + ".positions.from");
    }
    case Positions::kListed:
      break;
  }
  std::vector<tap::PositionRange> ranges;
  ranges.reserve(ask.listed.size());
  for (size_t i = 0; i < ask.listed.size(); ++i) {
    const int32_t listed = ask.listed[i];
    const int32_t position = listed < 0 ? prompt_len + listed : listed;
    if (position < 0) {
      return invalid_field(fmt::format("{} of a prompt of {} tokens", listed, prompt_len),
                           fmt::format("{}.positions[{}]", ask.path, i));
    }
    ranges.push_back({position, position + 1});
  }
  return merge(std::move(ranges));
}

Result<std::vector<tap::PositionRange>> captured_ranges(const CaptureSpec& spec,
                                                        int32_t prompt_len) {
  std::vector<tap::PositionRange> all;
  for (const Ask& ask : spec.asks) {
    RUDDER_TRY(const std::vector<tap::PositionRange> ranges, asked_ranges(ask, prompt_len));
    all.insert(all.end(), ranges.begin(), ranges.end());
  }
  if (spec.stop_when) all.push_back({prompt_len, tap::kNoEnd});
  return merge(std::move(all));
}

bool contains(const std::vector<tap::PositionRange>& ranges, int32_t position) {
  const auto after = std::ranges::upper_bound(ranges, position, {}, &tap::PositionRange::begin);
  return after != ranges.begin() && position < std::prev(after)->end;
}

Result<std::vector<ParsedAsk>> parse_asks(const json::value& field, const std::string& path,
                                          const SpecContext& context) {
  const json::object* object = field.if_object();
  if (object == nullptr)
    return invalid_field("must be an object: {consumer: {\"sites\": ...}}", path);
  std::vector<ParsedAsk> asks;
  for (const auto& [name, value] : *object) {
    const std::string at = fmt::format("{}.{}", path, std::string_view(name));
    const auto found =
        std::ranges::find(context.consumers, std::string_view(name), &OptionsParser::name);
    if (found == context.consumers.end()) {
      std::vector<std::string_view> known;
      known.reserve(context.consumers.size());
      for (const OptionsParser* consumer : context.consumers) known.push_back(consumer->name());
      return invalid_field(
          fmt::format("unknown consumer: this server has {}", fmt::join(known, ", ")), at);
    }
    const json::object* fields = value.if_object();
    if (fields == nullptr) return invalid_field("must be an object", at);
    const auto number = static_cast<int32_t>(found - context.consumers.begin());
    RUDDER_TRY(ParsedAsk ask, parse_ask(*fields, number, at, context));
    asks.push_back(std::move(ask));
  }
  return asks;
}

Result<CaptureSpec> combine(std::vector<ParsedAsk> asks, std::optional<StopWhen> stop_when,
                            const SpecContext& context) {
  auto set = std::make_shared<tap::CaptureSet>();
  if (stop_when) set->points.push_back(stop_when->watch.point);
  for (const ParsedAsk& ask : asks) {
    set->points.insert(set->points.end(), ask.points.begin(), ask.points.end());
  }
  std::ranges::sort(set->points, before);
  set->points.erase(std::unique(set->points.begin(), set->points.end()), set->points.end());

  std::vector<tap::CapturePattern> patterns;
  for (const ParsedAsk& ask : asks) {
    patterns.insert(patterns.end(), ask.ask.patterns.begin(), ask.ask.patterns.end());
  }
  set->patterns = merge_patterns(std::move(patterns));

  CaptureSpec spec;
  const int64_t elements = tap::record_elements(*set, context.geometry, &spec.offsets);
  if (elements > context.limits.capture_elements) {
    return invalid_field(
        fmt::format("the rows of one token have {} elements, this server's buffer {}", elements,
                    context.limits.capture_elements),
        long_field(asks));
  }
  for (ParsedAsk& ask : asks) {
    for (const tap::CapturePoint& point : ask.points) {
      const auto at = std::ranges::lower_bound(set->points, point, before);
      ask.ask.points.push_back(static_cast<int32_t>(at - set->points.begin()));
    }
    spec.asks.push_back(std::move(ask.ask));
  }
  if (stop_when) {
    const tap::CapturePoint& point = stop_when->watch.point;
    const auto at = std::ranges::lower_bound(set->points, point, before);
    spec.stop_offset = spec.offsets[static_cast<size_t>(at - set->points.begin())];
    spec.stop_width = context.geometry.width(point.point);
    spec.stop_dtype = context.geometry.dtype_at(point.point);
  }
  spec.set = std::move(set);
  spec.stop_when = std::move(stop_when);
  return spec;
}

}  // namespace rudder::steer::capture
