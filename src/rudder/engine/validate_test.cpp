#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "rudder/engine/request.h"

namespace rudder::engine {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
const float kNan = std::nanf("");

RequestLimits limits() {
  RequestLimits limits;
  limits.max_seq_len = 100;
  limits.vocab_size = 1000;
  limits.max_queued_tokens = 500;
  limits.eos_ids = {2, 3};
  return limits;
}

RequestParams params() {
  RequestParams params;
  params.prompt = {5, 6, 7};
  return params;
}

using Edit = std::function<void(RequestParams&)>;
struct Case {
  std::string name;  // the edit, for messages
  Edit edit;
  std::string where;  // the field the error must name; empty: accepted
};

Case number(const char* field, float step::SamplingParams::*member, float value, bool ok) {
  return {std::string(field) + "=" + std::to_string(value),
          [=](RequestParams& d) { d.sampling.*member = value; }, ok ? "" : field};
}

Case integer(const char* field, int32_t step::SamplingParams::*member, int32_t value, bool ok) {
  return {std::string(field) + "=" + std::to_string(value),
          [=](RequestParams& d) { d.sampling.*member = value; }, ok ? "" : field};
}

std::vector<Case> float_cases() {
  using S = step::SamplingParams;
  struct Row {
    const char* name;
    float S::*member;
    std::vector<float> good, bad;
  };
  const float tiny = std::numeric_limits<float>::denorm_min();
  const Row rows[] = {
      {"temperature", &S::temperature, {0, tiny, 1, 100}, {-tiny, -1, 100.1f}},
      {"top_p", &S::top_p, {tiny, 0.5f, 1}, {0, -0.1f, 1.001f}},
      {"min_p", &S::min_p, {0, 0.5f, 1}, {-tiny, 1.001f}},
      {"repetition_penalty", &S::repetition_penalty, {tiny, 1, 2, 100}, {0, -1, 100.1f}},
      {"presence_penalty", &S::presence_penalty, {-2, 0, 2}, {-2.001f, 2.001f}},
      {"frequency_penalty", &S::frequency_penalty, {-2, 0, 2}, {-2.001f, 2.001f}},
  };
  std::vector<Case> cases;
  for (const Row& row : rows) {
    for (const float v : row.good) cases.push_back(number(row.name, row.member, v, true));
    for (const float v : row.bad) cases.push_back(number(row.name, row.member, v, false));
    for (const float v : {kInf, -kInf, kNan, 3.4e38f}) {
      cases.push_back(number(row.name, row.member, v, false));
    }
  }
  return cases;
}

std::vector<Case> integer_cases() {
  using S = step::SamplingParams;
  constexpr int32_t kMin = INT32_MIN, kMax = INT32_MAX;
  std::vector<Case> cases;
  for (const int32_t v : {0, 1, 1000, kMax}) cases.push_back(integer("top_k", &S::top_k, v, true));
  for (const int32_t v : {-1, kMin}) cases.push_back(integer("top_k", &S::top_k, v, false));
  for (const int32_t v : {0, 1, 97}) {
    cases.push_back(integer("min_tokens", &S::min_tokens, v, true));
  }
  for (const int32_t v : {-1, kMin, 98, 101, kMax}) {
    cases.push_back(integer("min_tokens", &S::min_tokens, v, false));
  }
  for (const int32_t v : {-1, 0, 20}) {
    cases.push_back(integer("logprobs", &S::num_logprobs, v, true));
  }
  for (const int32_t v : {-2, 21, kMin, kMax}) {
    cases.push_back(integer("logprobs", &S::num_logprobs, v, false));
  }
  for (const int32_t v : {1, 128}) {
    cases.push_back({"n", [=](RequestParams& d) { d.n = v; }, ""});
  }
  for (const int32_t v : {0, -1, 129, kMin, kMax}) {
    cases.push_back({"n", [=](RequestParams& d) { d.n = v; }, "n"});
  }
  for (const int32_t v : {1, 97}) {
    cases.push_back({"max_tokens", [=](RequestParams& d) { d.max_tokens = v; }, ""});
  }
  for (const int32_t v : {0, -1, 98, kMin, kMax}) {
    cases.push_back({"max_tokens", [=](RequestParams& d) { d.max_tokens = v; }, "max_tokens"});
  }
  for (const int32_t v : {0, kMin, kMax}) {
    cases.push_back({"priority", [=](RequestParams& d) { d.priority = v; }, ""});
  }
  for (const float v : {0.0F, 0.001F, 3600.0F}) {
    cases.push_back({"timeout", [=](RequestParams& d) { d.timeout = v; }, ""});
  }
  for (const float v : {-0.001F, 3601.0F, std::numeric_limits<float>::infinity(),
                        std::numeric_limits<float>::quiet_NaN()}) {
    cases.push_back({"timeout", [=](RequestParams& d) { d.timeout = v; }, "timeout"});
  }
  return cases;
}

std::vector<Case> list_cases() {
  const auto prompt = [](std::vector<int32_t> ids) {
    return [ids](RequestParams& d) { d.prompt = ids; };
  };
  const auto stop = [](std::vector<std::string> strings) {
    return [strings](RequestParams& d) { d.stop = strings; };
  };
  const auto stop_ids = [](std::vector<int32_t> ids) {
    return [ids](RequestParams& d) { d.sampling.stop_ids = ids; };
  };
  const auto bias = [](std::vector<std::pair<int32_t, float>> pairs) {
    return [pairs](RequestParams& d) { d.sampling.logit_bias = pairs; };
  };
  std::vector<std::pair<int32_t, float>> biases;
  for (int32_t i = 0; i < 1025; ++i) biases.emplace_back(i % 1000, 0.0f);
  return {
      {"no prompt", prompt({}), "prompt"},
      {"prompt of 1", prompt({0}), ""},
      {"prompt of 99", prompt(std::vector<int32_t>(99, 1)), ""},
      {"prompt of 100", prompt(std::vector<int32_t>(100, 1)), "prompt"},
      {"last id", prompt({1, 999}), ""},
      {"id past the vocabulary", prompt({1, 1000}), "prompt[1]"},
      {"negative id", prompt({-1}), "prompt[0]"},
      {"16 stops", stop(std::vector<std::string>(16, "x")), ""},
      {"17 stops", stop(std::vector<std::string>(17, "x")), "stop"},
      {"empty stop", stop({"a", "b", ""}), "stop[2]"},
      {"long stop", stop({std::string(1024, 'x')}), ""},
      {"too long stop", stop({"a", std::string(1025, 'x')}), "stop[1]"},
      {"cut UTF-8", stop({"\xC3"}), "stop[0]"},
      {"overlong UTF-8", stop({"\xC0\xAF"}), "stop[0]"},
      {"surrogate", stop({"\xED\xA0\x80"}), "stop[0]"},
      {"UTF-8", stop({"\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80"}), ""},
      {"stop ids", stop_ids(std::vector<int32_t>(128, 1)), ""},
      {"too many stop ids", stop_ids(std::vector<int32_t>(129, 1)), "stop_token_ids"},
      {"stop id range", stop_ids({0, 999, 1000}), "stop_token_ids[2]"},
      {"stop id negative", stop_ids({-1}), "stop_token_ids[0]"},
      {"bias bounds", bias({{0, -100.0f}, {999, 100.0f}}), ""},
      {"bias high", bias({{7, 100.1f}}), "logit_bias.7"},
      {"bias low", bias({{7, -100.1f}}), "logit_bias.7"},
      {"bias nan", bias({{7, kNan}}), "logit_bias.7"},
      {"bias inf", bias({{7, -kInf}}), "logit_bias.7"},
      {"bias id", bias({{1000, 0.0f}}), "logit_bias.1000"},
      {"bias negative id", bias({{-1, 0.0f}}), "logit_bias.-1"},
      {"bias twice", bias({{7, 1.0f}, {8, 1.0f}, {7, 2.0f}}), "logit_bias.7"},
      {"bias many", bias(biases), "logit_bias"},
      {"salt", [](RequestParams& d) { d.cache_salt.assign(512, 's'); }, ""},
      {"salt long", [](RequestParams& d) { d.cache_salt.assign(513, 's'); }, "cache_salt"},
      {"id", [](RequestParams& d) { d.client_id.assign(512, 's'); }, ""},
      {"id long", [](RequestParams& d) { d.client_id.assign(513, 's'); }, "request_id"},
  };
}

void expect_verdict(const Case& c) {
  RequestParams d = params();
  c.edit(d);
  const auto request = validate_request(d, limits());
  if (c.where.empty()) {
    EXPECT_TRUE(request) << c.name << ": " << request.error().to_string();
  } else {
    ASSERT_FALSE(request) << c.name;
    EXPECT_EQ(request.error().where, c.where) << c.name;
    EXPECT_EQ(request.error().code, ErrorCode::kInvalidArgument) << c.name;
    EXPECT_FALSE(request.error().message.empty()) << c.name;
  }
}

TEST(ValidateRequest, EachFieldAtItsBounds) {
  for (const auto& cases : {float_cases(), integer_cases(), list_cases()}) {
    for (const Case& c : cases) expect_verdict(c);
  }
}

// A bad field is found whatever came before it, and two good ones make a good request.
TEST(ValidateRequest, EveryPairOfEdits) {
  std::vector<Case> all = float_cases();
  for (auto more : {integer_cases(), list_cases()}) all.insert(all.end(), more.begin(), more.end());
  // Edits of lengths act on one another; their pairs have a test of their own.
  const auto is_length = [](const Case& c) {
    return c.name.starts_with("min_tokens") || c.name.starts_with("max_tokens") ||
           c.name.starts_with("prompt of") || c.name == "n";
  };
  size_t pairs = 0;
  for (const Case& a : all) {
    for (const Case& b : all) {
      if (is_length(a) || is_length(b)) continue;
      RequestParams d = params();
      a.edit(d);
      b.edit(d);  // of the same field: replaces a
      const bool ok = validate_request(d, limits()).has_value();
      if (!b.where.empty()) {
        EXPECT_FALSE(ok) << a.name << " then " << b.name;
      } else if (a.where.empty()) {
        EXPECT_TRUE(ok) << a.name << " then " << b.name;
      }
      ++pairs;
    }
  }
  EXPECT_GT(pairs, 5000u);
}

TEST(ValidateRequest, LengthsBoundOneAnother) {
  for (int32_t prompt = 1; prompt <= 101; ++prompt) {
    for (const int32_t max_tokens : {1, 2, 50, 98, 99, 100}) {
      for (const int32_t min_tokens : {0, 1, 2, 50, 99}) {
        RequestParams d = params();
        d.prompt.assign(static_cast<size_t>(prompt), 1);
        d.max_tokens = max_tokens;
        d.sampling.min_tokens = min_tokens;
        const auto request = validate_request(d, limits());
        const bool fits = prompt + max_tokens <= 100;
        ASSERT_EQ(request.has_value(), fits && min_tokens <= max_tokens);
        if (request) {
          EXPECT_EQ(request->max_len(), prompt + max_tokens);
        } else {
          EXPECT_EQ(request.error().where, prompt >= 100 ? "prompt"
                                           : !fits       ? "max_tokens"
                                                         : "min_tokens");
        }
      }
    }
  }
}

TEST(ValidateRequest, MaxTokensDefaultsToTheRestOfTheContext) {
  EXPECT_EQ(validate_request(params(), limits())->max_len(), 100);
}

TEST(ValidateRequest, ChoicesTimesPromptMustFitTheQueue) {
  RequestParams d = params();
  d.prompt.assign(50, 1);
  d.n = 10;
  ASSERT_TRUE(validate_request(d, limits()));
  d.n = 11;
  EXPECT_EQ(validate_request(d, limits()).error().where, "n");
}

TEST(ValidateRequest, WhereFreshStartsComeNoSequenceIsControlled) {
  RequestLimits steering = limits();
  steering.taps.num_rows = 4;
  RequestParams d = params();
  d.taps = {.segments = {{0, {1, 1}}}, .is_controlled = true, .captured = {}};
  ASSERT_TRUE(validate_request(d, steering));
  steering.takes_controls = false;
  EXPECT_EQ(validate_request(d, steering).error().where, "steering");
  d.taps.is_controlled = false;
  EXPECT_TRUE(validate_request(d, steering));
}

TEST(ValidateRequest, MinTokensNeedsATokenThatIsNotBanned) {
  RequestLimits small = limits();
  small.vocab_size = 4;
  RequestParams d;
  d.prompt = {0};
  d.sampling.stop_ids = {0, 1};  // with eos 2 and 3: the whole vocabulary
  ASSERT_TRUE(validate_request(d, small));
  d.sampling.min_tokens = 1;
  EXPECT_EQ(validate_request(d, small).error().where, "stop_token_ids");
  d.ignore_eos = true;
  EXPECT_TRUE(validate_request(d, small));
}

TEST(ValidateRequest, GreedyHasOneSpelling) {
  RequestParams d = params();
  d.sampling.temperature = 1e-6f;
  d.sampling.top_k = 5;
  d.sampling.top_p = 0.3f;
  d.sampling.min_p = 0.2f;
  d.n = 4;  // allowed: four equal choices
  const auto request = validate_request(d, limits());
  ASSERT_TRUE(request);
  const step::SamplingParams& sampling = request->params().sampling;
  EXPECT_EQ(sampling.temperature, 0);
  EXPECT_EQ(sampling.top_k, 0);
  EXPECT_EQ(sampling.top_p, 1);
  EXPECT_EQ(sampling.min_p, 0);
}

TEST(ValidateRequest, ATinyTemperatureIsRaised) {
  RequestParams d = params();
  d.sampling.temperature = 0.001f;
  EXPECT_EQ(validate_request(d, limits())->params().sampling.temperature, 0.01f);
}

TEST(ValidateRequest, EosIsAddedUnlessIgnored) {
  RequestParams d = params();
  d.sampling.stop_ids = {9, 3, 9};
  EXPECT_EQ(validate_request(d, limits())->params().sampling.stop_ids,
            (std::vector<int32_t>{2, 3, 9}));
  d.ignore_eos = true;
  EXPECT_EQ(validate_request(d, limits())->params().sampling.stop_ids,
            (std::vector<int32_t>{3, 9}));
}

TEST(ValidateRequest, ConstraintsNameTokensThatThereAre) {
  const int32_t vocab = limits().vocab_size;
  const auto refused_at = [](const constraint::ConstraintSpec& spec) {
    RequestParams d = params();
    d.constraints = {spec};
    const auto request = validate_request(d, limits());
    return request ? std::string("nowhere") : request.error().where;
  };
  using constraint::AllowedTokens, constraint::ForbiddenWords, constraint::ThinkingLimit;
  EXPECT_EQ(refused_at(AllowedTokens{{0, vocab - 1}}), "nowhere");
  EXPECT_EQ(refused_at(AllowedTokens{{0, vocab}}), "allowed_token_ids[1]");
  EXPECT_EQ(refused_at(AllowedTokens{}), "allowed_token_ids");
  EXPECT_EQ(refused_at(ForbiddenWords{{{1}, {2, -1}}}), "bad_words[1][1]");
  EXPECT_EQ(refused_at(ForbiddenWords{{{1}, {}}}), "bad_words[1]");
  EXPECT_EQ(refused_at(ThinkingLimit{{1}, {2}, 0, false}), "nowhere");
  EXPECT_EQ(refused_at(ThinkingLimit{{1}, {2}, -1, false}), "thinking_token_budget");
  EXPECT_EQ(refused_at(ThinkingLimit{{1}, {}, 3, false}), "thinking_token_budget.end");
}

TEST(ValidateRequest, CostCountsEveryChoice) {
  RequestParams d = params();
  d.n = 5;
  d.max_tokens = 7;
  const auto request = validate_request(d, limits());
  EXPECT_EQ(request->cost_tokens(), 5 * 10);
  EXPECT_EQ(request->prompt_tokens(), 5 * 3);
}

}  // namespace
}  // namespace rudder::engine
