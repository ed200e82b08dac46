// Text of strangers (a hub, a request, a file's name) as it may stand in a terminal or a log: what
// a terminal obeys is written out. Pure function; any thread.
#pragma once

#include <string>
#include <string_view>

namespace rudder {

// `text` (UTF-8, which is not checked) with its control characters (C0 but for tab and newline,
// DEL, C1) as \x1b and the like.
std::string terminal_text(std::string_view text);

}  // namespace rudder
