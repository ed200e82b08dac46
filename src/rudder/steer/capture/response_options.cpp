#include "rudder/steer/capture/response_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <cmath>

#include "rudder/steer/dot.h"
#include "rudder/steer/heads.h"
#include "rudder/steer/invalid_field.h"
#include "rudder/steer/layers.h"
#include "rudder/steer/streams.h"
#include "rudder/steer/vectors.h"

namespace rudder::steer::capture {
namespace {

namespace json = boost::json;

constexpr size_t kMaxProbes = 256;
// Bound over all probes at all points: a name is short, but the vector behind it is not.
constexpr int64_t kMaxProbeNumbers = int64_t{1} << 22;

// That name rows of their own.
constexpr std::array<std::string_view, 6> kOwnOptions = {"lens",  "patterns", "dictionary",
                                                         "layer", "top",      "features"};
constexpr std::string_view kHeads = "heads";  // is read first: it says how wide rows are

class ResponseOptionsReader {
 public:
  ResponseOptionsReader(const AskedRows& rows, std::string path, const ResponseContext& context)
      : points_(rows.points),
        widths_(rows.widths),
        path_(std::move(path)),
        context_(context),
        geometry_(context.geometry),
        lookup_(context.lookup) {}

  Result<std::shared_ptr<const ResponseOptions>> read(const json::object& fields) {
    bool has_values = false;
    if (const json::value* heads = fields.if_contains("heads")) {
      RUDDER_TRY_VOID(read_heads_field(*heads, path_ + ".heads"));
    }
    for (const auto& [key, value] : fields) {
      const std::string at = fmt::format("{}.{}", path_, std::string_view(key));
      if (key == "values") {
        has_values = true;
        RUDDER_TRY_VOID(read_values(value, at));
      } else if (key == "dtype") {
        RUDDER_TRY_VOID(read_dtype(value, at));
      } else if (key == "probes") {
        RUDDER_TRY_VOID(read_probes(value, at));
      } else if (key == "measure") {
        RUDDER_TRY_VOID(read_measure(value, at));
      } else if (std::string_view(key) != kHeads &&
                 std::ranges::find(kOwnOptions, std::string_view(key)) == kOwnOptions.end()) {
        return invalid_field(
            "unknown field: heads, values, dtype, probes, measure, lens, patterns and dictionary "
            "(with layer, top or features) are known",
            at);
      }
    }
    options_->points = points_;
    RUDDER_TRY(options_->lens, parse_lens(fields, path_, context_));
    RUDDER_TRY(options_->features,
               parse_feature_ask(fields, path_, context_.dictionaries, context_.features.get()));
    RUDDER_TRY(options_->patterns, parse_patterns(fields, path_, geometry_));
    if (points_.empty() && (has_values || !options_->probes.empty())) {
      return invalid_field("is required: values and probes are of its rows", path_ + ".sites");
    }
    if (!has_values) options_->rows = options_->probes.empty() && !points_.empty();
    if (wants_probes_ && options_->probes.empty()) {
      return invalid_field("is required", path_ + ".probes");
    }
    return std::shared_ptr<const ResponseOptions>(options_);
  }

 private:
  // Of the points at attn_z; the rows of others are whole.
  Result<void> read_heads_field(const json::value& value, const std::string& path) {
    std::vector<tap::Point> with_heads;
    for (const tap::CapturePoint& point : points_) {
      if (point.point.site == tap::Site::kAttnZ) with_heads.push_back(point.point);
    }
    if (with_heads.empty()) return invalid_field("sites do not name attn_z", path);
    RUDDER_TRY(std::vector<PartList> heads, read_heads(value, with_heads, geometry_, path));
    options_->heads.resize(points_.size());
    for (size_t i = 0, next = 0; i < points_.size(); ++i) {
      if (points_[i].point.site == tap::Site::kAttnZ) options_->heads[i] = heads[next++];
    }
    return {};
  }

  int32_t width(size_t point) const {
    if (options_->heads.empty() || options_->heads[point].empty()) return widths_[point];
    return PartRows::width(options_->heads[point], geometry_.parts(points_[point].point));
  }

  Result<void> read_values(const json::value& value, const std::string& path) {
    const json::array* list = value.if_array();
    if (list == nullptr || list->empty()) {
      return invalid_field(R"(must be a list of "rows", "means", "norms" and "probes")", path);
    }
    for (size_t i = 0; i < list->size(); ++i) {
      const json::value& entry = (*list)[i];
      if (entry == "rows") {
        options_->rows = true;
      } else if (entry == "means") {
        options_->means = true;
      } else if (entry == "norms") {
        options_->norms = true;
      } else if (entry == "probes") {
        wants_probes_ = true;
      } else {
        return invalid_field("must be rows, means, norms or probes",
                             fmt::format("{}[{}]", path, i));
      }
    }
    return {};
  }

  Result<void> read_dtype(const json::value& value, const std::string& path) {
    const std::string_view own = dtype_spelling(geometry_.dtype);
    options_->as_float32 = value == "float32";
    if (options_->as_float32 || value == json::string(own)) return {};
    return invalid_field(
        fmt::format("must be {}float32", own == "float32" ? "" : fmt::format("{} or ", own)), path);
  }

  Result<void> read_measure(const json::value& value, const std::string& path) {
    if (value == "dot") {
      options_->measure = Measure::kDot;
    } else if (value == "projection") {
      options_->measure = Measure::kProjection;
    } else if (value == "cosine") {
      options_->measure = Measure::kCosine;
    } else {
      return invalid_field("must be dot, projection or cosine", path);
    }
    return {};
  }

  Result<void> read_probes(const json::value& value, const std::string& path) {
    const json::object* object = value.if_object();
    if (object == nullptr || object->empty()) {
      return invalid_field("must be an object of at least one probe: {\"name\": [numbers]}", path);
    }
    if (object->size() > kMaxProbes) {
      return invalid_field(fmt::format("{} probes, the limit is {}", object->size(), kMaxProbes),
                           path);
    }
    int64_t num_numbers = 0;
    for (size_t i = 0; i < points_.size(); ++i) num_numbers += width(i);
    num_numbers *= static_cast<int64_t>(object->size());
    if (num_numbers > kMaxProbeNumbers) {
      return invalid_field(fmt::format("{} numbers at all points together, the limit is {}",
                                       num_numbers, kMaxProbeNumbers),
                           path);
    }
    for (const auto& [name, vector] : *object) {
      const std::string at = fmt::format("{}.{}", path, std::string_view(name));
      Probe probe{.name = std::string(name), .vectors = {}, .norms = {}};
      RUDDER_TRY(probe.vectors, read_vectors(vector, at));
      for (const std::vector<float>& values : probe.vectors) {
        probe.norms.push_back(std::sqrt(dot(values, values)));
        if (probe.norms.back() == 0) return invalid_field("the vector is zero", at);
      }
      options_->probes.push_back(std::move(probe));
    }
    return {};
  }

  // By point. What is written out is one vector for all points, or one for each.
  Result<std::vector<std::vector<float>>> read_vectors(const json::value& value,
                                                       const std::string& path) {
    Rows rows;
    if (const json::array* list = value.if_array()) {
      RUDDER_TRY(rows, read_lists(*list, path));
    } else if (const json::object* packed = value.if_object()) {
      RUDDER_TRY(rows, read_packed(*packed, path));
    } else if (!value.is_string() || !lookup_) {
      return invalid_field("must be a list of numbers, a packed vector or a registered name", path);
    }
    const auto num_points = static_cast<int64_t>(points_.size());
    if (!value.is_string() && rows.count != 1 && rows.count != num_points) {
      return invalid_field(fmt::format("{} vectors for {} points", rows.count, num_points), path);
    }
    std::vector<std::vector<float>> vectors;
    for (int64_t i = 0; i < num_points; ++i) {
      const tap::Point point = points_[static_cast<size_t>(i)].point;
      const int32_t needed = width(static_cast<size_t>(i));
      std::vector<float> values;
      if (value.is_string()) {
        auto named = lookup_(std::string_view(value.get_string()), point);
        if (!named) return fail(named.error().code, named.error().message, path);
        values = std::move(*named);
      } else {
        const Row row = rows.row(rows.count == 1 ? 0 : i);
        values.assign(row.values().begin(), row.values().end());
      }
      if (static_cast<int64_t>(values.size()) != needed) {
        return invalid_field(fmt::format("has {} numbers, a row of {}.{} {}", values.size(),
                                         tap::site_name(point.site), point.layer, needed),
                             path);
      }
      vectors.push_back(std::move(values));
    }
    return vectors;
  }

  const std::vector<tap::CapturePoint>& points_;
  const std::vector<int32_t>& widths_;
  const std::string path_;
  const ResponseContext& context_;
  const tap::Geometry& geometry_;
  const VectorLookup& lookup_;
  bool wants_probes_ = false;
  std::shared_ptr<ResponseOptions> options_ = std::make_shared<ResponseOptions>();
};

}  // namespace

Result<std::shared_ptr<const ResponseOptions>> parse_response_options(
    const json::object& fields, const AskedRows& rows, const std::string& path,
    const ResponseContext& context) {
  return ResponseOptionsReader(rows, path, context).read(fields);
}

namespace {

Result<std::optional<int32_t>> parse_lens_stream(const json::value& value,
                                                 const std::vector<int32_t>& layers,
                                                 const tap::Geometry& geometry,
                                                 const std::string& path) {
  const bool collapses = geometry.residual.collapses;
  if (value.is_string() && value.get_string() == "collapsed") {
    if (collapses) return std::optional<int32_t>();
    return invalid_field(
        "no row alone says what this model's end would read of it: a number is needed", path);
  }
  const int32_t count = geometry.residual.streams;
  const int64_t* const number = value.if_int64();
  if (number == nullptr || *number < 0 || *number >= count) {
    return invalid_field(
        fmt::format("{}a number from 0 to {} is needed: the residual of this model has {} stream{}",
                    collapses ? "\"collapsed\" or " : "", count - 1, count, count == 1 ? "" : "s"),
        path);
  }
  std::vector<tap::Point> points;
  points.reserve(layers.size());
  for (const int32_t layer : layers) points.push_back({layer, tap::Site::kResidPost});
  RUDDER_TRY(const StreamChoice choice, read_stream(value, points, geometry, path));
  return count == 1 ? std::optional<int32_t>() : std::optional(choice.stream);
}

}  // namespace

Result<LensAsk> parse_lens(const json::object& fields, const std::string& path,
                           const ResponseContext& context) {
  constexpr int32_t kLensTop = 5;  // unless the request says
  LensAsk ask;
  const json::value* field = fields.if_contains("lens");
  if (field == nullptr) return ask;
  const std::string at = path + ".lens";
  if (!context.has_lens) {
    return fail(ErrorCode::kUnsupported,
                "this server's backend does not read captured rows through the output head", at);
  }
  const json::object* object = field->if_object();
  if (object == nullptr)
    return invalid_field(R"(must be an object: {"layers": [5], "top": 5})", at);
  for (const auto& [key, value] : *object) {
    if (key == "layers" || key == "top" || key == "stream") continue;
    return invalid_field("unknown field: layers, top and stream are known",
                         fmt::format("{}.{}", at, std::string_view(key)));
  }
  const json::value* layers = object->if_contains("layers");
  if (layers == nullptr) return invalid_field("is required", at + ".layers");
  RUDDER_TRY(ask.layers,
             read_layers(*layers, tap::Site::kResidPost, context.geometry, at + ".layers"));
  std::ranges::sort(ask.layers);
  if (const json::value* stream = object->if_contains("stream")) {
    RUDDER_TRY(ask.stream,
               parse_lens_stream(*stream, ask.layers, context.geometry, at + ".stream"));
  } else if (!context.geometry.residual.collapses) {
    return invalid_field("is required: no row alone says what this model's end would read of it",
                         at + ".stream");
  }
  ask.top = std::min(kLensTop, context.max_lens_top);
  if (const json::value* top = object->if_contains("top")) {
    const int64_t* number = top->if_int64();
    if (number == nullptr || *number < 1 || *number > context.max_lens_top) {
      return invalid_field(fmt::format("must be a whole number from 1 to {}", context.max_lens_top),
                           at + ".top");
    }
    ask.top = static_cast<int32_t>(*number);
  }
  return ask;
}

}  // namespace rudder::steer::capture
