// The messages of a chat request: checked, and put into the form that chat templates expect.
#pragma once

#include <boost/json/fwd.hpp>
#include <string>

#include "rudder/base/result.h"

namespace rudder::server {

// Roles are system, developer, user, assistant and tool. Content is a string, null where the
// message has tool calls, or a list of text
// parts; any other part is refused by its path ("messages[1].content[0].type"). The arguments of
// earlier tool calls, a string of JSON in the protocol, become the object that templates print.
Result<boost::json::array> normalise_messages(const boost::json::array& messages);

// The text that a chat answer with echo begins with: the last message of this body, which has been
// rendered, if the answer continues in its role.
std::string echoed_message(const boost::json::object& body);

}  // namespace rudder::server
