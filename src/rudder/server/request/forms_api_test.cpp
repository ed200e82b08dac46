// Forms of outputs over the API, beside what they do to the output (tests/e2e).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <utility>

#include "rudder/server/testing/exposition_validator.h"
#include "rudder/server/testing/test_server.h"

namespace rudder::server {
namespace {

TEST(FormsApi, CompiledFormsAreCounted) {
  TestServer test([](const engine::RequestParams&) { return say({"ab"}); });
  for (const char* form : {"[a-c]+", "[a-c]+", "(?=a)"}) {
    test.post("/v1/completions",
              fmt::format(R"({{"prompt":"hi","structured_outputs":{{"regex":"{}"}}}})", form));
  }
  const ExpositionCheck check = check_exposition(test.get("/metrics").body);
  EXPECT_EQ(check.problem, "");
  for (const auto& [name, value] :
       {std::pair("cache_queries_total", 3), std::pair("cache_hits_total", 1),
        std::pair("compile_failures_total", 1), std::pair("compile_timeouts_total", 0),
        std::pair("cache_entries", 2), std::pair("mask_lookups_total", 0),
        std::pair("mask_hits_total", 0), std::pair("mask_bytes", 0)}) {
    const auto sample =
        check.samples.find(fmt::format("rudder:grammar_{}{{model_name=\"tiny\"}}", name));
    ASSERT_NE(sample, check.samples.end()) << name;
    EXPECT_EQ(sample->second, value) << name;
  }
  for (const char* name : {"compile_seconds_total", "cache_bytes"}) {
    EXPECT_GT(check.samples.at(fmt::format("rudder:grammar_{}{{model_name=\"tiny\"}}", name)), 0);
  }
}

TEST(FormsApi, StructuresOfTheOlderFormAreTakenAndRefusedByTheirPaths) {
  TestServer test([](const engine::RequestParams&) { return say({"ab"}); });
  for (const auto& [field, path] : {std::pair(R"("structured_outputs":{{"structural_tag":{}}})",
                                              "structured_outputs.structural_tag"),
                                    std::pair(R"("response_format":{})", "response_format")}) {
    const auto post = [&](const char* begin) {
      const std::string tag = fmt::format(
          R"({{"type":"structural_tag","structures":[{{"begin":{},"schema":{{"type":"integer"}},)"
          R"("end":"</f>"}}],"triggers":["<f"]}})",
          begin);
      return test.post("/v1/completions", fmt::format(R"({{"prompt":"hi",{}}})",
                                                      fmt::format(fmt::runtime(field), tag)));
    };
    EXPECT_EQ(post(R"("<f>")").status, 200) << path;
    const auto refused = post(R"("<g>")");
    EXPECT_EQ(refused.status, 400);
    EXPECT_NE(refused.body.find(fmt::format(R"("param":"{}.structures[0].begin")", path)),
              std::string::npos)
        << refused.body;
  }
  const auto newer = test.post(
      "/v1/completions", R"({"prompt":"hi","response_format":{"type":"structural_tag","format":)"
                         R"({"type":"regex","pattern":"("}}})");
  EXPECT_NE(newer.body.find(R"("param":"response_format.format.pattern")"), std::string::npos)
      << newer.body;
}

// As doubles the two numbers are one, and the value would be allowed.
TEST(FormsApi, NumbersOfSchemasLoseNoDigitOnTheirWay) {
  TestServer test([](const engine::RequestParams&) { return say({"ab"}); });
  const auto schema = [](std::string_view least) {
    return fmt::format(R"({{"const":100000000000000000000001,"minimum":{}}})", least);
  };
  constexpr std::string_view kLess = "100000000000000000000001.0";
  constexpr std::string_view kMore = "100000000000000000000001.0000000000000000001";
  for (const auto& [path, body] :
       {std::pair("/v1/completions", R"("prompt":"a","structured_outputs":{{"json":{}}})"),
        std::pair("/v1/completions", R"("prompt":"a","json_schema":{})"),
        std::pair("/v1/completions",
                  R"("prompt":"a","response_format":{{"type":"json_schema","json_schema":)"
                  R"({{"name":"n","schema":{}}}}})")}) {
    const auto status = [&](std::string_view least) {
      return test.post(path, "{" + fmt::format(fmt::runtime(body), schema(least)) + "}").status;
    };
    EXPECT_EQ(status(kLess), 200) << body;
    EXPECT_EQ(status(kMore), 400) << body;
  }
  const ClientResponse beyond =
      test.post("/v1/completions",
                R"({"prompt":"a","structured_outputs":{"json":{"items":{"minimum":1e9999999}}}})");
  EXPECT_EQ(beyond.status, 400);
  EXPECT_NE(beyond.body.find(R"("param":"structured_outputs.json.items.minimum")"),
            std::string::npos)
      << beyond.body;
}

TEST(FormsApi, ALarkGrammarIsToldAsSuch) {
  TestServer test([](const engine::RequestParams&) { return say({"ab"}); });
  const ClientResponse lark =
      test.post("/v1/completions", R"({"prompt":"a","grammar":"start: \"a\" | \"b\"\n"})");
  EXPECT_EQ(lark.status, 400);
  EXPECT_NE(lark.body.find("is a Lark grammar"), std::string::npos) << lark.body;
  EXPECT_EQ(test.post("/v1/completions",
                      R"({"prompt":"a","grammar":"root ::= \"[\" ws \"]\"\nws ::= | \" \" ws\n"})")
                .status,
            200);
}

}  // namespace
}  // namespace rudder::server
