#include "rudder/server/request/history.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <utility>

#include "rudder/base/json.h"
#include "rudder/server/request/field_reader.h"
#include "rudder/server/request/message_parts.h"

namespace rudder::server {

namespace json = boost::json;

namespace {

constexpr size_t kMaxTold = 16;

struct StandIn {
  std::string_view within;  // the name of a type
  std::string_view text;
};
constexpr std::array<StandIn, 6> kStandIns = {{{"image", "[image]"},
                                               {"screenshot", "[image]"},
                                               {"audio", "[audio]"},
                                               {"video", "[video]"},
                                               {"file", "[file]"},
                                               {"document", "[file]"}}};

}  // namespace

void History::tell(std::string path) {
  ++num_told_;
  if (told_.size() < kMaxTold) told_.push_back(std::move(path));
}

Result<std::string> History::stand_in(std::string_view type, const std::string& path,
                                      bool is_asked) {
  if (is_asked) return unsupported_type(type, "'text'", path);
  tell(path);
  const auto* found = std::ranges::find_if(
      kStandIns, [&](const StandIn& known) { return type.find(known.within) != type.npos; });
  return std::string(found == kStandIns.end() ? std::string_view() : found->text);
}

Result<std::string> History::text_in(const json::object& object, std::string_view name,
                                     const std::string& path, bool is_asked) {
  const json::value* value = object.if_contains(name);
  const bool is_absent = value == nullptr || value->is_null();
  if (!is_absent || is_asked) return required_string(object, name, path);
  tell(fmt::format("{}.{}", path, name));
  return std::string();
}

Result<json::value> History::content_in(const json::object& message, const std::string& path,
                                        bool is_asked) {
  const json::value* content = message.if_contains("content");
  if (content != nullptr && !content->is_null()) return *content;
  if (is_asked) return invalid_field("is required", path + ".content");
  tell(path + ".content");
  return json::value("");
}

Result<std::string> History::part_type(const json::object& part, const std::string& path,
                                       bool is_asked) {
  const json::value* type = part.if_contains("type");
  if (type != nullptr && !type->is_null()) return required_string(part, "type", path);
  const json::value* text = part.if_contains("text");
  if (text != nullptr && text->is_string()) return std::string("text");
  if (is_asked) return required_string(part, "type", path);
  return std::string();  // what nothing stands for
}

json::value History::open_arguments(const json::value& arguments, const std::string& path) {
  if (arguments.is_object()) return arguments;
  if (arguments.is_null()) return json::object();
  if (!arguments.is_string()) {
    tell(path);
    return json::object{{"arguments", arguments}};
  }
  const std::string_view text(arguments.get_string());
  if (text.empty()) return json::object();
  const Result<json::value> parsed = parse_json(text, "arguments");
  if (parsed && parsed->is_object()) return arguments;
  tell(path);
  return json::object{{"arguments", arguments}};
}

}  // namespace rudder::server
