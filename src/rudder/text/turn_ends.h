// Ends of turns: the special tokens that a chat template writes behind messages. A prompt is whole
// messages up to each of them, so others are likely to go on there. They are found in what the
// template renders of a trial conversation, whatever their names are. Called once, when a model is
// loaded.
#pragma once

#include <cstdint>
#include <vector>

#include "rudder/text/chat_prompt.h"
#include "rudder/text/tokenizer.h"

namespace rudder::text {

// Ascending. Of each role that the template renders, the first special token behind its message; a
// role whose messages end in plain text has none.
std::vector<int32_t> find_turn_ends(const ChatPrompt& chat, const Tokenizer& tokenizer);

}  // namespace rudder::text
