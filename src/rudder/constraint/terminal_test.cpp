// Strings, patterns and numbers as forms: what they accept, at the borders of their bounds, and
// that a token is allowed where its bytes are.
#include "rudder/constraint/terminal.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "rudder/constraint/form_checker.h"
#include "rudder/text/regex.h"

namespace rudder::constraint {
namespace {

FormChecker schema(const std::string& text, JsonSpace space = JsonSpace::kAny) {
  auto made = FormChecker::make({.kind = GrammarKind::kJsonSchema, .text = text, .space = space});
  EXPECT_TRUE(made) << text << ": " << made.error().to_string();
  return *made;
}

FormChecker expression(const std::string& text) {
  auto made = FormChecker::make({.kind = GrammarKind::kRegex, .text = text});
  EXPECT_TRUE(made) << text << ": " << made.error().to_string();
  return *made;
}

std::string copies(std::string_view part, int count) {
  std::string out = "\"";
  for (int i = 0; i < count; ++i) out += part;
  return out + '"';
}

TEST(Terminals, LengthsAreCharactersInWhateverSpelling) {
  for (const auto& [min, max] :
       {std::pair(0, 1), std::pair(2, 3), std::pair(3, 40), std::pair(100, 300)}) {
    const FormChecker form =
        schema(fmt::format(R"({{"type":"string","minLength":{},"maxLength":{}}})", min, max));
    for (const char* one :
         {"a", "é", "€", "😀", "\\n", "\\\"", "\\u0041", "\\ud83d\\ude00", "\\uD83D\\uDE00"}) {
      EXPECT_TRUE(form.accepts(copies(one, min))) << one << min;
      EXPECT_TRUE(form.accepts(copies(one, max))) << one << max;
      EXPECT_FALSE(form.accepts(copies(one, max + 1))) << one << max;
      EXPECT_EQ(form.accepts(copies(one, std::max(0, min - 1))), min == 0) << one << min;
    }
  }
}

TEST(Terminals, HalfACharacterTakesTheRoomOfOne) {
  const FormChecker form = schema(R"({"type":"string","maxLength":2})");
  EXPECT_EQ(form.behind("\"ab\xC3"), nullptr);
  EXPECT_EQ(form.behind("\"ab\\"), nullptr);
  EXPECT_NE(form.behind("\"a\\ud83d"), nullptr);
  EXPECT_EQ(form.behind("\"a\\ud83d\\u0041"), nullptr);  // no half pairs
  EXPECT_EQ(form.behind("\"a\\udc00"), nullptr);
  EXPECT_EQ(form.behind("\"a\xED\xA0"), nullptr);
  EXPECT_EQ(form.behind("\"a\xC0"), nullptr);
}

TEST(Terminals, KeysThatAreTakenAreNoOthers) {
  const FormChecker form =
      schema(R"({"type":"object","properties":{"a":{"type":"null"},"a\"b":{"type":"null"}},
"additionalProperties":{"type":"string","maxLength":1}})");
  EXPECT_TRUE(form.accepts(R"({"a": null, "b": "x", "": "", "aa": ""})"));
  EXPECT_TRUE(form.accepts(R"({"a\"": "x"})"));
  EXPECT_FALSE(form.accepts(R"({"b": "x", "a": ""})"));
  EXPECT_FALSE(form.accepts(R"({"a\"b": ""})"));
  EXPECT_FALSE(form.accepts(R"({"b": "xy"})"));
}

TEST(Terminals, TwoReadingsOfAStringAreKeptApart) {
  const FormChecker form = schema(R"({"anyOf":[
{"type":"object","properties":{"k":{"type":"string","minLength":3},"v":{"type":"integer"}},"required":["k","v"]},
{"type":"object","properties":{"k":{"enum":["ab"]},"v":{"type":"null"}},"required":["k","v"]}]})");
  EXPECT_TRUE(form.accepts(R"({"k": "ab", "v": null})"));
  EXPECT_TRUE(form.accepts(R"({"k": "abc", "v": 1})"));
  EXPECT_FALSE(form.accepts(R"({"k": "ab", "v": 1})"));
  EXPECT_FALSE(form.accepts(R"({"k": "abc", "v": null})"));
}

// Whatever the text so far, a token of several bytes is allowed where its bytes one by one are.
TEST(Terminals, ATokenIsAllowedWhereItsBytesAre) {
  const std::vector<GrammarSpec> specs = {
      {.kind = GrammarKind::kJsonSchema,
       .text = R"({"type":"string","minLength":2,"maxLength":5})"},
      {.kind = GrammarKind::kJsonSchema,
       .text = R"({"type":"object","properties":{"ab":{"type":"string","maxLength":4},
"n":{"type":"integer"},"p":{"type":"string","pattern":"^[a-c]{1,6}(12)?$"}},"required":["ab"],
"additionalProperties":{"type":"array","items":{"anyOf":[{"enum":["ab","a"]},{"type":"string","maxLength":2}]},"maxItems":3}})"},
      {.kind = GrammarKind::kJsonObject, .text = ""},
      {.kind = GrammarKind::kRegex, .text = "[a-z]{3,12}"},
      {.kind = GrammarKind::kRegex, .text = "(?:\"[^\"]{0,4}\" )*[0-9é]+"},
  };
  std::mt19937 random(7);
  for (const GrammarSpec& spec : specs) {
    const auto form = FormChecker::make(spec);
    ASSERT_TRUE(form) << form.error().to_string();
    for (int walk = 0; walk < 3; ++walk) {
      const auto matcher = form->start();
      std::string text;
      for (int step = 0; step < 16; ++step) {
        const auto words = FormChecker::allowed(*matcher);
        std::vector<int32_t> next;
        for (int32_t token = 0; token < FormChecker::vocabulary().size; ++token) {
          if (token == kCheckerStop) continue;
          const std::string& bytes =
              FormChecker::vocabulary().token_bytes[static_cast<size_t>(token)];
          const bool allowed = FormChecker::has(words, token);
          if (allowed) next.push_back(token);
          if (token > kCheckerStop) {
            EXPECT_EQ(allowed, form->behind(text + bytes) != nullptr)
                << spec.text << " at " << text << " token " << bytes;
          }
        }
        if (next.empty()) break;
        const int32_t token = next[random() % 3 == 0 ? next.size() - 1 : random() % next.size()];
        ASSERT_TRUE(matcher->advance(token));
        text += FormChecker::vocabulary().token_bytes[static_cast<size_t>(token)];
      }
    }
  }
}

TEST(Patterns, MatchWhatTheRegularExpressionMatches) {
  for (const char* pattern : {"a", "a|b", "(?:a|ab)(?:c|bcd)", "a*b", "(?:ab)+", "a{2,3}",
                              "(?:a|b){0,2}c", "a?b?c?", "[^a]b", "(?:a*)*b", "(?:|a)+",
                              "[a-c1]\\d?", ".a", "é{1,2}", "(?:a{0,2}b){1,2}", "[b-c]{3,}"}) {
    const FormChecker form = expression(pattern);
    const auto arbiter = text::Regex::compile(fmt::format("\\A(?:{})\\z", pattern), "");
    ASSERT_TRUE(arbiter);
    const std::vector<std::string> letters = {"a", "b", "c", "d", "é", "1"};
    std::vector<std::string> texts = {""};
    for (size_t i = 0; i < texts.size() && texts.size() < 1500; ++i) {
      for (const std::string& letter : letters) texts.push_back(texts[i] + letter);
    }
    for (const std::string& one : texts) {
      bool matches = false;
      ASSERT_TRUE(arbiter->for_each_match(one, [&](size_t, size_t) { matches = true; }));
      ASSERT_EQ(form.accepts(one), matches) << pattern << " on '" << one << "'";
    }
  }
}

// Python counts from 0, ECMA-262 has the characters.
TEST(Patterns, ARepetitionSaysWhereItBegins) {
  const auto refused = FormChecker::make({GrammarKind::kRegex, "ab{,5}c"});
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message.find("'{,5}' is written '{0,5}'"), std::string::npos)
      << refused.error().message;
  EXPECT_TRUE(FormChecker::make({GrammarKind::kRegex, "ab{0,5}c"}).has_value());
}

TEST(Patterns, LongRepetitionsEndWhereTheyShould) {
  const FormChecker form = schema(R"({"type":"string","pattern":"^[A-Z][a-z ]{0,300}\\.$"})");
  EXPECT_TRUE(form.accepts("\"A" + std::string(300, 'b') + ".\""));
  EXPECT_FALSE(form.accepts("\"A" + std::string(301, 'b') + ".\""));
  EXPECT_FALSE(form.accepts("\"Ab\""));
  const FormChecker bounded =
      schema(R"({"type":"string","pattern":"^x[a-z]*$","minLength":3,"maxLength":200})");
  EXPECT_TRUE(bounded.accepts("\"x" + std::string(199, 'b') + "\""));
  EXPECT_FALSE(bounded.accepts("\"x" + std::string(200, 'b') + "\""));
  EXPECT_FALSE(bounded.accepts("\"xb\""));
  const FormChecker somewhere =
      schema(R"({"type":"string","pattern":"[^a-z\\\\]{40,300}!|needle"})");
  EXPECT_TRUE(somewhere.accepts("\"a" + std::string(40, 'A') + "!b\""));
  EXPECT_TRUE(somewhere.accepts("\"€needleneedle\""));
  EXPECT_FALSE(somewhere.accepts("\"a" + std::string(39, 'A') + "!needl\""));
  const auto impossible = FormChecker::make(
      {.kind = GrammarKind::kJsonSchema, .text = R"({"type":"string","pattern":"^[^\\s\\S]$"})"});
  EXPECT_FALSE(impossible);
}

TEST(Patterns, EscapesHaveOneSpelling) {
  const FormChecker form = schema(R"({"type":"string","pattern":"^[\\n\"\\u0001é]+$"})");
  EXPECT_TRUE(form.accepts(R"("\n\"\u0001é")"));
  EXPECT_FALSE(form.accepts(R"("\u000a")"));
  EXPECT_FALSE(form.accepts("\"\n\""));
}

TEST(Numbers, RangesHoldEachWholeNumber) {
  for (const auto& [min, max] : {std::pair(0, 150), std::pair(-37, 12), std::pair(99, 101),
                                 std::pair(-1000, -998), std::pair(7, 7)}) {
    const FormChecker form =
        schema(fmt::format(R"({{"type":"integer","minimum":{},"maximum":{}}})", min, max));
    for (int value = min - 120; value <= max + 120; ++value) {
      EXPECT_EQ(form.accepts(fmt::format("{}", value)), min <= value && value <= max) << value;
    }
    EXPECT_FALSE(form.accepts("007"));
    EXPECT_FALSE(form.accepts("-0"));
  }
}

TEST(Numbers, BoundsHoldFractions) {
  const FormChecker form = schema(R"({"type":"number","exclusiveMinimum":-1.25,"maximum":2.5})");
  for (const char* inside : {"0", "2.5", "2.500", "-1.249", "-1.2", "1.0000001", "2"}) {
    EXPECT_TRUE(form.accepts(inside)) << inside;
  }
  for (const char* outside : {"2.501", "-1.25", "-1.250", "-1.3", "3", "25", "-2", "2.", ".5"}) {
    EXPECT_FALSE(form.accepts(outside)) << outside;
  }
}

TEST(Arrays, HoldAsManyItemsAsTheyMay) {
  for (const auto& [min, max] : {std::pair(0, 70), std::pair(3, 64), std::pair(65, 130),
                                 std::pair(127, 193), std::pair(129, 129), std::pair(66, 1000)}) {
    const FormChecker form = schema(fmt::format(
        R"({{"type":"array","items":{{"const":1}},"minItems":{},"maxItems":{}}})", min, max));
    // Whether it ends behind so many items, and goes on.
    const auto matcher = form.start();
    ASSERT_TRUE(matcher->advance('['));
    for (int count = 0; count <= max; ++count) {
      if (count > 1) {
        ASSERT_TRUE(matcher->advance(',')) << count << " of " << max;
      }
      if (count > 0) {
        ASSERT_TRUE(matcher->advance('1')) << count << " of " << max;
      }
      if (count % 16 != 0 && std::abs(count - min) > 1 && max - count > 1) continue;
      const auto words = FormChecker::allowed(*matcher);
      EXPECT_EQ(FormChecker::has(words, ']'), count >= min) << count << " of " << max;
      EXPECT_EQ(FormChecker::has(words, count == 0 ? '1' : ','), count < max) << count;
    }
  }
}

TEST(TerminalText, IsReadAsItWasWritten) {
  Terminal keys;
  keys.set = CharSet::all();
  keys.excluded = {"a", "", "q\"x"};
  Terminal words;
  words.pattern = "^[a-z]+;,$";
  words.quoted = false;
  words.max = 7;
  for (const Terminal& terminal : {keys, words}) {
    const std::string text = to_text(terminal);
    EXPECT_EQ(description_length(text + "x"), text.size());
    const std::optional<Terminal> read = read_description(text);
    ASSERT_TRUE(read) << text;
    EXPECT_EQ(to_text(*read), text);
    EXPECT_EQ(read->excluded, terminal.excluded);
    EXPECT_EQ(read->pattern, terminal.pattern);
  }
  // Marks without a description of one in between are none.
  for (const char* other :
       {"\xEF\xB7\x90", "\xEF\xB7\x90q,a\xEF\xB7\x91", "\xEF\xB7\x91\xEF\xB7\x90"}) {
    EXPECT_FALSE(read_description(other)) << other;
  }
  EXPECT_EQ(description_length("a"), 0u);
}

}  // namespace
}  // namespace rudder::constraint
