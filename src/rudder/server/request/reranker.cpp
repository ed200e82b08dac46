#include "rudder/server/request/reranker.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <string>
#include <utility>
#include <vector>

#include "rudder/server/model.h"

namespace rudder::server {
namespace {

// Qwen3-Reranker was trained on these words alone; its chat template has others.
constexpr Reranker kQwen3 = {
    .prefix =
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query "
        "and the Instruct provided. Note that the answer can only be \"yes\" or \"no\"."
        "<|im_end|>\n<|im_start|>user\n",
    .suffix = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
    .instruction = "Given a web search query, retrieve relevant passages that answer the query"};

std::string without_case(std::string_view text) {
  std::string lower(text);
  std::ranges::transform(lower, lower.begin(),
                         [](unsigned char ch) { return static_cast<char>(std::tolower(ch)); });
  return lower;
}

}  // namespace

Result<std::optional<Reranker>> find_reranker(const ServerModel& model, std::string_view asked) {
  const bool is_named = without_case(model.root).find("qwen3-reranker") != std::string::npos;
  const bool is_auto = asked == "auto";
  if (!model.generates || asked == "none" || (is_auto && !is_named)) {
    return std::optional<Reranker>();
  }
  Reranker found = kQwen3;
  const text::EncodeOptions plain = {.add_special_tokens = false};
  for (const auto& [word, token] : {std::pair("yes", &found.yes), {"no", &found.no}}) {
    RUDDER_TRY(const std::vector<int32_t> ids, model.tokenizer->encode(word, plain));
    if (ids.size() == 1) {
      *token = ids.front();
    } else if (is_auto) {
      return std::optional<Reranker>();
    } else {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("--reranker {} needs a model with \"{}\" as one token", asked, word),
                  "reranker");
    }
  }
  return std::optional(found);
}

}  // namespace rudder::server
