#include "rudder/server/request/turn_folding.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <string>

#include "rudder/base/json.h"

namespace rudder::server {
namespace {

namespace json = boost::json;

// Messages as "role:content", and the paths that were told.
struct Folded {
  std::string turns;
  std::string told;
};

Conversation conversation_of(std::string_view messages) {
  Conversation conversation;
  const json::value list = parse_json(messages, "messages").value();
  for (const json::value& message : list.as_array()) {
    conversation.add(message.as_object(), fmt::format("input[{}]", conversation.paths.size()));
  }
  return conversation;
}

Folded fold(std::string_view messages, const text::TurnForms& forms) {
  Conversation conversation = conversation_of(messages);
  const json::array folded = fold_turns(conversation, forms);
  Folded result;
  for (const json::value& message : folded) {
    const json::value& content = message.at("content");
    result.turns += fmt::format("{}:{}|", std::string_view(message.at("role").as_string()),
                                content.is_null() ? "" : std::string_view(content.as_string()));
  }
  for (const std::string& path : conversation.history.told()) result.told += path + " ";
  return result;
}

constexpr std::string_view kSession =
    R"([{"role":"system","content":"a"},{"role":"developer","content":"b"},)"
    R"({"role":"user","content":"c"},{"role":"system","content":"d"},)"
    R"({"role":"assistant","content":"e"},{"role":"system","content":"f"},)"
    R"({"role":"user","content":"g"},{"role":"user","content":"h"}])";

TEST(TurnFolding, WhatTheTemplateRendersStays) {
  const Folded folded = fold(kSession, {});
  EXPECT_EQ(folded.turns,
            "system:a|developer:b|user:c|system:d|assistant:e|system:f|user:g|user:h|");
  EXPECT_EQ(folded.told, "");
}

TEST(TurnFolding, InstructionsBecomeTheUsersTextWhereTheyStand) {
  const Folded folded = fold(kSession, {.system_later = false, .developer_later = false});
  EXPECT_EQ(folded.turns, "system:a\n\nb|user:c|user:d|assistant:e|user:f|user:g|user:h|");
  EXPECT_EQ(folded.told, "input[1].role input[3].role input[5].role ");
}

TEST(TurnFolding, TurnsAlternateWhereTheTemplateWantsThat) {
  const text::TurnForms forms = {.system_first = false,
                                 .system_later = false,
                                 .developer_first = false,
                                 .developer_later = false,
                                 .user_after_user = false,
                                 .user_after_result = false,
                                 .assistant_after_assistant = false};
  EXPECT_EQ(fold(kSession, forms).turns, "user:a\n\nb\n\nc\n\nd|assistant:e|user:f\n\ng\n\nh|");
  const Folded tools =
      fold(R"([{"role":"user","content":"q"},{"role":"assistant","content":""},)"
           R"({"role":"tool","content":"r"},{"role":"system","content":"s"},)"
           R"({"role":"assistant","content":"x"},{"role":"assistant","content":"y"}])",
           forms);
  EXPECT_EQ(tools.turns, "user:q|assistant:|tool:r\n\ns|assistant:x\n\ny|");
  EXPECT_EQ(tools.told, "input[3].role input[5].role ");
}

constexpr std::string_view kBroken =
    R"([{"role":"assistant","content":"a"},{"role":"tool","tool_call_id":"0","content":"of none"},)"
    R"({"role":"assistant","content":"","tool_calls":[{"id":"1","function":{"name":"f",)"
    R"("arguments":{"n":1}}}]},{"role":"user","content":"go on"},)"
    R"({"role":"assistant","content":"","tool_calls":[{"id":"2","function":{"name":"g",)"
    R"("arguments":{}}}]},{"role":"tool","tool_call_id":"2","content":""},)"
    R"({"role":"assistant","content":null}])";

// A conversation that was cut, in front or in a call, and one with nothing to say.
TEST(TurnFolding, WhatATemplateDoesNotFindInPlaceIsText) {
  EXPECT_EQ(fold(kBroken, {}).told, "");
  const Folded folded = fold(kBroken, {.assistant_first = false,
                                       .calls_without_results = false,
                                       .results_without_calls = false,
                                       .empty_texts = false});
  EXPECT_EQ(folded.turns,
            "user: |assistant:a|user:of none|assistant:f({\"n\":1})|user:go on|assistant:|tool: "
            "|assistant: |");
  EXPECT_EQ(folded.told, "input[0] input[1] input[2] ");
}

TEST(TurnFolding, AConversationHasAUserWhereTheTemplateWantsOne) {
  const Folded folded =
      fold(R"([{"role":"system","content":"s"},{"role":"assistant","content":"a"}])",
           {.without_user = false});
  EXPECT_EQ(folded.turns, "system:s|user:|assistant:a|");
  EXPECT_EQ(folded.told, "input[0] ");
  EXPECT_EQ(fold(kSession, {.without_user = false}).told, "");
}

// The last call of all is one that an answer goes on behind.
TEST(TurnFolding, CallsWithoutResultsAreTextOneByOne) {
  constexpr std::string_view kOneResult =
      R"([{"role":"user","content":"a"},{"role":"assistant","content":"b","tool_calls":[)"
      R"({"id":"1","function":{"name":"f","arguments":{}}},)"
      R"({"id":"2","function":{"name":"g","arguments":{}}}]},)"
      R"({"role":"tool","tool_call_id":"2","content":"of g"},{"role":"user","content":"c"}])";
  EXPECT_EQ(fold(kOneResult, {.calls_without_results = false, .several_calls = false}).turns,
            "user:a|assistant:b\n\nf({})|assistant:|tool:of g|user:c|");
}

TEST(TurnFolding, CallsAndThoughtsStayWithTheirTurn) {
  Conversation conversation =
      conversation_of(R"([{"role":"assistant","content":"x"},{"role":"assistant","content":"y",)"
                      R"("reasoning_content":"hm","tool_calls":[{"id":"1"}]}])");
  const json::array folded = fold_turns(conversation, {.assistant_after_assistant = false});
  ASSERT_EQ(folded.size(), 1u);
  EXPECT_EQ(folded[0].at("reasoning_content").as_string(), "hm");
  EXPECT_EQ(folded[0].at("tool_calls").as_array().size(), 1u);
}

constexpr std::string_view kTwoCalls =
    R"([{"role":"user","content":"a"},{"role":"assistant","content":"b","tool_calls":[)"
    R"({"id":"1","function":{"name":"f","arguments":{"n":1}}},)"
    R"({"id":"2","function":{"name":"g","arguments":"{\"n\""}}]},)"
    R"({"role":"tool","tool_call_id":"2","content":"of g"},)"
    R"({"role":"tool","tool_call_id":"1","content":"of f"},)"
    R"({"role":"tool","content":"of none"},{"role":"user","content":"c"}])";

TEST(TurnFolding, CallsComeOneByOneWhereTheTemplateWantsThat) {
  EXPECT_EQ(fold(kTwoCalls, {}).turns,
            "user:a|assistant:b|tool:of g|tool:of f|tool:of none|user:c|");
  const Folded folded = fold(kTwoCalls, {.several_calls = false});
  EXPECT_EQ(folded.turns, "user:a|assistant:b|tool:of f|assistant:|tool:of g|tool:of none|user:c|");
  EXPECT_EQ(folded.told, "input[1] ");
  Conversation conversation = conversation_of(kTwoCalls);
  const json::array messages = fold_turns(conversation, {.several_calls = false});
  for (const size_t i : {1, 3}) {
    const json::array& calls = messages[i].at("tool_calls").as_array();
    ASSERT_EQ(calls.size(), 1u);
    EXPECT_EQ(calls[0].at("function").at("name"), i == 1 ? "f" : "g");
  }
}

TEST(TurnFolding, CallsAndResultsAreTextWhereTheTemplateKnowsNoTools) {
  const Folded folded = fold(kTwoCalls, {.user_after_user = false, .results = false});
  EXPECT_EQ(folded.turns,
            "user:a|assistant:b\n\nf({\"n\":1})\ng({\"n\")|user:of g\n\nof f\n\nof none\n\nc|");
  EXPECT_EQ(folded.told.substr(0, 27), "input[1] input[2] input[3] ");
}

}  // namespace
}  // namespace rudder::server
