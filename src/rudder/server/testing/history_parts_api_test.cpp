// Histories as clients send them that lack what nothing needs, or have what no model of text is
// shown: over real sockets, what the model sees of each and what the header names.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rudder/server/testing/test_server.h"

namespace rudder::server {
namespace {

constexpr std::string_view kPartsTemplate =
    "{% for m in messages %}|{{ m.role }}:{{ m.content }}{% for c in m.tool_calls %}"
    "<{{ c.function.name }}{% for k, v in c.function.arguments.items() %} {{ k }}={{ v }}"
    "{% endfor %}>{% endfor %}{% endfor %}|";
// Prints every message in the same way, calls are not known.
constexpr std::string_view kRolesAlone =
    "{% for m in messages %}|{{ m.role }}:{{ m.content }}{% endfor %}|";

struct HistoryCase {
  std::string_view path;
  std::string_view history;  // between a question and the next one
  std::string_view shown;
  std::string_view named;
};

class HistoryPartsTest : public ::testing::Test {
 protected:
  static void expect(const HistoryCase& given, std::string_view chat_template = kPartsTemplate) {
    TestServer test([](const engine::RequestParams&) { return say({"hi"}); }, {}, 16'384,
                    chat_template);
    const bool is_responses = given.path == "/v1/responses";
    const std::string body = fmt::format(
        R"({{"{}":99,"{}":[{{"role":"user","content":"q"}},{},{{"role":"user","content":"on"}}]}})",
        is_responses ? "max_output_tokens" : "max_tokens", is_responses ? "input" : "messages",
        given.history);
    const ClientResponse answer = test.post(given.path, body);
    ASSERT_EQ(answer.status, 200) << given.history << answer.body;
    std::string prompt;
    const std::vector<engine::RequestParams> submitted = test.engine.submitted();
    for (const int32_t id : submitted.back().prompt) {
      if (id < 256) prompt.push_back(static_cast<char>(id));
    }
    EXPECT_EQ(prompt, fmt::format("|user:q{}|user:on|", given.shown)) << given.history;
    EXPECT_EQ(answer.field("x-rudder-ignored-fields"), given.named) << given.history;
  }
};

TEST_F(HistoryPartsTest, OfChat) {
  constexpr std::string_view kPath = "/v1/chat/completions";
  const std::vector<HistoryCase> cases = {
      {kPath,
       R"({"role":"assistant","content":null,"function_call":{"name":"f","arguments":"{\"n\":7}"}},)"
       R"({"role":"function","name":"f","content":"r"})",
       "|assistant:<f n=7>|tool:r", ""},
      {kPath, R"({"role":"assistant","content":null,"refusal":"No."})", "|assistant:No.", ""},
      {kPath, R"({"role":"assistant","content":null,"audio":{"id":"a"}})", "|assistant:[audio]",
       "messages[1].audio"},
      {kPath, R"({"role":"user","content":null},{"role":"assistant","content":"a"})",
       "|user:|assistant:a", "messages[1].content"},
      {kPath, R"({"role":"system"},{"role":"assistant","content":"a"})", "|system:|assistant:a",
       "messages[1].content"},
      {kPath,
       R"({"role":"user","content":[{"type":"text","text":null},{"text":"t"},{"x":1}]},)"
       R"({"role":"assistant","content":"a"})",
       "|user:t|assistant:a", "messages[1].content[0].text, messages[1].content[2]"},
      {kPath, R"({"role":"assistant","content":"a","tool_calls":[{"id":"1","type":"search"}]})",
       "|assistant:a", "messages[1].tool_calls[0]"},
      {kPath,
       R"({"role":"assistant","tool_calls":[{"id":"1","function":{"name":"f"}}]},)"
       R"({"role":"tool","tool_call_id":"1","content":{"degrees":21}})",
       R"(|assistant:<f>|tool:{"degrees":21})", ""},
      {kPath,
       R"({"role":"assistant","content":[{"type":"text","text":"a"},{"type":"tool_use","id":"1",)"
       R"("name":"f","input":{}}]},{"role":"user","content":[{"type":"tool_result",)"
       R"("tool_use_id":"1","content":[{"type":"text","text":"r"},{"type":"image"}]}]})",
       "|assistant:a|user:r\n[image]", "messages[1].content[1], messages[2].content[0].content[1]"},
      {kPath,
       R"({"role":"assistant","tool_calls":[{"id":"1","type":"function","function":{"name":null}},)"
       R"({"id":"2","type":"function"},{"id":"3","function":{"arguments":"{}"}}]},)"
       R"({"role":"tool","tool_call_id":"1","content":"r"})",
       "|assistant:|tool:r",
       "messages[1].tool_calls[0], messages[1].tool_calls[1], messages[1].tool_calls[2]"},
  };
  for (const HistoryCase& each : cases) expect(each);
}

TEST_F(HistoryPartsTest, OfMessages) {
  constexpr std::string_view kPath = "/v1/messages";
  const std::vector<HistoryCase> cases = {
      {kPath, R"({"role":"assistant","content":null})", "|assistant:", "messages[1].content"},
      {kPath, R"({"role":"assistant"})", "|assistant:", "messages[1].content"},
      {kPath, R"({"role":"developer","content":"d"})", "|system:d", ""},
      {kPath, R"({"role":"assistant","content":["a",{"text":"b"},{"type":"text","text":null}]})",
       "|assistant:ab", "messages[1].content[2].text"},
      {kPath,
       R"({"role":"assistant","content":[{"type":"tool_use","name":"f"}]},)"
       R"({"role":"user","content":[{"type":"tool_result","content":["r"]}]})",
       "|assistant:<f>|tool:r", ""},
      {kPath, R"({"role":"assistant","content":[{"type":"tool_use","id":"1"}]})",
       "|assistant:", "messages[1].content[0]"},
  };
  for (const HistoryCase& each : cases) expect(each);
}

TEST_F(HistoryPartsTest, OfResponses) {
  constexpr std::string_view kPath = "/v1/responses";
  const std::vector<HistoryCase> cases = {
      {kPath, R"({"role":"assistant","content":null})", "|assistant:", "input[1].content"},
      {kPath, R"({"type":null,"role":"assistant"})", "|assistant:", "input[1].content"},
      {kPath, R"({"role":"assistant","content":["a",{"text":"b"}]})", "|assistant:ab", ""},
      {kPath, R"({"role":"critic","content":"c"},{"id":"msg_1"})", "", "input[1], input[2]"},
      {kPath,
       R"({"type":"function_call","call_id":"1","name":"f","arguments":{"n":7}},)"
       R"({"type":"function_call_output","call_id":"1"})",
       "|assistant:<f n=7>|tool:", ""},
      {kPath,
       R"({"type":"function_call","id":"1","name":"f","arguments":null},)"
       R"({"type":"function_call_output","id":"1","output":"r"})",
       "|assistant:<f>|tool:r", ""},
      {kPath,
       R"({"type":"custom_tool_call","call_id":"1","name":"f"},)"
       R"({"type":"custom_tool_call_output","call_id":"1","output":null})",
       "|assistant:<f input=>|tool:", "input[1].input"},
      {kPath,
       R"({"type":"local_shell_call","id":"l","action":{"command":"ls"}},)"
       R"({"type":"local_shell_call_output","id":"l","output":"r"})",
       "|assistant:<local_shell command=ls>|tool:r", ""},
      {kPath,
       R"({"type":"apply_patch_call","call_id":"1","operation":{"path":"x"}},)"
       R"({"type":"apply_patch_call_output","call_id":"1","status":"completed"})",
       "|assistant:<apply_patch path=x>|tool:completed", ""},
      {kPath,
       R"({"type":"tool_search_call","call_id":null,"arguments":{}},)"
       R"({"type":"tool_search_output","call_id":null,"tools":[]})",
       "", "input[1], input[2]"},
      {kPath,
       R"({"type":"program","call_id":"1","code":"x"},)"
       R"({"type":"program_output","call_id":"1","result":"r"})",
       "", "input[1], input[2]"},
      {kPath,
       R"({"type":"function_call","call_id":"1","arguments":"{"},)"
       R"({"type":"custom_tool_call","call_id":"2","name":null,"input":"x"})",
       "", "input[1], input[2]"},
  };
  for (const HistoryCase& each : cases) expect(each);
}

// A tool's result may be any JSON, which is text where it is no list of parts.
TEST_F(HistoryPartsTest, ResultsMayBeAnyJson) {
  for (const std::string_view data :
       {R"({"a":[1]})", "[1,2]", R"([{"a":1}])", R"([{"type":5}])", R"([{"text":null}])", "true",
        "7", R"([["r"]])", R"(["r",7])", R"([{"type":"text","text":7}])"}) {
    const std::string shown = fmt::format("|assistant:<f>|tool:{}", data);
    const auto expect_shown = [&](std::string_view path, std::string_view call) {
      const std::string history = fmt::format(fmt::runtime(call), data);
      expect({path, history, shown, ""});
    };
    expect_shown("/v1/chat/completions",
                 R"({{"role":"assistant","tool_calls":[{{"id":"1","function":{{"name":"f"}}}}]}},)"
                 R"({{"role":"tool","tool_call_id":"1","content":{}}})");
    expect_shown("/v1/messages",
                 R"({{"role":"assistant","content":[{{"type":"tool_use","id":"1","name":"f"}}]}},)"
                 R"({{"role":"user","content":[{{"type":"tool_result","tool_use_id":"1",)"
                 R"("content":{}}}]}})");
    expect_shown("/v1/responses",
                 R"({{"type":"function_call","call_id":"1","name":"f","arguments":"{{}}"}},)"
                 R"({{"type":"function_call_output","call_id":"1","output":{}}})");
  }
}

TEST_F(HistoryPartsTest, CallsAreTextWhereTheTemplateShowsNone) {
  expect({"/v1/chat/completions",
          R"({"role":"assistant","content":"a","tool_calls":[{"id":"1","type":"function",)"
          R"("function":{"name":"f","arguments":"{\"n\": 7}"}}]},)"
          R"({"role":"tool","tool_call_id":"1","content":"r"})",
          "|assistant:a\n\nf({\"n\": 7})|tool:r", "messages[1]"},
         kRolesAlone);
}

// What is asked is no history.
TEST_F(HistoryPartsTest, AQuestionLacksNothing) {
  TestServer test([](const engine::RequestParams&) { return say({"hi"}); }, {}, 16'384,
                  kPartsTemplate);
  for (const std::string_view content :
       {R"(null)", R"([{"type":"text","text":null}])", R"([{"x":1}])"}) {
    for (const auto& [path, field] :
         {std::pair("/v1/chat/completions", "messages"), std::pair("/v1/messages", "messages"),
          std::pair("/v1/responses", "input")}) {
      const std::string body =
          fmt::format(R"({{"{}":[{{"role":"user","content":{}}}]{}}})", field, content,
                      std::string_view(path) == "/v1/messages" ? R"(,"max_tokens":9)" : "");
      EXPECT_EQ(test.post(path, body).status, 400) << body;
    }
  }
}

}  // namespace
}  // namespace rudder::server
