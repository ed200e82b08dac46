// Calls under a grammar, from the request to the parser: whatever it lets a model write, token by
// token, its dialect's parser reads as calls that satisfy the tools' schemas. Calls that must come,
// and calls that may.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <random>

#include "rudder/base/check.h"
#include "rudder/base/json.h"
#include "rudder/server/request/generation_request.h"
#include "rudder/server/request/tool_fields.h"
#include "rudder/server/testing/test_server.h"

namespace rudder::server {
namespace {

namespace json = boost::json;

constexpr int32_t kVocab = 320;
constexpr int32_t kStop = 257;

// `more` stands in front of the tools; both of them are strict.
std::string body_with(std::string_view more) {
  return fmt::format(
      R"({{"messages":[{{"role":"user","content":"hi"}}],{}"tools":[)"
      R"({{"type":"function","function":{{"name":"f","strict":true,"parameters":{{"properties":{{)"
      R"("s":{{"type":"string","maxLength":5}},"n":{{"type":"integer","minimum":1,"maximum":99}},)"
      R"("b":{{"type":"boolean"}}}},"required":["s","n"],"additionalProperties":false}}}}}},)"
      R"({{"type":"function","function":{{"name":"stop-1","strict":true}}}}]}})",
      more);
}

class CallsTest : public ::testing::Test {
 protected:
  // A request to a model of bytes in which these marks are special tokens.
  void use(const dialect::ToolDialect& calls, const std::vector<std::string>& special,
           std::string_view more_fields) {
    model_ = byte_model(special);
    const Result<ModelDialect> found = find_dialect(model_, calls.name, "");
    ASSERT_TRUE(found);
    model_.dialect = *found;
    auto made = constraint::GrammarCompiler::create(*model_.tokenizer, kVocab, {kStop}, {});
    ASSERT_TRUE(made);
    grammars_ = std::move(*made);
    GenerationScope scope = {
        .model = model_, .limits = limits(), .keys = keys_, .request_id = "r1"};
    auto parsed = parse_generation(Api::kChat, body_with(more_fields), scope);
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

  // The tokens that may come next.
  static std::vector<int32_t> allowed_by(constraint::Matcher& matcher) {
    std::vector<uint32_t> words(constraint::mask_words(kVocab), ~uint32_t{0});
    EXPECT_TRUE(matcher.restrict(words));
    std::vector<int32_t> allowed;
    for (int32_t token = 0; token < kVocab; ++token) {
      const auto at = static_cast<size_t>(token);
      if ((words[at / 32] >> (at % 32) & 1) != 0) allowed.push_back(token);
    }
    return allowed;
  }

  std::unique_ptr<constraint::Matcher> matcher() const {
    const auto& specs = request_->prompts[0].request.params().constraints;
    auto made = grammars_->compile(std::get<constraint::GrammarSpec>(specs.at(0)));
    RUDDER_CHECK(made.has_value(), "{}", made.error().to_string());
    constraint_ = std::move(*made);
    return constraint_->start();
  }

  // True where the answer may be these tokens, and end or go on behind them.
  bool allows(const std::vector<int32_t>& tokens, constraint::Matcher& matcher) const {
    for (const int32_t token : tokens) {
      const std::vector<int32_t> allowed = allowed_by(matcher);
      if (std::find(allowed.begin(), allowed.end(), token) == allowed.end()) return false;
      EXPECT_TRUE(matcher.advance(token));
    }
    return true;
  }

  // An answer that begins with `begun` and goes on with allowed tokens, drawn at random, until it
  // may end.
  std::string walk(std::mt19937& rng, const std::vector<int32_t>& begun = {}) {
    const auto matcher = this->matcher();
    EXPECT_TRUE(allows(begun, *matcher));
    std::string text = text_of(begun);
    for (int step = 0; step < 4000; ++step) {
      std::vector<int32_t> allowed = allowed_by(*matcher);
      if (allowed.empty()) break;
      const bool may_stop = std::find(allowed.begin(), allowed.end(), kStop) != allowed.end();
      if (may_stop && (allowed.size() == 1 || rng() % 2 == 0)) return text;
      std::erase(allowed, kStop);
      const int32_t token = allowed[rng() % allowed.size()];
      EXPECT_TRUE(matcher->advance(token));
      text += text_of({token});
    }
    ADD_FAILURE() << "no end: " << text;
    return text;
  }

  // As a tokenizer would: marks that are special tokens are one.
  std::vector<int32_t> tokens_of(std::string_view text) const {
    return *model_.tokenizer->encode(text, {.add_special_tokens = false});
  }
  std::string text_of(const std::vector<int32_t>& tokens) const {
    std::string text;
    for (const int32_t token : tokens) {
      text += model_.tokenizer->is_special(token) ? model_.tokenizer->id_to_token(token)
                                                  : model_.tokenizer->token_bytes(token);
    }
    return text;
  }

  dialect::Delta parse(std::string_view text) const {
    const auto parser = dialect::make_parser(*request_->parser, 1);
    dialect::Delta said = parser->push(text);
    said.append(parser->finish(dialect::Ending::kWhole));
    return said;
  }

  ServerModel model_;
  const ApiKeys keys_{{}};
  std::unique_ptr<constraint::GrammarCompiler> grammars_;
  mutable std::shared_ptr<const constraint::Constraint> constraint_;  // outlives its matchers
  std::unique_ptr<GenerationRequest> request_;
};

bool is_of_messages(const dialect::ToolDialect& calls) {
  return calls.form == dialect::CallForm::kHarmony;
}

std::vector<std::string> special_tokens(const dialect::ToolDialect& calls) {
  if (is_of_messages(calls)) {
    const std::vector<std::string_view> marks = dialect::marks_of(&calls, nullptr);
    return {marks.begin(), marks.end()};
  }
  std::vector<std::string> tokens = {std::string(calls.begin), std::string(calls.end), "[ARGS]"};
  if (calls.form == dialect::CallForm::kHeaded) {
    // What a prompt ends with is text, and so is a blank.
    if (calls.prompted) return {};
    tokens.insert(tokens.end(), {std::string(calls.each_begin), std::string(calls.each_end),
                                 std::string(calls.separator)});
  }
  std::erase(tokens, "");
  return tokens;
}

// What stands before text where an answer begins inside of a mark.
std::string before_text(const dialect::ToolDialect& calls) {
  if (is_of_messages(calls)) return "<|channel|>commentary<|message|>";
  return calls.prompted ? "all\n" : "";
}

// What stands before the last words of an answer.
std::string before_answer(const dialect::ToolDialect& calls) {
  return is_of_messages(calls) ? "<|channel|>final<|message|>" : "";
}

// What begins a call behind text.
std::string begin_call(const dialect::ToolDialect& calls) {
  if (!is_of_messages(calls)) return std::string(calls.begin);
  return "<|end|><|start|>assistant<|channel|>commentary to=";
}

void expect_calls(const dialect::Delta& said, const std::string& text) {
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

constexpr int kWalks = 40;

TEST_F(CallsTest, ThatMustComeAreReadByTheirDialect) {
  std::mt19937 rng(5);
  for (const dialect::ToolDialect& calls : dialect::tool_dialects()) {
    for (const bool special : {false, true}) {
      const auto tokens = special ? special_tokens(calls) : std::vector<std::string>();
      ASSERT_NO_FATAL_FAILURE(use(calls, tokens, R"("tool_choice":"required",)")) << calls.name;
      for (int i = 0; i < kWalks; ++i) {
        const std::string text = walk(rng);
        const dialect::Delta said = parse(text);
        EXPECT_EQ(said.content, "") << text;
        expect_calls(said, fmt::format("{}: {}", calls.name, text));
        if (HasFailure()) return;
      }
    }
  }
}

// Once its mark is there a call of a strict tool is as its schema wants it; before, any text is.
TEST_F(CallsTest, ThatMayComeAreStrictOnceTheyBegin) {
  std::mt19937 rng(7);
  for (const dialect::ToolDialect& calls : dialect::tool_dialects()) {
    for (const bool special : {false, true}) {
      if (calls.bare && special) continue;  // the mark is not needed, and never comes
      const auto tokens = special ? special_tokens(calls) : std::vector<std::string>();
      ASSERT_NO_FATAL_FAILURE(use(calls, tokens, "")) << calls.name;
      const std::string before = before_text(calls);
      EXPECT_TRUE(allows(tokens_of(before + "It is <2 {\"name\": ["), *matcher())) << calls.name;
      for (const std::string_view mark : {calls.also_begin, calls.each_begin}) {
        if (mark.empty()) continue;
        const auto other = tokens_of(fmt::format("It is {}[", mark));
        EXPECT_FALSE(allows(other, *matcher())) << calls.name << ": another mark, without a form";
      }
      const std::string begun = calls.bare ? (calls.list ? "[" : "{")
                                           : fmt::format("{}Well.\n{}", before, begin_call(calls));
      for (int i = 0; i < kWalks; ++i) {
        const std::string text = walk(rng, tokens_of(begun));
        const dialect::Delta said = parse(text);
        EXPECT_TRUE(calls.bare || said.content.starts_with("Well.")) << text;
        expect_calls(said, fmt::format("{}: {}", calls.name, text));
        if (HasFailure()) return;
      }
    }
  }
}

TEST_F(CallsTest, OneAtMostEndsTheAnswer) {
  const dialect::ToolDialect& hermes = **dialect::find_tool_dialect("hermes");
  const std::string call =
      "Well.<tool_call>\n{\"name\": \"stop-1\", \"arguments\": {}}\n</tool_call>";
  for (const bool several : {false, true}) {
    ASSERT_NO_FATAL_FAILURE(use(hermes, {}, several ? "" : R"("parallel_tool_calls":false,)"));
    EXPECT_EQ(allows(tokens_of(call + "\n" + call), *matcher()), several);
    const auto after = matcher();
    EXPECT_TRUE(allows(tokens_of(call), *after));
    EXPECT_EQ(allowed_by(*after).size() == 1, !several);
  }
}

// Of the tools that are shown, those that are allowed alone can be called.
TEST_F(CallsTest, OnlyAllowedToolsAreCalled) {
  constexpr std::string_view kOnly =
      R"("tool_choice":{{"type":"allowed_tools","allowed_tools":{{"mode":"{}","tools":[)"
      R"({{"type":"function","function":{{"name":"stop-1"}}}}]}}}},)";
  std::mt19937 rng(11);
  for (const dialect::ToolDialect& calls : dialect::tool_dialects()) {
    const std::vector<std::string> tokens = special_tokens(calls);
    for (const char* mode : {"auto", "required"}) {
      const bool is_free = std::string_view(mode) == "auto";
      ASSERT_NO_FATAL_FAILURE(use(calls, tokens, fmt::format(kOnly, mode))) << calls.name;
      const std::string text = before_text(calls) + "Well.";
      EXPECT_EQ(allows(tokens_of(text), *matcher()), is_free) << calls.name;
      if (is_free && calls.bare) continue;  // a mark that does not come begins no call
      const std::vector<int32_t> begun =
          is_free ? tokens_of(fmt::format("{}\n{}", text, begin_call(calls)))
                  : std::vector<int32_t>();
      for (int i = 0; i < kWalks / 4; ++i) {
        const std::string answer = walk(rng, begun);
        const dialect::Delta said = parse(answer);
        EXPECT_FALSE(said.tool_calls.empty()) << calls.name << ": " << answer;
        for (const dialect::ToolCallDelta& call : said.tool_calls) EXPECT_EQ(call.name, "stop-1");
        if (HasFailure()) return;
      }
    }
  }
}

// A form beside tools is that of the answer's text: it is one or the other.
TEST_F(CallsTest, OrAFormOfText) {
  constexpr std::string_view kForm =
      R"("response_format":{"type":"json_schema","json_schema":{"schema":{"enum":[12,34]}}},)";
  std::mt19937 rng(9);
  for (const dialect::ToolDialect& calls : dialect::tool_dialects()) {
    const std::vector<std::string> tokens = special_tokens(calls);
    ASSERT_NO_FATAL_FAILURE(use(calls, tokens, kForm)) << calls.name;
    const std::string before = before_answer(calls);
    EXPECT_TRUE(allows(tokens_of(before + "12"), *matcher())) << calls.name;
    EXPECT_FALSE(allows(tokens_of(before + "13"), *matcher())) << calls.name;
    int num_calls = 0;
    for (int i = 0; i < kWalks; ++i) {
      const std::string text = walk(rng);
      if (text == before + "12" || text == before + "34") continue;
      ++num_calls;
      expect_calls(parse(text), fmt::format("{}: {}", calls.name, text));
      if (HasFailure()) return;
    }
    EXPECT_GT(num_calls, 0) << calls.name;
    const std::string forced = fmt::format(R"({}"tool_choice":"required",)", kForm);
    ASSERT_NO_FATAL_FAILURE(use(calls, tokens, forced)) << calls.name;
    EXPECT_FALSE(allows(tokens_of(before + "12"), *matcher()))
        << "a call that must come says nothing";
  }
}

}  // namespace
}  // namespace rudder::server
