// A grammar for text that does not contain given marks: the text that a model may write where a
// mark would begin a call. Pure functions; any thread.
#pragma once

#include <string>
#include <vector>

namespace rudder::dialect {

// EBNF. The marks are ASCII, none of them empty; there may be none.
std::string text_without(const std::vector<std::string>& marks);

}  // namespace rudder::dialect
