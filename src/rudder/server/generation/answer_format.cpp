#include "rudder/server/generation/answer_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "rudder/base/check.h"
#include "rudder/base/json.h"
#include "rudder/base/utf8.h"
#include "rudder/steer/capture/result_json.h"
#include "rudder/steer/capture/routed_experts_consumer.h"

namespace rudder::server {
namespace {

std::string_view finish_name(engine::FinishReason reason, bool called) {
  switch (reason) {
    case engine::FinishReason::kStop:
      return called ? "\"tool_calls\"" : "\"stop\"";
    case engine::FinishReason::kLength:
      return "\"length\"";
    case engine::FinishReason::kCancelled:
      return "\"abort\"";
    case engine::FinishReason::kError:
      return "\"error\"";
  }
  return "null";
}

std::string start_of(const AnswerOptions& options, std::string_view object) {
  std::string out = "{\"id\":";
  append_json_string(out, options.id);
  out += ",\"object\":";
  append_json_string(out, object);
  fmt::format_to(std::back_inserter(out), ",\"created\":{},\"model\":", options.created);
  append_json_string(out, options.model);
  return out;
}

}  // namespace

std::unique_ptr<AnswerFormat> AnswerFormat::create(
    AnswerOptions options, std::shared_ptr<const text::Tokenizer> tokenizer) {
  switch (options.api) {
    case Api::kChat:
      return make_chat_format(std::move(options), std::move(tokenizer));
    case Api::kCompletions:
      return make_completions_format(std::move(options), std::move(tokenizer));
    case Api::kResponses:
      return make_responses_format(std::move(options), std::move(tokenizer));
    case Api::kCompaction:
      return make_compaction_format(std::move(options), std::move(tokenizer));
    case Api::kMessages:
      return make_messages_format(std::move(options), std::move(tokenizer));
    case Api::kEmbeddings:
      return make_embeddings_format(std::move(options), std::move(tokenizer));
    case Api::kRerank:
    case Api::kScore:
      return make_rerank_format(std::move(options), std::move(tokenizer));
  }
  RUDDER_CHECK(false, "api {}", static_cast<int>(options.api));
}

AnswerFormat::AnswerFormat(AnswerOptions options, std::shared_ptr<const text::Tokenizer> tokenizer,
                           std::string_view event_object, std::string_view document_object)
    : options_(std::move(options)),
      tokenizer_(std::move(tokenizer)),
      event_start_("data: " + start_of(options_, event_object)),
      document_start_(start_of(options_, document_object)) {}

void AnswerFormat::append_end(std::string& out, const engine::Usage& total) {
  if (options_.include_usage) {
    out += event_start_;
    out += ",\"choices\":[],\"usage\":";
    append_usage(out, total);
    out += "}\n\n";
  }
  out += "data: [DONE]\n\n";
}

void AnswerFormat::append_capture_event(std::string& out, int32_t choice,
                                        const steer::capture::CaptureEvent& event) {
  out += event_start_;
  out += ",\"choices\":[],\"capture\":";
  append_capture(out, choice, event);
  out += "}\n\n";
}

void AnswerFormat::append_capture_results(std::string& out, const ChoicePiece& piece) const {
  if (piece.capture_results.empty()) return;
  out += ",\"capture_results\":";
  out += piece.capture_results;
}

std::string AnswerFormat::take_routed_experts(steer::capture::CaptureResults& results) const {
  if (options_.api != Api::kChat && options_.api != Api::kCompletions) return {};
  const auto found = std::ranges::find(results, steer::capture::kRoutedExpertsConsumer,
                                       &steer::capture::ConsumerResult::consumer);
  // What went wrong is told as of any consumer.
  if (found == results.end() || found->status != steer::capture::Status::kOk) return {};
  std::string experts = std::move(found->payload);
  results.erase(found);
  return experts;
}

Result<std::string> AnswerFormat::keep_captures(
    const steer::capture::CaptureResults& results) const {
  if (results.empty()) return std::string();
  return steer::capture::results_json(results);
}

void AnswerFormat::append_ping(std::string& out) const {
  out += ": ping\n\n";  // a comment
}

void AnswerFormat::append_error(std::string& out, const ApiError& error) {
  out += "data: ";
  out += error_body(error);
  out += "\n\n";
}

std::string AnswerFormat::document(std::span<const ChoicePiece> choices,
                                   const engine::Usage& total) {
  std::string out = document_start_;
  out += ",\"choices\":[";
  for (const ChoicePiece& choice : choices) {
    if (&choice != &choices.front()) out.push_back(',');
    append_whole_choice(out, choice);
  }
  out += "],\"usage\":";
  append_usage(out, total);
  append_fingerprint(out);
  if (options_.num_choices == 1 && !choices.empty()) append_capture_results(out, choices.front());
  append_document_fields(out, choices);
  out.push_back('}');
  return out;
}

void AnswerFormat::append_document_fields(std::string&, std::span<const ChoicePiece>) const {}

void AnswerFormat::append_ending(std::string& out, const ChoicePiece& piece) const {
  out += "\"finish_reason\":";
  if (!piece.finish) {
    out += "null";
  } else {
    out += finish_name(*piece.finish, piece.called);
    out += ",\"stop_reason\":";
    if (!piece.stop_reason.empty()) {
      append_json_string(out, piece.stop_reason);
    } else if (piece.stop_token) {
      fmt::format_to(std::back_inserter(out), "{}", *piece.stop_token);
    } else {
      out += "null";
    }
  }
  if (!piece.routed_experts.empty()) {
    out += ",\"routed_experts\":";
    out += piece.routed_experts;
  }
  if (!piece.steered_tokens.empty()) {
    out += ",\"steered_tokens\":";
    out += piece.steered_tokens;
  }
  if (options_.num_choices > 1) append_capture_results(out, piece);
  if (options_.return_token_ids) {
    std::vector<int32_t> ids;
    ids.reserve(piece.tokens.size());
    for (const engine::OutputToken& token : piece.tokens) ids.push_back(token.token);
    out += ",\"token_ids\":";
    append_ids(out, ids);
  }
}

void AnswerFormat::append_fingerprint(std::string& out) const {
  if (options_.fingerprint.empty()) return;
  out += ",\"system_fingerprint\":";
  append_json_string(out, options_.fingerprint);
}

void AnswerFormat::append_event_end(std::string& out, const ChoicePiece& piece) const {
  out += "}]";
  if (piece.finish) append_fingerprint(out);
  if (options_.num_choices == 1) append_capture_results(out, piece);
  if (options_.continuous_usage) {
    out += ",\"usage\":";
    append_usage(out, piece.usage);
  } else if (options_.include_usage) {
    out += ",\"usage\":null";
  }
}

void AnswerFormat::append_prompt_logprobs(std::string& out, const ChoicePiece& piece) const {
  out += ",\"prompt_logprobs\":[";
  const auto append = [&](int32_t token, float logprob, int32_t rank) {
    fmt::format_to(std::back_inserter(out), "\"{}\":{{\"logprob\":", token);
    append_logprob(out, logprob);
    fmt::format_to(std::back_inserter(out), ",\"rank\":{},\"decoded_token\":", rank);
    append_json_string(out, to_valid_utf8(tokenizer_->token_bytes(token)));
    out.push_back('}');
  };
  for (const engine::OutputToken& token : piece.prompt_tokens) {
    if (&token != &piece.prompt_tokens.front()) out.push_back(',');
    if (!token.has_logprobs) {
      out += "null";
      continue;
    }
    out.push_back('{');
    append(token.token, token.logprob, token.rank);
    const size_t wanted = static_cast<size_t>(*options_.prompt_logprobs);
    for (size_t i = 0; i < std::min(wanted, token.top.size()); ++i) {
      if (token.top[i].token == token.token) continue;
      out.push_back(',');
      append(token.top[i].token, token.top[i].logprob, static_cast<int32_t>(i) + 1);
    }
    out.push_back('}');
  }
  out.push_back(']');
}

std::string AnswerFormat::token_text(int32_t token) const {
  if (options_.tokens_as_ids) return fmt::format("token_id:{}", token);
  return to_valid_utf8(tokenizer_->token_bytes(token));
}

int64_t text_length(const text::Tokenizer& tokenizer, int32_t token) {
  return static_cast<int64_t>(count_code_points(to_valid_utf8(tokenizer.token_bytes(token))));
}

void AnswerFormat::append_token(std::string& out, int32_t token, float logprob) const {
  out += "{\"token\":";
  append_json_string(out, token_text(token));
  out += ",\"logprob\":";
  append_logprob(out, logprob);
  out += ",\"bytes\":[";
  const std::string_view bytes = tokenizer_->token_bytes(token);
  for (size_t i = 0; i < bytes.size(); ++i) {
    fmt::format_to(std::back_inserter(out), "{}{}", i == 0 ? "" : ",",
                   static_cast<unsigned char>(bytes[i]));
  }
  out.push_back(']');
}

void AnswerFormat::append_token_logprobs(std::string& out,
                                         std::span<const engine::OutputToken> tokens) const {
  bool first = true;
  for (const engine::OutputToken& token : tokens) {
    if (!token.has_logprobs) continue;
    if (!first) out.push_back(',');
    first = false;
    append_token(out, token.token, token.logprob);
    out += ",\"top_logprobs\":[";
    for (size_t i = 0; i < token.top.size(); ++i) {
      if (i > 0) out.push_back(',');
      append_token(out, token.top[i].token, token.top[i].logprob);
      out.push_back('}');
    }
    out += "]}";
  }
}

void append_capture(std::string& out, int32_t choice, const steer::capture::CaptureEvent& event) {
  out += "{\"consumer\":";
  append_json_string(out, event.consumer);
  fmt::format_to(std::back_inserter(out), ",\"choice\":{},\"position\":{},\"values\":", choice,
                 event.position);
  steer::capture::append_event_values(out, event);
  out += '}';
}

// What is not 0: how much the model thought, and how many guesses of speculation were verified.
void append_completion_details(std::string& out, const engine::Usage& usage) {
  const bool has_predictions =
      usage.accepted_prediction_tokens + usage.rejected_prediction_tokens > 0;
  if (usage.reasoning_tokens == 0 && !has_predictions) return;
  out += ",\"completion_tokens_details\":{";
  if (usage.reasoning_tokens > 0) {
    fmt::format_to(std::back_inserter(out), "\"reasoning_tokens\":{}{}", usage.reasoning_tokens,
                   has_predictions ? "," : "");
  }
  if (has_predictions) {
    fmt::format_to(std::back_inserter(out),
                   "\"accepted_prediction_tokens\":{},\"rejected_prediction_tokens\":{}",
                   usage.accepted_prediction_tokens, usage.rejected_prediction_tokens);
  }
  out.push_back('}');
}

// Where some of what was cached lay behind the device.
void append_cached_details(std::string& out, const engine::Usage& usage) {
  const int32_t behind = usage.cached_host_tokens + usage.cached_disk_tokens;
  if (behind == 0) return;
  fmt::format_to(std::back_inserter(out),
                 ",\"cached_tokens_details\":{{\"device\":{},\"host\":{},\"storage\":{}}}",
                 usage.cached_tokens - behind, usage.cached_host_tokens, usage.cached_disk_tokens);
}

void append_usage(std::string& out, const engine::Usage& usage) {
  fmt::format_to(std::back_inserter(out),
                 "{{\"prompt_tokens\":{},\"total_tokens\":{},\"completion_tokens\":{},"
                 "\"prompt_tokens_details\":{{\"cached_tokens\":{}",
                 usage.prompt_tokens,
                 int64_t{usage.prompt_tokens} + int64_t{usage.completion_tokens},
                 usage.completion_tokens, usage.cached_tokens);
  append_cached_details(out, usage);
  out.push_back('}');
  append_completion_details(out, usage);
  out.push_back('}');
}

void append_logprob(std::string& out, float logprob) {
  // JSON has no infinity; OpenAI writes this number for a probability of about zero.
  constexpr float kFloor = -9999.0f;
  if (!(logprob > kFloor)) {
    out += "-9999.0";
  } else {
    fmt::format_to(std::back_inserter(out), "{}", logprob);
  }
}

void append_ids(std::string& out, std::span<const int32_t> ids) {
  fmt::format_to(std::back_inserter(out), "[{}]", fmt::join(ids.begin(), ids.end(), ","));
}

}  // namespace rudder::server
