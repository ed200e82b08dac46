// Reranker: how a generative reranker is asked whether a document meets a query, and the tokens of
// its two answers. Made at the server's start; immutable.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "rudder/base/result.h"
#include "rudder/text/tokenizer.h"

namespace rudder::server {

struct ServerModel;

struct Reranker {
  int32_t yes = -1;
  int32_t no = -1;
  std::string_view prefix;  // in front of the pair, and behind it
  std::string_view suffix;
  std::string_view instruction;  // where a request has none
};

// The one that `asked` (--reranker) names; of "auto" the one that the model's name tells. Nothing:
// the model is none. kInvalidArgument where the model has not the tokens of the one that is asked
// for.
Result<std::optional<Reranker>> find_reranker(const ServerModel& model, std::string_view asked);

}  // namespace rudder::server
