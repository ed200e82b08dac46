// Schemas on their way to a grammar: the forms that drafts spell differently are one, and whatever
// a schema asks for, its translation ends within its fuel.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "rudder/base/cpu_time.h"
#include "rudder/constraint/form_checker.h"
#include "rudder/constraint/translate.h"

namespace rudder::constraint {
namespace {

Result<std::string> translated(const std::string& schema) {
  return to_ebnf({.kind = GrammarKind::kJsonSchema, .text = schema, .space = JsonSpace::kCompact});
}

// What both schemas are translated to is the same.
void expect_same(const std::string& one, const std::string& other) {
  const auto a = translated(one);
  const auto b = translated(other);
  ASSERT_TRUE(a) << one << ": " << a.error().to_string();
  ASSERT_TRUE(b) << other << ": " << b.error().to_string();
  EXPECT_EQ(*a, *b) << one << " and " << other;
}

TEST(SchemaDocument, DraftsAreOneForm) {
  expect_same(R"({"items":[{"type":"integer"},{"type":"null"}],"additionalItems":{"const":1}})",
              R"({"prefixItems":[{"type":"integer"},{"type":"null"}],"items":{"const":1}})");
  expect_same(R"({"items":[{"type":"integer"}]})", R"({"prefixItems":[{"type":"integer"}]})");
  expect_same(R"({"type":"array","items":[],"additionalItems":{"const":1}})",
              R"({"type":"array","items":{"const":1}})");
  expect_same(R"({"type":"array","additionalItems":{"const":1}})", R"({"type":"array"})");
  expect_same(R"({"type":"integer","minimum":3,"exclusiveMinimum":true})",
              R"({"type":"integer","exclusiveMinimum":3})");
  expect_same(R"({"type":"number","maximum":3,"exclusiveMaximum":false,"id":"http://x"})",
              R"({"type":"number","maximum":3})");
}

TEST(SchemaDocument, ReferencesFollowThePathThatWasSent) {
  expect_same(
      R"({"items":[{"type":"null"},{"$ref":"#/items/0"}],"additionalItems":{"$ref":"#/items/1"}})",
      R"({"prefixItems":[{"type":"null"},{"$ref":"#/prefixItems/0"}],"items":{"$ref":"#/prefixItems/1"}})");
  expect_same(R"({"items":[{"type":"null"}],"additionalItems":{"type":"null"},
                  "properties":{"a":{"$ref":"#/additionalItems"}}})",
              R"({"prefixItems":[{"type":"null"}],"items":{"type":"null"},
                  "properties":{"a":{"$ref":"#/items"}}})");
}

// What binds nothing is not carried about, and a part that binds alone stays a reference: its
// target is built once, however many parts with remarks alone stand beside it.
TEST(SchemaDocument, RemarksCostNothing) {
  const std::string defs = R"("$defs":{"a":{"type":"object","properties":{"b":{"type":"null"}}}})";
  expect_same(R"({"properties":{"x":{"allOf":[{"$ref":"#/$defs/a"},{"description":"old"}]},
                 "y":{"$ref":"#/$defs/a"}},)" +
                  defs + "}",
              R"({"properties":{"x":{"$ref":"#/$defs/a"},"y":{"$ref":"#/$defs/a"}},)" + defs + "}");
  expect_same(R"({"allOf":[true,{"title":"t"},{"enum":[1,2]}],"minimum":2})", R"({"enum":[2]})");
  expect_same(R"({"allOf":[{"title":"t"},true]})", "true");
  const auto held = [](const std::string& remark) {
    Fuel fuel;
    const std::string schema = R"({"description":")" + remark + R"(","type":"object","allOf":[
        {"if":{"required":["a"]},"then":{"required":["b"]}},
        {"if":{"required":["c"]},"then":{"required":["d"]}}],
        "properties":{"a":{"title":")" +
                               remark + R"("},"b":{},"c":{},"d":{}}})";
    const GrammarSpec spec = {.kind = GrammarKind::kJsonSchema, .text = schema};
    EXPECT_TRUE(to_ebnf(fuel, spec));
    return fuel.used();
  };
  // Looked at once, as every byte of the text is, and not at each of the ways that are joined.
  EXPECT_LE(held(std::string(10'000, 'x')), held("x") + 10'000);
}

// Annotations that a reference leads into are kept.
TEST(SchemaDocument, ReferencesLeadIntoNamesOfOthers) {
  expect_same(R"({"$ref":"#/x-parts/0/a","x-parts":[{"a":{"type":"null"}}],"x-other":[{"a":1}]})",
              R"({"$ref":"#/$defs/a","$defs":{"a":{"type":"null"}}})");
}

// A schema with a name of its own is a document: what it refers to is looked up in it.
TEST(SchemaDocument, DocumentsMayLieInIt) {
  const std::string flat = R"({"properties":{"a":{"$ref":"#/$defs/n"},"b":{"$ref":"#/$defs/s"}},
                               "$defs":{"n":{"type":"null"},"s":{"type":"string"}}})";
  const std::string with_rule =
      R"({"properties":{"a":{"$ref":"#/$defs/i"},"b":{"$ref":"#/$defs/s"}},
                  "$defs":{"i":{"$ref":"#/$defs/n"},"n":{"type":"null"},"s":{"type":"string"}}})";
  const auto nested = [](std::string_view id, std::string_view own, std::string_view to) {
    return fmt::format(
        R"({{{}"properties":{{"a":{{"$ref":"{}"}},"b":{{"$ref":"#/$defs/n"}}}},
            "$defs":{{"n":{{"type":"string"}},"inner":{{"$id":"{}",
                      "$ref":"#/$defs/n","$defs":{{"n":{{"type":"null","$anchor":"here"}}}}}}}}}})",
        id, to, own);
  };
  const char* base = R"("$id":"https://example.com/a/root.json",)";
  expect_same(nested("", "inner.json", "inner.json"), with_rule);
  expect_same(nested("", "inner.json", "inner.json#/$defs/n"), flat);
  expect_same(nested(base, "inner.json", "https://example.com/a/inner.json"), with_rule);
  expect_same(nested(base, "/b/inner.json", "../b/inner.json#here"), flat);
  expect_same(nested(base, "https://other.org/x", "https://other.org/x"), with_rule);
  // Generators name schemas that are no documents.
  expect_same(
      R"({"properties":{"a":{"$id":"/properties/a","allOf":[{"$ref":"#/$defs/n"}]}},"$defs":{"n":{"type":"null"}}})",
      R"({"properties":{"a":{"$ref":"#/$defs/n"}},"$defs":{"n":{"type":"null"}}})");
  EXPECT_FALSE(translated(nested(base, "inner.json", "https://example.com/inner.json")));
  EXPECT_FALSE(translated(nested(base, "inner.json", "other.json#/$defs/n")));
}

TEST(SchemaMerge, TakesListsOfItemsFromEitherSide) {
  expect_same(R"({"allOf":[{"items":[{"type":"integer"}]}],"items":[{"type":"integer"}]})",
              R"({"prefixItems":[{"allOf":[{"type":"integer"},{"type":"integer"}]}]})");
  expect_same(R"({"allOf":[{"items":{"type":"integer"}}],"items":[{"minimum":3}]})",
              R"({"prefixItems":[{"type":"integer","minimum":3}],"items":{"type":"integer"}})");
}

std::string refused_at(const std::string& schema) {
  const auto made = translated(schema);
  return made ? "accepted" : made.error().where;
}

TEST(SchemaKeywords, NamesOfOthersAreAnnotationsAndSlipsAreNot) {
  expect_same(R"({"type":"null","links":[1],"x-order":2,"vendor":{"type":5},"$anchor":"a"})",
              R"({"type":"null"})");
  expect_same(R"({"type":"string","format":"color"})", R"({"type":"string"})");
  EXPECT_EQ(refused_at(R"({"additonalProperties":false})"), ".additonalProperties");
  EXPECT_EQ(refused_at(R"({"properties":{"a":{"maxlength":3}}})"), ".properties.a.maxlength");
  EXPECT_EQ(refused_at(R"({"type":"object","requierd":["a"]})"), ".requierd");
  EXPECT_EQ(refused_at(R"({"allof":[{}]})"), ".allof");
  EXPECT_EQ(refused_at(R"({"item":{}})"), "accepted");  // a short word of another's
  EXPECT_EQ(refused_at(R"({"not":{"propertyNames":{"pattern":"a"}}})"), ".not.propertyNames");
  // A mark in front makes another name of it.
  EXPECT_EQ(refused_at(R"({"_format":"date","@type":"x","_uniqueItems":true})"), "accepted");
  // The normal form's own words are none of a client's.
  EXPECT_EQ(refused_at(R"({"conditions":[],"noneOf":[{}]})"), "accepted");
  EXPECT_EQ(refused_at(R"({"#noneOf":[{}]})"), ".#noneOf");
  EXPECT_EQ(refused_at(R"({"#conditions":[]})"), ".#conditions");
}

TEST(SchemaKeywords, BindTheirOwnTypeAlone) {
  expect_same(R"({"minLength":2})",
              R"({"anyOf":[{"type":"object"},{"type":"array"},{"type":"string","minLength":2},
                  {"type":"number"},{"type":"boolean"},{"type":"null"}]})");
}

// Terms of keywords over a few values, as schemas and as the sets of those that they accept.
class Algebra {
 public:
  struct Value {
    const char* text = "";
    const char* type = "";
    double number = 0;  // of a number
  };
  struct Term {
    std::string schema;
    unsigned accepted = 0;  // bit i: values[i]
  };

  Algebra(uint32_t seed, std::vector<Value> values) : random_(seed), values_(std::move(values)) {}

  const std::vector<Value>& values() const { return values_; }
  Term term(int depth) {
    if (depth == 0) return leaf();
    const Term a = term(depth - 1);
    const Term b = term(pick(depth));
    const Term c = term(pick(depth));
    switch (pick(6)) {
      case 0:
        return {fmt::format(R"({{"not":{}}})", a.schema), all() & ~a.accepted};
      case 1:
        return {fmt::format(R"({{"allOf":[{},{}]}})", a.schema, b.schema), a.accepted & b.accepted};
      case 2:
        return {fmt::format(R"({{"anyOf":[{},{}]}})", a.schema, b.schema), a.accepted | b.accepted};
      case 3:
        return {fmt::format(R"({{"if":{},"then":{},"else":{}}})", a.schema, b.schema, c.schema),
                (a.accepted & b.accepted) | (~a.accepted & c.accepted)};
      default: {
        const unsigned two =
            (a.accepted & b.accepted) | (a.accepted & c.accepted) | (b.accepted & c.accepted);
        return {fmt::format(R"({{"oneOf":[{},{},{}]}})", a.schema, b.schema, c.schema),
                (a.accepted | b.accepted | c.accepted) & ~two};
      }
    }
  }

 private:
  unsigned all() const { return (1U << values_.size()) - 1; }
  int pick(int count) { return static_cast<int>(random_() % static_cast<unsigned>(count)); }
  template <typename Test>
  unsigned those(const Test& test) const {
    unsigned bits = 0;
    for (size_t i = 0; i < values_.size(); ++i) bits |= test(values_[i]) ? 1U << i : 0U;
    return bits;
  }
  static bool has_type(const Value& value, std::string_view type) {
    const bool is_number = value.type == std::string_view("number");
    return value.type == type ||
           (type == "integer" && is_number && value.number == std::floor(value.number));
  }
  Term leaf() {
    static const char* const types[] = {"integer", "number", "string", "boolean", "null"};
    const int number = pick(4);
    const auto binds = [](const Value& value, bool holds) {
      return holds || !has_type(value, "number");
    };
    switch (pick(8)) {
      case 0:
        return {"true", all()};
      case 1:
        return {"false", 0};
      case 2:
        return {R"({"minLength":2})",
                those([](const Value& value) { return !has_type(value, "string"); })};
      case 3:
        return {fmt::format(R"({{"minimum":{}}})", number),
                those([&](const Value& value) { return binds(value, value.number >= number); })};
      case 4:
        return {fmt::format(R"({{"exclusiveMaximum":{}}})", number),
                those([&](const Value& value) { return binds(value, value.number < number); })};
      case 5:
      case 6: {
        const char* type = types[pick(std::size(types))];
        return {fmt::format(R"({{"type":"{}"}})", type),
                those([&](const Value& value) { return has_type(value, type); })};
      }
      default: {
        const int index = pick(static_cast<int>(values_.size()));
        return {fmt::format(R"({{"const":{}}})", values_[static_cast<size_t>(index)].text),
                1U << index};
      }
    }
  }

  std::mt19937 random_;
  const std::vector<Value> values_;
};

// `base`: keywords that leave no value but those of the algebra, if any.
void expect_algebra(Algebra algebra, int terms, const char* base, int least_taken) {
  int num_taken = 0;
  for (int i = 0; i < terms; ++i) {
    const Algebra::Term term = algebra.term(1 + i % 3);
    const std::string schema = fmt::format(R"({{{}"allOf":[{}]}})", base, term.schema);
    const auto form = FormChecker::make({.kind = GrammarKind::kJsonSchema, .text = schema});
    if (!form) {
      // Nothing is valid, or it is said what is not supported.
      const bool never = form.error().message.find("can never be") != std::string::npos;
      EXPECT_TRUE(!never || term.accepted == 0) << schema;
      continue;
    }
    ++num_taken;
    for (size_t k = 0; k < algebra.values().size(); ++k) {
      const char* text = algebra.values()[k].text;
      EXPECT_EQ(form->accepts(text), (term.accepted >> k & 1U) == 1U) << schema << " and " << text;
    }
  }
  EXPECT_GE(num_taken, least_taken);
}

TEST(SchemaComplement, TermsAreThoseOfTheirAlgebra) {
  const auto number = [](const char* text, double value) {
    return Algebra::Value{text, "number", value};
  };
  expect_algebra(Algebra(7, {number("0", 0), number("1", 1), number("2", 2), number("3", 3)}), 400,
                 R"("type":"integer","minimum":0,"maximum":3,)", 200);
  std::vector<Algebra::Value> values = {number("0", 0),   number("1", 1),     number("3", 3),
                                        number("-2", -2), number("0.5", 0.5), number("2.5", 2.5)};
  expect_algebra(Algebra(8, values), 400, R"("type":"number",)", 200);
  values.insert(values.end(), {{R"("a")", "string"}, {"true", "boolean"}, {"null", "null"}});
  expect_algebra(Algebra(9, values), 400, "", 200);
}

TEST(SchemaComplement, SaysWhatIsRefused) {
  expect_same(R"({"type":"integer","not":{"minimum":3}})",
              R"({"type":"integer","exclusiveMaximum":3})");
  expect_same(R"({"type":["string","null"],"not":{"type":"string"}})", R"({"type":"null"})");
  expect_same(R"({"enum":[1,2,3],"not":{"enum":[2,3.0]}})", R"({"enum":[1]})");
  EXPECT_EQ(refused_at(R"({"not":{"items":{"type":"null"}}})"), ".not.items");
  EXPECT_EQ(refused_at(R"({"not":{}})"), "");  // nothing is valid
  // What is valid is among what no grammar says.
  EXPECT_EQ(refused_at(R"({"type":"array","maxItems":2,"not":{"uniqueItems":true,"maxItems":4}})"),
            ".not");
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr double kMostSeconds = 60;  // an instrumented binary takes ten times as long
#else
constexpr double kMostSeconds = 5;
#endif

// With a share of the fuel that a compile has.
void expect_refused_soon(const std::string& schema, double share) {
  Fuel fuel(static_cast<int64_t>(share * Fuel::kWork));
  const double start = thread_cpu_seconds();
  const auto refused = to_ebnf(
      fuel, {.kind = GrammarKind::kJsonSchema, .text = schema, .space = JsonSpace::kCompact});
  const double took = thread_cpu_seconds() - start;
  ASSERT_FALSE(refused) << schema.substr(0, 100);
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_LT(took, kMostSeconds) << schema.substr(0, 100);
}

void expect_end_of_rounds(double share) {
  expect_refused_soon(R"({"allOf":[{"allOf":[{"$ref":"#"}]},{"$ref":"#"}]})", share);
  expect_refused_soon(R"({"allOf":[{"$ref":"#"},{"$ref":"#"},{"$ref":"#"}]})", share);
  expect_refused_soon(R"({"anyOf":[{"anyOf":[{"$ref":"#"},{"$ref":"#"}]}],"allOf":[{"$ref":"#"}]})",
                      share);
}

void expect_end_of_much(double share) {
  std::string properties;
  for (int i = 0; i < 300; ++i) {
    properties += fmt::format(
        R"({}"p{}":{{"type":"string","pattern":"^([a-z]{{1,40}}[0-9a-f]*x{}){{1,30}}(a|b|c{}){{0,200}}$"}})",
        i == 0 ? "" : ",", i, i, i);
  }
  expect_refused_soon(R"({"type":"object","properties":{)" + properties + "}}", share);
}

// However many parts do work that could wait, it has one bound.
TEST(SchemaFuel, WorkAheadHasOneBound) {
  Fuel fuel;
  EXPECT_EQ(fuel.left_ahead(), Fuel::kAhead / 2);
  int64_t total = 0;
  for (int part = 0; part < 60; ++part) {
    const int64_t share = fuel.left_ahead();
    fuel.burn_ahead(share);
    total += share;
  }
  EXPECT_LE(total, Fuel::kAhead);
  EXPECT_EQ(fuel.used(), total);
  EXPECT_EQ(fuel.left_ahead(), 0);
  EXPECT_EQ(Fuel(1600).left_ahead(), 100);
}

TEST(SchemaFuel, EndsWhatGoesRound) {
  expect_end_of_rounds(0.05);
}
TEST(SchemaFuel, EndsWhatIsTooMuch) {
  expect_end_of_much(0.05);
}
TEST(SchemaFuelFull, EndsWhatGoesRound) {
  expect_end_of_rounds(1);
}
TEST(SchemaFuelFull, EndsWhatIsTooMuch) {
  expect_end_of_much(1);
}

TEST(SchemaFuel, StopsWhenNobodyWaits) {
  const std::atomic<bool> cancelled = true;
  Fuel fuel(Fuel::kWork, Fuel::kBytes, &cancelled);
  const auto stopped =
      to_ebnf(fuel, {.kind = GrammarKind::kJsonSchema, .text = R"({"type":"integer"})"});
  ASSERT_FALSE(stopped);
  EXPECT_EQ(stopped.error().code, ErrorCode::kCancelled);
}

}  // namespace
}  // namespace rudder::constraint
