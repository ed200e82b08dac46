#include "rudder/model/override_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <utility>

#include "rudder/base/json.h"
#include "rudder/model/archs/archs.h"
#include "rudder/model/archs/check_config.h"
#include "rudder/weights/hf_config.h"

namespace rudder::model {
namespace {

namespace json = boost::json;

constexpr std::string_view kKeysFlag = "hf-overrides";
constexpr std::string_view kRopeFlag = "rope-scaling";
constexpr std::string_view kTextPart = "text_config";
constexpr std::string_view kOldRope = "rope_scaling";
constexpr std::string_view kNewRope = "rope_parameters";
constexpr std::string_view kThetaKey = "rope_theta";

Result<json::object> object_of(std::string_view text, std::string_view where) {
  if (text.empty()) return json::object();
  auto parsed = parse_json(text, where);
  if (!parsed || !parsed->is_object()) {
    return fail(ErrorCode::kInvalidArgument,
                parsed ? "must be a JSON object" : parsed.error().message, std::string(where));
  }
  return std::move(parsed->get_object());
}

json::object* object_at(json::object& config, std::string_view key) {
  json::value* const value = config.if_contains(key);
  return value == nullptr ? nullptr : value->if_object();
}

// Of layers of several kinds: an object of objects.
bool is_by_layer(const json::object& rope) {
  return !rope.empty() && rope.begin()->value().is_object();
}

void set_theta(json::object& config, const json::value& theta) {
  config[kThetaKey] = theta;
  for (const std::string_view key : {kOldRope, kNewRope}) {
    json::object* const rope = object_at(config, key);
    if (rope != nullptr && !is_by_layer(*rope)) (*rope)[kThetaKey] = theta;
  }
}

void set_rope(json::object& config, std::string_view key, const json::value& rope) {
  for (const std::string_view name : {kOldRope, kNewRope}) {
    const json::object* const former = object_at(config, name);
    if (former == nullptr) continue;
    // A rope of the old name changes that of some layers alone, where they differ.
    if (is_by_layer(*former) && key == kOldRope && name == kNewRope) continue;
    const json::value* const theta = former->if_contains(kThetaKey);
    if (theta != nullptr && !theta->is_null()) config[kThetaKey] = *theta;
    config.erase(name);
  }
  config[key] = rope;
}

void merge(json::object& config, const json::object& keys) {
  for (const auto& [key, value] : keys) {
    json::object* const part = object_at(config, key);
    if (key == kTextPart && part != nullptr && value.is_object()) {
      merge(*part, value.get_object());
    } else if (key == kOldRope || key == kNewRope) {
      set_rope(config, key, value);
    } else if (key != kThetaKey) {
      config[key] = value;
    }
  }
  if (const json::value* const theta = keys.if_contains(kThetaKey)) set_theta(config, *theta);
}

Result<void> unread(std::string_view where, std::string_view key) {
  return fail(ErrorCode::kInvalidArgument, "no model here reads this key",
              fmt::format("{}.{}", where, key));
}

// The same of a rope, or of those of some layers each: a factor without a type stretches nothing.
Result<void> check_rope_read(const weights::HfConfig& rope, const std::string& where) {
  constexpr std::array<std::string_view, 5> kWithoutEffect = {"type", "finetuned",
                                                              "original_max_position_embeddings",
                                                              "mrope_section", "mrope_interleaved"};
  for (const std::string& key : rope.unread_keys()) {
    if (std::ranges::find(kWithoutEffect, key) == kWithoutEffect.end()) return unread(where, key);
  }
  for (const std::string& key : rope.keys()) {
    const auto part = rope.object(key);
    if (part) RUDDER_TRY_VOID(check_rope_read(*part, fmt::format("{}.{}", where, key)));
  }
  return {};
}

// Each key has an effect, or is one that is known to have none.
Result<void> check_read(const weights::HfConfig& config, const json::object& keys,
                        const std::string& where) {
  for (const std::string& key : config.unread_keys()) {
    if (!keys.contains(key)) continue;
    if (!is_passed_over(key) || key == kTextPart) return unread(where, key);
  }
  for (const std::string_view key : {kOldRope, kNewRope}) {
    if (!keys.contains(key) || !config.object(key)) continue;
    RUDDER_TRY_VOID(check_rope_read(*config.object(key), fmt::format("{}.{}", where, key)));
  }
  const json::value* const text = keys.if_contains(kTextPart);
  if (text == nullptr || !text->is_object() || !config.has(kTextPart)) return {};
  RUDDER_TRY(const weights::HfConfig inner, config.object(kTextPart));
  return check_read(inner, text->get_object(), fmt::format("{}.{}", where, kTextPart));
}

}  // namespace

Result<std::string> override_config(std::string_view config, const ConfigOverrides& overrides) {
  constexpr std::string_view kFile = "config.json";
  RUDDER_TRY(json::object merged, object_of(config, kFile));
  RUDDER_TRY(const json::object keys, object_of(overrides.keys, kKeysFlag));
  merge(merged, keys);
  json::object* const text = object_at(merged, kTextPart);
  json::object& holder = text == nullptr ? merged : *text;
  if (!overrides.rope_scaling.empty()) {
    RUDDER_TRY(json::object rope, object_of(overrides.rope_scaling, kRopeFlag));
    set_rope(holder, kOldRope, std::move(rope));
  }
  if (overrides.rope_theta != 0) set_theta(holder, overrides.rope_theta);
  std::string out = json::serialize(merged);
  RUDDER_TRY(const weights::HfConfig read, weights::HfConfig::parse(out, std::string(kFile)));
  RUDDER_TRY_VOID(read_config(read));
  RUDDER_TRY_VOID(check_read(read, keys, std::string(kKeysFlag)));
  if (overrides.rope_scaling.empty()) return out;
  const auto inner = read.object(kTextPart);
  RUDDER_TRY(const weights::HfConfig rope, (inner ? *inner : read).object(kOldRope));
  RUDDER_TRY_VOID(check_rope_read(rope, std::string(kRopeFlag)));
  return out;
}

}  // namespace rudder::model
