// Shared by the parsers of tiers and of elements. Internal to the room.
#pragma once

#include <boost/json/fwd.hpp>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rudder/steer/capture/kept_rows.h"
#include "rudder/steer/capture/watch.h"
#include "rudder/steer/heads.h"
#include "rudder/steer/invalid_field.h"
#include "rudder/steer/parse.h"
#include "rudder/steer/streams.h"
#include "rudder/steer/vectors.h"
#include "rudder/tap/site.h"

namespace rudder::steer {

struct ParseContext {
  const Model& model;
  const Names& names;
  capture::KeptView kept = {};  // of the request's tenant
};

// A member of `object` that is there and not null.
const boost::json::value* member(const boost::json::object& object, std::string_view key);

// Refuses keys that are not in `known`, and says which are; `what` names the object.
Result<void> check_keys(const boost::json::object& object, std::span<const std::string_view> known,
                        std::string_view what, const std::string& where);

// The point exists in the model; else an Error at `where`.
Result<void> check_point(const Model& model, tap::Point point, const std::string& where);
// Rows are as wide as the model at `point`.
Result<void> check_width(const Model& model, tap::Point point, int32_t width,
                         const std::string& where);

std::string join_path(const std::string& path, std::string_view key);  // "path.key", "key"

// Fields of an object at `path`; those that must be there are errors where they are not.
Result<std::string_view> read_text(const boost::json::object& object, std::string_view key,
                                   const std::string& path);
Result<bool> read_bool(const boost::json::object& object, std::string_view key,
                       const std::string& path);  // absent: false
Result<double> read_required(const boost::json::object& object, std::string_view key,
                             const std::string& path, double max_magnitude = kMaxMagnitude);
Result<double> read_optional(const boost::json::object& object, std::string_view key, double absent,
                             const std::string& path);
Result<tap::SiteRef> read_site(const boost::json::object& object, const std::string& path);
// "site" and "layers" of an op; the final norm is of the last layer, whether it is said or not.
Result<std::vector<tap::Point>> read_op_points(const boost::json::object& element,
                                               const ParseContext& context,
                                               const std::string& path);

// The vectors at "path": a list, lists, packed, or a name (which gives one row for each of
// `points`). One row is for all points; else there are as many rows as points, or as the caller
// says with `rows_are_axes`. With `parts`, by point, a row given as numbers is of these parts side
// by side, and one of a name is a whole row; where the parts are a stream either may be either.
struct VectorsAtPoints {
  Rows rows;               // of vectors given as numbers
  std::vector<Row> named;  // of a name: by point
  bool by_point = false;   // rows.row(i) is of point i

  Row at(size_t point) const {
    if (!named.empty()) return named[point];
    return rows.row(by_point ? static_cast<int64_t>(point) : 0);
  }
};
Result<VectorsAtPoints> read_vectors(const boost::json::value& value,
                                     std::span<const tap::Point> points, bool rows_are_axes,
                                     const ParseContext& context, const std::string& path,
                                     std::span<const PartList> parts = {});

// "vector" of `object`, as wide as the point's row. With "stream", which the object may have, it is
// a vector of that stream, 0 at the others.
Result<Row> read_row_at(const boost::json::object& object, tap::Point point,
                        const ParseContext& context, const std::string& path);

// One tier: {site: {layer: entry}} or {site: packed}, as adds in `ops`.
Result<void> parse_tier(const boost::json::value& value, Phase phase, const ParseContext& context,
                        const std::string& path, std::vector<OpSpec>& ops);

// "gate" of an element whose ops are at `points`.
struct ParsedGate {
  Gate gate;
  Schedule schedule;
  VectorsAtPoints probe;  // of Gate::Kind::kProbe

  Gate at(size_t point) const {
    Gate made = gate;
    if (gate.kind == Gate::Kind::kProbe) made.vector = probe.at(point);
    return made;
  }
};
// `parts`: of a stream that the op is for, by point; a probe may be as wide as that.
Result<ParsedGate> parse_gate(const boost::json::value& value, std::span<const tap::Point> points,
                              const ParseContext& context, const std::string& path,
                              std::span<const PartList> parts = {});

// What the one of "probe" and "feature" that `object` has reads, at a point of its own.
Result<capture::Watch> read_watch(const boost::json::object& object, const ParseContext& context,
                                  const std::string& path);

// The dictionary that "dictionary" names, at the layer that "layer" says where it has several.
Result<std::shared_ptr<const features::Dictionary>> read_dictionary(
    const boost::json::object& object, const ParseContext& context, const std::string& path);
Result<int32_t> read_feature(const boost::json::object& object, std::string_view key,
                             const features::Dictionary& dictionary, const std::string& path);

// An element with the op "feature", and the article's clamps: `sae_clamp_specs`, or
// with `full` `sae_full_reconstruction_specs`.
Result<void> parse_feature_element(const boost::json::object& element, const ParseContext& context,
                                   const std::string& path, std::vector<OpSpec>& ops);
Result<void> parse_sae_clamps(const boost::json::value& value, bool full,
                              const ParseContext& context, const std::string& path,
                              std::vector<OpSpec>& ops);

// An element with the op "experts".
Result<void> parse_experts_element(const boost::json::object& element, const ParseContext& context,
                                   const std::string& path, std::vector<OpSpec>& ops);

// One element of `steering` that has an "op".
Result<void> parse_op_element(const boost::json::object& element, const ParseContext& context,
                              const std::string& path, std::vector<OpSpec>& ops);
Result<NamedRef> parse_named(const boost::json::value& value, const ParseContext& context,
                             const std::string& path);

Result<Selector> parse_selector(const boost::json::value& value, const std::string& path);

}  // namespace rudder::steer
