// Reads the conversation of POST /v1/messages. Runs on the tokenise pool.
#pragma once

#include <boost/json/fwd.hpp>
#include <string>

#include "rudder/base/result.h"
#include "rudder/server/request/conversation.h"

namespace rudder::server {

struct MessagesInput {
  Conversation& conversation;  // what has been read
  // Tools by name, as functions in chat's form: what references to them show. Those that the
  // conversation itself brings join them.
  boost::json::object& functions;
};

// A tool as a function in chat's form: name, description, parameters.
Result<boost::json::object> function_of_tool(const boost::json::object& tool,
                                             const std::string& path);

// `system` is a string or a list of blocks. The line in front that tells who pays differs from
// request to request, and is left out: behind it no prefix would be cached.
Result<void> read_system(const boost::json::value& system, MessagesInput& input);
// Results of tools become messages of their own, in front of the user's text in the same message.
Result<void> read_message_list(const boost::json::array& list, MessagesInput& input);

}  // namespace rudder::server
