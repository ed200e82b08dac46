// Of whose messages a chat template takes the content as a list of parts. A loop over `content`
// alone does not tell: it may be there for one role, or for parts that are tool calls. So the
// template is tried once, at load. Internal to the room.
#pragma once

#include <boost/json/fwd.hpp>
#include <set>
#include <string>

#include "rudder/text/call_arguments.h"
#include "rudder/text/chat_template.h"

namespace rudder::text {

// The roles whose messages the template shows as they are when their content is a list of text
// parts. Messages of other roles want a string. `tokens`: the variables that the files give it.
std::set<std::string, std::less<>> roles_with_parts(const ChatTemplate& chat_template,
                                                    const boost::json::object& tokens,
                                                    ArgumentForm arguments);

}  // namespace rudder::text
