// The shape of /v1/chat/completions: deltas and messages, and logprobs token by token.
#include <fmt/format.h>

#include <iterator>

#include "rudder/base/json.h"
#include "rudder/server/generation/answer_format.h"

namespace rudder::server {
namespace {

class ChatFormat final : public AnswerFormat {
 public:
  ChatFormat(AnswerOptions options, std::shared_ptr<const text::Tokenizer> tokenizer)
      : AnswerFormat(std::move(options), std::move(tokenizer), "chat.completion.chunk",
                     "chat.completion") {}

  void append_events(std::string& out, const ChoicePiece& piece) override;

 private:
  void append_whole_choice(std::string& out, const ChoicePiece& piece) const override;
  void append_document_fields(std::string& out,
                              std::span<const ChoicePiece> choices) const override;
  void append_prompt(std::string& out, const ChoicePiece& piece) const;
  void append_start(std::string& out, int32_t index) const;
  void append_said(std::string& out, const ChoicePiece& piece) const;
  static void append_reasoning(std::string& out, std::string_view reasoning);
  static void append_call(std::string& out, const dialect::ToolCallDelta& call);
  void append_logprobs(std::string& out, std::span<const engine::OutputToken> tokens) const;
};

void ChatFormat::append_start(std::string& out, int32_t index) const {
  out += event_start_;
  out += ",\"choices\":[{\"index\":";
  fmt::format_to(std::back_inserter(out), "{}", index);
  out += ",\"delta\":{";
}

// What the piece adds to the message. One that adds nothing says so with empty content.
void ChatFormat::append_said(std::string& out, const ChoicePiece& piece) const {
  const size_t start = out.size();
  append_reasoning(out, piece.reasoning);
  const bool silent = piece.reasoning.empty() && piece.tool_calls.empty() && !piece.finish;
  if (!piece.text.empty() || silent) {
    if (out.size() > start) out.push_back(',');
    out += "\"content\":";
    append_json_string(out, piece.text);
  }
  if (piece.tool_calls.empty()) return;
  if (out.size() > start) out.push_back(',');
  out += "\"tool_calls\":[";
  for (const dialect::ToolCallDelta& call : piece.tool_calls) {
    if (&call != &piece.tool_calls.front()) out.push_back(',');
    fmt::format_to(std::back_inserter(out), "{{\"index\":{},", call.index);
    append_call(out, call);
  }
  out.push_back(']');
}

// Under both names that clients know: vLLM's, and DeepSeek's, which was vLLM's.
void ChatFormat::append_reasoning(std::string& out, std::string_view reasoning) {
  if (reasoning.empty()) return;
  out += "\"reasoning\":";
  append_json_string(out, reasoning);
  out += ",\"reasoning_content\":";
  append_json_string(out, reasoning);
}

// From after the brace, or the index, of a call to its end; a later piece of one has arguments
// alone.
void ChatFormat::append_call(std::string& out, const dialect::ToolCallDelta& call) {
  if (!call.id.empty()) {
    out += "\"id\":";
    append_json_string(out, call.id);
    out += ",\"type\":\"function\",";
  }
  out += "\"function\":{";
  if (!call.id.empty()) {
    out += "\"name\":";
    append_json_string(out, call.name);
    out.push_back(',');
  }
  out += "\"arguments\":";
  append_json_string(out, call.arguments);
  out += "}}";
}

void ChatFormat::append_events(std::string& out, const ChoicePiece& piece) {
  if (piece.first) {
    append_start(out, piece.index);
    out += "\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null";
    ChoicePiece role;
    role.usage.prompt_tokens = piece.usage.prompt_tokens;
    role.usage.cached_tokens = piece.usage.cached_tokens;
    append_event_end(out, role);
    append_prompt(out, piece);
    out += "}\n\n";
  }
  append_start(out, piece.index);
  append_said(out, piece);
  out += "},\"logprobs\":";
  if (options_.logprobs && !piece.tokens.empty()) {
    append_logprobs(out, piece.tokens);
  } else {
    out += "null";
  }
  out.push_back(',');
  append_ending(out, piece);
  append_event_end(out, piece);
  out += "}\n\n";
}

void ChatFormat::append_whole_choice(std::string& out, const ChoicePiece& piece) const {
  fmt::format_to(std::back_inserter(out), "{{\"index\":{},\"message\":", piece.index);
  out += "{\"role\":\"assistant\",\"content\":";
  if (piece.text.empty() && (piece.called || !piece.reasoning.empty())) {
    out += "null";
  } else {
    append_json_string(out, piece.text);
  }
  out.push_back(',');
  if (piece.reasoning.empty()) {
    out += R"("reasoning":null,"reasoning_content":null)";
  } else {
    append_reasoning(out, piece.reasoning);
  }
  if (piece.called) {
    out += ",\"tool_calls\":[";
    for (const dialect::ToolCallDelta& call : piece.tool_calls) {
      out += &call == &piece.tool_calls.front() ? "{" : ",{";
      append_call(out, call);
    }
    out.push_back(']');
  }
  out += ",\"refusal\":null},\"logprobs\":";
  if (options_.logprobs) {
    append_logprobs(out, piece.tokens);
  } else {
    out += "null";
  }
  out.push_back(',');
  append_ending(out, piece);
  if (!options_.return_token_ids) out += R"(,"token_ids":null)";
  out.push_back('}');
}

void ChatFormat::append_document_fields(std::string& out,
                                        std::span<const ChoicePiece> choices) const {
  if (!choices.empty()) append_prompt(out, choices.front());
  if (!options_.return_token_ids) out += R"(,"prompt_token_ids":null)";
  if (!options_.prompt_logprobs) out += R"(,"prompt_logprobs":null)";
  out += R"(,"service_tier":null,"kv_transfer_params":null)";
}

// Appends the fields about the prompt that the request asks for, beside the choices.
void ChatFormat::append_prompt(std::string& out, const ChoicePiece& piece) const {
  if (options_.return_token_ids) {
    out += ",\"prompt_token_ids\":";
    append_ids(out, piece.prompt_ids);
  }
  if (options_.prompt_logprobs) append_prompt_logprobs(out, piece);
  if (options_.return_prompt_text) {
    out += ",\"prompt_text\":";
    append_json_string(out, piece.prompt_text);
  }
}

void ChatFormat::append_logprobs(std::string& out,
                                 std::span<const engine::OutputToken> tokens) const {
  out += "{\"content\":[";
  append_token_logprobs(out, tokens);
  out += "],\"refusal\":null}";
}

}  // namespace

std::unique_ptr<AnswerFormat> make_chat_format(AnswerOptions options,
                                               std::shared_ptr<const text::Tokenizer> tokenizer) {
  return std::make_unique<ChatFormat>(std::move(options), std::move(tokenizer));
}

}  // namespace rudder::server
