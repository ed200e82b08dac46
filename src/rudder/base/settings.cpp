#include "rudder/base/settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <utility>

#include "rudder/base/edit_distance.h"
#include "rudder/base/log.h"

namespace rudder {
namespace {

// Other languages and people write their words in other cases: "True", "INFO".
std::string in_lower_case(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

// Words of other systems (Python's loggers, uvicorn) for a choice that has another name here;
// empty: none.
std::string_view word_for(std::string_view other) {
  constexpr std::pair<std::string_view, std::string_view> kWords[] = {
      {"warning", "warn"}, {"critical", "error"}, {"fatal", "error"}, {"trace", "debug"}};
  for (const auto& [theirs, ours] : kWords) {
    if (theirs == other) return ours;
  }
  return {};
}

Result<bool> parse_bool(std::string_view written) {
  const std::string text = in_lower_case(written);
  if (text == "true" || text == "1" || text == "on" || text == "yes" || text.empty()) return true;
  if (text == "false" || text == "0" || text == "off" || text == "no") return false;
  return fail(ErrorCode::kInvalidArgument, fmt::format("'{}' is not true or false", written));
}

Result<double> parse_float(std::string_view text) {
  double value = 0;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (ec != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) {
    return fail(ErrorCode::kInvalidArgument, fmt::format("'{}' is not a finite number", text));
  }
  return value;
}

Result<double> parse_float_within(std::string_view text, double min, double max) {
  RUDDER_TRY(const double value, parse_float(text));
  if (value >= min && value <= max) return value;
  return fail(ErrorCode::kInvalidArgument, fmt::format("{} is outside [{}, {}]", value, min, max));
}

Result<int64_t> parse_signed(std::string_view text) {
  if (text.empty() || text[0] != '-') return parse_human_integer(text);
  RUDDER_TRY(const int64_t magnitude, parse_human_integer(text.substr(1)));
  return -magnitude;
}

std::string environment_name(std::string_view setting) {
  std::string name = "RUDDER_";
  for (const char ch : setting) {
    name.push_back(ch == '-' ? '_' : static_cast<char>(std::toupper(ch)));
  }
  return name;
}

// The name by which Kubernetes and Docker call a service in variables: RUDDER_MAIN of rudder-main.
std::string service_variable(std::string_view service) {
  std::string name;
  for (const char ch : service) {
    const bool is_plain = std::isalnum(static_cast<unsigned char>(ch)) != 0;
    name.push_back(is_plain ? static_cast<char>(std::toupper(ch)) : '_');
  }
  return name;
}

// Whether a platform has set the variable, for a service or a container whose name makes it one of
// ours: Kubernetes' and Docker's links are NAME_PORT=tcp://10.0.0.1:80, Docker's also
// NAME_NAME=/consumer/name. A text may be a URI that somebody meant, anything else cannot be.
bool is_service_link(const Setting& setting, std::string_view variable, std::string_view value) {
  constexpr std::string_view kName = "_NAME";
  const bool is_text = setting.type.starts_with("text");
  if (variable.ends_with(kName) && value.starts_with('/')) {
    const std::string_view service = variable.substr(0, variable.size() - kName.size());
    const size_t last = value.rfind('/');
    return last > 0 && service_variable(value.substr(last + 1)) == service;
  }
  return value.find("://") != std::string_view::npos && (!is_text || variable.ends_with("_PORT"));
}

// Values from files often end in a line break, as those of Kubernetes' secrets do.
std::string_view without_outer_space(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

template <typename Int>
void bind_integer(Setting& setting, Int* field, int64_t min, int64_t max) {
  setting.set = [field, min, max](std::string_view text) -> Result<void> {
    RUDDER_TRY(const int64_t value, parse_signed(text));
    if (value < min || value > max) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("{} is outside [{}, {}]", value, min, max));
    }
    *field = static_cast<Int>(value);
    return {};
  };
  setting.get = [field] { return std::to_string(*field); };
  setting.default_value = setting.get();
}

}  // namespace

void SettingsTable::section(std::string room) {
  room_ = std::move(room);
}

Setting& SettingsTable::push(std::string name, std::string type, std::string doc) {
  Setting setting;
  setting.name = std::move(name);
  setting.type = std::move(type);
  setting.doc = std::move(doc);
  setting.room = room_;
  settings_.push_back(std::move(setting));
  return settings_.back();
}

void SettingsTable::add(std::string name, bool* field, std::string doc) {
  Setting& setting = push(std::move(name), "bool", std::move(doc));
  setting.is_switch = true;
  setting.set = [field](std::string_view text) -> Result<void> {
    RUDDER_TRY(*field, parse_bool(text));
    return {};
  };
  setting.get = [field] { return std::string(*field ? "true" : "false"); };
  setting.default_value = setting.get();
}

void SettingsTable::add(std::string name, int32_t* field, int64_t min, int64_t max,
                        std::string doc) {
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  bind_integer(push(std::move(name), "int", std::move(doc)), field, std::max(min, -kMax),
               std::min(max, kMax));
}

void SettingsTable::add(std::string name, int64_t* field, int64_t min, int64_t max,
                        std::string doc) {
  bind_integer(push(std::move(name), "int", std::move(doc)), field, min, max);
}

void SettingsTable::add_bytes(std::string name, int64_t* field, std::string doc) {
  bind_integer(push(std::move(name), "bytes", std::move(doc)), field, 0,
               std::numeric_limits<int64_t>::max());
}

void SettingsTable::add(std::string name, double* field, double min, double max, std::string doc) {
  Setting& setting = push(std::move(name), "float", std::move(doc));
  setting.set = [field, min, max](std::string_view text) -> Result<void> {
    RUDDER_TRY(*field, parse_float_within(text, min, max));
    return {};
  };
  setting.get = [field] { return fmt::format("{}", *field); };
  setting.default_value = setting.get();
}

void SettingsTable::add(std::string name, std::optional<double>* field, double min, double max,
                        std::string doc) {
  Setting& setting = push(std::move(name), "float or auto", std::move(doc));
  setting.set = [field, min, max](std::string_view text) -> Result<void> {
    if (text == "auto") {
      field->reset();
      return {};
    }
    RUDDER_TRY(*field, parse_float_within(text, min, max));
    return {};
  };
  setting.get = [field] { return *field ? fmt::format("{}", **field) : std::string("auto"); };
  setting.default_value = setting.get();
}

void SettingsTable::add(std::string name, std::string* field, std::string doc) {
  Setting& setting = push(std::move(name), "text", std::move(doc));
  setting.set = [field](std::string_view text) -> Result<void> {
    *field = std::string(text);
    return {};
  };
  setting.get = [field] { return *field; };
  setting.default_value = setting.get();
}

void SettingsTable::add(std::string name, std::vector<std::string>* field, std::string doc) {
  Setting& setting = push(std::move(name), "text...", std::move(doc));
  setting.is_list = true;
  setting.set = [field](std::string_view text) -> Result<void> {
    field->emplace_back(text);
    return {};
  };
  setting.get = [field] { return fmt::format("{}", fmt::join(*field, ",")); };
  setting.default_value = setting.get();
}

void SettingsTable::add_choice(std::string name, std::string* field,
                               std::vector<std::string> choices, std::string doc,
                               std::map<std::string, std::string, std::less<>> gone) {
  std::string type = fmt::format("{}", fmt::join(choices, "|"));
  Setting& setting = push(std::move(name), type, std::move(doc));
  setting.set = [field, choices = std::move(choices), gone = std::move(gone),
                 type](std::string_view text) -> Result<void> {
    if (const auto found = gone.find(text); found != gone.end()) {
      return fail(ErrorCode::kInvalidArgument, found->second);
    }
    auto chosen = std::find(choices.begin(), choices.end(), text);
    if (chosen == choices.end()) {
      chosen = std::find(choices.begin(), choices.end(), in_lower_case(text));
    }
    if (chosen == choices.end()) {
      chosen = std::find(choices.begin(), choices.end(), word_for(in_lower_case(text)));
    }
    if (chosen == choices.end()) {
      // "word:PATH": the word, and any path.
      constexpr std::string_view kOpen = ":PATH";
      for (const std::string_view choice : choices) {
        if (!choice.ends_with(kOpen)) continue;
        const std::string_view prefix = choice.substr(0, choice.size() - kOpen.size() + 1);
        if (!text.starts_with(prefix) || text.size() == prefix.size()) continue;
        *field = text;
        return {};
      }
      return fail(ErrorCode::kInvalidArgument, fmt::format("'{}' is not one of {}", text, type));
    }
    *field = *chosen;
    return {};
  };
  setting.get = [field] { return *field; };
  setting.default_value = setting.get();
}

const Setting* SettingsTable::find(std::string_view name) const {
  const auto it = std::find_if(settings_.begin(), settings_.end(),
                               [&](const Setting& s) { return s.name == name; });
  return it == settings_.end() ? nullptr : &*it;
}

std::string SettingsTable::nearest(std::string_view name) const {
  std::string best;
  size_t best_distance = std::max<size_t>(3, name.size() / 3);
  for (const Setting& setting : settings_) {
    const size_t distance = edit_distance(name, setting.name);
    if (distance < best_distance) {
      best_distance = distance;
      best = setting.name;
    }
  }
  return best;
}

bool SettingsTable::is_set(std::string_view name) const {
  const Setting* setting = find(name);
  return setting != nullptr && setting->is_set;
}

Result<void> SettingsTable::set(std::string_view name, std::string_view value) {
  const auto setting = std::find_if(settings_.begin(), settings_.end(),
                                    [&](const Setting& s) { return s.name == name; });
  if (setting == settings_.end()) {
    const std::string near = nearest(name);
    const std::string hint = near.empty() ? "" : fmt::format("; did you mean --{}?", near);
    return fail(ErrorCode::kInvalidArgument, fmt::format("unknown setting --{}{}", name, hint),
                std::string(name));
  }
  Result<void> done = setting->set(value);
  if (!done) {
    Error error = done.error();
    error.message = fmt::format("--{}: {}", name, error.message);
    error.where = std::string(name);
    return tl::unexpected<Error>(std::move(error));
  }
  setting->is_set = true;
  return {};
}

// What platforms set for a service that is called like us is passed over with a warning.
Result<void> SettingsTable::read_environment() {
  for (const Setting& setting : settings_) {
    if (setting.is_set) continue;  // what is overridden is not judged
    const std::string variable = environment_name(setting.name);
    const std::string given = environment_value(variable.c_str());
    const std::string_view value = without_outer_space(given);
    if (value.empty()) continue;
    if (is_service_link(setting, variable, value)) {
      log_warn(
          "{} is passed over: it holds what platforms set for a service of that name, and no value "
          "of --{}",
          variable, setting.name);
      continue;
    }
    if (Result<void> done = set(setting.name, value); !done) {
      Error error = done.error();
      error.message = fmt::format("of the environment's {}: {}", variable, error.message);
      return tl::unexpected<Error>(std::move(error));
    }
  }
  return {};
}

std::string SettingsTable::help_text() const {
  std::string text;
  std::string room;
  for (const Setting& setting : settings_) {
    if (setting.room != room) {
      room = setting.room;
      text += fmt::format("\n{}:\n", room);
    }
    const std::string flag = setting.is_switch
                                 ? fmt::format("--[no-]{}", setting.name)
                                 : fmt::format("--{} <{}>", setting.name, setting.type);
    text += fmt::format("  {:<44} {} [{}]\n", flag, setting.doc, setting.default_value);
  }
  return text;
}

Result<int64_t> parse_human_integer(std::string_view text) {
  int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [rest, ec] = std::from_chars(text.data(), end, value);
  if (ec != std::errc() || value < 0 || text[0] == '-') {
    return fail(ErrorCode::kInvalidArgument, fmt::format("'{}' is not a whole number", text));
  }
  std::string_view suffix(rest, static_cast<size_t>(end - rest));
  if (!suffix.empty() && (suffix.back() == 'B' || suffix.back() == 'b')) suffix.remove_suffix(1);
  if (suffix.size() == 2 && suffix[1] == 'i') suffix.remove_suffix(1);
  int shift = 0;
  if (suffix.size() == 1) {
    constexpr std::string_view kUnits = "KMGT";
    const size_t unit = kUnits.find(static_cast<char>(std::toupper(suffix[0])));
    if (unit == std::string_view::npos) suffix = "?";
    shift = 10 * (static_cast<int>(unit) + 1);
  }
  if (suffix.size() > 1 || suffix == "?") {
    return fail(ErrorCode::kInvalidArgument, fmt::format("'{}' has an unknown suffix", text));
  }
  if (value > (std::numeric_limits<int64_t>::max() >> shift)) {
    return fail(ErrorCode::kInvalidArgument, fmt::format("'{}' is too large", text));
  }
  return value << shift;
}

std::string environment_value(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

}  // namespace rudder
