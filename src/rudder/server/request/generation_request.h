// GenerationRequest: a parsed body of an API that generates: the request to the
// engine and the form of the answer. The reader of each API checks the types of fields
// (generation_ask.h); engine::validate_request checks their values. Runs on the tokenise pool.
#pragma once

#include <boost/json/fwd.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rudder/constraint/grammar_spec.h"
#include "rudder/dialect/dialect.h"
#include "rudder/engine/event.h"
#include "rudder/engine/request.h"
#include "rudder/server/http/api_error.h"
#include "rudder/server/http/auth.h"
#include "rudder/server/model.h"
#include "rudder/server/request/field_reader.h"
#include "rudder/server/request/token_cache.h"
#include "rudder/server/request/tool_fields.h"
#include "rudder/server/steering/tap_fields.h"

namespace rudder::server {

struct ResponseTurn;
struct ToolForms;

enum class Api : uint8_t {
  kChat,
  kCompletions,
  kResponses,
  kCompaction,
  kMessages,
  kEmbeddings,
  kRerank,
  kScore
};

// Vectors of embeddings, from the pooled states to what the client gets.
struct EmbeddingOptions {
  bool as_base64 = false;    // else a list of numbers
  bool normalised = true;    // to length 1
  int32_t dimensions = 0;    // the first so many are kept, and then normalised
  bool is_cut_last = false;  // normalised as a whole instead
};

// Of /v1/rerank.
struct RerankOptions {
  int32_t top_n = 0;                   // so many of the best are told; 0: all
  std::vector<std::string> documents;  // that the answer repeats
};

// Of /v1/responses.
struct ResponseOptions {
  std::string told_fields;                   // members of a JSON object that repeat what was asked
  std::shared_ptr<const ResponseTurn> turn;  // null: it is not remembered
  std::shared_ptr<const ToolForms> tool_forms;  // how calls are told; null: each as a function's
};

// Of /v1/messages.
struct MessageOptions {
  bool seals_thoughts = false;  // told in a form that the client cannot read, and gives back
};

// How the answer is to look.
struct AnswerOptions {
  Api api = Api::kChat;
  std::string id;                // "chatcmpl-...", "cmpl-..."
  std::string model;             // as the client named it
  std::string fingerprint = {};  // of the server: what computed the answer
  int64_t created = 0;
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;
  bool logprobs = false;
  int32_t top_logprobs = 0;
  std::optional<int32_t> prompt_logprobs;  // of each token of the prompt, and so many beside it
  bool echo_logprobs = false;              // logprobs are of the echoed prompt too
  bool return_token_ids = false;
  bool return_steered_tokens = false;
  bool is_pair = false;  // of each prompt the plain and the steered answer
  bool include_reasoning = true;
  bool return_prompt_text = false;
  bool tokens_as_ids = false;           // tokens of logprobs are spelled "token_id:5"
  bool prompt_only = false;             // echo with max_tokens 0: what is generated is not told
  std::optional<int64_t> ping_seconds;  // of silence in a stream; absent: the server's
  int32_t n = 1;                        // choices a prompt
  int32_t num_choices = 1;              // of all prompts
  ResponseOptions response;
  MessageOptions message;
  EmbeddingOptions embedding;
  RerankOptions rerank;
};

struct Prompt {
  engine::Request request;
  TapsLease lease;                // of what it names, until it is submitted
  std::string echo;               // put in front of each choice's text
  std::vector<int32_t> told_ids;  // the prompt's ids, where the client wants them back
  std::string told_text;          // and its text, likewise
  // Its tokens with their log-probabilities, where the client wants those: the first, which has
  // none, and then those that the engine has told.
  std::vector<engine::OutputToken> scored;
  size_t num_tokens = 0;
  // It is submitted when the one before it has ended: what both begin with is cached then.
  bool waits_for_last = false;

  bool is_scored() const { return scored.empty() || scored.size() == num_tokens; }
};

struct GenerationRequest {
  AnswerOptions answer;
  std::vector<Prompt> prompts;              // one, or several of a completions request
  std::vector<std::string> ignored_fields;  // of the body: told to the client in a header
  int64_t sent_bytes = 0;                   // of the body
  // How the answers' text is parted into what is said, thought and called; absent: it is all said.
  std::optional<dialect::ParserSetup> parser;
  // Among the constraints of every prompt: the engine compiles it before they are submitted.
  std::optional<constraint::GrammarSpec> grammar;
};

struct GenerationScope {
  const ServerModel& model;
  engine::RequestLimits limits;
  const ApiKeys& keys;
  int tenant = 0;
  int32_t max_prompts = 1024;
  std::string request_id;
  bool is_named = false;          // the client chose the id, in a header
  std::string_view version = {};  // of the server
  TapServices taps = {};
  TokenCache* tokens = nullptr;  // of prompts; null: each is tokenised
  // What is wrong with the grammar of this body, where it has been parsed before: it is parsed
  // again for the path of the field that is at fault.
  std::optional<Error> grammar_error = {};
};

// How many tokens a request's prompt has.
struct PromptCount {
  int64_t tokens = 0;
  std::vector<std::string> ignored_fields;
};

// A name for logs and for the answer's id, where the header gave none (`is_named`).
void read_request_id(FieldReader& reader, bool is_named, std::string* id);

// The body as an object; its errors have the code "invalid_json".
tl::expected<boost::json::object, ApiError> parse_body(std::string_view body);
// Paths of all fields of a body, for a route that reads none; there need not be a body.
tl::expected<std::vector<std::string>, ApiError> unread_fields(std::string_view body);

ApiError model_not_found(std::string_view name);
// The body's `model`: one that is served, or the first where the field is absent.
struct NamedModel {
  std::string name;
  std::shared_ptr<const lora::NamedAdapter> adapter;  // null: the model as it is
};
tl::expected<NamedModel, ApiError> read_model(FieldReader& reader, const ServerModel& model);

tl::expected<GenerationRequest, ApiError> parse_generation(Api api, std::string_view body,
                                                           const GenerationScope& scope);
// Of a body that is parsed already.
tl::expected<GenerationRequest, ApiError> parse_generation(Api api, const boost::json::object& body,
                                                           const GenerationScope& scope);

}  // namespace rudder::server
