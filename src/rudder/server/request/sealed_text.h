// Text that goes to the client and comes back with the conversation, in a form that the client
// passes on without reading it. Pure functions; any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace rudder::server {

// What it is, in front of the text.
inline constexpr std::string_view kSealedThought = "rudder-thought-1.";
inline constexpr std::string_view kSealedSummary = "rudder-summary-1.";

// "" of "".
std::string seal_text(std::string_view mark, std::string_view text);
// Nothing where it is something else, or somebody else's.
std::optional<std::string> open_sealed(std::string_view mark, std::string_view sealed);

}  // namespace rudder::server
