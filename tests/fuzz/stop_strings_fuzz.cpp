// Lines up to an empty one are stop strings, the rest is text: however the text is cut, the match
// is that of a plain search, and what is shown is the text before it.
#include <vector>

#include "require.h"
#include "rudder/text/stop_strings.h"

namespace rudder::fuzz {
namespace {

using text::StopMatch;
using text::StopMatcher;
using text::StopSet;

// Of the matches that end first, the longest.
std::optional<StopMatch> plain_search(const std::vector<std::string>& stops,
                                      std::string_view text) {
  for (size_t end = 1; end <= text.size(); ++end) {
    std::optional<StopMatch> longest;
    for (size_t i = 0; i < stops.size(); ++i) {
      const bool longer = !longest || stops[i].size() > stops[longest->index].size();
      if (longer && text.substr(0, end).ends_with(stops[i])) longest = {i, end - stops[i].size()};
    }
    if (longest) return longest;
  }
  return std::nullopt;
}

}  // namespace

void fuzz_stop_strings(std::string_view input) {
  std::vector<std::string> stops;
  size_t at = 0;
  while (at < input.size() && input[at] != '\n') {
    const size_t end = std::min(input.find('\n', at), input.size());
    stops.emplace_back(input.substr(at, end - at));
    at = std::min(end + 1, input.size());
  }
  const std::string_view text = input.substr(std::min(at + 1, input.size()));
  if (text.size() > 2000 || stops.size() > 16) return;
  const auto set = StopSet::compile(stops);
  if (!set) return require_error(set.error(), {ErrorCode::kInvalidArgument}, "stop");
  const auto expected = plain_search(stops, text);
  auto choices = choices_of(input);
  for (const bool include : {false, true}) {
    StopMatcher matcher(*set, include);
    std::string shown;
    for (size_t from = 0; from < text.size();) {
      const size_t length = 1 + choices() % 7;
      shown += matcher.push(text.substr(from, length));
      from += length;
    }
    shown += matcher.flush();
    RUDDER_CHECK(matcher.match().has_value() == expected.has_value());
    size_t end = text.size();
    if (expected) {
      const std::string& found = stops[matcher.match()->index];
      RUDDER_CHECK(matcher.match()->offset == expected->offset && found == stops[expected->index]);
      end = expected->offset + (include ? found.size() : 0);
    }
    RUDDER_CHECK(shown == text.substr(0, end), "{:?}", shown);
  }
}

}  // namespace rudder::fuzz
