#include "rudder/draft/settings.h"

#include <fmt/format.h>
#include <fmt/printf.h>
#include <gtest/gtest.h>

namespace rudder::draft {
namespace {

Result<Speculation> from(std::string config) {
  SpeculativeSettings settings;
  settings.config = std::move(config);
  return settings.resolve();
}

TEST(SpeculativeSettings, NothingIsAskedForByDefault) {
  const auto none = SpeculativeSettings().resolve();
  ASSERT_TRUE(none);
  EXPECT_EQ(none->method, Method::kNone);
  EXPECT_EQ(none->num_speculative_tokens, 0);
  EXPECT_EQ(make_proposer(*none), nullptr);
}

TEST(SpeculativeSettings, DefaultsAreVllms) {
  const auto ngram = from(R"({"method": "ngram", "num_speculative_tokens": 4})");
  ASSERT_TRUE(ngram);
  EXPECT_EQ(ngram->num_speculative_tokens, 4);
  EXPECT_EQ(ngram->prompt_lookup_min, 5);
  EXPECT_EQ(ngram->prompt_lookup_max, 5);
  EXPECT_NE(make_proposer(*ngram), nullptr);
  EXPECT_FALSE(ngram->on_device);
  const auto on_device = from(R"({"method": "ngram_gpu", "prompt_lookup_max": 3})");
  ASSERT_TRUE(on_device);
  EXPECT_TRUE(on_device->on_device);
  EXPECT_EQ(on_device->prompt_lookup_max, 3);
  const auto least = from(R"({"method": "ngram", "prompt_lookup_min": 2})");
  ASSERT_TRUE(least);
  EXPECT_EQ(least->prompt_lookup_min, 2);
  EXPECT_EQ(least->prompt_lookup_max, 2);
  const auto most = from(R"({"method": "ngram", "prompt_lookup_max": 3})");
  ASSERT_TRUE(most);
  EXPECT_EQ(most->prompt_lookup_min, 3);
  const auto suffix = from(R"({"method": "suffix", "suffix_decoding_max_spec_factor": 2})");
  ASSERT_TRUE(suffix);
  EXPECT_EQ(suffix->num_speculative_tokens, 24);
  EXPECT_EQ(suffix->suffix.max_cached_requests, 0);
  EXPECT_DOUBLE_EQ(suffix->suffix.max_spec_factor, 2);
  EXPECT_NE(make_proposer(*suffix), nullptr);
  EXPECT_TRUE(suffix->has_host_trees());  // where steps take them
  EXPECT_EQ(suffix->tree_key, "");
  const auto chains = from(R"({"method": "suffix", "suffix_decoding_use_tree_spec": false})");
  ASSERT_TRUE(chains);
  EXPECT_FALSE(chains->has_host_trees());
  const auto trees = from(R"({"method": "suffix", "suffix_decoding_use_tree_spec": true})");
  ASSERT_TRUE(trees);
  EXPECT_TRUE(trees->has_host_trees());
  EXPECT_EQ(trees->tree_key, "suffix_decoding_use_tree_spec");
}

TEST(SpeculativeSettings, ADraftModelIsTheExecutors) {
  const auto named = from(R"({"method": "draft_model", "model": "small"})");
  ASSERT_TRUE(named) << named.error().to_string();
  EXPECT_EQ(named->method, Method::kDraftModel);
  EXPECT_EQ(named->model, "small");
  EXPECT_EQ(named->num_speculative_tokens, 4);
  EXPECT_EQ(make_proposer(*named), nullptr);
}

TEST(SpeculativeSettings, MethodsOfAFolderAreTheExecutors) {
  ASSERT_GE(folder_methods().size(), 5u);
  for (const auto& [name, method] : folder_methods()) {
    const auto named = from(
        fmt::format(R"({{"method": "{}", "model": "head", "num_speculative_tokens": 3}})", name));
    ASSERT_TRUE(named) << named.error().to_string();
    EXPECT_EQ(named->method, method);
    EXPECT_EQ(named->model, "head");
    EXPECT_EQ(named->num_speculative_tokens, 3);
    EXPECT_EQ(make_proposer(*named), nullptr);
    EXPECT_TRUE(has_model(method)) << name;
    const auto nowhere = from(fmt::format(R"({{"method": "{}"}})", name));
    if (name == "mtp") {  // then the model's own checkpoint has what guesses
      ASSERT_TRUE(nowhere);
      EXPECT_EQ(nowhere->method, Method::kMtp);
      EXPECT_EQ(nowhere->num_speculative_tokens, 4);
      EXPECT_FALSE(has_model(nowhere->method));
      EXPECT_EQ(make_proposer(*nowhere), nullptr);
      continue;
    }
    ASSERT_FALSE(nowhere) << name;
    EXPECT_EQ(nowhere.error().where, "speculative-config.model") << name;
  }
}

// A method that went names what to use instead.
TEST(SpeculativeSettings, LookaheadIsRefusedWithWhatToUse) {
  SpeculativeSettings settings;
  SettingsTable table;
  settings.declare(table);
  const auto flag = table.set("speculative-method", "lookahead");
  const auto key = from(R"({"method": "lookahead", "lookahead_window_size": 5})");
  ASSERT_FALSE(flag);
  ASSERT_FALSE(key);
  EXPECT_EQ(key.error().where, "speculative-config.method");
  for (const std::string& message : {flag.error().message, key.error().message}) {
    EXPECT_NE(message.find("suffix or ngram"), std::string::npos) << message;
    EXPECT_NE(message.find("draft_model"), std::string::npos) << message;
  }
}

TEST(SpeculativeSettings, PlainFlagsSayTheSame) {
  SpeculativeSettings settings;
  settings.method = "ngram";
  settings.num_tokens = 3;
  settings.prompt_lookup_min = 2;
  settings.prompt_lookup_max = 4;
  const auto plain = settings.resolve();
  ASSERT_TRUE(plain);
  EXPECT_EQ(plain->method, Method::kNgram);
  EXPECT_EQ(plain->num_speculative_tokens, 3);
  EXPECT_EQ(plain->prompt_lookup_min, 2);
  EXPECT_EQ(plain->prompt_lookup_max, 4);
  settings.config = R"({"method": "ngram"})";
  ASSERT_FALSE(settings.resolve());
  EXPECT_EQ(settings.resolve().error().where, "speculative-config");
  SpeculativeSettings alone;
  alone.num_tokens = 3;
  ASSERT_FALSE(alone.resolve());
  EXPECT_EQ(alone.resolve().error().where, "speculative-method");
}

TEST(SpeculativeSettings, PlainFlagsNameAModelToo) {
  for (const auto& [name, method] : folder_methods()) {
    SpeculativeSettings settings;
    settings.method = name;
    const auto refused = [&](const char* where) {
      const auto out = settings.resolve();
      ASSERT_FALSE(out) << name;
      EXPECT_EQ(out.error().code, ErrorCode::kInvalidArgument) << name;
      EXPECT_EQ(out.error().where, where) << name;
    };
    if (name != "mtp") refused("speculative-config.model");  // as the JSON's
    settings.model = "folder";
    settings.num_tokens = 3;
    const auto plain = settings.resolve();
    ASSERT_TRUE(plain) << plain.error().to_string();
    EXPECT_EQ(plain->method, method);
    EXPECT_EQ(plain->model, "folder");
    EXPECT_EQ(plain->num_speculative_tokens, 3);
    settings.prompt_lookup_min = 2;
    refused("speculative-config.prompt_lookup_min");
    settings = SpeculativeSettings();
    settings.model = "folder";
    refused("speculative-method");
    settings.method = "ngram";
    refused("speculative-config.model");
    settings.config = R"({"method": "ngram"})";
    settings.method = "none";
    refused("speculative-config");
  }
}

TEST(SpeculativeSettings, WhatIsWrongIsNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"num_speculative_tokens": 4})", "method"},
      {R"({"method": "eagle2"})", "method"},
      {R"({"method": "eagle", "model": "x", "prompt_lookup_max": 3})", "prompt_lookup_max"},
      {R"({"method": "eagle3", "model": "x", "num_speculative_tokens": 0})",
       "num_speculative_tokens"},
      {R"({"method": "medusa", "model": "x", "prompt_lookup_min": 1})", "prompt_lookup_min"},
      {R"({"method": "medusa", "model": "x", "num_speculative_tokens": 129})",
       "num_speculative_tokens"},
      {R"({"method": "draft_model", "model": ""})", "model"},
      {R"({"method": "draft_model", "model": 3})", "model"},
      {R"({"method": "draft_model", "model": "x", "num_speculative_tokens": 129})",
       "num_speculative_tokens"},
      {R"({"method": "draft_model", "model": "x", "prompt_lookup_max": 3})", "prompt_lookup_max"},
      {R"({"method": "suffix", "model": "x"})", "model"},
      {R"({"method": "ngram", "model": "x"})", "model"},
      {R"({"method": 3})", "method"},
      {R"({"method": "ngram", "num_speculative_tokens": 0})", "num_speculative_tokens"},
      {R"({"method": "ngram", "num_speculative_tokens": 129})", "num_speculative_tokens"},
      {R"({"method": "ngram", "num_speculative_tokens": 2.5})", "num_speculative_tokens"},
      {R"({"method": "ngram", "num_speculative_tokens": "4"})", "num_speculative_tokens"},
      {R"({"method": "ngram", "num_speculative_tokens": null})", "num_speculative_tokens"},
      {R"({"method": "ngram", "prompt_lookup_min": 6, "prompt_lookup_max": 5})",
       "prompt_lookup_min"},
      {R"({"method": "ngram", "prompt_lookup_max": 33})", "prompt_lookup_max"},
      {R"({"method": "suffix", "prompt_lookup_max": 3})", "prompt_lookup_max"},
      {R"({"method": "ngram", "suffix_decoding_max_tree_depth": 8})",
       "suffix_decoding_max_tree_depth"},
      {R"({"method": "ngram", "suffix_decoding_use_tree_spec": false})",
       "suffix_decoding_use_tree_spec"},
      {R"({"method": "suffix", "suffix_decoding_use_tree_spec": 1})",
       "suffix_decoding_use_tree_spec"},
      {R"({"method": "suffix", "suffix_decoding_min_token_prob": 1.5})",
       "suffix_decoding_min_token_prob"},
      {R"({"method": "suffix", "suffix_decoding_max_cached_requests": -1})",
       "suffix_decoding_max_cached_requests"},
  };
  for (const auto& [config, key] : cases) {
    const auto refused = from(config);
    ASSERT_FALSE(refused) << config;
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument) << config;
    EXPECT_EQ(refused.error().where, std::string("speculative-config.") + key) << config;
  }
  EXPECT_FALSE(from("{"));
  EXPECT_FALSE(from("[]"));
}

constexpr const char* kMedusaTree =
    R"({"method": "medusa", "model": "heads", "speculative_token_tree": "%s"%s})";

SpeculativeSettings with_tree(const std::string& tree, const std::string& more = "") {
  SpeculativeSettings settings;
  settings.config = fmt::sprintf(kMedusaTree, tree, more);
  return settings;
}

TEST(TokenTree, IsReadInTheOrderOfItsDepth) {
  const auto read = with_tree("[(1,), (0, 1), (0,), (0, 0), (0, 1, 2), (1, 0,) , ]").resolve();
  ASSERT_TRUE(read) << read.error().to_string();
  EXPECT_EQ(read->num_speculative_tokens, 6);
  EXPECT_EQ(read->tree.ranks, (std::vector<int32_t>{0, 1, 0, 1, 0, 2}));
  std::vector<int32_t> parents;
  for (int32_t row = 1; row <= 6; ++row) parents.push_back(read->tree.tree.parent(row));
  EXPECT_EQ(parents, (std::vector<int32_t>{0, 0, 1, 1, 2, 4}));
  EXPECT_TRUE(with_tree("[(0,)]", R"(, "num_speculative_tokens": 1)").resolve());
}

TEST(TokenTree, IsOfModelsAndEveryKindOfHead) {
  for (const char* const method : {"draft_model", "eagle", "eagle3", "medusa"}) {
    const auto named = from(fmt::format(
        R"({{"method": "{}", "model": "x", "speculative_token_tree": "[(0,), (1,)]"}})", method));
    ASSERT_TRUE(named) << named.error().to_string();
    EXPECT_EQ(named->tree.ranks, (std::vector<int32_t>{0, 1}));
    EXPECT_EQ(named->num_speculative_tokens, 2);
  }
}

TEST(TokenTree, WhatIsNoneIsRefusedByName) {
  const auto message = [](const std::string& tree, const std::string& more = "",
                          const char* key = "speculative_token_tree") {
    const auto read = with_tree(tree, more).resolve();
    if (read) return std::string("taken");
    EXPECT_EQ(read.error().where, std::string("speculative-config.") + key);
    return read.error().message;
  };
  EXPECT_EQ(message("[(0,), (1, 0)]"), "(1, 0) follows (1,), which is missing");
  EXPECT_EQ(message("[(0,), (20,)]"), "(20,) has a rank of 20, they are below 20");
  EXPECT_EQ(message("[(0,), (0,)]"), "(0,) is there twice");
  EXPECT_EQ(message("[]"), "0 drafts, a tree has 1 to 63");
  EXPECT_EQ(message("[(0,), ()]"), "a rank is expected at byte 9 of '[(0,), ()]'");
  EXPECT_EQ(message("[(-1,)]"), "a rank is expected at byte 2 of '[(-1,)]'");
  EXPECT_EQ(message("[(0,)"), "']' is expected at byte 5 of '[(0,)'");
  EXPECT_EQ(message("[(0,)] x"), "the end is expected at byte 7 of '[(0,)] x'");
  EXPECT_EQ(message("(0,)"), "'[' is expected at byte 0 of '(0,)'");
  EXPECT_EQ(message(""), "must not be empty");
  std::string many = "[(0,)";
  for (int32_t depth = 2; depth <= 64; ++depth) {
    many += ", (0";
    for (int32_t i = 1; i < depth; ++i) many += ", 0";
    many += ")";
  }
  EXPECT_EQ(message(many + "]"), "64 drafts, a tree has 1 to 63");
  EXPECT_EQ(message("[(0,), (1,)]", R"(, "num_speculative_tokens": 3)", "num_speculative_tokens"),
            "must be 2, the drafts of speculative_token_tree, or left out");
  SpeculativeSettings settings;
  settings.config = R"({"method": "ngram", "speculative_token_tree": "[(0,)]"})";
  const auto other = settings.resolve();
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().where, "speculative-config.speculative_token_tree");
  EXPECT_EQ(other.error().message,
            "is not of the method 'ngram': draft_model, eagle, eagle3 and medusa take it");
  settings.config = R"({"method": "medusa", "model": "heads", "speculative_token_tree": [[0]]})";
  EXPECT_EQ(settings.resolve().error().message, "must be a string with a list of tuples");
}

}  // namespace
}  // namespace rudder::draft
