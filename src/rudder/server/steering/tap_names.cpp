#include "rudder/server/steering/tap_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "rudder/base/edit_distance.h"
#include "rudder/base/json.h"
#include "rudder/server/http/percent.h"
#include "rudder/server/request/field_reader.h"
#include "rudder/steer/parse.h"

namespace rudder::server {

namespace json = boost::json;

namespace {

// Beside those of steer::steering_fields().
constexpr std::array<std::string_view, 7> kOtherFields = {"capture",
                                                          "capture_wait",
                                                          "return_routed_experts",
                                                          "return_steered_tokens",
                                                          "routed_experts_prompt_start",
                                                          "steering_pair",
                                                          "stop_when"};
// Of other servers' fields, and of ours in a wrong spelling.
constexpr std::array<std::string_view, 9> kPrefixes = {
    "sae_",  "patch",         "capture", "control_vector", "intervention",
    "clamp", "feature_clamp", "ablat",   "activation_"};
// Of these, what no client calls anything else.
constexpr std::array<std::string_view, 2> kForeign = {"control_vector", "intervention"};
// Whole names of others for it, as fields of a body, with ours.
constexpr std::array<std::pair<std::string_view, std::string_view>, 9> kOthersNames = {
    {{"sae", "steering"},
     {"saes", "steering"},
     {"features", "steering"},
     {"representation_control", "steering"},
     {"activations", "capture"},
     {"return_activations", "capture"},
     {"hidden_states", "capture"},
     {"output_hidden_states", "capture"},
     {"logit_lens", "capture"}}};
// Wherever in a name.
constexpr std::string_view kStem = "steer";
// What these hold is the client's: conversations, schemas, tables of tokens. Any key may be there.
constexpr std::array<std::string_view, 22> kData = {
    "messages",      "prompt",          "input",
    "system",        "instructions",    "documents",
    "tools",         "tool_choice",     "functions",
    "function_call", "response_format", "structured_outputs",
    "guided_choice", "guided_grammar",  "text",
    "output_config", "output_format",   "logit_bias",
    "mcp_servers",   "include",         "clean",
    "corrupted"};
constexpr std::array<std::string_view, 2> kSchemaFields = {"json_schema", "guided_json"};
// In these, objects that have fields of the API and not of the client: what they hold is looked at.
constexpr std::array<std::string_view, 4> kWrappers = {"format", "function", "allowed_tools",
                                                       "json_schema"};
// What clients put fields into that their own library does not know; some write it as a text.
constexpr std::array<std::string_view, 8> kCarriers = {
    "extra_body",      "extra_args",    "extra_params", "vllm_xargs",
    "sampling_params", "custom_params", "nvext",        "extra"};
// Labels and a template's variables are the client's words; steering is never a plain value there.
constexpr std::array<std::string_view, 2> kLabels = {"metadata", "chat_template_kwargs"};

bool is_own(std::string_view name) {
  return std::ranges::find(steer::steering_fields(), name) != steer::steering_fields().end() ||
         std::ranges::find(kOtherFields, name) != kOtherFields.end();
}

// A name as it would be written here: "activationSteering" and "Activation-Steering" are
// "activation_steering". Others' names come in many spellings.
std::string as_written_here(std::string_view name) {
  std::string out;
  char before = 0;
  for (const char letter : name) {
    const bool is_upper = letter >= 'A' && letter <= 'Z';
    if (is_upper && before >= 'a' && before <= 'z') out.push_back('_');
    out.push_back(is_upper ? static_cast<char>(letter - 'A' + 'a') : letter == '-' ? '_' : letter);
    before = letter;
  }
  return out;
}

bool is_own_in_any_spelling(std::string_view name) {
  constexpr size_t kLongest = 32;
  return is_own(name) || (name.size() <= kLongest && is_own(as_written_here(name)));
}

// Whatever it stands in, a name as `written` here is about steering.
bool is_foreign(std::string_view written) {
  return written.find(kStem) != std::string_view::npos ||
         std::ranges::any_of(kForeign,
                             [&](std::string_view prefix) { return written.starts_with(prefix); });
}

// The field of ours that a client must have meant by an unknown name; empty where it looks like
// none.
std::string_view meant_field(std::string_view given) {
  constexpr size_t kNear = 2;       // letters that are wrong
  constexpr size_t kLongest = 256;  // a longer name is none
  if (given.size() > kLongest) return {};
  const std::string written = as_written_here(given);
  const std::string_view name = written;
  const bool has_prefix = name.find(kStem) != std::string_view::npos ||
                          std::ranges::any_of(kPrefixes, [&](std::string_view prefix) {
                            return name.starts_with(prefix);
                          });
  std::string_view nearest = name.starts_with("capture") ? "capture" : "steering";
  size_t least = kNear + 1;
  bool is_near = false;
  const auto look_at = [&](std::string_view field) {
    // The distance is at least what the lengths differ by: of half a million unknown names, few are
    // worth a look.
    const size_t longer = std::max(name.size(), field.size());
    if (longer - std::min(name.size(), field.size()) >= least) return;
    const size_t distance = edit_distance(name, field);
    if (distance >= least) return;
    least = distance;
    nearest = field;
    is_near = field.size() > 3 * kNear;
  };
  for (const std::string_view field : steer::steering_fields()) look_at(field);
  for (const std::string_view field : kOtherFields) look_at(field);
  return has_prefix || is_near ? nearest : std::string_view();
}

bool asks_nothing(const json::value& value) {
  return value.is_null() || (value.is_bool() && !value.get_bool()) ||
         (value.is_object() && value.get_object().empty()) ||
         (value.is_array() && value.get_array().empty());
}

// The field of ours in place of another server's; empty where the name is none of a body's.
std::string_view meant_by_others(std::string_view given) {
  constexpr size_t kLongest = 32;
  if (given.size() > kLongest) return {};
  const std::string written = as_written_here(given);
  const auto at = std::ranges::find(kOthersNames, std::string_view(written),
                                    &std::pair<std::string_view, std::string_view>::first);
  return at == kOthersNames.end() ? std::string_view() : at->second;
}

bool is_among(std::span<const std::string_view> names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

// Where a scan is. It becomes text for an error alone: a client's keys may be long.
struct Spot {
  const Spot* above = nullptr;
  std::string_view name;  // of a member; empty: an item
  size_t index = 0;

  std::string path() const {
    if (above == nullptr) return std::string(name);
    if (name.empty()) return fmt::format("{}[{}]", above->path(), index);
    return fmt::format("{}.{}", above->path(), name);
  }
};

Result<void> misplaced(const Spot& spot) {
  return field_error(ErrorCode::kUnsupported,
                     fmt::format("is not read there; {} is a field of the body itself", spot.name),
                     spot.path());
}

Result<void> misspelled(std::string_view meant, const Spot& spot) {
  return field_error(ErrorCode::kUnsupported,
                     fmt::format("is not a field of this server; use {}", meant), spot.path());
}

Result<void> scan(const json::value& value, const Spot& at, bool is_label);

// A carrier, or what stands in one: an object, a list, or the text of one.
Result<void> scan_carrier(const json::value& value, const Spot& at) {
  const json::string* const text = value.if_string();
  if (text == nullptr) return value.is_structured() ? scan(value, at, false) : Result<void>();
  if (text->find_first_of("{[") == json::string::npos) return {};
  const auto inner = parse_json({text->data(), text->size()}, "");
  return inner && inner->is_structured() ? scan(*inner, at, false) : Result<void>();
}

// `is_label`: below one of kLabels.
Result<void> scan(const json::value& value, const Spot& at, bool is_label) {
  if (const json::array* list = value.if_array()) {
    for (size_t i = 0; i < list->size(); ++i) {
      if ((*list)[i].is_structured()) RUDDER_TRY_VOID(scan((*list)[i], {&at, {}, i}, is_label));
    }
    return {};
  }
  const bool is_carrier = at.above == nullptr && is_among(kCarriers, at.name);
  for (const auto& [key, inner] : value.get_object()) {
    const Spot spot = {&at, {key.data(), key.size()}};
    if (asks_nothing(inner)) continue;
    if (is_own_in_any_spelling(spot.name)) return misplaced(spot);
    if (const std::string_view meant = meant_by_others(spot.name); is_carrier && !meant.empty()) {
      return misspelled(meant, spot);
    }
    if (!is_label || inner.is_structured()) {
      const std::string_view meant = meant_field(spot.name);
      if (!meant.empty()) return misspelled(meant, spot);
    }
    if (inner.is_structured()) RUDDER_TRY_VOID(scan(inner, spot, is_label));
    if (inner.is_string() && is_among(kCarriers, spot.name)) {
      RUDDER_TRY_VOID(scan_carrier(inner, spot));
    }
  }
  return {};
}

// A field of ours, or of others in its place, in an object that holds the client's words. Of a part
// of a message, where it is no plain value.
Result<void> check_field(const Spot& spot, const json::value& value, bool is_part) {
  constexpr size_t kLongest = 256;
  if (asks_nothing(value) || (is_part && !value.is_structured())) return {};
  if (is_own(spot.name)) return misplaced(spot);
  if (!value.is_structured() || spot.name.size() > kLongest) return {};
  return is_foreign(as_written_here(spot.name)) ? misspelled("steering", spot) : Result<void>();
}

// Whether a message is a tool's: its content may be data that no client chose the names of.
bool is_result(const json::object& message) {
  const json::value* role = message.if_contains("role");
  return role != nullptr && (*role == "tool" || *role == "function");
}

// Fields of ours in such an object itself, and in the parts of a message.
Result<void> scan_fields(const json::object& object, const Spot& at) {
  for (const auto& [key, inner] : object) {
    const Spot spot = {&at, {key.data(), key.size()}};
    RUDDER_TRY_VOID(check_field(spot, inner, false));
    if (is_among(kCarriers, spot.name)) RUDDER_TRY_VOID(scan_carrier(inner, spot));
    const json::object* below = inner.if_object();
    if (below != nullptr && is_among(kWrappers, spot.name)) {
      RUDDER_TRY_VOID(scan_fields(*below, spot));
    }
    const bool has_parts = spot.name == "content" && !is_result(object);
    const json::array* parts = has_parts ? inner.if_array() : nullptr;
    for (size_t i = 0; parts != nullptr && i < parts->size(); ++i) {
      const json::object* part = (*parts)[i].if_object();
      if (part == nullptr) continue;
      const Spot item = {&spot, {}, i};
      for (const auto& [name, value] : *part) {
        RUDDER_TRY_VOID(check_field({&item, {name.data(), name.size()}}, value, true));
      }
    }
  }
  return {};
}

// The same of a message, a tool, and each of a list of them.
Result<void> scan_items(const json::value& value, const Spot& at) {
  if (const json::object* object = value.if_object()) return scan_fields(*object, at);
  const json::array& items = value.get_array();
  for (size_t i = 0; i < items.size(); ++i) {
    const json::object* item = items[i].if_object();
    if (item != nullptr) RUDDER_TRY_VOID(scan_fields(*item, {&at, {}, i}));
  }
  return {};
}

// A name or a value of a query, decoded as forms are.
std::string text_of_query(std::string_view written) {
  std::string text(written);
  std::ranges::replace(text, '+', ' ');
  return percent_decode(text).value_or(text);
}

Result<void> beside_body(std::string_view where, std::string_view name) {
  return field_error(ErrorCode::kUnsupported,
                     "is not read there; steering and capture are fields of the body",
                     fmt::format("{}.{}", where, name));
}

}  // namespace

bool says_taps(std::string_view given) {
  const std::string written = as_written_here(given);
  std::string_view name = written;
  for (const std::string_view prefix : {"x_", "rudder_", "vllm_", "sglang_"}) {
    if (name.starts_with(prefix)) name.remove_prefix(prefix.size());
  }
  return is_own(name) || is_foreign(name);
}

Result<void> refuse_taps_beside_body(std::string_view query, const std::vector<HttpField>& header) {
  for (const HttpField& field : header) {
    if (says_taps(field.name) && !field.value.empty()) return beside_body("header", field.name);
  }
  while (!query.empty()) {
    const std::string_view pair = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(pair.size() + 1, query.size()));
    const size_t equals = pair.find('=');
    const std::string name = text_of_query(pair.substr(0, equals));
    if (says_taps(name)) return beside_body("query", name);
    if (equals == std::string_view::npos || !is_among(kCarriers, name)) continue;
    const Spot query_itself = {nullptr, "query"};
    const json::value value(json::string_view(text_of_query(pair.substr(equals + 1))));
    RUDDER_TRY_VOID(scan_carrier(value, {&query_itself, name}));
  }
  return {};
}

Result<void> refuse_misplaced_taps(const json::object& body) {
  for (const auto& [key, value] : body) {
    const Spot spot = {nullptr, {key.data(), key.size()}};
    if (value.is_null() || is_own(spot.name)) continue;
    if (const std::string_view meant = meant_field(spot.name); !meant.empty()) {
      return misspelled(meant, spot);
    }
    if (const std::string_view meant = meant_by_others(spot.name);
        !meant.empty() && !asks_nothing(value)) {
      return misspelled(meant, spot);
    }
    if (is_among(kCarriers, spot.name)) {
      RUDDER_TRY_VOID(scan_carrier(value, spot));
      continue;
    }
    if (!value.is_structured() || is_among(kSchemaFields, spot.name)) continue;
    RUDDER_TRY_VOID(is_among(kData, spot.name) ? scan_items(value, spot)
                                               : scan(value, spot, is_among(kLabels, spot.name)));
  }
  return {};
}

}  // namespace rudder::server
