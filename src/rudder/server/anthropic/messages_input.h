// Translates the messages of POST /v1/messages into chat messages. Runs on the tokenise pool.
#pragma once

#include <boost/json/fwd.hpp>

#include "rudder/base/result.h"
#include "rudder/server/request/field_map.h"

namespace rudder::server {

// `system` is a string or a list of blocks of text.
Result<void> read_system(const boost::json::value& system, boost::json::array& messages,
                         FieldMap& map);
// Results of tools become messages of their own, in front of the user's text in the same message.
Result<void> read_message_list(const boost::json::array& list, boost::json::array& messages,
                               FieldMap& map);

}  // namespace rudder::server
