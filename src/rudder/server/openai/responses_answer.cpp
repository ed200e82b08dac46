// The shape of /v1/responses: an answer is a list of items (what the model thought, said and
// called), and a stream tells how they grow, event by event, each with its number.
#include <fmt/format.h>

#include <ctime>
#include <iterator>
#include <utility>

#include "rudder/base/json.h"
#include "rudder/server/generation/answer_format.h"
#include "rudder/server/openai/response_store.h"
#include "rudder/server/openai/responses_answer.h"
#include "rudder/server/openai/responses_tools.h"

namespace rudder::server {
namespace {

struct Item {
  enum class Kind : uint8_t { kReasoning, kMessage, kCall };
  Kind kind = Kind::kMessage;
  std::string id;
  std::string text;      // or the arguments of a call
  std::string call_id;   // of a call
  std::string name;      // of the function that is called
  std::string logprobs;  // of a message, the list's items
  int32_t call_index = 0;
  const ToolForm* form = nullptr;  // of a call whose tool is no plain function
  bool is_done = false;
  bool is_cut = false;  // the answer ended before it did

  bool is_custom() const { return form != nullptr && form->is_custom; }
};

class ResponsesFormat final : public AnswerFormat {
 public:
  ResponsesFormat(AnswerOptions options, std::shared_ptr<const text::Tokenizer> tokenizer)
      : AnswerFormat(std::move(options), std::move(tokenizer), "response", "response") {}

  void append_events(std::string& out, const ChoicePiece& piece) override;
  void append_end(std::string& out, const engine::Usage& total) override;
  void append_error(std::string& out, const ApiError& error) override;
  void append_capture_event(std::string& out, int32_t choice,
                            const steer::capture::CaptureEvent& event) override;
  std::string document(std::span<const ChoicePiece> choices, const engine::Usage& total) override;
  // The response object as it stands.
  std::string response(std::string_view status, const engine::Usage* usage,
                       const ApiError* error) const;

 private:
  void append_whole_choice(std::string&, const ChoicePiece&) const override {}

  // What a piece adds to the items; events go to `out`, where there is one.
  void take(std::string* out, const ChoicePiece& piece);
  void take_text(std::string* out, Item::Kind kind, const ChoicePiece& piece);
  std::string take_logprobs(Item& item);
  void take_call(std::string* out, const dialect::ToolCallDelta& delta);
  Item& open(std::string* out, Item::Kind kind);
  void open_message_part(std::string& out, const Item& item);
  void close_last(std::string* out);

  void begin(std::string& out);
  void begin_event(std::string& out, std::string_view type);
  void append_place(std::string& out, const Item& item) const;
  void append_item(std::string& out, const Item& item, bool is_whole) const;
  void append_part(std::string& out, const Item& item, bool is_whole) const;
  static void append_call(std::string& out, const Item& item, bool is_whole);
  void close_call(std::string& out, const Item& item);
  void append_lifecycle_event(std::string& out, std::string_view type, std::string_view status,
                              const engine::Usage* usage, const ApiError* error);
  std::string_view final_status() const {
    return finish_ == engine::FinishReason::kLength ? "incomplete" : "completed";
  }
  void store(const std::string& document) const;
  std::string conversation() const;

  std::vector<Item> items_;
  std::string logprobs_;  // of tokens that no item has yet
  std::string captures_;
  std::optional<engine::FinishReason> finish_;
  int64_t next_number_ = 0;
};

void ResponsesFormat::begin_event(std::string& out, std::string_view type) {
  fmt::format_to(std::back_inserter(out),
                 "event: {0}\ndata: {{\"type\":\"{0}\",\"sequence_number\":{1}", type,
                 next_number_++);
}

// Of the last item, which is the one that grows.
void ResponsesFormat::append_place(std::string& out, const Item& item) const {
  fmt::format_to(std::back_inserter(out), ",\"item_id\":\"{}\",\"output_index\":{}", item.id,
                 items_.size() - 1);
}

void ResponsesFormat::append_part(std::string& out, const Item& item, bool is_whole) const {
  out += item.kind == Item::Kind::kReasoning ? "{\"type\":\"reasoning_text\",\"text\":"
                                             : "{\"type\":\"output_text\",\"text\":";
  append_json_string(out, is_whole ? item.text : "");
  if (item.kind == Item::Kind::kMessage) {
    out += ",\"annotations\":[],\"logprobs\":[";
    if (is_whole) out += item.logprobs;
    out.push_back(']');
  }
  out.push_back('}');
}

// Not whole: as it is when it begins.
void ResponsesFormat::append_item(std::string& out, const Item& item, bool is_whole) const {
  const std::string_view status = item.is_cut    ? "incomplete"
                                  : item.is_done ? "completed"
                                                 : "in_progress";
  const auto append = [&](std::string_view type) {
    fmt::format_to(std::back_inserter(out), "{{\"id\":\"{}\",\"type\":\"{}\",\"status\":\"{}\"",
                   item.id, type, status);
  };
  switch (item.kind) {
    case Item::Kind::kReasoning:
      append("reasoning");
      out += ",\"summary\":[],\"content\":[";
      if (is_whole) append_part(out, item, true);
      out += "]}";
      return;
    case Item::Kind::kMessage:
      append("message");
      out += ",\"role\":\"assistant\",\"content\":[";
      if (is_whole) append_part(out, item, true);
      out += "]}";
      return;
    case Item::Kind::kCall:
      append(item.is_custom() ? "custom_tool_call" : "function_call");
      append_call(out, item, is_whole);
      return;
  }
}

void ResponsesFormat::append_call(std::string& out, const Item& item, bool is_whole) {
  out += ",\"call_id\":";
  append_json_string(out, item.call_id);
  if (item.form != nullptr && !item.form->tool_namespace.empty()) {
    out += ",\"namespace\":";
    append_json_string(out, item.form->tool_namespace);
  }
  out += ",\"name\":";
  append_json_string(out, item.form != nullptr ? item.form->name : item.name);
  if (item.is_custom()) {
    out += ",\"input\":";
    append_json_string(out, is_whole ? custom_input(item.text) : "");
  } else {
    out += ",\"arguments\":";
    append_json_string(out, is_whole ? item.text : "");
  }
  out.push_back('}');
}

// The text of a custom call stands inside of its arguments: it is told when these are whole.
void ResponsesFormat::close_call(std::string& out, const Item& item) {
  const std::string input = item.is_custom() ? custom_input(item.text) : "";
  if (item.is_custom()) {
    begin_event(out, "response.custom_tool_call_input.delta");
    append_place(out, item);
    out += ",\"delta\":";
    append_json_string(out, input);
    out += "}\n\n";
    begin_event(out, "response.custom_tool_call_input.done");
    append_place(out, item);
    out += ",\"input\":";
    append_json_string(out, input);
  } else {
    begin_event(out, "response.function_call_arguments.done");
    append_place(out, item);
    out += ",\"name\":";
    append_json_string(out, item.form != nullptr ? item.form->name : item.name);
    out += ",\"arguments\":";
    append_json_string(out, item.text);
  }
  out += "}\n\n";
}

Item& ResponsesFormat::open(std::string* out, Item::Kind kind) {
  close_last(out);
  Item& item = items_.emplace_back();
  item.kind = kind;
  const std::string_view prefix = kind == Item::Kind::kReasoning ? "rs"
                                  : kind == Item::Kind::kMessage ? "msg"
                                                                 : "fc";
  const size_t tail = options_.id.find('_') + 1;
  item.id = fmt::format("{}_{}_{}", prefix, options_.id.substr(tail), items_.size() - 1);
  return item;
}

void ResponsesFormat::open_message_part(std::string& out, const Item& item) {
  begin_event(out, "response.output_item.added");
  fmt::format_to(std::back_inserter(out), ",\"output_index\":{},\"item\":", items_.size() - 1);
  append_item(out, item, false);
  out += "}\n\n";
  if (item.kind == Item::Kind::kCall) return;
  begin_event(out, "response.content_part.added");
  append_place(out, item);
  out += ",\"content_index\":0,\"part\":";
  append_part(out, item, false);
  out += "}\n\n";
}

void ResponsesFormat::close_last(std::string* out) {
  if (items_.empty() || items_.back().is_done) return;
  Item& item = items_.back();
  item.is_done = true;
  item.is_cut = finish_ == engine::FinishReason::kLength;
  if (out == nullptr) return;
  if (item.kind == Item::Kind::kCall) {
    close_call(*out, item);
  } else {
    const bool is_message = item.kind == Item::Kind::kMessage;
    begin_event(*out, is_message ? "response.output_text.done" : "response.reasoning_text.done");
    append_place(*out, item);
    *out += ",\"content_index\":0,\"text\":";
    append_json_string(*out, item.text);
    if (is_message) *out += ",\"logprobs\":[" + item.logprobs + "]";
    *out += "}\n\n";
    begin_event(*out, "response.content_part.done");
    append_place(*out, item);
    *out += ",\"content_index\":0,\"part\":";
    append_part(*out, item, true);
    *out += "}\n\n";
  }
  begin_event(*out, "response.output_item.done");
  fmt::format_to(std::back_inserter(*out), ",\"output_index\":{},\"item\":", items_.size() - 1);
  append_item(*out, item, true);
  *out += "}\n\n";
}

// Moves what is known of tokens into the message, and tells it.
std::string ResponsesFormat::take_logprobs(Item& item) {
  if (!item.logprobs.empty() && !logprobs_.empty()) item.logprobs.push_back(',');
  item.logprobs += logprobs_;
  return std::exchange(logprobs_, {});
}

void ResponsesFormat::take_text(std::string* out, Item::Kind kind, const ChoicePiece& piece) {
  const bool is_message = kind == Item::Kind::kMessage;
  const std::string_view text = is_message ? piece.text : piece.reasoning;
  if (items_.empty() || items_.back().is_done || items_.back().kind != kind) {
    const Item& begun = open(out, kind);
    if (out != nullptr) open_message_part(*out, begun);
  }
  Item& item = items_.back();
  item.text += text;
  const std::string logprobs = is_message ? take_logprobs(item) : std::string();
  if (out == nullptr || text.empty()) return;
  begin_event(*out, is_message ? "response.output_text.delta" : "response.reasoning_text.delta");
  append_place(*out, item);
  *out += ",\"content_index\":0,\"delta\":";
  append_json_string(*out, text);
  if (is_message) *out += ",\"logprobs\":[" + logprobs + "]";
  *out += "}\n\n";
}

void ResponsesFormat::take_call(std::string* out, const dialect::ToolCallDelta& delta) {
  const bool goes_on = !items_.empty() && !items_.back().is_done &&
                       items_.back().kind == Item::Kind::kCall &&
                       items_.back().call_index == delta.index;
  if (!goes_on) {
    Item& begun = open(out, Item::Kind::kCall);
    begun.call_index = delta.index;
    begun.call_id = delta.id;
    begun.name = delta.name;
    if (options_.response.tool_forms != nullptr)
      begun.form = options_.response.tool_forms->find(delta.name);
    if (out != nullptr) open_message_part(*out, begun);
  }
  Item& item = items_.back();
  item.text += delta.arguments;
  if (out == nullptr || delta.arguments.empty() || item.is_custom()) return;
  begin_event(*out, "response.function_call_arguments.delta");
  append_place(*out, item);
  *out += ",\"delta\":";
  append_json_string(*out, delta.arguments);
  *out += "}\n\n";
}

void ResponsesFormat::take(std::string* out, const ChoicePiece& piece) {
  // Tokens whose text is still to come, or that have none, wait for the message's next words.
  const bool is_text = !piece.text.empty() || (piece.reasoning.empty() && piece.tool_calls.empty());
  if (options_.logprobs && is_text) {
    std::string more;
    append_token_logprobs(more, piece.tokens);
    if (!logprobs_.empty() && !more.empty()) logprobs_.push_back(',');
    logprobs_ += more;
  }
  if (!piece.reasoning.empty()) take_text(out, Item::Kind::kReasoning, piece);
  // An answer without a word has a message all the same.
  const bool says_nothing = piece.finish && items_.empty() && piece.tool_calls.empty();
  if (!piece.text.empty() || says_nothing) take_text(out, Item::Kind::kMessage, piece);
  for (const dialect::ToolCallDelta& delta : piece.tool_calls) take_call(out, delta);
  if (!piece.finish) return;
  if (!items_.empty() && items_.back().kind == Item::Kind::kMessage) take_logprobs(items_.back());
  finish_ = piece.finish;
  close_last(out);
  captures_ = piece.capture_results;
}

std::string ResponsesFormat::response(std::string_view status, const engine::Usage* usage,
                                      const ApiError* error) const {
  std::string out = "{\"id\":";
  append_json_string(out, options_.id);
  fmt::format_to(std::back_inserter(out), ",\"object\":\"response\",\"created_at\":{}",
                 options_.created);
  if (status == "completed") {
    fmt::format_to(std::back_inserter(out), ",\"completed_at\":{}", std::time(nullptr));
  } else {
    out += ",\"completed_at\":null";
  }
  fmt::format_to(std::back_inserter(out), ",\"status\":\"{}\",\"error\":", status);
  if (error == nullptr) {
    out += "null";
  } else {
    out += "{\"code\":\"server_error\",\"message\":";
    append_json_string(out, error->message);
    out.push_back('}');
  }
  out += status == "incomplete" ? ",\"incomplete_details\":{\"reason\":\"max_output_tokens\"}"
                                : ",\"incomplete_details\":null";
  out += ",\"model\":";
  append_json_string(out, options_.model);
  out += ",\"output\":[";
  for (const Item& item : items_) {
    if (&item != &items_.front()) out.push_back(',');
    append_item(out, item, true);
  }
  out += "],";
  out += options_.response.told_fields;
  if (usage == nullptr) {
    out += ",\"usage\":null";
  } else {
    fmt::format_to(
        std::back_inserter(out),
        ",\"usage\":{{\"input_tokens\":{},\"input_tokens_details\":{{\"cached_tokens\":{},"
        "\"cache_write_tokens\":0}},\"output_tokens\":{},\"output_tokens_details\":"
        "{{\"reasoning_tokens\":{}}},\"total_tokens\":{}}}",
        usage->prompt_tokens, usage->cached_tokens, usage->completion_tokens,
        usage->reasoning_tokens, int64_t{usage->prompt_tokens} + int64_t{usage->completion_tokens});
  }
  if (!captures_.empty()) out += ",\"capture_results\":" + captures_;
  out.push_back('}');
  return out;
}

void ResponsesFormat::append_lifecycle_event(std::string& out, std::string_view type,
                                             std::string_view status, const engine::Usage* usage,
                                             const ApiError* error) {
  begin_event(out, type);
  out += ",\"response\":";
  out += response(status, usage, error);
  out += "}\n\n";
}

// Clients want these before anything else.
void ResponsesFormat::begin(std::string& out) {
  if (next_number_ > 0) return;
  append_lifecycle_event(out, "response.created", "in_progress", nullptr, nullptr);
  append_lifecycle_event(out, "response.in_progress", "in_progress", nullptr, nullptr);
}

void ResponsesFormat::append_events(std::string& out, const ChoicePiece& piece) {
  begin(out);
  take(&out, piece);
}

void ResponsesFormat::append_end(std::string& out, const engine::Usage& total) {
  const std::string whole = response(final_status(), &total, nullptr);
  begin_event(
      out, finish_ == engine::FinishReason::kLength ? "response.incomplete" : "response.completed");
  out += ",\"response\":";
  out += whole;
  out += "}\n\n";
  store(whole);
}

void ResponsesFormat::append_error(std::string& out, const ApiError& error) {
  begin(out);
  append_lifecycle_event(out, "response.failed", "failed", nullptr, &error);
}

void ResponsesFormat::append_capture_event(std::string& out, int32_t choice,
                                           const steer::capture::CaptureEvent& event) {
  begin(out);
  begin_event(out, "rudder.capture");
  out += ",\"capture\":";
  append_capture(out, choice, event);
  out += "}\n\n";
}

std::string ResponsesFormat::document(std::span<const ChoicePiece> choices,
                                      const engine::Usage& total) {
  for (const ChoicePiece& choice : choices) take(nullptr, choice);
  std::string whole = response(final_status(), &total, nullptr);
  store(whole);
  return whole;
}

// The conversation with what was answered, as chat messages.
std::string ResponsesFormat::conversation() const {
  std::string text, thought, calls;
  for (const Item& item : items_) {
    if (item.kind == Item::Kind::kMessage) text += item.text;
    if (item.kind == Item::Kind::kReasoning) thought += item.text;
    if (item.kind != Item::Kind::kCall) continue;
    calls += calls.empty() ? "{\"id\":" : ",{\"id\":";
    append_json_string(calls, item.call_id);
    calls += ",\"type\":\"function\",\"function\":{\"name\":";
    append_json_string(calls, item.name);
    calls += ",\"arguments\":";
    append_json_string(calls, item.text);
    calls += "}}";
  }
  std::string out = options_.response.turn->conversation;
  out.back() = ',';
  out += "{\"role\":\"assistant\",\"content\":";
  append_json_string(out, text);
  if (!thought.empty()) {
    out += ",\"reasoning_content\":";
    append_json_string(out, thought);
  }
  if (!calls.empty()) out += ",\"tool_calls\":[" + calls + "]";
  out += "}]";
  return out;
}

void ResponsesFormat::store(const std::string& document) const {
  if (options_.response.turn == nullptr) return;
  ResponseStore& store = *options_.response.turn->store;
  StoredResponse stored{options_.response.turn->tenant, store.share(document),
                        store.share(conversation()), options_.response.turn->input,
                        options_.response.turn->asking};
  if (options_.response.turn->is_background) {
    store.finish(options_.id, std::move(stored));
  } else {
    store.put(options_.id, std::move(stored));
  }
}

}  // namespace

std::string response_document(const AnswerOptions& options, std::string_view status,
                              const ApiError* error) {
  return ResponsesFormat(options, nullptr).response(status, nullptr, error);
}

std::unique_ptr<AnswerFormat> make_responses_format(
    AnswerOptions options, std::shared_ptr<const text::Tokenizer> tokenizer) {
  return std::make_unique<ResponsesFormat>(std::move(options), std::move(tokenizer));
}

}  // namespace rudder::server
