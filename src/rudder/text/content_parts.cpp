#include "rudder/text/content_parts.h"

#include <array>
#include <boost/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

namespace rudder::text {
namespace {

namespace json = boost::json;

// Words that no template has.
constexpr std::array<std::string_view, 2> kPartTexts = {"firstpartofthetrial",
                                                        "secondpartofthetrial"};

json::array trial_parts() {
  json::array parts;
  for (const std::string_view text : kPartTexts) {
    parts.push_back({{"type", "text"}, {"text", text}});
  }
  return parts;
}

json::object message(std::string_view role, json::value content) {
  return {{"role", role}, {"content", std::move(content)}};
}

// Conversations in which a message of this role has parts.
std::vector<json::array> trials(std::string_view role, ArgumentForm arguments) {
  const json::object question = message("user", "question");
  const json::object answer = message("assistant", "answer");
  if (role == "user") {
    return {{message("user", trial_parts())},
            {message("user", trial_parts()), answer, message("user", trial_parts())}};
  }
  if (role == "assistant") {
    return {{question, message("assistant", trial_parts()), question}};
  }
  if (role == "tool") {
    json::object call = message("assistant", "");
    const json::object function = {{"name", "f"}, {"arguments", no_arguments(arguments)}};
    call["tool_calls"] = {{{"id", "call00001"}, {"type", "function"}, {"function", function}}};
    json::object result = message("tool", trial_parts());
    result["tool_call_id"] = "call00001";
    result["name"] = "f";
    return {{question, call, result}};
  }
  return {{message(role, trial_parts()), question}};
}

// Each part's text stands in the prompt, and not in quotes, as it does where a list is printed.
bool shows_parts(std::string_view prompt) {
  for (const std::string_view text : kPartTexts) {
    const size_t at = prompt.find(text);
    if (at == std::string_view::npos) return false;
    if (at > 0 && (prompt[at - 1] == '\'' || prompt[at - 1] == '"')) return false;
  }
  return true;
}

}  // namespace

std::set<std::string, std::less<>> roles_with_parts(const ChatTemplate& chat_template,
                                                    const json::object& tokens,
                                                    ArgumentForm arguments) {
  std::set<std::string, std::less<>> roles;
  if (!chat_template.loops_over_content()) return roles;
  json::object context = tokens;
  context["tools"] = nullptr;
  context["documents"] = nullptr;
  context["add_generation_prompt"] = true;
  for (const char* role : {"system", "developer", "user", "assistant", "tool"}) {
    bool takes_parts = true;
    for (json::array& messages : trials(role, arguments)) {
      context["messages"] = std::move(messages);
      const Result<std::string> prompt = chat_template.render(context);
      takes_parts = takes_parts && prompt && shows_parts(*prompt);
    }
    if (takes_parts) roles.insert(role);
  }
  return roles;
}

}  // namespace rudder::text
