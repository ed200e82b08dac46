// Reads the items of `input` of POST /v1/responses. Runs on the tokenise pool.
#pragma once

#include <boost/json/fwd.hpp>

#include "rudder/base/result.h"
#include "rudder/server/openai/responses_tools.h"
#include "rudder/server/request/conversation.h"

namespace rudder::server {

// `input` is a string or a list of items. What the assistant thought, said and called in items that
// follow one another becomes one message. Items that no model can read are left out; where nothing
// else is left, and the conversation is empty, that is an error. Errors carry the item's path.
// `forms` knows the tools that items bring along.
Result<void> read_input_items(const boost::json::value& input, const ToolForms& forms,
                              Conversation& conversation);

}  // namespace rudder::server
