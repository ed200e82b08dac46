#include "rudder/text/message_marks.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "rudder/text/chat_prompt.h"

namespace rudder::text {
namespace {

namespace json = boost::json;

constexpr std::string_view kTrimming =
    "{% for m in messages %}[{{ m.role }}:{{ m.content | trim }}]{% endfor %}"
    "{% if add_generation_prompt %}[assistant:{% endif %}";
// Keeps the thoughts of no earlier answer, as the templates of reasoning models do.
constexpr std::string_view kForgetting =
    "{% for m in messages %}{% set text = m.content %}"
    "{% if m.role == 'assistant' and '</think>' in text %}"
    "{% set text = text.split('</think>')[-1].lstrip('\\n') %}{% endif %}"
    "[{{ text }}]{% endfor %}";

json::array chat() {
  return {{{"role", "system"}, {"content", "Be kind."}},
          {{"role", "user"}, {"content", "  Hi!\n"}},
          {{"role", "assistant"}, {"content", "<think>\nhm\n</think>\n\nHello."}},
          {{"role", "user"}, {"content", "Bye"}}};
}

struct Found {
  std::string prompt;
  Result<std::vector<MessageSpan>> spans;

  std::string text(size_t i) const {
    return prompt.substr((*spans)[i].begin, (*spans)[i].end - (*spans)[i].begin);
  }
};

Found find(std::string_view jinja, const json::array& messages, const ChatOptions& options = {}) {
  const auto prompt = ChatPrompt::from_json("{}", jinja);
  EXPECT_TRUE(prompt.has_value()) << prompt.error().to_string();
  const auto text = (*prompt)->render(messages, nullptr, nullptr, options);
  EXPECT_TRUE(text.has_value()) << text.error().to_string();
  return {*text, (*prompt)->find_messages(*text, messages, nullptr, nullptr, options)};
}

TEST(MessageMarks, SpansAreTheTextOfTheMessages) {
  const Found found = find(kTrimming, chat());
  ASSERT_TRUE(found.spans.has_value()) << found.spans.error().to_string();
  ASSERT_EQ(found.spans->size(), 5u);
  EXPECT_EQ(found.text(0), "Be kind.");
  EXPECT_EQ(found.text(1), "Hi!");
  EXPECT_EQ(found.text(2), "hm");
  EXPECT_TRUE((*found.spans)[2].is_reasoning);
  EXPECT_EQ(found.text(3), "Hello.");
  EXPECT_FALSE((*found.spans)[3].is_reasoning);
  EXPECT_EQ((*found.spans)[3].message, 2);
  EXPECT_EQ(found.text(4), "Bye");
}

TEST(MessageMarks, WhatATemplateLeavesOutHasNoSpan) {
  const Found found = find(kForgetting, chat());
  ASSERT_TRUE(found.spans.has_value()) << found.spans.error().to_string();
  ASSERT_EQ(found.spans->size(), 4u);
  EXPECT_EQ(found.text(2), "Hello.");
}

TEST(MessageMarks, PartsAndReasoningOfTheirOwn) {
  const json::array messages{
      {{"role", "user"},
       {"content", {{{"type", "text"}, {"text", "a"}}, {{"type", "text"}, {"text", "b"}}}}},
      {{"role", "assistant"}, {"content", "yes"}, {"reasoning_content", "why not"}}};
  const Found joined = find(
      "{% for m in messages %}{{ m.reasoning_content or '' }}|"
      "{{ m.content }}{% endfor %}",
      messages);
  ASSERT_TRUE(joined.spans.has_value());
  ASSERT_EQ(joined.spans->size(), 3u);
  EXPECT_EQ(joined.text(0), "a\nb");
  EXPECT_EQ(joined.text(1), "why not");
  EXPECT_TRUE((*joined.spans)[1].is_reasoning);
}

TEST(MessageMarks, AContinuedMessageEndsWithThePrompt) {
  const json::array messages{{{"role", "user"}, {"content", "Hi"}},
                             {{"role", "assistant"}, {"content", "Well"}}};
  const Found found =
      find(kTrimming, messages, {.add_generation_prompt = false, .continue_final_message = true});
  ASSERT_TRUE(found.spans.has_value()) << found.spans.error().to_string();
  EXPECT_EQ(found.prompt, "[user:Hi][assistant:Well");
  EXPECT_EQ(found.text(1), "Well");
}

TEST(MessageMarks, NeverGuesses) {
  // Looks into contents, changes them, shows half of them.
  for (const std::string_view jinja :
       {"{% for m in messages %}{{ m.content | upper | replace('HI', 'hi') | length }}{% endfor %}",
        "{% for m in messages %}{{ 'x' if m.content[0] == 'H' else 'y' }}{% endfor %}",
        "{% for m in messages %}{{ m.content[:1] }}{% endfor %}"}) {
    const Found found = find(jinja, {{{"role", "user"}, {"content", "Hi there"}}});
    ASSERT_FALSE(found.spans.has_value()) << jinja;
    EXPECT_EQ(found.spans.error().code, ErrorCode::kUnsupported);
  }
  const Found own_marks = find(kTrimming, {{{"role", "user"}, {"content", "x\U000F0001y"}}});
  ASSERT_FALSE(own_marks.spans.has_value());
  EXPECT_EQ(own_marks.spans.error().code, ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace rudder::text
