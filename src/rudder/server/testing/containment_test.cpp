// An exception in the middle of a request is an answer to that request, and the server goes on.
#include <gtest/gtest.h>

#include <stdexcept>

#include "rudder/base/log.h"
#include "rudder/server/testing/test_server.h"

namespace rudder::server {
namespace {

TEST(ServerContainment, AnEngineThatThrowsAtASubmissionIsAnInternalError) {
  TestServer test([](const engine::RequestParams& params) -> Script {
    if (params.prompt.front() == '!') throw std::runtime_error("a secret of ours");
    return say({"fine"});
  });
  set_log_level(LogLevel::kOff);
  for (const char* body : {R"({"prompt":"!"})", R"({"prompt":"!","stream":true})"}) {
    const ClientResponse answer = test.post(kCompletionsPath, body);
    EXPECT_EQ(answer.status, 500) << answer.body;
    EXPECT_NE(answer.body.find("internal"), std::string::npos) << answer.body;
    EXPECT_EQ(answer.body.find("secret"), std::string::npos) << answer.body;
  }
  // The first of its prompts runs when the second throws.
  EXPECT_EQ(test.post(kCompletionsPath, R"({"prompt":["a","!"]})").status, 500);
  EXPECT_EQ(test.post(kCompletionsPath, R"({"prompt":"a"})").status, 200);
  set_log_level(LogLevel::kInfo);
}

}  // namespace
}  // namespace rudder::server
