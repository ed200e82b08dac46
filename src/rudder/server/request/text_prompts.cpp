#include "rudder/server/request/text_prompts.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <utility>

#include "rudder/server/request/chat_messages.h"
#include "rudder/server/request/turn_folding.h"
#include "rudder/server/steering/prompt_roles.h"

namespace rudder::server {

namespace json = boost::json;

namespace {

constexpr size_t kMaxMessages = 65'536;

Result<PromptText> encode_text(const text::Tokenizer& tokenizer, std::string_view text,
                               std::string path, bool add_special_tokens, size_t max_tokens,
                               TokenLookup lookup) {
  // One more than fits is enough to know.
  const size_t max_ids = max_tokens == SIZE_MAX ? SIZE_MAX : max_tokens + 1;
  const text::EncodeOptions options = {
      .add_special_tokens = add_special_tokens, .parse_special = true, .max_ids = max_ids};
  Result<std::vector<int32_t>> ids =
      lookup.cache == nullptr ? tokenizer.encode(text, options)
                              : lookup.cache->encode(tokenizer, text, options, lookup.tenant);
  if (!ids) {
    Error error = ids.error();
    error.where = std::move(path);
    return tl::unexpected<Error>(std::move(error));
  }
  const bool is_cut = ids->size() > max_tokens;
  return PromptText{std::move(*ids), std::string(text), std::move(path), {}, is_cut};
}

Result<PromptText> take_ids(const text::Tokenizer& tokenizer, const json::array& list,
                            std::string path) {
  RUDDER_TRY(std::vector<int32_t> ids, parse_token_ids(list, path));
  std::string text = tokenizer.decode(ids, false);
  return PromptText{std::move(ids), std::move(text), std::move(path), {}};
}

Result<PromptText> read_one(const text::Tokenizer& tokenizer, const json::value& value,
                            std::string path, bool add_special_tokens, const PromptLimits& limits) {
  if (value.is_string()) {
    const std::string text = std::string(limits.prefix).append(value.get_string());
    return encode_text(tokenizer, text, std::move(path), add_special_tokens, limits.max_tokens,
                       limits.lookup);
  }
  if (value.is_array()) return take_ids(tokenizer, value.get_array(), std::move(path));
  return invalid_field(
      fmt::format("must be a string or a list of token ids, not {}", json_type_name(value)), path);
}

}  // namespace

Result<std::vector<PromptText>> read_text_prompts(FieldReader& reader,
                                                  const text::Tokenizer& tokenizer,
                                                  const PromptLimits& limits) {
  const std::string field = limits.field;
  const json::value* prompt = reader.raw(limits.field);
  bool add_special_tokens = true;
  reader.boolean("add_special_tokens", &add_special_tokens);
  RUDDER_TRY_VOID(reader.result());
  if (prompt == nullptr) return invalid_field("is required", field);
  std::vector<PromptText> prompts;
  const json::array* list = prompt->if_array();
  if (list == nullptr || (!list->empty() && list->front().is_number())) {
    RUDDER_TRY(PromptText one, read_one(tokenizer, *prompt, field, add_special_tokens, limits));
    prompts.push_back(std::move(one));
    return prompts;
  }
  if (list->empty()) return invalid_field("is an empty list", field);
  if (std::cmp_greater(list->size(), limits.max_prompts)) {
    return invalid_field(fmt::format("has more than {} prompts", limits.max_prompts), field);
  }
  prompts.reserve(list->size());
  for (const json::value& item : *list) {
    RUDDER_TRY(PromptText one,
               read_one(tokenizer, item, fmt::format("{}[{}]", field, prompts.size()),
                        add_special_tokens, limits));
    prompts.push_back(std::move(one));
  }
  return prompts;
}

Error at_prompt(Error error, const std::string& path) {
  constexpr std::string_view kPrompt = "prompt";
  if (error.where != kPrompt && !error.where.starts_with("prompt[")) return error;
  error.where.replace(0, kPrompt.size(), path);
  if (error.message.starts_with(kPrompt)) error.message.replace(0, kPrompt.size(), path);
  return error;
}

Result<PromptText> render_conversation(Conversation conversation, const ServerModel& model,
                                       const ToolFields& tools, FieldReader& told_by,
                                       const RenderAsk& ask) {
  const std::string& field = conversation.field;
  if (!model.chat) {
    return fail(ErrorCode::kUnsupported,
                "this model has no chat template; use /v1/completions or give one at start", field);
  }
  if (conversation.messages.empty()) {
    return invalid_field("must hold at least one message", field);
  }
  if (conversation.messages.size() > kMaxMessages) {
    return invalid_field(fmt::format("has more than {} messages", kMaxMessages), field);
  }
  const bool has_tools = tools.shown != nullptr && !tools.shown->empty();
  const json::array messages = fold_turns(conversation, model.chat->turn_forms(has_tools));
  for (const std::string& path : conversation.history.told()) told_by.ignore(path);
  Result<std::string> text =
      model.chat->render(messages, tools.shown, &conversation.kwargs, conversation.options);
  if (!text) {
    // An error that a template raises is an error of the request.
    Error error = text.error();
    error.code = ErrorCode::kInvalidArgument;
    if (!error.where.empty()) error.message = fmt::format("{}: {}", error.where, error.message);
    error.where = field;
    return tl::unexpected<Error>(std::move(error));
  }
  RUDDER_TRY(PromptText prompt,
             encode_text(*model.tokenizer, *text, field, conversation.add_special_tokens,
                         ask.max_tokens, ask.lookup));
  if (ask.with_roles && !prompt.is_cut) {
    RUDDER_TRY(const std::vector<text::MessageSpan> spans,
               model.chat->find_messages(prompt.text, messages, tools.shown, &conversation.kwargs,
                                         conversation.options));
    RUDDER_TRY(prompt.roles,
               prompt_roles(spans, messages, *model.tokenizer, prompt.ids, prompt.text));
  }
  return prompt;
}

Result<PromptText> render_chat(FieldReader& reader, const ServerModel& model,
                               const ToolFields& tools, const RenderAsk& ask) {
  RUDDER_TRY(Conversation conversation, read_chat_conversation(reader));
  return render_conversation(std::move(conversation), model, tools, reader, ask);
}

}  // namespace rudder::server
