#include "rudder/steer/parse_watch.h"

#include <fmt/format.h>

#include <array>
#include <boost/json.hpp>
#include <span>
#include <string_view>

#include "rudder/features/dictionary.h"
#include "rudder/steer/layers.h"
#include "rudder/steer/parse_common.h"

namespace rudder::steer {
namespace {

namespace json = boost::json;

// {"site", "layer"} of `object`; the site may name its layer.
Result<tap::Point> read_point(const json::object& object, const ParseContext& context,
                              const std::string& path) {
  const std::string where = join_path(path, "layer");
  RUDDER_TRY(const tap::SiteRef ref, read_site(object, path));
  tap::Point point = {ref.layer, ref.site};
  const json::value* layer = member(object, "layer");
  if (layer != nullptr && ref.layer >= 0) {
    return invalid_field("the site names its layer already", where);
  }
  if (layer != nullptr) {
    RUDDER_TRY(point.layer, read_layer(*layer, context.model.geometry, where));
  } else if (ref.site == tap::Site::kFinalNorm) {
    point.layer = context.model.geometry.num_layers - 1;
  } else if (ref.layer < 0) {
    return invalid_field("a layer is needed", where);
  }
  RUDDER_TRY_VOID(check_point(context.model, point, where));
  return point;
}

Result<capture::Watch> read_probe(const json::value& value, const ParseContext& context,
                                  const std::string& path) {
  static constexpr std::array<std::string_view, 4> kKeys = {"vector", "site", "layer", "stream"};
  const json::object* object = value.if_object();
  if (object == nullptr) return invalid_field("an object is needed", path);
  RUDDER_TRY_VOID(check_keys(*object, kKeys, "a probe", path));
  capture::Watch watch;
  RUDDER_TRY(watch.point.point, read_point(*object, context, path));
  RUDDER_TRY(watch.vector, read_row_at(*object, watch.point.point, context, path));
  return watch;
}

Result<capture::Watch> read_watched_feature(const json::value& value, const ParseContext& context,
                                            const std::string& path) {
  static constexpr std::array<std::string_view, 3> kKeys = {"dictionary", "layer", "feature"};
  const json::object* object = value.if_object();
  if (object == nullptr) return invalid_field("an object is needed", path);
  RUDDER_TRY_VOID(check_keys(*object, kKeys, "a feature", path));
  capture::Watch watch;
  RUDDER_TRY(watch.dictionary, read_dictionary(*object, context, path));
  RUDDER_TRY(watch.feature, read_feature(*object, "feature", *watch.dictionary, path));
  watch.point.point = watch.dictionary->read;
  if (watch.dictionary->activation != features::Activation::kTopK) return watch;
  return fail(ErrorCode::kUnsupported,
              "a feature of a topk dictionary depends on all the others, which would have to be "
              "encoded for every token",
              join_path(path, "dictionary"));
}

}  // namespace

Result<capture::Watch> read_watch(const json::object& object, const ParseContext& context,
                                  const std::string& path) {
  const json::value* probe = member(object, "probe");
  const json::value* feature = member(object, "feature");
  if ((probe == nullptr) == (feature == nullptr)) {
    return invalid_field("one of \"probe\" and \"feature\" is needed", path);
  }
  if (probe != nullptr) return read_probe(*probe, context, join_path(path, "probe"));
  return read_watched_feature(*feature, context, join_path(path, "feature"));
}

Result<capture::StopWhen> parse_stop_when(const json::value& value, const std::string& path,
                                          const Model& model, const Names& names) {
  static constexpr std::array<std::string_view, 4> kKeys = {"probe", "feature", "above", "for"};
  const ParseContext context{model, names};
  const json::object* object = value.if_object();
  if (object == nullptr) return invalid_field("an object is needed", path);
  RUDDER_TRY_VOID(check_keys(*object, kKeys, "a stop", path));
  capture::StopWhen stop;
  RUDDER_TRY(stop.watch, read_watch(*object, context, path));
  RUDDER_TRY(stop.above, read_required(*object, "above", path, kMaxThreshold));
  if (const json::value* count = member(*object, "for")) {
    RUDDER_TRY(stop.count, read_int(*count, join_path(path, "for")));
  }
  if (stop.count < 1 || stop.count > kMaxStopCount) {
    return invalid_field(fmt::format("a whole number from 1 to {} is needed", kMaxStopCount),
                         join_path(path, "for"));
  }
  return stop;
}

}  // namespace rudder::steer
