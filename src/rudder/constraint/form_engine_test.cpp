// Grammars of every kind, compiled and followed: what a parser may get wrong (recursion on either
// side, rules that may be empty, counted rounds, ambiguity), the notation of EBNF, and what large
// forms take.
#include "rudder/constraint/form_engine.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>
#include <set>
#include <string>
#include <vector>

#include "rudder/constraint/form_checker.h"

namespace rudder::constraint {
namespace {

FormChecker grammar(const std::string& text) {
  return FormChecker::make({.kind = GrammarKind::kEbnf, .text = text}).value();
}

void expect_texts(const std::string& text, const std::vector<std::string>& valid,
                  const std::vector<std::string>& invalid) {
  const FormChecker checker = grammar(text);
  for (const std::string& one : valid) EXPECT_TRUE(checker.accepts(one)) << text << ": " << one;
  for (const std::string& one : invalid) EXPECT_FALSE(checker.accepts(one)) << text << ": " << one;
}

TEST(Ebnf, RecursionOnEitherSide) {
  expect_texts("root ::= root \"a\" | \"b\"", {"b", "ba", "baaaa"}, {"", "a", "ab", "bab"});
  expect_texts("root ::= \"a\" root | \"b\"", {"b", "ab", "aaab"}, {"", "a", "ba"});
  expect_texts("root ::= \"(\" root \")\" | \"\"", {"", "()", "((()))"}, {"(", "())", ")("});
  expect_texts("root ::= a \"c\"\na ::= b | a \"x\"\nb ::= a \"y\" | \"z\"",
               {"zc", "zyxc", "zxxyyc"}, {"c", "xc", "zyx"});
}

// However many dear branches are tried, they together take no more than one may. What costs little
// is taken all the same.
TEST(EbnfFull, DearBranchesHaveOnePurse) {
  const FormChecker ambiguous = grammar("root ::= e | \"b\" root\ne ::= e e e | e e | \"a\"");
  const auto matcher = ambiguous.start();
  ASSERT_TRUE(matcher->advance('b'));
  EXPECT_FALSE(matcher->is_dear());
  const auto words = FormChecker::allowed(*matcher);
  matcher->begin_trial();
  int num_failed = 0;
  for (int branch = 0; branch < 100 && num_failed < 3; ++branch) {
    matcher->begin_trial();
    for (int i = 0; i < 4000; ++i) {
      if (matcher->advance('a')) continue;
      ++num_failed;
      break;
    }
    matcher->end_trial();
    EXPECT_TRUE(matcher->is_dear());
    EXPECT_EQ(FormChecker::allowed(*matcher), words);
    matcher->begin_trial();
    EXPECT_TRUE(matcher->advance('b'));
    matcher->end_trial();
  }
  EXPECT_EQ(num_failed, 3);
  matcher->end_trial();
  EXPECT_EQ(FormChecker::allowed(*matcher), words);
  EXPECT_TRUE(matcher->advance('a'));
}

TEST(Ebnf, RulesThatMayBeEmpty) {
  expect_texts("root ::= a b \"x\"\na ::= \"\" | \"a\" a\nb ::= \"\" | b \"b\"",
               {"x", "ax", "bx", "aabbx"}, {"", "a", "abax"});
  expect_texts("root ::= a a a\na ::= \"\" | \"a\"", {"", "a", "aa", "aaa"}, {"aaaa"});
  expect_texts("root ::= (a){3}\na ::= \"a\" x\nx ::= \"\" | \"b\"", {"aaa", "abaab"},
               {"aa", "abb"});
  expect_texts("root ::= (a | \"\")* \"x\"\na ::= \"a\" | \"\"", {"x", "aax"}, {"", "a"});
  // A round that ends with a rule that may be empty, often enough to be counted.
  const std::string counted =
      "root ::= part{90,100}\npart ::= \"ab\" tail\ntail ::= \"\" | \"c\" tail";
  const auto times = [](const std::string& text, int n) {
    std::string out;
    for (int i = 0; i < n; ++i) out += text;
    return out;
  };
  expect_texts(counted, {times("ab", 90), times("abc", 100), times("ab", 50) + times("abcc", 45)},
               {times("ab", 89), times("ab", 101)});
  expect_texts("root ::= (\"\" | \"a\"){200,300} \"x\"", {"x", times("a", 300) + "x"},
               {times("a", 301) + "x"});
  expect_texts("root ::= item{70,}\nitem ::= \"a\" | \"bc\"", {times("a", 70), times("bc", 99)},
               {times("a", 69), times("bc", 69) + "b"});
}

TEST(Ebnf, AmbiguityIsTheStatesTogether) {
  expect_texts("root ::= e\ne ::= e \"+\" e | e \"*\" e | [0-9]", {"1", "1+2*3+4"}, {"1+", "+1"});
  expect_texts("root ::= (\"x\"+ \"x\"+)+ \"y\"", {"xxy", std::string(200, 'x') + "y"},
               {"y", "xy"});
}
TEST(EbnfFull, AmbiguityWithoutEndEndsTheChoice) {  // and does not hold the engine up
  const FormChecker checker = grammar("root ::= e\ne ::= e e e | e e | \"a\"");
  const auto matcher = checker.start();
  Result<void> going = {};
  for (int i = 0; i < 4000 && going; ++i) going = matcher->advance('a');
  ASSERT_FALSE(going);
  EXPECT_EQ(going.error().code, ErrorCode::kInvalidArgument);
}

TEST(Ebnf, EndsInTheMiddleOfAThing) {
  // Each is a view of its own: a byte behind it is none of the text's.
  for (const char* text :
       {"root ::= [0-", "root ::= [", "root ::= [a\\", "root ::= \"ab", "root ::= \"\\",
        "root ::= [\\x4", "root ::= (", "root ::= \"a\"{", "root ::="}) {
    EXPECT_FALSE(FormChecker::make({.kind = GrammarKind::kEbnf, .text = text})) << text;
  }
}

TEST(Ebnf, Notation) {
  expect_texts(
      "# a comment\nroot ::= \"a\\n\\\"\\x41\\u00e9\" # more\n  | [^a-c\\]\\-]{2} | b.c-d\n"
      "b.c-d ::= \"q\"? \"w\"+ (\"e\" | \"r\"){1, 2}\n",
      {"a\n\"A\xC3\xA9", "xy", "dd", "qwwe", "wer", "\xE2\x82\xAC!"},
      {"a", "ax", "]x", "x-", "weer"});
  expect_texts("root ::= Regex(\"[a-c]+\") \"!\"", {"a!", "cab!"}, {"!", "d!", "a"});
  const auto refused = [](const std::string& text) {
    const auto made = FormChecker::make({.kind = GrammarKind::kEbnf, .text = text});
    return made ? std::string("accepted") : made.error().message;
  };
  EXPECT_EQ(refused("root ::= a"), "line 1: no rule 'a' is there");
  EXPECT_EQ(refused("a ::= \"x\""), "has no rule 'root'");
  EXPECT_NE(refused("root ::= \"x\"\nroot ::= \"y\"").find("line 2"), std::string::npos);
  for (const char* text : {"", "root", "root ::=", "root ::= (", "root ::= \"a", "root ::= [a",
                           "root ::= \"\\q\"", "root ::= *", "root ::= \"a\"{3,2}",
                           "root ::= \"a\" (= \"b\")", "root[max_tokens=3] ::= \"a\"",
                           "root ::= root", "root ::= TagDispatch()", "root ::= \"a\"{2000000}"}) {
    EXPECT_NE(refused(text), "accepted") << text;
  }
}

// As llama.cpp's guide to GBNF has them.
TEST(Ebnf, GbnfNotation) {
  expect_texts("root ::= \"[\" ws \"]\"\nws ::= | \" \" | \"\\n\" [ \\t]{0,20}\n",
               {"[]", "[ ]", "[\n]", "[\n \t]"}, {"[  ]", "[", "[\t]"});
  expect_texts("root ::= a (\"x\" |) b | # nothing\n  | \"z\"\na ::= \"a\"\nb ::= ( | \"b\" )\n",
               {"axb", "ab", "ax", "a", "z", ""}, {"x", "b", "zz"});
  expect_texts("root ::= (\n  # inside\n  \"a\" \"b\"\n  \"c\"\n)+ # behind\n\n# between\n",
               {"abc", "abcabc"}, {"", "ab"});
  expect_texts("root ::= \"a\"* \"b\"+ \"c\"? \"d\"{2} \"e\"{2,} \"f\"{0,2} (\"g\" \"h\"){1,2}",
               {"bddeegh", "aabbcddeeeffghgh"}, {"ddeegh", "bdeegh", "bddegh", "bddeefffgh"});
  expect_texts("root ::= \"a\"{2}? [b-d]+* 1st\n1st ::= \"!\"", {"aa!", "!", "bcd!", "aab!"},
               {"a!", "aa", "aaaa!"});
  expect_texts("root ::= . \"-\" .. .*", {"a-bc", "\xC3\xA9-\n\xE2\x82\xAC", "x-yzzz"},
               {"-bc", "a-b", "ab-cd"});
  expect_texts("root ::= [^\"\\\\\\x7F\\x00-\\x1F] | [\\\\] ([\"\\\\bfnrt] | \"u\" [0-9a-fA-F]{4})",
               {"a", "\\n", "\\u00e9"}, {"\"", "\\x", "\n"});
  expect_texts("root ::= !<[97]> <[98]>", {"xb", "bb"}, {"ab", "b", "xc"});
  const auto refused = [](const std::string& text) {
    const auto made = FormChecker::make({.kind = GrammarKind::kEbnf, .text = text});
    return made ? std::string("accepted") : made.error().message;
  };
  EXPECT_NE(refused("root ::= <think> \"a\"").find("by their ids"), std::string::npos);
  EXPECT_NE(refused("root ::= \"a\" ()").find("something is missing"), std::string::npos);
}

TEST(Ebnf, LarkIsToldByName) {
  const auto refused = [](const std::string& text) {
    const auto made = FormChecker::make({.kind = GrammarKind::kEbnf, .text = text});
    return made ? std::string("accepted") : made.error().message;
  };
  for (const char* text :
       {"start: \"a\" | \"b\"\n", "// a comment\n\n?start: sum\nsum: NUMBER (\"+\" NUMBER)*\n",
        "%import common.NUMBER\nstart: NUMBER", "!start.2 : x\nx: /[a-z]+/",
        "%llguidance {}\nstart: \"a\"",
        "_list{item}: item (\",\" item)*\nstart: _list{A}\nA: \"a\"", "@start: \"a\"\n",
        "?!start: \"a\"", "\xEF\xBB\xBFstart: \"a\"", "start: \"::=\" x\r\nx: \"a\"",
        "start\n  : \"a\"\n%ignore \" \"", "%declare A\nstart: A", "start: a\n%override a: \"b\"",
        "%ignore /\\s+/", "%json {\"type\": \"string\"}", "start[capture=\"x\"]: \"a\"",
        "start: /a::=b/", "start -> a : \"a\"\n%import common (A, B)"}) {
    EXPECT_NE(refused(text).find("is a Lark grammar"), std::string::npos) << text;
  }
  for (const char* text : {"root = \"a\"", "root ::= a\nb: \"c\"", "root", "root ::= ", "::",
                           "%token A\n%%", "root ::= a\n%ignore b", "%importance", "@"}) {
    EXPECT_EQ(refused(text).find("Lark"), std::string::npos) << text;
  }
}

// Random grammars against all texts that they make, worked out by rewriting.
class RandomGrammar {
 public:
  explicit RandomGrammar(uint32_t seed) : random_(seed) {
    for (auto& rule : rules_) {
      rule.resize(1 + random_() % 3);
      for (auto& way : rule) {
        way.resize(random_() % 4);
        for (char& symbol : way) symbol = "abcABC"[random_() % 6];
      }
    }
    rules_[0].push_back("a");  // one of its texts
  }

  std::string text() const {
    std::string out;
    for (size_t i = 0; i < 3; ++i) {
      out += i == 0 ? "root ::= A\n" : "";
      out += fmt::format("{} ::=", static_cast<char>('A' + i));
      for (size_t k = 0; k < rules_[i].size(); ++k) {
        out += k == 0 ? "" : " |";
        // An empty way may be written as nothing beside others.
        const bool is_bare = rules_[i].size() > 1 && (i + k) % 2 == 0;
        if (rules_[i][k].empty() && !is_bare) out += " \"\"";
        if (k % 2 == 1) out += " # goes on\n ";
        for (const char symbol : rules_[i][k]) {
          out += symbol >= 'a' ? fmt::format(" \"{}\"", symbol) : fmt::format(" {}", symbol);
        }
      }
      out += "\n";
    }
    return out;
  }

  // Texts of at most `longest` characters: for each rule the least set that its ways make.
  std::set<std::string> texts(size_t longest) const {
    std::array<std::set<std::string>, 3> known;
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t i = 0; i < 3; ++i) {
        for (const std::string& way : rules_[i]) {
          std::set<std::string> made = {""};
          for (const char symbol : way) {
            std::set<std::string> next;
            const std::set<std::string> one = {std::string(1, symbol)};
            const auto& parts = symbol >= 'a' ? one : known[static_cast<size_t>(symbol - 'A')];
            for (const std::string& front : made) {
              for (const std::string& back : parts) {
                if (front.size() + back.size() <= longest) next.insert(front + back);
              }
            }
            made = std::move(next);
          }
          for (const std::string& one : made) changed = known[i].insert(one).second || changed;
        }
      }
    }
    return known[0];
  }

 private:
  std::mt19937 random_;
  std::array<std::vector<std::string>, 3> rules_;
};

void try_random_grammars(uint32_t num_seeds) {
  constexpr size_t kLongest = 5;
  std::vector<std::string> all = {""};
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].size() == kLongest) break;
    for (const char c : {'a', 'b', 'c'}) all.push_back(all[i] + c);
  }
  for (uint32_t seed = 0; seed < num_seeds; ++seed) {
    const RandomGrammar random(seed);
    const std::set<std::string> texts = random.texts(kLongest);
    const FormChecker checker = grammar(random.text());
    for (const std::string& text : all) {
      ASSERT_EQ(checker.accepts(text), texts.contains(text)) << random.text() << text;
    }
  }
}

TEST(Ebnf, RandomGrammarsMakeTheirTexts) {
  try_random_grammars(15);
}
TEST(EbnfFull, RandomGrammarsMakeTheirTexts) {
  try_random_grammars(60);
}

TEST(LargeForms, ChoicesAndEnumsAreTries) {
  std::string list = "[";
  for (int i = 0; i < 9000; ++i) {
    list += fmt::format("{}\"choice number {} of many\"", i == 0 ? "" : ",", i * 7919 % 100'000);
  }
  list += "]";
  for (const GrammarSpec& spec :
       {GrammarSpec{.kind = GrammarKind::kChoice, .text = list},
        GrammarSpec{.kind = GrammarKind::kJsonSchema, .text = "{\"enum\":" + list + "}"}}) {
    Fuel fuel(20'000'000);  // 200 ms
    const auto compiled = FormChecker::engine().compile(spec, fuel);
    ASSERT_TRUE(compiled) << compiled.error().to_string();
    EXPECT_LT(compiled->bytes, size_t{32} << 20);
  }
}

// Each looks like much, and is little.
TEST(LargeForms, RulesInChainsAndRepetitionsOfRepetitionsAreTaken) {
  std::string chain = "root ::= r0\n";
  for (int i = 0; i < 5000; ++i) chain += fmt::format("r{} ::= r{} \"a\"\n", i, i + 1);
  chain += "r5000 ::= \"b\"\n";
  std::string nested = "\"a\"";
  std::string nothing;
  for (int i = 0; i < 100; ++i) nested = "(" + nested + "){2,8}";
  for (int i = 0; i < 20; ++i) nothing = "(" + nothing + "){9999}";
  for (const GrammarSpec& spec :
       {GrammarSpec{.kind = GrammarKind::kEbnf, .text = chain},
        GrammarSpec{.kind = GrammarKind::kEbnf, .text = "root ::= " + nested + "\n"},
        GrammarSpec{.kind = GrammarKind::kRegex, .text = nothing + "x"}}) {
    Fuel fuel(20'000'000);
    const auto compiled = FormChecker::engine().compile(spec, fuel);
    EXPECT_TRUE(compiled) << compiled.error().to_string() << " " << spec.text.substr(0, 60);
  }
}

void try_properties(std::initializer_list<int> counts) {
  for (const int count : counts) {
    std::string properties;
    for (int i = 0; i < count; ++i) {
      properties += fmt::format(R"({}"property{}":{{"type":"string"}})", i == 0 ? "" : ",", i);
    }
    const auto compiled = FormChecker::engine().compile(
        {.kind = GrammarKind::kJsonSchema,
         .text = R"({"type":"object","properties":{)" + properties + "}}"});
    if (compiled) {
      EXPECT_LT(compiled->bytes, size_t{64} << 20);
    } else {
      EXPECT_EQ(compiled.error().code, ErrorCode::kInvalidArgument);
      EXPECT_GT(count, 1000) << compiled.error().to_string();
    }
  }
}

TEST(LargeForms, ManyPropertiesFitOrAreRefused) {
  try_properties({500, 1000});
}
TEST(LargeFormsFull, ManyPropertiesFitOrAreRefused) {
  try_properties({1000, 14'000});
}

}  // namespace
}  // namespace rudder::constraint
