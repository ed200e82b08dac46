// The memo of masks: what it keeps, and that masks with it are those without it, in every state of
// outputs that come to equal states again and again.
#include "rudder/constraint/mask_memo.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <string>
#include <thread>

#include "rudder/constraint/form_checker.h"

namespace rudder::constraint {
namespace {

TEST(MaskMemo, AddsTheBitsOfItsKey) {
  MaskMemo memo(size_t{1} << 20);
  std::array<uint32_t, 3> mask = {8, 0, 1};
  EXPECT_FALSE(memo.add_to(mask, "key"));
  memo.keep(std::array<uint32_t, 3>{1, 0, 6}, "key");
  memo.keep(std::array<uint32_t, 3>{2, 2, 2}, "other");
  EXPECT_TRUE(memo.add_to(mask, "key"));
  EXPECT_EQ(mask, (std::array<uint32_t, 3>{9, 0, 7}));
  EXPECT_EQ(memo.stats().lookups, 2u);
  EXPECT_EQ(memo.stats().hits, 1u);
}

TEST(MaskMemo, KeepsWhatWasUsedLately) {
  constexpr size_t kBytes = 4000;
  MaskMemo memo(kBytes);
  std::array<uint32_t, 10> mask = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  memo.keep(mask, "first");
  for (int i = 0; i < 100; ++i) {
    EXPECT_TRUE(memo.add_to(mask, "first")) << i;
    memo.keep(mask, std::to_string(i));
    EXPECT_LE(memo.stats().bytes, kBytes);
  }
  EXPECT_TRUE(memo.add_to(mask, "99"));
  EXPECT_FALSE(memo.add_to(mask, "0"));
  memo.keep(std::vector<uint32_t>(kBytes, 1), "longer than all of it");
  EXPECT_TRUE(memo.add_to(mask, "first"));
}

// The checker's, and the signs of JSON in all orders: enough to try for states to be kept.
Vocabulary signs() {
  Vocabulary vocabulary = checker_vocabulary();
  constexpr std::string_view kSigns = "{}[],:\" \n1";
  for (const char a : kSigns) {
    for (const char b : kSigns) {
      vocabulary.token_bytes.push_back({a, b});
      for (const char c : kSigns) vocabulary.token_bytes.push_back({a, b, c});
    }
  }
  vocabulary.size = static_cast<int32_t>(vocabulary.token_bytes.size());
  return vocabulary;
}

const std::vector<GrammarSpec>& forms() {
  const auto schema = [](const char* text, JsonSpace space = JsonSpace::kAny) {
    return GrammarSpec{.kind = GrammarKind::kJsonSchema, .text = text, .space = space};
  };
  static const std::vector<GrammarSpec> forms = {
      {.kind = GrammarKind::kJsonObject, .text = ""},
      schema(
          R"({"$ref":"#/$defs/n","$defs":{"n":{"type":"object","properties":{"a":{"type":"string"},
"c":{"type":"array","items":{"$ref":"#/$defs/n"}}},"required":["c"]}}})"),
      schema(R"({"type":"array","items":{"type":"integer"},"minItems":3,"maxItems":6})"),
      schema(R"({"type":"array","items":{"const":1},"minItems":66,"maxItems":70})"),
      schema(R"({"type":"array","items":{"const":1},"minItems":130,"maxItems":200})"),
      schema(
          R"({"type":"array","items":{"type":"array","items":{"const":1},"maxItems":66},"maxItems":70})",
          JsonSpace::kCompact),
      schema(R"({"type":"object","properties":{"a":{"type":"integer"},"ab":{"type":"string"}},
"additionalProperties":{"type":"array","items":{"type":"string","maxLength":3}}})"),
      schema(
          R"({"type":"array","items":{"anyOf":[{"enum":["ab","a",""]},{"type":"string","minLength":2,"maxLength":3},
{"type":"object","additionalProperties":{"type":"boolean"}}]}})"),
      {.kind = GrammarKind::kStructuralTag,
       .text =
           R"({"type":"structural_tag","format":{"type":"tag","begin":"{1","end":"1}",
"content":{"type":"json_schema","json_schema":{"type":"array","items":{"type":"array","items":{"type":"string"}}}}}})"},
      {.kind = GrammarKind::kStructuralTag,
       .text =
           R"({"type":"structural_tag","format":{"type":"triggered_tags","triggers":["{1","[[,"],"tags":[
{"type":"tag","begin":"{1:","end":"}","content":{"type":"json_schema","json_schema":{"type":"array"}}},
{"type":"tag","begin":"[[,","end":"]\n","content":{"type":"any_text"}}]}})"},
      schema(R"({"type":"array","items":{"type":"string","pattern":"^[1 ]{0,3}:?$"}})")};
  return forms;
}

std::shared_ptr<const Constraint> compile(const FormEngine& engine, const GrammarSpec& spec) {
  auto compiled = engine.compile(spec);
  EXPECT_TRUE(compiled) << spec.text << ": " << compiled.error().to_string();
  return compiled->constraint;
}

std::vector<uint32_t> allowed(Matcher& matcher, const Vocabulary& vocabulary) {
  std::vector<uint32_t> words(mask_words(vocabulary.size), ~uint32_t{0});
  EXPECT_TRUE(matcher.restrict(words));
  return words;
}

// Walks the form twice side by side, by tokens that open and close things more often than not.
void compare(const Constraint& with, const Constraint& without, const Vocabulary& vocabulary,
             uint32_t seed, const std::string& name) {
  std::mt19937 random(seed);
  const auto one = with.start();
  const auto other = without.start();
  std::string text;
  for (int step = 0; step < 80; ++step) {
    const std::vector<uint32_t> mask = allowed(*one, vocabulary);
    ASSERT_EQ(mask, allowed(*other, vocabulary)) << name << " behind " << text;
    std::vector<int32_t> next;
    std::vector<int32_t> signs;
    int32_t refused = 0;
    for (int32_t token = 0; token < vocabulary.size; ++token) {
      const std::string& bytes = vocabulary.token_bytes[static_cast<size_t>(token)];
      if (token == kCheckerStop) continue;
      if (!is_in_mask(mask, token)) {
        if (random() % 8 == 0) refused = token;
        continue;
      }
      next.push_back(token);
      if (bytes.find_first_of("{}[],\"") != std::string::npos) signs.push_back(token);
    }
    if (next.empty()) return;
    // What is refused leaves the state as it is.
    if (refused != 0 && random() % 4 == 0) {
      EXPECT_FALSE(one->advance(refused));
      ASSERT_EQ(allowed(*one, vocabulary), mask) << name << " behind " << text;
    }
    const std::vector<int32_t>& from = !signs.empty() && random() % 4 != 0 ? signs : next;
    const int32_t token = from[random() % from.size()];
    ASSERT_TRUE(one->advance(token));
    ASSERT_TRUE(other->advance(token));
    text += vocabulary.token_bytes[static_cast<size_t>(token)];
  }
}

TEST(MasksOfEqualStates, AreThoseOfEachState) {
  const Vocabulary vocabulary = signs();
  const FormEngine with(vocabulary, 4 << 20);
  const FormEngine without(vocabulary, 0);
  for (const GrammarSpec& spec : forms()) {
    const auto form = compile(with, spec);
    const auto arbiter = compile(without, spec);
    const uint64_t before = with.memo_stats().hits;
    for (uint32_t seed = 0; seed < 12; ++seed) {
      compare(*form, *arbiter, vocabulary, seed, spec.text);
    }
    EXPECT_GT(with.memo_stats().hits, before + 20) << spec.text;
  }
  EXPECT_EQ(without.memo_stats().hits, 0u);
  EXPECT_EQ(without.memo_stats().bytes, 0u);
}

TEST(MasksOfEqualStates, AreSharedByThreads) {
  const Vocabulary vocabulary = signs();
  // So small that what one thread needs is put out by others.
  const FormEngine with(vocabulary, 20'000);
  const FormEngine without(vocabulary, 0);
  for (const GrammarSpec& spec : {forms().front(), forms().back()}) {
    const auto form = compile(with, spec);
    const auto arbiter = compile(without, spec);
    std::vector<std::thread> threads;
    for (uint32_t first = 0; first < 4; ++first) {
      threads.emplace_back([&, first] {
        for (uint32_t seed = first; seed < 16; seed += 3) {
          compare(*form, *arbiter, vocabulary, seed, spec.text);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  EXPECT_LE(with.memo_stats().bytes, 20'000u);
}

}  // namespace
}  // namespace rudder::constraint
