// The items that a response was asked with, as GET /v1/responses/{id}/input_items tells them. Pure
// functions; any thread.
#pragma once

#include <boost/json/fwd.hpp>
#include <string>
#include <string_view>

#include "rudder/base/result.h"

namespace rudder::server {

// `input` of a request as a list of items, each with an id. `response_id` is that of its response.
boost::json::array listed_input(const boost::json::value& input, std::string_view response_id);

// The page of `items` (JSON) that the query asks for: `after`, `limit`, `order`. kInvalidArgument
// names the parameter.
Result<std::string> page_of_items(const std::string& items, std::string_view query);

// A parameter of a query, or "". Names and values are taken as they are written.
std::string_view query_parameter(std::string_view query, std::string_view name);

}  // namespace rudder::server
