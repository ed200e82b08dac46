// Reads the conversation of a chat request: its messages, checked and put into the form that chat
// templates expect, and the fields of the template.
#pragma once

#include <boost/json/fwd.hpp>
#include <string>

#include "rudder/base/result.h"
#include "rudder/server/request/conversation.h"
#include "rudder/server/request/field_reader.h"

namespace rudder::server {

// One message at `path` of the body. Roles are system, developer, user, assistant and tool. Content
// is a string, null where the message is an assistant's or a tool's, or a list of parts. Parts
// other than text are refused by their path ("messages[1].content[0].type") in the question
// (`is_asked`), and have a stand-in elsewhere. The arguments of earlier calls, a string of JSON in
// the protocol, become the object that templates print.
Result<boost::json::object> normalise_message(const boost::json::value& item,
                                              const std::string& path, bool is_asked,
                                              History& history);

// `messages` with add_generation_prompt, continue_final_message and what every API has of the
// template's. Errors of fields stay in `reader` or come back, whichever is found first.
Result<Conversation> read_chat_conversation(FieldReader& reader);

// What every API has of the template's: `chat_template_kwargs`, `documents`, `add_special_tokens`.
void read_template_fields(FieldReader& reader, Conversation* conversation);
// How hard to think, from this field of `reader`; what the client set in the kwargs stays.
void read_reasoning_effort(FieldReader& reader, std::string_view name, Conversation* conversation);

// The text that a chat answer with echo begins with: the last message of this body, which has been
// read, if the answer continues in its role.
std::string echoed_message(const boost::json::object& body);

}  // namespace rudder::server
