#include "rudder/text/normalizer.h"
#include "rudder/base/utf8.h"

#include <gtest/gtest.h>
#include <utf8proc.h>

#include <boost/json.hpp>

namespace rudder::text {
namespace {

std::string apply(std::string_view json, std::string text, bool* at_origin = nullptr) {
  const auto normalizer = Normalizer::parse(boost::json::parse(std::string(json)));
  EXPECT_TRUE(normalizer.has_value()) << normalizer.error().to_string();
  bool origin = true;
  EXPECT_TRUE(normalizer->apply(text, origin).has_value());
  if (at_origin != nullptr) *at_origin = origin;
  return text;
}

TEST(Normalizer, EachStage) {
  EXPECT_EQ(apply(R"({"type":"NFC"})", "e\u0301A\u030a한"), "\u00e9\u00c5한");
  EXPECT_EQ(apply(R"({"type":"NFD"})", "\u00e9"), "e\u0301");
  EXPECT_EQ(apply(R"({"type":"NFKC"})", "ﬁ２"), "fi2");
  EXPECT_EQ(apply(R"({"type":"Lowercase"})", "ÀB\u0130ẞ"), "àbi\u0307ß");
  EXPECT_EQ(apply(R"({"type":"StripAccents"})", "e\u0301x\u0327"), "ex");
  EXPECT_EQ(apply(R"({"type":"Strip","strip_left":true,"strip_right":false})", " \u3000a "), "a ");
  EXPECT_EQ(apply(R"({"type":"Prepend","prepend":"▁"})", "a"), "▁a");
  EXPECT_EQ(apply(R"({"type":"Prepend","prepend":"▁"})", ""), "");
  EXPECT_EQ(apply(R"({"type":"Replace","pattern":{"String":" "},"content":"▁"})", "a b "), "a▁b▁");
  EXPECT_EQ(apply(R"({"type":"Replace","pattern":{"Regex":" +"},"content":"_"})", "a   b"), "a_b");
  EXPECT_EQ(apply(R"({"type":"Sequence","normalizers":[{"type":"NFD"},{"type":"StripAccents"}]})",
                  "\u00e9"),
            "e");
}

TEST(Normalizer, KnowsWhenTheFirstCharacterIsGone) {
  bool at_origin = true;
  apply(R"({"type":"Strip","strip_left":true,"strip_right":true})", "a ", &at_origin);
  EXPECT_TRUE(at_origin);
  apply(R"({"type":"Strip","strip_left":true,"strip_right":true})", " a", &at_origin);
  EXPECT_FALSE(at_origin);
}

TEST(Normalizer, UnknownStagesAreNamed) {
  for (const char* json : {R"({"type":"Precompiled"})",
                           R"({"type":"Sequence","normalizers":[{"type":"Precompiled"}]})"}) {
    const auto normalizer = Normalizer::parse(boost::json::parse(json));
    ASSERT_FALSE(normalizer.has_value());
    EXPECT_EQ(normalizer.error().code, ErrorCode::kUnsupported);
    EXPECT_NE(normalizer.error().message.find("Precompiled"), std::string::npos);
  }
}

// The quick path of NFC skips these characters: each must be its own form, have class 0, and be
// composed with nothing before it.
TEST(Normalizer, CharactersThatNfcSkipsAreInert) {
  std::vector<bool> is_second(0x110000, false);  // of a composition
  for (int32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    utf8proc_int32_t parts[8];
    int last_class = 0;
    const auto count = utf8proc_decompose_char(c, parts, 8, UTF8PROC_DECOMPOSE, &last_class);
    if (count == 2) is_second[static_cast<size_t>(parts[1])] = true;
  }
  size_t checked = 0;
  for (char32_t c = 1; c < 0x110000; ++c) {
    if ((c >= 0xD800 && c < 0xE000) || !is_nfc_inert(c)) continue;
    ++checked;
    EXPECT_EQ(utf8proc_get_property(static_cast<utf8proc_int32_t>(c))->combining_class, 0)
        << static_cast<uint32_t>(c);
    EXPECT_FALSE(is_second[c]) << static_cast<uint32_t>(c);
    std::string text;
    append_utf8(text, c);
    utf8proc_uint8_t* form = utf8proc_NFC(reinterpret_cast<const utf8proc_uint8_t*>(text.c_str()));
    EXPECT_EQ(text, reinterpret_cast<const char*>(form));
    free(form);
  }
  EXPECT_GT(checked, 30000u);
}

}  // namespace
}  // namespace rudder::text
