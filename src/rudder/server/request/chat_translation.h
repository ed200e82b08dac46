// Shared parts of the translations from other APIs into chat requests: messages that remember which
// field they come from, and parts of text. Runs on the tokenise pool.
#pragma once

#include <boost/json/fwd.hpp>
#include <functional>
#include <string>
#include <string_view>

#include "rudder/base/result.h"
#include "rudder/server/request/field_map.h"
#include "rudder/server/request/field_reader.h"

namespace rudder::server {

// The string at `object`'s `name`; an Error where there is none. `path` is the object's.
Result<std::string> required_string(const boost::json::object& object, std::string_view name,
                                    const std::string& path);

// Error of the "type" of the object at `path`; `only` names what is supported.
tl::unexpected<Error> unsupported_type(std::string_view type, std::string_view only,
                                       const std::string& path);

// A chat tool's "function" out of another API's tool at `path`.
using FunctionOfTool = std::function<Result<boost::json::object>(const boost::json::object& tool,
                                                                 const std::string& path)>;
// Puts chat's `tools` for those that `reader` has, if any; the first fault is `reader`'s.
void translate_tools(FieldReader& reader, const FunctionOfTool& function_of,
                     boost::json::object& chat);

// Appends a message; errors in it will name `path`.
void push_message(boost::json::array& messages, FieldMap& map, boost::json::object message,
                  std::string path);

// The content of a chat message: one text as a string, several as parts, so that a template which
// knows strings alone gets one where there is one.
boost::json::value content_of(boost::json::array parts);
// A part {"type": "text", "text": ...}.
boost::json::object text_part(std::string_view text);
// Appends text to a message's content, which may be absent or null.
void append_content(boost::json::object& message, std::string_view text);
// One more call of an assistant's message; `arguments` is JSON text.
void append_call(boost::json::object& message, std::string_view id, std::string_view name,
                 std::string_view arguments);

}  // namespace rudder::server
