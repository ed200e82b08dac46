// The HTTP reader against well-formed requests and against the forms by which two readers can be
// made to disagree. Each case is fed whole, byte by byte, and in odd pieces.
#include "rudder/server/http/http_parser.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <tuple>
#include <vector>

namespace rudder::server {
namespace {

struct Outcome {
  int status = 0;  // 0: not complete; 200: a request
  HttpRequest request;
  size_t left_over = 0;
};

Outcome read(std::string_view bytes, size_t piece, const HttpLimits& limits = {}) {
  HttpParser parser(limits);
  Outcome outcome;
  std::string input;
  for (size_t at = 0; at < bytes.size(); at += piece) {
    input += bytes.substr(at, piece);
    while (parser.stage() != HttpParser::Stage::kDone) {
      const auto used = parser.feed(input);
      if (!used) {
        outcome.status = used.error().status;
        return outcome;
      }
      input.erase(0, *used);
      if (*used == 0) break;
    }
  }
  if (parser.stage() == HttpParser::Stage::kDone) {
    outcome.status = 200;
    outcome.request = parser.request();
    outcome.left_over = input.size();
  }
  return outcome;
}

struct Case {
  const char* name;
  std::string bytes;
  int status;
  std::string body = "";
};

std::string with(std::string_view fields, std::string_view body = "") {
  return fmt::format("POST /v1/completions HTTP/1.1\r\nHost: a\r\n{}\r\n{}", fields, body);
}

std::vector<Case> cases() {
  const std::string chunked = "Transfer-Encoding: chunked\r\n";
  return {
      // What must be understood.
      {"get", "GET /health HTTP/1.1\r\nHost: a\r\n\r\n", 200},
      {"http 1.0 without host", "GET /health HTTP/1.0\r\n\r\n", 200},
      {"empty lines before", "\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", 200},
      {"length", with("Content-Length: 3\r\n", "abc"), 200, "abc"},
      {"length zero", with("Content-Length: 0\r\n"), 200},
      {"length of leading zeros", with("Content-Length: 0003\r\n", "abc"), 200, "abc"},
      {"chunked", with(chunked, "3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"), 200, "abcde"},
      {"chunked, upper case", with("TRANSFER-ENCODING: Chunked\r\n", "1\r\nA\r\n0\r\n\r\n"), 200,
       "A"},
      {"chunk size in hex", with(chunked, "A\r\n0123456789\r\n0\r\n\r\n"), 200, "0123456789"},
      {"chunk extension", with(chunked, "1;x=y\r\nA\r\n0\r\n\r\n"), 200, "A"},
      {"quoted chunk extension", with(chunked, "1;x=\"y\\\"\"\r\nA\r\n0\r\n\r\n"), 200, "A"},
      {"chunk extension that is not closed", with(chunked, "1;x=\"y\r\nA\r\n"), 400},
      {"trailer", with(chunked, "1\r\nA\r\n0\r\nX-T: 1\r\n\r\n"), 200, "A"},
      {"empty chunked", with(chunked, "0\r\n\r\n"), 200},
      {"absolute form", "GET http://evil/health HTTP/1.1\r\nHost: a\r\n\r\n", 200},
      {"asterisk", "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", 200},
      {"value with tabs", with("X: \ta\tb \r\n"), 200},
      {"empty value", with("X:\r\n"), 200},
      // What may be there once.
      {"two keys", with("Authorization: Bearer a\r\nAuthorization: Bearer b\r\n"), 400},
      {"two types", with("Content-Type: application/json\r\nContent-Type: text/plain\r\n"), 400},
      {"two other fields", with("X: a\r\nX: b\r\n"), 200},
      {"a fragment", "GET /v1/models#a HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"a fragment behind a query", "GET /v1/models?a#b HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      // Two lengths.
      {"length and chunked", with("Content-Length: 3\r\n" + chunked, "0\r\n\r\n"), 400},
      {"chunked and length", with(chunked + "Content-Length: 3\r\n", "0\r\n\r\n"), 400},
      {"two lengths", with("Content-Length: 3\r\nContent-Length: 4\r\n", "abcd"), 400},
      {"two equal lengths", with("Content-Length: 3\r\nContent-Length: 3\r\n", "abc"), 400},
      {"list of lengths", with("Content-Length: 3, 3\r\n", "abc"), 400},
      {"folded trailer", with(chunked, "1\r\nA\r\n0\r\nX-T: 1\r\n 2\r\n\r\n"), 400},
      {"trailer folded by a tab", with(chunked, "0\r\nX-T: 1\r\n\t2\r\nX-U: 3\r\n\r\n"), 400},
      {"trailer folded before its value", with(chunked, "0\r\nX-T:\r\n 1\r\n\r\n"), 400},
      {"trailer folded to nothing", with(chunked, "0\r\nX-T:\r\n \r\n\r\n"), 400},
      {"second trailer folded", with(chunked, "0\r\nX-T: 1\r\nX-U: 2\r\n  3\r\n\r\n"), 400},
      {"trailer with length", with(chunked, "0\r\nContent-Length: 5\r\n\r\n"), 400},
      {"trailer with coding", with(chunked, "0\r\nTransfer-Encoding: chunked\r\n\r\n"), 400},
      // Numbers.
      {"negative length", with("Content-Length: -1\r\n"), 400},
      {"signed length", with("Content-Length: +3\r\n", "abc"), 400},
      {"hexadecimal length", with("Content-Length: 0x3\r\n", "abc"), 400},
      {"empty length", with("Content-Length: \r\n"), 400},
      {"length with a fraction", with("Content-Length: 3.0\r\n", "abc"), 400},
      {"length beyond 64 bits", with("Content-Length: 18446744073709551616\r\n"), 400},
      {"length too large", with("Content-Length: 99999999999\r\n"), 413},
      {"negative chunk", with(chunked, "-1\r\n\r\n0\r\n\r\n"), 400},
      {"signed chunk", with(chunked, "+1\r\nA\r\n0\r\n\r\n"), 400},
      {"prefixed chunk", with(chunked, "0x1\r\nA\r\n0\r\n\r\n"), 400},
      {"chunk beyond 64 bits", with(chunked, "10000000000000001\r\nA\r\n0\r\n\r\n"), 400},
      {"chunk too large", with(chunked, "FFFFFFFF\r\n"), 413},
      {"chunk that is no number", with(chunked, "xyz\r\n"), 400},
      {"chunk without size", with(chunked, "\r\n\r\n"), 400},
      {"chunk with a space before", with(chunked, " 1\r\nA\r\n0\r\n\r\n"), 400},
      // Transfer codings.
      {"gzip", with("Transfer-Encoding: gzip\r\n"), 501},
      {"gzip, chunked", with("Transfer-Encoding: gzip, chunked\r\n", "0\r\n\r\n"), 501},
      {"chunked twice", with("Transfer-Encoding: chunked, chunked\r\n", "0\r\n\r\n"), 501},
      {"chunked in two fields", with(chunked + chunked, "0\r\n\r\n"), 400},
      {"identity", with("Transfer-Encoding: identity\r\n"), 501},
      {"quoted chunked", with("Transfer-Encoding: \"chunked\"\r\n"), 501},
      {"xchunked", with("Transfer-Encoding: xchunked\r\n"), 501},
      {"chunked in 1.0", "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
      // Lines.
      {"bare line feed in the header", "GET / HTTP/1.1\nHost: a\n\n", 400},
      {"bare line feed at the end", "GET / HTTP/1.1\r\nHost: a\r\n\n", 400},
      {"bare carriage return", "GET / HTTP/1.1\r\nHost: a\rX: b\r\n\r\n", 400},
      {"folded field", with("X: a\r\n b\r\n"), 400},
      {"folded field with tab", with("X: a\r\n\tb\r\n"), 400},
      {"folded length", with("Content-Length:\r\n 3\r\n", "abc"), 400},
      {"chunk ended by a line feed", with(chunked, "1\nA\r\n0\r\n\r\n"), 400},
      {"chunk data too long", with(chunked, "1\r\nAB\r\n0\r\n\r\n"), 400},
      // Names and values.
      {"space before the colon", with("Content-Length : 3\r\n", "abc"), 400},
      {"space in a name", with("Con tent: 3\r\n"), 400},
      {"empty name", with(": 3\r\n"), 400},
      {"no colon", with("abc\r\n"), 400},
      {"nul in a value", with(std::string("X: a\0b\r\n", 8)), 400},
      {"nul in a name", with(std::string("X\0Y: a\r\n", 8)), 400},
      {"control character", with("X: a\x01\r\n"), 400},
      {"leading space", "GET / HTTP/1.1\r\n Host: a\r\n\r\n", 400},
      // Host and request line.
      {"no host", "GET / HTTP/1.1\r\n\r\n", 400},
      {"two hosts", "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400},
      {"http 2.0", "GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505},
      {"http 0.9", "GET /\r\n\r\n", 400},
      {"http 1.2", "GET / HTTP/1.2\r\nHost: a\r\n\r\n", 505},
      {"lower-case http", "GET / http/1.1\r\nHost: a\r\n\r\n", 505},
      {"no version", "GET / \r\nHost: a\r\n\r\n", 505},
      {"two spaces", "GET  / HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"tab for space", "GET\t/ HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"no method", " / HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"relative path", "GET health HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"https target", "GET https://a/ HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"connect", "CONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"control in the target", "GET /\x01 HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"tls hello", std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 15), 400},
      {"http2 preface", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505},
      {"expect something", with("Expect: 200-ok\r\nContent-Length: 1\r\n", "a"), 417},
      // Not complete, and not wrong.
      {"half a header", "GET / HTTP/1.1\r\nHost: a\r\n", 0},
      {"half a body", with("Content-Length: 5\r\n", "abc"), 0},
      {"half a chunk", with(chunked, "5\r\nabc"), 0},
  };
}

TEST(HttpParser, CorpusHoweverTheBytesArrive) {
  EXPECT_GE(cases().size(), 60u);
  for (const Case& c : cases()) {
    for (const size_t piece : {size_t{1}, size_t{7}, size_t{100000}}) {
      const Outcome outcome = read(c.bytes, piece);
      EXPECT_EQ(outcome.status, c.status) << c.name << ", pieces of " << piece;
      if (c.status == 200) {
        EXPECT_EQ(outcome.request.body, c.body) << c.name << ", " << piece;
        EXPECT_EQ(outcome.left_over, 0u) << c.name << ", " << piece;
      }
    }
  }
}

TEST(HttpParser, TargetIsSplitAndNotDecoded) {
  const Outcome outcome =
      read("GET http://evil:80/v1/m%6fdels?a=b?c HTTP/1.1\r\nHost: a\r\n\r\n", 1000);
  ASSERT_EQ(outcome.status, 200);
  EXPECT_EQ(outcome.request.path, "/v1/m%6fdels");
  EXPECT_EQ(outcome.request.query, "a=b?c");
  EXPECT_EQ(outcome.request.field("host"), "a");
}

TEST(HttpParser, CloseIsMeantWhateverIsBesideIt) {
  for (const auto& [version, fields, is_kept] :
       {std::tuple("1.1", "", true), std::tuple("1.0", "", false),
        std::tuple("1.0", "Connection: keep-alive\r\n", true),
        std::tuple("1.0", "Connection: keep-alive, close\r\n", false),
        std::tuple("1.0", "Connection: Close\r\nConnection: Keep-Alive\r\n", false),
        std::tuple("1.1", "Connection: x, close, keep-alive\r\n", false)}) {
    const Outcome outcome =
        read(fmt::format("GET / HTTP/{}\r\nHost: a\r\n{}\r\n", version, fields), 1000);
    ASSERT_EQ(outcome.status, 200) << version << fields;
    EXPECT_EQ(outcome.request.keep_alive, is_kept) << version << " " << fields;
  }
}

TEST(HttpParser, ThePipelinedRequestIsLeftAlone) {
  const std::string one = with("Content-Length: 3\r\n", "abc");
  const Outcome outcome = read(one + one, 1000);
  ASSERT_EQ(outcome.status, 200);
  EXPECT_EQ(outcome.left_over, one.size());
}

TEST(HttpParser, TrailersAreNoFields) {
  const Outcome outcome =
      read(with("Transfer-Encoding: chunked\r\n", "0\r\nAuthorization: Bearer x\r\n\r\n"), 1000);
  ASSERT_EQ(outcome.status, 200);
  EXPECT_EQ(outcome.request.field("authorization"), "");
}

TEST(HttpParser, TrailersHaveTheLimitsOfHeaders) {
  const std::string chunked = "Transfer-Encoding: chunked\r\n";
  std::string many = "0\r\n";
  for (int i = 0; i < 101; ++i) many += fmt::format("X-{}: 1\r\n", i);
  EXPECT_EQ(read(with(chunked, many + "\r\n"), 100'000).status, 431);
  const std::string large = fmt::format("0\r\nX: {}\r\n\r\n", std::string(40'000, 'a'));
  EXPECT_EQ(read(with(chunked, large), 100'000).status, 431) << "in one piece";
  EXPECT_EQ(read(with(chunked, large), 1000).status, 431);
  // White space in front of values is no part of them, but of what has to be held.
  std::string padded = "0\r\n";
  for (int i = 0; i < 90; ++i) padded += fmt::format("X-{}:{}1\r\n", i, std::string(400, ' '));
  for (const size_t piece : {size_t{1}, size_t{1000}, size_t{100'000}}) {
    EXPECT_EQ(read(with(chunked, padded + "\r\n"), piece).status, 431) << "pieces of " << piece;
  }
}

TEST(HttpParser, Limits) {
  const std::string large_field = fmt::format("X: {}\r\n", std::string(40'000, 'a'));
  EXPECT_EQ(read(with(large_field), 1000).status, 431);
  EXPECT_EQ(read(std::string(40'000, 'a'), 1000).status, 431) << "no line end at all";
  std::string many;
  for (int i = 0; i < 100; ++i) many += fmt::format("X-{}: 1\r\n", i);
  EXPECT_EQ(read(with(many), 100'000).status, 431);
  const HttpLimits small{.max_body_bytes = 10};
  EXPECT_EQ(read(with("Content-Length: 11\r\n"), 1000, small).status, 413);
  EXPECT_EQ(read(with("Content-Length: 10\r\n", "0123456789"), 1000, small).status, 200);
  const std::string chunked = "Transfer-Encoding: chunked\r\n";
  EXPECT_EQ(read(with(chunked, "6\r\n012345\r\n6\r\n012345\r\n0\r\n\r\n"), 1000, small).status,
            413);
  EXPECT_EQ(read(with(chunked, "1;" + std::string(300, 'a') + "\r\nA\r\n0\r\n\r\n"), 1000).status,
            400);
  EXPECT_EQ(read(with(chunked, "1;" + std::string(100'000, 'a')), 1000).status, 431)
      << "an extension without end";
}

TEST(HttpParser, ManyTinyChunks) {
  std::string body;
  for (int i = 0; i < 100'000; ++i) body += "1\r\nx\r\n";
  const Outcome outcome = read(with("Transfer-Encoding: chunked\r\n", body + "0\r\n\r\n"), 65536);
  ASSERT_EQ(outcome.status, 200);
  EXPECT_EQ(outcome.request.body.size(), 100'000u);
}

}  // namespace
}  // namespace rudder::server
