// Turns the text of a request into prompt tokens: chat messages through the model's template, and
// the four forms of a completions prompt. Generation and /tokenize share it; runs on the tokenise
// pool.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/server/model.h"
#include "rudder/server/request/field_reader.h"
#include "rudder/server/request/token_cache.h"
#include "rudder/server/request/tool_fields.h"
#include "rudder/steer/selector.h"

namespace rudder::server {

struct PromptText {
  std::vector<int32_t> ids;
  std::string text;  // as given or rendered; decoded where ids were given
  std::string path;  // of the field it came from: "messages", "prompt", "prompt[3]"
  std::vector<steer::RoleSpan> roles = {};  // of a chat whose roles were asked for
  bool is_cut = false;                      // there are more ids: too many for anybody
};

struct PromptLimits {
  int32_t max_prompts = 1;
  // A text of more tokens is not encoded any further.
  size_t max_tokens = SIZE_MAX;
  TokenLookup lookup = {};
};

// `prompt`: a string, a list of strings, a list of token ids or a list of such lists.
Result<std::vector<PromptText>> read_completion_prompts(FieldReader& reader,
                                                        const text::Tokenizer& tokenizer,
                                                        const PromptLimits& limits);

// `messages` with add_generation_prompt, continue_final_message, chat_template_kwargs,
// reasoning_effort and the tools that are shown. Errors of fields stay in `reader` or come back,
// whichever is found first. `with_roles`: also who wrote which tokens; kUnsupported where the
// template hides it. A prompt that is cut has no roles.
Result<PromptText> render_chat(FieldReader& reader, const ServerModel& model,
                               const ToolFields& tools, size_t max_tokens = SIZE_MAX,
                               bool with_roles = false, TokenLookup lookup = {});

}  // namespace rudder::server
