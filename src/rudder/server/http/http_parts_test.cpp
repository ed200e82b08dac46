// The small parts of the HTTP side: keys, ids, routes, errors, text.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>

#include "rudder/base/clock.h"
#include "rudder/server/http/api_error.h"
#include "rudder/server/http/auth.h"
#include "rudder/server/http/http_counters.h"
#include "rudder/server/http/http_writer.h"
#include "rudder/server/http/request_id.h"
#include "rudder/server/http/route_table.h"

namespace rudder::server {
namespace {

TEST(ApiKeys, OnlyTheWholeKeyOpens) {
  const ApiKeys keys({"alpha", "beta-key"});
  EXPECT_EQ(keys.tenant_of("Bearer alpha"), 0);
  EXPECT_EQ(keys.tenant_of("bearer  beta-key"), 1);
  for (const char* bad : {"", "Bearer", "Bearer ", "alpha", "Basic alpha", "Bearer alph",
                          "Bearer alphaa", "Bearer alpha ", "Bearer alphaalpha", "Bearer ALPHA"}) {
    EXPECT_EQ(keys.tenant_of(bad), std::nullopt) << bad;
  }
  for (const char* none : {"", "Bearer", "bearer ", "Bearer  "}) {
    EXPECT_EQ(keys.tenant_of(none, "beta-key"), 1) << none;
    EXPECT_EQ(keys.tenant_of(none, "beta"), std::nullopt) << none;
    EXPECT_EQ(ApiKeys({}).tenant_of(none), 0) << none;
  }
  EXPECT_EQ(keys.tenant_of("Bearer x", "beta-key"), std::nullopt)
      << "one key, not the better of two";
  EXPECT_EQ(keys.tenant_of("Bearerbeta-key"), std::nullopt);
  EXPECT_NE(keys.cache_salt(0, "x"), keys.cache_salt(1, "x"));
}

// A comparison that ends at the first byte that differs would take a hundred thousandth of the
// time.
TEST(ApiKeys, AreComparedWholeWhereverTheyDiffer) {
  const std::string secret(1 << 20, 'k');
  const auto fastest_us = [&](const std::string& presented) {
    int64_t fastest = INT64_MAX;
    for (int i = 0; i < 20; ++i) {
      const int64_t begin = SteadyClock().now_us();
      EXPECT_FALSE(constant_time_equal(presented, secret));
      fastest = std::min(fastest, SteadyClock().now_us() - begin);
    }
    return fastest;
  };
  std::string first = secret;
  std::string last = secret;
  first.front() = 'x';
  last.back() = 'x';
  const int64_t at_end = fastest_us(last);
  EXPECT_GT(at_end, 50);
  EXPECT_GT(fastest_us(first), at_end / 4) << "the first byte differs, of " << at_end << " us";
  EXPECT_GT(fastest_us(first.substr(1)), at_end / 4) << "it is shorter";
}

TEST(RequestId, FitIdsAreKept) {
  EXPECT_EQ(make_request_id("trace-1:a/b"), "trace-1:a/b");
  EXPECT_EQ(make_request_id(std::string(128, 'x')).size(), 128u);
  std::set<std::string> made;
  for (const std::string& bad :
       {std::string(), std::string(129, 'x'), std::string("a b"), std::string("a\"b"),
        std::string("\x7f"), std::string("\xc3\xa9")}) {
    const std::string id = make_request_id(bad);
    EXPECT_EQ(id.size(), 32u) << bad;
    EXPECT_TRUE(made.insert(id).second);
  }
}

TEST(RouteTable, PathsMatchExactly) {
  EXPECT_NE(match_route("GET", "/health").route, nullptr);
  EXPECT_NE(match_route("HEAD", "/health").route, nullptr);
  EXPECT_NE(match_route("GET", "/").route, nullptr);
  EXPECT_EQ(match_route("GET", "/v1/models/org%2Ftiny").tail, "org/tiny");
  EXPECT_EQ(match_route("GET", "/v1/models/org/tiny").tail, "org/tiny");
  EXPECT_EQ(match_route("POST", "/health").route, nullptr);
  EXPECT_EQ(match_route("POST", "/health").allow, "GET, HEAD, OPTIONS");
  EXPECT_EQ(match_route("get", "/health").route, nullptr);
  for (const char* bad : {"", "/Health", "/health/", "//health", "/./health", "/%68ealth",
                          "/health;x", "/v1/models/", "/v1/models/%", "/v1/models/%zz", "*"}) {
    EXPECT_TRUE(match_route("GET", bad).allow.empty()) << bad;
  }
}

TEST(RouteTable, AllowNamesEachMethodOnce) {
  const std::pair<const char*, const char*> cases[] = {
      {"/ping", "GET, HEAD, POST, OPTIONS"},
      {"/v1/steering/modules", "GET, HEAD, POST, OPTIONS"},
      {"/v1/responses/a", "GET, HEAD, DELETE, OPTIONS"},
      {"/v1/responses/a/cancel", "POST, OPTIONS"},
      {"/v1/steering/modules/register", "POST, DELETE, OPTIONS"},
      {"/v1/completions", "POST, OPTIONS"}};
  for (const auto& [path, allow] : cases) EXPECT_EQ(match_route("PUT", path).allow, allow) << path;
  EXPECT_EQ(match_route("GET", "/v1/responses/a/cancel").route, nullptr);
}

TEST(RouteTable, OtherServersNamesAreTheSameRoutes) {
  EXPECT_EQ(match_route("POST", "/chat/completions").route,
            match_route("POST", "/v1/chat/completions").route);
  EXPECT_EQ(match_route("GET", "/v1/health").route, match_route("GET", "/health").route);
  const Route* reset = match_route("POST", "/flush_cache").route;
  ASSERT_NE(reset, nullptr);
  EXPECT_EQ(reset->access, Access::kAdmin) << "guarded as under its own name";
  EXPECT_TRUE(match_route("POST", "/chat/completions/").allow.empty());
}

TEST(ApiError, OurOwnFaultsTellNothing) {
  for (const ErrorCode code : {ErrorCode::kInternal, ErrorCode::kIo, ErrorCode::kCorruptFile,
                               ErrorCode::kNumerical, ErrorCode::kCancelled}) {
    const std::string body =
        error_body(to_api_error({code, "/secret/path 0x7ffdeadbeef", "where"}));
    EXPECT_EQ(body.find("secret"), std::string::npos) << body;
    EXPECT_EQ(body.find("where"), std::string::npos) << body;
  }
  const HttpResponse full = error_response(Error{ErrorCode::kOverloaded, "full", ""});
  EXPECT_EQ(full.status, 503);
  EXPECT_EQ(full.fields.at(0).name, "retry-after");
  EXPECT_EQ(
      full.body,
      R"({"error":{"message":"full","type":"server_error","param":null,"code":"overloaded"}})");
}

TEST(HttpWriter, HeadsAndChunks) {
  std::string out;
  HttpResponse response;
  response.body = "{}";
  response.fields.push_back({"x-a", "b"});
  append_response_head(out, response, BodyFraming::kLength, true);
  EXPECT_EQ(out,
            "HTTP/1.1 200 OK\r\nserver: rudder\r\nx-content-type-options: nosniff\r\ncontent-type: "
            "application/json\r\nx-a: b\r\n"
            "content-length: 2\r\nconnection: keep-alive\r\n\r\n");
  out.clear();
  append_chunk_head(out, 255);
  EXPECT_EQ(out, "ff\r\n");
}

TEST(HttpCounters, DurationsFallIntoTheirBuckets) {
  HttpCounters counters;
  const Route& route = routes()[1];
  for (const int64_t us : {-5, 0, 99'999, 100'000, 100'001, 500'000, 1'000'000, 1'000'001}) {
    counters.count_duration(&route, us);
  }
  counters.count_duration(nullptr, 7);
  const HttpCounters::Durations& of_route = counters.durations[1];
  EXPECT_EQ(of_route.counts[0], 4U) << "a bound is in its bucket";
  EXPECT_EQ(of_route.counts[1], 2U);
  EXPECT_EQ(of_route.counts[2], 1U);
  EXPECT_EQ(of_route.counts[3], 1U);
  EXPECT_EQ(of_route.sum_us, 2'800'001U);
  EXPECT_EQ(counters.durations[kMaxRoutes].sum_us, 7U);
}

}  // namespace
}  // namespace rudder::server
