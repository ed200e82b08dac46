// Shared parts of the readers of conversations: fields that must be there, and the parts of the
// messages that templates expect. Runs on the tokenise pool.
#pragma once

#include <boost/json/fwd.hpp>
#include <string>
#include <string_view>

#include "rudder/base/result.h"

namespace rudder::server {

// The string at `object`'s `name`; an Error where there is none. `path` is the object's.
Result<std::string> required_string(const boost::json::object& object, std::string_view name,
                                    const std::string& path);

// The string there, or "".
std::string_view string_in(const boost::json::object& object, std::string_view name);

// Whether a result of a tool is text or a list of parts, and no data of the tool's own: its
// elements are texts, or objects with a type or a text.
bool is_text_or_parts(const boost::json::value& result);

// Error of the "type" of the object at `path`; `only` names what is supported.
tl::unexpected<Error> unsupported_type(std::string_view type, std::string_view only,
                                       const std::string& path);

// The content of a message: one text as a string, several as parts, so that a template which
// knows strings alone gets one where there is one.
boost::json::value content_of(boost::json::array parts);
// A part {"type": "text", "text": ...}.
boost::json::object text_part(std::string_view text);
// Appends text to a message's content, which may be absent or null.
void append_content(boost::json::object& message, std::string_view text);
// One more call of an assistant's message; `arguments` is an object.
void append_call(boost::json::object& message, std::string_view id, std::string_view name,
                 boost::json::value arguments);
// A tool that a conversation brings along, in the words of clients whose searches find tools.
std::string shown_function(const boost::json::object& function);

}  // namespace rudder::server
