// What in a request's body is, or must have been meant as, a field of steering or capture. Pure;
// any thread.
#pragma once

#include <boost/json/fwd.hpp>
#include <string_view>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/server/http/http_message.h"

namespace rudder::server {

// kUnsupported, with the path and the name to use, where the body has a field that looks like one
// of steering or capture and is none, or one that stands where none is read: inside `extra_body`
// (also as a text of JSON), `metadata`, `vllm_xargs` and all other fields but those of steering and
// those that are the client's own text and schemas. Passed over, it would do nothing, and the
// client would take an answer that was not steered for one that was.
Result<void> refuse_misplaced_taps(const boost::json::object& body);

// Whether a name beside a body is one of steering or capture: as it is, or behind what such names
// begin with ("x-steering").
bool says_taps(std::string_view name);

// The same of a request's query and header, where none is read: "header.x-steering".
Result<void> refuse_taps_beside_body(std::string_view query, const std::vector<HttpField>& header);

}  // namespace rudder::server
