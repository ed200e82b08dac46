#include "rudder/text/call_arguments.h"

#include <string>
#include <string_view>
#include <utility>

#include "rudder/base/check.h"
#include "rudder/base/json.h"

namespace rudder::text {
namespace {

namespace json = boost::json;

constexpr std::string_view kTrialText = R"({"trialargument": "trialvalue"})";
constexpr std::string_view kTrialRepr = "{'trialargument'";  // as Python prints the object

// As Hugging Face's tojson.
std::string dumped(const json::value& value) {
  static const ChatTemplate kPrinter = [] {
    Result<ChatTemplate> parsed = ChatTemplate::parse("{{ value | tojson }}");
    RUDDER_CHECK(parsed.has_value());
    return std::move(*parsed);
  }();
  return kPrinter.render({{"value", value}}).value_or(json::serialize(value));
}

json::array conversation(json::value arguments) {
  const json::object function = {{"name", "f"}, {"arguments", std::move(arguments)}};
  return {{{"role", "user"}, {"content", "question"}},
          {{"role", "assistant"},
           {"content", ""},
           {"tool_calls", {{{"id", "call00001"}, {"type", "function"}, {"function", function}}}}},
          {{"role", "tool"}, {"content", "result"}, {"tool_call_id", "call00001"}, {"name", "f"}}};
}

}  // namespace

ArgumentForm find_argument_form(const ChatTemplate& chat_template, const json::object& tokens) {
  if (!chat_template.knows_word("arguments")) return ArgumentForm::kObject;
  json::object context = tokens;
  context["tools"] = nullptr;
  context["documents"] = nullptr;
  context["add_generation_prompt"] = true;
  const auto render = [&](json::value arguments) {
    context["messages"] = conversation(std::move(arguments));
    return chat_template.render(context);
  };
  const Result<std::string> of_object = render({{"trialargument", "trialvalue"}});
  if (of_object && of_object->find(kTrialRepr) == std::string::npos) return ArgumentForm::kObject;
  const Result<std::string> of_text = render(json::string_view(kTrialText));
  const bool shows_text = of_text && of_text->find(kTrialText) != std::string::npos;
  return shows_text ? ArgumentForm::kText : ArgumentForm::kObject;
}

json::value no_arguments(ArgumentForm form) {
  return form == ArgumentForm::kText ? json::value("{}") : json::value(json::object());
}

void fit_arguments(ArgumentForm form, json::object& message) {
  json::value* const field = message.if_contains("tool_calls");
  json::array* const calls = field != nullptr ? field->if_array() : nullptr;
  if (calls == nullptr) return;
  for (json::value& call : *calls) {
    json::value* const function =
        call.is_object() ? call.get_object().if_contains("function") : nullptr;
    json::value* const arguments = function != nullptr && function->is_object()
                                       ? function->get_object().if_contains("arguments")
                                       : nullptr;
    if (arguments == nullptr) continue;
    if (form == ArgumentForm::kText && arguments->is_object()) {
      *arguments = dumped(*arguments);
    } else if (form == ArgumentForm::kObject && arguments->is_string()) {
      Result<json::value> parsed = parse_json(arguments->get_string(), "arguments");
      if (parsed && parsed->is_object()) *arguments = std::move(*parsed);
    }
  }
}

}  // namespace rudder::text
