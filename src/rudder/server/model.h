// ServerModel: the facts about the served model that the HTTP side needs. apps/ reads them from the
// model folder. Immutable once the server has started; any thread may read.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rudder/dialect/dialect.h"
#include "rudder/lora/library.h"
#include "rudder/server/request/reranker.h"
#include "rudder/text/chat_prompt.h"
#include "rudder/text/tokenizer.h"

namespace rudder::server {

// generation_config.json, as far as it sets defaults of requests. Absent: the protocol's default.
struct SamplingDefaults {
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::optional<double> min_p;
  std::optional<int64_t> top_k;
  std::optional<double> repetition_penalty;
  std::optional<int64_t> max_tokens;  // max_new_tokens
};

// What embeddings are where a request does not say it.
struct EmbeddingDefaults {
  std::string pooling = "last";        // or "mean"
  bool normalised = true;              // to length 1
  std::string prompt;                  // before each text, but for chats and token ids
  int32_t max_tokens = INT32_MAX;      // of an input
  int32_t max_dimensions = INT32_MAX;  // the first ones are kept of the row, normalised or not
};

// How the model writes its tool calls and its thoughts; made at the server's start.
struct ModelDialect {
  const dialect::ToolDialect* calls = dialect::tool_dialects().data();  // never null
  const dialect::ReasoningDialect* reasoning = nullptr;                 // null: none is known
  std::vector<int32_t> special_marks;  // marks of both that are special tokens, ascending
};

struct ServerModel {
  std::vector<std::string> ids;  // names clients may use; the first one is what answers say
  std::string root;              // the folder's or repository's name, for /v1/models
  int64_t created = 0;           // Unix seconds
  int32_t max_model_len = 0;     // prompt and output together
  std::shared_ptr<const text::Tokenizer> tokenizer;
  std::shared_ptr<const text::ChatPrompt> chat;  // null: chat requests are refused
  ModelDialect dialect;                          // filled by Server::start
  SamplingDefaults defaults;
  EmbeddingDefaults embedding;
  std::optional<Reranker> reranker;  // filled by Server::start; absent: it is none
  bool generates = true;  // false: the checkpoint has no head, embeddings are all there is
  std::string dtype;      // for /server_info
  // Names that clients may use beside `ids`; null: there are none. Outlives the server.
  lora::Library* adapters = nullptr;
};

}  // namespace rudder::server
