// What forms of schemas accept, keyword by keyword: documents that are valid, and such that are
// not.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "rudder/constraint/json_schema.h"
#include "rudder/constraint/schema_checks.h"

namespace rudder::constraint {
namespace {

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

// A boundary may be anywhere, and what is looked at may be so: more is refused than matches.
TEST(SchemaStrings, BoundariesAreReadWideWhereATextMustNotMatch) {
  expect_documents(R"({"type":"string","pattern":"^(?!.*\\bnative\\b)[a-z]+(\\.[a-z]+)+$"})",
                   {R"("com.app")", R"("a.nativ")"},
                   {R"("com.native")", R"("native.app")", R"("com")"});
  expect_documents(
      R"({"type":"object","patternProperties":{"^(?!b:)b?.$":{"type":"integer"},"^b:x$":{"type":"string"}},
                       "additionalProperties":false})",
      {R"({"a":1})", R"({"b:x":"a"})", "{}"}, {R"({"b:x":1})", R"({"a":"a"})", R"({"c:":1})"});
}

TEST(SchemaDocument, WhatIsNoSchemaAmongDefinitionsSaysNothing) {
  expect_documents(R"({"$ref":"#/$defs/n","$defs":{"n":{"type":"integer"},"description":"Some."}})",
                   {"1"}, {R"("a")"});
  EXPECT_EQ(form_error_path(R"({"$ref":"#/$defs/description","$defs":{"description":"Some."}})"),
            ".$ref");
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
  // At one level it leads nowhere.
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

TEST(SchemaOptions, ClosedOnesAreHeldApartByTheirFields) {
  const char* closed = R"({"oneOf":[
      {"type":"object","properties":{"a":{"type":"integer"},"n":{"type":"integer"}},"additionalProperties":false},
      {"type":"object","properties":{"b":{"type":"integer"},"n":{"type":"integer"}},"additionalProperties":false}]})";
  expect_documents(closed, {R"({"a":1})", R"({"b":1,"n":2})", R"({"a":1,"n":2})"},
                   {"{}", R"({"n":1})", R"({"a":1,"b":1})", R"({"c":1})"});
  expect_documents(R"({"oneOf":[{"type":"null"},{"anyOf":[{"type":"array","uniqueItems":true,
                       "items":{"type":"string"}},{"type":"null"}]},{"type":"boolean"}]})",
                   {R"(["a","b"])", "true"}, {"null", R"(["a","a"])", "1"});
}

// Twelve conditions on one field are twelve choices, not 2^12; so are options with a tag and one
// that has none.
TEST(SchemaOptions, AlternativesAreNotMultiplied) {
  std::string conditions;
  std::string options;
  for (int i = 0; i < 12; ++i) {
    conditions += fmt::format(
        R"({}{{"if":{{"properties":{{"t":{{"const":"t{}"}}}}}},"then":{{"required":["f{}"]}}}})",
        i == 0 ? "" : ",", i, i);
    options += fmt::format(
        R"({{"properties":{{"t":{{"const":"t{}"}},"f{}":{{"type":"integer"}}}},"required":["t","f{}"]}},)",
        i, i, i);
  }
  const std::string properties =
      R"("type":"object","required":["t"],"properties":{"t":{"type":"string"},
      "f3":{"type":["integer","string"]},"f4":{"type":"integer"}})";
  expect_documents(fmt::format("{{{},\"allOf\":[{}]}}", properties, conditions).c_str(),
                   {R"({"t":"x"})", R"({"t":"t3","f3":1})", R"({"t":"t4","f3":1,"f4":2})"},
                   {R"({"t":"t3"})", R"({"t":"t4","f3":1})", "{}"});
  expect_documents(fmt::format("{{{},\"oneOf\":[{}{{\"properties\":{{\"f4\":{{\"const\":1}}}}}}]}}",
                               properties, options)
                       .c_str(),
                   {R"({"t":"x"})", R"({"t":"t3","f3":"a","f4":1})", R"({"t":"t4","f4":2})"},
                   {R"({"t":"t3","f3":1})", R"({"t":"x","f4":2})", R"({"t":"t4","f4":1})"});
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

TEST(SchemaValues, NumbersAreEqualInAnyWordsWhereverTheyLie) {
  expect_documents(R"({"enum":[[[1],[1.0]],[{"a":2},{"a":2.0}],[[1],[2]]],"uniqueItems":true})",
                   {"[[1],[2]]"}, {"[[1],[1]]", R"([{"a":2},{"a":2}])"});
  expect_documents(R"({"enum":[[1.0],[2]],"not":{"const":[1]}})", {"[2]"}, {"[1]"});
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

// The empty string is a value as others are.
TEST(SchemaStrings, TheEmptyStringMayBeTheOneThatIsRefused) {
  for (const char* refused :
       {R"({"const":""})", R"({"enum":[""]})", R"({"enum":["", 1, null]})", R"({"maxLength":0})"}) {
    expect_documents(fmt::format(R"({{"type":"string","not":{}}})", refused).c_str(),
                     {R"("a")", R"("\n")"}, {R"("")"});
  }
  expect_documents(R"({"type":"string","not":{"enum":["","a"]}})", {R"("b")", R"("aa")"},
                   {R"("")", R"("a")"});
  expect_documents(R"({"type":"string","maxLength":2,"not":{"const":""}})", {R"("b")"},
                   {R"("")", R"("bbb")"});
  expect_documents(R"({"type":"string","pattern":"^a*$","not":{"const":""}})", {R"("a")"},
                   {R"("")"});
  expect_documents(R"({"type":["string","null"],"not":{"const":""}})", {"null", R"("x")"},
                   {R"("")"});
  expect_documents(R"({"properties":{"":{"const":1}},"additionalProperties":{"const":2}})",
                   {R"({"":1})", R"({"a":2})"}, {R"({"":2})", R"({"a":1})"});
  expect_documents(R"({"type":"object","propertyNames":{"not":{"const":""}}})",
                   {R"({"a":1})", "{}"}, {R"({"":1})"});
  expect_documents(R"({"type":"array","uniqueItems":true,"items":{"type":"string"}})",
                   {R"(["","a"])"}, {R"(["",""])"});
  expect_documents(R"({"enum":["",[],{},0],"not":{"const":[]}})", {R"("")", "{}", "0"}, {"[]"});
}

// Numbers are equal however they are written.
TEST(SchemaNumbers, ValuesHaveOneForm) {
  for (const char* zero : {"0", "-0", "0.0", "0e5", "-0.00E-7"}) {
    expect_documents(fmt::format(R"({{"type":"integer","not":{{"const":{}}}}})", zero).c_str(),
                     {"1", "-1"}, {"0", "-0"});
    expect_documents(fmt::format(R"({{"const":{}}})", zero).c_str(), {"0"}, {"1"});
  }
  expect_documents(R"({"enum":[1e0,1.0,10e-1,2.50,1e400],"minimum":1})", {"1", "2.5", "1e400"},
                   {"0", "1.0"});
  expect_documents(
      R"({"enum":[9007199254740992,9007199254740993],"not":{"const":9007199254740992.0}})",
      {"9007199254740993"}, {"9007199254740992"});
  expect_documents(R"({"type":"integer","not":{"const":9007199254740993}})", {"9007199254740992"},
                   {"9007199254740993"});
}

// Keys that are counted differ.
TEST(SchemaObjects, SeveralFieldsMayBeAskedFor) {
  expect_documents(
      R"({"type":"object","minProperties":2,"additionalProperties":{"type":"integer"}})",
      {R"({"a":1,"b":1})", R"({"a":1, "ab":2, "":3})"},
      {"{}", R"({"a":1})", R"({"a":1,"a":2})", R"({"a":1,"b":2,"a":3})", R"({"a":1,"b":"x"})"});
  expect_documents(
      R"({"$ref":"#/$defs/n","$defs":{"n":{"type":"object","minProperties":2,
          "properties":{"id":{"const":1}},"additionalProperties":{"anyOf":[{"$ref":"#/$defs/n"},{"type":"null"}]}}}})",
      {R"({"id":1,"a":null})", R"({"a":{"a":null,"b":null},"b":null})",
       R"({"a":null,"b":{"id":1,"a":null}})"},
      {R"({"id":1})", R"({"id":1,"id":1})", R"({"a":null,"b":{"a":null,"a":null}})",
       R"({"a":{"a":null,"b":null},"a":null})"});
  expect_documents(R"({"type":"object","minProperties":2,"patternProperties":{"^x":{"type":"null"}},
                       "additionalProperties":{"type":"boolean"}})",
                   {R"({"x":null,"x1":null})", R"({"a":true,"x":null})"},
                   {R"({"x":null,"x":null})", R"({"a":true,"x":true})", R"({"x":null})"});
  EXPECT_EQ(
      form_error_path(R"({"type":"object","minProperties":3,"propertyNames":{"enum":["a","b"]}})"),
      ".minProperties");
}

TEST(SchemaArrays, ManyValuesThatDifferComeInTheirOrder) {
  expect_documents(R"({"type":"array","uniqueItems":true,"minItems":1,"maxItems":3,
                       "items":{"enum":["a","b","c","d","e","f","g","h","i",10]}})",
                   {R"(["a"])", R"(["a","i",10])", R"(["b","c","d"])"},
                   {"[]", R"(["a","a"])", R"(["b","a"])", R"(["a","b","c","d"])"});
}

TEST(SchemaArrays, OneItemMayBeAskedFor) {
  expect_documents(R"({"type":"array","items":{"type":"integer"},"contains":{"minimum":5}})",
                   {"[5]", "[1,7,2]"}, {"[]", "[1,2]", "[5,null]"});
}

TEST(SchemaArrays, SeveralItemsMayBeAskedFor) {
  const char* both = R"({"type":"array","items":{"type":["string","integer"]},
      "allOf":[{"contains":{"const":"a"}},{"contains":{"type":"integer"}},{"contains":{"const":"a"}}]})";
  expect_documents(both, {R"(["a",1])", R"([1,"b","a"])", R"(["b",2,"a",3])"},
                   {"[]", R"(["a"])", "[1]", R"(["b",1])", R"(["a",1,null])"});
  // One item may be there for both.
  expect_documents(
      R"({"type":"array","allOf":[{"contains":{"minimum":5}},{"contains":{"type":"integer"}}]})",
      {"[7]", R"(["x",1])", "[5.5,1]"}, {R"(["x"])", "[1,2]", "[4.5]"});
}

TEST(SchemaArrays, ItemsOfAKindMayBeRefused) {
  expect_documents(R"({"type":"array","not":{"contains":{"const":"a"}}})", {"[]", R"(["b",1])"},
                   {R"(["a"])", R"(["b","a"])"});
  expect_documents(R"({"type":"object","properties":{"l":{"type":"array","items":{"type":"string"}},
                       "n":{"type":"integer"}},"if":{"properties":{"l":{"contains":{"const":"n"}}},
                       "required":["l"]},"then":{"required":["n"]}})",
                   {R"({"l":["a"]})", "{}", R"({"n":1})", R"({"l":["a","n"],"n":1})"},
                   {R"({"l":["n"]})", R"({"l":["a","n"]})"});
}

TEST(SchemaReferences, ByAnchorByNameAndIntoWhatIsNoSchema) {
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
