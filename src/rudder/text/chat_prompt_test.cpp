#include "rudder/text/chat_prompt.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>

namespace rudder::text {
namespace {

namespace json = boost::json;

constexpr std::string_view kChatMl =
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
    "{% if tools %}{{ tools | length }}{% endif %}{{ flavour }}";

std::shared_ptr<const ChatPrompt> load_prompt(const json::object& config,
                                              std::string_view jinja = {}) {
  auto prompt = ChatPrompt::from_json(json::serialize(config), jinja);
  EXPECT_TRUE(prompt.has_value()) << prompt.error().to_string();
  return prompt ? *prompt : nullptr;
}

json::array user(json::value content) {
  return {{{"role", "user"}, {"content", content}}};
}

TEST(ChatPrompt, TemplateFromConfigOrFile) {
  const json::object config{{"chat_template", kChatMl}, {"bos_token", {{"content", "<s>"}}}};
  EXPECT_EQ(*load_prompt(config)->render(user("Hi"), nullptr, nullptr),
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(*load_prompt(config, "{{ bos_token }}{{ messages[0].content }}")
                 ->render(user("Hi"), nullptr, nullptr),
            "<s>Hi");
}

TEST(ChatPrompt, NamedTemplates) {
  const json::object config{
      {"chat_template",
       {{{"name", "default"}, {"template", "plain"}},
        {{"name", "tool_use"}, {"template", "tools {{ tools | length }}"}},
        {{"name", "rag"}, {"template", "{% include 'unused, so never parsed' %}"}}}}};
  const auto prompt = load_prompt(config);
  const json::array tools{json::object{{"type", "function"}}};
  EXPECT_EQ(*prompt->render(user("x"), nullptr, nullptr), "plain");
  EXPECT_EQ(*prompt->render(user("x"), &tools, nullptr), "tools 1");
}

TEST(ChatPrompt, FilesGoBeforeTheConfigAndTheOldOneLast) {
  const std::string config = R"({"chat_template": "config {{ mood }}"})";
  const json::array tools{json::object{{"type", "function"}}};
  const auto rendered = [&](const std::string& text, const ChatTemplateFiles& files,
                            const json::array* given = nullptr,
                            const json::object* kwargs = nullptr) {
    const auto prompt = ChatPrompt::from_files({.config = text}, files);
    EXPECT_TRUE(prompt) << prompt.error().to_string();
    return *(*prompt)->render(user("x"), given, kwargs);
  };
  ChatTemplateFiles files{.jinja = "file {{ mood }}",
                          .tools_jinja = "tools {{ mood }}",
                          .old_json = R"({"chat_template": "old {{ mood }}"})",
                          .kwargs = R"({"mood": "glad"})"};
  const json::object sad{{"mood", "sad"}};
  EXPECT_EQ(rendered(config, files), "file glad");
  EXPECT_EQ(rendered(config, files, &tools), "tools glad");
  EXPECT_EQ(rendered(config, files, nullptr, &sad), "file sad");
  files.jinja.clear();
  EXPECT_EQ(rendered(config, files), "config glad");
  EXPECT_EQ(rendered(config, files, &tools), "tools glad");
  EXPECT_EQ(rendered("{}", files), "old glad");
  EXPECT_EQ(ChatPrompt::from_files({.config = config}, {.kwargs = "[]"}).error().where,
            "default-chat-template-kwargs");
  EXPECT_EQ(ChatPrompt::from_files({.config = config}, {.kwargs = R"({"tools": 1})"}).error().where,
            "default-chat-template-kwargs.tools");
}

TEST(ChatPrompt, MissingOrBrokenTemplates) {
  EXPECT_EQ(ChatPrompt::from_json("{}").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(ChatPrompt::from_json("{").error().code, ErrorCode::kCorruptFile);
  EXPECT_EQ(ChatPrompt::from_json(R"({"chat_template": [{"name": 1}]})").error().code,
            ErrorCode::kCorruptFile);
  EXPECT_EQ(ChatPrompt::from_json("{}", "{{ x").error().code, ErrorCode::kInvalidArgument);
}

TEST(ChatPrompt, PartsAreJoinedWhereAStringIsWanted) {
  const auto prompt = load_prompt({{"chat_template", "{{ messages[0].content }}"}});
  const json::array parts{{{"type", "text"}, {"text", "a"}}, {{"type", "text"}, {"text", "b"}}};
  EXPECT_EQ(*prompt->render(user(parts), nullptr, nullptr), "a\nb");
  const auto looping = load_prompt(
      {{"chat_template", "{% for p in messages[0].content %}[{{ p.text }}]{% endfor %}"}});
  EXPECT_EQ(*looping->render(user(parts), nullptr, nullptr), "[a][b]");
}

// A loop over content for tool calls, or for one role, is none for the text of others.
TEST(ChatPrompt, PartsAreJoinedForRolesWhoseLoopIsForSomethingElse) {
  const json::array parts{{{"type", "text"}, {"text", "a"}}, {{"type", "text"}, {"text", "b"}}};
  const auto calls_only = load_prompt(
      {{"chat_template",
        "{% for m in messages %}{{ m.role + ':' }}{% for p in m.content if p.type == 'tool_call' %}"
        "call{% endfor %}{{ m.content | trim }};{% endfor %}"}});
  EXPECT_EQ(*calls_only->render(user(parts), nullptr, nullptr), "user:a\nb;");
  const auto users_only = load_prompt(
      {{"chat_template",
        "{% for m in messages %}{% if m.role == 'user' and m.content is not string %}"
        "{% for p in m.content %}[{{ p.text }}]{% endfor %}{% else %}{{ m.content }}{% endif %}"
        "{% endfor %}"}});
  json::array messages = {{{"role", "system"}, {"content", parts}},
                          {{"role", "user"}, {"content", parts}},
                          {{"role", "assistant"}, {"content", parts}}};
  EXPECT_EQ(*users_only->render(messages, nullptr, nullptr), "a\nb[a][b]a\nb");
  // The first message's content has the system prompt put in front of it.
  const auto not_first = load_prompt(
      {{"chat_template",
        "{% for m in messages %}{% if loop.first %}{{ 'Be kind. ' + m.content }}{% else %}"
        "{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}{% endfor %}"}});
  EXPECT_EQ(*not_first->render(user(parts), nullptr, nullptr), "Be kind. a\nb");
}

TEST(ChatPrompt, DeveloperIsSystemWhereTheTemplateDoesNotKnowIt) {
  const json::array messages = {{{"role", "developer"}, {"content", "Be kind."}}};
  const auto knows = load_prompt({{"chat_template",
                                   "{% if messages[0].role in ['developer', 'system'] %}"
                                   "{{ messages[0].role }}{% endif %}"}});
  EXPECT_EQ(*knows->render(messages, nullptr, nullptr), "developer");
  const auto does_not = load_prompt({{"chat_template", "{{ messages[0].role }}"}});
  EXPECT_EQ(*does_not->render(messages, nullptr, nullptr), "system");
}

TEST(ChatPrompt, ThoughtsHaveTheNamesThatTheTemplateReads) {
  const auto said = [](const char* source, const char* name) {
    const json::array messages = {{{"role", "user"}, {"content", "Q"}},
                                  {{"role", "assistant"}, {"content", "A"}, {name, "thoughts"}}};
    const auto text = load_prompt({{"chat_template", source}})->render(messages, nullptr, nullptr);
    return text ? *text : text.error().to_string();
  };
  for (const char* name : {"reasoning_content", "reasoning", "thinking"}) {
    EXPECT_EQ(said("{{ messages[1].reasoning_content }}", name), "thoughts") << name;
    EXPECT_EQ(said("{{ messages[1]['reasoning'] }}", name), "thoughts") << name;
    EXPECT_EQ(said("{{ messages[1].get('thinking') }}", name), "thoughts") << name;
  }
  // A template that prints what there is does not see a name that it does not ask for.
  EXPECT_EQ(said("{{ messages[1] | list }} {{ messages[1].thinking }}", "thinking"),
            "['role', 'content', 'thinking'] thoughts");
}

TEST(ChatPrompt, BadMessagesAreNamed) {
  const auto prompt = load_prompt({{"chat_template", kChatMl}});
  const auto where = [&](const json::array& messages) {
    const auto result = prompt->render(messages, nullptr, nullptr);
    EXPECT_FALSE(result.has_value());
    return result ? "" : result.error().where;
  };
  EXPECT_EQ(where({1}), "messages[0]");
  EXPECT_EQ(where({json::object{{"content", "x"}}}), "messages[0].role");
  EXPECT_EQ(where(user(5)), "messages[0].content");
  EXPECT_EQ(where(user(json::array{{{"type", "image_url"}}})), "messages[0].content[0]");
}

TEST(ChatPrompt, KwargsAreVariablesButReplaceNothing) {
  const auto prompt = load_prompt({{"chat_template", kChatMl}});
  const json::object flavour{{"flavour", "sweet"}};
  EXPECT_TRUE(prompt->render(user("x"), nullptr, &flavour)->ends_with("sweet"));
  for (const std::string key : {"messages", "tools", "chat_template"}) {
    const json::object replaces{{key, "x"}};
    const auto refused = prompt->render(user("x"), nullptr, &replaces);
    ASSERT_FALSE(refused.has_value()) << key;
    EXPECT_EQ(refused.error().where, "chat_template_kwargs." + key);
  }
}

TEST(ChatPrompt, ContinuesTheFinalMessage) {
  const auto prompt = load_prompt({{"chat_template", kChatMl}});
  json::array messages = user("Hi");
  messages.push_back({{"role", "assistant"}, {"content", "Well, "}});
  const ChatOptions options{.add_generation_prompt = false, .continue_final_message = true};
  EXPECT_EQ(*prompt->render(messages, nullptr, nullptr, options),
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nWell, ");
  const ChatOptions both{.add_generation_prompt = true, .continue_final_message = true};
  EXPECT_EQ(prompt->render(messages, nullptr, nullptr, both).error().where,
            "continue_final_message");
}

TEST(ChatPrompt, TheDemoModelHasOne) {
  const auto prompt = ChatPrompt::from_directory(RUDDER_SOURCE_DIR "/models/demo");
  ASSERT_TRUE(prompt.has_value()) << prompt.error().to_string();
  EXPECT_EQ(*(*prompt)->render(user(" Hi "), nullptr, nullptr),
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
}

TEST(ChatPrompt, TellsWhichTurnsTheTemplateRenders) {
  const auto forms = [](std::string_view jinja) {
    return load_prompt({}, jinja)->turn_forms(false);
  };
  const TurnForms any = forms(kChatMl);
  EXPECT_TRUE(any.system_first && any.system_later && any.developer_later);
  EXPECT_TRUE(any.user_after_user && any.user_after_result && any.assistant_after_assistant);
  EXPECT_TRUE(any.results);
  EXPECT_FALSE(any.calls) << "it prints every role with its content";

  // Says what it does not know.
  const TurnForms strict = forms(
      "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
      "{{ raise_exception('in front alone') }}{% endif %}{{ m.role }}{{ m.content }}{% endfor %}");
  EXPECT_TRUE(strict.system_first && strict.user_after_user);
  EXPECT_FALSE(strict.system_later || strict.developer_later);

  // Leaves it out without a word.
  const TurnForms silent = forms(
      "{% if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}"
      "{% for m in messages %}{% if m.role != 'system' %}{{ m.content }}{% endif %}{% endfor %}");
  EXPECT_TRUE(silent.system_first);
  EXPECT_FALSE(silent.system_later);

  // Collects them in front.
  const TurnForms moved = forms(
      "{% for m in messages if m.role == 'system' %}{{ m.content }}{% endfor %}"
      "{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}");
  EXPECT_TRUE(moved.system_first);
  EXPECT_FALSE(moved.system_later);

  const TurnForms in_turn = forms(
      "{% for m in messages %}{% if m.role == 'system' or (m.role == 'user') != (loop.index0 % 2 "
      "== "
      "0) %}{{ raise_exception('in turn') }}{% endif %}{{ m.content }}{% endfor %}");
  EXPECT_FALSE(in_turn.system_first || in_turn.system_later || in_turn.user_after_user ||
               in_turn.assistant_after_assistant);
  EXPECT_FALSE(in_turn.results);
}

// Mistral's, gpt-oss's and Granite's refuse, each in its way, what a conversation that was cut has.
TEST(ChatPrompt, TellsWhatTheTemplateMakesOfConversationsThatWereCut) {
  const auto forms = [](std::string_view jinja) {
    return load_prompt({}, "{% set ns = namespace(i=0, call=false) %}{% for m in messages %}" +
                               std::string(jinja) + "{% endfor %}")
        ->turn_forms(false);
  };
  const TurnForms any = forms("{{ m.content }}{{ m.tool_calls }}");
  EXPECT_TRUE(any.assistant_first && any.calls_without_results && any.results_without_calls &&
              any.empty_texts);
  const TurnForms mistral = forms(
      "{% if m.role != 'tool' and not m.tool_calls %}{% if (m.role == 'user') != (ns.i % 2 == 0) "
      "%}{{ raise_exception('in turn') }}{% endif %}{% set ns.i = ns.i + 1 %}{% endif %}"
      "{{ m.content }}{{ m.tool_calls }}");
  EXPECT_FALSE(mistral.assistant_first || mistral.calls_without_results ||
               mistral.results_without_calls);
  EXPECT_TRUE(mistral.results && mistral.empty_texts);
  const TurnForms harmony = forms(
      "{% if m.tool_calls %}{% set ns.call = true %}{% elif m.role == 'assistant' %}"
      "{% set ns.call = false %}{% elif m.role == 'tool' and not ns.call %}"
      "{{ raise_exception('no call') }}{% endif %}{{ m.content }}{{ m.tool_calls }}");
  EXPECT_FALSE(harmony.results_without_calls);
  EXPECT_TRUE(harmony.assistant_first && harmony.calls_without_results && harmony.results);
  const TurnForms granite = forms("{{ m.content or m.tool_calls | tojson }}");
  EXPECT_FALSE(granite.empty_texts);
  EXPECT_TRUE(granite.results && granite.calls);
}

// As transformers renders the text; it refuses the object.
TEST(ChatPrompt, ArgumentsAreATextForATemplateThatJoinsThem) {
  const auto chat =
      load_prompt({},
                  "{% for m in messages %}{{ '<|' + m.role + '|>' + (m.content or '') }}"
                  "{% for c in m.tool_calls or [] %}{{ '<|call|>' + c.function.name + '<|sep|>' + "
                  "c.function.arguments + '<|end|>' }}{% endfor %}{% endfor %}");
  const auto rendered = [&](json::value arguments) {
    const json::object function = {{"name", "get"}, {"arguments", std::move(arguments)}};
    return chat->render({{{"role", "user"}, {"content", "q"}},
                         {{"role", "assistant"},
                          {"content", nullptr},
                          {"tool_calls", {{{"id", "a"}, {"function", function}}}}},
                         {{"role", "tool"}, {"content", "21"}, {"tool_call_id", "a"}}},
                        nullptr, nullptr);
  };
  const auto shown = [](std::string_view arguments) {
    return "<|user|>q<|assistant|><|call|>get<|sep|>" + std::string(arguments) +
           "<|end|><|tool|>21";
  };
  constexpr std::string_view kText = R"({"city":"Z\u00fcrich", "days": [1,2],"x":1.50})";
  EXPECT_EQ(rendered(json::string_view(kText)), shown(kText)) << "as it was written";
  EXPECT_EQ(rendered({{"city", "Z\xc3\xbcrich"}, {"days", {1, 2}}, {"x", 1.5}}),
            shown("{\"city\": \"Z\xc3\xbcrich\", \"days\": [1, 2], \"x\": 1.5}"));
  EXPECT_EQ(rendered(json::object()), shown("{}"));
  const TurnForms turns = chat->turn_forms(false);
  EXPECT_TRUE(turns.results && turns.several_calls);
}

TEST(ChatPrompt, ArgumentsAreAnObjectForATemplateThatPrintsThem) {
  const auto rendered = [](std::string_view printed, json::value arguments) {
    const auto chat = load_prompt({}, "{% for m in messages %}{% for c in m.tool_calls or [] %}" +
                                          std::string(printed) + "{% endfor %}{% endfor %}");
    const json::object function = {{"name", "get"}, {"arguments", std::move(arguments)}};
    return chat->render(
        {{{"role", "assistant"}, {"tool_calls", {{{"id", "a"}, {"function", function}}}}}}, nullptr,
        nullptr);
  };
  for (const json::value& arguments :
       {json::value("{\"n\":1}"), json::value(json::object{{"n", 1}})}) {
    EXPECT_EQ(rendered("{{ c.function.arguments | tojson }}", arguments), "{\"n\": 1}");
    EXPECT_EQ(rendered("{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}{% endfor %}",
                       arguments),
              "n=1");
    EXPECT_EQ(rendered("{% set a = c.function.arguments %}{{ a if a is string else a | tojson }}",
                       arguments),
              "{\"n\": 1}");
  }
  // Printed as Python does, an object would be no JSON.
  EXPECT_EQ(rendered("{{ c.function.arguments }}", json::object{{"n", 1}}), "{\"n\": 1}");
  EXPECT_EQ(rendered("{{ c.function.name ~ c.function.arguments }}", "{\"n\":1}"), "get{\"n\":1}");
}

// Clients have ids of other servers, or none; such a template renders no others than its own.
TEST(ChatPrompt, IdsOfCallsAreShortForATemplateThatWantsThat) {
  constexpr std::string_view kCheck =
      " | length != 9 %}{{ raise_exception('nine') }}{% endif %}{{ ";
  const auto strict = load_prompt(
      {}, fmt::format("{{% for m in messages %}}{{% for c in m.tool_calls or [] %}}{{% if c.id{}"
                      "c.id }}}}{{% endfor %}}{{% if m.role == 'tool' %}}={{% if m.tool_call_id{}"
                      "m.tool_call_id }}}}{{% endif %}}{{% endfor %}}",
                      kCheck, kCheck));
  const auto rendered = [](const ChatPrompt& chat, const json::value& id) {
    const json::object function = {{"name", "get"}, {"arguments", json::object()}};
    return chat
        .render({{{"role", "user"}, {"content", "q"}},
                 {{"role", "assistant"},
                  {"content", ""},
                  {"tool_calls", {{{"id", id}, {"function", function}}}}},
                 {{"role", "tool"}, {"content", "21"}, {"tool_call_id", id}}},
                nullptr, nullptr)
        .value_or("refused");
  };
  EXPECT_EQ(rendered(*strict, "Ab3456789"), "Ab3456789=Ab3456789");
  for (const json::value& id : {json::value("toolu_01Ab"), json::value("call-0001"),
                                json::value(""), json::value(nullptr)}) {
    const std::string shown = rendered(*strict, id);
    ASSERT_EQ(shown.size(), 19u) << shown;
    EXPECT_EQ(shown.substr(0, 9), shown.substr(10)) << "a result is its call's";
  }
  EXPECT_NE(rendered(*strict, "toolu_01Ab"), rendered(*strict, "toolu_01Ac"));
  const auto any =
      load_prompt({},
                  "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.id }}{% endfor %}"
                  "{% endfor %}");
  EXPECT_EQ(rendered(*any, "toolu_01Ab"), "toolu_01Ab");
}

TEST(ChatPrompt, TellsWhetherTheTemplateRendersSeveralCalls) {
  const auto forms = [](std::string_view calls) {
    return load_prompt({},
                       "{% for m in messages %}{{ m.role }}{{ m.content }}{% if m.tool_calls %}" +
                           std::string(calls) + "{% endif %}{% endfor %}")
        ->turn_forms(false);
  };
  EXPECT_TRUE(forms("").several_calls) << "it shows none at all";
  EXPECT_TRUE(forms("{% for c in m.tool_calls %}{{ c.function.name }}{% endfor %}").several_calls);
  EXPECT_FALSE(forms("{{ m.tool_calls[0].function.name }}").several_calls) << "left out";
  EXPECT_FALSE(forms("{% if m.tool_calls | length != 1 %}{{ raise_exception('one') }}{% endif %}"
                     "{{ m.tool_calls[0].function.name }}")
                   .several_calls);
  EXPECT_TRUE(forms("{{ m.tool_calls | tojson }}").results);
  EXPECT_TRUE(forms("{{ m.tool_calls | tojson }}").calls);
  EXPECT_TRUE(forms("{% if tools %}{{ m.tool_calls | tojson }}{% endif %}").calls);
}

}  // namespace
}  // namespace rudder::text
