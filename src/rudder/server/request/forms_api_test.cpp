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

}  // namespace
}  // namespace rudder::server
