#include "rudder/server/request/turn_folding.h"

#include <boost/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "rudder/text/message_marks.h"

namespace rudder::server {

namespace json = boost::json;

namespace {

constexpr std::string_view kBetween = "\n\n";

std::string_view role_of_turn(const json::object& message) {
  return message.at("role").get_string();
}

bool is_instruction(std::string_view role) {
  return role == "system" || role == "developer";
}

// The text of a content, its parts on lines of their own.
std::string joined_text(const json::value& content) {
  if (content.is_string()) return std::string(content.get_string());
  std::string text;
  for (const json::value& part : content.as_array()) {
    if (!text.empty()) text += '\n';
    text += part.at("text").get_string();
  }
  return text;
}

// In place: many messages may join one.
void add_to_content(json::value& content, std::string_view text) {
  if (text.empty()) return;
  if (!content.is_string()) content = joined_text(content);
  json::string& joined = content.get_string();
  if (!joined.empty()) joined.append(json::string_view(kBetween));
  joined.append(json::string_view(text));
}

// What an assistant's message has beside its text.
void append_turn(json::object& message, json::object& more) {
  for (const std::string_view name : text::kThoughtNames) {
    const json::value* thoughts = more.if_contains(name);
    if (thoughts != nullptr && thoughts->is_string() && !message.contains(name)) {
      message[name] = *thoughts;
    }
  }
  json::value* calls = more.if_contains("tool_calls");
  if (calls == nullptr || !calls->is_array()) return;
  json::value& all = message["tool_calls"];
  if (!all.is_array()) all.emplace_array();
  for (json::value& call : calls->get_array()) all.get_array().push_back(std::move(call));
}

class TurnFolder {
 public:
  TurnFolder(const text::TurnForms& forms, History& history) : forms_(forms), history_(history) {}

  void add(json::object message, const std::string& path) {
    const std::string role(role_of_turn(message));
    const bool keeps_role = !is_instruction(role) || has_turn(role);
    const bool joins = keeps_role ? !may_follow(role) : is_preamble() || !may_follow("user");
    if (keeps_role && !joins) return turns_.push_back(std::move(message));
    history_.tell(path + ".role");
    if (!joins) {
      message["role"] = "user";
      return turns_.push_back(std::move(message));
    }
    json::object& last = turns_.back().get_object();
    add_to_content(last["content"], joined_text(message.at("content")));
    if (role == "assistant") append_turn(last, message);
  }

  json::array take() { return std::move(turns_); }

 private:
  std::string_view last_role() const {
    return turns_.empty() ? std::string_view() : role_of_turn(turns_.back().get_object());
  }

  bool has_turn(std::string_view role) const {
    const bool is_first = turns_.empty();
    if (role == "system") return is_first ? forms_.system_first : forms_.system_later;
    return is_first ? forms_.developer_first : forms_.developer_later;
  }

  // What is there so far is the instructions in front, which more of them join.
  bool is_preamble() const { return turns_.size() == 1 && is_instruction(last_role()); }

  // A message of this role may have a turn of its own now.
  bool may_follow(std::string_view role) const {
    const std::string_view last = last_role();
    if (role == "user" && last == "user") return forms_.user_after_user;
    if (role == "user" && last == "tool") return forms_.user_after_result;
    if (role == "assistant" && last == "assistant") return forms_.assistant_after_assistant;
    return true;
  }

  const text::TurnForms& forms_;
  History& history_;
  json::array turns_;
};

}  // namespace

json::array fold_turns(Conversation& conversation, const text::TurnForms& forms) {
  TurnFolder folder(forms, conversation.history);
  for (size_t i = 0; i < conversation.messages.size(); ++i) {
    folder.add(std::move(conversation.messages[i].get_object()), conversation.paths[i]);
  }
  return folder.take();
}

}  // namespace rudder::server
