#include "rudder/server/request/tool_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>

namespace rudder::server {

namespace json = boost::json;

namespace {

// {"type": "function", "function": {"name": ...}}
std::string function_of_choice(FieldReader& choice) {
  const json::object* function = choice.object("function");
  if (function == nullptr) {
    choice.error(ErrorCode::kInvalidArgument, "is required", "function");
    return {};
  }
  FieldReader about(*function, choice.path_of("function"));
  std::string name;
  about.string("name", kMaxToolNameBytes, &name);
  choice.adopt(about);
  return name;
}

constexpr std::string_view kChatTypes[] = {"function"};
constexpr ChoiceForm kChatForm = {.types = kChatTypes,
                                  .list_field = "allowed_tools",
                                  .name_field = "function.name",
                                  .read_name = function_of_choice};

class ChoiceReader {
 public:
  ChoiceReader(const std::vector<dialect::Tool>& tools, const ChoiceForm& form)
      : tools_(tools), form_(form) {}

  // An object: one tool, or a list of those that are allowed.
  void read(FieldReader& fields, ToolChoice* out) const {
    std::string type;
    fields.string("type", kMaxToolNameBytes, &type);
    const bool is_list = type == "allowed_tools";
    if (!is_list) check_type(fields, type, " or 'allowed_tools'");
    if (!fields.ok()) return;
    if (tools_.empty()) return fields.adopt(invalid_field("needs tools", "tool_choice").value());
    if (is_list) return read_list(fields, out);
    out->allowed = {name_of_tool(fields)};
    out->is_single = true;
  }

 private:
  void check_type(FieldReader& fields, std::string_view type, std::string_view also) const {
    if (!fields.ok() || std::ranges::find(form_.types, type) != form_.types.end()) return;
    fields.error(ErrorCode::kInvalidArgument,
                 fmt::format("must be '{}'{}", fmt::join(form_.types, "', '"), also), "type");
  }

  std::string name_of_tool(FieldReader& fields) const {
    std::string name = form_.read_name(fields);
    if (fields.ok() && !has_tool(tools_, name)) {
      fields.error(ErrorCode::kInvalidArgument, "must be the name of one of the tools",
                   form_.name_field);
    }
    return name;
  }

  void read_list(FieldReader& fields, ToolChoice* out) const {
    if (form_.list_field.empty()) return read_allowed(fields, out);
    const json::object* allowed = fields.object(form_.list_field);
    if (allowed == nullptr) {
      return fields.error(ErrorCode::kInvalidArgument, "is required", form_.list_field);
    }
    FieldReader about(*allowed, fields.path_of(form_.list_field));
    read_allowed(about, out);
    fields.adopt(about);
  }

  void read_allowed(FieldReader& about, ToolChoice* out) const {
    std::string mode;
    about.string("mode", kMaxToolNameBytes, &mode);
    if (about.ok() && mode != "auto" && mode != "required") {
      about.error(ErrorCode::kInvalidArgument, "must be 'auto' or 'required'", "mode");
    }
    const json::array* list = about.array("tools");
    if (list == nullptr || list->empty()) {
      about.error(ErrorCode::kInvalidArgument, "must name at least one of the tools", "tools");
    } else if (list->size() > tools_.size()) {
      about.error(ErrorCode::kInvalidArgument, "names more tools than there are", "tools");
    }
    for (size_t i = 0; about.ok() && i < list->size(); ++i) {
      const std::string name = fmt::format("tools[{}]", i);
      const json::object* tool = list->at(i).if_object();
      if (tool == nullptr) {
        return about.error(ErrorCode::kInvalidArgument, "must be an object", name);
      }
      FieldReader item(*tool, about.path_of(name));
      std::string type;
      item.string("type", kMaxToolNameBytes, &type);
      check_type(item, type, "");
      if (item.ok()) out->allowed.push_back(name_of_tool(item));
      about.adopt(item);
    }
    out->mode = mode == "required" ? ToolChoice::Mode::kRequired : ToolChoice::Mode::kAuto;
  }

  const std::vector<dialect::Tool>& tools_;
  const ChoiceForm& form_;
};

}  // namespace

bool ToolChoice::may_call(std::string_view tool) const {
  return allowed.empty() || std::ranges::find(allowed, tool) != allowed.end();
}

bool has_tool(const std::vector<dialect::Tool>& tools, std::string_view name) {
  return std::ranges::find(tools, name, &dialect::Tool::name) != tools.end();
}

ToolChoice read_tool_choice(FieldReader& reader, const std::vector<dialect::Tool>& tools,
                            const ChoiceForm& form) {
  using Mode = ToolChoice::Mode;
  ToolChoice choice{.mode = tools.empty() ? Mode::kNone : Mode::kAuto, .allowed = {}};
  const json::value* value = reader.raw("tool_choice");
  if (value == nullptr) return choice;
  const json::string* word = value->if_string();
  if (word != nullptr && *word == "none") return {};
  if (word != nullptr && *word == "auto") return choice;
  choice.mode = Mode::kRequired;
  if (const json::object* object = value->if_object()) {
    FieldReader fields(*object, "tool_choice");
    ChoiceReader(tools, form).read(fields, &choice);
    reader.adopt(fields);
  } else if (word == nullptr || *word != "required") {
    reader.error(ErrorCode::kInvalidArgument,
                 fmt::format("must be 'none', 'auto', 'required' or an object of type '{}' or "
                             "'allowed_tools'",
                             fmt::join(form.types, "', '")),
                 "tool_choice");
  } else if (tools.empty()) {
    reader.error(ErrorCode::kInvalidArgument, "needs tools", "tool_choice");
  }
  return choice;
}

ToolChoice read_tool_choice(FieldReader& reader, const std::vector<dialect::Tool>& tools) {
  return read_tool_choice(reader, tools, kChatForm);
}

}  // namespace rudder::server
