// AnswerFormat: turns the engine's events into the bytes that a client expects, as server-sent
// events or as one JSON document, in the shape of its API. It appends to strings and builds no JSON
// tree. Each request owns one, on its connection's I/O thread; it may keep state about what it has
// already sent of a stream.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rudder/dialect/output_parser.h"
#include "rudder/engine/event.h"
#include "rudder/server/request/generation_request.h"
#include "rudder/steer/capture/result.h"
#include "rudder/text/tokenizer.h"

namespace rudder::server {

// A piece of one choice; the whole of it where the answer is not streamed.
struct ChoicePiece {
  int32_t index = 0;  // over all prompts of the request
  bool first = false;
  std::string_view text;       // what it says
  std::string_view reasoning;  // what it thinks, where the dialect tells it apart
  std::span<const dialect::ToolCallDelta> tool_calls;
  bool called = false;                                 // the choice, up to here, calls tools
  std::span<const engine::OutputToken> tokens;         // as far as the client asked for them
  int64_t text_offset = 0;                             // characters of the choice before this piece
  std::span<const int32_t> prompt_ids;                 // where the client wants them
  std::string_view prompt_text;                        // likewise
  std::span<const engine::OutputToken> prompt_tokens;  // likewise, with their log-probabilities
  std::optional<engine::FinishReason> finish;
  std::string_view stop_reason;
  std::optional<int32_t> stop_token;
  std::string_view capture_results;  // JSON, with the end of a choice that captures
  std::string_view routed_experts;   // JSON, likewise, of those that its client asked for
  std::string_view steered_tokens;   // JSON, with the end of a choice whose client wants them
  engine::Usage usage;               // of the choice, for continuous usage
};

class AnswerFormat {
 public:
  static std::unique_ptr<AnswerFormat> create(AnswerOptions options,
                                              std::shared_ptr<const text::Tokenizer> tokenizer);
  virtual ~AnswerFormat() = default;

  // One event ("data: {...}\n\n") with this piece, also when its tokens have no text yet (half a
  // character, a special token): a client sees every token at its own step. A chat choice's first
  // piece is preceded by the event that names the role.
  virtual void append_events(std::string& out, const ChoicePiece& piece) = 0;
  // What follows the last choice's end: here the event of usage, where it was asked for, with no
  // choices in it, and the mark of the stream's end.
  virtual void append_end(std::string& out, const engine::Usage& total);
  // Something that clients pass over, between two events.
  virtual void append_ping(std::string& out) const;
  // The stream breaks.
  virtual void append_error(std::string& out, const ApiError& error);
  // The event of one captured token's values; no choices in it.
  virtual void append_capture_event(std::string& out, int32_t choice,
                                    const steer::capture::CaptureEvent& event);

  // The whole answer, choices in order of index.
  virtual std::string document(std::span<const ChoicePiece> choices, const engine::Usage& total);
  // The most that the answer will hold of what is computed, where that is known beforehand: then
  // it is charged before anything is computed.
  virtual int64_t computed_bytes() const { return 0; }
  // What ChoicePiece.capture_results is to be; an Error ends the request.
  virtual Result<std::string> keep_captures(const steer::capture::CaptureResults& results) const;
  // Takes what ChoicePiece.routed_experts is to be out of the results, where the API has the field.
  std::string take_routed_experts(steer::capture::CaptureResults& results) const;

  const AnswerOptions& options() const { return options_; }

 protected:
  AnswerFormat(AnswerOptions options, std::shared_ptr<const text::Tokenizer> tokenizer,
               std::string_view event_object, std::string_view document_object);

  virtual void append_whole_choice(std::string& out, const ChoicePiece& piece) const = 0;
  // Fields of the document beside the choices.
  virtual void append_document_fields(std::string& out, std::span<const ChoicePiece> choices) const;

  // "finish_reason":...,"stop_reason":... and the token ids where asked for.
  void append_ending(std::string& out, const ChoicePiece& piece) const;
  // `capture_results` beside the choices, where there is one choice; in it, where there are more.
  void append_capture_results(std::string& out, const ChoicePiece& piece) const;
  // From after the last choice to the end of the event.
  void append_event_end(std::string& out, const ChoicePiece& piece) const;
  std::string token_text(int32_t token) const;  // as logprobs spell it
  // ,"prompt_logprobs": a list with null for the first token, for each other one an object by token
  // id, its own first.
  void append_prompt_logprobs(std::string& out, const ChoicePiece& piece) const;
  // Items of a list: each token that has logprobs, with the likeliest ones.
  void append_token_logprobs(std::string& out, std::span<const engine::OutputToken> tokens) const;

  const AnswerOptions options_;
  const std::shared_ptr<const text::Tokenizer> tokenizer_;
  std::string event_start_;  // up to the first choice's index

 private:
  void append_token(std::string& out, int32_t token, float logprob) const;
  // Of whole answers, and of a choice's last event.
  void append_fingerprint(std::string& out) const;

  std::string document_start_;
};

// Characters of a token's text.
int64_t text_length(const text::Tokenizer& tokenizer, int32_t token);
void append_usage(std::string& out, const engine::Usage& usage);
// One captured token's values, as an object.
void append_capture(std::string& out, int32_t choice, const steer::capture::CaptureEvent& event);
void append_logprob(std::string& out, float logprob);
void append_ids(std::string& out, std::span<const int32_t> ids);

std::unique_ptr<AnswerFormat> make_chat_format(AnswerOptions options,
                                               std::shared_ptr<const text::Tokenizer> tokenizer);
std::unique_ptr<AnswerFormat> make_completions_format(
    AnswerOptions options, std::shared_ptr<const text::Tokenizer> tokenizer);
std::unique_ptr<AnswerFormat> make_responses_format(
    AnswerOptions options, std::shared_ptr<const text::Tokenizer> tokenizer);
std::unique_ptr<AnswerFormat> make_compaction_format(
    AnswerOptions options, std::shared_ptr<const text::Tokenizer> tokenizer);
std::unique_ptr<AnswerFormat> make_embeddings_format(
    AnswerOptions options, std::shared_ptr<const text::Tokenizer> tokenizer);
std::unique_ptr<AnswerFormat> make_rerank_format(AnswerOptions options,
                                                 std::shared_ptr<const text::Tokenizer> tokenizer);
std::unique_ptr<AnswerFormat> make_messages_format(
    AnswerOptions options, std::shared_ptr<const text::Tokenizer> tokenizer);

}  // namespace rudder::server
