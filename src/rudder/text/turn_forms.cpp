#include "rudder/text/turn_forms.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "rudder/text/message_marks.h"

namespace rudder::text {
namespace {

namespace json = boost::json;

constexpr std::string_view kRoleOfResults = "tool";
constexpr std::string_view kCalling = "assistant that calls";
// Their last call has a name that must stand in the prompt.
constexpr std::string_view kCallingVisibly = "assistant that calls and is seen to";
constexpr std::string_view kCallingTwice = "assistant that calls twice";
constexpr std::string_view kSilent = "assistant that says nothing";
constexpr std::string_view kSilentResult = "tool that says nothing";
constexpr std::string_view kCallingInWords = "assistant that thinks, says something and calls";
constexpr std::string_view kSeenCall = "trialcallseen";

bool is_result(std::string_view role) {
  return role == kRoleOfResults || role == kSilentResult;
}

// A word that no template has.
std::string word(size_t i) {
  return fmt::format("trialturn{}end", i);
}

json::object trial_call(std::string_view name, int number, ArgumentForm arguments) {
  const json::object function = {{"name", name}, {"arguments", no_arguments(arguments)}};
  return {{"id", fmt::format("call0000{}", number)}, {"type", "function"}, {"function", function}};
}

// `num_results`: results in front of it.
json::object trial_message(std::string_view role, size_t i, int num_results,
                           ArgumentForm arguments) {
  if (role == kCallingInWords) {
    json::object message = {{"role", "assistant"},
                            {"content", word(i)},
                            {"tool_calls", json::array{trial_call("f", 1, arguments)}}};
    for (const std::string_view name : kThoughtNames) message[name] = "a thought";
    return message;
  }
  if (role == kCalling || role == kCallingVisibly || role == kCallingTwice) {
    json::array calls = {trial_call(role == kCallingVisibly ? kSeenCall : "f", 1, arguments)};
    if (role == kCallingTwice) calls.push_back(trial_call(kSeenCall, 2, arguments));
    return {{"role", "assistant"}, {"content", ""}, {"tool_calls", std::move(calls)}};
  }
  json::object message = {{"role", role}, {"content", word(i)}};
  if (role == kSilent) message = {{"role", "assistant"}, {"content", ""}};
  if (role == kSilentResult) message = {{"role", kRoleOfResults}, {"content", ""}};
  if (is_result(role)) {
    message["tool_call_id"] = fmt::format("call0000{}", num_results + 1);
    message["name"] = "f";
  }
  return message;
}

class Trials {
 public:
  Trials(const ChatTemplate& chat_template, const json::object& tokens, ArgumentForm arguments)
      : template_(chat_template), arguments_(arguments), context_(tokens) {
    context_["tools"] = nullptr;
    context_["documents"] = nullptr;
    context_["add_generation_prompt"] = true;
  }

  // A call leaves something in the prompt.
  bool shows_call() {
    json::array messages = {trial_message("user", 0, 0, arguments_),
                            trial_message(kCallingVisibly, 1, 0, arguments_),
                            trial_message(kRoleOfResults, 2, 0, arguments_)};
    context_["messages"] = messages;
    const Result<std::string> called = template_.render(context_);
    messages[1].get_object().erase("tool_calls");
    context_["messages"] = std::move(messages);
    const Result<std::string> silent = template_.render(context_);
    return called && (!silent || *called != *silent);
  }

  // Conversations have a tool from now on.
  void add_tool() {
    const json::object parameters = {{"type", "object"}, {"properties", json::object()}};
    const json::object function = {{"name", "f"}, {"description", "f"}, {"parameters", parameters}};
    context_["tools"] = json::array{{{"type", "function"}, {"function", function}}};
  }

  // Every message of a conversation of these roles stands in the prompt, in this order.
  bool shows(std::initializer_list<std::string_view> roles) {
    json::array messages;
    int num_results = 0;
    for (const std::string_view role : roles) {
      messages.push_back(trial_message(role, messages.size(), num_results, arguments_));
      if (is_result(role)) ++num_results;
    }
    const size_t num_messages = messages.size();
    context_["messages"] = std::move(messages);
    const Result<std::string> prompt = template_.render(context_);
    if (!prompt) return false;
    size_t at = 0;
    for (size_t i = 0; i < num_messages; ++i) {
      const std::string_view role = *(roles.begin() + i);
      if (role == kCalling || role == kSilent || role == kSilentResult) continue;
      const bool is_call = role == kCallingVisibly || role == kCallingTwice;
      at = prompt->find(is_call ? std::string(kSeenCall) : word(i), at);
      if (at == std::string::npos) return false;
    }
    return true;
  }

 private:
  const ChatTemplate& template_;
  const ArgumentForm arguments_;
  json::object context_;
};

}  // namespace

TurnForms find_turn_forms(const ChatTemplate& chat_template, const json::object& tokens,
                          ArgumentForm arguments) {
  Trials trials(chat_template, tokens, arguments);
  if (!trials.shows({"user"})) return {};
  const auto first = [&](std::string_view role) { return trials.shows({role, "user"}); };
  const auto later = [&](std::string_view role) {
    return trials.shows({"user", role}) && trials.shows({"system", role, "user"}) &&
           trials.shows({"user", "assistant", role, "user"});
  };
  TurnForms forms;
  forms.system_first = first("system");
  forms.system_later = forms.system_first && later("system");
  forms.developer_first = forms.system_first;
  forms.developer_later = forms.system_later;
  if (chat_template.knows_word("developer")) {  // else it is shown as the system's
    forms.developer_first = first("developer");
    forms.developer_later = forms.developer_first && later("developer");
  }
  forms.user_after_user = trials.shows({"user", "user"});
  forms.results = trials.shows({"user", kCalling, kRoleOfResults});
  // Of a template that knows no results nothing can be told.
  forms.user_after_result =
      !forms.results || trials.shows({"user", kCalling, kRoleOfResults, "user"});
  forms.calls_without_results = !forms.results || trials.shows({"user", kCalling, "user"});
  forms.results_without_calls =
      !forms.results || (trials.shows({"user", kRoleOfResults, "assistant", "user"}) &&
                         trials.shows({"user", "assistant", kRoleOfResults, "assistant", "user"}));
  forms.several_calls = !trials.shows({"user", kCallingVisibly, kRoleOfResults}) ||
                        trials.shows({"user", kCallingTwice, kRoleOfResults, kRoleOfResults});
  forms.text_beside_thoughts = !forms.results || trials.shows({"user", kCallingInWords});
  forms.assistant_after_assistant = !trials.shows({"user", "assistant", "user"}) ||
                                    trials.shows({"user", "assistant", "assistant", "user"});
  forms.assistant_first = trials.shows({"assistant", "user"});
  forms.without_user = trials.shows({"assistant"});
  forms.empty_texts = trials.shows({"user", kSilent, "user"}) &&
                      (!forms.results || trials.shows({"user", kCalling, kSilentResult}));
  // A template that prints any role with its content shows results, and leaves calls out. Others
  // show calls where there are tools alone.
  forms.calls = trials.shows_call();
  trials.add_tool();
  forms.calls = forms.calls || trials.shows_call();
  return forms;
}

}  // namespace rudder::text
