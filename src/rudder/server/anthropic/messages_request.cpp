#include "rudder/server/anthropic/messages_request.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "rudder/server/anthropic/messages_input.h"
#include "rudder/server/request/chat_messages.h"
#include "rudder/server/request/generation_ask.h"
#include "rudder/server/request/message_parts.h"
#include "rudder/server/request/sampling_fields.h"

namespace rudder::server {

namespace json = boost::json;

namespace {

class MessagesReader {
 public:
  MessagesReader(const json::object& body, const GenerationScope& scope)
      : body_(body), scope_(scope), reader_(body, "") {
    reader_.show_limits(&scope.limits);
  }

  tl::expected<GenerationRequest, ApiError> parse();
  tl::expected<PromptCount, ApiError> count();

 private:
  tl::expected<GenerationAsk, ApiError> read();
  void read_own_fields(GenerationAsk* ask);
  Result<void> read_conversation();
  void read_tools();
  void read_tool(const json::value& item, const std::string& path);
  void add_function(const json::object& function, ToolPath path);
  void offer_tools(GenerationAsk* ask);
  ToolChoice read_choice(ToolFields& tools);
  void read_thinking(GenerationAsk* ask);
  FormatField read_output();

  const json::object& body_;
  const GenerationScope& scope_;
  FieldReader reader_;
  Conversation conversation_;
  std::optional<int64_t> max_tokens_;
  json::array shown_;            // the tools, in the form that templates know
  std::vector<ToolPath> paths_;  // of each
  json::object functions_;       // of the tools, by name
  std::set<std::string, std::less<>> tools_of_nobody_;  // that a server would have to run
  bool has_search_ = false;                             // one of these finds deferred tools
  DeferredTools deferred_;
};

Result<void> MessagesReader::read_conversation() {
  MessagesInput input = {conversation_, functions_};
  if (const json::value* system = reader_.raw("system")) {
    RUDDER_TRY_VOID(read_system(*system, input));
  }
  const json::array* list = reader_.array("messages");
  RUDDER_TRY_VOID(reader_.result());
  if (list == nullptr) return field_error(ErrorCode::kInvalidArgument, "is required", "messages");
  if (list->empty()) {
    return field_error(ErrorCode::kInvalidArgument, "must hold at least one message", "messages");
  }
  RUDDER_TRY_VOID(read_message_list(*list, input));
  if (conversation_.messages.empty()) return {};
  // What ends with a call, or without a word, cannot be carried on: an answer follows it.
  const json::object& last = conversation_.last();
  if (last.at("role") == "assistant" && !last.contains("tool_calls") && last.at("content") != "") {
    conversation_.options.continue_final_message = true;
    conversation_.options.add_generation_prompt = false;
  }
  return {};
}

void MessagesReader::add_function(const json::object& function, ToolPath path) {
  shown_.push_back({{"type", "function"}, {"function", function}});
  paths_.push_back(std::move(path));
}

// Tools with a schema are the client's. Others run where Anthropic's models do, or have a form that
// only those know: nobody could call them here.
void MessagesReader::read_tool(const json::value& item, const std::string& path) {
  const json::object* tool = item.if_object();
  if (tool == nullptr) return reader_.error(ErrorCode::kInvalidArgument, "must be an object", path);
  FieldReader fields(*tool, path);
  std::string type = "custom";
  std::string name;
  bool is_deferred = false;
  fields.string("type", kMaxNameBytes, &type);
  fields.boolean("defer_loading", &is_deferred);
  if (type != "custom") fields.string("name", kMaxNameBytes, &name);
  if (!fields.ok()) return reader_.adopt(fields.error());
  if (type != "custom") {
    has_search_ = has_search_ || type.starts_with("tool_search");
    tools_of_nobody_.insert(name);
    return conversation_.history.tell(path);
  }
  Result<json::object> function = function_of_tool(*tool, path);
  if (!function) return reader_.adopt(function.error());
  add_function(*function, {path, path + ".input_schema"});
  name = std::string_view(function->at("name").get_string());
  if (is_deferred) deferred_.insert(name);
  functions_.insert_or_assign(name, *std::move(function));
}

void MessagesReader::read_tools() {
  const json::array* tools = reader_.array("tools");
  if (tools == nullptr) return;
  for (size_t i = 0; i < tools->size() && reader_.ok(); ++i) {
    read_tool((*tools)[i], fmt::format("tools[{}]", i));
  }
  // Nobody would ever find them.
  if (has_search_ || deferred_.size() == functions_.size()) deferred_.clear();
}

// Those that its messages define may be called too, and are shown there.
void MessagesReader::offer_tools(GenerationAsk* ask) {
  for (size_t i = shown_.size(); i < functions_.size(); ++i) {
    const auto& function = *(functions_.begin() + static_cast<ptrdiff_t>(i));
    add_function(function.value().as_object(), {"messages", "messages"});
    deferred_.emplace(function.key());
  }
  ToolFields& tools = ask->tools;
  offer_functions(reader_, std::make_shared<const json::array>(std::move(shown_)), paths_, &tools);
  if (reader_.ok()) tools.choice = read_choice(tools);
  const bool has_tools = !tools.callable.empty();
  settle_tool_fields(reader_, has_tools ? tools.own_offered.get() : nullptr, scope_.model.dialect,
                     deferred_, &tools);
}

ToolChoice MessagesReader::read_choice(ToolFields& tools) {
  using Mode = ToolChoice::Mode;
  const Mode free = tools.callable.empty() ? Mode::kNone : Mode::kAuto;
  const json::object* choice = reader_.object("tool_choice");
  if (choice == nullptr) return {.mode = free, .allowed = {}};
  FieldReader fields(*choice, "tool_choice");
  bool is_single = false;
  fields.boolean("disable_parallel_tool_use", &is_single);
  if (is_single) tools.parallel = false;
  ToolChoice chosen;
  std::string type;
  std::string name;
  fields.string("type", kMaxNameBytes, &type);
  fields.string("name", kMaxNameBytes, &name);
  if (!fields.ok()) {
    reader_.adopt(fields);
    return chosen;
  }
  if (type == "none") return chosen;
  if (type == "auto") {
    chosen.mode = free;
  } else if (type == "any" || type == "tool") {
    chosen.mode = Mode::kRequired;
  } else {
    fields.error(ErrorCode::kInvalidArgument, "must be auto, any, tool or none", "type");
  }
  if (type == "tool") {
    chosen.allowed = {name};
    chosen.is_single = true;
  }
  if (type == "tool" && tools_of_nobody_.contains(name)) {
    fields.error(ErrorCode::kUnsupported,
                 "is a tool that this server would have to run, which it does not", "name");
  } else if (fields.ok() && chosen.mode == Mode::kRequired && tools.callable.empty()) {
    fields.adopt(invalid_field("needs tools", "tool_choice").value());
  } else if (type == "tool" && !has_tool(tools.parser.tools, name)) {
    fields.error(ErrorCode::kInvalidArgument, "must be the name of one of the tools", "name");
  }
  reader_.adopt(fields);
  return chosen;
}

// What templates ask for when a model can think or not.
void MessagesReader::read_thinking(GenerationAsk* ask) {
  const json::object* thinking = reader_.object("thinking");
  if (thinking == nullptr) return;
  FieldReader fields(*thinking, "thinking");
  std::string type;
  std::optional<int64_t> budget;
  std::string display;
  fields.string("type", kMaxNameBytes, &type);
  fields.integer("budget_tokens", 1, INT32_MAX, &budget);
  fields.string("display", kMaxNameBytes, &display);
  ask->answer.message.seals_thoughts = display == "omitted";  // else they are told whole
  if (type != "enabled" && type != "disabled" && type != "adaptive") {
    fields.error(ErrorCode::kInvalidArgument, "must be enabled, disabled or adaptive", "type");
  }
  if (budget && max_tokens_ && *budget >= *max_tokens_) {
    fields.error(ErrorCode::kInvalidArgument, "must be below max_tokens", "budget_tokens");
  }
  if (budget && ask->tools.parser.reasoning != nullptr) {
    ask->thinking_budget = static_cast<int32_t>(*budget);
  } else if (budget) {
    fields.ignore("thinking.budget_tokens");  // nobody knows where a thought would end
  }
  if (type != "adaptive") conversation_.kwargs["enable_thinking"] = type == "enabled";
  reader_.adopt(fields);
}

// Its newer place is output_config.format, its older one output_format.
FormatField MessagesReader::read_output() {
  FormatField format = {.value = reader_.raw("output_format"), .path = "output_format"};
  if (const json::object* config = reader_.object("output_config")) {
    FieldReader fields(*config, "output_config");
    read_reasoning_effort(fields, "effort", &conversation_);
    const json::value* newer = fields.raw("format");
    reader_.adopt(fields);
    if (newer != nullptr && format.value != nullptr) {
      reader_.error(ErrorCode::kInvalidArgument,
                    "is not allowed together with output_config.format", format.path);
    }
    if (newer != nullptr) format = {.value = newer, .path = "output_config.format"};
  }
  if (format.value == nullptr) return {};
  const json::object* object = format.value->if_object();
  const json::value* type = object != nullptr ? object->if_contains("type") : nullptr;
  const json::value* schema = object != nullptr ? object->if_contains("schema") : nullptr;
  if (type != nullptr && *type == "json_schema" && schema != nullptr && schema->is_object()) {
    return format;
  }
  reader_.error(ErrorCode::kInvalidArgument, "must be a json_schema with its schema", format.path);
  return {};
}

void MessagesReader::read_own_fields(GenerationAsk* ask) {
  ask->names.stop = "stop_sequences";
  read_integer(reader_, "max_tokens", &max_tokens_, "max_completion_tokens");
  if (max_tokens_) ask->params.max_tokens = static_cast<int32_t>(*max_tokens_);
  if (reader_.array("stop_sequences") != nullptr) {
    read_stop(reader_, "stop_sequences", &ask->params.stop);
  }
  ask->tools = begin_tool_fields(reader_, scope_.model.dialect);
  read_tools();
  read_template_fields(reader_, &conversation_);
  read_thinking(ask);
  read_thinking_budget(reader_, ask->tools.parser.reasoning, &ask->thinking_budget);
  ask->structured = read_structured_output(reader_, read_output());
  refuse_fields_of_chat(reader_);
  reader_.refuse("container", "is not supported");
  reader_.refuse("mcp_servers", "is not supported");
  reader_.refuse("steering_pair", "gives two answers, and a message is one; use chat completions");
  for (const char* name : {"return_routed_experts", "return_steered_tokens"}) {
    reader_.refuse(name, "is not supported; use chat completions");
  }
  // What the provider does with a request elsewhere; it changes no answer.
  for (const char* name : {"cache_control", "speed", "inference_geo"}) reader_.skip(name);
  // It asks for less of the conversation than there is; all of it is right as well.
  if (reader_.raw("context_management") != nullptr) reader_.ignore("context_management");
}

tl::expected<GenerationAsk, ApiError> MessagesReader::read() {
  auto ask = begin_ask(reader_, Api::kMessages, "msg_", scope_);
  if (!ask) return ask;
  ask->answer.id = "msg_" + scope_.request_id;
  read_own_fields(&*ask);
  if (!reader_.ok()) return tl::unexpected(to_api_error(reader_.error()));
  if (const Result<void> conversation = read_conversation(); !conversation) {
    return tl::unexpected(to_api_error(conversation.error()));
  }
  offer_tools(&*ask);
  if (auto read = read_common_fields(reader_, body_, scope_, &*ask); !read) {
    return tl::unexpected(std::move(read.error()));
  }
  return ask;
}

tl::expected<GenerationRequest, ApiError> MessagesReader::parse() {
  auto ask = read();
  if (!ask) return tl::unexpected(std::move(ask.error()));
  if (!max_tokens_) {
    return tl::unexpected(to_api_error(invalid_field("is required", "max_tokens").value()));
  }
  return make_generation(reader_, std::move(*ask), std::move(conversation_), scope_);
}

tl::expected<PromptCount, ApiError> MessagesReader::count() {
  auto ask = read();
  if (!ask) return tl::unexpected(std::move(ask.error()));
  const Result<PromptText> prompt =
      render_conversation(std::move(conversation_), scope_.model, ask->tools, reader_);
  if (!prompt) return tl::unexpected(to_api_error(prompt.error()));
  if (!reader_.ok()) return tl::unexpected(to_api_error(reader_.error()));
  return PromptCount{std::ssize(prompt->ids), reader_.ignored()};
}

}  // namespace

tl::expected<GenerationRequest, ApiError> parse_messages(std::string_view body,
                                                         const GenerationScope& scope) {
  const auto object = parse_body(body);
  if (!object) return tl::unexpected(object.error());
  return MessagesReader(*object, scope).parse();
}

tl::expected<PromptCount, ApiError> count_message_tokens(std::string_view body,
                                                         const GenerationScope& scope) {
  const auto object = parse_body(body);
  if (!object) return tl::unexpected(object.error());
  return MessagesReader(*object, scope).count();
}

}  // namespace rudder::server
