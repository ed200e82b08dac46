// The parts of /openapi.json: schemas as JSON text, by area, and the request and answer of each
// operation. Constant data; any thread.
#pragma once

#include <string_view>

namespace rudder::server {

// JSON objects {name: schema}. References are "#/components/schemas/NAME".
std::string_view generation_schemas();   // bodies of chat and completions requests
std::string_view request_schemas();      // bodies of the other requests
std::string_view chat_answer_schemas();  // answers of chat and completions requests, and errors
std::string_view api_answer_schemas();   // answers of responses, messages and embeddings
std::string_view service_schemas();      // answers of all else

struct Operation {
  std::string_view method;
  std::string_view path;
  std::string_view summary;
  std::string_view request;     // schema of the body; empty: none
  std::string_view answer;      // schema of the answer; empty: it is not JSON
  std::string_view event = {};  // schema of each event's data in a stream
};

// Null: nothing is known of it.
const Operation* find_operation(std::string_view method, std::string_view path);

}  // namespace rudder::server
