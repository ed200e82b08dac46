// Texts of strangers as forms: whatever stands in a schema, an expression, a list, a grammar or a
// tag is answered with a form or a typed error, in bounded time. Seeded; runs under asan.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <iterator>
#include <random>

#include "rudder/constraint/form_checker.h"

namespace rudder::constraint {
namespace {

using Clock = std::chrono::steady_clock;

// Of each kind, at most; ten times as much in full.
constexpr std::chrono::milliseconds kBudget{500};
constexpr int kTexts = 400;

constexpr const char* kSchemas[] = {
    R"({"type":"object","properties":{"a":{"type":"string","maxLength":5},"b":{"type":"integer","minimum":-3,"maximum":77}},"required":["b"]})",
    R"({"type":"array","items":{"anyOf":[{"type":"null"},{"enum":["x","y\n",1.5]}]},"minItems":1,"maxItems":4})",
    R"({"$ref":"#/$defs/t","$defs":{"t":{"type":"object","properties":{"n":{"$ref":"#/$defs/t"}}}}})",
    R"({"type":"string","pattern":"^[a-f]{2,8}(-\\d+)*$"})",
    R"({"type":"string","format":"ipv4"})",
    R"({"oneOf":[{"type":"number","exclusiveMaximum":1e3},{"type":"string","minLength":2}]})",
    R"({"allOf":[{"type":"integer","minimum":1},{"maximum":9}],"multipleOf":2})",
    R"({"type":"object","patternProperties":{"^x":{"type":"boolean"}},"additionalProperties":false})"};
constexpr const char* kExpressions[] = {
    "[a-z]{3,40}", "(?:ab|c)*d?",   "\\d{1,3}(\\.\\d+)?", "[^\\n\\x00-\\u00ff]+x|y{2}",
    "^(a|b)$",     "(\\w+\\s){2,5}"};
constexpr const char* kGrammars[] = {
    "root ::= item (\",\" item)*\nitem ::= [0-9a-f]+ | \"(\" root \")\"\n",
    "root ::= \"a\" root | \"\"\n", "root ::= [^\"\\\\]{2,9} \"x\"?\n"};
constexpr const char* kLists[] = {R"(["yes","no","may be"])", R"(["a","ab","abc",""])"};
constexpr const char* kTags[] = {
    R"({"type":"structural_tag","format":{"type":"tag","begin":"<a>","end":"</a>","content":{"type":"json_schema","json_schema":{"type":"string","maxLength":3}}}})",
    R"({"type":"structural_tag","format":{"type":"sequence","elements":[{"type":"const_string","value":"x"},{"type":"any_text"}]}})"};
// What changes are made of.
constexpr const char* kPieces[] = {"{",
                                   "}",
                                   "[",
                                   "]",
                                   "(",
                                   ")",
                                   "\"",
                                   "\\",
                                   ",",
                                   ":",
                                   "*",
                                   "+",
                                   "?",
                                   "|",
                                   "^",
                                   "$",
                                   "-",
                                   "{0,3}",
                                   "{2,}",
                                   "{70,90}",
                                   "0",
                                   "1",
                                   "9",
                                   "-1",
                                   "1e9",
                                   "1e400",
                                   "1000000000000",
                                   "0.1",
                                   "null",
                                   "true",
                                   "a",
                                   "\\u0000",
                                   "\\ud800",
                                   "é",
                                   "\xF0\x9F\x98\x80",
                                   "\n",
                                   " ",
                                   "#",
                                   "type",
                                   "$ref",
                                   "pattern",
                                   "minLength",
                                   "maxItems",
                                   "(?:",
                                   "(?=",
                                   "[^",
                                   "::=",
                                   "root",
                                   "Token(3)",
                                   "Token(99999)",
                                   "\xEF\xB7\x90",
                                   "\xEF\xB7\x91",
                                   "\xEF\xB7\x90q,a,0,5;0-10ffff;;;\xEF\xB7\x91"};

class FormFuzz : public ::testing::Test {
 protected:
  std::string changed(std::string text) {
    const size_t changes = 1 + random_() % 4;
    for (size_t i = 0; i < changes; ++i) {
      const size_t at = random_() % (text.size() + 1);
      switch (random_() % 4) {
        case 0:
          text.insert(at, kPieces[random_() % std::size(kPieces)]);
          break;
        case 1:
          text.erase(at, random_() % 8);
          break;
        case 2: {
          const std::string copy = text.substr(at, random_() % 24);
          text.insert(random_() % (text.size() + 1), copy);
          break;
        }
        default:
          if (at < text.size()) text.replace(at, 1, kPieces[random_() % std::size(kPieces)]);
      }
    }
    return text;
  }
  // Bytes that are UTF-8, as all text of requests is.
  std::string random_text() {
    std::string text;
    const size_t pieces = random_() % 12;
    for (size_t i = 0; i < pieces; ++i) text += kPieces[random_() % std::size(kPieces)];
    return text;
  }

  template <size_t kCount>
  void run(GrammarKind kind, const char* const (&seeds)[kCount], int times = 1) {
    const Clock::time_point end = Clock::now() + kBudget * times;
    int forms = 0;
    int errors = 0;
    int i = 0;
    for (; i < kTexts * times && Clock::now() < end; ++i) {
      GrammarSpec spec = {.kind = kind, .text = seeds[static_cast<size_t>(i) % kCount]};
      if (i >= static_cast<int>(kCount)) {
        spec.text = random_() % 8 == 0 ? random_text() : changed(spec.text);
      }
      if (random_() % 2 == 0) spec.space = JsonSpace::kCompact;
      const auto compiled = FormChecker::engine().compile(spec);
      if (!compiled) {
        EXPECT_FALSE(compiled.error().message.empty());
        ++errors;
        continue;
      }
      ++forms;
      follow(*compiled->constraint, spec.text);
    }
    EXPECT_GT(forms, 0);
    EXPECT_TRUE(errors > 0 || i < kTexts * times);  // a slow machine may not come so far
  }

  // Texts that end in the middle of each thing that they have.
  template <size_t kCount>
  void run_prefixes(GrammarKind kind, const char* const (&seeds)[kCount]) {
    for (const std::string_view seed : seeds) {
      for (size_t length = 0; length < seed.size(); ++length) {
        const GrammarSpec spec = {.kind = kind, .text = std::string(seed.substr(0, length))};
        const auto compiled = FormChecker::engine().compile(spec);
        EXPECT_TRUE(compiled || !compiled.error().message.empty()) << spec.text;
      }
    }
  }

  // A token that may come, but no end; -1: there is none.
  int32_t any_of(const std::vector<uint32_t>& words) {
    std::vector<int32_t> next;
    for (int32_t token = 0; token < FormChecker::vocabulary().size; ++token) {
      if (token != kCheckerStop && FormChecker::has(words, token)) next.push_back(token);
    }
    return next.empty() ? -1 : next[random_() % next.size()];
  }

  // A trial within one, behind which the mask is what it was; but dear ones have one purse.
  void try_branch(Matcher& matcher, int depth) {
    const auto words = FormChecker::allowed(matcher);
    try_some(matcher, depth - 1);
    if (matcher.is_dear()) return;
    EXPECT_EQ(words, FormChecker::allowed(matcher));
  }

  // Tokens that are taken back leave no trace.
  void try_some(Matcher& matcher, int depth = 2) {
    matcher.begin_trial();
    for (int tokens = static_cast<int>(random_() % 6); tokens > 0; --tokens) {
      const int32_t token = any_of(FormChecker::allowed(matcher));
      if (token < 0 || !matcher.advance(token)) break;
      if (depth > 0 && random_() % 3 == 0) try_branch(matcher, depth);
    }
    matcher.end_trial();
  }

  void follow(const Constraint& constraint, const std::string& text) {
    const auto matcher = constraint.start();
    const auto untried = constraint.start();
    for (int step = 0; step < 12; ++step) {
      try_some(*matcher);
      const auto words = FormChecker::allowed(*matcher);
      EXPECT_EQ(words, FormChecker::allowed(*untried)) << text;
      const int32_t token = any_of(words);
      if (token < 0) return;
      const Result<void> advanced = matcher->advance(token);
      EXPECT_EQ(untried->advance(token).has_value(), advanced.has_value()) << text;
      // What a mask allows goes on; an ambiguous grammar may be ended.
      if (!advanced) {
        EXPECT_EQ(advanced.error().code, ErrorCode::kInvalidArgument)
            << text << ": " << advanced.error().message;
        return;
      }
    }
  }

  std::mt19937 random_{20240229};
};

TEST_F(FormFuzz, Schemas) {
  run(GrammarKind::kJsonSchema, kSchemas);
}
TEST_F(FormFuzz, Expressions) {
  run(GrammarKind::kRegex, kExpressions);
}
TEST_F(FormFuzz, Grammars) {
  run(GrammarKind::kEbnf, kGrammars);
}
TEST_F(FormFuzz, Lists) {
  run(GrammarKind::kChoice, kLists);
}
TEST_F(FormFuzz, Tags) {
  run(GrammarKind::kStructuralTag, kTags);
}

TEST_F(FormFuzz, TextsThatAreCut) {
  run_prefixes(GrammarKind::kJsonSchema, kSchemas);
  run_prefixes(GrammarKind::kRegex, kExpressions);
  run_prefixes(GrammarKind::kEbnf, kGrammars);
  run_prefixes(GrammarKind::kChoice, kLists);
  run_prefixes(GrammarKind::kStructuralTag, kTags);
}

using FormFuzzFull = FormFuzz;
TEST_F(FormFuzzFull, EachKind) {
  constexpr int kTimes = 10;
  run(GrammarKind::kJsonSchema, kSchemas, kTimes);
  run(GrammarKind::kRegex, kExpressions, kTimes);
  run(GrammarKind::kEbnf, kGrammars, kTimes);
  run(GrammarKind::kChoice, kLists, kTimes);
  run(GrammarKind::kStructuralTag, kTags, kTimes);
}

}  // namespace
}  // namespace rudder::constraint
