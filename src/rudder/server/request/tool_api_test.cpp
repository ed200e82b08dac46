// Tools and thoughts over the API: what a model's text becomes, whole and streamed.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "rudder/base/json.h"
#include "rudder/server/request/generation_request.h"
#include "rudder/server/request/tool_fields.h"
#include "rudder/server/testing/test_server.h"

namespace rudder::server {
namespace {

namespace json = boost::json;

constexpr std::string_view kHiMessages = R"("messages":[{"role":"user","content":"hi"}])";
constexpr std::string_view kTools =
    R"("tools":[{"type":"function","function":{"name":"get_weather","description":"Of a place",)"
    R"("parameters":{"type":"object","properties":{"place":{"type":"string"}}}}}])";
const std::string kAnswer =
    "<think>\nWhere, I wonder.\n</think>\n\nLet me look.\n<tool_call>\n{\"name\": \"get_weather\", "
    "\"arguments\": {\"place\": \"S\xc3\xb3ller \\\"port\\\"\"}}\n</tool_call>\n<tool_call>\n"
    "{\"name\": \"get_weather\", \"arguments\": {}}\n</tool_call>";
constexpr std::string_view kArguments = "{\"place\": \"S\xc3\xb3ller \\\"port\\\"\"}";

ServerSettings hermes() {
  ServerSettings settings;
  settings.tool_call_parser = "hermes";
  settings.reasoning_parser = "qwen3";
  return settings;
}

// One piece a character: no mark comes whole.
std::vector<std::string> characters(std::string_view text) {
  std::vector<std::string> pieces;
  for (const char byte : text) {
    const bool continues = (static_cast<unsigned char>(byte) & 0xC0) == 0x80;
    if (!continues || pieces.empty()) pieces.emplace_back();
    pieces.back().push_back(byte);
  }
  return pieces;
}

struct Message {
  std::string content;
  std::string reasoning;
  std::string reasoning_content;
  json::array calls;
  std::string finish;
  json::value usage;
};

json::value parsed(std::string_view text) {
  auto value = parse_json(text, "answer");
  EXPECT_TRUE(value) << text;
  return value ? *value : json::value();
}

std::string text_of(const json::object& object, std::string_view name) {
  const json::value* value = object.if_contains(name);
  return value != nullptr && value->is_string() ? std::string(value->get_string()) : "";
}

Message whole_message(const ClientResponse& answer) {
  EXPECT_EQ(answer.status, 200) << answer.body;
  const json::value document = parsed(answer.body);
  const json::object& choice = document.at("choices").at(0).as_object();
  const json::object& said = choice.at("message").as_object();
  Message message{text_of(said, "content"),
                  text_of(said, "reasoning"),
                  text_of(said, "reasoning_content"),
                  said.contains("tool_calls") ? said.at("tool_calls").as_array() : json::array(),
                  text_of(choice, "finish_reason"),
                  document.at("usage")};
  return message;
}

// As clients put a stream together.
Message streamed_message(const ClientResponse& answer) {
  EXPECT_EQ(answer.status, 200) << answer.body;
  Message message;
  std::string_view rest = answer.body;
  while (!rest.empty()) {
    const size_t end = rest.find("\n\n");
    const std::string_view event = rest.substr(6, end - 6);
    rest.remove_prefix(end + 2);
    if (event == "[DONE]") break;
    const json::value chunk = parsed(event);
    if (chunk.at("choices").as_array().empty()) {
      message.usage = chunk.at("usage");
      continue;
    }
    const json::object& choice = chunk.at("choices").at(0).as_object();
    const json::object& delta = choice.at("delta").as_object();
    message.content += text_of(delta, "content");
    message.reasoning += text_of(delta, "reasoning");
    message.reasoning_content += text_of(delta, "reasoning_content");
    message.finish += text_of(choice, "finish_reason");
    if (!delta.contains("tool_calls")) continue;
    for (const json::value& piece : delta.at("tool_calls").as_array()) {
      const auto index = static_cast<size_t>(piece.at("index").as_int64());
      if (index == message.calls.size()) {
        json::object call = piece.as_object();
        call.erase("index");
        message.calls.push_back(std::move(call));
        continue;
      }
      EXPECT_FALSE(piece.as_object().contains("id"));
      EXPECT_FALSE(piece.at("function").as_object().contains("name"));
      message.calls.at(index).at("function").at("arguments").as_string() +=
          piece.at("function").at("arguments").as_string();
    }
  }
  return message;
}

std::string request(std::string_view more) {
  return fmt::format("{{{},{}{}}}", kHiMessages, kTools, more);
}

void expect_answer(const Message& message) {
  EXPECT_EQ(message.content, "Let me look.");
  EXPECT_EQ(message.reasoning, "Where, I wonder.");
  EXPECT_EQ(message.reasoning_content, "Where, I wonder.");
  EXPECT_EQ(message.finish, "tool_calls");
  ASSERT_EQ(message.calls.size(), 2u);
  const json::value& call = message.calls.at(0);
  EXPECT_EQ(call.at("type").as_string(), "function");
  EXPECT_TRUE(call.at("id").as_string().starts_with("chatcmpl-tool-"));
  EXPECT_EQ(call.at("function").at("name").as_string(), "get_weather");
  EXPECT_EQ(std::string_view(call.at("function").at("arguments").as_string()), kArguments);
  EXPECT_EQ(message.calls.at(1).at("function").at("arguments").as_string(), "{}");
  EXPECT_NE(message.calls.at(1).at("id").as_string(), call.at("id").as_string());
}

void expect_answer_begins(const Message& message) {
  EXPECT_EQ(message.finish, "tool_calls");
  ASSERT_FALSE(message.calls.empty());
  EXPECT_EQ(std::string_view(message.calls.at(0).at("function").at("arguments").as_string()),
            kArguments);
}

TEST(ToolApi, WholeAndStreamSayTheSame) {
  TestServer test([](const engine::RequestParams&) { return say(characters(kAnswer)); }, hermes());
  const Message whole = whole_message(test.post(kChatPath, request("")));
  expect_answer(whole);
  // A token a character: those of the thoughts and of the mark that ends them.
  EXPECT_EQ(whole.usage.at("completion_tokens_details").at("reasoning_tokens").as_int64(),
            static_cast<int64_t>(std::string_view("\nWhere, I wonder.\n</think>").size()));
  const Message streamed = streamed_message(test.post(
      kChatPath,
      request(R"(,"stream":true,"stream_options":{"include_usage":true},"logprobs":true)")));
  expect_answer(streamed);
  EXPECT_EQ(streamed.usage, whole.usage);
}

TEST(ToolApi, EveryChoiceHasItsOwnParser) {
  TestServer test([](const engine::RequestParams&) { return say(characters(kAnswer)); }, hermes());
  const ClientResponse answer = test.post(kChatPath, request(R"(,"n":2)"));
  const json::value document = parsed(answer.body);
  const auto& choices = document.at("choices").as_array();
  ASSERT_EQ(choices.size(), 2u);
  const auto id = [&](size_t i) {
    return choices.at(i).at("message").at("tool_calls").at(0).at("id").as_string();
  };
  EXPECT_NE(id(0), id(1));
}

TEST(ToolApi, WithoutToolsCallsAreText) {
  TestServer test([](const engine::RequestParams&) { return say(characters(kAnswer)); }, hermes());
  for (const std::string& body :
       {fmt::format("{{{}}}", kHiMessages), request(R"(,"tool_choice":"none")")}) {
    const Message message = whole_message(test.post(kChatPath, body));
    EXPECT_TRUE(message.content.starts_with("Let me look.\n<tool_call>")) << message.content;
    EXPECT_EQ(message.reasoning, "Where, I wonder.");
    EXPECT_TRUE(message.calls.empty());
    EXPECT_EQ(message.finish, "stop");
  }
}

TEST(ToolApi, FieldsChooseWhatIsTold) {
  TestServer test([](const engine::RequestParams&) { return say(characters(kAnswer)); }, hermes());
  const Message silent =
      whole_message(test.post(kChatPath, request(R"(,"include_reasoning":false)")));
  EXPECT_EQ(silent.content, "Let me look.");
  EXPECT_EQ(silent.reasoning, "");
  const Message mixed =
      whole_message(test.post(kChatPath, request(R"(,"separate_reasoning":false)")));
  EXPECT_TRUE(mixed.content.starts_with("<think>\nWhere")) << mixed.content;
  EXPECT_EQ(mixed.calls.size(), 2u);
  const Message one =
      whole_message(test.post(kChatPath, request(R"(,"parallel_tool_calls":false)")));
  EXPECT_EQ(one.calls.size(), 1u);
}

TEST(ToolApi, AnAnswerOfCallsAloneHasNoContent) {
  TestServer test(
      [](const engine::RequestParams&) {
        return say(characters("<tool_call>{\"name\": \"get_weather\"}</tool_call>"));
      },
      hermes());
  const json::value document = parsed(test.post(kChatPath, request("")).body);
  EXPECT_TRUE(document.at("choices").at(0).at("message").at("content").is_null());
}

TEST(ToolApi, ACallCutOffEndsByLength) {
  TestServer test(
      [](const engine::RequestParams&) {
        return say(characters("<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"pla"),
                   engine::FinishReason::kLength);
      },
      hermes());
  for (const char* more : {"", R"(,"stream":true)"}) {
    const ClientResponse answer = test.post(kChatPath, request(more));
    const Message message = *more == 0 ? whole_message(answer) : streamed_message(answer);
    EXPECT_EQ(message.finish, "length");
    ASSERT_EQ(message.calls.size(), 1u);
    EXPECT_EQ(message.calls.at(0).at("function").at("arguments").as_string(), "{\"pla");
  }
}

TEST(ToolApi, ForcedCallsAreConstrained) {
  TestServer test([](const engine::RequestParams&) { return say(characters(kAnswer)); }, hermes());
  const std::string named =
      R"(,"tool_choice":{"type":"function","function":{"name":"get_weather"}})";
  for (const std::string& more : {std::string(R"(,"tool_choice":"required")"), named,
                                  std::string(R"(,"tool_choice":"required")")}) {
    expect_answer_begins(whole_message(test.post(kChatPath, request(more))));
    EXPECT_EQ(test.engine.submitted().back().constraints.size(), 1u);
  }
  whole_message(test.post(kChatPath, request("")));
  EXPECT_TRUE(test.engine.submitted().back().constraints.empty());

  const ClientResponse refused = test.post(
      kChatPath,
      fmt::format(
          R"({{{},"tool_choice":"required","tools":[{{"type":"function","function":{{)"
          R"("name":"f","parameters":{{"type":"object","properties":{{"a":{{"minContains":1}}}}}}}}}}]}})",
          kHiMessages));
  EXPECT_EQ(refused.status, 400) << refused.body;
  EXPECT_EQ(parsed(refused.body).at("error").at("param").as_string(),
            "tools[0].function.parameters.properties.a.minContains");
}

// Tokens keep their step and their log-probabilities, also where the parser holds their text back.
// As clients write them that leave nothing out, or let arguments be null.
TEST(ToolApi, ForcedToolsMayHaveNullsAndSeveralTypes) {
  TestServer test([](const engine::RequestParams&) { return say({"a"}); }, hermes());
  const auto status_of = [&](std::string_view parameters) {
    return test
        .post(
            "/v1/chat/completions",
            fmt::format(R"({{{},"tool_choice":"required","tools":[{{"type":"function","function":)"
                        R"({{"name":"f","parameters":{}}}}}]}})",
                        kHiMessages, parameters))
        .status;
  };
  for (const std::string_view taken :
       {R"({"type":["object","null"],"properties":{}})", R"({"type":null,"properties":null})",
        R"({"type":"object","properties":{"a":{}},"required":null})", "null"}) {
    EXPECT_EQ(status_of(taken), 200) << taken;
  }
  for (const std::string_view refused :
       {R"({"type":["string","null"]})", R"({"type":"array"})", R"({"properties":[]})"}) {
    EXPECT_EQ(status_of(refused), 400) << refused;
  }
}

TEST(ToolApi, EveryTokenHasItsEvent) {
  TestServer test(
      [](const engine::RequestParams&) {
        return say({"<tool", "_call>", "{\"name\": \"get_", "weather\"}", "</tool_call>"});
      },
      hermes());
  const ClientResponse answer =
      test.post(kChatPath, request(R"(,"stream":true,"return_token_ids":true)"));
  size_t tokens = 0;
  for (size_t at = answer.body.find("\"token_ids\":["); at != std::string::npos;
       at = answer.body.find("\"token_ids\":[", at + 1)) {
    tokens += answer.body[at + 13] != ']' ? 1 : 0;
  }
  EXPECT_EQ(tokens, 5u);
}

// Marks that are special tokens are shown in the text, where special tokens are not.
TEST(ToolApi, MarksThatAreSpecialTokensAreAskedFor) {
  ServerModel model = byte_model({"[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[ARGS]"});
  const auto chat = text::ChatPrompt::from_json("{}", "{{ '[TOOL_CALLS]f[ARGS]' }}");
  ASSERT_TRUE(chat);
  model.chat = *chat;
  Result<ModelDialect> found = find_dialect(model, "", "");
  ASSERT_TRUE(found);
  EXPECT_EQ(found->calls->name, "mistral");
  EXPECT_EQ(found->special_marks, (std::vector<int32_t>{258, 260}));
  EXPECT_FALSE(find_dialect(model, "nonesuch", ""));
  EXPECT_FALSE(find_dialect(model, "", "nonesuch"));

  model.dialect = *found;
  const ApiKeys keys({});
  engine::RequestLimits limits;
  limits.max_seq_len = 4096;
  limits.vocab_size = 320;
  const GenerationScope scope = {
      .model = model, .limits = limits, .keys = keys, .request_id = "r1"};
  const auto with = parse_generation(Api::kChat, request(""), scope);
  ASSERT_TRUE(with) << with.error().message;
  EXPECT_EQ(with->prompts[0].request.params().shown_special_ids, found->special_marks);
  ASSERT_TRUE(with->parser);
  const auto without = parse_generation(Api::kChat, fmt::format("{{{}}}", kHiMessages), scope);
  ASSERT_TRUE(without) << without.error().message;
  EXPECT_TRUE(without->prompts[0].request.params().shown_special_ids.empty());
  EXPECT_FALSE(without->parser);
}

// What a template gets: tools, the effort, the thoughts and calls of earlier turns.
TEST(ToolApi, TemplatesGetToolsAndEarlierCalls) {
  ServerModel model = byte_model();
  const auto chat = text::ChatPrompt::from_json(
      "{}",
      "{{ tools[0].function.name if tools else 'none' }} {{ reasoning_effort }} "
      "{{ enable_thinking }}{% for m in messages %}|{{ m.role }}:{{ m.reasoning_content }}:"
      "{% for c in m.tool_calls %}{{ c.function.name }} {{ c.function.arguments.place }}"
      "{% endfor %}{{ m.content }}{% endfor %}<think>");
  ASSERT_TRUE(chat) << chat.error().to_string();
  model.chat = *chat;
  const Result<ModelDialect> found = find_dialect(model, "", "qwen3");
  ASSERT_TRUE(found);
  model.dialect = *found;
  const ApiKeys keys({});
  engine::RequestLimits limits;
  limits.max_seq_len = 4096;
  limits.vocab_size = 320;
  const GenerationScope scope = {
      .model = model, .limits = limits, .keys = keys, .request_id = "r1"};
  const std::string messages =
      R"("messages":[{"role":"user","content":"hi"},{"role":"assistant","reasoning":"hm",)"
      R"("tool_calls":[{"id":"1","type":"function","function":{"name":"get_weather",)"
      R"("arguments":"{\"place\": \"Oslo\"}"}}]},)"
      R"({"role":"tool","tool_call_id":"1","content":"rain"}])";
  const auto prompt = [&](std::string_view more) {
    const auto parsed =
        parse_generation(Api::kChat, fmt::format("{{{},{}{}}}", messages, kTools, more), scope);
    if (!parsed) return parsed.error().message;
    EXPECT_TRUE(parsed->parser && parsed->parser->in_reasoning);
    return model.tokenizer->decode(parsed->prompts[0].request.params().prompt, false);
  };
  EXPECT_EQ(prompt(R"(,"reasoning_effort":"high")"),
            "get_weather high |user::hi|assistant:hm:get_weather Oslo|tool::rain<think>");
  EXPECT_EQ(prompt(R"(,"reasoning_effort":"none","tool_choice":"none")"),
            "none none False|user::hi|assistant:hm:get_weather Oslo|tool::rain<think>");
}

// What stop strings are looked for in is the engine's: it is told where the thoughts are.
TEST(ToolApi, StopStringsEndNoThoughts) {
  ServerModel model = byte_model();
  model.dialect.reasoning = *dialect::find_reasoning_dialect("qwen3");
  const ApiKeys keys{{}};
  engine::RequestLimits limits = ScriptedEngine(nullptr).limits();
  const GenerationScope scope = {
      .model = model, .limits = limits, .keys = keys, .request_id = "r1"};
  const auto thoughts_of_body = [&](Api api, const std::string& body) {
    const auto parsed = parse_generation(api, body, scope);
    EXPECT_TRUE(parsed) << body;
    return parsed->prompts.at(0).request.params().thoughts;
  };
  const auto chat = [&](const char* more) {
    return fmt::format(R"({{"messages":[{{"role":"user","content":"a"}}],"stop":"x"{}}})", more);
  };
  const auto told = thoughts_of_body(Api::kChat, chat(""));
  ASSERT_TRUE(told);
  EXPECT_EQ(told->begin, "<think>");
  EXPECT_EQ(told->end, "</think>");
  EXPECT_FALSE(told->open);
  // Where thoughts are text, they end as text does.
  EXPECT_FALSE(thoughts_of_body(Api::kChat, chat(R"(,"separate_reasoning":false)")));
  EXPECT_FALSE(thoughts_of_body(Api::kCompletions, R"({"prompt":"a","stop":"x"})"));
  model.dialect.reasoning = *dialect::find_reasoning_dialect("deepseek_r1");
  EXPECT_TRUE(thoughts_of_body(Api::kChat, chat(""))->open);
}

}  // namespace
}  // namespace rudder::server
