// Puts the messages of a conversation into a sequence that the model's template renders:
// instructions behind other messages become the user's text where they stand, and messages of one
// role in a row become one, where the template knows no other way. Runs on the tokenise pool.
#pragma once

#include <boost/json/fwd.hpp>

#include "rudder/server/request/conversation.h"
#include "rudder/text/turn_forms.h"

namespace rudder::server {

// Takes the conversation's messages. Its history is told of each that has lost its role or its
// turn.
boost::json::array fold_turns(Conversation& conversation, const text::TurnForms& forms);

}  // namespace rudder::server
