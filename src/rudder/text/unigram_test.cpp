#include "rudder/text/unigram.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <map>
#include <string>
#include <vector>

#include "rudder/text/tokenizer.h"

namespace rudder::text {
namespace {

namespace json = boost::json;

json::object unigram_model(bool with_bytes) {
  json::array vocab = {{"<unk>", 0.0}, {"a", -1.0}, {"b", -1.5}, {"ab", -2.0}, {"abc", -2.4},
                       {"c", -3.0},    {"ä", -2.0}, {"▁", -1.0}, {"▁ab", -2.2}};
  for (int byte = 0; with_bytes && byte < 256; ++byte) {
    vocab.push_back(json::array{fmt::format("<0x{:02X}>", byte), 0.0});
  }
  return {{"type", "Unigram"},
          {"unk_id", 0},
          {"vocab", std::move(vocab)},
          {"byte_fallback", with_bytes}};
}

std::vector<int32_t> ids_of(const Unigram& model, std::string_view text,
                            size_t max_ids = SIZE_MAX) {
  std::vector<int32_t> ids;
  model.encode(text, ids, max_ids);
  return ids;
}

// What the `tokenizers` package answers (0.23).
TEST(Unigram, TakesTheTokensOfTheLargestSum) {
  using Ids = std::vector<int32_t>;
  const std::map<std::string, std::pair<Ids, Ids>> wanted = {
      {"abc", {{4}, {4}}},
      {"abab", {{3, 3}, {3, 3}}},
      {"ab▁abc", {{3, 7, 4}, {3, 7, 4}}},
      {"xyab", {{0, 3}, {129, 130, 3}}},
      {"aéxäb", {{1, 0, 6, 2}, {1, 204, 178, 129, 6, 2}}},
      {"éx", {{0}, {204, 178, 129}}},
      {"", {{}, {}}},
      {"cc", {{5, 5}, {5, 5}}},
      {"日本b", {{0, 2}, {239, 160, 174, 239, 165, 181, 2}}},
      {"<0x41>", {{0}, {74}}}};
  const auto plain = Unigram::parse(unigram_model(false));
  const auto with_bytes = Unigram::parse(unigram_model(true));
  ASSERT_TRUE(plain && with_bytes);
  for (const auto& [text, ids] : wanted) {
    EXPECT_EQ(ids_of(*plain, text), ids.first) << text;
    EXPECT_EQ(ids_of(*with_bytes, text), ids.second) << text;
  }
}

// Vocabularies of GGUF files have some; the package takes the last one.
TEST(Unigram, OfATokenThatIsThereTwiceTheLastCounts) {
  json::object model = unigram_model(false);
  model["vocab"].as_array().push_back(json::array{"ab", -9.0});
  const auto parsed = Unigram::parse(model);
  ASSERT_TRUE(parsed) << parsed.error().to_string();
  EXPECT_EQ(parsed->find("ab"), 9);
  EXPECT_EQ(ids_of(*parsed, "ab"), (std::vector<int32_t>{1, 2}));
}

TEST(Unigram, StopsSoonBehindALimit) {
  const auto model = Unigram::parse(unigram_model(true));
  std::string text;
  for (int i = 0; i < 1000; ++i) text += "abc▁日";
  const std::vector<int32_t> all = ids_of(*model, text);
  for (const size_t limit : {0U, 1U, 7U, 100U}) {
    const std::vector<int32_t> some = ids_of(*model, text, limit);
    ASSERT_GT(some.size(), limit);
    EXPECT_LT(some.size(), 12 * (limit + 2));
    EXPECT_TRUE(
        std::equal(some.begin(), some.begin() + static_cast<std::ptrdiff_t>(limit), all.begin()));
  }
}

TEST(Unigram, WrongFilesAreRefusedByName) {
  const auto refused = [](auto change, std::string_view where) {
    json::object model = unigram_model(false);
    change(model);
    const auto parsed = Unigram::parse(model);
    ASSERT_FALSE(parsed) << where;
    EXPECT_EQ(parsed.error().where, where) << parsed.error().to_string();
  };
  refused([](json::object& m) { m["vocab"] = json::object(); }, "model.vocab");
  refused([](json::object& m) { m["vocab"] = json::array(); }, "model.vocab");
  refused([](json::object& m) { m["vocab"].as_array()[2] = "b"; }, "model.vocab[2]");
  refused(
      [](json::object& m) {
        m["vocab"].as_array()[2] = json::array{"b", "x"};
      },
      "model.vocab[2]");
  refused([](json::object& m) { m["unk_id"] = 9; }, "model.unk_id");
  refused([](json::object& m) { m["unk_id"] = nullptr; }, "model.unk_id");
  refused([](json::object& m) { m["byte_fallback"] = 1; }, "model.byte_fallback");
}

// As transformers writes Gemma's vocabulary of a GGUF file.
TEST(Unigram, IsAModelOfATokenizer) {
  const json::object file = {
      {"model", unigram_model(true)},
      {"normalizer", {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "▁"}}},
      {"decoder",
       {{"type", "Sequence"},
        {"decoders",
         {{{"type", "Replace"}, {"pattern", {{"String", "▁"}}}, {"content", " "}},
          {{"type", "ByteFallback"}},
          {{"type", "Fuse"}}}}}}};
  const auto tokenizer = Tokenizer::from_json(json::serialize(file), "");
  ASSERT_TRUE(tokenizer) << tokenizer.error().to_string();
  const auto ids = (*tokenizer)->encode("ab abc é", {});
  ASSERT_TRUE(ids);
  EXPECT_EQ(*ids, (std::vector<int32_t>{3, 7, 4, 7, 204, 178}));
  EXPECT_EQ((*tokenizer)->decode(*ids, false), "ab abc é");
  json::object bytes = file;
  bytes["pre_tokenizer"] = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}};
  EXPECT_EQ(Tokenizer::from_json(json::serialize(bytes), "").error().where, "model.type");
}

}  // namespace
}  // namespace rudder::text
