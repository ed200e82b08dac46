#include "rudder/server/request/tool_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <utility>

#include "rudder/base/json.h"
#include "rudder/constraint/translate.h"
#include "rudder/server/request/argument_types.h"

namespace rudder::server {

namespace json = boost::json;

namespace {

// Models write names inside JSON, XML and code: what OpenAI allows, and the dots of namespaces.
bool is_tool_name(std::string_view name) {
  return !name.empty() && name.size() <= kMaxToolNameBytes &&
         std::all_of(name.begin(), name.end(), [](char byte) {
           return (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') ||
                  (byte >= '0' && byte <= '9') || byte == '_' || byte == '-' || byte == '.';
         });
}

// An item of chat's list.
void read_tool(FieldReader& reader, const json::value& item, const std::string& path,
               ToolFields* out) {
  const json::object* tool = item.if_object();
  if (tool == nullptr) return reader.error(ErrorCode::kInvalidArgument, "must be an object", path);
  FieldReader fields(*tool, path);
  std::string type;
  fields.string("type", kMaxToolNameBytes, &type);
  if (fields.ok() && type != "function") {
    fields.error(type.empty() ? ErrorCode::kInvalidArgument : ErrorCode::kUnsupported,
                 "must be 'function'", "type");
  }
  const json::object* function = fields.object("function");
  if (fields.ok() && function == nullptr) {
    fields.error(ErrorCode::kInvalidArgument, "is required", "function");
  }
  if (!fields.ok()) return reader.adopt(fields.error());
  offer_function(reader, *function, {path + ".function", path + ".function.parameters"}, out);
}

bool has_too_many(FieldReader& reader, const json::array& list) {
  if (list.size() <= kMaxTools) return false;
  reader.error(ErrorCode::kInvalidArgument, fmt::format("has more than {} tools", kMaxTools),
               "tools");
  return true;
}

// Whether the type of a tool's parameters lets arguments be an object.
bool may_be_object(const json::value& type) {
  if (const json::array* types = type.if_array()) {
    return std::any_of(types->begin(), types->end(),
                       [](const json::value& one) { return one == "object"; });
  }
  return type.is_null() || type == "object";
}

// Where a schema forces arguments, they must be what it can force them to be.
void check_schemas(FieldReader& reader, const ToolFields& fields) {
  for (size_t i = 0; i < fields.callable.size(); ++i) {
    if (!fields.has_schema_enforced(fields.callable[i])) continue;
    const json::value* parameters = fields.callable[i].parameters;
    const json::value* type =
        parameters != nullptr ? parameters->get_object().if_contains("type") : nullptr;
    if (type == nullptr || may_be_object(*type)) continue;
    reader.error(ErrorCode::kInvalidArgument, "must be 'object'", fields.schema_paths[i] + ".type");
  }
}

// One that must be called is shown whether it is deferred or not.
void show_tools(const json::array* tools, const DeferredTools& deferred, ToolFields* out) {
  out->shown = tools;
  if (tools == nullptr || deferred.empty()) return;
  auto shown = std::make_shared<json::array>();
  for (size_t i = 0; i < out->callable.size(); ++i) {
    const std::string& name = out->callable[i].name;
    const bool is_named = !out->choice.allowed.empty() && out->choice.may_call(name);
    if (is_named || !deferred.contains(name)) shown->push_back(tools->at(i));
  }
  out->shown = shown.get();
  out->own_shown = std::move(shown);
}

constraint::GrammarSpec tag_spec(const json::object& format) {
  return {.kind = constraint::GrammarKind::kStructuralTag,
          .text = to_json_text(format),
          .space = constraint::JsonSpace::kCompact};
}

}  // namespace

std::optional<dialect::ParserSetup> ToolFields::parser_after(std::string_view prompt) const {
  dialect::ParserSetup setup = parser;
  if (setup.harmony) {
    setup.opening = dialect::opening_of(prompt);
    return setup;
  }
  if (setup.reasoning != nullptr) {
    switch (dialect::reasoning_after(*setup.reasoning, prompt)) {
      case dialect::PromptEnd::kOpen:
        setup.in_reasoning = true;
        break;
      case dialect::PromptEnd::kClosed:
        setup.reasoning = nullptr;
        break;
      case dialect::PromptEnd::kNeither:
        break;
    }
  }
  if (setup.calls == nullptr && setup.reasoning == nullptr) return std::nullopt;
  return setup;
}

dialect::FindSpecial special_marks(const text::Tokenizer& tokenizer) {
  return [&tokenizer](std::string_view mark) {
    const std::optional<int32_t> id = tokenizer.token_to_id(mark);
    return id && tokenizer.is_special(*id) ? id : std::nullopt;
  };
}

bool ToolFields::has_schema_enforced(const dialect::CallableTool& tool) const {
  return choice.may_call(tool.name) && (is_forced() || tool.is_strict);
}

std::vector<dialect::CallableTool> ToolFields::allowed() const {
  std::vector<dialect::CallableTool> tools = callable;
  std::erase_if(tools, [&](const auto& tool) { return !choice.may_call(tool.name); });
  return tools;
}

std::optional<constraint::GrammarSpec> ToolFields::grammar(const dialect::ParserSetup& setup,
                                                           const text::Tokenizer& tokenizer) const {
  if (choice.mode == ToolChoice::Mode::kNone) return std::nullopt;
  const std::vector<dialect::CallableTool> tools = allowed();
  const bool is_free = tools.size() == callable.size() &&
                       std::ranges::none_of(tools, &dialect::CallableTool::is_strict);
  if (!is_forced() && is_free) return std::nullopt;
  const dialect::FindSpecial find_special = special_marks(tokenizer);
  const bool several = setup.max_calls > 1;
  return tag_spec(is_forced() ? dialect::call_format(setup, tools, several, find_special)
                              : dialect::text_or_calls_format(setup, tools, several, find_special));
}

constraint::GrammarSpec ToolFields::grammar_beside(const json::object& content,
                                                   const dialect::ParserSetup& setup,
                                                   const text::Tokenizer& tokenizer) const {
  return tag_spec(dialect::content_or_calls_format(setup, content, allowed(), setup.max_calls > 1,
                                                   special_marks(tokenizer)));
}

std::optional<Error> ToolFields::schema_error() const {
  constraint::Fuel fuel(constraint::Fuel::kRequestWork);
  for (size_t i = 0; i < callable.size(); ++i) {
    if (!has_schema_enforced(callable[i])) continue;
    const Result<std::string> grammar =
        constraint::to_ebnf(fuel, {.kind = constraint::GrammarKind::kJsonSchema,
                                   .text = to_json_text(dialect::arguments_schema(callable[i])),
                                   .space = constraint::JsonSpace::kCompact});
    if (grammar) continue;
    Error error = grammar.error();
    error.where = schema_paths[i] + error.where;
    error.message = fmt::format("{} {}", error.where, error.message);
    return error;
  }
  return std::nullopt;
}

ToolFields begin_tool_fields(FieldReader& reader, const ModelDialect& dialect) {
  ToolFields fields;
  reader.boolean("parallel_tool_calls", &fields.parallel);
  reader.boolean("include_reasoning", &fields.include_reasoning);
  bool separate = true;
  reader.boolean("separate_reasoning", &separate);
  if (separate) fields.parser.reasoning = dialect.reasoning;
  fields.parser.harmony = dialect::is_harmony(dialect.calls, dialect.reasoning);
  return fields;
}

void offer_function(FieldReader& reader, const json::object& function, ToolPath path,
                    ToolFields* fields) {
  FieldReader about(function, path.fields);
  std::string name;
  std::string description;
  bool strict = false;
  about.string("name", kMaxToolNameBytes, &name);
  about.string("description", SIZE_MAX, &description);
  about.boolean("strict", &strict);
  const json::object* parameters = about.object("parameters");
  if (about.ok() && !is_tool_name(name)) {
    about.error(ErrorCode::kInvalidArgument,
                fmt::format("must be 1 to {} letters, digits, '_', '-' or '.'", kMaxToolNameBytes),
                "name");
  }
  if (has_tool(fields->parser.tools, name)) {
    about.error(ErrorCode::kInvalidArgument, "is another tool's name too", "name");
  }
  if (!about.ok()) return reader.adopt(about.error());
  fields->callable.push_back({name, function.if_contains("parameters"), strict});
  if (parameters == nullptr) fields->callable.back().parameters = nullptr;  // null is "absent"
  fields->schema_paths.push_back(std::move(path.schema));
  dialect::Tool offered = {.name = std::move(name)};
  if (parameters != nullptr) read_argument_types(*parameters, &offered);
  fields->parser.tools.push_back(std::move(offered));
}

bool can_be_offered(const json::object& function) {
  FieldReader reader(function, "");
  ToolFields fields;
  offer_function(reader, function, {}, &fields);
  return reader.ok();
}

void offer_functions(FieldReader& reader, std::shared_ptr<const json::array> list,
                     const std::vector<ToolPath>& paths, ToolFields* fields) {
  if (has_too_many(reader, *list)) return;
  for (size_t i = 0; i < list->size() && reader.ok(); ++i) {
    offer_function(reader, (*list)[i].at("function").get_object(), paths[i], fields);
  }
  fields->own_offered = std::move(list);
}

void settle_tool_fields(FieldReader& reader, const json::array* offered,
                        const ModelDialect& dialect, const DeferredTools& deferred,
                        ToolFields* fields) {
  if (fields->choice.mode == ToolChoice::Mode::kNone) return;
  check_schemas(reader, *fields);
  show_tools(offered, deferred, fields);
  fields->parser.calls = dialect.calls;
  fields->parser.must_call = fields->is_forced();
  if (!fields->parallel || fields->choice.is_single) fields->parser.max_calls = 1;
}

ToolFields read_tool_fields(FieldReader& reader, const ModelDialect& dialect) {
  ToolFields fields = begin_tool_fields(reader, dialect);
  const json::array* tools = reader.array("tools");
  if (tools != nullptr && !has_too_many(reader, *tools)) {
    for (size_t i = 0; i < tools->size() && reader.ok(); ++i) {
      read_tool(reader, (*tools)[i], fmt::format("tools[{}]", i), &fields);
    }
  }
  if (reader.ok()) fields.choice = read_tool_choice(reader, fields.parser.tools);
  settle_tool_fields(reader, tools, dialect, {}, &fields);
  return fields;
}

Result<ModelDialect> find_dialect(const ServerModel& model, std::string_view tool_call_parser,
                                  std::string_view reasoning_parser) {
  ModelDialect found;
  const std::string source = model.chat != nullptr ? model.chat->source() : "";
  if (!tool_call_parser.empty()) {
    RUDDER_TRY(found.calls, dialect::find_tool_dialect(tool_call_parser));
  } else if (const auto* shown = dialect::detect_tool_dialect(source)) {
    found.calls = shown;
  }
  if (!reasoning_parser.empty()) {
    RUDDER_TRY(found.reasoning, dialect::find_reasoning_dialect(reasoning_parser));
  } else {
    found.reasoning = dialect::detect_reasoning_dialect(source);
  }
  if (model.tokenizer == nullptr) return found;
  for (const std::string_view mark : dialect::marks_of(found.calls, found.reasoning)) {
    const std::optional<int32_t> id = model.tokenizer->token_to_id(mark);
    if (id && model.tokenizer->is_special(*id)) found.special_marks.push_back(*id);
  }
  std::sort(found.special_marks.begin(), found.special_marks.end());
  return found;
}

}  // namespace rudder::server
