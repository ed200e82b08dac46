#include "rudder/server/request/tool_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>

namespace rudder::server {

namespace json = boost::json;

namespace {

bool has_tool(const std::vector<dialect::Tool>& tools, std::string_view name) {
  return std::ranges::find(tools, name, &dialect::Tool::name) != tools.end();
}

// {"function": {"name": ...}}, which has to be the name of one of the tools.
std::string read_function_name(FieldReader& fields, const std::vector<dialect::Tool>& tools) {
  const json::object* function = fields.object("function");
  if (function == nullptr) {
    fields.error(ErrorCode::kInvalidArgument, "is required", "function");
    return {};
  }
  FieldReader about(*function, fields.path_of("function"));
  std::string name;
  about.string("name", kMaxToolNameBytes, &name);
  if (about.ok() && !has_tool(tools, name)) {
    about.error(ErrorCode::kInvalidArgument, "must be the name of one of the tools", "name");
  }
  fields.adopt(about);
  return name;
}

// One of the tools of `allowed_tools`: {"type": "function", "function": {"name": ...}}.
std::string read_allowed_tool(FieldReader& reader, const json::value& item, const std::string& name,
                              const std::vector<dialect::Tool>& tools) {
  const json::object* tool = item.if_object();
  if (tool == nullptr) {
    reader.error(ErrorCode::kInvalidArgument, "must be an object", name);
    return {};
  }
  FieldReader fields(*tool, reader.path_of(name));
  std::string type;
  fields.string("type", kMaxToolNameBytes, &type);
  if (fields.ok() && type != "function") {
    fields.error(ErrorCode::kInvalidArgument, "must be 'function'", "type");
  }
  std::string allowed = read_function_name(fields, tools);
  reader.adopt(fields);
  return allowed;
}

void read_allowed(FieldReader& fields, const std::vector<dialect::Tool>& tools, ToolChoice* out) {
  const json::object* allowed = fields.object("allowed_tools");
  if (allowed == nullptr) {
    return fields.error(ErrorCode::kInvalidArgument, "is required", "allowed_tools");
  }
  FieldReader about(*allowed, fields.path_of("allowed_tools"));
  std::string mode;
  about.string("mode", kMaxToolNameBytes, &mode);
  if (about.ok() && mode != "auto" && mode != "required") {
    about.error(ErrorCode::kInvalidArgument, "must be 'auto' or 'required'", "mode");
  }
  const json::array* list = about.array("tools");
  if (list == nullptr || list->empty()) {
    about.error(ErrorCode::kInvalidArgument, "must name at least one of the tools", "tools");
  } else if (list->size() > tools.size()) {
    about.error(ErrorCode::kInvalidArgument, "names more tools than there are", "tools");
  }
  for (size_t i = 0; about.ok() && i < list->size(); ++i) {
    out->allowed.push_back(
        read_allowed_tool(about, list->at(i), fmt::format("tools[{}]", i), tools));
  }
  out->mode = mode == "required" ? ToolChoice::Mode::kRequired : ToolChoice::Mode::kAuto;
  fields.adopt(about);
}

}  // namespace

bool ToolChoice::may_call(std::string_view tool) const {
  return allowed.empty() || std::ranges::find(allowed, tool) != allowed.end();
}

ToolChoice read_tool_choice(FieldReader& reader, const std::vector<dialect::Tool>& tools) {
  using Mode = ToolChoice::Mode;
  ToolChoice choice{.mode = tools.empty() ? Mode::kNone : Mode::kAuto, .allowed = {}};
  const json::value* value = reader.raw("tool_choice");
  if (value == nullptr) return choice;
  const json::string* word = value->if_string();
  if (word != nullptr && *word == "none") return {};
  if (word != nullptr && *word == "auto") return choice;
  if (word != nullptr ? *word != "required" : !value->is_object()) {
    reader.error(ErrorCode::kInvalidArgument,
                 "must be 'none', 'auto', 'required' or an object of type 'function' or "
                 "'allowed_tools'",
                 "tool_choice");
    return choice;
  }
  if (tools.empty()) {
    reader.error(ErrorCode::kInvalidArgument, "needs tools", "tool_choice");
    return choice;
  }
  choice.mode = Mode::kRequired;
  if (word != nullptr) return choice;
  FieldReader fields(value->get_object(), "tool_choice");
  std::string type;
  fields.string("type", kMaxToolNameBytes, &type);
  if (type == "allowed_tools") {
    read_allowed(fields, tools, &choice);
  } else if (type == "function") {
    choice.allowed = {read_function_name(fields, tools)};
    choice.is_single = true;
  } else {
    fields.error(ErrorCode::kInvalidArgument, "must be 'function' or 'allowed_tools'", "type");
  }
  reader.adopt(fields);
  return choice;
}

}  // namespace rudder::server
