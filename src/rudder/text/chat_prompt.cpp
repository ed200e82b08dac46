#include "rudder/text/chat_prompt.h"

#include <fmt/format.h>

#include <array>
#include <boost/json.hpp>
#include <optional>
#include <set>

#include "rudder/base/json.h"
#include "rudder/text/content_parts.h"
#include "rudder/text/files.h"

namespace rudder::text {
namespace {

namespace json = boost::json;

// Variables that the files give a template.
constexpr std::array<std::string_view, 7> kTokenNames = {
    "bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token"};

Result<json::object> parse_config(std::string_view text, std::string_view name) {
  if (text.empty()) return json::object();
  auto value = parse_json(text, name);
  if (!value) return fail(ErrorCode::kCorruptFile, value.error().message, std::string(name));
  if (!value->is_object()) {
    return fail(ErrorCode::kCorruptFile, "must be an object", std::string(name));
  }
  return std::move(value->get_object());
}

// "bos_token": "<s>" or {"content": "<s>"}.
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
    std::set<std::string, std::less<>> roles_with_parts;  // whose contents may be parts
  };
  std::optional<Template> plain;
  std::optional<Template> with_tools;  // used instead of `plain` when there are tools
  json::object tokens;
  std::string source;
};

ChatPrompt::ChatPrompt(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
ChatPrompt::~ChatPrompt() = default;

Result<std::shared_ptr<const ChatPrompt>> ChatPrompt::load(const json::object& tokens_config,
                                                           const json::object& config,
                                                           std::string_view jinja) {
  auto impl = std::make_unique<Impl>();
  read_tokens(tokens_config, impl->tokens);
  read_tokens(config, impl->tokens);
  const auto parse = [&](std::string_view text) -> Result<Impl::Template> {
    impl->source += text;
    RUDDER_TRY(ChatTemplate parsed, ChatTemplate::parse(text));
    auto roles = roles_with_parts(parsed, impl->tokens);
    return Impl::Template{std::move(parsed), std::move(roles)};
  };
  const json::value* field = config.if_contains("chat_template");
  if (!jinja.empty()) {
    RUDDER_TRY(impl->plain, parse(jinja));
  } else if (field != nullptr && field->is_string()) {
    RUDDER_TRY(impl->plain, parse(field->get_string()));
  } else if (field != nullptr && field->is_array()) {
    for (const auto& entry : field->get_array()) {
      const auto* object = entry.if_object();
      const auto* name = object != nullptr ? object->if_contains("name") : nullptr;
      const auto* source = object != nullptr ? object->if_contains("template") : nullptr;
      if (name == nullptr || !name->is_string() || source == nullptr || !source->is_string()) {
        return fail(ErrorCode::kCorruptFile, "must be a list of {name, template}", "chat_template");
      }
      if (name->get_string() == "default") {
        RUDDER_TRY(impl->plain, parse(source->get_string()));
      } else if (name->get_string() == "tool_use") {
        RUDDER_TRY(impl->with_tools, parse(source->get_string()));
      }
    }
  }
  if (!impl->plain) {
    return fail(ErrorCode::kNotFound, "the model has no chat template", "chat_template");
  }
  return std::shared_ptr<const ChatPrompt>(new ChatPrompt(std::move(impl)));
}

Result<std::shared_ptr<const ChatPrompt>> ChatPrompt::from_json(
    std::string_view tokenizer_config_json, std::string_view chat_template_jinja) {
  RUDDER_TRY(const json::object config,
             parse_config(tokenizer_config_json, "tokenizer_config.json"));
  return load({}, config, chat_template_jinja);
}

Result<std::shared_ptr<const ChatPrompt>> ChatPrompt::from_directory(
    const std::filesystem::path& directory) {
  RUDDER_TRY(const std::string config_text,
             read_optional_text_file(directory / "tokenizer_config.json"));
  RUDDER_TRY(const std::string tokens_text,
             read_optional_text_file(directory / "special_tokens_map.json"));
  RUDDER_TRY(const std::string jinja, read_optional_text_file(directory / "chat_template.jinja"));
  RUDDER_TRY(const json::object config, parse_config(config_text, "tokenizer_config.json"));
  RUDDER_TRY(const json::object tokens, parse_config(tokens_text, "special_tokens_map.json"));
  return load(tokens, config, jinja);
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
  Prepared prepared{has_tools && impl_->with_tools ? &*impl_->with_tools : &*impl_->plain,
                    impl_->tokens, messages};
  json::object& context = prepared.context;
  if (kwargs != nullptr) {
    for (const auto& [key, value] : *kwargs) {
      if (key == "messages" || key == "tools" || key == "chat_template") {
        return fail(ErrorCode::kInvalidArgument, "may not be replaced",
                    fmt::format("chat_template_kwargs.{}", std::string_view(key)));
      }
      context[key] = value;
    }
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
    const bool wants_parts = prepared.chosen->roles_with_parts.contains(
        std::string_view(message->at("role").get_string()));
    RUDDER_TRY_VOID(prepare_content(*message, wants_parts, path + ".content"));
  }
  if (options.continue_final_message && messages.empty()) {
    return fail(ErrorCode::kInvalidArgument, "must not be empty", "messages");
  }
  context["tools"] = has_tools ? json::value(*tools) : json::value(nullptr);
  if (!context.contains("documents")) context["documents"] = nullptr;
  context["add_generation_prompt"] = options.add_generation_prompt;
  return prepared;
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
