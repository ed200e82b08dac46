#include "rudder/weights/hf_config.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <cmath>
#include <limits>
#include <optional>
#include <string>

#include "rudder/base/check.h"
#include "rudder/base/json.h"

namespace rudder::weights {
namespace json = boost::json;

namespace {

constexpr uint64_t kMaxConfigBytes = uint64_t{64} << 20;

std::optional<double> as_finite(const json::value& value) {
  double number = 0;
  if (value.is_double()) {
    number = value.get_double();
  } else if (value.is_int64()) {
    number = static_cast<double>(value.get_int64());
  } else if (value.is_uint64()) {
    number = static_cast<double>(value.get_uint64());
  } else {
    return std::nullopt;
  }
  return std::isfinite(number) ? std::optional<double>(number) : std::nullopt;
}

// Configs written by tools of other languages hold 4096.0 for 4096.
std::optional<int64_t> as_integer(const json::value& value) {
  if (value.is_int64()) return value.get_int64();
  if (!value.is_double()) return std::nullopt;  // a uint64 here is beyond int64
  const double number = value.get_double();
  if (std::abs(number) > 0x1.0p53 || number != std::floor(number)) return std::nullopt;
  return static_cast<int64_t>(number);
}

// As transformers writes an infinity that no JSON number says.
bool is_infinity(const json::value& value) {
  if (value.is_double()) return std::isinf(value.get_double()) && value.get_double() > 0;
  if (!value.is_object()) return false;
  const json::value* const word = value.get_object().if_contains("__float__");
  return word != nullptr && word->is_string() && word->get_string() == "Infinity";
}

// `text` with the word Infinity, outside of strings, as a number that is read as one.
std::string without_infinity(std::string_view text) {
  constexpr std::string_view kWord = "Infinity";
  std::string out;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (!in_string && text.substr(i, kWord.size()) == kWord) {
      out += "1e999";
      i += kWord.size() - 1;
      continue;
    }
    if (text[i] == '"') in_string = !in_string;
    out += text[i];
    if (in_string && text[i] == '\\' && i + 1 < text.size()) out += text[++i];
  }
  return out;
}

}  // namespace

Result<HfConfig> HfConfig::parse(std::string_view text, std::string where) {
  std::string mended;
  if (text.find("Infinity") != std::string_view::npos) text = mended = without_infinity(text);
  auto parsed = parse_json(text, where, {.max_depth = 32, .max_bytes = kMaxConfigBytes});
  if (!parsed) return fail(ErrorCode::kCorruptFile, parsed.error().message, where);
  if (!parsed->is_object()) {
    return fail(ErrorCode::kCorruptFile, "the configuration is not a JSON object", where);
  }
  auto document = std::make_shared<const json::value>(std::move(*parsed));
  const json::object* object = &document->get_object();
  return HfConfig(std::move(document), object, std::move(where), std::make_shared<KeySet>());
}

HfConfig HfConfig::with_defaults(std::string_view defaults) const {
  const auto parsed = parse_json(defaults, "defaults");
  RUDDER_CHECK(parsed && parsed->is_object());
  return merged_with(parsed->get_object(), true);
}

HfConfig HfConfig::with_defaults(const HfConfig& defaults) const {
  return merged_with(*defaults.object_, true);
}

HfConfig HfConfig::with_missing(const HfConfig& defaults) const {
  return merged_with(*defaults.object_, false);
}

HfConfig HfConfig::merged_with(const json::object& defaults, bool over_nulls) const {
  json::object merged = *object_;
  for (const auto& [key, value] : defaults) {
    const bool is_missing = merged.emplace(key, value).second;
    if (!is_missing && over_nulls && merged[key].is_null()) merged[key] = value;
  }
  auto document = std::make_shared<const json::value>(std::move(merged));
  const json::object* object = &document->get_object();
  return HfConfig(std::move(document), object, path_, read_);
}

HfConfig HfConfig::only(std::span<const std::string_view> keys) const {
  json::object kept;
  for (const std::string_view key : keys) {
    if (const json::value* const value = object_->if_contains(key)) kept.emplace(key, *value);
  }
  auto document = std::make_shared<const json::value>(std::move(kept));
  const json::object* object = &document->get_object();
  return HfConfig(std::move(document), object, path_, read_);
}

std::string HfConfig::where(std::string_view key) const {
  if (key.empty()) return path_;
  const bool nested = path_.find(": ") != std::string::npos;
  return fmt::format("{}{}{}", path_, nested ? "." : ": ", key);
}

const json::value* HfConfig::find(std::string_view key) const {
  read_->insert(where(key));
  const json::value* value = object_->if_contains({key.data(), key.size()});
  return value != nullptr && !value->is_null() ? value : nullptr;
}

bool HfConfig::is_null(std::string_view key) const {
  const json::value* const value = object_->if_contains({key.data(), key.size()});
  return value != nullptr && value->is_null();
}

bool HfConfig::is_object(std::string_view key) const {
  const json::value* const value = object_->if_contains({key.data(), key.size()});
  return value != nullptr && value->is_object();
}

bool HfConfig::has(std::string_view key) const {
  return find(key) != nullptr;
}

std::vector<std::string> HfConfig::keys() const {
  std::vector<std::string> out;
  for (const auto& member : *object_) out.emplace_back(member.key());
  return out;
}

std::vector<std::string> HfConfig::unread_keys() const {
  std::vector<std::string> out;
  for (const auto& member : *object_) {
    if (!member.value().is_null() && !read_->contains(where(member.key()))) {
      out.emplace_back(member.key());
    }
  }
  return out;
}

Result<const json::value*> HfConfig::require(std::string_view key) const {
  const json::value* value = find(key);
  if (value == nullptr) {
    return fail(ErrorCode::kCorruptFile, fmt::format("the key '{}' is missing", key), where(key));
  }
  return value;
}

tl::unexpected<Error> HfConfig::ill_typed(std::string_view key, std::string_view wanted,
                                          const json::value& got) const {
  std::string text = json::serialize(got);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return fail(ErrorCode::kCorruptFile, fmt::format("'{}' is {}, not {}", key, text, wanted),
              where(key));
}

Result<int64_t> HfConfig::integer(std::string_view key, int64_t low, int64_t high) const {
  RUDDER_TRY(const json::value* value, require(key));
  const std::optional<int64_t> number = as_integer(*value);
  if (!number) return ill_typed(key, "an integer", *value);
  if (*number < low || *number > high) {
    return ill_typed(key, fmt::format("an integer from {} to {}", low, high), *value);
  }
  return *number;
}

Result<double> HfConfig::number(std::string_view key) const {
  RUDDER_TRY(const json::value* value, require(key));
  const std::optional<double> number = as_finite(*value);
  if (!number) return ill_typed(key, "a finite number", *value);
  return *number;
}

Result<bool> HfConfig::boolean(std::string_view key) const {
  RUDDER_TRY(const json::value* value, require(key));
  if (!value->is_bool()) return ill_typed(key, "true or false", *value);
  return value->get_bool();
}

Result<std::string> HfConfig::string(std::string_view key) const {
  RUDDER_TRY(const json::value* value, require(key));
  if (!value->is_string()) return ill_typed(key, "a string", *value);
  return std::string(value->get_string());
}

Result<std::vector<double>> HfConfig::numbers(std::string_view key) const {
  RUDDER_TRY(const json::value* value, require(key));
  if (!value->is_array()) return ill_typed(key, "a list of numbers", *value);
  std::vector<double> out;
  for (const json::value& item : value->get_array()) {
    const std::optional<double> number = as_finite(item);
    if (!number) return ill_typed(key, "a list of finite numbers", *value);
    out.push_back(*number);
  }
  return out;
}

Result<std::vector<double>> HfConfig::limits(std::string_view key) const {
  RUDDER_TRY(const json::value* value, require(key));
  if (!value->is_array()) return ill_typed(key, "a list of numbers", *value);
  std::vector<double> out;
  for (const json::value& item : value->get_array()) {
    const std::optional<double> number = as_finite(item);
    if (!number && !is_infinity(item)) return ill_typed(key, "a list of numbers", *value);
    out.push_back(number.value_or(std::numeric_limits<double>::infinity()));
  }
  return out;
}

Result<std::vector<std::string>> HfConfig::strings(std::string_view key) const {
  RUDDER_TRY(const json::value* value, require(key));
  if (!value->is_array()) return ill_typed(key, "a list of strings", *value);
  std::vector<std::string> out;
  for (const json::value& item : value->get_array()) {
    if (!item.is_string()) return ill_typed(key, "a list of strings", *value);
    out.emplace_back(item.get_string());
  }
  return out;
}

Result<std::vector<int64_t>> HfConfig::integers(std::string_view key, int64_t low,
                                                int64_t high) const {
  RUDDER_TRY(const json::value* value, require(key));
  std::vector<int64_t> out;
  const auto add = [&](const json::value& item) {
    const std::optional<int64_t> number = as_integer(item);
    if (!number || *number < low || *number > high) return false;
    out.push_back(*number);
    return true;
  };
  bool good = true;
  if (value->is_array()) {
    for (const json::value& item : value->get_array()) good = good && add(item);
  } else {
    good = add(*value);
  }
  if (!good) return ill_typed(key, fmt::format("integers from {} to {}", low, high), *value);
  return out;
}

Result<HfConfig> HfConfig::object(std::string_view key) const {
  RUDDER_TRY(const json::value* value, require(key));
  if (!value->is_object()) return ill_typed(key, "an object", *value);
  return HfConfig(document_, &value->get_object(), where(key), read_);
}

Result<int64_t> HfConfig::integer_or(std::string_view key, int64_t fallback, int64_t low,
                                     int64_t high) const {
  if (!has(key)) return fallback;
  return integer(key, low, high);
}

Result<double> HfConfig::number_or(std::string_view key, double fallback) const {
  if (!has(key)) return fallback;
  return number(key);
}

Result<bool> HfConfig::boolean_or(std::string_view key, bool fallback) const {
  if (!has(key)) return fallback;
  return boolean(key);
}

Result<std::string> HfConfig::string_or(std::string_view key, std::string fallback) const {
  if (!has(key)) return fallback;
  return string(key);
}

}  // namespace rudder::weights
