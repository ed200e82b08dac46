// Translates the items of `input` of POST /v1/responses into chat messages. Runs on the tokenise
// pool.
#pragma once

#include <boost/json/fwd.hpp>

#include "rudder/base/result.h"
#include "rudder/server/request/field_map.h"

namespace rudder::server {

// `input` is a string or a list of items. What the assistant thought, said and called in items that
// follow one another becomes one message. Errors carry the item's path.
Result<void> read_input_items(const boost::json::value& input, boost::json::array& messages,
                              FieldMap& map);

}  // namespace rudder::server
