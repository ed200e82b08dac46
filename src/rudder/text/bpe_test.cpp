#include "rudder/text/bpe.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <map>
#include <random>

namespace rudder::text {
namespace {

namespace json = boost::json;

// Random merges over a small alphabet, and the definition of BPE run on them step by step.
struct RandomModel {
  json::object vocab;
  json::array merges;
  std::map<std::pair<std::string, std::string>, size_t> ranks;

  RandomModel(std::mt19937& rng, const std::vector<std::string>& alphabet, size_t count) {
    std::vector<std::string> tokens = alphabet;
    for (const std::string& token : alphabet) vocab[token] = static_cast<int64_t>(vocab.size());
    while (ranks.size() < count) {
      const std::string left = tokens[rng() % tokens.size()], right = tokens[rng() % tokens.size()];
      if (left.size() + right.size() > 24 || ranks.contains({left, right})) continue;
      const size_t rank = ranks.size();
      ranks[{left, right}] = rank;
      merges.push_back(json::array{left, right});
      if (!vocab.contains(left + right)) {
        vocab[left + right] = static_cast<int64_t>(vocab.size());
        tokens.push_back(left + right);
      }
    }
  }

  std::vector<std::string> encode(std::vector<std::string> parts) const {
    for (;;) {
      size_t best = SIZE_MAX, at = 0;
      for (size_t i = 0; i + 1 < parts.size(); ++i) {
        const auto rank = ranks.find({parts[i], parts[i + 1]});
        if (rank != ranks.end() && rank->second < best) {
          best = rank->second;
          at = i;
        }
      }
      if (best == SIZE_MAX) return parts;
      parts[at] += parts[at + 1];
      parts.erase(parts.begin() + static_cast<ptrdiff_t>(at) + 1);
    }
  }
};

// Short pieces (the scan), long ones (the heap) and pieces that may be cut at joints (long texts of
// many words) all follow the definition.
TEST(Bpe, EqualsTheDefinition) {
  std::mt19937 rng(17);
  const std::vector<std::string> alphabet = {"a", "b", "▁", "é", "c"};
  for (int model_number = 0; model_number < 20; ++model_number) {
    const RandomModel model(rng, alphabet, 5 + rng() % 60);
    const auto bpe = Bpe::parse(
        json::object{{"type", "BPE"}, {"vocab", model.vocab}, {"merges", model.merges}}, false);
    ASSERT_TRUE(bpe.has_value()) << bpe.error().to_string();
    for (int round = 0; round < 200; ++round) {
      std::vector<std::string> parts(rng() % (round % 4 == 0 ? 300 : 30));
      std::string text;
      for (std::string& part : parts) text += part = alphabet[rng() % alphabet.size()];
      std::vector<int32_t> ids;
      bpe->encode(text, ids);
      std::vector<std::string> tokens;
      for (const int32_t id : ids) tokens.emplace_back(bpe->tokens().get(id));
      ASSERT_EQ(tokens, model.encode(parts)) << text;
    }
  }
}

TEST(Bpe, UnknownRunsFuseWhenAsked) {
  for (const bool fuse : {false, true}) {
    const auto bpe = Bpe::parse(json::object{{"vocab", {{"<unk>", 0}, {"a", 1}}},
                                             {"merges", json::array()},
                                             {"unk_token", "<unk>"},
                                             {"fuse_unk", fuse}},
                                false);
    ASSERT_TRUE(bpe.has_value());
    std::vector<int32_t> ids;
    bpe->encode("xyazx", ids);
    EXPECT_EQ(ids, fuse ? (std::vector<int32_t>{0, 1, 0}) : (std::vector<int32_t>{0, 0, 1, 0, 0}));
  }
}

TEST(Bpe, IgnoreMergesTakesWholePieces) {
  const json::object file{{"vocab", {{"a", 0}, {"b", 1}, {"c", 2}, {"abc", 3}}},
                          {"merges", json::array()},
                          {"ignore_merges", true}};
  for (const bool bytes : {false, true}) {
    const auto bpe = Bpe::parse(file, bytes);
    ASSERT_TRUE(bpe.has_value());
    std::vector<int32_t> ids;
    bpe->encode("abc", ids);
    bpe->encode("abca", ids);
    EXPECT_EQ(ids, (std::vector<int32_t>{3, 0, 1, 2, 0}));
  }
}

}  // namespace
}  // namespace rudder::text
