// References to items of responses that are remembered, in `input` of POST /v1/responses. Runs on
// the tokenise pool.
#pragma once

#include <boost/json/value.hpp>
#include <optional>

#include "rudder/server/openai/response_store.h"

namespace rudder::server {

// An item of the type `item_reference`, or of no type with an `id` and nothing of a message.
bool is_item_reference(const boost::json::object& item);

// `input` with items in the place of references to them: those of answers that `store` has for this
// tenant, and those that these were asked with under an id of the server's. Each is put in once, so
// that it grows by what is remembered at most; other references stay. Nothing where none is in it.
std::optional<boost::json::value> with_referred_items(const boost::json::value& input,
                                                      ResponseStore& store, int tenant);

}  // namespace rudder::server
