// Text in which some marks do not stand, as a grammar: what a model may say where a mark would
// begin a call. Pure; any thread.
#pragma once

#include <string>
#include <vector>

namespace rudder::dialect {

// EBNF. The marks are ASCII, none of them empty; there may be none.
std::string text_without(const std::vector<std::string>& marks);

}  // namespace rudder::dialect
