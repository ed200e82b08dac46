// The answers of /v1/messages, Anthropic's API: a list of blocks (thoughts, text, calls), and in a
// stream the deltas of these blocks.
#include <fmt/format.h>

#include <boost/json.hpp>
#include <iterator>

#include "rudder/base/json.h"
#include "rudder/server/anthropic/messages_error.h"
#include "rudder/server/generation/answer_format.h"
#include "rudder/server/request/sealed_text.h"

namespace rudder::server {
namespace {

struct Block {
  enum class Kind : uint8_t { kThinking, kText, kCall };
  Kind kind = Kind::kText;
  std::string text;  // or the arguments of a call; of answers that are not streamed
  std::string call_id;
  std::string name;
  int32_t call_index = 0;
};

class MessagesFormat final : public AnswerFormat {
 public:
  MessagesFormat(AnswerOptions options, std::shared_ptr<const text::Tokenizer> tokenizer)
      : AnswerFormat(std::move(options), std::move(tokenizer), "message", "message") {}

  void append_events(std::string& out, const ChoicePiece& piece) override;
  void append_end(std::string& out, const engine::Usage& total) override;
  void append_ping(std::string& out) const override;
  void append_error(std::string& out, const ApiError& error) override;
  void append_capture_event(std::string& out, int32_t choice,
                            const steer::capture::CaptureEvent& event) override;
  std::string document(std::span<const ChoicePiece> choices, const engine::Usage& total) override;

 private:
  void append_whole_choice(std::string&, const ChoicePiece&) const override {}

  // What a piece adds to the blocks; events go to `out`, where there is one.
  void take(std::string* out, const ChoicePiece& piece);
  void take_text(std::string* out, Block::Kind kind, std::string_view text);
  void take_call(std::string* out, const dialect::ToolCallDelta& delta);
  Block& open(Block::Kind kind);
  void append_start(std::string& out) const;
  void grow(std::string* out, Block& block, std::string_view text);
  void close_last(std::string* out);
  void append_delta(std::string& out, std::string_view type, std::string_view name,
                    std::string_view text) const;
  void append_block(std::string& out, const Block& block) const;
  std::string signature(const Block& block) const;
  void append_message(std::string& out, const engine::Usage& usage) const;
  void append_stop(std::string& out) const;

  std::vector<Block> blocks_;
  bool is_open_ = false;  // the last block still grows
  bool has_calls_ = false;
  std::optional<engine::FinishReason> finish_;
  std::string stop_sequence_;
  std::string captures_;
};

void append_event(std::string& out, std::string_view type) {
  fmt::format_to(std::back_inserter(out), "event: {0}\ndata: {{\"type\":\"{0}\"", type);
}

// The arguments of a call, which are an object here. Those that are not are not lost.
void append_input(std::string& out, const std::string& arguments) {
  const auto input = parse_json(arguments, "arguments");
  if (arguments.empty()) {
    out += "{}";
  } else if (input && input->is_object()) {
    out += arguments;
  } else {
    out += "{\"arguments\":";
    append_json_string(out, arguments);
    out.push_back('}');
  }
}

// Counts tokens from the prefix cache separately, as this API does.
void append_message_usage(std::string& out, const engine::Usage& usage) {
  fmt::format_to(std::back_inserter(out),
                 "{{\"input_tokens\":{},\"cache_creation_input_tokens\":0,"
                 "\"cache_read_input_tokens\":{},\"output_tokens\":{}}}",
                 usage.prompt_tokens - usage.cached_tokens, usage.cached_tokens,
                 usage.completion_tokens);
}

void MessagesFormat::append_stop(std::string& out) const {
  std::string_view reason = "null";
  if (finish_ == engine::FinishReason::kLength) {
    reason = "\"max_tokens\"";
  } else if (has_calls_) {
    reason = "\"tool_use\"";
  } else if (!stop_sequence_.empty()) {
    reason = "\"stop_sequence\"";
  } else if (finish_) {
    reason = "\"end_turn\"";
  }
  fmt::format_to(std::back_inserter(out), "\"stop_reason\":{},\"stop_sequence\":", reason);
  if (stop_sequence_.empty()) {
    out += "null";
  } else {
    append_json_string(out, stop_sequence_);
  }
}

std::string MessagesFormat::signature(const Block& block) const {
  return options_.message.seals_thoughts ? seal_text(kSealedThought, block.text) : "";
}

void MessagesFormat::append_block(std::string& out, const Block& block) const {
  switch (block.kind) {
    case Block::Kind::kThinking:
      out += "{\"type\":\"thinking\",\"thinking\":";
      append_json_string(out, options_.message.seals_thoughts ? std::string_view() : block.text);
      out += ",\"signature\":";
      append_json_string(out, signature(block));
      out.push_back('}');
      return;
    case Block::Kind::kText:
      out += "{\"type\":\"text\",\"text\":";
      append_json_string(out, block.text);
      out.push_back('}');
      return;
    case Block::Kind::kCall:
      out += "{\"type\":\"tool_use\",\"id\":";
      append_json_string(out, block.call_id);
      out += ",\"name\":";
      append_json_string(out, block.name);
      out += ",\"input\":";
      append_input(out, block.text);
      out.push_back('}');
      return;
  }
}

// The message object; its blocks are those of an answer that is not streamed.
void MessagesFormat::append_message(std::string& out, const engine::Usage& usage) const {
  out += "{\"id\":";
  append_json_string(out, options_.id);
  out += ",\"type\":\"message\",\"role\":\"assistant\",\"model\":";
  append_json_string(out, options_.model);
  out += ",\"content\":[";
  for (const Block& block : blocks_) {
    if (&block != &blocks_.front()) out.push_back(',');
    append_block(out, block);
  }
  out += "],";
  append_stop(out);
  out += ",\"usage\":";
  append_message_usage(out, usage);
  if (!captures_.empty()) out += ",\"capture_results\":" + captures_;
  out.push_back('}');
}

void MessagesFormat::append_delta(std::string& out, std::string_view type, std::string_view name,
                                  std::string_view text) const {
  append_event(out, "content_block_delta");
  fmt::format_to(std::back_inserter(out),
                 ",\"index\":{},\"delta\":{{\"type\":\"{}\",\"{}\":", blocks_.size() - 1, type,
                 name);
  append_json_string(out, text);
  out += "}}\n\n";
}

void MessagesFormat::close_last(std::string* out) {
  if (!is_open_) return;
  is_open_ = false;
  if (out == nullptr) return;
  if (blocks_.back().kind == Block::Kind::kThinking) {
    append_delta(*out, "signature_delta", "signature", signature(blocks_.back()));
  }
  append_event(*out, "content_block_stop");
  fmt::format_to(std::back_inserter(*out), ",\"index\":{}}}\n\n", blocks_.size() - 1);
}

Block& MessagesFormat::open(Block::Kind kind) {
  is_open_ = true;
  Block& block = blocks_.emplace_back();
  block.kind = kind;
  return block;
}

void MessagesFormat::append_start(std::string& out) const {
  append_event(out, "content_block_start");
  fmt::format_to(std::back_inserter(out), ",\"index\":{},\"content_block\":", blocks_.size() - 1);
  append_block(out, blocks_.back());
  out += "}\n\n";
}

void MessagesFormat::grow(std::string* out, Block& block, std::string_view text) {
  const bool is_sealed = block.kind == Block::Kind::kThinking && options_.message.seals_thoughts;
  if (out == nullptr || is_sealed) {
    block.text += text;
    return;
  }
  if (text.empty()) return;
  switch (block.kind) {
    case Block::Kind::kThinking:
      return append_delta(*out, "thinking_delta", "thinking", text);
    case Block::Kind::kText:
      return append_delta(*out, "text_delta", "text", text);
    case Block::Kind::kCall:
      return append_delta(*out, "input_json_delta", "partial_json", text);
  }
}

void MessagesFormat::take_text(std::string* out, Block::Kind kind, std::string_view text) {
  if (!is_open_ || blocks_.back().kind != kind) {
    close_last(out);
    open(kind);
    if (out != nullptr) append_start(*out);
  }
  grow(out, blocks_.back(), text);
}

void MessagesFormat::take_call(std::string* out, const dialect::ToolCallDelta& delta) {
  const bool goes_on = is_open_ && blocks_.back().kind == Block::Kind::kCall &&
                       blocks_.back().call_index == delta.index;
  if (!goes_on) {
    close_last(out);
    Block& begun = open(Block::Kind::kCall);
    begun.call_index = delta.index;
    begun.call_id = delta.id;
    begun.name = delta.name;
    has_calls_ = true;
    if (out != nullptr) append_start(*out);
  }
  grow(out, blocks_.back(), delta.arguments);
}

void MessagesFormat::take(std::string* out, const ChoicePiece& piece) {
  if (!piece.reasoning.empty()) take_text(out, Block::Kind::kThinking, piece.reasoning);
  // An answer without a word has a block all the same.
  const bool says_nothing = piece.finish && blocks_.empty() && piece.tool_calls.empty();
  if (!piece.text.empty() || says_nothing) take_text(out, Block::Kind::kText, piece.text);
  for (const dialect::ToolCallDelta& delta : piece.tool_calls) take_call(out, delta);
  if (!piece.finish) return;
  close_last(out);
  finish_ = piece.finish;
  stop_sequence_ = piece.stop_reason;
  captures_ = piece.capture_results;
}

void MessagesFormat::append_events(std::string& out, const ChoicePiece& piece) {
  if (piece.first) {
    engine::Usage begun = piece.usage;
    begun.completion_tokens = 0;
    append_event(out, "message_start");
    out += ",\"message\":";
    append_message(out, begun);
    out += "}\n\n";
    append_ping(out);
  }
  take(&out, piece);
}

void MessagesFormat::append_ping(std::string& out) const {
  append_event(out, "ping");
  out += "}\n\n";
}

void MessagesFormat::append_end(std::string& out, const engine::Usage& total) {
  append_event(out, "message_delta");
  out += ",\"delta\":{";
  append_stop(out);
  out += "},\"usage\":";
  append_message_usage(out, total);
  if (!captures_.empty()) out += ",\"capture_results\":" + captures_;
  out += "}\n\n";
  append_event(out, "message_stop");
  out += "}\n\n";
}

void MessagesFormat::append_error(std::string& out, const ApiError& error) {
  out += "event: error\ndata: ";
  out += messages_error_body(error, options_.id);
  out += "\n\n";
}

void MessagesFormat::append_capture_event(std::string& out, int32_t choice,
                                          const steer::capture::CaptureEvent& event) {
  append_event(out, "rudder.capture");
  out += ",\"capture\":";
  append_capture(out, choice, event);
  out += "}\n\n";
}

std::string MessagesFormat::document(std::span<const ChoicePiece> choices,
                                     const engine::Usage& total) {
  for (const ChoicePiece& choice : choices) take(nullptr, choice);
  std::string out;
  append_message(out, total);
  return out;
}

}  // namespace

std::unique_ptr<AnswerFormat> make_messages_format(
    AnswerOptions options, std::shared_ptr<const text::Tokenizer> tokenizer) {
  return std::make_unique<MessagesFormat>(std::move(options), std::move(tokenizer));
}

}  // namespace rudder::server
