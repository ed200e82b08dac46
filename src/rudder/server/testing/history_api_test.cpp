// What the server sends, it takes back: an answer of thoughts, text and calls, cut anywhere, whole
// or streamed, is the next request's history in every API, and what the template shows of it is
// what was said.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "rudder/base/json.h"
#include "rudder/server/testing/test_server.h"

namespace rudder::server {
namespace {

namespace json = boost::json;

constexpr size_t kCutStride = 3;  // of cuts, in bytes

const std::string kCutAnswer =
    "<think>\nWhere, I wonder.\n</think>\n\nLet me look.\n<tool_call>\n{\"name\": \"look\", "
    "\"arguments\": {\"place\": \"S\\\\ller \\\"port\\\" \\u00e9\", \"n\": [1, "
    "{}]}}\n</tool_call>\n"
    "<tool_call>\n{\"name\": \"patch\", \"arguments\": {\"input\": \"*** \\\"x\\\"\\n\"}}\n"
    "</tool_call>";

// Fails where a template of a family would: it goes through the arguments of calls.
constexpr std::string_view kHistoryTemplate =
    "{% for m in messages %}|{{ m.role }}:{% if m.reasoning_content %}({{ m.reasoning_content }})"
    "{% endif %}{{ m.content }}{% for c in m.tool_calls %}<{{ c.function.name }}"
    "{% for k, v in c.function.arguments.items() %} {{ k }}={{ v | tojson }}{% endfor %}>{% endfor "
    "%}"
    "{% endfor %}|";

constexpr std::string_view kChatTools =
    R"("tools":[{"type":"function","function":{"name":"look","parameters":{"type":"object"}}},)"
    R"({"type":"function","function":{"name":"f","parameters":{"type":"object"}}},)"
    R"({"type":"function","function":{"name":"patch","parameters":{"type":"object"}}}])";
constexpr std::string_view kMessageTools =
    R"("max_tokens":99,"tools":[{"name":"look","input_schema":{"type":"object"}},)"
    R"({"name":"f","input_schema":{"type":"object"}},)"
    R"({"name":"patch","input_schema":{"type":"object"}}])";
constexpr std::string_view kResponseTools =
    R"("tools":[{"type":"function","name":"look","parameters":{"type":"object"}},)"
    R"({"type":"namespace","name":"n","tools":[{"type":"function","name":"f",)"
    R"("parameters":{"type":"object"}}]},{"type":"custom","name":"patch"}])";

std::vector<json::value> data_of_events(std::string_view body) {
  std::vector<json::value> events;
  while (!body.empty()) {
    const size_t end = body.find("\n\n");
    const std::string_view event = body.substr(0, end);
    body.remove_prefix(end + 2);
    const size_t data = event.find("data: ");
    const std::string_view text = event.substr(data + 6);
    if (text != "[DONE]") events.push_back(parse_json(text, "event").value());
  }
  return events;
}

class HistoryTest : public ::testing::Test {
 protected:
  HistoryTest()
      : test_(
            [this](const engine::RequestParams&) {
              std::vector<std::string> pieces;
              for (const char byte : kCutAnswer.substr(0, cut_)) pieces.emplace_back(1, byte);
              if (pieces.empty()) pieces.emplace_back();
              return say(std::move(pieces), cut_ < kCutAnswer.size() ? engine::FinishReason::kLength
                                                                     : engine::FinishReason::kStop);
            },
            settings(), 16'384, kHistoryTemplate) {}

  static ServerSettings settings() {
    ServerSettings settings;
    settings.tool_call_parser = "hermes";
    settings.reasoning_parser = "qwen3";
    return settings;
  }

  ClientResponse post(std::string_view path, const std::string& body) {
    ClientResponse answer = test_.post(path, body);
    EXPECT_EQ(answer.status, 200) << "cut at " << cut_ << ": " << body << answer.body;
    return answer;
  }
  json::value whole(std::string_view path, const std::string& body) {
    return parse_json(post(path, body).body, "answer").value();
  }
  std::string prompt() const {
    std::string text;
    const std::vector<engine::RequestParams> submitted = test_.engine.submitted();
    for (const int32_t id : submitted.back().prompt) {
      if (id < 256) text.push_back(static_cast<char>(id));
    }
    return text;
  }
  // Cuts the answer everywhere, and looks at what `turn` makes of it.
  template <typename Turn>
  void cut_everywhere(const Turn& turn) {
    for (size_t cut = 0; cut <= kCutAnswer.size() + kCutStride; cut += kCutStride) {
      cut_ = std::min(cut, kCutAnswer.size());
      turn();
      const std::string shown = prompt();
      EXPECT_TRUE(shown.starts_with("|user:q|assistant:")) << shown;
      EXPECT_TRUE(shown.ends_with("|user:on|")) << shown;
      if (HasFailure()) return;
    }
    // All of it, at last.
    EXPECT_NE(prompt().find("(Where, I wonder.)Let me look.<look place="), std::string::npos);
    EXPECT_NE(prompt().find(R"(<patch input="*** \"x\"\n">)"), std::string::npos) << prompt();
  }

  size_t cut_ = 0;
  TestServer test_;
};

std::string chat_turn(std::string_view answer, std::string_view more = "") {
  return fmt::format(
      R"({{{},{}"messages":[{{"role":"user","content":"q"}}{}]}})", kChatTools, more,
      answer.empty() ? "" : fmt::format(R"(,{},{{"role":"user","content":"on"}})", answer));
}

TEST_F(HistoryTest, OfChat) {
  cut_everywhere([&] {
    const json::value answer = whole(kChatPath, chat_turn(""));
    post(kChatPath, chat_turn(to_json_text(answer.at("choices").at(0).at("message"))));
  });
}

// As clients put a stream together.
json::object put_together(const std::vector<json::value>& events) {
  json::object message = {{"role", "assistant"}, {"content", ""}};
  json::array calls;
  const auto append = [](json::value& text, const json::value& more) {
    if (!text.is_string()) text = "";
    text.get_string().append(more.as_string());
  };
  for (const json::value& event : events) {
    if (event.at("choices").as_array().empty()) continue;
    const json::object& delta = event.at("choices").at(0).at("delta").as_object();
    for (const char* name : {"content", "reasoning"}) {
      if (delta.contains(name) && delta.at(name).is_string()) append(message[name], delta.at(name));
    }
    if (!delta.contains("tool_calls")) continue;
    for (const json::value& piece : delta.at("tool_calls").as_array()) {
      const auto index = static_cast<size_t>(piece.at("index").as_int64());
      if (index == calls.size()) {
        calls.push_back(piece);
      } else {
        append(calls[index].at("function").at("arguments"), piece.at("function").at("arguments"));
      }
    }
  }
  if (!calls.empty()) message["tool_calls"] = std::move(calls);
  return message;
}

TEST_F(HistoryTest, OfChatThatIsStreamed) {
  cut_everywhere([&] {
    const ClientResponse stream = post(kChatPath, chat_turn("", R"("stream":true,)"));
    post(kChatPath, chat_turn(to_json_text(put_together(data_of_events(stream.body)))));
  });
}

std::string response_turn(const json::array& items, std::string_view more = "") {
  json::array input = {{{"role", "user"}, {"content", "q"}}};
  for (const json::value& item : items) input.push_back(item);
  if (!items.empty()) input.push_back({{"role", "user"}, {"content", "on"}});
  return fmt::format(R"({{{},{}"input":{}}})", kResponseTools, more, to_json_text(input));
}

TEST_F(HistoryTest, OfResponses) {
  cut_everywhere([&] {
    const json::value answer = whole("/v1/responses", response_turn({}));
    post("/v1/responses", response_turn(answer.at("output").as_array()));
  });
}

TEST_F(HistoryTest, OfResponsesThatAreStreamed) {
  cut_everywhere([&] {
    const ClientResponse stream = post("/v1/responses", response_turn({}, R"("stream":true,)"));
    json::array items;
    for (const json::value& event : data_of_events(stream.body)) {
      if (event.at("type") == "response.output_item.done") items.push_back(event.at("item"));
    }
    post("/v1/responses", response_turn(items));
  });
}

TEST_F(HistoryTest, OfResponsesThatAreRemembered) {
  cut_everywhere([&] {
    const json::value answer = whole("/v1/responses", response_turn({}));
    post("/v1/responses",
         fmt::format(R"({{{},"previous_response_id":"{}","input":"on"}})", kResponseTools,
                     std::string_view(answer.at("id").as_string())));
  });
}

std::string message_turn(const json::value& content, std::string_view more = "") {
  json::array messages = {{{"role", "user"}, {"content", "q"}}};
  if (!content.is_null()) {
    messages.push_back({{"role", "assistant"}, {"content", content}});
    messages.push_back({{"role", "user"}, {"content", "on"}});
  }
  return fmt::format(R"({{{},{}"messages":{}}})", kMessageTools, more, to_json_text(messages));
}

TEST_F(HistoryTest, OfMessages) {
  cut_everywhere([&] {
    const json::value answer = whole("/v1/messages", message_turn(nullptr));
    post("/v1/messages", message_turn(answer.at("content")));
  });
}

TEST_F(HistoryTest, OfMessagesThatAreStreamed) {
  cut_everywhere([&] {
    const ClientResponse stream = post("/v1/messages", message_turn(nullptr, R"("stream":true,)"));
    json::array blocks;
    std::vector<std::string> inputs;
    for (const json::value& event : data_of_events(stream.body)) {
      if (event.at("type") == "content_block_start") {
        blocks.push_back(event.at("content_block"));
        inputs.emplace_back();
      }
      if (event.at("type") != "content_block_delta") continue;
      for (const auto& [name, value] : event.at("delta").as_object()) {
        if (name == "type") continue;
        if (name == "partial_json") {
          inputs.back() += value.as_string();
        } else {
          blocks.back().at(name).as_string().append(value.as_string());
        }
      }
    }
    for (size_t i = 0; i < blocks.size(); ++i) {
      if (blocks[i].at("type") != "tool_use") continue;
      const Result<json::value> input = parse_json(inputs[i], "input");
      blocks[i].as_object()["input"] = input ? *input : json::value(inputs[i]);
    }
    post("/v1/messages", message_turn(blocks));
  });
}

// A turn that ends with the answer itself: a client that asks for more of it.
TEST_F(HistoryTest, OfMessagesThatGoOn) {
  for (cut_ = 0; cut_ < kCutAnswer.size(); cut_ += kCutStride) {
    const json::value answer = whole("/v1/messages", message_turn(nullptr));
    post("/v1/messages", fmt::format(R"({{{},"messages":[{{"role":"user","content":"q"}},)"
                                     R"({{"role":"assistant","content":{}}}]}})",
                                     kMessageTools, to_json_text(answer.at("content"))));
    if (HasFailure()) return;
  }
}

// What models of every family write, cut anywhere, as each API tells it.
TEST(HistoryOfDialects, EachApiTakesBackWhatItSent) {
  std::ifstream file("src/rudder/dialect/written_calls.json");
  const std::string table((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const json::value rows = parse_json(table, "table").value();
  ASSERT_GT(rows.as_array().size(), 30U);
  for (const json::value& row : rows.as_array()) {
    const std::string text(row.at("text").as_string());
    const std::string shows(row.at("shows").as_string());
    const size_t space = shows.find(' ');
    const auto parser = [](const std::string& name) { return name == "-" ? "" : name; };
    ServerSettings settings;
    settings.tool_call_parser = parser(shows.substr(0, space));
    settings.reasoning_parser = parser(shows.substr(space + 1));
    size_t cut = 0;
    TestServer test(
        [&](const engine::RequestParams&) {
          return say({text.substr(0, cut)}, cut < text.size() ? engine::FinishReason::kLength
                                                              : engine::FinishReason::kStop);
        },
        settings, 16'384, kHistoryTemplate);
    const auto post = [&](std::string_view path, const std::string& body) {
      const ClientResponse answer = test.post(path, body);
      EXPECT_EQ(answer.status, 200) << shows << " cut at " << cut << ": " << body << answer.body;
      return parse_json(answer.body, "answer").value_or(json::value());
    };
    for (; cut <= text.size() + kCutStride && !::testing::Test::HasFailure(); cut += kCutStride) {
      // An engine sends whole characters.
      if (cut < text.size() && (static_cast<unsigned char>(text[cut]) & 0xC0U) == 0x80U) continue;
      const json::value chat = post(kChatPath, chat_turn(""));
      post(kChatPath, chat_turn(to_json_text(chat.at("choices").at(0).at("message"))));
      const json::value response = post("/v1/responses", response_turn({}));
      post("/v1/responses", response_turn(response.at("output").as_array()));
      const json::value message = post("/v1/messages", message_turn(nullptr));
      if (message.at("content").as_array().empty()) continue;
      post("/v1/messages", message_turn(message.at("content")));
    }
  }
}

TEST_F(HistoryTest, WhatIsNoJsonIsNamed) {
  cut_ = kCutAnswer.find("port");
  const json::value answer = whole(kChatPath, chat_turn(""));
  const ClientResponse next =
      post(kChatPath, chat_turn(to_json_text(answer.at("choices").at(0).at("message"))));
  EXPECT_EQ(next.field("x-rudder-ignored-fields"), "messages[1].tool_calls[0].function.arguments");
  const json::value response_answer = whole("/v1/responses", response_turn({}));
  const ClientResponse response_next =
      post("/v1/responses", response_turn(response_answer.at("output").as_array()));
  EXPECT_EQ(response_next.field("x-rudder-ignored-fields"), "input[3].arguments");
  EXPECT_EQ(response_answer.at("output").as_array().back().at("status").as_string(), "incomplete");
}

}  // namespace
}  // namespace rudder::server
