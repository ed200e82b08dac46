// Items of a conversation that ask for something, over real sockets: tools that they bring along,
// settings that they change, a compaction. It is done, or refused by its path.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "rudder/base/json.h"
#include "rudder/server/testing/test_server.h"

namespace rudder::server {
namespace {

namespace json = boost::json;

constexpr std::string_view kPath = "/v1/responses";
constexpr std::string_view kShowsAll =
    "{% if tools %}[{% for t in tools %}{{ t.function.name }} {% endfor %}]{% endif %}"
    "{% if reasoning_effort %}({{ reasoning_effort }}){% endif %}"
    "{% for m in messages %}|{{ m.role }}:{{ m.content }}{% for c in m.tool_calls %}"
    "<{{ c.function.name }}>{% endfor %}{% endfor %}|";

class AskingItems : public ::testing::Test {
 protected:
  void serve(const std::string& answer) {
    ServerSettings settings;
    settings.tool_call_parser = "hermes";
    test_ = std::make_unique<TestServer>(
        [answer](const engine::RequestParams&) { return say({answer}); }, settings, 16'384,
        kShowsAll);
  }
  // Between a question and the next one.
  ClientResponse ask(std::string_view items, std::string_view more = "", int status = 200) {
    const std::string body = fmt::format(
        R"({{{}"input":[{{"role":"user","content":"q"}},{},{{"role":"user","content":"on"}}]}})",
        more, items);
    ClientResponse answer = test_->post(kPath, body);
    EXPECT_EQ(answer.status, status) << body << answer.body;
    ignored_ = answer.field("x-rudder-ignored-fields");
    return answer;
  }
  std::string prompt() const {
    std::string text;
    const std::vector<engine::RequestParams> submitted = test_->engine.submitted();
    for (const int32_t id : submitted.back().prompt) {
      if (id < 256) text.push_back(static_cast<char>(id));
    }
    return text;
  }
  bool is_held_to_a_form() const { return !test_->engine.submitted().back().constraints.empty(); }

  std::unique_ptr<TestServer> test_;
  std::string ignored_;
};

constexpr std::string_view kFind =
    R"({"type":"function","name":"find","parameters":{"type":"object"}})";
constexpr std::string_view kSeveral =
    R"({"type":"namespace","name":"n","tools":[{"type":"function","name":"f","parameters":{}}]})";

TEST_F(AskingItems, ToolsThatAreAddedMayBeCalled) {
  serve("<tool_call>\n{\"name\": \"n.f\", \"arguments\": {}}\n</tool_call>");
  const ClientResponse answer =
      ask(fmt::format(R"({{"type":"additional_tools","role":"developer","tools":[{},{}]}})", kFind,
                      kSeveral),
          R"("tools":[{"type":"function","name":"own"}],)");
  EXPECT_EQ(prompt(),
            "[own ]|user:q|system:New tools are there:\n"
            R"(<function>{"name":"find","parameters":{"type":"object"}}</function>)"
            "\n"
            R"(<function>{"name":"n.f","parameters":{}}</function>)"
            "|user:on|");
  EXPECT_EQ(ignored_, "");
  const json::value call = parse_json(answer.body, "answer").value().at("output").at(0);
  EXPECT_EQ(call.at("namespace").as_string(), "n");
  EXPECT_EQ(call.at("name").as_string(), "f");
  // One of them may be chosen, and is shown with the others then.
  ask(fmt::format(R"({{"type":"additional_tools","tools":[{}]}})", kFind),
      R"("tool_choice":{"type":"function","name":"find"},)");
  EXPECT_TRUE(is_held_to_a_form());
  EXPECT_TRUE(prompt().starts_with("[find ]|user:q|system:New tools")) << prompt();
}

TEST_F(AskingItems, ToolsThatASearchFindsMayBeCalled) {
  serve("hi");
  constexpr std::string_view kSearch =
      R"({{"type":"tool_search_call","call_id":{0},"arguments":{{}}}},)"
      R"({{"type":"tool_search_output","call_id":{0},"tools":[{1}]}})";
  ask(fmt::format(kSearch, R"("1")", kSeveral));
  EXPECT_EQ(prompt(),
            "|user:q|assistant:<tool_search>|tool:"
            R"(<function>{"name":"n.f","parameters":{}}</function>)"
            "|user:on|");
  // A server's own search is not shown, and what it found stands with the others.
  ask(fmt::format(kSearch, "null", kFind));
  EXPECT_EQ(prompt(), "[find ]|user:q|user:on|");
}

TEST_F(AskingItems, WhatNobodyCouldCallIsLeftOut) {
  serve("hi");
  ask(R"({"type":"additional_tools","tools":[{"type":"web_search"},{"type":"function","name":"a b"},)"
      R"({"type":"function"},7,{"type":"function","name":"own"}]},)"
      R"({"type":"additional_tools","tools":"x"})",
      R"("tools":[{"type":"function","name":"own"}],)");
  EXPECT_EQ(prompt(), "[own ]|user:q|user:on|");
  EXPECT_EQ(ignored_,
            "input[1].tools[0], input[1].tools[1], input[1].tools[2], input[1].tools[3], input[1], "
            "input[2]");
}

TEST_F(AskingItems, TheLastUpdateOfTheConfigurationHolds) {
  serve("hi");
  constexpr std::string_view kForm =
      R"({"type":"configuration_update","text":{"format":{"type":"json_object"}}})";
  constexpr std::string_view kPlain =
      R"({"type":"configuration_update","text":{"format":{"type":"text"}},"reasoning":null})";
  ask(kForm);
  EXPECT_TRUE(is_held_to_a_form());
  EXPECT_EQ(prompt(), "|user:q|user:on|");
  EXPECT_EQ(ignored_, "");
  ask(fmt::format("{},{}", kForm, kPlain));
  EXPECT_FALSE(is_held_to_a_form());
  ask(kPlain, R"("text":{"format":{"type":"json_object"}},)");
  EXPECT_FALSE(is_held_to_a_form());
  ask(R"({"type":"configuration_update","reasoning":{"effort":"high"}})",
      R"("reasoning":{"effort":"low"},)");
  EXPECT_EQ(prompt(), "(high)|user:q|user:on|");
  const ClientResponse refused =
      ask(R"({"type":"configuration_update","text":{"format":{"type":"json_schema"}}})", "", 400);
  EXPECT_EQ(parse_json(refused.body, "answer").value().at("error").at("param").as_string(),
            "input[1].text.format.schema");
}

// A response that is remembered, and what its conversation asked for, stand for the items before.
TEST_F(AskingItems, AreRememberedWithTheConversation) {
  serve("hi");
  const std::string turns[] = {
      R"({"type":"configuration_update","text":{"format":{"type":"json_object"}}})",
      R"({"type":"configuration_update","text":{"format":{"type":"text"}}})",
      R"({"type":"configuration_update","reasoning":{"effort":"high"}})",
      fmt::format(R"({{"type":"additional_tools","tools":[{}]}})", kFind),
      fmt::format(R"({{"type":"additional_tools","tools":[{}]}})", kSeveral),
      fmt::format(R"({{"type":"tool_search_call","call_id":"1","arguments":{{}}}},)"
                  R"({{"type":"tool_search_output","call_id":"1","tools":[{}]}})",
                  kFind)};
  const std::string_view fields[] = {"", R"("text":{"format":{"type":"json_object"}},)",
                                     R"("reasoning":{"effort":"low"},)",
                                     R"("tool_choice":{"type":"function","name":"find"},)"};
  int num_taken = 0;
  for (const std::string& first : turns) {
    for (const std::string& second : turns) {
      for (const std::string_view more : fields) {
        const auto user = [](std::string_view text) {
          return fmt::format(R"({{"role":"user","content":"{}"}})", text);
        };
        const auto post = [&](std::string_view own, const std::string& input) {
          return test_->post(kPath, fmt::format(R"({{{}"input":[{}]}})", own, input));
        };
        const auto after = [](const ClientResponse& answer) {
          return fmt::format(
              R"("previous_response_id":"{}",)",
              std::string_view(parse_json(answer.body, "answer")->at("id").as_string()));
        };
        const std::string asked = fmt::format("{},{},{}", user("q"), first, user("a"));
        const std::string then = fmt::format("{},{}", user("b"), second);
        constexpr std::string_view kAnswer = R"({"role":"assistant","content":"hi"})";
        const ClientResponse whole =
            post(more, fmt::format("{0},{1},{2},{1},{3}", asked, kAnswer, then, user("c")));
        const std::string wanted = prompt();
        const bool is_held = is_held_to_a_form();
        const std::string id = after(post(after(post("", asked)), then));
        const ClientResponse last = post(id + std::string(more), user("c"));
        ASSERT_EQ(last.status, whole.status) << first << second << more << last.body;
        if (last.status != 200) continue;
        ++num_taken;
        EXPECT_EQ(prompt(), wanted) << first << second << more;
        EXPECT_EQ(is_held_to_a_form(), is_held) << first << second << more;
      }
    }
  }
  EXPECT_EQ(num_taken, 36 * 3 + 20) << "a choice is of a tool that one of two turns brought";
}

TEST_F(AskingItems, ACompactionIsRefusedWhereItIsAskedFor) {
  serve("hi");
  ask(R"({"type":"compaction_trigger"})");
  EXPECT_EQ(ignored_, "input[1]");
  const ClientResponse refused = test_->post(
      kPath, R"({"input":[{"role":"user","content":"q"},{"type":"compaction_trigger"}]})");
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(parse_json(refused.body, "answer").value().at("error").at("param").as_string(),
            "input[1].type");
}

// The question is the user's last message, whatever the items behind it ask for.
TEST_F(AskingItems, AQuestionStaysOneBehindIt) {
  serve("hi");
  for (const std::string_view behind :
       {R"({"type":"additional_tools","tools":[]})", R"({"type":"configuration_update"})"}) {
    const ClientResponse refused = test_->post(
        kPath, fmt::format(R"({{"input":[{{"role":"user","content":[{{"type":"input_image",)"
                           R"("image_url":"x"}}]}},{}]}})",
                           behind));
    EXPECT_EQ(refused.status, 400) << behind;
  }
}

// What Anthropic's servers write in place of a conversation that became too long.
TEST_F(AskingItems, TheSummaryOfAMessageIsRead) {
  serve("hi");
  const ClientResponse answer = test_->post(
      "/v1/messages",
      R"({"max_tokens":9,"messages":[{"role":"user","content":"q"},{"role":"assistant","content":[)"
      R"({"type":"compaction","content":"It was about x.","encrypted_content":"e"},)"
      R"({"type":"compaction","content":null}]},{"role":"user","content":"on"}]})");
  ASSERT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(prompt(), "|user:q|assistant:It was about x.|user:on|");
  EXPECT_EQ(answer.field("x-rudder-ignored-fields"), "messages[1].content[1].content");
}

}  // namespace
}  // namespace rudder::server
