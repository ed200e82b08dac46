#include "rudder/text/call_ids.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

namespace rudder::text {
namespace {

namespace json = boost::json;

constexpr size_t kShortId = 9;
constexpr std::string_view kIdLetters =
    "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

// By FNV-1a (http://www.isthe.com/chongo/tech/comp/fnv/): ids need not be hard to guess here.
std::string shortened(std::string_view id) {
  const auto is_letter = [](char c) { return kIdLetters.find(c) != std::string_view::npos; };
  if (id.size() == kShortId && std::ranges::all_of(id, is_letter)) return std::string(id);
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : id) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
  std::string out;
  for (size_t i = 0; i < kShortId; ++i) {
    out.push_back(kIdLetters[hash % kIdLetters.size()]);
    hash /= kIdLetters.size();
  }
  return out;
}

void shorten_member(json::object& object, std::string_view name) {
  json::value& id = object[name];
  id = shortened(id.is_string() ? std::string_view(id.get_string()) : std::string_view());
}

}  // namespace

bool takes_any_id(const ChatTemplate& chat_template, const json::object& tokens,
                  ArgumentForm arguments) {
  json::object context = tokens;
  context["tools"] = nullptr;
  context["documents"] = nullptr;
  context["add_generation_prompt"] = true;
  const auto renders = [&](std::string_view id) {
    const json::object function = {{"name", "f"}, {"arguments", no_arguments(arguments)}};
    const json::object call = {{"id", id}, {"type", "function"}, {"function", function}};
    context["messages"] = {
        {{"role", "user"}, {"content", "question"}},
        {{"role", "assistant"}, {"content", ""}, {"tool_calls", json::array{call}}},
        {{"role", "tool"}, {"content", "result"}, {"tool_call_id", id}, {"name", "f"}}};
    return chat_template.render(context).has_value();
  };
  return renders("call_0123456789") || !renders("call00001");
}

void shorten_ids(json::object& message) {
  if (message.at("role") == "tool") return shorten_member(message, "tool_call_id");
  json::value* const calls = message.if_contains("tool_calls");
  if (calls == nullptr || !calls->is_array()) return;
  for (json::value& call : calls->get_array()) {
    if (call.is_object()) shorten_member(call.get_object(), "id");
  }
}

}  // namespace rudder::text
