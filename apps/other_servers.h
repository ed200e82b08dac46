// The flags of vLLM, SGLang and llama.cpp with their names here. The command line uses this table
// to answer an unknown flag; docs/migration.md has it for people.
#pragma once

#include <string_view>

namespace rudder::apps {

// "use --max-model-len", or why there is no such flag; empty where the name says nothing. `flag` as
// typed, without its value.
std::string_view other_servers_hint(std::string_view flag);

}  // namespace rudder::apps
