// Tokens of tokenizer_config.json and of the files beside it, and what transformers makes of them
// (tools/golden/config_tokens.py).
#include "rudder/text/config_tokens.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <memory>
#include <string>
#include <vector>

#include "rudder/base/json.h"
#include "rudder/text/chat_prompt.h"
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

std::string text_of_file(const json::object& files, std::string_view name) {
  const json::value* const file = files.if_contains(name);
  return file == nullptr ? std::string() : json::serialize(*file);
}

TokenFiles files_of(const json::object& files) {
  return {.config = text_of_file(files, "config"),
          .special_tokens = text_of_file(files, kSpecialTokensFile),
          .added_tokens = text_of_file(files, kAddedTokensFile)};
}

// What a template writes of every name that it may have.
void expect_names(const TokenFiles& files, const json::object& names) {
  std::string source;
  std::string wanted;
  for (const std::string_view name : kTokenNames) {
    source += fmt::format("{{{{ {} if {} is defined else '-' }}}}|", name, name);
    const json::value* const token = names.if_contains(name);
    wanted += token == nullptr ? "-" : std::string_view(token->as_string());
    wanted += '|';
  }
  const auto prompt = ChatPrompt::from_files(files, {.jinja = source});
  ASSERT_TRUE(prompt) << prompt.error().to_string();
  EXPECT_EQ((*prompt)->render({}, nullptr, nullptr, {}).value(), wanted);
}

struct NumCases {
  int alike = 0;
  int refused = 0;
};
// Where theirs lack `ids`, an id of `added_tokens_decoder` or of added_tokens.json is wrong.
NumCases compare_cases(const std::string& golden) {
  NumCases num;
  const auto text = read_text_file("tests/golden/" + golden);
  EXPECT_TRUE(text) << text.error().to_string();
  const json::value cases = parse_json(text.value_or("[]"), golden).value();
  for (const json::value& item : cases.as_array()) {
    const json::object& wanted = item.as_object();
    const TokenFiles files = files_of(wanted);
    SCOPED_TRACE(json::serialize(wanted.at("tokenizer")) + "\n" + files.config + "\n" +
                 files.special_tokens + "\n" + files.added_tokens);
    const auto tokenizer = Tokenizer::from_files(json::serialize(wanted.at("tokenizer")), files);
    if (!wanted.contains("ids")) {
      EXPECT_FALSE(tokenizer);
      if (tokenizer) return num;
      const std::string& where = tokenizer.error().where;
      EXPECT_TRUE(where.starts_with("tokenizer_config.json: added_tokens_decoder.") ||
                  where.starts_with("added_tokens.json."))
          << tokenizer.error().to_string();
      ++num.refused;
      continue;
    }
    EXPECT_TRUE(tokenizer) << tokenizer.error().to_string();
    if (!tokenizer) return num;
    expect_alike(**tokenizer, wanted);
    if (wanted.contains("names")) expect_names(files, wanted.at("names").as_object());
    ++num.alike;
    if (::testing::Test::HasFailure()) return num;
  }
  return num;
}

TEST(ConfigTokens, AreThoseOfTransformersOrRefusedByTheirIds) {
  const NumCases num = compare_cases("config_tokens.json");
  EXPECT_GT(num.alike, 80);
  EXPECT_GT(num.refused, 2);
}

TEST(ConfigTokens, OfSideFilesAreThoseOfTransformersOrRefusedByTheirIds) {
  const NumCases num = compare_cases("side_tokens.json");
  EXPECT_GT(num.alike, 80);
  EXPECT_GT(num.refused, 2);
}

TEST(ConfigTokens, WhatIsNoTokenInASideFileIsRefusedByItsPath) {
  constexpr std::string_view kFile =
      R"({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}})";
  const auto where = [&](std::string map, std::string added) {
    const TokenFiles files{.special_tokens = std::move(map), .added_tokens = std::move(added)};
    const auto tokenizer = Tokenizer::from_files(kFile, files);
    return tokenizer ? "taken" : tokenizer.error().where;
  };
  EXPECT_EQ(where("[]", ""), "special_tokens_map.json");
  EXPECT_EQ(where("{", ""), "special_tokens_map.json");
  EXPECT_EQ(where(R"({"bos_token": 1})", ""), "special_tokens_map.json: bos_token");
  EXPECT_EQ(where(R"({"bos_token": {}})", ""), "special_tokens_map.json: bos_token.content");
  EXPECT_EQ(where(R"({"extra_special_tokens": 1})", ""),
            "special_tokens_map.json: extra_special_tokens");
  EXPECT_EQ(where(R"({"extra_special_tokens": ["x", 1]})", ""),
            "special_tokens_map.json: extra_special_tokens[1]");
  EXPECT_EQ(where("", "[]"), "added_tokens.json");
  EXPECT_EQ(where("", R"({"x": "1"})"), "added_tokens.json.x");
  EXPECT_EQ(where("", R"({"x": -1})"), "added_tokens.json.x");
  EXPECT_EQ(where("", R"({"x": 2})"), "added_tokens.json.2");
  EXPECT_EQ(where("", R"({"x": 1})"), "taken");
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
