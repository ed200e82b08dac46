// Turns the text of a request into prompt tokens: chat messages through the model's template, and
// the four forms of a completions prompt. Generation and /tokenize share it; runs on the tokenise
// pool.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/server/model.h"
#include "rudder/server/request/field_reader.h"
#include "rudder/server/request/token_cache.h"
#include "rudder/server/request/tool_fields.h"
#include "rudder/steer/selector.h"

namespace rudder::server {

struct Conversation;

struct PromptText {
  std::vector<int32_t> ids;
  std::string text;  // as given or rendered; decoded where ids were given
  std::string path;  // of the field it came from: "messages", "prompt", "input[3]"
  std::vector<steer::RoleSpan> roles = {};  // of a chat whose roles were asked for
  bool is_cut = false;                      // there are more ids: too many for anybody
};

struct PromptLimits {
  const char* field = "prompt";  // of the body
  int32_t max_prompts = 1;
  // A text of more tokens is not encoded any further.
  size_t max_tokens = SIZE_MAX;
  std::string_view prefix = {};  // before each text; not before token ids
  TokenLookup lookup = {};
};

// A string, a list of strings, a list of token ids or a list of such lists.
Result<std::vector<PromptText>> read_text_prompts(FieldReader& reader,
                                                  const text::Tokenizer& tokenizer,
                                                  const PromptLimits& limits);

// An error of the engine about "prompt" or one of its tokens, at the prompt's own path.
Error at_prompt(Error error, const std::string& path);

struct RenderAsk {
  size_t max_tokens = SIZE_MAX;  // as of PromptLimits
  // Also who wrote which tokens; kUnsupported where the template hides it. A prompt that is cut has
  // no roles.
  bool with_roles = false;
  TokenLookup lookup = {};
};

// The prompt of a conversation with the tools that are shown. `told_by` is told of what the model
// does not see as it was sent.
Result<PromptText> render_conversation(Conversation conversation, const ServerModel& model,
                                       const ToolFields& tools, FieldReader& told_by,
                                       const RenderAsk& ask = {});

// The same of a body in chat's form. Errors of fields stay in `reader` or come back, whichever is
// found first.
Result<PromptText> render_chat(FieldReader& reader, const ServerModel& model,
                               const ToolFields& tools, const RenderAsk& ask = {});

}  // namespace rudder::server
