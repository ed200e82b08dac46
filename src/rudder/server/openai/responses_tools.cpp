#include "rudder/server/openai/responses_tools.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "rudder/base/json.h"
#include "rudder/server/request/message_parts.h"

namespace rudder::server {

namespace json = boost::json;

namespace {

constexpr std::string_view kInput = "input";

json::object custom_parameters() {
  return {{"type", "object"},
          {"properties", {{kInput, {{"type", "string"}}}}},
          {"required", {kInput}},
          {"additionalProperties", false}};
}

class ToolsReader {
 public:
  ToolsReader(FieldReader& reader, History& history, ToolForms& forms)
      : reader_(reader), history_(history), forms_(forms) {}

  void read(const json::array& tools, const std::string& path, std::string_view tool_namespace) {
    for (size_t i = 0; i < tools.size() && reader_.ok(); ++i) {
      const std::string at = fmt::format("{}[{}]", path, i);
      const Result<void> read = read_tool(tools[i], at, tool_namespace);
      if (read) continue;
      if (item_ == nullptr) {
        reader_.adopt(read.error());
      } else {
        history_.tell(at);
      }
    }
  }
  void read_brought(const std::vector<AskingItem>& items);
  const DeferredTools& deferred() const { return deferred_; }
  void offer(ToolFields* fields) {
    offer_functions(reader_, std::make_shared<const json::array>(std::move(functions_)), paths_,
                    fields);
  }

 private:
  Result<void> read_tool(const json::value& item, const std::string& path,
                         std::string_view tool_namespace);
  Result<void> read_namespace(const json::object& tool, const std::string& path);
  void add(json::object function, const std::string& path, ToolForm form);
  json::object custom_function(const json::object& tool, const std::string& path);

  FieldReader& reader_;
  History& history_;
  ToolForms& forms_;
  json::array functions_;  // in the form that templates know
  std::vector<ToolPath> paths_;
  std::set<std::string, std::less<>> names_;
  std::string* item_ = nullptr;  // what shows the tools of the item at hand, which is history
  bool is_shown_there_ = false;
  DeferredTools deferred_;  // those that their items show
};

void ToolsReader::add(json::object function, const std::string& path, ToolForm form) {
  const std::string name = function_name(form.tool_namespace, form.name);
  function["name"] = name;
  const bool is_new = names_.insert(name).second;
  if (item_ != nullptr) {
    if (!is_new) return;  // it is shown where it was
    if (functions_.size() >= kMaxTools || !can_be_offered(function)) return history_.tell(path);
    if (is_shown_there_) deferred_.insert(name);
    if (!item_->empty()) *item_ += '\n';
    *item_ += shown_function(function);
  }
  paths_.push_back({path, path + ".parameters"});
  functions_.push_back({{"type", "function"}, {"function", std::move(function)}});
  if (form.is_custom || !form.tool_namespace.empty()) {
    forms_.by_function.emplace(name, std::move(form));
  }
}

// Nothing holds the text to the tool's format; the model is told of it.
json::object ToolsReader::custom_function(const json::object& tool, const std::string& path) {
  json::object function = {{"parameters", custom_parameters()}};
  if (const json::value* description = tool.if_contains("description")) {
    function["description"] = *description;
  }
  const json::value* value = tool.if_contains("format");
  const json::object* format = value != nullptr ? value->if_object() : nullptr;
  const json::value* definition = format != nullptr ? format->if_contains("definition") : nullptr;
  if (definition == nullptr || !definition->is_string()) return function;
  history_.tell(path + ".format");
  json::value& description = function["description"];
  if (!description.is_string()) description = "";
  json::string& text = description.get_string();
  text.append("\n\nThe input fits this grammar:\n");
  text.append(definition->get_string());
  return function;
}

Result<void> ToolsReader::read_namespace(const json::object& tool, const std::string& path) {
  RUDDER_TRY(const std::string name, required_string(tool, "name", path));
  FieldReader fields(tool, path);
  const json::array* tools = fields.array("tools");
  RUDDER_TRY_VOID(fields.result());
  if (tools != nullptr) read(*tools, path + ".tools", name);
  return {};
}

Result<void> ToolsReader::read_tool(const json::value& item, const std::string& path,
                                    std::string_view tool_namespace) {
  const json::object* tool = item.if_object();
  if (tool == nullptr) return field_error(ErrorCode::kInvalidArgument, "must be an object", path);
  RUDDER_TRY(const std::string type, required_string(*tool, "type", path));
  if (type == "namespace" && tool_namespace.empty()) return read_namespace(*tool, path);
  const bool is_custom = type == "custom";
  if (!is_custom && type != "function") {
    history_.tell(path);
    return {};
  }
  RUDDER_TRY(std::string name, required_string(*tool, "name", path));
  json::object function = is_custom ? custom_function(*tool, path) : *tool;
  for (const char* ours : {"type", "defer_loading"}) function.stable_erase(ours);
  add(std::move(function), path, {std::move(name), std::string(tool_namespace), is_custom});
  return {};
}

// A search without an id is a server's own, and is not shown.
void ToolsReader::read_brought(const std::vector<AskingItem>& items) {
  for (const AskingItem& item : items) {
    const json::value* tools = item.fields->if_contains("tools");
    if (item.type != "additional_tools" && item.type != "tool_search_output") continue;
    if (tools == nullptr || !tools->is_array()) continue;
    std::string shown;
    item_ = &shown;
    is_shown_there_ = item.type == "additional_tools" || !call_id_of(*item.fields).empty();
    read(tools->get_array(), item.path + ".tools", "");
    if (!shown.empty() && is_shown_there_) forms_.shown_at.emplace(item.path, std::move(shown));
    item_ = nullptr;
  }
}

// {"type": "function", "name": ..., "namespace": ...}
std::string function_of_response_choice(FieldReader& choice) {
  std::string name;
  std::string tool_namespace;
  choice.string("name", kMaxToolNameBytes, &name);
  choice.string("namespace", kMaxToolNameBytes, &tool_namespace);
  return function_name(tool_namespace, name);
}

constexpr std::string_view kChoiceTypes[] = {"function", "custom"};
constexpr ChoiceForm kResponseForm = {.types = kChoiceTypes,
                                      .list_field = "",
                                      .name_field = "name",
                                      .read_name = function_of_response_choice};

}  // namespace

const ToolForm* ToolForms::find(std::string_view function) const {
  const auto found = by_function.find(function);
  return found == by_function.end() ? nullptr : &found->second;
}

std::string function_name(std::string_view tool_namespace, std::string_view name) {
  if (tool_namespace.empty()) return std::string(name);
  return fmt::format("{}.{}", tool_namespace, name);
}

std::string custom_arguments(std::string_view input) {
  return to_json_text(json::object{{kInput, json::string_view(input)}});
}

std::string custom_input(std::string_view arguments) {
  // What may be missing at the end, and how long half an escaped character is.
  constexpr std::string_view kEndings[] = {"", "}", "\"}"};
  constexpr size_t kMaxHalf = 11;
  for (size_t cut = 0; cut <= std::min(kMaxHalf, arguments.size()); ++cut) {
    for (const std::string_view ending : kEndings) {
      std::string text(arguments.substr(0, arguments.size() - cut));
      text += ending;
      const Result<json::value> parsed = parse_json(text, "arguments");
      const json::object* object = parsed ? parsed->if_object() : nullptr;
      const json::value* input = object != nullptr ? object->if_contains(kInput) : nullptr;
      if (input != nullptr && input->is_string()) return std::string(input->get_string());
      if (object != nullptr && input == nullptr && cut == 0) return std::string(arguments);
    }
  }
  // Cut before the text begins, or of a form of the model's own.
  return arguments.starts_with("{\"input\"") || arguments.size() < 10 ? "" : std::string(arguments);
}

std::string_view call_id_of(const json::object& item) {
  const std::string_view id = string_in(item, "call_id");
  return id.empty() ? string_in(item, "id") : id;
}

ToolFields read_response_tools(FieldReader& reader, const ModelDialect& dialect,
                               const std::vector<AskingItem>& items, History& history,
                               ToolForms& forms) {
  ToolFields fields = begin_tool_fields(reader, dialect);
  ToolsReader each(reader, history, forms);
  if (const json::array* tools = reader.array("tools")) each.read(*tools, "tools", "");
  each.read_brought(items);
  if (reader.ok()) each.offer(&fields);
  if (reader.ok()) {
    fields.choice = read_tool_choice(reader, fields.parser.tools, kResponseForm);
  }
  const bool has_tools = !fields.callable.empty();
  settle_tool_fields(reader, has_tools ? fields.own_offered.get() : nullptr, dialect,
                     each.deferred(), &fields);
  return fields;
}

}  // namespace rudder::server
