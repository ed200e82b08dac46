#include "rudder/hub/model_name.h"

#include <gtest/gtest.h>

#include <string>

namespace rudder::hub {
namespace {

TEST(ModelName, ReadsNamesOfRepositories) {
  EXPECT_EQ(*parse_model_name("Qwen/Qwen3-8B"), (ModelName{"Qwen/Qwen3-8B", ""}));
  EXPECT_EQ(*parse_model_name("gpt2"), (ModelName{"gpt2", ""}));
  EXPECT_EQ(*parse_model_name("a_b.c/d-e.f1_"), (ModelName{"a_b.c/d-e.f1_", ""}));
  EXPECT_EQ(*parse_model_name("unsloth/Qwen3-8B-GGUF:Q4_K_M"),
            (ModelName{"unsloth/Qwen3-8B-GGUF", "Q4_K_M"}));
  EXPECT_EQ(*parse_model_name(std::string(47, 'a') + "/" + std::string(48, 'b')),
            (ModelName{std::string(47, 'a') + "/" + std::string(48, 'b'), ""}));
}

TEST(ModelName, RefusesWhatTheHubRefuses) {
  for (const std::string& text : {std::string(),          std::string("a/b/c"),
                                  std::string("a//b"),    std::string("/a"),
                                  std::string("a/"),      std::string("a/../b"),
                                  std::string("a..b/c"),  std::string("a--b/c"),
                                  std::string(".a/b"),    std::string("-a/b"),
                                  std::string("a/b-"),    std::string("a/b."),
                                  std::string("a b/c"),   std::string("a\\b"),
                                  std::string("a/b.git"), std::string("a/b\0c", 5),
                                  std::string("a/b:"),    std::string("a/b:x/y"),
                                  std::string("a:b:c"),   std::string("é/b"),
                                  std::string("a/b?x"),   std::string("a/b#x"),
                                  std::string("a/b%2e"),  std::string(97, 'a')}) {
    const auto name = parse_model_name(text);
    ASSERT_FALSE(name.has_value()) << text;
    EXPECT_EQ(name.error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(name.error().where, "model");
  }
}

TEST(ModelName, PathsAreNoNames) {
  for (const char* text : {"/models/a", "./a", "../a/b", "~/a", "a/b/c", ".", "models/"}) {
    EXPECT_TRUE(is_path_only(text)) << text;
  }
  for (const char* text : {"a/b", "gpt2", "a/b:Q8_0", "https://hub.example/a/b"}) {
    EXPECT_FALSE(is_path_only(text)) << text;
  }
}

TEST(ModelName, RevisionsStayBelowTheirFolder) {
  for (const char* text : {"main", "v1.0", "refs/pr/12", "feature/x", "1.0+cu12", "a@b"}) {
    EXPECT_TRUE(check_revision(text).has_value()) << text;
  }
  for (const std::string& text :
       {std::string(), std::string(".."), std::string("../x"), std::string("a/../b"),
        std::string("/a"), std::string("a/"), std::string("a//b"), std::string("a b"),
        std::string("a\\b"), std::string("a\0b", 3), std::string("a?b"), std::string(256, 'a')}) {
    const auto checked = check_revision(text);
    ASSERT_FALSE(checked.has_value()) << text;
    EXPECT_EQ(checked.error().where, "revision");
  }
}

TEST(ModelName, CommitsAreForty) {
  EXPECT_TRUE(is_commit("0123456789abcdef0123456789abcdef01234567"));
  EXPECT_FALSE(is_commit("0123456789ABCDEF0123456789abcdef01234567"));
  EXPECT_FALSE(is_commit("0123456"));
  EXPECT_FALSE(is_commit("main"));
}

}  // namespace
}  // namespace rudder::hub
