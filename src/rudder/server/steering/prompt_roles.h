// Finds out which tokens of a chat prompt belong to which role, for steering's selectors by role.
// Runs on the tokenise pool, only for requests with such selectors.
#pragma once

#include <boost/json/fwd.hpp>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/steer/selector.h"
#include "rudder/text/message_marks.h"
#include "rudder/text/tokenizer.h"

namespace rudder::server {

// `spans`: where `prompt` shows `messages` (ChatPrompt::find_messages); `ids` are its tokens. A
// token that any part of a message is in belongs to it. Messages of other roles (tool) and the
// template's own text have none. kUnsupported when the tokens do not spell the prompt.
Result<std::vector<steer::RoleSpan>> prompt_roles(std::span<const text::MessageSpan> spans,
                                                  const boost::json::array& messages,
                                                  const text::Tokenizer& tokenizer,
                                                  std::span<const int32_t> ids,
                                                  std::string_view prompt);

}  // namespace rudder::server
