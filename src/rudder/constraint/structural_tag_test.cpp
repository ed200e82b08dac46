// Structural tags, compiled and followed: schemas inside them bind, special tokens are tokens.
#include "rudder/constraint/structural_tag.h"

#include <gtest/gtest.h>

#include <vector>

#include "rudder/constraint/form_engine.h"

namespace rudder::constraint {
namespace {

constexpr int32_t kStop = 256;
constexpr int32_t kMark = 257;  // a special token

Vocabulary byte_vocabulary() {
  Vocabulary vocabulary;
  for (int byte = 0; byte < 256; ++byte) {
    vocabulary.token_bytes.emplace_back(1, static_cast<char>(byte));
  }
  vocabulary.token_bytes.resize(kMark);
  vocabulary.token_bytes.push_back(special_token_bytes(kMark));
  vocabulary.size = kMark + 1;
  vocabulary.stop_ids = {kStop};
  return vocabulary;
}

class StructuralTagTest : public ::testing::Test {
 protected:
  // The tokens are allowed one after another, and the output may end after them.
  bool allows(const std::string& format, const std::vector<int32_t>& tokens) {
    const auto compiled =
        engine_.compile({.kind = GrammarKind::kStructuralTag,
                         .text = R"({"type":"structural_tag","format":)" + format + "}",
                         .space = JsonSpace::kCompact});
    EXPECT_TRUE(compiled) << compiled.error().to_string();
    if (!compiled) return false;
    const auto matcher = compiled->constraint->start();
    std::vector<int32_t> all = tokens;
    all.push_back(kStop);
    for (const int32_t token : all) {
      std::vector<uint32_t> words(mask_words(kMark + 1), ~uint32_t{0});
      EXPECT_TRUE(matcher->restrict(words));
      const auto at = static_cast<size_t>(token);
      if ((words[at / 32] >> (at % 32) & 1) == 0) return false;
      if (token == kStop) break;
      EXPECT_TRUE(matcher->advance(token));
    }
    return true;
  }

  static std::vector<int32_t> bytes(std::string_view text) { return {text.begin(), text.end()}; }

  const FormEngine engine_{byte_vocabulary(), 1 << 20};
};

TEST_F(StructuralTagTest, SchemasBind) {
  const std::string format =
      R"({"type":"sequence","elements":[{"type":"const_string","value":"<call>"},)"
      R"({"type":"json_schema","json_schema":{"type":"object","required":["n"],)"
      R"("properties":{"n":{"type":"integer","minimum":3}},"additionalProperties":false}},)"
      R"({"type":"const_string","value":"</call>"}]})";
  EXPECT_TRUE(allows(format, bytes(R"(<call>{"n": 12}</call>)")));
  EXPECT_FALSE(allows(format, bytes(R"(<call>{"n": 2}</call>)")));
  EXPECT_FALSE(allows(format, bytes(R"(<call>{}</call>)")));
  EXPECT_FALSE(allows(format, bytes(R"(<call>{"n": 12})")));
}

TEST_F(StructuralTagTest, SpecialTokensAreNamedById) {
  const std::string format =
      R"({"type":"sequence","elements":[{"type":"optional","content":{"type":"tag",)"
      R"("begin":"<think>","content":{"type":"any_text"},"end":"</think>"}},)"
      R"({"type":"token","token":257},{"type":"const_string","value":"f"},)"
      R"({"type":"star","content":{"type":"sequence","elements":[)"
      R"({"type":"token","token":257},{"type":"const_string","value":"g"}]}}]})";
  EXPECT_TRUE(allows(format, {kMark, 'f'}));
  EXPECT_TRUE(allows(format, {kMark, 'f', kMark, 'g', kMark, 'g'}));
  EXPECT_FALSE(allows(format, {'f'}));
  EXPECT_FALSE(allows(format, {kMark, 'f', kMark}));
  std::vector<int32_t> thoughts = bytes("<think>a < b</think>");
  thoughts.insert(thoughts.end(), {kMark, 'f'});
  EXPECT_TRUE(allows(format, thoughts));
  EXPECT_FALSE(allows(format, bytes("<think>a < b</think>")));
}

TEST_F(StructuralTagTest, ThoughtsThatThePromptBeganEndWithTheirMark) {
  const std::string format =
      R"({"type":"sequence","elements":[{"type":"tag","begin":"","content":{"type":"any_text"},)"
      R"("end":"</think>"},{"type":"const_string","value":"x"}]})";
  EXPECT_TRUE(allows(format, bytes("hm</think>x")));
  EXPECT_FALSE(allows(format, bytes("hm")));
  EXPECT_FALSE(allows(format, bytes("x")));
}

// As deep as a request may have it; the formats around it do not count.
TEST_F(StructuralTagTest, ADeepSchemaIsTaken) {
  std::string schema = "{}";
  std::string output = "0";
  for (int i = 0; i < 30; ++i) {
    schema = R"({"properties":{"a":)" + schema + R"(},"required":["a"],"type":"object"})";
    output = R"({"a": )" + output + "}";
  }
  const std::string tag = R"({"type":"tag","begin":"<","end":">","content":{"type":"json_schema",)"
                          R"("json_schema":)" +
                          schema + "}}";
  std::string format = tag;
  for (int i = 0; i < 8; ++i) format = R"({"type":"sequence","elements":[)" + format + "]}";
  EXPECT_TRUE(allows(format, bytes("<" + output + ">")));
}

TEST(OpenStructuralTag, RefusesByPath) {
  const auto refused = [](const std::string& text) {
    Fuel fuel;
    const auto tag = open_structural_tag(fuel, {.kind = GrammarKind::kStructuralTag, .text = text});
    return tag ? std::string("accepted") : tag.error().where;
  };
  EXPECT_EQ(refused(R"({"format":{"type":"or","elements":[{"type":"json_schema","json_schema":)"
                    R"({"type":"object","properties":{"a":{"minContains":1}}}}]}})"),
            ".format.elements[0].json_schema.properties.a.minContains");
  EXPECT_EQ(refused(R"({"format":{"type":"qwen_xml_parameter","json_schema":{}}})"), ".format");
  EXPECT_NE(refused("[]"), "accepted");
  EXPECT_NE(refused("{"), "accepted");
}

}  // namespace
}  // namespace rudder::constraint
