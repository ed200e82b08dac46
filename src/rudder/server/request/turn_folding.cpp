#include "rudder/server/request/turn_folding.h"

#include <algorithm>
#include <boost/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rudder/text/message_marks.h"

namespace rudder::server {

namespace json = boost::json;

namespace {

constexpr std::string_view kBetween = "\n\n";
constexpr std::string_view kBlank = " ";

std::string_view role_of_turn(const json::object& message) {
  return message.at("role").get_string();
}

bool has_calls(const json::object& message) {
  const json::value* calls = message.if_contains("tool_calls");
  return calls != nullptr && calls->is_array() && !calls->get_array().empty();
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

  // `is_answered`: a result is behind what it calls, or nothing is.
  void add(json::object message, const std::string& path, bool is_answered = true) {
    if (role_of_turn(message) == "tool" && !may_have_results()) say_result(message, path);
    const bool calls = forms_.calls && forms_.results;
    if (!calls || (!is_answered && !forms_.calls_without_results)) say_calls(message, path);
    if (!forms_.text_beside_thoughts) think_text(message, path);
    if (!forms_.empty_texts) fill(message);
    const std::string role(role_of_turn(message));
    if (role == "assistant" && !forms_.assistant_first && (turns_.empty() || is_preamble())) {
      turns_.push_back(silent_user());
      history_.tell(path);
    }
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

  // `path`: of the first message.
  json::array take(const std::string& path) {
    const auto is_user = [](const json::value& turn) {
      return role_of_turn(turn.get_object()) == "user";
    };
    if (!forms_.without_user && std::ranges::none_of(turns_, is_user)) {
      const bool has_preamble =
          !turns_.empty() && is_instruction(role_of_turn(turns_.front().get_object()));
      turns_.insert(turns_.begin() + (has_preamble ? 1 : 0), silent_user());
      history_.tell(path);
    }
    return std::move(turns_);
  }

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

  // What is there so far ends with a call and results of it, or the template wants no call.
  bool may_have_results() const {
    if (!forms_.results || forms_.results_without_calls) return forms_.results;
    for (size_t i = turns_.size(); i > 0; --i) {
      const json::object& turn = turns_[i - 1].get_object();
      if (role_of_turn(turn) != "tool") return has_calls(turn);
    }
    return false;
  }

  // A result that the template does not show where it stands is the user's text.
  void say_result(json::object& message, const std::string& path) {
    message["role"] = "user";
    history_.tell(path);
  }

  // Stands where the template wants a message of the user.
  json::object silent_user() const {
    return {{"role", "user"}, {"content", forms_.empty_texts ? std::string_view() : kBlank}};
  }

  // No word is a blank for a template that refuses it.
  static void fill(json::object& message) {
    json::value& content = message["content"];
    if (has_calls(message) || (!content.is_null() && !joined_text(content).empty())) {
      return;
    }
    content = kBlank;
  }

  // Calls that the template does not show where they stand are the assistant's text.
  void say_calls(json::object& message, const std::string& path) {
    if (!has_calls(message)) return;
    std::string said;
    for (const json::value& call : message.at("tool_calls").get_array()) {
      const json::object& function = call.at("function").as_object();
      if (!said.empty()) said += '\n';
      said += function.at("name").as_string();
      const json::value& arguments = function.at("arguments");
      said += '(' +
              (arguments.is_string() ? std::string(arguments.get_string())
                                     : json::serialize(arguments)) +
              ')';
    }
    message.erase("tool_calls");
    json::value& content = message["content"];
    if (content.is_null()) content.emplace_string();
    add_to_content(content, said);
    history_.tell(path);
  }

  // Of a template that takes thoughts or text beside calls, the text is the end of the thoughts.
  void think_text(json::object& message, const std::string& path) {
    const json::value* calls = message.if_contains("tool_calls");
    json::value* content = message.if_contains("content");
    if (calls == nullptr || !calls->is_array() || content == nullptr || content->is_null()) return;
    const std::string text = joined_text(*content);
    bool has_thoughts = false;
    for (const std::string_view name : text::kThoughtNames) {
      json::value* thoughts = message.if_contains(name);
      if (text.empty() || thoughts == nullptr || !thoughts->is_string()) continue;
      add_to_content(*thoughts, text);
      has_thoughts = true;
    }
    if (!has_thoughts) return;
    *message.if_contains("content") = "";
    history_.tell(path);
  }

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

json::array* calls_of(json::object& message) {
  json::value* calls = message.if_contains("tool_calls");
  return calls == nullptr ? nullptr : calls->if_array();
}

std::string_view text_member(const json::object& object, std::string_view name) {
  const json::value* value = object.if_contains(name);
  return value == nullptr || !value->is_string() ? std::string_view() : value->get_string();
}

// A message with several calls as one message a call, each with the results of its own behind it.
// Returns the index behind the last message that it took.
size_t add_one_by_one(Conversation& conversation, size_t first, TurnFolder& folder) {
  json::array& messages = conversation.messages;
  size_t end = first + 1;
  while (end < messages.size() && role_of_turn(messages[end].get_object()) == "tool") ++end;
  json::object message = std::move(messages[first].get_object());
  const json::array calls = std::move(*calls_of(message));
  const std::string& path = conversation.paths[first];
  std::vector<bool> is_taken(end, false);
  size_t num_taken = 0;
  for (const json::value& call : calls) {
    const std::string_view id = text_member(call.as_object(), "id");
    std::vector<size_t> own;
    for (size_t i = first + 1; i < end; ++i) {
      const json::object& result = messages[i].get_object();
      if (!is_taken[i] && text_member(result, "tool_call_id") == id) own.push_back(i);
    }
    num_taken += own.size();
    const bool has_others = num_taken < end - first - 1 || end == messages.size();
    message["tool_calls"] = json::array{call};
    folder.add(std::move(message), path, !own.empty() || (&call == &calls.back() && has_others));
    message = {{"role", "assistant"}, {"content", ""}};
    for (const size_t i : own) {
      is_taken[i] = true;
      folder.add(std::move(messages[i].get_object()), conversation.paths[i]);
    }
  }
  for (size_t i = first + 1; i < end; ++i) {
    if (!is_taken[i]) folder.add(std::move(messages[i].get_object()), conversation.paths[i]);
  }
  conversation.history.tell(path);
  return end;
}

}  // namespace

json::array fold_turns(Conversation& conversation, const text::TurnForms& forms) {
  TurnFolder folder(forms, conversation.history);
  for (size_t i = 0; i < conversation.messages.size();) {
    json::object& message = conversation.messages[i].get_object();
    const json::array* calls = calls_of(message);
    if (!forms.several_calls && calls != nullptr && calls->size() > 1) {
      i = add_one_by_one(conversation, i, folder);
      continue;
    }
    const bool is_last = i + 1 == conversation.messages.size();
    const bool is_answered =
        is_last || role_of_turn(conversation.messages[i + 1].get_object()) == "tool";
    folder.add(std::move(message), conversation.paths[i], is_answered);
    ++i;
  }
  return folder.take(conversation.paths.empty() ? "" : conversation.paths.front());
}

}  // namespace rudder::server
