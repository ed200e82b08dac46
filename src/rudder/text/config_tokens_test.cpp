// Tokens of tokenizer_config.json, beside what transformers makes of the same files
// (tools/golden/config_tokens.py).
#include "rudder/text/config_tokens.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <memory>
#include <string>
#include <vector>

#include "rudder/base/json.h"
#include "rudder/text/files.h"
#include "rudder/text/tokenizer.h"

namespace rudder::text {
namespace {

namespace json = boost::json;

void expect_alike(const Tokenizer& tokenizer, const json::object& wanted) {
  for (const auto& [content, id] : wanted.at("ids").as_object()) {
    EXPECT_EQ(tokenizer.token_to_id(content), id.to_number<int32_t>()) << content;
  }
  const auto expect_end = [](const std::optional<int32_t>& id, const json::value& theirs) {
    EXPECT_EQ(id.value_or(-1), theirs.is_null() ? -1 : theirs.to_number<int32_t>());
  };
  expect_end(tokenizer.bos_id(), wanted.at("bos"));
  expect_end(tokenizer.eos_id(), wanted.at("eos"));
  for (const json::value& item : wanted.at("texts").as_array()) {
    const std::string text(item.at(0).as_string());
    const auto ids = json::value_to<std::vector<int32_t>>(item.at(1));
    EXPECT_EQ(tokenizer.encode(text, {.add_special_tokens = false}), ids) << text;
    EXPECT_EQ(tokenizer.decode(ids, false), std::string_view(item.at(2).as_string())) << text;
    EXPECT_EQ(tokenizer.decode(ids, true), std::string_view(item.at(3).as_string())) << text;
  }
}

TEST(ConfigTokens, AreThoseOfTransformersOrRefusedByTheirIds) {
  const auto text = read_text_file("tests/golden/config_tokens.json");
  ASSERT_TRUE(text) << text.error().to_string();
  int num_alike = 0;
  int num_refused = 0;
  const json::value cases = parse_json(*text, "config_tokens.json").value();
  for (const json::value& item : cases.as_array()) {
    const json::object& wanted = item.as_object();
    const std::string config = json::serialize(wanted.at("config"));
    SCOPED_TRACE(json::serialize(wanted.at("tokenizer")) + "\n" + config);
    const auto tokenizer = Tokenizer::from_json(json::serialize(wanted.at("tokenizer")), config);
    if (!wanted.contains("ids")) {
      ASSERT_FALSE(tokenizer);
      EXPECT_TRUE(
          tokenizer.error().where.starts_with("tokenizer_config.json: added_tokens_decoder."))
          << tokenizer.error().to_string();
      ++num_refused;
      continue;
    }
    ASSERT_TRUE(tokenizer) << tokenizer.error().to_string();
    expect_alike(**tokenizer, wanted);
    ++num_alike;
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_GT(num_alike, 80);
  EXPECT_GT(num_refused, 2);
}

TEST(ConfigTokens, WhatIsNoTokenIsRefusedByItsPath) {
  constexpr std::string_view kFile =
      R"({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}})";
  for (const auto& [decoder, where] : std::vector<std::pair<std::string, std::string>>{
           {"[]", "added_tokens_decoder"},
           {R"({"one": {"content": "x"}})", "added_tokens_decoder.one"},
           {R"({"-1": {"content": "x"}})", "added_tokens_decoder.-1"},
           {R"({"1": "x"})", "added_tokens_decoder.1"},
           {R"({"1": {}})", "added_tokens_decoder.1.content"},
           {R"({"1": {"content": "x", "lstrip": 1}})", "added_tokens_decoder.1.lstrip"},
           {R"({"2": {"content": "x"}})", "added_tokens_decoder.2"}}) {
    const auto tokenizer =
        Tokenizer::from_json(kFile, R"({"added_tokens_decoder": )" + decoder + "}");
    ASSERT_FALSE(tokenizer) << decoder;
    EXPECT_EQ(tokenizer.error().where, "tokenizer_config.json: " + where);
  }
}

}  // namespace
}  // namespace rudder::text
