#include "rudder/steer/numbered.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <charconv>
#include <cmath>
#include <optional>

#include "rudder/steer/invalid_field.h"
#include "rudder/steer/vectors.h"
#include "rudder/tap/sequence_taps.h"

namespace rudder::steer {
namespace {

namespace json = boost::json;

// A whole number without leading zeros; below 0 too.
std::optional<int32_t> whole_number(std::string_view text) {
  int32_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string_view digits = text.starts_with('-') ? text.substr(1) : text;
  const bool is_plain = digits.size() == 1 || !digits.starts_with('0');
  if (error != std::errc{} || end != text.data() + text.size() || !is_plain) return std::nullopt;
  return number;
}

Result<int32_t> from_the_front(int32_t number, const Numbered& things, const std::string& path) {
  const int64_t at = number < 0 ? int64_t{things.count} + number : int64_t{number};
  if (at >= 0 && at < things.count) return static_cast<int32_t>(at);
  return invalid_field(fmt::format("{} {} of {}", things.noun, number, things.of), path);
}

class NumbersReader {
 public:
  explicit NumbersReader(const Numbered& things) : things_(things) {}

  Result<void> read(const json::value& value, const std::string& path) {
    if (const json::string* text = value.if_string()) return read_text(*text, path);
    if (const json::array* list = value.if_array()) return read_list(*list, path);
    if (const json::object* object = value.if_object()) return read_object(*object, path);
    if (!value.is_number()) return invalid_field(forms(), path);
    RUDDER_TRY(const int32_t number, read_number_of(value, things_, path));
    return add(number, path);
  }

  std::vector<int32_t> take() { return std::move(numbers_); }

 private:
  std::string plural() const { return fmt::format("{}s", things_.noun); }
  std::string forms() const {
    return fmt::format(
        R"(a {}, a list of {}, "all", "4-7" or {{"ranges": [[first, last]]}} is needed)",
        things_.noun, plural());
  }

  Result<void> read_list(const json::array& list, const std::string& path) {
    if (list.empty()) return invalid_field(fmt::format("the list of {} is empty", plural()), path);
    for (size_t i = 0; i < list.size(); ++i) {
      const std::string at = fmt::format("{}[{}]", path, i);
      if (const json::string* text = list[i].if_string()) {
        RUDDER_TRY_VOID(read_text(*text, at));
      } else {
        RUDDER_TRY(const int32_t number, read_number_of(list[i], things_, at));
        RUDDER_TRY_VOID(add(number, at));
      }
    }
    return {};
  }

  Result<void> read_object(const json::object& object, const std::string& path) {
    if (object.empty()) return invalid_field(forms(), path);
    for (const auto& [key, value] : object) {
      const std::string at = fmt::format("{}.{}", path, std::string_view(key));
      const json::array* list = value.if_array();
      const bool is_list = std::string_view(key) == plural();
      if (!is_list && key != "ranges") {
        return invalid_field(fmt::format("unknown field: {} and ranges are known", plural()), at);
      }
      if (list == nullptr) return invalid_field("must be a list", at);
      RUDDER_TRY_VOID(is_list ? read_list(*list, at) : read_ranges(*list, at));
    }
    return {};
  }

  Result<void> read_ranges(const json::array& list, const std::string& path) {
    if (list.empty()) return invalid_field(fmt::format("names no {}", things_.noun), path);
    for (size_t i = 0; i < list.size(); ++i) {
      const std::string at = fmt::format("{}[{}]", path, i);
      const json::array* pair = list[i].if_array();
      if (pair == nullptr || pair->size() != 2) return invalid_field("must be [first, last]", at);
      RUDDER_TRY(const int32_t first, read_number_of((*pair)[0], things_, at + "[0]"));
      RUDDER_TRY(const int32_t last, read_number_of((*pair)[1], things_, at + "[1]"));
      RUDDER_TRY_VOID(add_range(first, last, at));
    }
    return {};
  }

  // "4,8-12,-1": the dash of a range is not the first character of its part.
  Result<void> read_text(std::string_view text, const std::string& path) {
    while (true) {
      const size_t comma = text.find(',');
      const std::string_view part = text.substr(0, comma);
      const size_t dash = part.find('-', 1);
      RUDDER_TRY(const int32_t first, read_number_of(part.substr(0, dash), things_, path));
      int32_t last = first;
      if (dash != std::string_view::npos) {
        RUDDER_TRY(last, read_number_of(part.substr(dash + 1), things_, path));
      }
      RUDDER_TRY_VOID(add_range(first, last, path));
      if (comma == std::string_view::npos) return {};
      text.remove_prefix(comma + 1);
    }
  }

  Result<void> add_range(int32_t first, int32_t last, const std::string& path) {
    if (first > last) {
      return invalid_field(
          fmt::format("the range from {} {} to {} is empty", things_.noun, first, last), path);
    }
    for (int32_t number = first; number <= last; ++number) RUDDER_TRY_VOID(add(number, path));
    return {};
  }

  Result<void> add(int32_t number, const std::string& path) {
    const Result<void> known = things_.check(number);
    if (!known) return invalid_field(known.error().message, path);
    if (std::ranges::find(numbers_, number) != numbers_.end()) {
      return invalid_field(fmt::format("{} {} is given twice", things_.noun, number), path);
    }
    numbers_.push_back(number);
    return {};
  }

  const Numbered& things_;
  std::vector<int32_t> numbers_;
};

}  // namespace

Result<std::vector<int32_t>> read_numbers(const json::value& value, const Numbered& things,
                                          const std::string& path) {
  NumbersReader reader(things);
  RUDDER_TRY_VOID(reader.read(value, path));
  return reader.take();
}

Result<int32_t> read_number_of(const json::value& value, const Numbered& things,
                               const std::string& path) {
  json::value whole = value;
  if (value.is_double() && value.get_double() == std::floor(value.get_double()) &&
      std::abs(value.get_double()) < tap::kNoEnd) {
    whole = static_cast<int64_t>(value.get_double());
  }
  RUDDER_TRY(const int32_t number, read_int(whole, path));
  return from_the_front(number, things, path);
}

Result<int32_t> read_number_of(std::string_view text, const Numbered& things,
                               const std::string& path) {
  const std::optional<int32_t> number = whole_number(text);
  if (!number) {
    return invalid_field(fmt::format("the number of a {} is needed", things.noun), path);
  }
  return from_the_front(*number, things, path);
}

}  // namespace rudder::steer
