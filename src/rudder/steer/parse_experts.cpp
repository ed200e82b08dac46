// An element of `steering` with the op "experts": which experts a layer's router chooses before all
// others, and which behind them (tap::OpKind::kExperts).
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "rudder/steer/numbered.h"
#include "rudder/steer/parse_common.h"

namespace rudder::steer {
namespace {

namespace json = boost::json;

constexpr std::array<std::string_view, 7> kExpertsFields = {
    "op", "site", "layers", "activate", "deactivate", "select", "gate"};

class ExpertsParser {
 public:
  ExpertsParser(const json::object& element, const ParseContext& context, const std::string& path)
      : element_(element), context_(context), path_(path) {}

  Result<void> parse(std::vector<OpSpec>& ops) {
    RUDDER_TRY_VOID(check_keys(element_, kExpertsFields, "the op 'experts'", path_));
    RUDDER_TRY(const std::vector<tap::Point> points, read_op_points(element_, context_, path_));
    if (points.front().site != tap::Site::kRouterLogits) {
      return invalid_field(fmt::format("experts are chosen by {}, not by {}",
                                       tap::site_name(tap::Site::kRouterLogits),
                                       tap::site_name(points.front().site)),
                           at("site"));
    }
    if (member(element_, "activate") == nullptr && member(element_, "deactivate") == nullptr) {
      return invalid_field("\"activate\", \"deactivate\" or both are needed", at("activate"));
    }
    OpSpec spec;
    spec.op = OpName::kExperts;
    spec.where = path_;
    if (const json::value* select = member(element_, "select")) {
      RUDDER_TRY(spec.select, parse_selector(*select, at("select")));
    }
    ParsedGate gate;
    if (const json::value* value = member(element_, "gate")) {
      RUDDER_TRY(gate, parse_gate(*value, points, context_, at("gate")));
      spec.schedule = gate.schedule;
    }
    for (size_t i = 0; i < points.size(); ++i) {
      spec.point = points[i];
      RUDDER_TRY(spec.vector, map_of(points[i].layer));
      spec.gate = gate.at(i);
      ops.push_back(spec);
    }
    return {};
  }

 private:
  std::string at(std::string_view key) const { return join_path(path_, key); }

  // [experts] of 1, -1 and 0. Layers whose routers are alike share it.
  Result<Row> map_of(int32_t layer) {
    const tap::Routing& routing = context_.model.geometry.routing[static_cast<size_t>(layer)];
    const auto found = maps_.find({routing.experts, routing.chosen});
    if (found != maps_.end()) return found->second;
    RUDDER_TRY(const std::vector<int32_t> first, read_experts("activate", layer, routing));
    RUDDER_TRY(const std::vector<int32_t> last, read_experts("deactivate", layer, routing));
    if (std::ssize(first) > routing.chosen) {
      return invalid_field(fmt::format("activates {} experts of layer {}, and a token has {}",
                                       first.size(), layer, routing.chosen),
                           at("activate"));
    }
    if (std::ssize(last) > routing.experts - routing.chosen) {
      return invalid_field(
          fmt::format("deactivates {} experts of the {} of layer {}, of which a token has {}",
                      last.size(), routing.experts, layer, routing.chosen),
          at("deactivate"));
    }
    for (const int32_t expert : last) {
      if (std::ranges::find(first, expert) == first.end()) continue;
      return invalid_field(fmt::format("expert {} is activated too", expert), at("deactivate"));
    }
    auto map = std::make_shared<float[]>(static_cast<size_t>(routing.experts));
    for (const int32_t expert : first) map[static_cast<size_t>(expert)] = 1;
    for (const int32_t expert : last) map[static_cast<size_t>(expert)] = -1;
    Row row{std::move(map), 0, routing.experts};
    maps_.emplace(std::pair(routing.experts, routing.chosen), row);
    return row;
  }

  Result<std::vector<int32_t>> read_experts(std::string_view key, int32_t layer,
                                            const tap::Routing& routing) const {
    const json::value* value = member(element_, key);
    if (value == nullptr) return std::vector<int32_t>();
    RUDDER_TRY(std::vector<int32_t> experts,
               read_numbers(*value,
                            {.noun = "expert",
                             .count = routing.experts,
                             .of = fmt::format("layer {}, which has {}", layer, routing.experts)},
                            at(key)));
    if (experts.empty()) return invalid_field("names no expert", at(key));
    return experts;
  }

  const json::object& element_;
  const ParseContext& context_;
  const std::string& path_;
  std::map<std::pair<int32_t, int32_t>, Row> maps_;  // by experts and how many a token has
};

}  // namespace

Result<void> parse_experts_element(const json::object& element, const ParseContext& context,
                                   const std::string& path, std::vector<OpSpec>& ops) {
  return ExpertsParser(element, context, path).parse(ops);
}

}  // namespace rudder::steer
