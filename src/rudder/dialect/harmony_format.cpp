// Grammars of answers in Harmony: which headers may come, and what the last message is. Where the
// prompt has begun a message, the answer is the rest of it.
#include <boost/json.hpp>
#include <string>
#include <utility>

#include "rudder/dialect/harmony.h"

namespace rudder::dialect::harmony {

namespace json = boost::json;

namespace {

json::object in_turn(json::array elements) {
  return {{"type", "sequence"}, {"elements", std::move(elements)}};
}
json::object one_of(json::array elements) {
  return {{"type", "or"}, {"elements", std::move(elements)}};
}
json::object maybe(json::object content) {
  return {{"type", "optional"}, {"content", std::move(content)}};
}
json::object words(std::string_view value) {
  return {{"type", "const_string"}, {"value", json::string_view(value)}};
}

class HarmonyWriter {
 public:
  explicit HarmonyWriter(const FindSpecial& find_special) : find_special_(find_special) {}

  // A message of any text, and the header of the next one up to its channel.
  json::object message(std::string_view channel) const {
    json::object body = {{"type", "tag"},
                         {"begin", side(kMessage)},
                         {"content", {{"type", "any_text"}}},
                         {"end", side(kEnd)}};
    return in_turn(
        {mark(kChannel), words(channel), std::move(body), mark(kStart), words("assistant")});
  }
  json::object last(json::object content) const {
    return in_turn({mark(kChannel), words("final"), mark(kMessage), std::move(content)});
  }
  json::object call(const CallableTool& tool, bool forces) const {
    json::object schema = {{"type", "object"}};
    if (forces || tool.is_strict) schema = arguments_schema(tool);
    return in_turn({mark(kChannel), words("commentary to=functions." + tool.name + " "),
                    mark(kConstrain), words("json"), mark(kMessage),
                    json::object{{"type", "json_schema"}, {"json_schema", std::move(schema)}}});
  }
  json::array calls(const std::vector<CallableTool>& tools, bool forces) const {
    json::array kinds;
    for (const CallableTool& tool : tools) kinds.push_back(call(tool, forces));
    return kinds;
  }
  // Thoughts, where they are told apart, and words before a call.
  json::object answer(const ParserSetup& setup, json::array lasts, bool says_before) const {
    json::array parts;
    if (setup.reasoning != nullptr) parts.push_back(maybe(message("analysis")));
    if (says_before) parts.push_back(maybe(message("commentary")));
    parts.push_back(lasts.size() == 1 ? std::move(lasts.front()) : one_of(std::move(lasts)));
    return {{"type", "structural_tag"}, {"format", in_turn(std::move(parts))}};
  }

 private:
  json::value side(std::string_view value) const {
    if (find_special_(value)) return mark(value);
    return json::string_view(value);
  }
  json::object mark(std::string_view value) const {
    if (const std::optional<int32_t> id = find_special_(value)) {
      return {{"type", "token"}, {"token", *id}};
    }
    return words(value);
  }

  const FindSpecial& find_special_;
};

bool is_in_message(const ParserSetup& setup) {
  return setup.opening.find(kMessage) != std::string::npos;
}

json::object alone(json::object content) {
  return {{"type", "structural_tag"}, {"format", in_turn({std::move(content)})}};
}

}  // namespace

json::object after_thoughts(const ParserSetup& setup, json::object content,
                            const FindSpecial& find_special) {
  if (is_in_message(setup)) return alone(std::move(content));
  const HarmonyWriter writer(find_special);
  return writer.answer(setup, {writer.last(std::move(content))}, false);
}

json::object calls(const ParserSetup& setup, const std::vector<CallableTool>& tools,
                   const FindSpecial& find_special) {
  const HarmonyWriter writer(find_special);
  return writer.answer(setup, writer.calls(tools, true), false);
}

json::object content_or_calls(const ParserSetup& setup, const json::object* content,
                              const std::vector<CallableTool>& tools,
                              const FindSpecial& find_special) {
  json::object any = {{"type", "any_text"}};
  const json::object& last = content == nullptr ? any : *content;
  if (is_in_message(setup)) return alone(last);
  const HarmonyWriter writer(find_special);
  json::array lasts = {writer.last(last)};
  for (json::value& call : writer.calls(tools, false)) lasts.push_back(std::move(call));
  return writer.answer(setup, std::move(lasts), content == nullptr);
}

}  // namespace rudder::dialect::harmony
