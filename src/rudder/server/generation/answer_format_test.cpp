// The bytes of answers, letter by letter.
#include "rudder/server/generation/answer_format.h"

#include <gtest/gtest.h>

#include <cmath>

#include "rudder/server/testing/test_server.h"

namespace rudder::server {
namespace {

engine::OutputToken token(int32_t id, float logprob, std::vector<engine::TopLogprob> top = {}) {
  engine::OutputToken out;
  out.token = id;
  out.has_logprobs = true;
  out.logprob = logprob;
  out.top = std::move(top);
  return out;
}

class AnswerFormatTest : public ::testing::Test {
 protected:
  std::unique_ptr<AnswerFormat> format(AnswerOptions options) {
    options.id = "id-1";
    options.model = "m\"1";
    options.created = 7;
    return AnswerFormat::create(std::move(options), tokenizer_);
  }
  std::string events(const AnswerOptions& options, const ChoicePiece& piece) {
    std::string out;
    format(options)->append_events(out, piece);
    return out;
  }
  std::string document(const AnswerOptions& options, const ChoicePiece& piece) {
    return format(options)->document(
        std::span(&piece, 1), {.prompt_tokens = 3, .cached_tokens = 1, .completion_tokens = 2});
  }

  std::shared_ptr<const text::Tokenizer> tokenizer_ = byte_model().tokenizer;
};

TEST_F(AnswerFormatTest, ChatEvents) {
  AnswerOptions options;
  const std::string start =
      R"(data: {"id":"id-1","object":"chat.completion.chunk","created":7,"model":"m\"1",)"
      R"("choices":[{"index":2,"delta":{)";
  ChoicePiece piece;
  piece.index = 2;
  piece.first = true;
  piece.text = "a\"\n\xc3\xa9";
  EXPECT_EQ(events(options, piece),
            start + R"("role":"assistant","content":""},"logprobs":null,"finish_reason":null}]})" +
                "\n\n" + start + "\"content\":\"a\\\"\\n\xc3\xa9\"}" +
                R"(,"logprobs":null,"finish_reason":null}]})" + "\n\n");
  piece.first = false;
  piece.text = "";
  EXPECT_EQ(events(options, piece),
            start + R"("content":""},"logprobs":null,"finish_reason":null}]})" + "\n\n")
      << "a token without text is an event too";
  piece.finish = engine::FinishReason::kStop;
  piece.stop_reason = "END";
  EXPECT_EQ(events(options, piece),
            start + R"(},"logprobs":null,"finish_reason":"stop","stop_reason":"END"}]})" + "\n\n");
  piece.stop_reason = "";
  piece.stop_token = 9;
  piece.text = "z";
  options.include_usage = true;
  EXPECT_EQ(
      events(options, piece),
      start +
          R"("content":"z"},"logprobs":null,"finish_reason":"stop","stop_reason":9}],"usage":null})" +
          "\n\n");
  std::string usage;
  format(options)->append_end(usage,
                              {.prompt_tokens = 3, .cached_tokens = 1, .completion_tokens = 2});
  EXPECT_EQ(usage,
            R"(data: {"id":"id-1","object":"chat.completion.chunk","created":7,"model":"m\"1",)"
            R"("choices":[],"usage":{"prompt_tokens":3,"total_tokens":5,"completion_tokens":2,)"
            R"("prompt_tokens_details":{"cached_tokens":1}}})"
            "\n\ndata: [DONE]\n\n");
}

// What is 0 is left out.
TEST(Usage, DetailsOfCompletionTokens) {
  const auto written = [](int32_t reasoning, int32_t accepted, int32_t rejected) {
    std::string out;
    append_usage(out, {.prompt_tokens = 3,
                       .completion_tokens = 9,
                       .reasoning_tokens = reasoning,
                       .accepted_prediction_tokens = accepted,
                       .rejected_prediction_tokens = rejected});
    return out.substr(out.find("},") == std::string::npos ? out.size() : out.find("},") + 2);
  };
  EXPECT_EQ(written(0, 0, 0), "");
  EXPECT_EQ(written(4, 0, 0), R"("completion_tokens_details":{"reasoning_tokens":4}})");
  EXPECT_EQ(written(0, 5, 2), R"("completion_tokens_details":{"accepted_prediction_tokens":5,)"
                              R"("rejected_prediction_tokens":2}})");
  EXPECT_EQ(written(4, 0, 2),
            R"("completion_tokens_details":{"reasoning_tokens":4,"accepted_prediction_tokens":0,)"
            R"("rejected_prediction_tokens":2}})");
}

TEST_F(AnswerFormatTest, ChatDocumentWithLogprobs) {
  AnswerOptions options;
  options.logprobs = true;
  options.return_token_ids = true;
  const std::vector<engine::OutputToken> tokens = {
      token('H', -0.5f, {{'H', -0.5f}, {0xE9, -INFINITY}})};
  const std::vector<int32_t> prompt = {1, 2};
  ChoicePiece piece;
  piece.text = "H";
  piece.tokens = tokens;
  piece.prompt_ids = prompt;
  piece.finish = engine::FinishReason::kLength;
  EXPECT_EQ(
      document(options, piece),
      R"({"id":"id-1","object":"chat.completion","created":7,"model":"m\"1","choices":[{"index":0,)"
      R"("message":{"role":"assistant","content":"H","reasoning":null,"reasoning_content":null,)"
      R"("refusal":null},"logprobs":{"content":[)"
      R"({"token":"H","logprob":-0.5,"bytes":[72],"top_logprobs":[)"
      R"({"token":"H","logprob":-0.5,"bytes":[72]},)"
      "{\"token\":\"\xEF\xBF\xBD\",\"logprob\":-9999.0,\"bytes\":[233]}]}],"
      R"("refusal":null},"finish_reason":"length","stop_reason":null,"token_ids":[72]}],)"
      R"("usage":{"prompt_tokens":3,"total_tokens":5,"completion_tokens":2,)"
      R"("prompt_tokens_details":{"cached_tokens":1}},"prompt_token_ids":[1,2],"prompt_logprobs":null,)"
      R"("service_tier":null,"kv_transfer_params":null})");
}

TEST_F(AnswerFormatTest, CompletionsEventWithLogprobs) {
  AnswerOptions options;
  options.api = Api::kCompletions;
  options.logprobs = true;
  options.top_logprobs = 2;
  const std::vector<engine::OutputToken> tokens = {token('a', -1, {{'a', -1}, {'b', -2}}),
                                                   token('c', -3, {{'b', -0.25f}})};
  ChoicePiece piece;
  piece.text = "ac";
  piece.tokens = tokens;
  piece.text_offset = 4;
  EXPECT_EQ(
      events(options, piece),
      R"(data: {"id":"id-1","object":"text_completion","created":7,"model":"m\"1","choices":[)"
      R"({"index":0,"text":"ac","logprobs":{"text_offset":[4,5],"token_logprobs":[-1,-3],)"
      R"("tokens":["a","c"],"top_logprobs":[{"a":-1,"b":-2},{"b":-0.25,"c":-3}]},)"
      R"("finish_reason":null}]})"
      "\n\n");
}

TEST_F(AnswerFormatTest, AnEchoedPromptHasLogprobsButForItsFirstToken) {
  AnswerOptions options;
  options.api = Api::kCompletions;
  options.logprobs = true;
  options.echo_logprobs = true;
  options.top_logprobs = 1;
  engine::OutputToken first;
  first.token = 'x';
  const std::vector<engine::OutputToken> prompt = {first, token('y', -2, {{'z', -1}, {'y', -2}})};
  const std::vector<engine::OutputToken> tokens = {token('a', -0.5f, {{'a', -0.5f}})};
  ChoicePiece piece;
  piece.first = true;
  piece.text = "xya";
  piece.tokens = tokens;
  piece.prompt_tokens = prompt;
  const std::string choice = R"({"index":0,"text":"xya","logprobs":{"text_offset":[0,1,2],)"
                             R"("token_logprobs":[null,-2,-0.5],"tokens":["x","y","a"],)"
                             R"("top_logprobs":[null,{"z":-1,"y":-2},{"a":-0.5}]},)"
                             R"("finish_reason":null)";
  EXPECT_NE(document(options, piece).find(choice), std::string::npos) << document(options, piece);
  EXPECT_NE(events(options, piece).find(choice), std::string::npos);
  piece.first = false;
  piece.text_offset = 2;
  EXPECT_NE(events(options, piece).find(R"("text_offset":[2],"token_logprobs":[-0.5])"),
            std::string::npos);
  options.tokens_as_ids = true;
  EXPECT_NE(
      events(options, piece).find(R"("tokens":["token_id:97"],"top_logprobs":[{"token_id:97")"),
      std::string::npos);
}

TEST_F(AnswerFormatTest, PromptLogprobsGoByTokenId) {
  engine::OutputToken first;
  first.token = 'x';
  engine::OutputToken second = token('y', -INFINITY, {{'z', -1}, {'y', -2}, {'w', -3}});
  second.rank = 2;
  const std::vector<engine::OutputToken> prompt = {first, second};
  const std::string expected =
      R"("prompt_logprobs":[null,{"121":{"logprob":-9999.0,"rank":2,"decoded_token":"y"},)"
      R"("122":{"logprob":-1,"rank":1,"decoded_token":"z"}}])";
  ChoicePiece piece;
  piece.first = true;
  piece.prompt_tokens = prompt;
  AnswerOptions options;
  options.prompt_logprobs = 2;
  for (const Api api : {Api::kChat, Api::kCompletions}) {
    options.api = api;
    EXPECT_NE(document(options, piece).find(expected), std::string::npos)
        << document(options, piece);
  }
}

TEST_F(AnswerFormatTest, ErrorsAndTheEnd) {
  std::string out;
  format({})->append_error(out, to_api_error({ErrorCode::kNumerical, "secret", "x"}));
  format({})->append_end(out, {});
  EXPECT_EQ(
      out, R"(data: {"error":{"message":"the model produced a value that is not a number for this )"
           R"(request","type":"server_error","param":null,"code":"numerical_error"}})"
           "\n\ndata: [DONE]\n\n");
}

}  // namespace
}  // namespace rudder::server
