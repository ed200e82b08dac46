// What coding agents send, over real sockets: Claude Code's requests to /v1/messages, Codex's to
// /v1/responses, and what they do with the answers.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "rudder/base/json.h"
#include "rudder/server/testing/test_server.h"

namespace rudder::server {
namespace {

namespace json = boost::json;

constexpr std::string_view kToMessages = "/v1/messages";
constexpr std::string_view kToResponses = "/v1/responses";

// Shows tools, thoughts and calls beside what is said.
constexpr std::string_view kAgentTemplate =
    "{% if tools %}[{% for t in tools %}{{ t.function.name }} {% endfor %}]{% endif %}"
    "{% for m in messages %}|{{ m.role }}:{% if m.reasoning_content %}({{ m.reasoning_content }})"
    "{% endif %}{{ m.content }}{% for c in m.tool_calls %}<{{ c.function.name }}"
    "{% for k, v in c.function.arguments.items() %} {{ k }}={{ v }}{% endfor %}>{% endfor %}"
    "{% endfor %}|";
// The same, of a family that knows instructions in front alone.
constexpr std::string_view kInFrontAlone =
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('System message must be at the beginning.') }}{% endif %}"
    "|{{ m.role }}:{{ m.content }}{% endfor %}|";

ServerSettings hermes_of_agents() {
  ServerSettings settings;
  settings.tool_call_parser = "hermes";
  settings.reasoning_parser = "qwen3";
  return settings;
}

class AgentsTest : public ::testing::Test {
 protected:
  void serve(std::string answer, std::string_view chat_template = kAgentTemplate) {
    test_ = std::make_unique<TestServer>(
        [answer](const engine::RequestParams&) { return say({answer}); }, hermes_of_agents(),
        16'384, chat_template);
  }
  ClientResponse post(std::string_view path, std::string_view body, int status = 200) {
    ClientResponse answer = test_->post(path, body);
    EXPECT_EQ(answer.status, status) << body << answer.body;
    return answer;
  }
  static json::value parsed(const ClientResponse& answer) {
    return parse_json(answer.body, "answer").value();
  }
  std::string prompt() const {
    std::string text;
    const std::vector<engine::RequestParams> submitted = test_->engine.submitted();
    for (const int32_t id : submitted.back().prompt) {
      if (id < 256) text.push_back(static_cast<char>(id));
    }
    return text;
  }
  // The prompt of a message with these fields, and what its header names.
  std::string prompt_of(std::string_view path, std::string_view body) {
    ignored_ = post(path, body).field("x-rudder-ignored-fields");
    return prompt();
  }
  std::string message(std::string_view rest) {
    return prompt_of(kToMessages, fmt::format(R"({{"max_tokens":9,{}}})", rest));
  }
  std::string response(std::string_view rest) {
    return prompt_of(kToResponses, fmt::format("{{{}}}", rest));
  }

  std::unique_ptr<TestServer> test_;
  std::string ignored_;
};

TEST_F(AgentsTest, SystemMessagesStandWhereTheyAre) {
  constexpr std::string_view kBody =
      R"("system":[{"type":"text","text":"s"}],"messages":[{"role":"user","content":"q"},)"
      R"({"role":"system","content":[{"type":"text","text":"env","cache_control":)"
      R"({"type":"ephemeral"}}]}])";
  serve("hi");
  EXPECT_EQ(message(kBody), "|system:s|user:q|system:env|");
  EXPECT_EQ(ignored_, "");
  serve("hi", kInFrontAlone);
  EXPECT_EQ(message(kBody), "|system:s|user:q|user:env|");
  EXPECT_EQ(ignored_, "messages[1].role");
  // Chat requests are the same, and Responses.
  EXPECT_EQ(response(R"("instructions":"i","input":[{"role":"developer","content":"d"},)"
                     R"({"role":"user","content":"q"},{"role":"developer","content":"e"}])"),
            "|system:i\n\nd|user:q|user:e|");
  EXPECT_EQ(ignored_, "input[0].role, input[2].role");
}

TEST_F(AgentsTest, TheBillingLineIsNoPartOfThePrompt) {
  serve("hi");
  constexpr std::string_view kQuestion = R"("messages":[{"role":"user","content":"q"}])";
  EXPECT_EQ(message(fmt::format(
                R"("system":[{{"type":"text","text":"x-anthropic-billing-header: cch=1;"}},)"
                R"({{"type":"text","text":"s"}}],{})",
                kQuestion)),
            "|system:s|user:q|");
  EXPECT_EQ(message(fmt::format(R"("system":"x-anthropic-billing-header: a=b;\ns",{})", kQuestion)),
            "|system:s|user:q|");
  EXPECT_EQ(message(fmt::format(R"("system":"x-anthropic-billing-header: a=b;",{})", kQuestion)),
            "|user:q|");
}

TEST_F(AgentsTest, FieldsOfTheFirstRequestAreTaken) {
  serve("hi");
  message(
      R"("messages":[{"role":"user","content":"q"}],"thinking":{"type":"adaptive","display":"updates"},)"
      R"("context_management":{"edits":[{"type":"clear_thinking_20251015","keep":"all"}]},)"
      R"("output_config":{"effort":"high"},"metadata":{"user_id":"{}"})");
  EXPECT_EQ(ignored_, "context_management");
}

constexpr std::string_view kSearchTools =
    R"("tools":[{"name":"Find","input_schema":{"type":"object"}},)"
    R"({"name":"Later","description":"Does it.","input_schema":{"type":"object"},)"
    R"("defer_loading":true}])";

TEST_F(AgentsTest, DeferredToolsAreShownWhereTheyAreFound) {
  serve("hi");
  EXPECT_EQ(
      message(fmt::format(R"({},"messages":[{{"role":"user","content":"q"}}])", kSearchTools)),
      "[Find ]|user:q|");
  const std::string found = message(fmt::format(
      R"({},"messages":[{{"role":"user","content":"q"}},{{"role":"assistant","content":[)"
      R"({{"type":"tool_use","id":"1","name":"Find","input":{{"a":1}}}}]}},{{"role":"user","content":[)"
      R"({{"type":"tool_result","tool_use_id":"1","content":[)"
      R"({{"type":"tool_reference","tool_name":"Later"}},)"
      R"({{"type":"tool_reference","tool_name":"Later"}},)"
      R"({{"type":"tool_reference","tool_name":"Gone"}}]}}]}}])",
      kSearchTools));
  EXPECT_EQ(found,
            "[Find ]|user:q|assistant:<Find a=1>|tool:<function>{\"name\":\"Later\",\"parameters\":"
            "{\"type\":\"object\"},\"description\":\"Does it.\"}</function>\n[tool Later]\n[tool "
            "Gone]|");
  EXPECT_EQ(ignored_, "messages[2].content[0].content[2]");
  // One that must be called is shown.
  EXPECT_EQ(message(fmt::format(R"({},"tool_choice":{{"type":"tool","name":"Later"}},)"
                                R"("messages":[{{"role":"user","content":"q"}}])",
                                kSearchTools)),
            "[Find Later ]|user:q|");
}

TEST_F(AgentsTest, ToolsThatNobodyFindsAreShown) {
  serve("hi");
  constexpr std::string_view kLater =
      R"({"name":"Later","input_schema":{"type":"object"},"defer_loading":true})";
  EXPECT_EQ(
      message(fmt::format(R"("tools":[{}],"messages":[{{"role":"user","content":"q"}}])", kLater)),
      "[Later ]|user:q|");
  EXPECT_EQ(message(fmt::format(R"("tools":[{},{{"name":"F","input_schema":{{}}}},)"
                                R"({{"type":"tool_search_tool_regex_20251119","name":"search"}}],)"
                                R"("messages":[{{"role":"user","content":"q"}}])",
                                kLater)),
            "[Later F ]|user:q|");
  EXPECT_EQ(ignored_, "tools[2]");
}

TEST_F(AgentsTest, ToolsComeAndGoInTheConversation) {
  serve("<tool_call>\n{\"name\": \"New\", \"arguments\": {}}\n</tool_call>");
  EXPECT_EQ(
      message(
          R"("tools":[{"name":"F","input_schema":{}}],"messages":[{"role":"user","content":"q"},)"
          R"({"role":"system","content":[{"type":"tool_addition","tool":{)"
          R"("type":"tool_definition","definition":{"name":"New","input_schema":{}}}},)"
          R"({"type":"tool_removal","tool":{"type":"tool_reference","name":"F"}}]}])"),
      "[F ]|user:q|system:A new tool is there: <function>{\"name\":\"New\",\"parameters\":{}}"
      "</function>\nThe tool F is no longer there.|");
  const ClientResponse answer = post(
      kToMessages,
      R"({"max_tokens":9,"messages":[{"role":"user","content":"q"},{"role":"system","content":[)"
      R"({"type":"tool_addition","tool":{"type":"tool_definition","definition":{"name":"New",)"
      R"("input_schema":{}}}}]}]})");
  EXPECT_EQ(parsed(answer).at("content").at(0).at("name").as_string(), "New");
}

// What a message defines and nobody here can call ends no conversation.
TEST_F(AgentsTest, ToolsOfMessagesThatNobodyCanCallAreLeftOut) {
  serve("hi");
  for (const std::string_view definition :
       {R"({"type":"web_search_20250305","name":"web_search"})", R"({"type":"browser_toolset"})",
        R"({"type":"mcp_toolset","mcp_server_name":"m"})", R"({"name":"New"})",
        R"({"type":"custom","name":"two words","input_schema":{}})",
        R"({"name":"New","input_schema":[]})", R"({"name":"New","input_schema":{},"strict":7})",
        R"({"name":7,"input_schema":{}})"}) {
    EXPECT_EQ(message(fmt::format(
                  R"("messages":[{{"role":"user","content":"q"}},{{"role":"system","content":[)"
                  R"({{"type":"text","text":"s"}},{{"type":"tool_addition","tool":{{)"
                  R"("type":"tool_definition","definition":{}}}}}]}}])",
                  definition)),
              "|user:q|system:s|")
        << definition;
    EXPECT_EQ(ignored_, "messages[1].content[1].tool.definition") << definition;
  }
}

TEST_F(AgentsTest, ServerToolsStandAsideAndCannotBeChosen) {
  serve("hi");
  constexpr std::string_view kBody =
      R"("tools":[{"name":"F","input_schema":{}},{"type":"web_search_20250305","name":"web_search"},)"
      R"({"type":"bash_20250124","name":"bash"}],"messages":[{"role":"user","content":"q"}])";
  EXPECT_EQ(message(kBody), "[F ]|user:q|");
  EXPECT_EQ(ignored_, "tools[1], tools[2]");
  const ClientResponse refused = post(
      kToMessages,
      fmt::format(R"({{"max_tokens":9,"tool_choice":{{"type":"tool","name":"bash"}},{}}})", kBody),
      400);
  EXPECT_EQ(parsed(refused).at("error").at("param").as_string(), "tool_choice.name");
}

TEST_F(AgentsTest, WhatAMessageShowsIsTextOrNamed) {
  serve("hi");
  EXPECT_EQ(
      message(
          R"("messages":[{"role":"user","content":[{"type":"image","source":{}},)"
          R"({"type":"text","text":"old"}]},{"role":"assistant","content":[)"
          R"({"type":"server_tool_use","id":"s","name":"web_search","input":{}},)"
          R"({"type":"web_search_tool_result","tool_use_id":"s","content":[]},)"
          R"({"type":"redacted_thinking","data":"x"},{"type":"text","text":"a"},)"
          R"({"type":"tool_use","id":"1","name":"F","input":{}}]},{"role":"user","content":[)"
          R"({"type":"tool_result","tool_use_id":"1","content":[{"type":"text","text":"t"},)"
          R"({"type":"image","source":{}},{"type":"document","title":"D","source":{"type":"text",)"
          R"("media_type":"text/plain","data":"words"}},{"type":"document","source":{"type":"base64"}},)"
          R"({"type":"search_result","title":"T","source":"S","content":[{"type":"text","text":"c"}]})"
          R"(]}]}])"),
      "|user:[image]\nold|assistant:a<F>|tool:t\n[image]\nD\nwords\n[file]\nT\nS\nc|");
  EXPECT_EQ(ignored_,
            "messages[0].content[0], messages[1].content[0], messages[1].content[1], "
            "messages[1].content[2], messages[2].content[0].content[1], "
            "messages[2].content[0].content[3]");
  // What the question is about is refused, whatever instructions follow it.
  const ClientResponse refused = post(
      kToMessages,
      R"({"max_tokens":9,"messages":[{"role":"user","content":[{"type":"image","source":{}}]},)"
      R"({"role":"system","content":"env"}]})",
      400);
  EXPECT_EQ(parsed(refused).at("error").at("param").as_string(), "messages[0].content[0].type");
}

TEST_F(AgentsTest, ThoughtsThatAreNotShownComeBack) {
  serve("<think>\nSecret.\n</think>\n\nSaid.");
  constexpr std::string_view kOmitted =
      R"("thinking":{"type":"adaptive","display":"omitted"},"messages":[{"role":"user","content":"q"})";
  const json::value whole =
      parsed(post(kToMessages, fmt::format(R"({{"max_tokens":9,{}]}})", kOmitted)));
  const json::value& thought = whole.at("content").at(0);
  EXPECT_EQ(thought.at("thinking").as_string(), "");
  EXPECT_EQ(whole.at("content").at(1).at("text").as_string(), "Said.");
  const ClientResponse stream =
      post(kToMessages, fmt::format(R"({{"max_tokens":9,"stream":true,{}]}})", kOmitted));
  EXPECT_EQ(stream.body.find("Secret"), std::string::npos);
  EXPECT_NE(stream.body.find(std::string_view(thought.at("signature").as_string())),
            std::string::npos);
  EXPECT_EQ(message(fmt::format(R"({},{{"role":"assistant","content":{}}},)"
                                R"({{"role":"user","content":"on"}}])",
                                kOmitted, to_json_text(whole.at("content")))),
            "|user:q|assistant:(Secret.)Said.|user:on|");
}

TEST_F(AgentsTest, AFormIsEnforcedUnderBothNames) {
  serve("hi");
  constexpr std::string_view kForm =
      R"({"type":"json_schema","schema":{"type":"object","properties":{"a":{"type":"integer"}},)"
      R"("required":["a"],"additionalProperties":false}})";
  constexpr std::string_view kQuestion = R"("messages":[{"role":"user","content":"q"}])";
  message(kQuestion);
  EXPECT_TRUE(test_->engine.submitted().back().constraints.empty());
  message(fmt::format(R"("output_format":{},{})", kForm, kQuestion));
  EXPECT_FALSE(test_->engine.submitted().back().constraints.empty());
  message(fmt::format(R"("output_config":{{"format":{}}},{})", kForm, kQuestion));
  EXPECT_FALSE(test_->engine.submitted().back().constraints.empty());
  const ClientResponse refused = post(
      kToMessages,
      fmt::format(R"({{"max_tokens":9,"output_format":{{"type":"xml"}},{}}})", kQuestion), 400);
  EXPECT_EQ(parsed(refused).at("error").at("param").as_string(), "output_format");
}

constexpr std::string_view kCodexTools =
    R"("tools":[{"type":"function","name":"run","parameters":{"type":"object"}},)"
    R"({"type":"namespace","name":"several","tools":[)"
    R"({"type":"function","name":"open","parameters":{"type":"object"}},{"type":"web_search"}]},)"
    R"({"type":"custom","name":"patch","description":"Patches.","format":{"type":"grammar",)"
    R"("syntax":"lark","definition":"start: x"}},{"type":"web_search","external_web_access":false},)"
    R"({"type":"image_generation"}])";

TEST_F(AgentsTest, ToolsOfEveryKindAreFunctionsOrNamed) {
  serve("hi");
  EXPECT_EQ(response(fmt::format(R"("input":"q",{})", kCodexTools)),
            "[run several.open patch ]|user:q|");
  EXPECT_EQ(ignored_, "tools[1].tools[1], tools[2].format, tools[3], tools[4]");
  for (const char* choice :
       {R"({"type":"web_search"})", R"({"type":"image_generation"})",
        R"({"type":"allowed_tools","mode":"auto","tools":[{"type":"web_search"}]})"}) {
    post(kToResponses, fmt::format(R"({{"input":"q","tool_choice":{},{}}})", choice, kCodexTools),
         400);
  }
  for (const char* choice : {R"({"type":"custom","name":"patch"})",
                             R"({"type":"function","name":"open","namespace":"several"})"}) {
    post(kToResponses, fmt::format(R"({{"input":"q","tool_choice":{},{}}})", choice, kCodexTools));
    EXPECT_FALSE(test_->engine.submitted().back().constraints.empty());
  }
}

TEST_F(AgentsTest, CallsComeAndGoInTheirOwnForm) {
  serve(
      "<tool_call>\n{\"name\": \"several.open\", \"arguments\": {\"a\": 1}}\n</tool_call>\n"
      "<tool_call>\n{\"name\": \"patch\", \"arguments\": {\"input\": \"*** "
      "\\\"x\\\"\"}}\n</tool_call>");
  const json::value answer =
      parsed(post(kToResponses, fmt::format(R"({{"input":"q",{}}})", kCodexTools)));
  const json::array& output = answer.at("output").as_array();
  ASSERT_EQ(output.size(), 2u);
  EXPECT_EQ(output[0].at("type").as_string(), "function_call");
  EXPECT_EQ(output[0].at("namespace").as_string(), "several");
  EXPECT_EQ(output[0].at("name").as_string(), "open");
  EXPECT_EQ(output[1].at("type").as_string(), "custom_tool_call");
  EXPECT_EQ(output[1].at("name").as_string(), "patch");
  EXPECT_EQ(output[1].at("input").as_string(), "*** \"x\"");

  const ClientResponse stream =
      post(kToResponses, fmt::format(R"({{"input":"q","stream":true,{}}})", kCodexTools));
  EXPECT_NE(stream.body.find("event: response.custom_tool_call_input.done"), std::string::npos);
  EXPECT_NE(stream.body.find(R"("input":"*** \"x\"")"), std::string::npos);

  const std::string back = fmt::format(
      R"("input":[{{"role":"user","content":"q"}},{},{},)"
      R"({{"type":"function_call_output","call_id":"{}","output":"o"}},)"
      R"({{"type":"custom_tool_call_output","call_id":"{}","output":[)"
      R"({{"type":"input_text","text":"p"}},{{"type":"input_image","image_url":"x"}}]}}],{})",
      to_json_text(output[0]), to_json_text(output[1]),
      std::string_view(output[0].at("call_id").as_string()),
      std::string_view(output[1].at("call_id").as_string()), kCodexTools);
  EXPECT_EQ(response(back),
            "[run several.open patch ]|user:q|assistant:<several.open a=1><patch input=*** "
            "\"x\">|tool:o|tool:p[image]|");
}

TEST_F(AgentsTest, ItemsOfEveryKindAreReadOrNamed) {
  serve("hi");
  EXPECT_EQ(
      response(
          R"("input":[{"role":"user","content":[{"type":"input_image","image_url":"x"},)"
          R"({"type":"input_text","text":"q"}]},{"type":"web_search_call","id":"w","status":"completed"},)"
          R"({"type":"local_shell_call","call_id":"1","action":{"command":"ls"}},)"
          R"({"type":"local_shell_call_output","call_id":"1","output":"f"},)"
          R"({"type":"shell_call","call_id":"2","action":{"commands":"ls"}},)"
          R"({"type":"shell_call_output","call_id":"2","output":[{"stdout":"g"}]},)"
          R"({"type":"computer_call","call_id":"3","action":{"type":"click"}},)"
          R"({"type":"computer_call_output","call_id":"3","output":{"type":"computer_screenshot"}},)"
          R"({"type":"mcp_call","id":"4","name":"m","arguments":"{}","output":"n"},)"
          R"({"type":"item_reference","id":"x"},{"type":"compaction","encrypted_content":"theirs"},)"
          R"({"type":"no_such_item"},{"role":"user","content":"on"}])"),
      "|user:[image]\nq|assistant:<local_shell command=ls>|tool:f|assistant:<shell commands=ls>|"
      "tool:[{\"stdout\":\"g\"}]|assistant:<computer type=click>|tool:[image]|assistant:<m>|tool:n|"
      "user:on|");
  EXPECT_EQ(ignored_,
            "input[0].content[0], input[1], input[7].output[0], input[9], input[10], input[11]");
}

// Of an answer, and of what it was asked with; from a client of the same key.
TEST_F(AgentsTest, ReferencesToItemsThatAreRememberedAreTheItems) {
  serve(
      "<think>\nHm.\n</think>\n\nSaid.<tool_call>\n{\"name\": \"patch\", \"arguments\": "
      "{\"input\": \"x\"}}\n</tool_call>");
  const json::value made =
      parsed(post(kToResponses, fmt::format(R"({{"input":"q",{}}})", kCodexTools)));
  const std::string id(made.at("id").as_string());
  const json::value asked =
      parsed(test_->get("/v1/responses/" + id + "/input_items")).at("data").at(0);
  const auto reference = [](const json::value& item, bool is_bare) {
    return fmt::format(R"({{{}"id":{}}})", is_bare ? "" : R"("type":"item_reference",)",
                       to_json_text(item.at("id")));
  };
  std::string items = reference(asked, false);
  for (const json::value& item : made.at("output").as_array()) {
    items += "," + reference(item, items.size() % 2 == 0);
  }
  const std::string_view call(made.at("output").as_array().back().at("call_id").as_string());
  items +=
      fmt::format(R"(,{{"type":"custom_tool_call_output","call_id":"{}","output":"p"}})", call);
  const std::string back = response(fmt::format(R"("input":[{}],{})", items, kCodexTools));
  EXPECT_NE(back.find("|user:q|"), std::string::npos) << back;
  EXPECT_NE(back.find("Said.<patch input=x>|tool:p|"), std::string::npos) << back;
  EXPECT_EQ(ignored_.find("input["), std::string::npos) << ignored_;
  // Each once; one that is not there is left out, and where nothing else is left, refused.
  const std::string first = reference(asked, false);
  EXPECT_EQ(response(fmt::format(R"("input":[{0},{0},{{"role":"user","content":"on"}}])", first)),
            "|user:q|user:on|");
  EXPECT_EQ(ignored_, "input[1]");
  EXPECT_EQ(response(R"("input":[{"type":"item_reference","id":"msg_0_0"},)"
                     R"({"role":"user","content":"on"}])"),
            "|user:on|");
  EXPECT_EQ(ignored_, "input[0]");
  post(kToResponses, R"({"input":[{"type":"item_reference","id":"msg_0_0"}]})", 400);
  // A response that was asked with references has the items themselves.
  const json::value next = parsed(post(kToResponses, fmt::format(R"({{"input":[{}]}})", first)));
  const std::string path = "/v1/responses/" + std::string(next.at("id").as_string());
  EXPECT_EQ(parsed(test_->get(path + "/input_items")).at("data").at(0), asked);
}

TEST_F(AgentsTest, RoutesDoNotSwallowWhatIsBehindThem) {
  serve("hi");
  const json::value made = parsed(post(kToResponses, R"({"input":"q"})"));
  const std::string path = "/v1/responses/" + std::string(made.at("id").as_string());
  EXPECT_EQ(test_->get(path).status, 200);
  const ClientResponse nothing = test_->get(path + "/no_such_thing");
  EXPECT_EQ(nothing.status, 404);
  EXPECT_EQ(nothing.body.find("there is no response"), std::string::npos) << nothing.body;
  EXPECT_EQ(test_->get("/v1/models/org/tiny-alias").status, 200);
  for (const char* named : {"/v1/responses/compact", "/v1/responses/input_tokens"}) {
    EXPECT_EQ(test_->get(named).status, 405) << named;
  }
}

TEST_F(AgentsTest, AResponseTellsWhatItWasAskedWith) {
  serve("hi");
  const json::value made = parsed(
      post(kToResponses, R"({"input":[{"role":"user","content":"a"},)"
                         R"({"role":"assistant","content":"b"},{"role":"user","content":"c"}]})"));
  const std::string path =
      "/v1/responses/" + std::string(made.at("id").as_string()) + "/input_items";
  const json::value items = parsed(test_->get(path));
  EXPECT_EQ(items.at("object").as_string(), "list");
  ASSERT_EQ(items.at("data").as_array().size(), 3u);
  EXPECT_EQ(items.at("data").at(0).at("content").at(0).at("text").as_string(), "c");
  EXPECT_FALSE(items.at("has_more").as_bool());
  const json::value first = parsed(test_->get(path + "?order=asc&limit=1"));
  EXPECT_EQ(first.at("data").at(0).at("content").at(0).at("text").as_string(), "a");
  EXPECT_TRUE(first.at("has_more").as_bool());
  const json::value next =
      parsed(test_->get(path + "?order=asc&after=" + std::string(first.at("last_id").as_string())));
  EXPECT_EQ(next.at("data").as_array().size(), 2u);
  EXPECT_EQ(test_->get(path + "?limit=0").status, 400);
  EXPECT_EQ(test_->get("/v1/responses/resp_none/input_items").status, 404);
}

TEST_F(AgentsTest, InputTokensAreThePrompts) {
  serve("hi");
  const std::string body = fmt::format(R"({{"input":"q","instructions":"i",{}}})", kCodexTools);
  const json::value counted = parsed(post("/v1/responses/input_tokens", body));
  EXPECT_EQ(counted.at("object").as_string(), "response.input_tokens");
  post(kToResponses, body);
  EXPECT_EQ(counted.at("input_tokens").as_int64(),
            static_cast<int64_t>(test_->engine.submitted().back().prompt.size()));
}

TEST_F(AgentsTest, AConversationIsSummedUpAndGoesOn) {
  serve("short");
  const json::value made =
      parsed(post("/v1/responses/compact", R"({"input":[{"role":"user","content":"a"},)"
                                           R"({"role":"assistant","content":"b"}]})"));
  EXPECT_EQ(made.at("object").as_string(), "response.compaction");
  EXPECT_TRUE(prompt().starts_with("|user:a|assistant:b|user:Sum up"));
  const json::value& item = made.at("output").at(0);
  EXPECT_EQ(item.at("type").as_string(), "compaction");
  EXPECT_EQ(
      response(fmt::format(R"("input":[{},{{"role":"user","content":"on"}}])", to_json_text(item))),
      "|user:What was said until here, in short:\nshort|user:on|");
  post("/v1/responses/compact", R"({"input":"a","stream":true})", 400);
}

TEST_F(AgentsTest, AStoredResponseIsStreamedAgain) {
  serve(
      "<think>\nHm.\n</think>\n\nSaid.<tool_call>\n{\"name\": \"patch\", \"arguments\": "
      "{\"input\": \"x\"}}\n</tool_call>");
  const json::value made =
      parsed(post(kToResponses, fmt::format(R"({{"input":"q",{}}})", kCodexTools)));
  const std::string path = "/v1/responses/" + std::string(made.at("id").as_string());
  const ClientResponse replay = test_->get(path + "?stream=true");
  EXPECT_EQ(replay.status, 200) << replay.body;
  EXPECT_TRUE(replay.field("content-type").starts_with("text/event-stream"));
  EXPECT_TRUE(replay.body.starts_with("event: response.created\n")) << replay.body;
  EXPECT_NE(replay.body.find("event: response.custom_tool_call_input.done\n"), std::string::npos);
  EXPECT_NE(replay.body.find("event: response.completed\n"), std::string::npos);
  const ClientResponse rest = test_->get(path + "?stream=true&starting_after=3");
  EXPECT_NE(rest.body.find("\"sequence_number\":4,"), std::string::npos);
  EXPECT_EQ(rest.body.find("\"sequence_number\":3,"), std::string::npos);
  EXPECT_EQ(test_->get(path + "?stream=true&starting_after=x").status, 400);
}

}  // namespace
}  // namespace rudder::server
