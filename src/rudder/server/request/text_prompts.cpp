#include "rudder/server/request/text_prompts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <utility>

#include "rudder/server/request/chat_messages.h"
#include "rudder/server/steering/prompt_roles.h"

namespace rudder::server {

namespace json = boost::json;

namespace {

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
    return encode_text(tokenizer, value.get_string(), std::move(path), add_special_tokens,
                       limits.max_tokens, limits.lookup);
  }
  if (value.is_array()) return take_ids(tokenizer, value.get_array(), std::move(path));
  return invalid_field(
      fmt::format("must be a string or a list of token ids, not {}", json_type_name(value)), path);
}

struct ChatFields {
  text::ChatOptions options;
  json::object kwargs;
};

// Of retrieval: the template's variable of that name.
void read_documents(FieldReader& reader, json::object& kwargs) {
  const json::array* documents = reader.array("documents");
  if (documents == nullptr) return;
  size_t i = 0;
  for (const json::value& document : *documents) {
    if (!document.is_object()) {
      reader.error(ErrorCode::kInvalidArgument, "must be an object",
                   fmt::format("documents[{}]", i));
    }
    ++i;
  }
  kwargs["documents"] = *documents;
}

// How hard to think, as a variable that templates know; "none" also by the names of the switches.
void read_reasoning_effort(FieldReader& reader, json::object& kwargs) {
  constexpr std::array<std::string_view, 7> kEfforts = {"none", "minimal", "low", "medium",
                                                        "high", "xhigh",   "max"};
  constexpr size_t kMaxBytes = 32;
  std::string effort;
  reader.string("reasoning_effort", kMaxBytes, &effort);
  if (effort.empty()) return;
  if (std::find(kEfforts.begin(), kEfforts.end(), effort) == kEfforts.end()) {
    return reader.error(ErrorCode::kInvalidArgument,
                        fmt::format("must be one of {}", fmt::join(kEfforts, ", ")),
                        "reasoning_effort");
  }
  kwargs.emplace("reasoning_effort", effort);  // what the client set in the kwargs stays
  if (effort != "none") return;
  kwargs.emplace("enable_thinking", false);
  kwargs.emplace("thinking", false);
}

ChatFields read_chat_fields(FieldReader& reader) {
  ChatFields fields;
  reader.boolean("add_generation_prompt", &fields.options.add_generation_prompt);
  reader.boolean("continue_final_message", &fields.options.continue_final_message);
  const json::value* add = reader.raw("add_generation_prompt");
  if (fields.options.continue_final_message) {
    if (add != nullptr && fields.options.add_generation_prompt) {
      reader.error(ErrorCode::kInvalidArgument, "excludes add_generation_prompt",
                   "continue_final_message");
    }
    fields.options.add_generation_prompt = false;
  }
  if (const json::object* kwargs = reader.object("chat_template_kwargs")) fields.kwargs = *kwargs;
  read_reasoning_effort(reader, fields.kwargs);
  reader.refuse("chat_template", "is not accepted from clients");
  read_documents(reader, fields.kwargs);
  reader.refuse("functions", "is not supported; use tools");
  reader.refuse("function_call", "is not supported; use tool_choice");
  return fields;
}

}  // namespace

Result<std::vector<PromptText>> read_completion_prompts(FieldReader& reader,
                                                        const text::Tokenizer& tokenizer,
                                                        const PromptLimits& limits) {
  const json::value* prompt = reader.raw("prompt");
  bool add_special_tokens = true;
  reader.boolean("add_special_tokens", &add_special_tokens);
  if (prompt == nullptr) return invalid_field("is required", "prompt");
  std::vector<PromptText> prompts;
  const json::array* list = prompt->if_array();
  if (list == nullptr || (!list->empty() && list->front().is_number())) {
    RUDDER_TRY(PromptText one, read_one(tokenizer, *prompt, "prompt", add_special_tokens, limits));
    prompts.push_back(std::move(one));
    return prompts;
  }
  if (list->empty()) return invalid_field("is an empty list", "prompt");
  if (std::cmp_greater(list->size(), limits.max_prompts)) {
    return invalid_field(fmt::format("has more than {} prompts", limits.max_prompts), "prompt");
  }
  prompts.reserve(list->size());
  for (const json::value& item : *list) {
    RUDDER_TRY(PromptText one, read_one(tokenizer, item, fmt::format("prompt[{}]", prompts.size()),
                                        add_special_tokens, limits));
    prompts.push_back(std::move(one));
  }
  return prompts;
}

Result<PromptText> render_chat(FieldReader& reader, const ServerModel& model,
                               const ToolFields& tools, size_t max_tokens, bool with_roles,
                               TokenLookup lookup) {
  if (!model.chat) {
    return fail(ErrorCode::kUnsupported,
                "this model has no chat template; use /v1/completions or give one at start",
                "messages");
  }
  const ChatFields fields = read_chat_fields(reader);
  bool add_special_tokens = false;  // the template writes them itself
  reader.boolean("add_special_tokens", &add_special_tokens);
  const json::array* given = reader.array("messages");
  RUDDER_TRY_VOID(reader.result());
  if (given == nullptr) return invalid_field("is required", "messages");
  RUDDER_TRY(const json::array messages, normalise_messages(*given));
  Result<std::string> text =
      model.chat->render(messages, tools.shown, &fields.kwargs, fields.options);
  if (!text) {
    // An error that a template raises is an error of the request.
    Error error = text.error();
    error.code = ErrorCode::kInvalidArgument;
    if (!error.where.empty()) error.message = fmt::format("{}: {}", error.where, error.message);
    error.where = "messages";
    return tl::unexpected<Error>(std::move(error));
  }
  RUDDER_TRY(PromptText prompt, encode_text(*model.tokenizer, *text, "messages", add_special_tokens,
                                            max_tokens, lookup));
  if (with_roles && !prompt.is_cut) {
    RUDDER_TRY(const std::vector<text::MessageSpan> spans,
               model.chat->find_messages(prompt.text, messages, tools.shown, &fields.kwargs,
                                         fields.options));
    RUDDER_TRY(prompt.roles,
               prompt_roles(spans, messages, *model.tokenizer, prompt.ids, prompt.text));
  }
  return prompt;
}

}  // namespace rudder::server
