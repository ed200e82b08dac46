#include "rudder/text/token_begins.h"

#include <gtest/gtest.h>

#include <filesystem>

namespace rudder::text {
namespace {

TEST(TokenBegins, TokensOfEveryGoldenTokenizerSpellTheirText) {
  const std::string_view text =
      "The cat sat.\n<|im_start|>user\n  caf\u00e9 \u4e2d\u6587 12345 \U0001F600\n";
  int tokenizers = 0;
  for (const auto& entry : std::filesystem::directory_iterator(RUDDER_SOURCE_DIR "/models")) {
    const auto tokenizer = Tokenizer::from_directory(entry.path());
    if (!tokenizer) continue;
    ++tokenizers;
    for (const bool special : {false, true}) {
      const auto ids = (*tokenizer)->encode(text, {.add_special_tokens = special});
      ASSERT_TRUE(ids.has_value());
      const auto begins = token_begins(**tokenizer, *ids, text);
      ASSERT_TRUE(begins.has_value()) << begins.error().to_string();
      ASSERT_EQ(begins->size(), ids->size());
      for (size_t i = 0; i < ids->size(); ++i) {
        const std::string_view bytes = (*tokenizer)->token_bytes((*ids)[i]);
        EXPECT_TRUE(text.substr((*begins)[i]).starts_with(bytes)) << i;
      }
    }
  }
  EXPECT_GT(tokenizers, 0);
}

TEST(TokenBegins, OtherTokensAreRefused) {
  const auto tokenizer = Tokenizer::from_directory(RUDDER_SOURCE_DIR "/models/demo");
  ASSERT_TRUE(tokenizer.has_value());
  const auto ids = (*tokenizer)->encode("one thing");
  EXPECT_FALSE(token_begins(**tokenizer, *ids, "another thing").has_value());
  EXPECT_FALSE(token_begins(**tokenizer, *ids, "one thing more").has_value());
}

}  // namespace
}  // namespace rudder::text
