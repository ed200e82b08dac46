// From bodies to engine requests: what each field becomes, and the error each wrong field gets.
#include "rudder/server/request/generation_request.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "rudder/server/testing/test_server.h"

namespace rudder::server {
namespace {

#define RUDDER_MESSAGES R"("messages":[{"role":"user","content":"hi"}])"

class GenerationRequestTest : public ::testing::Test {
 protected:
  tl::expected<GenerationRequest, ApiError> parse(Api api, std::string_view body) {
    return parse_generation(api, body,
                            {.model = model_,
                             .limits = limits_,
                             .keys = keys_,
                             .tenant = 1,
                             .max_prompts = 4,
                             .request_id = "r1"});
  }
  engine::RequestParams completion(std::string_view fields) {
    auto parsed =
        parse(Api::kCompletions,
              R"({"prompt":"hi")" + (fields.empty() ? "" : "," + std::string(fields)) + "}");
    EXPECT_TRUE(parsed) << parsed.error().message;
    return parsed ? parsed->prompts.at(0).request.params() : engine::RequestParams();
  }

  ServerModel model_ = byte_model();
  engine::RequestLimits limits_ = ScriptedEngine(nullptr).limits();
  ApiKeys keys_{{}};
};

TEST_F(GenerationRequestTest, EveryFieldReachesTheEngine) {
  const engine::RequestParams params = completion(
      R"("temperature":0.5,"top_p":0.9,"min_p":0.1,"top_k":7,"repetition_penalty":1.1,)"
      R"("presence_penalty":-0.5,"frequency_penalty":0.25,"min_tokens":2,"max_tokens":9,)"
      R"("stop_token_ids":[1,2],"stop":["a","b"],"seed":-3,"ignore_eos":true,"n":2,"priority":-4,)"
      R"("disable_spec_decode":true,)"
      R"("include_stop_str_in_output":true,"skip_special_tokens":false,"cache_salt":"s",)"
      R"("logit_bias":{"65":-100,"66":2.5},"logprobs":3)");
  EXPECT_EQ(params.prompt, (std::vector<int32_t>{'h', 'i'}));
  EXPECT_FLOAT_EQ(params.sampling.temperature, 0.5f);
  EXPECT_FLOAT_EQ(params.sampling.top_p, 0.9f);
  EXPECT_FLOAT_EQ(params.sampling.min_p, 0.1f);
  EXPECT_EQ(params.sampling.top_k, 7);
  EXPECT_FLOAT_EQ(params.sampling.repetition_penalty, 1.1f);
  EXPECT_FLOAT_EQ(params.sampling.presence_penalty, -0.5f);
  EXPECT_FLOAT_EQ(params.sampling.frequency_penalty, 0.25f);
  EXPECT_EQ(params.sampling.min_tokens, 2);
  EXPECT_EQ(params.max_tokens, 9);
  EXPECT_EQ(params.sampling.stop_ids, (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(params.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(params.seed, static_cast<uint64_t>(-3));
  EXPECT_TRUE(params.ignore_eos);
  EXPECT_TRUE(params.disable_spec_decode);
  EXPECT_EQ(params.n, 2);
  EXPECT_EQ(params.priority, -4);
  EXPECT_TRUE(params.include_stop);
  EXPECT_FALSE(params.skip_special_tokens);
  EXPECT_EQ(params.cache_salt, "s");
  EXPECT_EQ(params.sampling.num_logprobs, 3);
  const std::vector<std::pair<int32_t, float>> bias = {{65, -100.0f}, {66, 2.5f}};
  EXPECT_EQ(params.sampling.logit_bias, bias);
}

TEST_F(GenerationRequestTest, DefaultsComeFromTheModelAndYieldToTheRequest) {
  EXPECT_FLOAT_EQ(completion("").sampling.temperature, 1.0f);
  model_.defaults.temperature = 0.6;
  model_.defaults.top_p = 0.95;
  model_.defaults.top_k = 20;
  model_.defaults.repetition_penalty = 1.05;
  model_.defaults.max_tokens = 33;
  const engine::RequestParams params = completion(R"("top_k":-1)");
  EXPECT_FLOAT_EQ(params.sampling.temperature, 0.6f);
  EXPECT_FLOAT_EQ(params.sampling.top_p, 0.95f);
  EXPECT_EQ(params.sampling.top_k, 0);
  EXPECT_FLOAT_EQ(params.sampling.repetition_penalty, 1.05f);
  EXPECT_EQ(params.max_tokens, 33);
  EXPECT_EQ(completion(R"("max_tokens":5,"max_completion_tokens":6)").max_tokens, 6);
}

TEST_F(GenerationRequestTest, NumbersOfEitherSpelling) {
  EXPECT_EQ(completion(R"("max_tokens":16.0,"seed":1e3,"n":1.0)").max_tokens, 16);
  EXPECT_EQ(completion(R"("seed":9223372036854775807)").seed, 9223372036854775807u);
  EXPECT_EQ(completion(R"("max_tokens":null,"stop":null,"seed":null)").seed, std::nullopt);
  EXPECT_EQ(completion(R"("stop":"x")").stop, std::vector<std::string>{"x"});
}

TEST_F(GenerationRequestTest, FormsOfPrompts) {
  auto parsed = parse(Api::kCompletions, R"({"prompt":["a","bc"],"echo":true})");
  ASSERT_TRUE(parsed);
  ASSERT_EQ(parsed->prompts.size(), 2u);
  EXPECT_EQ(parsed->prompts[1].request.params().prompt, (std::vector<int32_t>{'b', 'c'}));
  EXPECT_EQ(parsed->prompts[1].echo, "bc");
  parsed = parse(Api::kCompletions, R"({"prompt":[72,105.0],"return_token_ids":true})");
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->prompts.at(0).request.params().prompt, (std::vector<int32_t>{72, 105}));
  EXPECT_EQ(parsed->prompts.at(0).told_ids, (std::vector<int32_t>{72, 105}));
  parsed = parse(Api::kCompletions, R"({"prompt":[[72],[105,33]],"echo":true})");
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->prompts.at(1).request.params().prompt, (std::vector<int32_t>{105, 33}));
  EXPECT_EQ(parsed->prompts.at(1).echo, "i!");
}

TEST_F(GenerationRequestTest, ChatIsRenderedAndEncodedWithItsSpecialTokens) {
  const auto parsed = parse(
      Api::kChat,
      R"({"model":"org/tiny-alias","messages":[{"role":"developer","content":"s"},)"
      R"({"role":"user","content":[{"type":"text","text":"h"}]}],"logprobs":true,"top_logprobs":2})");
  ASSERT_TRUE(parsed) << parsed.error().message;
  const engine::RequestParams& params = parsed->prompts.at(0).request.params();
  EXPECT_EQ(model_.tokenizer->decode(params.prompt, false),
            "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nh<|im_end|>\n"
            "<|im_start|>assistant\n");
  EXPECT_EQ(params.prompt.at(0), 256);
  EXPECT_EQ(params.sampling.num_logprobs, 2);
  EXPECT_EQ(parsed->answer.model, "org/tiny-alias");
  EXPECT_EQ(parsed->answer.id, "chatcmpl-r1");
}

TEST_F(GenerationRequestTest, TenantsSaltTheirCaches) {
  keys_ = ApiKeys({"a", "b"});
  EXPECT_EQ(completion("").cache_salt, "1/");
  EXPECT_EQ(completion("").tenant, 1);
  EXPECT_EQ(completion(R"("cache_salt":"0/x")").cache_salt, "1/0/x");
}

TEST_F(GenerationRequestTest, PromptsAreScoredAsAskedFor) {
  EXPECT_EQ(completion("").sampling.num_prompt_logprobs, -1);
  EXPECT_EQ(completion(R"("prompt_logprobs":0)").sampling.num_prompt_logprobs, 0);
  EXPECT_EQ(completion(R"("logprobs":3)").sampling.num_prompt_logprobs, -1);
  EXPECT_EQ(completion(R"("logprobs":3,"echo":true)").sampling.num_prompt_logprobs, 3);
  EXPECT_EQ(
      completion(R"("logprobs":3,"echo":true,"prompt_logprobs":5)").sampling.num_prompt_logprobs,
      5);
  EXPECT_EQ(completion(R"("prompt_logprobs":0,"stream":true)").sampling.num_prompt_logprobs, -1);
  EXPECT_EQ(completion(R"("logprobs":1,"echo":true,"max_tokens":0)").max_tokens, 1)
      << "the engine samples one token, which the answer leaves out";
}

TEST_F(GenerationRequestTest, ThoughtsMayBeLimitedWhereTheyCanBeToldApart) {
  const std::string body = "{" RUDDER_MESSAGES R"(,"thinking_token_budget":4})";
  auto parsed = parse(Api::kChat, body);
  ASSERT_FALSE(parsed);
  EXPECT_EQ(parsed.error().param, "thinking_token_budget");
  EXPECT_EQ(parsed.error().code, "unsupported_value");
  EXPECT_TRUE(parse(Api::kChat, "{" RUDDER_MESSAGES R"(,"thinking_token_budget":-1})"));
  model_.dialect.reasoning = &dialect::reasoning_dialects().front();
  parsed = parse(Api::kChat, body);
  ASSERT_TRUE(parsed) << parsed.error().message;
  EXPECT_EQ(parsed->prompts.at(0).request.params().constraints.size(), 1u);
  // In a completion each prompt says whether thoughts are open behind it.
  parsed = parse(Api::kCompletions,
                 R"({"prompt":["a","<think>b","<think>c</think>"],"thinking_token_budget":4})");
  ASSERT_TRUE(parsed) << parsed.error().message;
  EXPECT_FALSE(parsed->parser);
  EXPECT_EQ(parsed->prompts.at(0).request.params().constraints.size(), 1u);
  EXPECT_EQ(parsed->prompts.at(1).request.params().constraints.size(), 1u);
  EXPECT_EQ(parsed->prompts.at(2).request.params().constraints.size(), 0u);
}

TEST_F(GenerationRequestTest, ACompletionThatDoesNotSayHasSixteenTokens) {
  EXPECT_EQ(completion("").max_tokens, 16);
  EXPECT_EQ(completion(R"("max_tokens":null)").max_tokens, 16);
  const auto parsed = parse(Api::kCompletions, R"({"prompt":")" + std::string(4090, 'a') + "\"}");
  ASSERT_TRUE(parsed) << parsed.error().message;
  EXPECT_LT(parsed->prompts.at(0).request.params().max_tokens, 16) << "what the context has left";
  const auto chat = parse(Api::kChat, "{" RUDDER_MESSAGES "}");
  ASSERT_TRUE(chat);
  EXPECT_EQ(chat->prompts.at(0).request.params().max_tokens, std::nullopt);
}

TEST_F(GenerationRequestTest, PartsAreTextByAnyOfTheirNames) {
  const auto parsed =
      parse(Api::kChat,
            R"({"messages":[{"role":"user","content":[{"type":"input_text","text":"a"},"b"]},)"
            R"({"role":"assistant","content":[{"type":"refusal","refusal":"c"}]},)"
            R"({"role":"user","content":"d"},{"role":"assistant","content":null,"reasoning":"e"}],)"
            R"("return_prompt_text":true})");
  ASSERT_TRUE(parsed) << parsed.error().message;
  const std::string& text = parsed->prompts.at(0).told_text;
  EXPECT_LT(text.find('a'), text.find("c<|im_end|>")) << text;
  const auto image = parse(
      Api::kChat,
      R"({"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]})");
  ASSERT_FALSE(image);
  EXPECT_EQ(image.error().param, "messages[0].content[0].type");
  EXPECT_EQ(image.error().code, "unsupported_value");
}

TEST_F(GenerationRequestTest, PromptsAreCutFromTheLeft) {
  EXPECT_EQ(completion(R"("truncate_prompt_tokens":1)").prompt, std::vector<int32_t>{'i'});
  EXPECT_EQ(completion(R"("truncate_prompt_tokens":2)").prompt.size(), 2u);
  EXPECT_EQ(completion(R"("truncate_prompt_tokens":1,"truncation_side":"right")").prompt,
            std::vector<int32_t>{'h'});
  const std::string text(5000, 'a');
  const auto parsed = parse(Api::kCompletions, R"({"prompt":")" + text +
                                                   R"(","truncate_prompt_tokens":-1,)"
                                                   R"("max_tokens":96,"echo":true})");
  ASSERT_TRUE(parsed) << parsed.error().message;
  EXPECT_EQ(parsed->prompts.at(0).request.params().prompt.size(), 4000u);
  EXPECT_EQ(parsed->prompts.at(0).echo.size(), 4000u);
}

TEST_F(GenerationRequestTest, TheAnswersIdIsTheHeadersOrTheBodys) {
  EXPECT_EQ(completion(R"("request_id":"mine")").client_id, "cmpl-mine");
  EXPECT_EQ(completion("").client_id, "cmpl-r1");
  const auto named = parse_generation(Api::kCompletions, R"({"prompt":"a","request_id":"mine"})",
                                      {.model = model_,
                                       .limits = limits_,
                                       .keys = keys_,
                                       .request_id = "header",
                                       .is_named = true});
  ASSERT_TRUE(named);
  EXPECT_EQ(named->answer.id, "cmpl-header");
}

TEST_F(GenerationRequestTest, AChatEchoesTheMessageThatItContinues) {
  const auto echo = [&](const char* role, const char* fields) {
    const auto parsed =
        parse(Api::kChat, std::string(R"({"messages":[{"role":")") + role +
                              R"(","content":"so far"}],"echo":true)" + fields + "}");
    EXPECT_TRUE(parsed) << parsed.error().message;
    return parsed ? parsed->prompts.at(0).echo : "";
  };
  EXPECT_EQ(echo("user", ""), "");
  EXPECT_EQ(echo("assistant", ""), "so far");
  EXPECT_EQ(echo("assistant", R"(,"continue_final_message":true,"add_generation_prompt":false)"),
            "so far");
  EXPECT_EQ(echo("user", R"(,"add_generation_prompt":false)"), "so far");
}

TEST_F(GenerationRequestTest, UnknownFieldsAreNamed) {
  const auto parsed = parse(
      Api::kCompletions,
      "{\"prompt\":\"a\",\"tempreture\":1,\"user\":\"u\",\"metadata\":{},\"x\\n,y\":2,\"q\":null}");
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->ignored_fields, (std::vector<std::string>{"tempreture", "x??y", "q"}));
  const auto inside =
      parse(Api::kCompletions, R"({"prompt":"a","stream":true,"stream_options":{"foo":1},"bar":2,)"
                               R"("repetition_detection":{"baz":3}})");
  ASSERT_TRUE(inside);
  EXPECT_EQ(inside->ignored_fields,
            (std::vector<std::string>{"bar", "repetition_detection.baz", "stream_options.foo"}));
  const auto schema = parse(
      Api::kCompletions, R"({"prompt":"a","response_format":{"type":"json_schema","json_schema":)"
                         R"({"name":"n","schema":{"type":"object","x order":1,"properties":)"
                         R"({"a":{"type":"string","format":"color"}}}}}})");
  ASSERT_TRUE(schema && schema->ignored_fields.size() == 2);
  EXPECT_EQ(schema->ignored_fields[0], "response_format.json_schema.schema.x?order");
  EXPECT_EQ(schema->ignored_fields[1], "response_format.json_schema.schema.properties.a.format");
}

struct BadBody {
  Api api;
  const char* body;
  const char* param;
  const char* code;
};

constexpr Api kC = Api::kCompletions;
constexpr Api kM = Api::kChat;
#define RUDDER_TOOL R"({"type":"function","function":{"name":"f"}})"

constexpr BadBody kBadBodies[] = {
    {kC, "", "", "invalid_json"},
    {kC, "[]", "", "invalid_json"},
    {kC, "{\"prompt\":\"a\"", "", "invalid_json"},
    {kC, "{\"prompt\":\"a\"} x", "", "invalid_json"},
    {kC, "{\"prompt\":\"\xff\"}", "", "invalid_json"},
    {kC, R"({"prompt":"\ud800"})", "", "invalid_json"},
    {kC, R"({"prompt":"a","temperature":NaN})", "", "invalid_json"},
    {kC, R"({})", "prompt", "invalid_value"},
    {kC, R"({"prompt":null})", "prompt", "invalid_value"},
    {kC, R"({"prompt":5})", "prompt", "invalid_value"},
    {kC, R"({"prompt":""})", "prompt", "invalid_value"},
    {kC, R"({"prompt":[]})", "prompt", "invalid_value"},
    {kC, R"({"prompt":["a",""]})", "prompt[1]", "invalid_value"},
    {kC, R"({"prompt":["a",5]})", "prompt[1]", "invalid_value"},
    {kC, R"({"prompt":["a","b","c","d","e"]})", "prompt", "invalid_value"},
    {kC, R"({"prompt":[1,-2]})", "prompt[1]", "invalid_value"},
    {kC, R"({"prompt":[1,2.5]})", "prompt[1]", "invalid_value"},
    {kC, R"({"prompt":[[1],[2,"a"]]})", "prompt[1][1]", "invalid_value"},
    {kC, R"({"prompt":[1,99999]})", "prompt[1]", "invalid_value"},
    {kC, R"({"prompt":"a","model":"other"})", "model", "model_not_found"},
    {kC, R"({"prompt":"a","model":7})", "model", "invalid_value"},
    {kC, R"({"prompt":"a","temperature":"hot"})", "temperature", "invalid_value"},
    {kC, R"({"prompt":"a","temperature":true})", "temperature", "invalid_value"},
    {kC, R"({"prompt":"a","temperature":-1})", "temperature", "invalid_value"},
    {kC, R"({"prompt":"a","temperature":1e39})", "temperature", "invalid_value"},
    {kC, R"({"prompt":"a","temperature":1e999})", "temperature", "invalid_value"},
    {kC, R"({"prompt":"a","top_p":0})", "top_p", "invalid_value"},
    {kC, R"({"prompt":"a","top_p":1.5})", "top_p", "invalid_value"},
    {kC, R"({"prompt":"a","min_p":-0.1})", "min_p", "invalid_value"},
    {kC, R"({"prompt":"a","top_k":-2})", "top_k", "invalid_value"},
    {kC, R"({"prompt":"a","top_k":1.5})", "top_k", "invalid_value"},
    {kC, R"({"prompt":"a","top_k":9223372036854775808})", "top_k", "invalid_value"},
    {kC, R"({"prompt":"a","repetition_penalty":0})", "repetition_penalty", "invalid_value"},
    {kC, R"({"prompt":"a","presence_penalty":3})", "presence_penalty", "invalid_value"},
    {kC, R"({"prompt":"a","frequency_penalty":[]})", "frequency_penalty", "invalid_value"},
    {kC, R"({"prompt":"a","max_tokens":0})", "max_tokens", "invalid_value"},
    {kC, R"({"prompt":"a","max_tokens":"5"})", "max_tokens", "invalid_value"},
    {kC, R"({"prompt":"a","max_tokens":5000})", "max_tokens", "context_length_exceeded"},
    {kC, R"({"prompt":"a","max_completion_tokens":5000})", "max_completion_tokens",
     "context_length_exceeded"},
    {kC, R"({"prompt":"a","min_tokens":9,"max_tokens":3})", "min_tokens", "invalid_value"},
    {kC, R"({"prompt":"a","n":0})", "n", "invalid_value"},
    {kC, R"({"prompt":"a","n":1000000})", "n", "invalid_value"},
    {kC, R"({"prompt":"a","best_of":3})", "best_of", "unsupported_value"},
    {kC, R"({"prompt":"a","seed":"x"})", "seed", "invalid_value"},
    {kC, R"({"prompt":"a","stop":5})", "stop", "invalid_value"},
    {kC, R"({"prompt":"a","stop":""})", "stop", "invalid_value"},
    {kC, R"({"prompt":"a","stop":["x",""]})", "stop[1]", "invalid_value"},
    {kC, R"({"prompt":"a","stop":["x",5]})", "stop[1]", "invalid_value"},
    {kC, R"({"prompt":"a","stop_token_ids":[1,"2"]})", "stop_token_ids[1]", "invalid_value"},
    {kC, R"({"prompt":"a","stop_token_ids":[999]})", "stop_token_ids[0]", "invalid_value"},
    {kC, R"({"prompt":"a","logit_bias":{"x":1}})", "logit_bias", "invalid_value"},
    {kC, R"({"prompt":"a","logit_bias":{"5":101}})", "logit_bias.5", "invalid_value"},
    {kC, R"({"prompt":"a","logit_bias":{"9999":1}})", "logit_bias.9999", "invalid_value"},
    {kC, R"({"prompt":"a","logit_bias":[1]})", "logit_bias", "invalid_value"},
    {kC, R"({"prompt":"a","logprobs":true})", "logprobs", "invalid_value"},
    {kC, R"({"prompt":"a","logprobs":21})", "logprobs", "invalid_value"},
    {kC, R"({"prompt":"a","echo":"yes"})", "echo", "invalid_value"},
    {kC, R"({"prompt":"a","suffix":"b"})", "suffix", "unsupported_value"},
    {kC, R"({"prompt":"a","stream":"true"})", "stream", "invalid_value"},
    {kC, R"({"prompt":"a","stream_options":{}})", "stream_options", "invalid_value"},
    {kC, R"({"prompt":"a","stream":true,"stream_options":1})", "stream_options", "invalid_value"},
    {kC, R"({"prompt":"a","stream":true,"stream_options":{"include_usage":1}})",
     "stream_options.include_usage", "invalid_value"},
    {kC, R"({"prompt":"a","cache_salt":""})", "cache_salt", "invalid_value"},
    {kC, R"({"prompt":"a","cache_salt":5})", "cache_salt", "invalid_value"},
    {kC, R"({"prompt":"a","priority":1e18})", "priority", "invalid_value"},
    {kC, R"({"prompt":"a","use_beam_search":true})", "use_beam_search", "unsupported_value"},
    {kC, R"({"prompt":"a","logprob_token_ids":[5]})", "logprob_token_ids", "unsupported_value"},
    {kC, R"({"prompt":"a","structured_outputs":{"choice":["a",7]}})",
     "structured_outputs.choice[1]", "invalid_value"},
    {kC, R"({"prompt":"a","prompt_logprobs":1,"stream":true})", "prompt_logprobs", "invalid_value"},
    {kC, R"({"prompt":"a","guided_json":{"type":"object"}})", "guided_json", "unsupported_value"},
    {kC, R"({"prompt":"a","response_format":{"type":"yaml"}})", "response_format.type",
     "invalid_value"},
    {kC, R"({"prompt":"a","response_format":{"type":"json_schema","json_schema":{"name":"x"}}})",
     "response_format.json_schema.schema", "invalid_value"},
    {kC, R"({"prompt":"a","response_format":{"type":"json_object"},"regex":"a"})", "regex",
     "invalid_value"},
    {kC, R"({"prompt":"a","response_format":{"type":"json_object"},"ignore_eos":true})",
     "ignore_eos", "invalid_value"},
    {kC, R"({"prompt":"a","structured_outputs":{}})", "structured_outputs", "invalid_value"},
    {kC, R"({"prompt":"a","structured_outputs":{"regex":"a","choice":["a"]}})",
     "structured_outputs.choice", "invalid_value"},
    {kC, R"({"prompt":"a","structured_outputs":{"regex":1}})", "structured_outputs.regex",
     "invalid_value"},
    {kC, R"({"prompt":"a","structured_outputs":{"regex":"a","whitespace_pattern":" "}})",
     "structured_outputs.whitespace_pattern", "unsupported_value"},
    {kC, R"({"prompt":"a","structured_outputs":{"regex":"a","backend":"x"}})",
     "structured_outputs.backend", "invalid_value"},
    {kC, R"({"prompt":"a","grammar":5})", "grammar", "invalid_value"},
    {kC, R"({"prompt":"a","response_format":"json"})", "response_format", "invalid_value"},
    {kM, R"({})", "messages", "invalid_value"},
    {kM, R"({"messages":"hi"})", "messages", "invalid_value"},
    {kM, R"({"messages":[]})", "messages", "invalid_value"},
    {kM, R"({"messages":["hi"]})", "messages[0]", "invalid_value"},
    {kM, R"({"messages":[{"content":"x"}]})", "messages[0].role", "invalid_value"},
    {kM, R"({"messages":[{"role":"root","content":"x"}]})", "messages[0].role", "invalid_value"},
    {kM, R"({"messages":[{"role":"user"}]})", "messages[0].content", "invalid_value"},
    {kM, R"({"messages":[{"role":"user","content":5}]})", "messages[0].content", "invalid_value"},
    {kM, R"({"messages":[{"role":"user","content":[7]}]})", "messages[0].content[0]",
     "invalid_value"},
    {kM, R"({"messages":[{"role":"user","content":[{"type":"text"}]}]})",
     "messages[0].content[0].text", "invalid_value"},
    {kM, R"({"messages":[{"role":"user","content":[{"type":"image_url","image_url":{}}]}]})",
     "messages[0].content[0].type", "unsupported_value"},
    {kM, R"({"messages":[{"role":"user","content":[{"type":"input_audio"}]}]})",
     "messages[0].content[0].type", "unsupported_value"},
    {kM, R"({"messages":[{"role":"user","content":"x","tool_calls":[{}]}]})",
     "messages[0].tool_calls", "invalid_value"},
    {kM, "{" RUDDER_MESSAGES R"(,"top_logprobs":2})", "top_logprobs", "invalid_value"},
    {kM, "{" RUDDER_MESSAGES R"(,"logprobs":true,"top_logprobs":21})", "top_logprobs",
     "invalid_value"},
    {kM, "{" RUDDER_MESSAGES R"(,"logprobs":2})", "logprobs", "invalid_value"},
    {kM, "{" RUDDER_MESSAGES R"(,"tools":{}})", "tools", "invalid_value"},
    {kM, "{" RUDDER_MESSAGES R"(,"tools":[7]})", "tools[0]", "invalid_value"},
    {kM, "{" RUDDER_MESSAGES R"(,"tools":[{}]})", "tools[0].type", "invalid_value"},
    {kM, "{" RUDDER_MESSAGES R"(,"tools":[{"type":"web_search"}]})", "tools[0].type",
     "unsupported_value"},
    {kM, "{" RUDDER_MESSAGES R"(,"tools":[{"type":"function"}]})", "tools[0].function",
     "invalid_value"},
    {kM, "{" RUDDER_MESSAGES R"(,"tools":[{"type":"function","function":{"name":"a b"}}]})",
     "tools[0].function.name", "invalid_value"},
    {kM,
     "{" RUDDER_MESSAGES
     R"(,"tools":[{"type":"function","function":{"name":"f","parameters":[]}}]})",
     "tools[0].function.parameters", "invalid_value"},
    {kM, "{" RUDDER_MESSAGES R"(,"tools":[)" RUDDER_TOOL "," RUDDER_TOOL "]}",
     "tools[1].function.name", "invalid_value"},
    {kM, "{" RUDDER_MESSAGES R"(,"tool_choice":"required"})", "tool_choice", "invalid_value"},
    {kM, "{" RUDDER_MESSAGES R"(,"tool_choice":"some","tools":[)" RUDDER_TOOL "]}", "tool_choice",
     "invalid_value"},
    {kM, "{" RUDDER_MESSAGES R"(,"tool_choice":{"type":"function"},"tools":[)" RUDDER_TOOL "]}",
     "tool_choice.function", "invalid_value"},
    {kM,
     "{" RUDDER_MESSAGES
     R"(,"tool_choice":{"type":"function","function":{"name":"g"}},"tools":[)" RUDDER_TOOL "]}",
     "tool_choice.function.name", "invalid_value"},
    {kM, "{" RUDDER_MESSAGES R"(,"tool_choice":{"type":"custom"},"tools":[)" RUDDER_TOOL "]}",
     "tool_choice.type", "invalid_value"},
    {kM,
     "{" RUDDER_MESSAGES
     R"(,"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"any","tools":[]}},"tools":[)" RUDDER_TOOL
     "]}",
     "tool_choice.allowed_tools.mode", "invalid_value"},
    {kM,
     "{" RUDDER_MESSAGES
     R"(,"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[]}},"tools":[)" RUDDER_TOOL
     "]}",
     "tool_choice.allowed_tools.tools", "invalid_value"},
    {kM,
     "{" RUDDER_MESSAGES
     R"(,"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[)"
     R"({"type":"function","function":{"name":"g"}}]}},"tools":[)" RUDDER_TOOL "]}",
     "tool_choice.allowed_tools.tools[0].function.name", "invalid_value"},
    {kM,
     "{" RUDDER_MESSAGES
     R"(,"tool_choice":"required","tools":[{"type":"function","function":{"name":"g",)"
     R"("parameters":{"type":"string"}}}]})",
     "tools[0].function.parameters.type", "invalid_value"},
    {kM,
     "{" RUDDER_MESSAGES R"(,"ignore_eos":true,"tool_choice":"required","tools":[)" RUDDER_TOOL
     "]}",
     "ignore_eos", "invalid_value"},
    {kM,
     "{" RUDDER_MESSAGES R"(,"tools":[{"type":"function","function":{"name":"g","strict":true,)"
     R"("parameters":{"type":"string"}}}]})",
     "tools[0].function.parameters.type", "invalid_value"},
    {kM,
     "{" RUDDER_MESSAGES
     R"(,"structured_outputs":{"regex":"a"},"tool_choice":"required","tools":[)" RUDDER_TOOL "]}",
     "tool_choice", "invalid_value"},
    {kM, R"({"messages":[{"role":"user","content":null}]})", "messages[0].content",
     "invalid_value"},
    {kC, R"({"prompt":"a","truncation_side":"up"})", "truncation_side", "invalid_value"},
    {kM, "{" RUDDER_MESSAGES R"(,"reasoning_effort":"some"})", "reasoning_effort", "invalid_value"},
    {kM, "{" RUDDER_MESSAGES R"(,"include_reasoning":1})", "include_reasoning", "invalid_value"},
    {kM, "{" RUDDER_MESSAGES R"(,"functions":[{}]})", "functions", "unsupported_value"},
    {kM, "{" RUDDER_MESSAGES R"(,"response_format":{"type":"json_schema"}})",
     "response_format.json_schema", "invalid_value"},
    {kM, "{" RUDDER_MESSAGES R"(,"chat_template":"x"})", "chat_template", "unsupported_value"},
    {kM, "{" RUDDER_MESSAGES R"(,"chat_template_kwargs":[]})", "chat_template_kwargs",
     "invalid_value"},
    {kM, "{" RUDDER_MESSAGES R"(,"modalities":["text","audio"]})", "modalities",
     "unsupported_value"},
    {kM, "{" RUDDER_MESSAGES R"(,"audio":{"voice":"x"}})", "audio", "unsupported_value"},
    {kM, "{" RUDDER_MESSAGES R"(,"continue_final_message":true,"add_generation_prompt":true})",
     "continue_final_message", "invalid_value"},
};

TEST_F(GenerationRequestTest, EveryWrongBodyIsRefusedByName) {
  for (const BadBody& bad : kBadBodies) {
    const auto parsed = parse(bad.api, bad.body);
    ASSERT_FALSE(parsed) << bad.body;
    EXPECT_EQ(parsed.error().param, bad.param) << bad.body << ": " << parsed.error().message;
    EXPECT_EQ(parsed.error().code, bad.code) << bad.body << ": " << parsed.error().message;
    const int status = std::string_view(bad.code) == "model_not_found" ? 404 : 400;
    EXPECT_EQ(parsed.error().status, status) << bad.body;
    EXPECT_EQ(parsed.error().type, "invalid_request_error") << bad.body;
    EXPECT_FALSE(parsed.error().message.empty()) << bad.body;
  }
}

TEST_F(GenerationRequestTest, AFieldThatIsOffIsNotRefused) {
  EXPECT_TRUE(parse(kC, R"({"prompt":"a","use_beam_search":false,"suffix":"","best_of":1,)"
                        R"("response_format":{"type":"text"},"prompt_logprobs":null})"));
  EXPECT_TRUE(
      parse(kM, "{" RUDDER_MESSAGES R"(,"tools":[],"tool_choice":"auto","modalities":["text"]})"));
  EXPECT_TRUE(
      parse(kM, "{" RUDDER_MESSAGES R"(,"tools":[)" RUDDER_TOOL R"(],"tool_choice":"none"})"));
}

TEST_F(GenerationRequestTest, DeepAndLongBodiesAreBounded) {
  const std::string deep = R"({"prompt":)" + std::string(100'000, '[') + "}";
  auto parsed = parse(kC, deep);
  ASSERT_FALSE(parsed);
  EXPECT_EQ(parsed.error().code, "invalid_json");
  parsed = parse(kC, R"({"prompt":")" + std::string(5000, 'a') + "\"}");
  ASSERT_FALSE(parsed);
  EXPECT_EQ(parsed.error().code, "context_length_exceeded");
  EXPECT_EQ(parsed.error().param, "prompt");
  parsed =
      parse(kM, R"({"messages":[{"role":"user","content":")" + std::string(5000, 'a') + "\"}]}");
  ASSERT_FALSE(parsed);
  EXPECT_EQ(parsed.error().param, "messages");
}

}  // namespace
}  // namespace rudder::server
