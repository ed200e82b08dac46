// Forced calls, from the request to the parser: whatever a grammar lets a model write, token by
// token, its dialect's parser reads as calls that satisfy the tools' schemas.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <iterator>
#include <random>

#include "rudder/base/json.h"
#include "rudder/server/generation_request.h"
#include "rudder/server/test_server.h"
#include "rudder/server/tool_fields.h"

namespace rudder::server {
namespace {

namespace json = boost::json;

constexpr int32_t kVocab = 320;
constexpr int32_t kStop = 257;

constexpr std::string_view kBody =
    R"({"messages":[{"role":"user","content":"hi"}],"tool_choice":"required","tools":[)"
    R"({"type":"function","function":{"name":"f","parameters":{"properties":{)"
    R"("s":{"type":"string","maxLength":5},"n":{"type":"integer","minimum":1,"maximum":99},)"
    R"("b":{"type":"boolean"}},"required":["s","n"],"additionalProperties":false}}},)"
    R"({"type":"function","function":{"name":"stop-1"}}]})";

class ForcedCallsTest : public ::testing::Test {
 protected:
  // A model of bytes in which these marks are special tokens.
  void use(const dialect::ToolDialect& calls, const std::vector<std::string>& special) {
    model_ = byte_model(special);
    const Result<ModelDialect> found = find_dialect(model_, calls.name, "");
    ASSERT_TRUE(found);
    model_.dialect = *found;
    auto made = constraint::GrammarCompiler::create(*model_.tokenizer, kVocab, {kStop}, {});
    ASSERT_TRUE(made);
    grammars_ = std::move(*made);
    GenerationScope scope = {
        .model = model_, .limits = limits(), .keys = keys_, .request_id = "r1"};
    scope.find_grammar = [&](const constraint::GrammarSpec& spec) {
      return std::optional(grammars_->compile(spec));
    };
    auto parsed = parse_generation(Api::kChat, kBody, scope);
    ASSERT_TRUE(parsed) << parsed.error().message;
    request_ = std::make_unique<GenerationRequest>(std::move(*parsed));
  }

  static engine::RequestLimits limits() {
    engine::RequestLimits limits;
    limits.max_seq_len = 4096;
    limits.vocab_size = kVocab;
    limits.eos_ids = {kStop};
    return limits;
  }

  // An answer of allowed tokens, drawn at random, that ends where it may.
  std::string walk(std::mt19937& rng) {
    const engine::RequestDraft& draft = request_->prompts[0].request.draft();
    const auto matcher = draft.constraints.at(0)->start();
    std::string text;
    for (int step = 0; step < 1000; ++step) {
      std::vector<uint32_t> words(constraint::mask_words(kVocab), ~uint32_t{0});
      EXPECT_TRUE(matcher->restrict(words));
      std::vector<int32_t> allowed;
      for (int32_t token = 0; token < kVocab; ++token) {
        const auto at = static_cast<size_t>(token);
        if ((words[at / 32] >> (at % 32) & 1) != 0) allowed.push_back(token);
      }
      if (allowed.empty()) break;
      const bool may_stop = std::find(allowed.begin(), allowed.end(), kStop) != allowed.end();
      if (may_stop && (allowed.size() == 1 || rng() % 2 == 0)) return text;
      std::erase(allowed, kStop);
      const int32_t token = allowed[rng() % allowed.size()];
      EXPECT_TRUE(matcher->advance(token));
      text += model_.tokenizer->is_special(token) ? model_.tokenizer->id_to_token(token)
                                                  : model_.tokenizer->token_bytes(token);
    }
    ADD_FAILURE() << "no end: " << text;
    return text;
  }

  ServerModel model_;
  const ApiKeys keys_{{}};
  std::unique_ptr<constraint::GrammarCompiler> grammars_;
  std::unique_ptr<GenerationRequest> request_;
};

void expect_calls(const dialect::Delta& said, const std::string& text) {
  EXPECT_EQ(said.content, "") << text;
  ASSERT_FALSE(said.tool_calls.empty()) << text;
  for (const dialect::ToolCallDelta& call : said.tool_calls) {
    const auto value = parse_json(call.arguments, "arguments");
    ASSERT_TRUE(value && value->is_object()) << call.arguments;
    const json::object& arguments = value->get_object();
    if (call.name == "stop-1") {
      EXPECT_TRUE(arguments.empty()) << call.arguments;
      continue;
    }
    EXPECT_EQ(call.name, "f");
    ASSERT_TRUE(arguments.contains("s") && arguments.contains("n")) << call.arguments;
    EXPECT_LE(arguments.size(), arguments.contains("b") ? 3u : 2u);
    EXPECT_TRUE(arguments.at("n").is_int64() && arguments.at("n").as_int64() >= 1 &&
                arguments.at("n").as_int64() <= 99)
        << call.arguments;
  }
}

TEST_F(ForcedCallsTest, AreReadByTheirDialect) {
  constexpr int kWalks = 40;
  std::mt19937 rng(5);
  for (const dialect::ToolDialect& calls : dialect::tool_dialects()) {
    const std::vector<std::string> marks = {std::string(calls.begin), std::string(calls.end),
                                            "[ARGS]"};
    for (const bool special : {false, true}) {
      std::vector<std::string> tokens;
      if (special) {
        std::copy_if(marks.begin(), marks.end(), std::back_inserter(tokens),
                     [](const std::string& mark) { return !mark.empty(); });
      }
      ASSERT_NO_FATAL_FAILURE(use(calls, tokens)) << calls.name;
      for (int i = 0; i < kWalks; ++i) {
        const std::string text = walk(rng);
        const auto parser = dialect::make_parser(*request_->parser, 1);
        dialect::Delta said = parser->push(text);
        said.append(parser->finish());
        expect_calls(said, fmt::format("{}: {}", calls.name, text));
        if (HasFailure()) return;
      }
    }
  }
}

}  // namespace
}  // namespace rudder::server
