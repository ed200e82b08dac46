// Lists whose items differ.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "rudder/constraint/schema_checks.h"

namespace rudder::constraint {
namespace {

TEST(SchemaArrays, TypesOfFewValuesMayBeUnique) {
  expect_documents(R"({"type":"array","uniqueItems":true,"items":{"type":["boolean","null"]}})",
                   {"[]", "[true]", "[null,false,true]"},
                   {"[true,true]", "[null,true,null]", "[1]"});
  expect_documents(R"({"type":"array","uniqueItems":true,"minItems":1,
                       "items":{"type":"integer","minimum":-1,"maximum":6,"not":{"enum":[3]}}})",
                   {"[-1]", "[6,2,0]"}, {"[]", "[3]", "[0,0]", "[7]"});
  expect_documents(R"({"type":"array","uniqueItems":true,"items":{"const":"a"}})",
                   {"[]", R"(["a"])"}, {R"(["a","a"])"});
}

// One spelling each: what is equal is the same text.
TEST(SchemaArrays, NumbersMayBeUnique) {
  const auto list = [](std::string_view items, std::string_view more = "") {
    return fmt::format(R"({{"type":"array","uniqueItems":true{},"items":{}}})", more, items);
  };
  expect_documents(list(R"({"type":"integer"})").c_str(),
                   {"[]", "[0]", "[1,12,123,2]", "[ -1, 1, 0,-10 ]", "[10,1]", "[1,\n 2]"},
                   {"[1,1]", "[12,1,12]", "[0,0]", "[0,-0]", "[-0]", "[1, 2,1 ]", "[-1,-1]",
                    "[1,1.0]", "[01]", R"(["1"])"});
  expect_documents(list(R"({"type":"number"})").c_str(),
                   {"[0.5,0.25,5,-0.5]", "[1,1.5,15]", "[100000,0.000001]", "[123456789012345]"},
                   {"[0.5,0.5]", "[1.5,1.50]", "[1,1.0]", "[1e2,100]", "[-0.0,0]",
                    "[0.1,0.1000000000000000055]", "[1.5,2,1.5]"});
  // Bounds, lists of values and multiples hold beside; where numbers run out the list has an end.
  expect_documents(
      list(R"({"type":"integer","minimum":7,"maximum":1999})", R"(,"minItems":1)").c_str(),
      {"[7,77,777]", "[1999,1998]", "[70,7]"}, {"[]", "[7,7]", "[6]", "[2000]"});
  expect_documents(list(R"({"type":"number","multipleOf":0.1,"minimum":0})").c_str(), {"[0,0.5,1]"},
                   {"[0.5,0.5]", "[0.25]"});
  expect_documents(
      list(R"({"anyOf":[{"type":"integer","minimum":100},{"enum":[1,2.5,null]}]})").c_str(),
      {"[1,2.5,100,null]", "[100,101]"}, {"[1,1]", "[2.5,2.5]", "[100,1,100]", "[3]"});
  expect_documents(list(R"({"type":["string","integer"]})", R"(,"minItems":2)").c_str(),
                   {R"([1,"1"])", R"(["a",2,"b",1])"}, {R"([1,1])", R"(["a",1,"a"])", "[1]"});
  // Multiples without an end, and long lists of numbers, are the one other item beside strings.
  expect_documents(list(R"({"type":["string","integer"],"multipleOf":5})").c_str(),
                   {R"(["a",10,"b"])"}, {"[5,5]", R"(["a","a"])", "[5,10]", "[3]"});
  std::string many = "0";
  for (int i = 1; i < 3000; ++i) many += fmt::format(",{}", i);
  expect_documents(list(R"({"anyOf":[{"type":"string"},{"enum":[)" + many + "]}]}").c_str(),
                   {R"(["a",2999,"b"])"}, {"[7,7]", R"(["a","a"])"});
  // Of each list by itself, and by a field where objects have no string.
  expect_documents(
      R"({"type":"array","items":{"type":"array","uniqueItems":true,"items":{"type":"integer"}}})",
      {"[[1,2],[1]]", "[[1],[1]]"}, {"[[1,1]]", "[[1],[2,3,2]]"});
  expect_documents(
      list(R"({"type":"object","properties":{"x":{"type":"number"},"y":{"type":"null"}},
                            "required":["x"]})")
          .c_str(),
      {R"([{"x":1},{"x":1.5,"y":null}])"},
      {R"([{"x":1},{"x":1}])", R"([{"x":2},{"x":1},{"x":2}])"});
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

// A list that its own items hold is made while it is not known how many items there may be.
TEST(SchemaArrays, ListsInTheirOwnItemsMayBeUnique) {
  expect_documents(
      R"({"$ref":"#/$defs/parts","$defs":{
                       "parts":{"type":"array","uniqueItems":true,"items":{"$ref":"#/$defs/part"}},
                       "part":{"type":"object","required":["n"],"additionalProperties":false,
                               "properties":{"n":{"type":"string"},"of":{"$ref":"#/$defs/parts"}}}}})",
      {"[]", R"([{"n":"a"},{"n":"b"}])", R"([{"n":"a","of":[]}])",
       R"([{"n":"a","of":[{"n":"b"},{"n":"c"}]},{"n":"d"}])",
       R"([{"n":"a","of":[{"n":"b","of":[{"n":"c"}]}]}])"},
      {R"([{"n":"a"},{"n":"a"}])", R"([{"n":"a","of":[{"n":"b"},{"n":"b"}]}])", R"([{"of":[]}])"});
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

TEST(SchemaArrays, NumbersAreUniqueWhateverTheTokens) {
  std::mt19937_64 random(7);
  size_t num_texts = 0;
  for (const char* items :
       {R"({"type":"integer"})", R"({"type":"integer","minimum":0,"maximum":300})",
        R"({"type":"number","multipleOf":0.1,"minimum":0,"maximum":0.6})",
        R"({"anyOf":[{"enum":[1,0,-1,10,2.5]},{"type":"boolean"}]})"}) {
    const std::string schema =
        fmt::format(R"({{"type":"array","uniqueItems":true,"minItems":4,"items":{}}})", items);
    const auto form = FormChecker::make({.kind = GrammarKind::kJsonSchema, .text = schema});
    ASSERT_TRUE(form) << schema << ": " << form.error().to_string();
    for (int round = 0; round < 60; ++round) {
      const std::string text = random_walk(*form, "0123456789-., []truefals", 400, random);
      if (text.empty()) continue;  // it went on too long
      ++num_texts;
      std::multiset<std::string> numbers;
      for (size_t at = text.find_first_of("-0123456789"); at != std::string::npos;) {
        const size_t end = text.find_first_not_of("-0123456789.", at);
        numbers.insert(text.substr(at, end - at));
        at = text.find_first_of("-0123456789", end);
      }
      EXPECT_EQ(text.back(), ']') << text;
      EXPECT_EQ(std::set<std::string>(numbers.begin(), numbers.end()).size(), numbers.size())
          << text;
    }
  }
  EXPECT_GT(num_texts, 60u);
}

// One item of those that no string tells apart.
TEST(SchemaArrays, OneItemThatNothingTellsApart) {
  const auto list = [](std::string_view items, std::string_view more = "") {
    return fmt::format(R"({{"type":"array","uniqueItems":true{},"items":{},"$defs":{{
        "o":{{"type":"object","properties":{{"n":{{"type":"string"}},"k":{{"type":"integer"}}}}}}}}}})",
                       more, items);
  };
  expect_documents(list(R"({"anyOf":[{"type":"string"},{"type":"boolean"}]})").c_str(),
                   {"[]", "[true]", R"(["a",true,"b"])", R"(["a","b"])", R"([false,"a"])"},
                   {R"(["a",true,"a"])", "[true,true]", R"([true,"a",false])"});
  expect_documents(list(R"({"$ref":"#/$defs/o"})", R"(,"minItems":1)").c_str(),
                   {R"([{"n":"a"},{"k":1},{"n":"b","k":1}])", "[{}]"},
                   {R"([{"n":"a"},{"k":1},{"n":"a"}])", "[{},{}]", "[]", R"([{"k":1},{"k":1}])"});
  expect_documents(list(R"({"anyOf":[{"type":"string"},{"enum":["a",1,null]}]})").c_str(),
                   {R"(["a",1])", R"(["b",null,"a",1])"}, {R"(["a",1,"a"])", "[null,null]"});
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
  // Of lists that are counted it comes first.
  const char* text_or_null = R"({"anyOf":[{"type":"string"},{"type":"null"}]})";
  expect_documents(list(text_or_null, R"(,"maxItems":3,"minItems":2)").c_str(),
                   {R"(["a","b"])", R"([null,"a"])", R"([null,"a","b"])", R"(["a","b","c"])"},
                   {"[null]", R"([null,null])", R"(["a","b","a"])", R"([null,"a","b","c"])"});
  for (const std::string& refused :
       {list(R"({"type":"array"})"),
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
  expect_documents(R"({"type":"array","uniqueItems":true,"items":{"type":"object",
                "properties":{"n":{"type":"string"}},"required":["n"],"anyOf":[{"properties":{"n":{"const":"a"}}}]}})",
                   {"[]", R"([{"n":"a"}])"}, {R"([{"n":"a"},{"n":"a"}])", R"([{"n":"b"}])"});
}

// By a string in the object of a field; one object may be without it.
TEST(SchemaArrays, ObjectsAreUniqueByAStringFurtherIn) {
  expect_documents(R"({"type":"array","uniqueItems":true,"items":{"type":"object",
      "properties":{"to":{"$ref":"#/$defs/to"},"kinds":{"type":"array","items":{"type":"string"}}},
      "required":["to"]},"$defs":{"to":{"type":"object",
      "properties":{"at":{"type":"integer"},"id":{"type":"string"}}}}})",
                   {R"([{"to":{"id":"a"}},{"to":{"at":1,"id":"b"},"kinds":["a","a"]}])",
                    R"([{"to":{"id":"a"}},{"to":{"at":1}},{"to":{"id":"b"}}])"},
                   {R"([{"to":{"id":"a"}},{"to":{"id":"a"}}])", R"([{"to":{}},{"to":{}}])",
                    R"([{"to":{"at":1}},{"to":{"at":1}}])", R"([{"to":{"id":"a"}},{}])"});
  // An item that has neither the object nor its string is one of the others.
  expect_documents(
      R"({"type":"array","uniqueItems":true,"items":{"type":"object",
      "properties":{"m":{"type":"object","properties":{"t":{"type":"string"}}},"k":{"type":"integer"}}}})",
      {R"([{"m":{"t":"a"}},{"k":1},{"m":{"t":"b"}}])", R"([{"m":{"t":"a"}},{"m":{}}])"},
      {R"([{"k":1},{"k":1}])", R"([{"m":{}},{"m":{}}])",
       R"([{"m":{"t":"a"},"k":1},{"m":{"t":"a"},"k":1}])"});
}

// Strings of several texts are those of one expression.
TEST(SchemaArrays, StringsOfSeveralTextsMayBeUnique) {
  const auto list = [](std::string_view items) {
    return fmt::format(R"({{"type":"array","uniqueItems":true,"items":{}}})", items);
  };
  expect_documents(
      list(R"({"type":"string","anyOf":[{"enum":["es5","\"\n"]},{"pattern":"^es\\d$"}]})").c_str(),
      {R"(["es5","es6","\"\n"])"},
      {R"(["es5","es5"])", R"(["es6","es6"])", R"(["es"])", R"(["\"\n","\"\n"])"});
  expect_documents(
      list(R"({"anyOf":[{"type":"string","minLength":2,"maxLength":3},{"enum":["a","ab",1]}]})")
          .c_str(),
      {R"(["a","ab",1,"é😀"])", R"([1,"abc"])"},
      {R"(["ab","ab"])", R"(["a","a"])", "[1,1]", R"(["b"])", R"(["abcd"])"});
  expect_documents(list(R"({"type":"string","maxLength":3,"pattern":"^a(-?a)*$"})").c_str(),
                   {R"(["a","aa","a-a","aaa"])"},
                   {R"(["a","a"])", R"(["aaaa"])", R"(["a-a","a-a"])"});
  expect_documents(list(R"({"type":["string","object"],"oneOf":[{"type":"string","enum":["x","y"]},
                            {"type":"object","properties":{"n":{"type":"string"}}}]})")
                       .c_str(),
                   {R"(["x",{"n":"a"},"y"])", R"([{},"x"])"},
                   {R"(["x",{},"x"])", R"([{"n":"a"},{"n":"a"}])"});
}

TEST(SchemaArrays, ItemsOfAnIndexEachMayBeUnique) {
  expect_documents(
      R"({"type":"array","uniqueItems":true,"prefixItems":[{"type":"string"},{"type":"integer"}],"items":false})",
      {"[]", R"(["a"])", R"(["a",1])"}, {R"(["a","a"])", R"(["a",1,1])"});
  EXPECT_EQ(
      form_error_path(
          R"({"type":"array","uniqueItems":true,"prefixItems":[{"type":"string"},{"enum":["a"]}],"items":false})"),
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

}  // namespace
}  // namespace rudder::constraint
