// Walks the table of ranges: what the parser takes, what /openapi.json says and what docs/api.md
// tells are the same.
#include "rudder/server/request/field_ranges.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>

#include "rudder/base/json.h"
#include "rudder/server/openapi/openapi.h"
#include "rudder/server/request/generation_request.h"
#include "rudder/server/testing/test_server.h"

namespace rudder::server {
namespace {

namespace json = boost::json;

// What a value of this field needs beside it to make sense.
json::object companions(std::string_view path, int64_t value) {
  if (path == "top_logprobs") return {{"logprobs", true}};
  if (path == "best_of") return {{"n", std::clamp<int64_t>(value, 1, 128)}};
  if (path == "max_tokens" && value == 0) return {{"echo", true}};
  if (path == "repetition_detection.max_pattern_size") {
    return {{"repetition_detection", {{"min_count", 2}}}};
  }
  if (path == "repetition_detection.min_pattern_size") {
    return {{"repetition_detection", {{"max_pattern_size", 1024}, {"min_count", 2}}}};
  }
  return {};
}

class FieldRangesTest : public ::testing::Test {
 protected:
  FieldRangesTest() { model_.dialect.reasoning = &dialect::reasoning_dialects().front(); }

  GenerationScope scope() const {
    return {.model = model_, .limits = limits_, .keys = keys_, .request_id = "r1"};
  }

  // The error's param; "" when the body is taken.
  std::string verdict(Api api, const std::string& body) const {
    const auto parsed = parse_generation(api, body, scope());
    if (parsed) return "";
    EXPECT_EQ(parsed.error().status, 400) << body;
    EXPECT_EQ(parsed.error().type, "invalid_request_error") << body;
    return parsed.error().param.empty() ? "(no param)" : parsed.error().param;
  }

  // A body with the field's value as JSON text, which need not be a value that JSON libraries hold.
  std::string body_with(Api api, std::string_view path, const std::string& value,
                        json::object beside) const {
    if (api == Api::kChat) {
      beside["messages"] = json::array{{{"role", "user"}, {"content", "a"}}};
    } else {
      beside["prompt"] = "a";
    }
    constexpr std::string_view kMark = "@@value@@";
    const size_t dot = path.find('.');
    if (dot == std::string_view::npos) {
      beside[path] = json::string_view(kMark);
    } else {
      json::value& outer = beside[path.substr(0, dot)];
      if (!outer.is_object()) outer.emplace_object();
      const std::string_view inner = path.substr(dot + 1);
      outer.as_object()[inner == "*" ? "5" : inner] = json::string_view(kMark);
    }
    std::string text = json::serialize(beside);
    const std::string quoted = fmt::format("\"{}\"", kMark);
    return text.replace(text.find(quoted), quoted.size(), value);
  }

  std::string verdict_of(Api api, std::string_view path, const std::string& value,
                         json::object beside = {}) const {
    return verdict(api, body_with(api, path, value, std::move(beside)));
  }

  static std::string shown(std::string_view path) {
    return path.ends_with(".*") ? std::string(path.substr(0, path.size() - 1)) + "5"
                                : std::string(path);
  }

  static std::vector<Api> apis_of(FieldOf of) {
    if (of == FieldOf::kChat) return {Api::kChat};
    if (of == FieldOf::kCompletions) return {Api::kCompletions};
    return {Api::kChat, Api::kCompletions};
  }

  void expect_wrong_types_refused(Api api, std::string_view path) const {
    for (const char* wrong : {"\"\"", "\"1\"", "\"x\"", "true", "[]", "[1]", "{}", "{\"a\":1}",
                              "1e400", "-1e400", "[[[[]]]]", "123456789012345678901234567890"}) {
      EXPECT_EQ(verdict_of(api, path, wrong), shown(path)) << path << " = " << wrong;
    }
    for (const char* broken : {"NaN", "Infinity", "-", "01", "+1", ".5", "0x1", "1e"}) {
      EXPECT_EQ(verdict_of(api, path, broken), "(no param)") << path << " = " << broken;
    }
    if (!path.ends_with(".*")) {
      EXPECT_EQ(verdict_of(api, path, "null"), "") << path << ": null is absent";
    }
  }

  ServerModel model_ = byte_model();
  engine::RequestLimits limits_ = ScriptedEngine(nullptr).limits();
  ApiKeys keys_{{}};
};

TEST_F(FieldRangesTest, EveryIntegerIsTakenWithinItsRangeAndNowhereElse) {
  for (const IntegerField& field : integer_fields()) {
    for (const Api api : apis_of(field.of)) {
      SCOPED_TRACE(fmt::format("{} of {}", field.path, api == Api::kChat ? "chat" : "completions"));
      const auto taken = [&](int64_t value) {
        return verdict_of(api, field.path, std::to_string(value), companions(field.path, value));
      };
      int64_t max = max_of(field, limits_);
      // The prompt's tokens are the context's too.
      const bool is_output = field.path.ends_with("_tokens") && field.path.starts_with("m");
      if (api == Api::kChat && is_output) {
        const auto parsed = parse_generation(api, body_with(api, "n", "1", {}), scope());
        ASSERT_TRUE(parsed);
        const auto& params = parsed->prompts.at(0).request.params();
        EXPECT_EQ(taken(max), field.path) << "no room beside the prompt";
        max = limits_.max_seq_len - std::ssize(params.prompt);
      }
      const bool chat_scores = api == Api::kChat && field.path == "max_tokens";
      const int64_t min = chat_scores ? 1 : field.min;
      EXPECT_EQ(taken(min), "");
      EXPECT_EQ(taken(max), "");
      if (field.min > std::numeric_limits<int64_t>::min()) {
        EXPECT_EQ(taken(min - 1), field.path);
      } else {
        EXPECT_EQ(verdict_of(api, field.path, "-9.3e18"), field.path);
      }
      if (max < std::numeric_limits<int64_t>::max()) {
        EXPECT_EQ(taken(max + 1), field.path);
      } else {
        EXPECT_EQ(verdict_of(api, field.path, "9223372036854775808"), field.path);
      }
      EXPECT_EQ(verdict_of(api, field.path, "1.5"), field.path);
      if (field.path != "truncate_prompt_tokens") {
        EXPECT_EQ(verdict_of(api, field.path, fmt::format("{}.0", min + 1),
                             companions(field.path, min + 1)),
                  "")
            << "a whole number spelled as a fraction";
      }
      expect_wrong_types_refused(api, field.path);
    }
  }
}

// The range that an error tells is this server's.
TEST_F(FieldRangesTest, ErrorsTellTheLargestValueThatIsTaken) {
  for (const IntegerField& field : integer_fields()) {
    const int64_t most = max_of(field, limits_);
    for (const Api api : apis_of(field.of)) {
      for (const char* value : {"9000000000000000000", "2147483648", "1e30"}) {
        if (field.max > std::numeric_limits<int32_t>::max() && *value != '1') continue;
        const auto parsed = parse_generation(
            api, body_with(api, field.path, value, companions(field.path, most)), scope());
        ASSERT_FALSE(parsed) << field.path << value;
        EXPECT_EQ(parsed.error().param, field.path);
        EXPECT_TRUE(parsed.error().message.ends_with(fmt::format(" and {}", most)))
            << parsed.error().message;
      }
    }
  }
}

// Whatever a range in an error says is taken, by a prompt of one token.
TEST_F(FieldRangesTest, BoundsThatErrorsTellAreTaken) {
  for (const IntegerField& field : integer_fields()) {
    for (const Api api : apis_of(field.of)) {
      for (const char* value :
           {"-9000000000000000000", "9000000000000000000", "2147483647", "2048", "-3", "0"}) {
        const auto parsed = parse_generation(
            api, body_with(api, field.path, value, companions(field.path, 1)), scope());
        if (parsed) continue;
        const std::string& told = parsed.error().message;
        EXPECT_EQ(parsed.error().param, field.path) << told;
        const size_t at = told.find(" must be between ");
        if (at == std::string::npos) continue;
        std::istringstream numbers(told.substr(at + std::strlen(" must be between ")));
        int64_t least = 0;
        int64_t most = 0;
        std::string word;
        numbers >> least >> word >> most;
        EXPECT_EQ(verdict_of(api, field.path, std::to_string(least), companions(field.path, least)),
                  "")
            << told;
        // Prompts of chats are longer.
        const bool fits = api != Api::kChat || !told.starts_with("m");
        if (fits) {
          EXPECT_EQ(verdict_of(api, field.path, std::to_string(most), companions(field.path, most)),
                    "")
              << told;
        }
      }
    }
  }
  const auto many =
      parse_generation(Api::kCompletions, R"({"prompt":"a","min_tokens":2147483647})", scope());
  ASSERT_FALSE(many);
  EXPECT_EQ(many.error().message,
            fmt::format("min_tokens must be at most max_tokens ({}), got 2147483647",
                        limits_.max_seq_len - 1));
}

TEST_F(FieldRangesTest, EveryRealIsTakenWithinItsRangeAndNowhereElse) {
  for (const RealField& field : real_fields()) {
    for (const Api api : apis_of(field.of)) {
      SCOPED_TRACE(field.path);
      const auto taken = [&](double value) {
        return verdict_of(api, field.path, fmt::format("{}", value));
      };
      const double step = 1e-3;
      EXPECT_EQ(taken(field.min), field.open_min ? shown(field.path) : "");
      EXPECT_EQ(taken(field.min + step), "");
      EXPECT_EQ(taken(field.max), "");
      EXPECT_EQ(taken(field.min - step), shown(field.path));
      EXPECT_EQ(taken(field.max + step), shown(field.path));
      EXPECT_EQ(taken(1e39), shown(field.path));
      expect_wrong_types_refused(api, field.path);
    }
  }
}

TEST_F(FieldRangesTest, SizesAreBounded) {
  const auto list = [](int64_t count, const std::string& item) {
    std::string text = "[";
    for (int64_t i = 0; i < count; ++i) text += (i == 0 ? "" : ",") + item;
    return text + "]";
  };
  const auto ids = [](int64_t count) {
    json::object object;
    for (int64_t i = 0; i < count; ++i) object[std::to_string(i)] = 1;
    return json::serialize(object);
  };
  const auto text = [](int64_t bytes) {
    return '"' + std::string(static_cast<size_t>(bytes), 'x') + '"';
  };
  limits_.vocab_size = 5000;
  for (const SizedField& field : sized_fields()) {
    SCOPED_TRACE(field.path);
    std::string name(field.path.substr(0, field.path.find('[')));
    const auto value = [&](int64_t size) {
      if (field.path == "stop") return list(size, "\"x\"");
      if (field.path == "bad_words") return list(size, "\"ab\"");
      if (field.path == "stop[]" || field.path == "bad_words[]") return "[" + text(size) + "]";
      if (field.path == "stop_token_ids" || field.path == "allowed_token_ids") {
        return list(size, "7");
      }
      return field.path == "logit_bias" ? ids(size) : text(size);
    };
    EXPECT_EQ(verdict_of(Api::kChat, name, value(field.max)), "");
    const std::string param = field.path.ends_with("[]") ? name + "[0]" : name;
    EXPECT_EQ(verdict_of(Api::kChat, name, value(field.max + 1)), param);
  }
}

// Fields that bound one another.
TEST_F(FieldRangesTest, PairsThatContradictAreRefusedByName) {
  struct Pair {
    Api api;
    const char* fields;
    const char* param;  // "": taken
  };
  constexpr Api kC = Api::kCompletions;
  constexpr Api kM = Api::kChat;
  const Pair pairs[] = {
      {kM, R"("top_logprobs":1)", "top_logprobs"},
      {kM, R"("top_logprobs":0)", ""},
      {kM, R"("top_logprobs":1,"logprobs":false)", "top_logprobs"},
      {kM, R"("stream_options":{"include_usage":true})", "stream_options"},
      {kM, R"("stream_options":{"include_usage":true},"stream":true)", ""},
      {kM, R"("stream_options":null)", ""},
      {kM, R"("continue_final_message":true,"add_generation_prompt":true)",
       "continue_final_message"},
      {kM, R"("continue_final_message":true,"add_generation_prompt":false)", ""},
      {kC, R"("min_tokens":5,"max_tokens":4)", "min_tokens"},
      {kC, R"("min_tokens":4,"max_tokens":4)", ""},
      {kC, R"("max_tokens":0)", "max_tokens"},
      {kC, R"("max_tokens":0,"echo":false)", "max_tokens"},
      {kC, R"("max_tokens":0,"echo":true)", ""},
      {kM, R"("max_tokens":0,"echo":true)", "max_tokens"},
      {kC, R"("max_tokens":4,"max_completion_tokens":9999)", "max_completion_tokens"},
      {kC, R"("best_of":2)", "best_of"},
      {kC, R"("best_of":2,"n":2)", ""},
      {kC, R"("n":3,"temperature":0)", ""},
      {kC, R"("echo":true,"stream":true)", ""},
      {kC, R"("echo":true,"stream":true,"logprobs":2)", ""},
      {kC, R"("prompt_logprobs":1,"stream":true)", "prompt_logprobs"},
      {kC, R"("prompt_logprobs":0,"stream":true)", ""},
      {kM, R"("prompt_logprobs":1)", ""},
      {kC, R"("truncate_prompt_tokens":0)", "truncate_prompt_tokens"},
      {kC, R"("truncate_prompt_tokens":4090,"max_tokens":100)", "truncate_prompt_tokens"},
      {kC, R"("truncate_prompt_tokens":-1,"max_tokens":4095)", ""},
      {kC, R"("truncate_prompt_tokens":-1,"max_tokens":4096)", "max_tokens"},
      {kC, R"("truncate_prompt_tokens":1,"max_tokens":4096)", "max_tokens"},
      {kC, R"("truncate_prompt_tokens":1,"max_completion_tokens":2147483647)",
       "max_completion_tokens"},
      {kC, R"("truncate_prompt_tokens":0,"max_tokens":4096)", "truncate_prompt_tokens"},
      {kC, R"("repetition_detection":{"max_pattern_size":4})", "repetition_detection.min_count"},
      {kC, R"("repetition_detection":{"max_pattern_size":4,"min_count":1})",
       "repetition_detection.min_count"},
      {kC, R"("repetition_detection":{"min_pattern_size":4})",
       "repetition_detection.min_pattern_size"},
      {kC, R"("repetition_detection":{})", ""},
      {kC, R"("repetition_detection":[])", "repetition_detection"},
      {kC, R"("allowed_token_ids":[0,319])", ""},
      {kC, R"("allowed_token_ids":[0,320])", "allowed_token_ids[1]"},
      {kC, R"("allowed_token_ids":[])", "allowed_token_ids"},
      {kC, R"("allowed_token_ids":[-1])", "allowed_token_ids[0]"},
      {kC, R"("allowed_token_ids":["7"])", "allowed_token_ids[0]"},
      {kC, R"("allowed_token_ids":{"7":1})", "allowed_token_ids"},
      {kC, R"("bad_words":[])", ""},
      {kC, R"("bad_words":null)", ""},
      {kC, R"("bad_words":["ab","b"])", ""},
      {kC, R"("bad_words":"ab")", "bad_words"},
      {kC, R"("bad_words":["a",""])", "bad_words[1]"},
      {kC, R"("bad_words":["a",7])", "bad_words[1]"},
      {kC, R"("bad_words":["a"," "])", "bad_words[1]"},
      {kC, R"("request_id":"a b")", "request_id"},
      {kC, R"("user":5)", "user"},
      {kC, R"("metadata":"x")", "metadata"},
      {kC, R"("store":"yes")", "store"},
      {kM, R"("documents":["x"])", "documents[0]"},
      {kM, R"("documents":{})", "documents"},
  };
  for (const Pair& pair : pairs) {
    const std::string prompt =
        pair.api == kM ? R"("messages":[{"role":"assistant","content":"a"}])" : R"("prompt":"a")";
    EXPECT_EQ(verdict(pair.api, "{" + prompt + "," + pair.fields + "}"), pair.param) << pair.fields;
  }
}

TEST_F(FieldRangesTest, OpenapiTellsTheSame) {
  const json::value document = parse_json(openapi_document("1", limits_, {}), "openapi").value();
  const json::object& schemas = document.at("components").at("schemas").as_object();
  const auto property = [&](FieldOf of, std::string_view path) -> const json::object& {
    const json::object* properties = nullptr;
    if (of == FieldOf::kBoth) {
      properties = &schemas.at("Generation").at("properties").as_object();
    } else {
      const auto& request =
          schemas.at(of == FieldOf::kChat ? "ChatCompletionRequest" : "CompletionRequest");
      properties = &request.at("allOf").as_array().back().at("properties").as_object();
    }
    const size_t dot = path.find('.');
    const json::object& outer = properties->at(path.substr(0, dot)).as_object();
    if (dot == std::string_view::npos) return outer;
    const std::string_view inner = path.substr(dot + 1);
    if (inner == "*") return outer.at("additionalProperties").as_object();
    return outer.at("properties").at(inner).as_object();
  };
  for (const IntegerField& field : integer_fields()) {
    SCOPED_TRACE(field.path);
    const json::object& schema = property(field.of, field.path);
    EXPECT_EQ(schema.at("minimum").as_int64(), field.min);
    EXPECT_EQ(schema.at("maximum").as_int64(), max_of(field, limits_));
  }
  for (const RealField& field : real_fields()) {
    SCOPED_TRACE(field.path);
    const json::object& schema = property(field.of, field.path);
    EXPECT_EQ(schema.at(field.open_min ? "exclusiveMinimum" : "minimum").as_double(), field.min);
    EXPECT_EQ(schema.at("maximum").as_double(), field.max);
  }
  EXPECT_EQ(property(FieldOf::kBoth, "stop_token_ids").at("maxItems").as_int64(), 128);
  EXPECT_EQ(property(FieldOf::kBoth, "cache_salt").at("maxLength").as_int64(), 256);
}

// Rows of the document's tables: | `field` | where | range | ... |
TEST_F(FieldRangesTest, TheDocumentTellsTheSame) {
  std::ifstream file(RUDDER_SOURCE_DIR "/docs/api.md");
  std::stringstream text;
  text << file.rdbuf();
  const std::string document = text.str();
  const auto expect_row = [&](std::string_view path, FieldOf of, const std::string& range) {
    const std::string_view where = of == FieldOf::kBoth   ? "both"
                                   : of == FieldOf::kChat ? "chat"
                                                          : "completions";
    const std::string row = fmt::format("| `{}` | {} | {} |", path, where, range);
    EXPECT_NE(document.find(row), std::string::npos) << row;
  };
  for (const IntegerField& field : integer_fields()) {
    std::string max = std::to_string(field.max);
    if (field.limit == RangeLimit::kContext) max = "context - 1";
    if (field.limit == RangeLimit::kChoices) max = "128";
    if (field.limit == RangeLimit::kLogprobs) max = "20";
    expect_row(field.path, field.of, fmt::format("{} to {}", field.min, max));
  }
  for (const RealField& field : real_fields()) {
    expect_row(field.path, field.of,
               fmt::format("{}{} to {}", field.open_min ? "above " : "", field.min, field.max));
  }
  for (const SizedField& field : sized_fields()) {
    expect_row(field.path, field.of, fmt::format("at most {}", field.max));
  }
}

}  // namespace
}  // namespace rudder::server
