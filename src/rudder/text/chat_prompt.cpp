#include "rudder/text/chat_prompt.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <map>
#include <optional>
#include <set>

#include "rudder/base/exact_json.h"
#include "rudder/text/call_arguments.h"
#include "rudder/text/call_ids.h"
#include "rudder/text/content_parts.h"
#include "rudder/text/files.h"
#include "rudder/text/side_files.h"

namespace rudder::text {
namespace {

namespace json = boost::json;

// Variables that the files give a template: "bos_token": "<s>" or {"content": "<s>"}.
void read_tokens(const json::object& config, json::object& tokens) {
  for (const std::string_view name : kTokenNames) {
    const json::value* field = config.if_contains(name);
    if (field != nullptr && field->is_object()) field = field->get_object().if_contains("content");
    if (field != nullptr && field->is_string()) tokens[name] = field->get_string();
  }
}

bool is_text_part(const json::value& part) {
  const auto* object = part.if_object();
  const auto* type = object != nullptr ? object->if_contains("type") : nullptr;
  const auto* text = object != nullptr ? object->if_contains("text") : nullptr;
  return text != nullptr && text->is_string() &&
         (type == nullptr || (type->is_string() && type->get_string() == "text"));
}

// Checks a message's content and, where the template wants a string, joins its parts.
Result<void> prepare_content(json::object& message, bool wants_parts, const std::string& path) {
  json::value* content = message.if_contains("content");
  if (content == nullptr || content->is_string() || content->is_null()) return {};
  if (!content->is_array()) {
    return fail(ErrorCode::kInvalidArgument, "must be a string, null or a list of parts", path);
  }
  std::string joined;
  size_t index = 0;
  for (const auto& part : content->get_array()) {
    if (!is_text_part(part)) {
      return fail(ErrorCode::kInvalidArgument, "must be {\"type\": \"text\", \"text\": ...}",
                  fmt::format("{}[{}]", path, index));
    }
    if (index++ > 0) joined.push_back('\n');
    joined += std::string_view(part.get_object().at("text").get_string());
  }
  if (!wants_parts) *content = joined;
  return {};
}

// Gives role and thoughts the names by which the template knows them.
void fit_to_template(json::object& message, const ChatTemplate& chat_template) {
  json::string& role = message.at("role").get_string();
  if (role == "developer" && !chat_template.knows_word("developer")) role = "system";
  if (role != "assistant") return;
  for (const std::string_view name : kThoughtNames) {
    const json::value* given = message.if_contains(name);
    if (given == nullptr || !given->is_string()) continue;
    const json::value thoughts = *given;
    for (const std::string_view known : kThoughtNames) {
      if (chat_template.knows_word(known)) message[known] = thoughts;
    }
    return;
  }
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\n\v\f\r";
  const size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) + 1 - begin);
}

// Cuts the prompt after the last message's content, so that the model continues it.
Result<void> cut_after_content(const json::object& message, std::string& prompt) {
  const json::value* content = message.if_contains("content");
  if (content != nullptr && content->is_array() && !content->get_array().empty()) {
    content = &content->get_array().back().get_object().at("text");
  }
  if (content == nullptr || !content->is_string()) {
    return fail(ErrorCode::kInvalidArgument, "the last message needs content to be continued",
                "continue_final_message");
  }
  const std::string_view text = content->get_string();
  const std::string_view core = trimmed(text);
  const size_t at = prompt.rfind(core);
  if (at == std::string::npos) {
    return fail(ErrorCode::kInvalidArgument,
                "the chat template does not show the last message as it is",
                "continue_final_message");
  }
  // A template that keeps the content's own blanks keeps those at its end as well.
  const size_t tail = static_cast<size_t>(text.data() + text.size() - core.data()) - core.size();
  const std::string_view blanks = text.substr(text.size() - (core.empty() ? 0 : tail));
  const size_t end = at + core.size();
  prompt.resize(prompt.compare(end, blanks.size(), blanks) == 0 ? end + blanks.size() : end);
  return {};
}

}  // namespace

struct ChatPrompt::Impl {
  struct Template {
    ChatTemplate parsed;
    ArgumentForm arguments = ArgumentForm::kObject;       // of tool calls
    bool takes_any_id = true;                             // of those
    std::set<std::string, std::less<>> roles_with_parts;  // whose contents may be parts
    TurnForms turns;
  };
  std::optional<Template> plain;
  std::optional<Template> with_tools;  // used instead of `plain` when there are tools
  json::object tokens;                 // and the variables that hold where a request has no others
  std::string source;

  const Template& chosen(bool has_tools) const {
    return has_tools && with_tools ? *with_tools : *plain;
  }
};

namespace {

// Of chat_template_kwargs, given by a request or at start.
Result<void> add_variables(const json::object& kwargs, const char* where, json::object& context) {
  for (const auto& [key, value] : kwargs) {
    if (key == "messages" || key == "tools" || key == "chat_template") {
      return fail(ErrorCode::kInvalidArgument, "may not be replaced",
                  fmt::format("{}.{}", where, std::string_view(key)));
    }
    context[key] = value;
  }
  return {};
}

// The templates by name, as a string or as a list of {name, template}.
Result<void> collect_templates(const json::object& config,
                               std::map<std::string, std::string, std::less<>>& out) {
  const json::value* const field = config.if_contains("chat_template");
  if (field == nullptr) return {};
  if (field->is_string()) out.try_emplace("default", field->get_string());
  if (!field->is_array()) return {};
  for (const auto& entry : field->get_array()) {
    const auto* object = entry.if_object();
    const auto* name = object != nullptr ? object->if_contains("name") : nullptr;
    const auto* source = object != nullptr ? object->if_contains("template") : nullptr;
    if (name == nullptr || !name->is_string() || source == nullptr || !source->is_string()) {
      return fail(ErrorCode::kCorruptFile, "must be a list of {name, template}", "chat_template");
    }
    out.try_emplace(std::string(name->get_string()), source->get_string());
  }
  return {};
}

}  // namespace

ChatPrompt::ChatPrompt(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
ChatPrompt::~ChatPrompt() = default;

Result<std::shared_ptr<const ChatPrompt>> ChatPrompt::load(const json::object& config,
                                                           const ChatTemplateFiles& files) {
  auto impl = std::make_unique<Impl>();
  read_tokens(config, impl->tokens);
  const auto parse = [&](std::string_view text) -> Result<Impl::Template> {
    impl->source += text;
    RUDDER_TRY(ChatTemplate parsed, ChatTemplate::parse(text));
    const ArgumentForm arguments = find_argument_form(parsed, impl->tokens);
    auto roles = roles_with_parts(parsed, impl->tokens, arguments);
    const TurnForms turns = find_turn_forms(parsed, impl->tokens, arguments);
    const bool any_id = takes_any_id(parsed, impl->tokens, arguments);
    return Impl::Template{std::move(parsed), arguments, any_id, std::move(roles), turns};
  };
  std::map<std::string, std::string, std::less<>> templates;
  if (!files.jinja.empty()) templates["default"] = files.jinja;
  if (!files.tools_jinja.empty()) templates["tool_use"] = files.tools_jinja;
  if (!templates.contains("default")) {
    RUDDER_TRY_VOID(collect_templates(config, templates));
  }
  if (!templates.contains("default") && !files.old_json.empty()) {
    RUDDER_TRY(const json::object old, parse_object_file(files.old_json, "chat_template.json"));
    RUDDER_TRY_VOID(collect_templates(old, templates));
  }
  if (!templates.contains("default")) {
    return fail(ErrorCode::kNotFound, "the model has no chat template", "chat_template");
  }
  RUDDER_TRY(impl->plain, parse(templates.at("default")));
  if (templates.contains("tool_use")) {
    RUDDER_TRY(impl->with_tools, parse(templates.at("tool_use")));
  }
  if (!files.kwargs.empty()) {
    constexpr const char* kFlag = "default-chat-template-kwargs";
    const auto kwargs = parse_json(files.kwargs, kFlag);
    if (!kwargs || !kwargs->is_object()) {
      return fail(ErrorCode::kInvalidArgument,
                  kwargs ? "must be a JSON object" : kwargs.error().message, kFlag);
    }
    RUDDER_TRY_VOID(add_variables(kwargs->get_object(), kFlag, impl->tokens));
  }
  return std::shared_ptr<const ChatPrompt>(new ChatPrompt(std::move(impl)));
}

Result<std::shared_ptr<const ChatPrompt>> ChatPrompt::from_json(
    std::string_view tokenizer_config_json, std::string_view chat_template_jinja) {
  return from_files({.config = std::string(tokenizer_config_json)},
                    {.jinja = std::string(chat_template_jinja)});
}

Result<std::shared_ptr<const ChatPrompt>> ChatPrompt::from_files(const TokenFiles& tokens,
                                                                 const ChatTemplateFiles& files) {
  RUDDER_TRY(const json::object config, merge_token_files(tokens, json::value()));
  return load(config, files);
}

Result<std::shared_ptr<const ChatPrompt>> ChatPrompt::from_directory(
    const std::filesystem::path& directory) {
  RUDDER_TRY(const TokenFiles tokens, read_token_files(directory));
  ChatTemplateFiles files;
  RUDDER_TRY(files.jinja, read_optional_text_file(directory / "chat_template.jinja"));
  RUDDER_TRY(files.tools_jinja,
             read_optional_text_file(directory / "additional_chat_templates" / "tool_use.jinja"));
  RUDDER_TRY(files.old_json, read_optional_text_file(directory / "chat_template.json"));
  return from_files(tokens, files);
}

// What a template is given, but for the messages.
struct ChatPrompt::Prepared {
  const Impl::Template* chosen = nullptr;
  json::object context;
  json::array messages;
};

Result<ChatPrompt::Prepared> ChatPrompt::prepare(const json::array& messages,
                                                 const json::array* tools,
                                                 const json::object* kwargs,
                                                 const ChatOptions& options) const {
  if (options.continue_final_message && options.add_generation_prompt) {
    return fail(ErrorCode::kInvalidArgument, "excludes add_generation_prompt",
                "continue_final_message");
  }
  const bool has_tools = tools != nullptr && !tools->empty();
  Prepared prepared{&impl_->chosen(has_tools), impl_->tokens, messages};
  json::object& context = prepared.context;
  if (kwargs != nullptr) {
    RUDDER_TRY_VOID(add_variables(*kwargs, "chat_template_kwargs", context));
  }
  for (size_t i = 0; i < prepared.messages.size(); ++i) {
    const std::string path = fmt::format("messages[{}]", i);
    json::object* message = prepared.messages[i].if_object();
    if (message == nullptr) return fail(ErrorCode::kInvalidArgument, "must be an object", path);
    const json::value* role = message->if_contains("role");
    if (role == nullptr || !role->is_string()) {
      return fail(ErrorCode::kInvalidArgument, "must be a string", path + ".role");
    }
    fit_to_template(*message, prepared.chosen->parsed);
    fit_arguments(prepared.chosen->arguments, *message);
    if (!prepared.chosen->takes_any_id) shorten_ids(*message);
    const bool wants_parts = prepared.chosen->roles_with_parts.contains(
        std::string_view(message->at("role").get_string()));
    RUDDER_TRY_VOID(prepare_content(*message, wants_parts, path + ".content"));
  }
  if (options.continue_final_message && messages.empty()) {
    return fail(ErrorCode::kInvalidArgument, "must not be empty", "messages");
  }
  context["tools"] = has_tools ? with_doubles(json::value(*tools)) : json::value(nullptr);
  if (!context.contains("documents")) context["documents"] = nullptr;
  context["add_generation_prompt"] = options.add_generation_prompt;
  return prepared;
}

const TurnForms& ChatPrompt::turn_forms(bool has_tools) const {
  return impl_->chosen(has_tools).turns;
}

const std::string& ChatPrompt::source() const {
  return impl_->source;
}

Result<std::string> ChatPrompt::render(const json::array& messages, const json::array* tools,
                                       const json::object* kwargs,
                                       const ChatOptions& options) const {
  RUDDER_TRY(Prepared prepared, prepare(messages, tools, kwargs, options));
  prepared.context["messages"] = prepared.messages;
  RUDDER_TRY(std::string prompt, prepared.chosen->parsed.render(prepared.context, options.limits));
  if (options.continue_final_message) {
    RUDDER_TRY_VOID(cut_after_content(prepared.messages.back().get_object(), prompt));
  }
  return prompt;
}

Result<std::vector<MessageSpan>> ChatPrompt::find_messages(std::string_view prompt,
                                                           const json::array& messages,
                                                           const json::array* tools,
                                                           const json::object* kwargs,
                                                           const ChatOptions& options) const {
  RUDDER_TRY(Prepared prepared, prepare(messages, tools, kwargs, options));
  MessageMarks marks;
  RUDDER_TRY_VOID(marks.add(prepared.messages));
  prepared.context["messages"] = std::move(prepared.messages);
  RUDDER_TRY(const std::string marked,
             prepared.chosen->parsed.render(prepared.context, options.limits));
  return marks.find(marked, prompt);
}

}  // namespace rudder::text
