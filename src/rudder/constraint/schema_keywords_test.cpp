// What forms of schemas accept, keyword by keyword: documents that are valid, and such that are
// not.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

#include <random>

#include <initializer_list>
#include <string>

#include "rudder/constraint/form_checker.h"
#include "rudder/constraint/json_schema.h"

namespace rudder::constraint {
namespace {

using Documents = std::initializer_list<const char*>;

void expect_documents(const char* schema, Documents valid, Documents invalid) {
  const auto form = FormChecker::make({.kind = GrammarKind::kJsonSchema, .text = schema});
  ASSERT_TRUE(form) << schema << ": " << form.error().to_string();
  for (const char* text : valid) EXPECT_TRUE(form->accepts(text)) << schema << " and " << text;
  for (const char* text : invalid) EXPECT_FALSE(form->accepts(text)) << schema << " and " << text;
}

std::string form_error_path(const std::string& schema) {
  const auto form = FormChecker::make({.kind = GrammarKind::kJsonSchema, .text = schema});
  return form ? "accepted" : form.error().where;
}

TEST(SchemaStrings, ExpressionsAndLengthsHoldTogether) {
  expect_documents(
      R"({"type":"string","pattern":"^[a-z]+(-[a-z]+)*$","minLength":3,"maxLength":5})",
      {R"("abc")", R"("a-b")", R"("ab-cd")"},
      {R"("ab")", R"("abcdef")", R"("a--b")", R"("abcd-")"});
  expect_documents(R"({"type":"string","allOf":[{"pattern":"^a"},{"pattern":"b$"}],"maxLength":4})",
                   {R"("ab")", R"("a\"\"b")"}, {R"("a")", R"("acccb")", R"("ba")"});
  expect_documents(R"({"type":"string","format":"date","pattern":"^2024"})", {R"("2024-02-29")"},
                   {R"("2023-02-28")", R"("2024")"});
  expect_documents(R"({"type":"string","pattern":"^(aaa)*$","minLength":4,"maxLength":8})",
                   {R"("aaaaaa")"}, {R"("aaa")", R"("aaaa")", R"("aaaaaaaaa")"});
  expect_documents(R"({"type":"string","pattern":"^(aaa)*$","minLength":4,"maxLength":9,
                       "not":{"const":"aaaaaa"}})",
                   {R"("aaaaaaaaa")"}, {R"("aaaaaa")"});
}

TEST(SchemaStrings, WhatMustNotMatch) {
  expect_documents(R"({"type":"string","not":{"pattern":"^[ab]"},"maxLength":3})",
                   {R"("")", R"("cab")", R"("é")"}, {R"("a")", R"("ba")", R"("cabc")"});
  expect_documents(R"({"type":"string","pattern":"^(?!node)[a-z]+$"})", {R"("nod")", R"("an")"},
                   {R"("node")", R"("nodes")"});
  expect_documents(R"({"type":"string","pattern":"^(?=.*[0-9])(?=.*[a-z]).{3,4}$"})",
                   {R"("a1x")", R"("11a-")"}, {R"("abc")", R"("a1")", R"("123")"});
  // What only some dialects take for a letter is neither in nor out.
  expect_documents(R"({"type":"string","not":{"pattern":"^\\w$"},"maxLength":1})", {R"("-")"},
                   {R"("a")", R"("é")"});
}

TEST(SchemaObjects, NamesByExpressions) {
  expect_documents(R"({"type":"object","properties":{"ab":{"type":"integer"}},
                       "patternProperties":{"^a":{"minimum":5},"b$":{"type":["integer","null"]}},
                       "additionalProperties":{"type":"boolean"}})",
                   {R"({"ab":5})", R"({"axb":7})", R"({"axb":null})", R"({"xb":null})",
                    R"({"ax":5})", R"({"ax":"any"})", R"({"x":true})"},
                   {R"({"ab":4})", R"({"axb":1})", R"({"xb":true})", R"({"x":1})"});
  expect_documents(
      R"({"type":"object","properties":{"id":{"type":"integer"}},"required":["id","x1"],
                       "patternProperties":{"^x":{"type":"null"}},"additionalProperties":false})",
      {R"({"id":1,"x1":null})", R"({"id":1,"x1":null,"x2":null})"},
      {R"({"id":1})", R"({"id":1,"x1":2})"});
  expect_documents(
      R"({"type":"object","properties":{"a":{"const":1}},"propertyNames":{"maxLength":2},
                       "additionalProperties":{"const":2}})",
      {R"({"a":1,"bb":2})"}, {R"({"a":2})", R"({"bbb":2})"});
}

// Options that name no fields leave no doubt which fields are evaluated.
TEST(SchemaObjects, UnevaluatedBesideOptionsThatNameNoFields) {
  expect_documents(
      R"({"type":"object","properties":{"include":{"type":"string"},"name":{"type":"string"}},
          "oneOf":[{"required":["include"],"not":{"required":["name"]}},
                   {"required":["name"],"not":{"$ref":"#/$defs/i"}}],
          "unevaluatedProperties":false,"$defs":{"i":{"required":["include"]}}})",
      {R"({"include":"a"})", R"({"name":"a"})"},
      {R"({"include":"a","name":"b"})", R"({"name":"a","x":1})", "{}"});
  expect_documents(
      R"({"allOf":[{"type":"object","properties":{"a":{"const":1}},"required":["a"],
                    "if":{"minProperties":1},"then":{"maxProperties":1},"unevaluatedProperties":false}],
          "properties":{"a":{}}})",
      {R"({"a":1})"}, {R"({"a":1,"b":1})", R"({"a":2})"});
  // Here it depends on the option.
  EXPECT_EQ(form_error_path(R"({"type":"object","if":{"required":["a"]},
                 "then":{"properties":{"b":{"const":1}}},"unevaluatedProperties":false})"),
            ".unevaluatedProperties");
  EXPECT_EQ(
      form_error_path(R"({"type":"object","not":{"required":["a"]},"anyOf":[{"$ref":"#/$defs/b"},
                 {"required":["c"]}],"unevaluatedProperties":false,"$defs":{"b":{"patternProperties":{"^x":{}}}}})"),
      ".unevaluatedProperties");
}

// What leads back to itself through schemas that bind together is a rule as any other recursion.
TEST(SchemaMerge, WhatBindsTogetherMayLeadBackToItself) {
  expect_documents(R"({"type":"object","properties":{"a":{"$ref":"#","required":["b"]},
                       "b":{"type":"null"}},"additionalProperties":false})",
                   {R"({"a":{"b":null}})", R"({"a":{"a":{"b":null},"b":null}})", "{}"},
                   {R"({"a":{}})", R"({"a":{"a":{},"b":null}})", R"({"a":{"b":1}})"});
  expect_documents(R"({"allOf":[{"$ref":"#/$defs/x"},{"$ref":"#/$defs/y"}],"$defs":{
                       "x":{"properties":{"n":{"$ref":"#/$defs/x"}},"additionalProperties":false},
                       "y":{"type":"object","properties":{"n":{"allOf":[{"$ref":"#/$defs/y"},{"$ref":"#/$defs/x"}]}}}}})",
                   {"{}", R"({"n":{"n":{}}})"}, {R"({"n":1})", R"({"n":{"m":1}})"});
  // In one place it leads nowhere.
  EXPECT_NE(form_error_path(R"({"allOf":[{"allOf":[{"$ref":"#"}]},{"$ref":"#"}]})"), "accepted");
}

TEST(SchemaObjects, UnevaluatedAreThoseThatNoPartNames) {
  expect_documents(R"({"type":"object","allOf":[{"properties":{"a":{"const":1}}}],
                       "properties":{"b":{"const":2}},"unevaluatedProperties":false})",
                   {R"({"b":2,"a":1})", "{}"}, {R"({"c":1})"});
  // A part does not see the others.
  expect_documents(R"({"type":"object","properties":{"b":{"const":2}},"additionalProperties":true,
                       "allOf":[{"properties":{"a":{"const":1}},"unevaluatedProperties":false}]})",
                   {R"({"a":1})"}, {R"({"b":2})", R"({"c":1})"});
}

TEST(SchemaOptions, OverlappingOnesAreHeldApart) {
  // Neither has a type: what is no object is valid by both.
  expect_documents(R"({"oneOf":[{"required":["a"],"properties":{"a":{"type":"integer"}}},
                                {"required":["b"],"properties":{"b":{"type":"integer"}}}]})",
                   {R"({"a":1})", R"({"b":1})"}, {R"({"a":1,"b":1})", "1", "{}"});
  expect_documents(R"({"oneOf":[{"type":"string"},{"type":"string","format":"uri"}]})",
                   {R"("plain")"}, {R"("http://a.b")"});
  expect_documents(
      R"({"oneOf":[{"type":"object","properties":{"k":{"enum":["x"]},"n":{"type":"integer"}}},
                   {"type":"object","properties":{"k":{"enum":["y"]},"n":{"type":"integer"}}}]})",
      {R"({"k":"x","n":1})", R"({"k":"y"})"}, {"{}", R"({"n":1})"});
}

TEST(SchemaOptions, NoValidObjectIsLostToALongRival) {
  std::string names;
  for (int i = 0; i < 400; ++i) names += fmt::format("{}\"name {}\"", i == 0 ? "" : ",", i);
  const std::string schema = fmt::format(
      R"({{"oneOf":[
          {{"type":["object","string"],"required":["kind"],
            "properties":{{"kind":{{"const":"one"}},"value":{{"type":["string","null"]}}}}}},
          {{"allOf":[{{"properties":{{"kind":{{"type":"string"}}}},"required":["kind"]}},
                     {{"properties":{{"kind":{{"const":"two"}},"value":{{"enum":[{}]}}}},
                       "required":["value"]}}]}}]}})",
      names);
  expect_documents(schema.c_str(),
                   {R"({"kind":"one","value":"x"})", R"({"kind":"one","value":"name 7"})",
                    R"({"kind":"one"})", R"({"kind":"two","value":"name 7"})", "1"},
                   {R"("x")", R"({"kind":"two","value":"x"})", R"({"kind":"two"})"});
  // An object may have the rival's field with a value that the rival refuses.
  expect_documents(
      R"({"oneOf":[{"type":"object","additionalProperties":true},
                   {"type":"object","required":["a"],"properties":{"a":{"type":"integer"}}}]})",
      {"{}", R"({"b":1})", R"({"a":"x"})", R"({"a":null,"b":1})"}, {R"({"a":1})", "1"});
  // What `not` has is a way with more to it than one field.
  expect_documents(
      R"({"oneOf":[{"type":"object","required":["a"],"properties":{"a":{"type":"string"},"b":{}}},
                   {"type":"object","required":["c"],
                    "not":{"type":"object","properties":{"a":{"type":"string"}},"minProperties":2}}]})",
      {R"({"a":"x"})", R"({"a":"x","b":2})"}, {"{}", R"({"a":1})"});
  // A field that one requires and the other may have with no such value.
  expect_documents(
      R"({"oneOf":[{"type":"object","required":["a"],"properties":{"a":{"const":1},"b":{}}},
                   {"type":"object","required":["b"],"properties":{"a":{"const":2},"b":{}}}]})",
      {R"({"a":1})", R"({"a":1,"b":2})", R"({"b":2})", R"({"a":2,"b":2})"}, {"{}", R"({"a":2})"});
}

TEST(SchemaOptions, WhatTwoOfThemLeaveOpenIsRefused) {
  // Two options say nothing of what is no object: it is valid by both.
  expect_documents(
      R"({"oneOf":[{"$ref":"#/$defs/a"},{"properties":{"k":{"const":"b"}},"required":["k"]},
                   {"type":["string","object"],"required":["k"],"properties":{"k":{"type":"null"}}}],
          "$defs":{"a":{"properties":{"k":{"const":"a"},"n":{"type":"integer"}},"required":["k"]}}})",
      {R"({"k":"a","n":1})", R"({"k":"b"})", R"({"k":null})"},
      {"1", R"("x")", "{}", R"({"k":"c"})"});
  expect_documents(
      R"({"oneOf":[{"properties":{"k":{"const":"a"}},"required":["k"]},
                   {"type":["string","object"],"required":["k"],"properties":{"k":{"const":"b"}}}]})",
      {R"({"k":"a"})", R"({"k":"b"})", "1"}, {R"("x")", "{}"});
}

TEST(SchemaOptions, PartsThatBindTogetherExcludeEachOther) {
  // The property is required in one part, and its value is in another.
  const char* schema = R"({"oneOf":[
      {"allOf":[{"$ref":"#/$defs/base"},{"properties":{"k":{"const":"a"},"n":{"type":"integer"}}}]},
      {"allOf":[{"$ref":"#/$defs/base"},{"properties":{"k":{"const":"b"}}}]}],
      "$defs":{"base":{"type":"object","properties":{"k":{"type":"string"}},"required":["k"]}}})";
  expect_documents(schema, {R"({"k":"a","n":1})", R"({"k":"b"})"},
                   {R"({"k":"c"})", "{}", R"({"k":"a","n":"x"})", "null"});
}

TEST(SchemaMerge, PatternsOfEachPartHoldBesideItsOtherProperties) {
  // Each part has names of its own, and what it says of others.
  expect_documents(
      R"({"allOf":[{"type":"object","patternProperties":{"^x_":{"type":"integer"}},
                    "properties":{"id":{"type":"string"}},"additionalProperties":{"minLength":2}},
                   {"additionalProperties":{"type":["integer","string"]},"properties":{"x_any":{}}}]})",
      {R"({"id":"a","x_any":1,"x_a":1,"other":"ab"})", R"({"x_b":2,"z":7})"},
      {R"({"x_a":"no"})", R"({"other":"a"})", R"({"other":null})", R"({"id":1})",
       R"({"x_any":"a"})"});
  expect_documents(
      R"({"allOf":[{"patternProperties":{"^a":{"type":"integer"}},"additionalProperties":false},
                   {"patternProperties":{"b$":{"minimum":3}},"additionalProperties":{"maximum":9}},
                   {"type":"object","propertyNames":{"maxLength":2}}]})",
      {R"({"ab":12,"a":9})", "{}"}, {R"({"b":4})", R"({"ab":2})", R"({"a":10})", R"({"abb":5})"});
  // Values that are listed are held to all of it.
  expect_documents(
      R"({"enum":[{"a":1},{"b":1},{"a":"x"}],"allOf":[
          {"patternProperties":{"^a":{}},"additionalProperties":false},
          {"patternProperties":{"^b":{}},"additionalProperties":{"type":"integer"}}]})",
      {R"({"a":1})"}, {R"({"b":1})", R"({"a":"x"})"});
}

TEST(SchemaValues, ListedOnesAreHeldToTheRest) {
  expect_documents(R"({"enum":["a","abc","12",7],"minLength":2,"pattern":"^[a-z]"})",
                   {R"("abc")", "7"}, {R"("a")", R"("12")"});
  expect_documents(R"({"enum":[{"a":1},{"b":1},{"a":"x"}],"required":["a"],
                       "properties":{"a":{"type":"integer"}}})",
                   {R"({"a":1})"}, {R"({"b":1})", R"({"a":"x"})"});
  expect_documents(R"({"enum":[1,2,3,4],"oneOf":[{"minimum":3},{"multipleOf":2}]})", {"2", "3"},
                   {"1", "4"});
}

TEST(SchemaNumbers, MultiplesOfTenthsAndBoundsBeyondTheDigits) {
  expect_documents(R"({"type":"number","multipleOf":0.01,"minimum":0,"maximum":10})",
                   {"1.25", "10", "0.1"}, {"1.255", "10.01", "-1"});
  expect_documents(R"({"type":"number","multipleOf":0.1})", {"-12.5", "3"}, {"0.25", "1e3"});
  expect_documents(R"({"type":"integer","minimum":1,"maximum":18446744073709551615})", {"1", "99"},
                   {"0"});
}

TEST(SchemaArrays, ManyValuesThatDifferComeInTheirOrder) {
  expect_documents(R"({"type":"array","uniqueItems":true,"minItems":1,"maxItems":3,
                       "items":{"enum":["a","b","c","d","e","f","g","h","i",10]}})",
                   {R"(["a"])", R"(["a","i",10])", R"(["b","c","d"])"},
                   {"[]", R"(["a","a"])", R"(["b","a"])", R"(["a","b","c","d"])"});
}

TEST(SchemaArrays, TypesOfFewValuesMayBeUnique) {
  expect_documents(R"({"type":"array","uniqueItems":true,"items":{"type":["boolean","null"]}})",
                   {"[]", "[true]", "[null,false,true]"},
                   {"[true,true]", "[null,true,null]", "[1]"});
  expect_documents(R"({"type":"array","uniqueItems":true,"minItems":1,
                       "items":{"type":"integer","minimum":-1,"maximum":6,"not":{"enum":[3]}}})",
                   {"[-1]", "[6,2,0]"}, {"[]", "[3]", "[0,0]", "[7]"});
  expect_documents(R"({"type":"array","uniqueItems":true,"items":{"const":"a"}})",
                   {"[]", R"(["a"])"}, {R"(["a","a"])"});
  EXPECT_EQ(form_error_path(R"({"type":"array","uniqueItems":true,"items":{"type":"integer"}})"),
            ".uniqueItems");
}

TEST(SchemaArrays, StringsMayBeUnique) {
  expect_documents(
      R"({"type":"array","uniqueItems":true,"items":{"type":"string"}})",
      {"[]", R"(["a"])", R"(["a","b","aa","A",""])", R"(["\"","\\"])", R"([ "a", "ab" ])"},
      {R"(["a","a"])", R"(["a","b","c","b"])", R"(["",""])", R"(["ab", "a","ab"])",
       R"(["\"","\""])", "[1]"});
  // Of each list by itself; a name is no item.
  expect_documents(R"({"type":"array","items":{"type":"object","properties":{"a":{"type":"array",
                       "uniqueItems":true,"minItems":1,"items":{"$ref":"#/$defs/s"}},"s":{"type":"string"}}},
                       "$defs":{"s":{"type":"string","minLength":1}}})",
                   {R"([{"a":["x"],"s":"x"},{"a":["x","a"]}])"},
                   {R"([{"a":["x"]},{"a":["x","x"]}])", R"([{"a":[]}])"});
  expect_documents(R"({"type":"array","uniqueItems":true,"maxItems":3,
                       "items":{"type":"string","pattern":"^[a-c]+$"}})",
                   {R"(["a","b","c"])", R"(["abc","ab"])"},
                   {R"(["a","b","a"])", R"(["a","b","c","ab"])", R"(["d"])"});
}

// Strings that may have to end: what could only become one of those that are there is not begun,
// and a list has no more items than there are strings.
TEST(SchemaArrays, StringsThatHaveToEndMayBeUnique) {
  const auto list = [](std::string_view items, std::string_view more = "") {
    return fmt::format(R"({{"type":"array","uniqueItems":true{},"items":{}}})", more, items);
  };
  expect_documents(list(R"({"type":"string","maxLength":2})").c_str(),
                   {R"(["","a","ab","aa","b"])", R"(["\n","\t"])"},
                   {R"(["ab","ab"])", R"(["",""])", R"(["a","ab","a"])", R"(["abc"])"});
  expect_documents(list(R"({"type":"string","pattern":"^(a|b[0-9]*)$"})").c_str(),
                   {R"(["a","b","b1"])", R"(["b12","a"])"}, {R"(["a","a"])", R"(["b1","b1"])"});
  const std::string few = list(R"({"type":"string","pattern":"^[ab][cd]?$"})");
  expect_documents(few.c_str(), {R"(["a","ac","ad","b","bc","bd"])", R"(["bd","b"])", "[]"},
                   {R"(["a","ac","a"])", R"(["ad","b","ad"])"});
  EXPECT_EQ(form_error_path(list(R"({"type":"string","pattern":"^[ab]$"})", R"(,"minItems":3)")),
            "");  // no output is valid
  expect_documents(list(R"({"type":"object","properties":{"n":{"type":"string","maxLength":1}},
                            "required":["n"]})")
                       .c_str(),
                   {R"([{"n":"a"},{"n":""}])"}, {R"([{"n":"a"},{"n":"a"}])"});
}

// Text of at most `most` tokens that are allowed and have only such characters, with an end where
// there may be one; empty where it has none.
std::string random_walk(const FormChecker& form, std::string_view characters, int most,
                        std::mt19937_64& random) {
  const auto matcher = form.start();
  std::string text;
  for (int i = 0; i < most; ++i) {
    const std::vector<uint32_t> allowed = FormChecker::allowed(*matcher);
    if (FormChecker::has(allowed, kCheckerStop)) return text;
    std::vector<int32_t> tokens;
    for (int32_t id = 0; id < FormChecker::vocabulary().size; ++id) {
      const std::string& bytes = FormChecker::vocabulary().token_bytes[static_cast<size_t>(id)];
      const bool is_plain = bytes.find_first_not_of(characters) == std::string::npos;
      if (!bytes.empty() && is_plain && FormChecker::has(allowed, id)) tokens.push_back(id);
    }
    if (tokens.empty()) {
      ADD_FAILURE() << "nothing may follow " << text;
      return "";
    }
    const int32_t token = tokens[random() % tokens.size()];
    if (!matcher->advance(token)) {
      ADD_FAILURE() << "a token was refused behind " << text;
      return "";
    }
    text += FormChecker::vocabulary().token_bytes[static_cast<size_t>(token)];
  }
  return "";
}

// What is tried and taken back leaves no trace.
TEST(SchemaArrays, TrialsDoNotCountAsItems) {
  const auto form = FormChecker::make(
      {.kind = GrammarKind::kJsonSchema,
       .text = R"({"type":"array","uniqueItems":true,"items":{"type":"string"}})"});
  ASSERT_TRUE(form) << form.error().to_string();
  const auto matcher = form->behind(R"(["a",)");
  ASSERT_NE(matcher, nullptr);
  const auto takes = [&](std::string_view text) {
    return std::ranges::all_of(text, [&](char c) {
      const auto token = static_cast<int32_t>(static_cast<unsigned char>(c));
      return FormChecker::has(FormChecker::allowed(*matcher), token) && matcher->advance(token);
    });
  };
  for (int round = 0; round < 2; ++round) {
    matcher->begin_trial();
    EXPECT_TRUE(takes(R"("b","c")"));
    EXPECT_FALSE(takes(R"(,"b")"));
    matcher->end_trial();
  }
  EXPECT_FALSE(takes(R"("a")"));
  EXPECT_TRUE(takes(R"(bc","b"])"));
}

// By any tokens: each output comes to an end, and has different items.
TEST(SchemaArrays, StringsThatHaveToEndAreUniqueWhateverTheTokens) {
  std::mt19937_64 random(5);
  for (const char* items : {R"({"type":"string","pattern":"^[ab]{1,2}$"})",
                            R"({"type":"string","pattern":"^(a|b|ab|aab?|b{3})$"})",
                            R"({"type":"string","pattern":"^a{0,2}(ba)*$","not":{"const":"x"}})"}) {
    const std::string schema =
        fmt::format(R"({{"type":"array","uniqueItems":true,"minItems":5,"items":{}}})", items);
    const auto form = FormChecker::make({.kind = GrammarKind::kJsonSchema, .text = schema});
    ASSERT_TRUE(form) << schema << ": " << form.error().to_string();
    for (int round = 0; round < 60; ++round) {
      const std::string text = random_walk(*form, "ab\", []", 400, random);
      if (text.empty()) continue;  // it went on too long
      std::multiset<std::string> strings;
      for (size_t at = text.find('"'); at != std::string::npos; at = text.find('"', at + 1)) {
        const size_t end = text.find('"', at + 1);
        ASSERT_NE(end, std::string::npos) << text;
        strings.insert(text.substr(at, end - at));
        at = end;
      }
      EXPECT_EQ(text.back(), ']') << text;
      EXPECT_GE(strings.size(), 5u) << text;
      EXPECT_EQ(std::set<std::string>(strings.begin(), strings.end()).size(), strings.size())
          << text;
    }
  }
}

// One item of those that no string tells apart.
TEST(SchemaArrays, OneItemThatNothingTellsApart) {
  const auto list = [](std::string_view items, std::string_view more = "") {
    return fmt::format(R"({{"type":"array","uniqueItems":true{},"items":{},"$defs":{{
        "o":{{"type":"object","properties":{{"n":{{"type":"string"}},"k":{{"type":"integer"}}}}}}}}}})",
                       more, items);
  };
  expect_documents(list(R"({"anyOf":[{"type":"string"},{"type":"integer"}]})").c_str(),
                   {"[]", "[1]", R"(["a",1,"b"])", R"(["a","b"])", R"([2,"a"])"},
                   {R"(["a",1,"a"])", "[1,1]", R"([1,"a",2])"});
  expect_documents(list(R"({"$ref":"#/$defs/o"})", R"(,"minItems":1)").c_str(),
                   {R"([{"n":"a"},{"k":1},{"n":"b","k":1}])", "[{}]"},
                   {R"([{"n":"a"},{"k":1},{"n":"a"}])", "[{},{}]", "[]", R"([{"k":1},{"k":1}])"});
  expect_documents(list(R"({"anyOf":[{"type":"string"},{"enum":["a",1,null]}]})").c_str(),
                   {R"(["a",1])", R"(["b",null,"a"])"}, {R"(["a",1,"a"])", "[1,null]"});
  expect_documents(list(R"({"oneOf":[{"type":"string"},{"$ref":"#/$defs/o"}]})").c_str(),
                   {R"(["a",{"n":"c"},{"n":"b"},{"k":3}])"}, {R"([{"n":"a"},"b",{"n":"a"}])"});
  // Objects of two options that exclude each other by a field; otherwise one field is for both.
  const char* tagged = R"({"oneOf":[
      {"type":"object","properties":{"t":{"const":1},"a":{"type":"string"}},"required":["t","a"]},
      {"type":"object","properties":{"t":{"const":2},"b":{"type":"string"}},"required":["t","b"]}]})";
  expect_documents(list(tagged).c_str(), {R"([{"t":1,"a":"x"},{"t":2,"b":"z"},{"t":1,"a":"y"}])"},
                   {R"([{"t":1,"a":"x"},{"t":2,"b":"y"},{"t":1,"a":"x"}])"});
  expect_documents(list(R"({"anyOf":[{"$ref":"#/$defs/o"},
                            {"type":"object","properties":{"m":{"type":"string"}}}]})")
                       .c_str(),
                   {R"([{"n":"a"},{"m":"a"},{"n":"b"}])"},
                   {R"([{"n":"a"},{"n":"a"}])", R"([{"m":"a"},{"m":"a"}])"});
  expect_documents(list("{}").c_str(), {R"(["a",[1],"b"])"}, {R"(["a","a"])", R"([1,1])"});
  for (const std::string& refused :
       {list(R"({"type":"integer"})"),
        list(R"({"anyOf":[{"type":"string"},{"type":"null"}]})", R"(,"maxItems":3)"),
        list(R"({"anyOf":[{"type":"string","minLength":2},{"enum":["ab",1]}]})"),
        list(R"({"anyOf":[{"$ref":"#/$defs/o"},{"type":"object","required":["n"]}]})")}) {
    EXPECT_EQ(form_error_path(refused), ".uniqueItems") << refused;
  }
}

TEST(SchemaArrays, ObjectsAreUniqueByARequiredString) {
  const char* items =
      R"({"type":"object","properties":{"k":{"enum":["x","y"]},"n":{"type":"string"}},
                          "required":["k","n"]})";
  expect_documents(
      fmt::format(R"({{"type":"array","uniqueItems":true,"items":{}}})", items).c_str(),
      {"[]", R"([{"k":"x","n":"a"}])",
       R"([{"k":"x","n":"a"}, {"k":"x","n":"ab"},{"k":"y","n":""}])"},
      {R"([{"k":"x","n":"a"},{"k":"x","n":"a"}])",
       R"([{"k":"x","n":""},{"k":"y","n":"b"},{"k":"x","n":""}])"});
  // Of each list by itself, where lists are in items.
  const char* tree = R"({"$ref":"#/$defs/list","$defs":{
      "list":{"type":"array","uniqueItems":true,"items":{"$ref":"#/$defs/node"}},
      "node":{"type":"object","properties":{"n":{"type":"string"},"c":{"$ref":"#/$defs/list"}},"required":["n"]}}})";
  expect_documents(
      tree, {R"([{"n":"a","c":[{"n":"a"},{"n":"b"}]},{"n":"b","c":[{"n":"a"}]}])"},
      {R"([{"n":"a","c":[{"n":"a"},{"n":"a"}]}])", R"([{"n":"a","c":[{"n":"b"}]},{"n":"a"}])"});
  EXPECT_EQ(form_error_path(R"({"type":"array","uniqueItems":true,"items":{"type":"object",
                "properties":{"n":{"type":"string"}},"required":["n"],"anyOf":[{"properties":{"n":{"const":"a"}}}]}})"),
            ".uniqueItems");
}

TEST(SchemaArrays, ManyItemsMayBeUnique) {
  // More than are written out: their repetition has a rule of its own.
  const char* schema =
      R"({"type":"array","uniqueItems":true,"items":{"type":"string"},"minItems":70,"maxItems":200})";
  std::string list;
  for (int i = 0; i < 79; ++i) list += fmt::format(R"("{}",)", i);
  expect_documents(schema, {fmt::format(R"([{}"x"])", list).c_str()},
                   {fmt::format(R"([{}"7"])", list).c_str(),
                    fmt::format(R"([{}"78"])", list).c_str(), R"(["a","b"])"});
}

TEST(SchemaArrays, OneItemMayBeAskedFor) {
  expect_documents(R"({"type":"array","items":{"type":"integer"},"contains":{"minimum":5}})",
                   {"[5]", "[1,7,2]"}, {"[]", "[1,2]", "[5,null]"});
}

// By tokens that have the end of one string and the next one in them, or a whole one.
TEST(SchemaArrays, StringsAreUniqueWhateverTheTokens) {
  const auto form = FormChecker::make(
      {.kind = GrammarKind::kJsonSchema, .text = R"({"type":"array","uniqueItems":true,"minItems":9,
                                                   "items":{"type":"string"}})"});
  ASSERT_TRUE(form) << form.error().to_string();
  std::vector<int32_t> tokens;
  for (int32_t id = 0; id < FormChecker::vocabulary().size; ++id) {
    const std::string& bytes = FormChecker::vocabulary().token_bytes[static_cast<size_t>(id)];
    const bool is_plain = bytes.find_first_not_of("ab\", []") == std::string::npos;
    if (!bytes.empty() && is_plain) tokens.push_back(id);
  }
  std::mt19937_64 random(7);
  size_t num_strings = 0;
  for (int round = 0; round < 100; ++round) {
    const auto matcher = form->start();
    std::string text;
    while (text.size() < 80) {
      const std::vector<uint32_t> allowed = FormChecker::allowed(*matcher);
      std::vector<int32_t> ways;
      for (const int32_t id : tokens) {
        if (FormChecker::has(allowed, id)) ways.push_back(id);
      }
      if (ways.empty()) break;  // the end
      const int32_t token = ways[random() % ways.size()];
      ASSERT_TRUE(matcher->advance(token));
      text += FormChecker::vocabulary().token_bytes[static_cast<size_t>(token)];
    }
    std::set<std::string> seen;
    for (size_t at = text.find('"'); at != std::string::npos; at = text.find('"', at + 1)) {
      const size_t end = text.find('"', at + 1);
      if (end == std::string::npos) break;
      EXPECT_TRUE(seen.insert(text.substr(at, end - at)).second) << text;
      at = end;
      ++num_strings;
    }
  }
  EXPECT_GT(num_strings, 500u);
}

TEST(SchemaReferences, ByAnchorByNameAndIntoOtherPlaces) {
  expect_documents(R"({"$id":"http://x/s.json","type":"array","items":{"$ref":"s.json#/$defs/i"},
                       "$defs":{"i":{"type":"integer"}}})",
                   {"[1]"}, {"[null]"});
  expect_documents(R"({"$ref":"#it","definitions":{"i":{"$id":"#it","const":1}}})", {"1"}, {"2"});
  expect_documents(R"({"$ref":"#it","$defs":{"i":{"$anchor":"it","const":1}}})", {"1"}, {"2"});
  // A schema among names that are no keywords is in the normal form too.
  expect_documents(R"({"$ref":"#/parts/more/pair","parts":{"more":{"pair":
                       {"type":"array","items":[{"const":1},{"const":2}]}}}})",
                   {"[1,2]", "[1]"}, {"[2]", "[1,2,3]"});
  EXPECT_EQ(form_error_path(R"({"$ref":"#/parts/a","parts":{"a":{"minlength":1}}})"),
            ".parts.a.minlength");
  EXPECT_EQ(form_error_path(R"({"$ref":"http://other/s.json"})"), ".$ref");
}

TEST(SchemaKeywords, WhatHasNoEffectIsListed) {
  EXPECT_EQ(
      ignored_in_schema(R"({"type":"object","title":"x","x-order":1,"properties":{
                "a":{"type":"string","format":"color","readonly":true}}})"),
      (std::vector<std::string>{".x-order", ".properties.a.format", ".properties.a.readonly"}));
  EXPECT_TRUE(ignored_in_schema(R"({"type":"string","format":"date"})").empty());
}

}  // namespace
}  // namespace rudder::constraint
