#include "rudder/steer/parse.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <cmath>
#include <vector>

#include "rudder/steer/parse_common.h"

namespace rudder::steer {
namespace {

namespace json = boost::json;

constexpr std::array<std::string_view, 10> kRequestFields = {"steering",
                                                             "steering_name",
                                                             "steering_vectors",
                                                             "prefill_steering_vectors",
                                                             "decode_steering_vectors",
                                                             "steering_vectors_packed",
                                                             "prefill_steering_vectors_packed",
                                                             "decode_steering_vectors_packed",
                                                             "sae_clamp_specs",
                                                             "sae_full_reconstruction_specs"};

struct Tier {
  std::string_view field;
  std::string_view packed_field;  // another name of the same
  std::string_view admin_field;   // in bodies of modules and of server-wide steering
  Phase phase;
};
constexpr std::array<Tier, 3> kTiers = {
    {{"steering_vectors", "steering_vectors_packed", "vectors", Phase::kAll},
     {"prefill_steering_vectors", "prefill_steering_vectors_packed", "prefill_vectors",
      Phase::kPrefill},
     {"decode_steering_vectors", "decode_steering_vectors_packed", "decode_vectors",
      Phase::kDecode}}};

Result<void> check_size(const std::vector<OpSpec>& ops, const std::string& where) {
  if (ops.size() <= kMaxSpecs) return {};
  return invalid_field(fmt::format("more than {} ops, each layer of each op counted", kMaxSpecs),
                       where);
}

Result<void> parse_element(const json::value& value, const ParseContext& context,
                           const std::string& path, ParsedSteering& parsed) {
  const json::object* element = value.if_object();
  if (element == nullptr) return invalid_field("an object is needed", path);
  if (element->contains("op")) {
    RUDDER_TRY_VOID(parse_op_element(*element, context, path, parsed.ops));
    return check_size(parsed.ops, path);
  }
  if (element->contains("name")) {
    RUDDER_TRY(NamedRef ref, parse_named(value, context, path));
    if (parsed.named.size() == kMaxNamed) {
      return invalid_field(fmt::format("more than {} modules by name", kMaxNamed), path);
    }
    parsed.named.push_back(std::move(ref));
    return {};
  }
  return invalid_field("an element needs a \"name\" or an \"op\"", path);
}

// `steering`: one element or a list of them; {} and [] are none.
Result<void> parse_elements(const json::value& value, const ParseContext& context,
                            const std::string& path, ParsedSteering& parsed) {
  if (const json::array* list = value.if_array()) {
    for (size_t i = 0; i < list->size(); ++i) {
      RUDDER_TRY_VOID(parse_element((*list)[i], context, fmt::format("{}[{}]", path, i), parsed));
    }
    return {};
  }
  if (!value.is_object()) return invalid_field("an element or a list of elements is needed", path);
  if (value.get_object().empty()) return {};
  return parse_element(value, context, path, parsed);
}

Result<void> parse_tiers(const json::object& body, const ParseContext& context, bool admin,
                         ParsedSteering& parsed) {
  for (const Tier& tier : kTiers) {
    const json::value* value = nullptr;
    std::string path;
    for (const std::string_view field : {tier.field, tier.packed_field, tier.admin_field}) {
      const bool is_known = admin || field != tier.admin_field;
      const json::value* given = is_known ? member(body, field) : nullptr;
      if (given == nullptr) continue;
      if (value != nullptr) {
        return invalid_field(fmt::format("the same as {}: only one of them", path),
                             std::string(field));
      }
      value = given;
      path = field;
    }
    if (value == nullptr) continue;
    RUDDER_TRY_VOID(parse_tier(*value, tier.phase, context, path, parsed.ops));
  }
  return {};
}

Result<ParsedSteering> parse_fields(const json::object& body, const ParseContext& context,
                                    bool admin) {
  ParsedSteering parsed;
  if (const json::value* name = member(body, "steering_name")) {
    RUDDER_TRY(NamedRef ref, parse_named(*name, context, "steering_name"));
    parsed.named.push_back(std::move(ref));
  }
  RUDDER_TRY_VOID(parse_tiers(body, context, admin, parsed));
  for (const std::string field : {"sae_clamp_specs", "sae_full_reconstruction_specs"}) {
    if (const json::value* specs = member(body, field)) {
      const bool full = field == "sae_full_reconstruction_specs";
      RUDDER_TRY_VOID(parse_sae_clamps(*specs, full, context, field, parsed.ops));
      RUDDER_TRY_VOID(check_size(parsed.ops, field));
    }
  }
  if (const json::value* elements = member(body, "steering")) {
    RUDDER_TRY_VOID(parse_elements(*elements, context, "steering", parsed));
  }
  return parsed;
}

}  // namespace

std::span<const std::string_view> steering_fields() {
  return kRequestFields;
}

bool has_steering_fields(const json::object& body) {
  return std::ranges::any_of(
      kRequestFields, [&](std::string_view field) { return member(body, field) != nullptr; });
}

Result<ParsedSteering> parse_steering(const json::object& body, const Model& model,
                                      const Names& names, const capture::KeptView& kept) {
  return parse_fields(body, {model, names, kept}, false);
}

Result<ParsedSteering> parse_admin_steering(const json::object& body,
                                            std::span<const std::string_view> others,
                                            const Model& model, const Names& names) {
  std::vector<std::string_view> known(kRequestFields.begin(), kRequestFields.end());
  for (const Tier& tier : kTiers) known.push_back(tier.admin_field);
  known.insert(known.end(), others.begin(), others.end());
  RUDDER_TRY_VOID(check_keys(body, known, "the body", ""));
  return parse_fields(body, {model, names}, true);
}

Result<void> append_scaled(const NamedRef& ref, std::vector<OpSpec>& ops) {
  if (ops.size() + ref.config->specs().size() > kMaxSpecs) {
    return invalid_field(fmt::format("more than {} ops, those of modules counted", kMaxSpecs),
                         ref.where);
  }
  for (const OpSpec& op : ref.config->specs()) {
    OpSpec& scaled = ops.emplace_back(op);
    scaled.where = ref.where;
    if (group_of(op.op) != Group::kAdd) continue;
    scaled.scale *= ref.scale;
    if (std::abs(scaled.scale) > kMaxMagnitude) {
      return invalid_field(
          fmt::format("a scale of {} in all: at most {} in magnitude", scaled.scale, kMaxMagnitude),
          ref.where);
    }
  }
  return {};
}

}  // namespace rudder::steer
