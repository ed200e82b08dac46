// The APIs beside chat and completions, over real sockets: /v1/responses and
// /v1/messages, whole and streamed, what they remember and what they refuse.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <optional>
#include <utility>

#include "rudder/base/json.h"
#include "rudder/server/testing/test_server.h"

namespace rudder::server {
namespace {

namespace json = boost::json;

constexpr std::string_view kResponses = "/v1/responses";
constexpr std::string_view kMessages = "/v1/messages";

// Says "hi", one letter a token; a prompt that ends its last message with "!" breaks after one.
Script say_hi(const engine::RequestParams& params) {
  std::string prompt;
  for (const int32_t id : params.prompt) {
    if (id < 256) prompt.push_back(static_cast<char>(id));
  }
  Script script = say({"h", "i"}, params.max_tokens == 2 ? engine::FinishReason::kLength
                                                         : engine::FinishReason::kStop);
  script.cached_tokens = 1;
  if (prompt.find("stop here") != std::string::npos) script.events[1].stop_reason = "END";
  if (prompt.find("break") != std::string::npos) {
    script.events[1] = engine::Event();
    script.events[1].finish = engine::FinishReason::kError;
    script.events[1].error = Error{ErrorCode::kNumerical, "row 7 has NaN", "logits"};
  }
  return script;
}

class ApisTest : public ::testing::Test {
 protected:
  json::value post(std::string_view path, std::string_view body, int status = 200) {
    const ClientResponse answer = test_.post(path, body);
    EXPECT_EQ(answer.status, status) << body << answer.body;
    return parse_json(answer.body, "answer").value();
  }
  // The prompt of the last request, as text.
  std::string prompt() const {
    std::string text;
    const std::vector<engine::RequestParams> submitted = test_.engine.submitted();
    for (const int32_t id : submitted.back().prompt) {
      text += id < 256 ? std::string(1, static_cast<char>(id)) : id == 256 ? "<" : ">";
    }
    return text;
  }

  TestServer test_{say_hi};
};

struct StreamEvent {
  std::string type;
  json::value data;
};

std::vector<StreamEvent> events_of(std::string_view body) {
  std::vector<StreamEvent> events;
  while (!body.empty()) {
    const size_t end = body.find("\n\n");
    const std::string_view event = body.substr(0, end);
    body.remove_prefix(end + 2);
    const size_t data = event.find("\ndata: ");
    EXPECT_TRUE(event.starts_with("event: ")) << event;
    events.push_back({std::string(event.substr(7, data - 7)),
                      parse_json(event.substr(data + 7), "event").value()});
    EXPECT_EQ(events.back().type, events.back().data.at("type").as_string());
  }
  return events;
}

std::string types_of(const std::vector<StreamEvent>& events) {
  std::string types;
  for (const StreamEvent& event : events) types += event.type + " ";
  return types;
}

std::string param_of(const json::value& answer) {
  const json::value& param = answer.at("error").at("param");
  return param.is_string() ? std::string(param.as_string()) : "";
}

TEST_F(ApisTest, AResponseIsAChatAnswer) {
  const json::value answer =
      post(kResponses,
           R"({"input":"x","instructions":"be brief","metadata":{"a":"b"},"seed":3,"top_p":0.8})");
  EXPECT_EQ(prompt(), "<system\nbe brief>\n<user\nx>\n<assistant\n");
  EXPECT_EQ(test_.engine.submitted().back().seed, 3u);
  EXPECT_EQ(answer.at("object").as_string(), "response");
  EXPECT_EQ(answer.at("status").as_string(), "completed");
  EXPECT_EQ(answer.at("instructions").as_string(), "be brief");
  EXPECT_EQ(answer.at("metadata").at("a").as_string(), "b");
  EXPECT_EQ(answer.at("top_p").as_double(), 0.8);
  const json::value& item = answer.at("output").at(0);
  EXPECT_EQ(item.at("type").as_string(), "message");
  EXPECT_EQ(item.at("content").at(0).at("text").as_string(), "hi");
  EXPECT_EQ(answer.at("usage").at("output_tokens").as_int64(), 2);
  EXPECT_EQ(answer.at("usage").at("input_tokens_details").at("cached_tokens").as_int64(), 1);
}

TEST_F(ApisTest, AResponseThatIsCutIsIncomplete) {
  const json::value answer = post(kResponses, R"({"input":"x","max_output_tokens":2})");
  EXPECT_EQ(answer.at("status").as_string(), "incomplete");
  EXPECT_EQ(answer.at("incomplete_details").at("reason").as_string(), "max_output_tokens");
}

TEST_F(ApisTest, ItemsBecomeMessages) {
  post(kResponses, R"({"input":[
    {"role":"developer","content":"d"},
    {"type":"message","role":"user","content":[{"type":"input_text","text":"q"}]},
    {"type":"reasoning","id":"r","summary":[],"content":[{"type":"reasoning_text","text":"hm"}]},
    {"type":"message","role":"assistant","id":"m","status":"completed",
     "content":[{"type":"output_text","text":"a","annotations":[]}]},
    {"role":"user","content":"again"}]})");
  EXPECT_EQ(prompt(), "<system\nd>\n<user\nq>\n<assistant\na>\n<user\nagain>\n<assistant\n");
}

TEST_F(ApisTest, StreamOfAResponse) {
  const ClientResponse answer = test_.post(kResponses, R"({"input":"x","stream":true})");
  EXPECT_EQ(answer.field("content-type"), "text/event-stream; charset=utf-8");
  const std::vector<StreamEvent> events = events_of(answer.body);
  EXPECT_EQ(types_of(events),
            "response.created response.in_progress response.output_item.added "
            "response.content_part.added response.output_text.delta response.output_text.delta "
            "response.output_text.done response.content_part.done response.output_item.done "
            "response.completed ");
  for (size_t i = 0; i < events.size(); ++i) {
    EXPECT_EQ(events[i].data.at("sequence_number").as_int64(), static_cast<int64_t>(i));
  }
  EXPECT_EQ(events[4].data.at("delta").as_string(), "h");
  EXPECT_EQ(events[6].data.at("text").as_string(), "hi");
  EXPECT_EQ(events[2].data.at("item").at("id"), events[4].data.at("item_id"));
  const json::value& last = events.back().data.at("response");
  EXPECT_EQ(last.at("output").at(0).at("content").at(0).at("text").as_string(), "hi");
  EXPECT_EQ(last.at("usage").at("output_tokens").as_int64(), 2);
}

TEST_F(ApisTest, AStreamedResponseThatBreaksSaysSo) {
  const ClientResponse answer = test_.post(kResponses, R"({"input":"break","stream":true})");
  const std::vector<StreamEvent> events = events_of(answer.body);
  EXPECT_EQ(events.back().type, "response.failed");
  EXPECT_EQ(events.back().data.at("response").at("error").at("code").as_string(), "server_error");
}

TEST_F(ApisTest, ResponsesAreRememberedAndCarriedOn) {
  const json::value first = post(kResponses, R"({"input":"one","instructions":"i"})");
  const std::string id(first.at("id").as_string());
  EXPECT_EQ(parse_json(test_.get("/v1/responses/" + id).body, "stored").value(), first);
  post(kResponses, fmt::format(R"({{"input":"two","previous_response_id":"{}"}})", id));
  EXPECT_EQ(prompt(), "<user\none>\n<assistant\nhi>\n<user\ntwo>\n<assistant\n")
      << "instructions are not carried on";

  EXPECT_EQ(test_.post("/v1/responses/" + id + "/cancel", "{}").status, 400);
  TestClient client = test_.client();
  client.send(fmt::format("DELETE /v1/responses/{} HTTP/1.1\r\nHost: localhost\r\n\r\n", id));
  EXPECT_EQ(client.receive().status, 200);
  EXPECT_EQ(test_.get("/v1/responses/" + id).status, 404);
  const json::value gone =
      post(kResponses, fmt::format(R"({{"input":"x","previous_response_id":"{}"}})", id), 404);
  EXPECT_EQ(param_of(gone), "previous_response_id");
  const json::value unstored = post(kResponses, R"({"input":"x","store":false})");
  EXPECT_EQ(test_.get("/v1/responses/" + std::string(unstored.at("id").as_string())).status, 404);
}

TEST_F(ApisTest, ResponsesRunInTheBackground) {
  const json::value begun = post(kResponses, R"({"input":"x","background":true})");
  EXPECT_EQ(begun.at("status").as_string(), "in_progress");
  const std::string path = "/v1/responses/" + std::string(begun.at("id").as_string());
  const auto status = [&] {
    return std::string(parse_json(test_.get(path).body, "a").value().at("status").as_string());
  };
  EXPECT_TRUE(eventually([&] { return status() == "completed"; }));
  const json::value failed = post(kResponses, R"({"input":"break","background":true})");
  const std::string failed_path = "/v1/responses/" + std::string(failed.at("id").as_string());
  EXPECT_TRUE(eventually([&] {
    return test_.get(failed_path).body.find(R"("status":"failed")") != std::string::npos;
  }));
  EXPECT_EQ(param_of(post(kResponses, R"({"input":"x","background":true,"stream":true})", 400)),
            "background");
  EXPECT_EQ(param_of(post(kResponses, R"({"input":"x","background":true,"store":false})", 400)),
            "background");
}

TEST(Apis, ResponsesInTheBackgroundAreCancelled) {
  TestServer test([](const engine::RequestParams& params) {
    Script script = say_hi(params);
    script.hold = true;
    return script;
  });
  const ClientResponse begun = test.post(kResponses, R"({"input":"x","background":true})");
  const std::string path =
      "/v1/responses/" + std::string(parse_json(begun.body, "a").value().at("id").as_string());
  EXPECT_TRUE(eventually([&] { return test.engine.num_active() == 1; }));
  const ClientResponse cancelled = test.post(path + "/cancel", "{}");
  EXPECT_EQ(cancelled.status, 200);
  EXPECT_NE(cancelled.body.find(R"("status":"cancelled")"), std::string::npos);
  EXPECT_TRUE(eventually([&] { return test.engine.num_active() == 0; }));
  EXPECT_EQ(test.get(path).body, cancelled.body);
  EXPECT_EQ(test.post(path + "/cancel", "{}").status, 400);
}

TEST(Apis, ResponsesOfOtherKeysAreNotTold) {
  ServerSettings settings;
  settings.api_key = {"first", "second"};
  TestServer test(say_hi, settings);
  const std::string first = "Authorization: Bearer first\r\n";
  const ClientResponse answer = test.post(kResponses, R"({"input":"x"})", first);
  const std::string path =
      "/v1/responses/" + std::string(parse_json(answer.body, "a").value().at("id").as_string());
  EXPECT_EQ(test.get(path, first).status, 200);
  EXPECT_EQ(test.get(path, "x-api-key: second\r\n").status, 404);
}

TEST(Apis, TheStoreIsBounded) {
  ServerSettings settings;
  settings.response_store_bytes = 8192;
  TestServer test(say_hi, settings);
  std::vector<std::string> ids;
  for (int i = 0; i < 20; ++i) {
    const ClientResponse answer = test.post(kResponses, R"({"input":"x"})");
    ids.emplace_back(parse_json(answer.body, "a").value().at("id").as_string());
  }
  EXPECT_EQ(test.get("/v1/responses/" + ids.front()).status, 404);
  EXPECT_EQ(test.get("/v1/responses/" + ids.back()).status, 200);
}

TEST_F(ApisTest, WhatIsWrongIsToldInTheApisOwnNames) {
  struct Case {
    std::string_view path;
    const char* body;
    const char* param;
  };
  const Case cases[] = {
      {kResponses, R"({})", "input"},
      {kResponses, R"({"input":7})", "input"},
      {kResponses, R"({"input":[]})", "input"},
      {kResponses, R"({"input":[{"role":"user"}]})", "input[0].content"},
      {kResponses, R"({"input":[{"role":"clown","content":"x"}]})", "input[0].role"},
      {kResponses, R"({"input":[{"role":"user","content":[{"type":"input_image"}]}]})",
       "input[0].content[0].type"},
      {kResponses, R"({"input":[{"type":"item_reference","id":"x"}]})", "input[0].type"},
      {kResponses, R"({"input":[{"type":"function_call","call_id":"1","name":5}]})",
       "input[0].name"},
      {kResponses, R"({"input":"x","max_output_tokens":0})", "max_output_tokens"},
      {kResponses, R"({"input":"x","max_output_tokens":100000})", "max_output_tokens"},
      {kResponses, R"({"input":"x","top_p":7})", "top_p"},
      {kResponses, R"({"input":"x","tools":[{"name":"web_search"}]})", "tools[0].type"},
      {kResponses, R"({"input":"x","tool_choice":{"type":"mcp"}})", "tool_choice.type"},
      {kResponses,
       R"({"input":"x","tools":[{"type":"function","name":"f"}],"tool_choice":{)"
       R"("type":"allowed_tools","mode":"auto","tools":[{"type":"function","name":"g"}]}})",
       "tool_choice.tools[0].name"},
      {kResponses,
       R"({"input":"x","tools":[{"type":"function","name":"f"}],"tool_choice":{)"
       R"("type":"allowed_tools","mode":"auto","tools":[{"type":"mcp"}]}})",
       "tool_choice.tools[0].type"},
      {kResponses,
       R"({"input":"x","tools":[{"type":"function","name":"f"}],"tool_choice":{)"
       R"("type":"allowed_tools","mode":"any","tools":[{"type":"function","name":"f"}]}})",
       "tool_choice.mode"},
      {kResponses, R"({"input":"x","metadata":{"a":1}})", "metadata"},
      {kResponses, R"({"input":"x","text":{"format":7}})", "text.format"},
      {kResponses, R"({"input":"x","text":{"format":{"type":"json_schema","name":"n"}}})",
       "text.format.schema"},
      {kResponses,
       R"({"input":"x","text":{"format":{"type":"json_schema","schema":{"type":"clown"}}}})",
       "text.format.schema.type"},
      {kResponses,
       R"({"input":"x","tools":[{"type":"web_search"},{"type":"function","name":"f","strict":true,)"
       R"("parameters":{"type":"string"}}]})",
       "tools[1].parameters.type"},
      {kResponses, R"({"input":"x","reasoning":{"effort":"huge"}})", "reasoning.effort"},
      {kResponses, R"({"input":"x","top_logprobs":9999})", "top_logprobs"},
      {kResponses, R"({"input":"x","metadata":{"steering":"calm"}})", "metadata.steering"},
      {kResponses, R"({"input":"x","text":{"steering":"calm"}})", "text.steering"},
      {kResponses, R"({"input":"x","reasoning":{"steering_name":"calm"}})",
       "reasoning.steering_name"},
      {kResponses, R"({"input":"x","context_management":[{"capture":{"a":1}}]})",
       "context_management[0].capture"},
      {kResponses, R"({"input":[{"role":"user","content":"x","steering":"calm"}]})",
       "input[0].steering"},
      {kResponses, R"({"input":"x","conversation":"c"})", "conversation"},
      {kResponses, R"({"input":"x","truncation":"some"})", "truncation"},
      {kResponses, R"({"input":"x","include":["no_such_thing"]})", "include[0]"},
      {kResponses, R"({"input":"x","previous_response_id":7})", "previous_response_id"},
      {kMessages, R"({"max_tokens":1})", "messages"},
      {kMessages, R"({"messages":[],"max_tokens":1})", "messages"},
      {kMessages, R"({"messages":[{"role":"user","content":"x"}]})", "max_tokens"},
      {kMessages, R"({"messages":[{"role":"clown","content":"x"}],"max_tokens":1})",
       "messages[0].role"},
      {kMessages, R"({"messages":[{"role":"user","content":7}],"max_tokens":1})",
       "messages[0].content"},
      {kMessages, R"({"messages":[{"role":"user","content":[{"type":"image"}]}],"max_tokens":1})",
       "messages[0].content[0].type"},
      {kMessages,
       R"({"messages":[{"role":"user","content":"x"}],"max_tokens":1,"stop_sequences":[""]})",
       "stop_sequences[0]"},
      {kMessages, R"({"messages":[{"role":"user","content":"x"}],"max_tokens":100000})",
       "max_tokens"},
      {kMessages,
       R"({"messages":[{"role":"user","content":"x"}],"max_tokens":1,"tools":[{"name":"f"}]})",
       "tools[0].input_schema"},
      {kMessages,
       R"({"messages":[{"role":"user","content":"x"}],"max_tokens":9,)"
       R"("thinking":{"type":"enabled","budget_tokens":9}})",
       "thinking.budget_tokens"},
      {kMessages, R"({"messages":[{"role":"user","content":"x"}],"max_tokens":1,"system":7})",
       "system"},
      {kMessages,
       R"({"messages":[{"role":"user","content":"x"}],"max_tokens":1,"tool_choice":{"type":"any"},)"
       R"("tools":[{"name":"f","input_schema":{"type":"string"}}]})",
       "tools[0].input_schema.type"},
      {kMessages,
       R"({"messages":[{"role":"user","content":"x"}],"max_tokens":1,"output_config":{"format":)"
       R"({"type":"json_schema","schema":{"type":"clown"}}}})",
       "output_config.format.schema.type"},
      {kMessages,
       R"({"messages":[{"role":"user","content":"x"}],"max_tokens":1,"output_config":)"
       R"({"effort":"huge"}})",
       "output_config.effort"},
      {kMessages,
       R"({"messages":[{"role":"user","content":"x"}],"max_tokens":1,"thinking":)"
       R"({"type":"disabled","steering":"calm"}})",
       "thinking.steering"},
      {kMessages,
       R"({"messages":[{"role":"user","content":"x"}],"max_tokens":1,"metadata":)"
       R"({"steering":"calm"}})",
       "metadata.steering"},
      {kMessages,
       R"({"messages":[{"role":"user","content":"x"}],"max_tokens":1,"output_config":)"
       R"({"capture":{"a":1}}})",
       "output_config.capture"},
      {kMessages,
       R"({"messages":[{"role":"user","content":"x"}],"max_tokens":1,"extra_body":)"
       R"({"steering":"calm"}})",
       "extra_body.steering"},
  };
  for (const Case& c : cases) {
    const json::value answer = post(c.path, c.body, 400);
    EXPECT_EQ(param_of(answer), c.param) << c.body << " " << answer;
    const std::string message(answer.at("error").at("message").as_string());
    EXPECT_NE(message.find(c.param), std::string::npos) << message;
  }
}

TEST_F(ApisTest, AMessageIsAChatAnswer) {
  const json::value answer = post(kMessages, R"({"max_tokens":9,"system":[{"type":"text",
    "text":"s","cache_control":{"type":"ephemeral"}}],"temperature":0.5,"top_k":5,"messages":[
      {"role":"user","content":[{"type":"text","text":"q"}]},
      {"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":""},
                                     {"type":"text","text":"a"}]},
      {"role":"user","content":"again"}]})");
  EXPECT_EQ(prompt(), "<system\ns>\n<user\nq>\n<assistant\na>\n<user\nagain>\n<assistant\n");
  EXPECT_EQ(test_.engine.submitted().back().sampling.top_k, 5);
  EXPECT_EQ(answer.at("type").as_string(), "message");
  EXPECT_EQ(answer.at("content").at(0).at("text").as_string(), "hi");
  EXPECT_EQ(answer.at("stop_reason").as_string(), "end_turn");
  EXPECT_EQ(answer.at("usage").at("cache_read_input_tokens").as_int64(), 1);
  EXPECT_EQ(answer.at("usage").at("output_tokens").as_int64(), 2);
}

TEST_F(ApisTest, WhyAMessageEnds) {
  const std::string rest = R"("messages":[{"role":"user","content":")";
  EXPECT_EQ(post(kMessages, R"({"max_tokens":2,)" + rest + "x\"}]}").at("stop_reason").as_string(),
            "max_tokens");
  const json::value stopped = post(kMessages, R"({"max_tokens":9,)" + rest + "stop here\"}]}");
  EXPECT_EQ(stopped.at("stop_reason").as_string(), "stop_sequence");
  EXPECT_EQ(stopped.at("stop_sequence").as_string(), "END");
}

TEST_F(ApisTest, ALastMessageOfTheAssistantIsCarriedOn) {
  post(kMessages, R"({"max_tokens":9,"messages":[{"role":"user","content":"q"},
                                                 {"role":"assistant","content":"The"}]})");
  EXPECT_EQ(prompt(), "<user\nq>\n<assistant\nThe");
}

TEST_F(ApisTest, StreamOfAMessage) {
  const ClientResponse answer = test_.post(
      kMessages, R"({"max_tokens":9,"stream":true,"messages":[{"role":"user","content":"x"}]})");
  const std::vector<StreamEvent> events = events_of(answer.body);
  EXPECT_EQ(types_of(events),
            "message_start ping content_block_start content_block_delta content_block_delta "
            "content_block_stop message_delta message_stop ");
  EXPECT_EQ(events[3].data.at("delta").at("text").as_string(), "h");
  EXPECT_EQ(events[6].data.at("delta").at("stop_reason").as_string(), "end_turn");
  EXPECT_EQ(events[6].data.at("usage").at("output_tokens").as_int64(), 2);
  const ClientResponse broken =
      test_.post(kMessages, R"({"max_tokens":9,"stream":true,"messages":[{"role":"user",)"
                            R"("content":"break"}]})");
  EXPECT_EQ(events_of(broken.body).back().data.at("error").at("type").as_string(), "api_error");
}

TEST_F(ApisTest, CountedTokensAreThePrompts) {
  const std::string request = R"("messages":[{"role":"user","content":"x"}]})";
  const json::value counted = post("/v1/messages/count_tokens", "{" + request);
  post(kMessages, R"({"max_tokens":9,)" + request);
  EXPECT_EQ(counted.at("input_tokens").as_int64(),
            static_cast<int64_t>(test_.engine.submitted().back().prompt.size()));
}

TEST_F(ApisTest, ErrorsAreWordedAsThePathsApiWordsThem) {
  const json::value unknown = post(
      kMessages, R"({"model":"m","max_tokens":1,"messages":[{"role":"user","content":"x"}]})", 404);
  EXPECT_EQ(unknown.at("type").as_string(), "error");
  EXPECT_EQ(unknown.at("error").at("type").as_string(), "not_found_error");
  EXPECT_FALSE(unknown.at("request_id").as_string().empty());
  TestClient client = test_.client();
  client.send("GET /v1/messages HTTP/1.1\r\nHost: localhost\r\n\r\n");
  const ClientResponse answer = client.receive();
  EXPECT_EQ(answer.status, 405);
  EXPECT_TRUE(answer.body.starts_with(R"({"type":"error","error":{"type":"invalid_request_error")"))
      << answer.body;
}

}  // namespace
}  // namespace rudder::server
