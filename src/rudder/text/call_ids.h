// Ids of tool calls in the form that a chat template takes: any text, or nine letters and digits,
// as Mistral's want them, which refuse a conversation with others. The template is tried once, at
// load. Internal to the room.
#pragma once

#include <boost/json.hpp>

#include "rudder/text/call_arguments.h"
#include "rudder/text/chat_template.h"

namespace rudder::text {

// False where the template renders a call and its result under an id of nine letters, and under no
// other. `tokens`: the variables that the files give it.
bool takes_any_id(const ChatTemplate& chat_template, const boost::json::object& tokens,
                  ArgumentForm arguments);

// Gives the message's calls, or its result, an id of nine letters and digits: the same for the
// same, also where there is none. One that is so already stays.
void shorten_ids(boost::json::object& message);

}  // namespace rudder::text
