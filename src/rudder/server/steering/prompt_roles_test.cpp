#include "rudder/server/steering/prompt_roles.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "rudder/text/chat_prompt.h"

namespace rudder::server {
namespace {

namespace json = boost::json;

TEST(PromptRoles, TokensOfADemoChat) {
  const auto chat = text::ChatPrompt::from_directory(RUDDER_SOURCE_DIR "/models/demo");
  const auto tokenizer = text::Tokenizer::from_directory(RUDDER_SOURCE_DIR "/models/demo");
  ASSERT_TRUE(chat.has_value() && tokenizer.has_value());
  const json::array messages{{{"role", "user"}, {"content", "Tell me a story."}},
                             {{"role", "assistant"}, {"content", "Once there was a boat."}},
                             {{"role", "tool"}, {"content", "42"}},
                             {{"role", "user"}, {"content", "And then?"}}};
  const auto prompt = (*chat)->render(messages, nullptr, nullptr);
  ASSERT_TRUE(prompt.has_value()) << prompt.error().to_string();
  const auto spans = (*chat)->find_messages(*prompt, messages, nullptr, nullptr);
  ASSERT_TRUE(spans.has_value()) << spans.error().to_string();
  const auto ids = (*tokenizer)->encode(*prompt, {.add_special_tokens = false});
  const auto roles = prompt_roles(*spans, messages, **tokenizer, *ids, *prompt);
  ASSERT_TRUE(roles.has_value()) << roles.error().to_string();

  ASSERT_EQ(roles->size(), 3u);  // a tool has no role to steer
  const std::vector<std::pair<steer::Role, std::string>> expected = {
      {steer::Role::kUser, "Tell me a story."},
      {steer::Role::kAssistant, "Once there was a boat."},
      {steer::Role::kUser, "And then?"}};
  for (size_t i = 0; i < expected.size(); ++i) {
    const auto& [role, tokens] = (*roles)[i];
    EXPECT_EQ(role, expected[i].first);
    const std::vector<int32_t> inside(ids->begin() + tokens.begin, ids->begin() + tokens.end);
    EXPECT_NE((*tokenizer)->decode(inside, false).find(expected[i].second), std::string::npos);
  }
}

TEST(PromptRoles, ATokenAcrossTheBorderBelongsToTheMessage) {
  const auto tokenizer = text::Tokenizer::from_directory(RUDDER_SOURCE_DIR "/models/demo");
  ASSERT_TRUE(tokenizer.has_value());
  const std::string prompt = "a story of a boat";
  const auto ids = (*tokenizer)->encode(prompt, {.add_special_tokens = false});
  const json::array messages{{{"role", "user"}, {"content", "tory"}}};
  const std::vector<text::MessageSpan> spans{{0, false, 3, 7}};  // inside " story"
  const auto roles = prompt_roles(spans, messages, **tokenizer, *ids, prompt);
  ASSERT_TRUE(roles.has_value());
  ASSERT_EQ(roles->size(), 1u);
  const std::vector<int32_t> inside(ids->begin() + roles->front().tokens.begin,
                                    ids->begin() + roles->front().tokens.end);
  EXPECT_NE((*tokenizer)->decode(inside, false).find("tory"), std::string::npos);
}

}  // namespace
}  // namespace rudder::server
