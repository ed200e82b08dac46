// What users of vLLM, SGLang and llama.cpp type, and what it is called here: data for the command
// line's answer to a flag that it does not know. docs/migration.md has the same table for people.
#pragma once

#include <string_view>

namespace rudder::apps {

// "use --max-model-len", or why there is no such flag; empty where the name says nothing. `flag` as
// typed, without its value.
std::string_view other_servers_hint(std::string_view flag);

}  // namespace rudder::apps
