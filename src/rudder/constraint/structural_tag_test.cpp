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
    return tag_allows(R"({"type":"structural_tag","format":)" + format + "}", tokens);
  }

  bool tag_allows(const std::string& tag, const std::vector<int32_t>& tokens) {
    const auto compiled = compile(tag);
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

  Result<CompiledConstraint> compile(const std::string& tag) const {
    return engine_.compile(
        {.kind = GrammarKind::kStructuralTag, .text = tag, .space = JsonSpace::kCompact});
  }

  // The path of the error; of what is taken, "accepted".
  std::string refused_at(const std::string& tag) const {
    const auto compiled = compile(tag);
    return compiled ? "accepted" : compiled.error().where;
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

// vLLM's older form: free text, and behind a trigger one of the structures that begin so.
constexpr char kStructures[] =
    R"({"type":"structural_tag","structures":[)"
    R"({"begin":"<f=a>","schema":{"type":"integer","minimum":3},"end":"</f>"},)"
    R"({"begin":"<f=b>","schema":{"const":"x"},"end":"</f>"}],"triggers":["<f="]})";

TEST_F(StructuralTagTest, StructuresBind) {
  for (const char* good :
       {"", "no call < at all", "<f=a>12</f>", R"(hm <f=b>"x"</f> and <f=a>3</f><f=a>4</f>.)"}) {
    EXPECT_TRUE(tag_allows(kStructures, bytes(good))) << good;
  }
  for (const char* wrong : {"<f=", "<f=a>12", "<f=a>2</f>", R"(<f=a>"x"</f>)", "<f=b>3</f>",
                            "<f=c>3</f>", "hm <f=a></f>"}) {
    EXPECT_FALSE(tag_allows(kStructures, bytes(wrong))) << wrong;
  }
}

TEST_F(StructuralTagTest, StructuresAreRefusedByTheirPaths) {
  const auto with = [](const std::string& structures, const std::string& triggers) {
    return R"({"structures":)" + structures + R"(,"triggers":)" + triggers + "}";
  };
  const std::string good = R"({"begin":"<f>","schema":{},"end":"</f>"})";
  EXPECT_EQ(refused_at(with("[" + good + "]", R"(["<"])")), "accepted");
  EXPECT_EQ(refused_at(R"({"structures":[)" + good + "]}"), ".triggers");
  EXPECT_EQ(refused_at(with("[" + good + "]", "[1]")), ".triggers");
  EXPECT_EQ(refused_at(with("{}", R"(["<"])")), ".structures");
  EXPECT_EQ(refused_at(with("[]", R"(["<"])")), ".structures");
  EXPECT_EQ(refused_at(with("[" + good + ",1]", R"(["<"])")), ".structures[1]");
  EXPECT_EQ(refused_at(with("[" + good + R"(,{"begin":"[","schema":{},"end":"]"}])", R"(["<"])")),
            ".structures[1].begin");  // no trigger begins so
  EXPECT_EQ(refused_at(with("[" + good + "]", R"(["<","<f"])")), ".structures[0].begin");
  EXPECT_EQ(refused_at(with(R"([{"begin":1,"schema":{},"end":"x"}])", R"(["<"])")),
            ".structures[0].begin");
  EXPECT_EQ(refused_at(with(R"([{"begin":"<","schema":{}}])", R"(["<"])")), ".structures[0].end");
  EXPECT_EQ(refused_at(with(R"([{"begin":"<","end":">","schema":)"
                            R"({"properties":{"a":{"minContains":1}}}}])",
                            R"(["<"])")),
            ".structures[0].schema.properties.a.minContains");
  EXPECT_EQ(refused_at(R"({"triggers":["<"]})"), "");
}

// As a part of another tag, of tools for instance.
TEST(OpenStructuralTag, StructuresBecomeAFormat) {
  Fuel fuel;
  const auto opened =
      open_structural_tag(fuel, {.kind = GrammarKind::kStructuralTag, .text = kStructures});
  ASSERT_TRUE(opened) << opened.error().to_string();
  EXPECT_NE(opened->find(R"("format":{"type":"triggered_tags","triggers":["<f="])"),
            std::string::npos)
      << *opened;
  EXPECT_EQ(opened->find("json_schema"), std::string::npos) << *opened;
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
  EXPECT_EQ(refused(R"({"structures":[{"begin":"<","end":">","schema":{"minContains":1}}],)"
                    R"("triggers":["<"]})"),
            ".structures[0].schema.minContains");
  EXPECT_NE(refused("[]"), "accepted");
  EXPECT_NE(refused("{"), "accepted");
}

}  // namespace
}  // namespace rudder::constraint
