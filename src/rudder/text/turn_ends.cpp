#include "rudder/text/turn_ends.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <initializer_list>
#include <set>
#include <string>
#include <string_view>

namespace rudder::text {
namespace {

namespace json = boost::json;

constexpr std::string_view kResult = "tool";
constexpr std::string_view kCall = "assistant that calls";

// A word that no template has.
std::string word_of(size_t message) {
  return fmt::format("trialturn{}end", message);
}

json::object message_of(std::string_view role, size_t i) {
  if (role == kCall) {
    const json::object function = {{"name", "f"}, {"arguments", json::object()}};
    return {{"role", "assistant"},
            {"content", ""},
            {"tool_calls", {{{"id", "call00001"}, {"type", "function"}, {"function", function}}}}};
  }
  json::object message = {{"role", role}, {"content", word_of(i)}};
  if (role == kResult) {
    message["tool_call_id"] = "call00001";
    message["name"] = "f";
  }
  return message;
}

// What stands behind each message up to the next that shows its content; none where the template
// does not show all of them in this order.
std::vector<std::string> texts_behind(const ChatPrompt& chat,
                                      std::initializer_list<std::string_view> roles) {
  json::array messages;
  for (const std::string_view role : roles) messages.push_back(message_of(role, messages.size()));
  const Result<std::string> prompt = chat.render(messages, nullptr, nullptr);
  if (!prompt) return {};
  std::vector<std::string> behind;
  size_t end = 0;  // of the last word
  for (size_t i = 0; i < roles.size(); ++i) {
    if (*(roles.begin() + i) == kCall) continue;
    const std::string word = word_of(i);
    const size_t at = prompt->find(word, end);
    if (at == std::string::npos) return {};
    if (end > 0) behind.push_back(prompt->substr(end, at - end));
    end = at + word.size();
  }
  behind.push_back(prompt->substr(end));
  return behind;
}

}  // namespace

std::vector<int32_t> find_turn_ends(const ChatPrompt& chat, const Tokenizer& tokenizer) {
  std::set<int32_t> ends;
  const auto collect = [&](std::initializer_list<std::string_view> roles) {
    for (const std::string& behind : texts_behind(chat, roles)) {
      const auto ids = tokenizer.encode(behind, {.add_special_tokens = false});
      if (!ids) continue;
      const auto end =
          std::ranges::find_if(*ids, [&](int32_t id) { return tokenizer.is_special(id); });
      if (end != ids->end()) ends.insert(*end);
    }
  };
  collect({"system", "user", "assistant", "user"});
  collect({"user", "assistant", "user", "assistant", "user"});
  collect({"user", kCall, kResult, "assistant", "user"});
  return {ends.begin(), ends.end()};
}

}  // namespace rudder::text
