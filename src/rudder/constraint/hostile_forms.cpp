#include "rudder/constraint/hostile_forms.h"

#include <fmt/format.h>

#include <functional>
#include <string_view>
#include <utility>

#include "rudder/base/utf8.h"

namespace rudder::constraint {
namespace {

using Forms = std::vector<HostileForm>;
using Part = std::function<std::string(int)>;

// The parts 0 to count - 1 with commas between them.
std::string list_of(int count, const Part& part) {
  std::string out;
  for (int i = 0; i < count; ++i) {
    if (i > 0) out.push_back(',');
    out += part(i);
  }
  return out;
}

std::string copies_of(int count, std::string_view part) {
  std::string out;
  for (int i = 0; i < count; ++i) out += part;
  return out;
}

// `{"open":{"open":... inner ...}}`
std::string nested(int depth, std::string_view open, std::string_view inner, std::string_view end) {
  return copies_of(depth, open) + std::string(inner) + copies_of(depth, end);
}

// Every second character from `first` on, as UTF-8: a class of as many ranges.
std::string class_of(uint32_t first, int count) {
  std::string out;
  for (int i = 0; i < count; ++i) append_utf8(out, first + 2 * static_cast<uint32_t>(i));
  return out;
}

void add_schema(Forms& forms, std::string name, std::string text) {
  forms.push_back(
      {"schema: " + std::move(name), {.kind = GrammarKind::kJsonSchema, .text = std::move(text)}});
}
void add(Forms& forms, GrammarKind kind, std::string name, std::string text) {
  forms.push_back({std::move(name), {.kind = kind, .text = std::move(text)}});
}

std::string object_of(int count, const Part& value) {
  return R"({"type":"object","properties":{)" +
         list_of(count, [&](int i) { return fmt::format(R"("p{}":{})", i, value(i)); }) + "}}";
}
std::string pattern(std::string_view text) {
  return fmt::format(R"({{"type":"string","pattern":"{}"}})", text);
}

void add_wide_schemas(Forms& forms) {
  add_schema(forms, "10,000 properties",
             object_of(10'000, [](int) { return R"({"type":"null"})"; }));
  add_schema(forms, "7,000 required properties",
             fmt::format(R"({{"properties":{{{}}},"required":[{}]}})",
                         list_of(7'000, [](int i) { return fmt::format(R"("name{}":{{}})", i); }),
                         list_of(7'000, [](int i) { return fmt::format(R"("name{}")", i); })));
  add_schema(forms, "15,000 required names",
             fmt::format(R"({{"type":"object","required":[{}]}})",
                         list_of(15'000, [](int i) { return fmt::format(R"("name{}")", i); })));
  add_schema(forms, "150 properties, counted", object_of(150, [](int) {
                                                 return R"({"type":"null"})";
                                               }).insert(1, R"("maxProperties":120,)"));
  add_schema(forms, "15,000 unknown keywords",
             "{" + list_of(15'000, [](int i) { return fmt::format(R"("keyword{}":1)", i); }) + "}");
  add_schema(forms, "6,000 options of anyOf",
             fmt::format(R"({{"anyOf":[{}]}})", list_of(6'000, [](int i) {
                           return fmt::format(R"({{"required":["name{}"]}})", i);
                         })));
  add_schema(forms, "2,000 options of anyOf beside an object",
             fmt::format(R"({{"properties":{{{}}},"anyOf":[{}]}})",
                         list_of(3'000, [](int i) { return fmt::format(R"("name{}":{{}})", i); }),
                         list_of(2'000, [](int i) {
                           return fmt::format(R"({{"required":["name{}"]}})", i);
                         })));
  add_schema(forms, "600 options of oneOf that may hold together",
             fmt::format(R"({{"oneOf":[{}]}})", list_of(600, [](int i) {
                           return fmt::format(
                               R"({{"properties":{{"a":{{"minimum":{}}},"b":{{"type":"null"}}}}}})",
                               i);
                         })));
  add_schema(
      forms, "1,500 options of oneOf told apart",
      fmt::format(
          R"({{"oneOf":[{}]}})", list_of(1'500, [](int i) {
            return fmt::format(
                R"({{"properties":{{"kind":{{"const":{}}},"b":{{"type":"null"}}}},"required":["kind"]}})",
                i);
          })));
  add_schema(forms, "30,000 first items",
             fmt::format(R"({{"prefixItems":[{}]}})", list_of(60'000, [](int) { return "{}"; })));
  add_schema(forms, "300 conditions",
             fmt::format(R"({{"dependentRequired":{{{}}}}})", list_of(300, [](int i) {
                           return fmt::format(R"("a{}":["b{}"])", i, i);
                         })));
  add_schema(
      forms, "20 conditions",
      fmt::format(
          R"({{"allOf":[{}]}})", list_of(20, [](int i) {
            return fmt::format(
                R"({{"if":{{"properties":{{"a":{{"minimum":{}}}}}}},"then":{{"required":["b{}"]}}}})",
                i, i);
          })));
}

void add_listed(Forms& forms) {
  const auto words = [](int count) {
    return list_of(count, [](int i) { return fmt::format(R"("value number {}")", i); });
  };
  const auto numbers = [](int count) {
    return list_of(count, [](int i) { return fmt::format("{}", 7 * i); });
  };
  add_schema(forms, "enum of 11,000 strings", fmt::format(R"({{"enum":[{}]}})", words(11'000)));
  add_schema(forms, "enum of 11,000 strings held to a pattern",
             fmt::format(R"({{"enum":[{}],"pattern":"^.*(a|b).{{5,90}}$"}})", words(11'000)));
  add_schema(forms, "two enums of 5,500 strings",
             fmt::format(R"({{"allOf":[{{"enum":[{0}]}},{{"enum":[{0}]}}]}})", words(5'500)));
  add_schema(forms, "enum of lists with unique items",
             fmt::format(R"({{"enum":[[{}]],"uniqueItems":true}})", numbers(30'000)));
  add_schema(forms, "unique items of 11,000 strings",
             fmt::format(R"({{"items":{{"enum":[{}]}},"uniqueItems":true}})", words(11'000)));
  add_schema(
      forms, "unique items, counted",
      fmt::format(R"({{"items":{{"enum":[{}]}},"uniqueItems":true,"minItems":60,"maxItems":70}})",
                  numbers(280)));
  add_schema(forms, "not one of 11,000 strings",
             fmt::format(R"({{"type":"string","not":{{"enum":[{}]}}}})", words(11'000)));
  add_schema(forms, "not one of 30,000 integers",
             fmt::format(R"({{"type":"integer","not":{{"enum":[{}]}}}})", numbers(30'000)));
  add_schema(
      forms, "5,000 excluded names in 100 objects",
      fmt::format(
          R"({{"$defs":{{"big":{{"properties":{{{}}},"additionalProperties":true}}}},"properties":{{{}}}}})",
          list_of(5'000, [](int i) { return fmt::format(R"("some name {}":true)", i); }),
          list_of(100, [](int i) {
            return fmt::format(R"("p{}":{{"$ref":"#/$defs/big","maxProperties":2}})", i);
          })));
}

void add_strings(Forms& forms) {
  add_schema(forms, "300 properties with long patterns", object_of(300, [](int i) {
               return pattern(
                   fmt::format("^([a-z]{{1,40}}[0-9a-f]*x{}){{1,30}}(a|b|c{}){{0,200}}$", i, i));
             }));
  add_schema(forms, "200 patterns that remember", object_of(200, [](int i) {
               return pattern(fmt::format("^(?:a|b)*a(?:a|b){{13}}x{}$", i));
             }));
  add_schema(forms, "4,000 short patterns",
             object_of(4'000, [](int i) { return pattern(fmt::format("^[a-z]+ {}$", i)); }));
  add_schema(forms, "1,500 patterns of prose", object_of(1'500, [](int i) {
               return pattern(fmt::format("^([^a]|a[^b]){{0,20}}.*{}", i));
             }));
  add_schema(forms, "2,000 lengths of uri", object_of(2'000, [](int i) {
               return fmt::format(R"({{"type":"string","format":"uri","minLength":{}}})", i + 1);
             }));
  add_schema(forms, "lengths beside a pattern", object_of(500, [](int i) {
               return fmt::format(
                   R"({{"type":"string","pattern":"^(ab|c)*d","minLength":{},"maxLength":9000}})",
                   i);
             }));
  add_schema(forms, "8 patterns at once",
             fmt::format(R"({{"type":"string","allOf":[{}]}})", list_of(8, [](int i) {
                           return fmt::format(R"({{"pattern":"^(?:a|b)*a(?:a|b){{{}}}$"}})", i + 3);
                         })));
  add_schema(forms, "8 patterns at once, 200 times", object_of(200, [](int k) {
               return fmt::format(R"({{"type":"string","allOf":[{}]}})", list_of(8, [&](int i) {
                                    return fmt::format(R"({{"pattern":"(a|b){{{}}}x{}"}})", i + 1,
                                                       k);
                                  }));
             }));
  add_schema(forms, "30 patterns that must not match",
             fmt::format(R"({{"type":"string","not":{{"anyOf":[{}]}}}})", list_of(30, [](int i) {
                           return fmt::format(R"({{"pattern":"a.{{{}}}b"}})", i + 1);
                         })));
  add_schema(
      forms, "16 patterns of keys and 300 properties",
      fmt::format(R"({{"patternProperties":{{{}}},"properties":{{{}}}}})",
                  list_of(16,
                          [](int i) {
                            return fmt::format(R"("^(a|b)*[a-z]{{{}}}$":{{"minimum":{}}})", i + 5,
                                               i);
                          }),
                  list_of(300, [](int i) { return fmt::format(R"("some name {}":{{}})", i); })));
  add_schema(
      forms, "names that match a pattern",
      fmt::format(
          R"({{"propertyNames":{{"pattern":"^(.{{1,9}} )+[0-9]{{1,50}}$"}},"properties":{{{}}},"additionalProperties":true}})",
          list_of(4'000, [](int i) { return fmt::format(R"("some name {}":{{}})", i); })));
  add_schema(forms, "any of 3,000 patterns",
             fmt::format(R"({{"anyOf":[{}]}})", list_of(3'000, [](int i) {
                           return pattern(fmt::format("^([^a]|a[^b]){{0,20}}{}$", i));
                         })));
  add_schema(forms, "16 classes of 5,000 ranges that go down", object_of(16, [](int i) {
               std::string text;
               for (int k = 5'000; k > 0; --k)
                 append_utf8(text, 0x4E00 + static_cast<uint32_t>(2 * k + i % 2));
               return pattern("^[" + text + "]{1,9}$");
             }));
  add_schema(forms, "nothing, many times", pattern("^" + nested(20, "(", "", "){10000}") + "x$"));
  add_schema(forms, "nothing, as often as wanted",
             pattern("^" + nested(20, "(", "", "){0,10000}") + "x$"));
  add_schema(
      forms, "a class of 3,000 ranges",
      pattern("^[" + class_of(0x4E00, 3'000) + "]{1,60}x[" + class_of(0x4E01, 3'000) + "]*$"));
  add_schema(forms, "a pattern of 20,000 positions", pattern("^(.{0,99}x.{0,99}){0,99}$"));
  add_schema(forms, "a pattern of 16,000 words", pattern("^(" + [] {
               std::string words = "x";
               for (int i = 0; i < 2'900; ++i) words += fmt::format("|{:x}", i * 7919 % 65'536);
               return words;
             }() + ")*$"));
  add_schema(forms, "lengths of 2,147,483,647",
             R"({"type":"string","minLength":2147483646,"maxLength":2147483647})");
  add_schema(
      forms, "lengths of 2,147,483,647 beside a pattern",
      R"({"type":"string","pattern":"^(ab|c)*d","minLength":214748364,"maxLength":2147483647})");
}

void add_numbers_and_lists(Forms& forms) {
  add_schema(forms, "900 ranges of numbers", object_of(900, [](int i) {
               return fmt::format(
                   R"({{"type":"number","minimum":{}.123456789,"maximum":9876{}.987654321}})", i,
                   i);
             }));
  add_schema(forms, "2,500 multiples in ranges", object_of(2'500, [](int i) {
               return fmt::format(
                   R"({{"type":"integer","multipleOf":{},"minimum":{},"maximum":90000}})", i + 97,
                   i);
             }));
  add_schema(forms, "multiples of 100 and less", object_of(60, [](int i) {
               return fmt::format(R"({{"type":"integer","multipleOf":{}}})", 100 - i);
             }));
  add_schema(
      forms, "lists of lists of 100,000",
      nested(60, R"({"maxItems":100000,"minItems":9999,"items":)", R"({"type":"integer"})", "}"));
  add_schema(forms, "lists of lists of 8",
             nested(60, R"({"maxItems":8,"minItems":1,"items":)", R"({"type":"integer"})", "}"));
  add_schema(forms, "unique numbers of 10 ranges", object_of(30, [](int k) {
               const std::string ranges = list_of(10, [&](int i) {
                 return fmt::format(R"({{"type":"number","minimum":{}.{:09},"maximum":{}.5}})",
                                    100 * i + k, 7'654'321 * (i + 1), 100 * i + k + 57);
               });
               return fmt::format(R"({{"uniqueItems":true,"items":{{"anyOf":[{}]}}}})", ranges);
             }));
  add_schema(forms, "three contains together", object_of(200, [](int i) {
               return fmt::format(
                   R"({{"contains":{{"const":{0}}},"allOf":[{{"contains":{{"type":"string"}}}},)"
                   R"({{"contains":{{"maximum":{0}}}}}]}})",
                   i);
             }));
  add_schema(forms, "200 lists that contain", object_of(2'000, [](int i) {
               return fmt::format(R"({{"contains":{{"const":{}}},"items":{{"type":"integer"}}}})",
                                  i);
             }));
}

void add_joined(Forms& forms) {
  add_schema(forms, "allOf that goes round",
             R"({"allOf":[{"allOf":[{"$ref":"#"}]},{"$ref":"#"}]})");
  add_schema(forms, "allOf that goes round three times",
             R"({"allOf":[{"$ref":"#"},{"$ref":"#"},{"$ref":"#"}]})");
  add_schema(forms, "anyOf in allOf that goes round",
             R"({"anyOf":[{"anyOf":[{"$ref":"#"},{"$ref":"#"}]}],"allOf":[{"$ref":"#"}]})");
  add_schema(forms, "allOf of 20 anyOf",
             fmt::format(R"({{"allOf":[{}]}})", list_of(20, [](int i) {
                           return fmt::format(
                               R"({{"anyOf":[{{"required":["a{0}"]}},{{"required":["b{0}"]}}]}})",
                               i);
                         })));
  add_schema(
      forms, "references with something beside them",
      fmt::format(
          R"({{"$defs":{{"a60":{{}},{}}},"$ref":"#/$defs/a0"}})", list_of(60, [](int i) {
            return fmt::format(
                R"("a{0}":{{"properties":{{"x":{{"$ref":"#/$defs/a{1}","minProperties":1}},"y":{{"$ref":"#/$defs/a{1}","minProperties":1}}}}}})",
                i, i + 1);
          })));
  add_schema(
      forms, "a tree of allOf",
      fmt::format(
          R"({{"$defs":{{"a60":{{"type":"object"}},{}}},"$ref":"#/$defs/a0"}})",
          list_of(60, [](int i) {
            return fmt::format(
                R"("a{0}":{{"allOf":[{{"$ref":"#/$defs/a{1}"}},{{"$ref":"#/$defs/a{1}"}}]}})", i,
                i + 1);
          })));
  add_schema(
      forms, "two objects of 5,000 properties",
      fmt::format(R"({{"allOf":[{{"properties":{{{0}}}}},{{"properties":{{{0}}}}}]}})",
                  list_of(5'000, [](int i) { return fmt::format(R"("name {}":{{}})", i); })));
  add_schema(forms, "required lists of 8,000 names, joined",
             fmt::format(R"({{"allOf":[{{"required":[{}]}},{{"required":[{}]}}]}})",
                         list_of(8'000, [](int i) { return fmt::format(R"("name {}")", i); }),
                         list_of(8'000, [](int i) { return fmt::format(R"("eman {}")", i); })));
  add_schema(
      forms, "complements that lead back, in each other",
      R"({"if":{"anyOf":[{"$ref":"#/$defs/d"}],"not":{"type":"string"}},)"
      R"("contains":{"if":{"prefixItems":[{"$ref":"#/$defs/d"}],"minimum":3},)"
      R"("else":{"allOf":[{"$ref":"#"},{"type":"string"}],)"
      R"("properties":{"":{"$ref":"#/$defs/d"},"b":true},"dependentSchemas":{"":{"$ref":"#"}}}},)"
      R"("$defs":{"d":{"properties":{"":{"anyOf":[{"$ref":"#"},{}]},)"
      R"("a":{"oneOf":[{"const":"ab"},{"$ref":"#"}],"properties":{"b":false}},)"
      R"("c":{"items":{"$ref":"#/$defs/d"},"minLength":4}}}}})");
  add_schema(forms, "if over itself, by many properties",
             R"({"if":{"$ref":"#/$defs/d"},"$defs":{"d":)" +
                 object_of(20, [](int) { return R"({"$ref":"#/$defs/d"})"; }) + "}}");
  add_schema(forms, "not of itself, by allOf and anyOf",
             R"({"not":{"$ref":"#/$defs/d"},"$defs":{"d":{"anyOf":[{"allOf":[{"$ref":"#/$defs/d"},)"
             R"({"$ref":"#/$defs/d"}]},{"contains":{"$ref":"#/$defs/d"}}]}}})");
  add_schema(forms, "contains of itself, three times",
             R"({"allOf":[{"contains":{"$ref":"#"}},{"contains":{"items":{"$ref":"#"}}},)"
             R"({"contains":{"properties":{"a":{"$ref":"#"}}}}]})");
  add_schema(forms, "2,000 conditions over one list", [] {
    std::string text = R"({"$defs":{"d":{"enum":[)" +
                       list_of(2'000, [](int i) { return fmt::format("{}", i); }) + "]}},";
    return text + R"("allOf":[)" +
           list_of(200, [](int) { return R"({"if":{"$ref":"#/$defs/d"},"then":{"minimum":3}})"; }) +
           "]}";
  }());
  add_schema(forms, "not of not of not",
             nested(20, R"({"not":{"properties":{"a":)", R"({"minimum":3})", "}}}"));
  add_schema(forms, "not of 500 properties", R"({"not":)" + object_of(500, [](int i) {
                                               return fmt::format(R"({{"minimum":{}}})", i);
                                             }) + "}");
  add_schema(forms, "conditions in conditions",
             nested(20, R"({"if":{"minimum":1},"else":{"type":"null"},"then":)", "{}", "}"));
  add_schema(forms, "31 levels of objects",
             nested(31, R"({"type":["object","array","string"],"properties":{"a":)", "{}", "}}"));
  add_schema(
      forms, "anchors far below",
      fmt::format(
          R"({{{}{}{}}})",
          [] {
            std::string open;
            for (int i = 0; i < 40; ++i) open += '"' + std::string(4'000, 'k') + R"(":{)";
            return open;
          }(),
          list_of(3'000, [](int i) { return fmt::format(R"("{0}":{{"$anchor":"a{0}"}})", i); }),
          copies_of(40, "}")));
  add_schema(forms, "10,000 references",
             R"({"$defs":{"a":{"type":"null"}},"prefixItems":[)" +
                 list_of(10'000, [](int) { return R"({"$ref":"#/$defs/a"})"; }) + "]}");
}

void add_expressions(Forms& forms) {
  const auto regex = [&](std::string name, std::string text) {
    add(forms, GrammarKind::kRegex, "regex: " + std::move(name), std::move(text));
  };
  regex("remembers 20 letters", "(a|b)*a(a|b){20}");
  regex("remembers 200 letters", "(a|b)*a(a|b){200}");
  regex("optional letters", "(a?){5000}(a){5000}");
  regex("bounds in bounds", "((a{0,20}b{0,20}){0,20}c?){0,20}");
  regex("prose up to a mark, 20 times", "(.{0,300}x){0,20}");
  regex("prose up to a mark, 60 times", "(.{0,300}xyz){0,60}");
  regex("10,000 of 10,000", "[^x]{10000}y[^z]{9000}");
  regex("two classes of 4,000 ranges",
        "([" + class_of(0x4E00, 4'000) + "][" + class_of(0x100, 4'000) + "]){0,50}");
  regex("prefixes", "(a|ab|abc|abcd|abcde|abcdef){1,900}(.{0,9}b){1,90}");
  regex("2,300 words", [] {
    std::string words = "x";
    for (int i = 0; i < 2'300; ++i) words += fmt::format("|{:x}", i * 7919);
    return "(" + words + "){1,9}";
  }());
}

void add_grammars(Forms& forms) {
  const auto ebnf = [&](std::string name, std::string text) {
    add(forms, GrammarKind::kEbnf, "EBNF: " + std::move(name), std::move(text));
  };
  ebnf("10,000 rules in a chain", [] {
    std::string text = "root ::= r0\n";
    for (int i = 0; i < 10'000; ++i) text += fmt::format("r{} ::= r{} \"a\"\n", i, i + 1);
    return text + "r10000 ::= \"b\"\n";
  }());
  ebnf("10,000 rules that may be empty", [] {
    std::string text = "root ::= r0\n";
    for (int i = 0; i < 10'000; ++i) text += fmt::format("r{0} ::= \"a\"? r{1}\n", i, i + 1);
    return text + "r10000 ::= \"\"\n";
  }());
  ebnf("a rule of 40,000 rules that may be empty",
       "root ::= " + copies_of(80'000, "a ") + "\na ::= \"x\"?\n");
  ebnf("repetitions in repetitions", "root ::= " + nested(200, "(", "\"a\"", "){2,8}") + "\n");
  ebnf("a class of 25,000 ranges",
       "root ::= [" + class_of(0x10000, 25'000) + class_of(0x100, 25'000) + "]{1,60}\n");
  ebnf("a list of 40,000 tokens, 60 times", "root ::= (Token(" + list_of(40'000, [](int i) {
                                              return fmt::format("{}", i);
                                            }) + ") \"a\"?){60}\n");
  ebnf("10,000 classes", "root ::= " + copies_of(8'000, "[^a-f0-9x] | ") + "\"a\"\n");
  ebnf("a list of 40,000 tokens, 500 times", "root ::= ((Token(" + list_of(40'000, [](int i) {
                                               return fmt::format("{}", i);
                                             }) + ") \"a\"?){8}){60}\n");
  ebnf(
      "20,000 words", "root ::= " + [] {
        std::string text = "\"x\"";
        for (int i = 0; i < 20'000; ++i) text += fmt::format("|\"{:x}\"", i * 7919);
        return text;
      }() + "\n");
  ebnf("choices that remember",
       "root ::= (\"a\" | \"b\")* \"a\" " + copies_of(400, "(\"a\"|\"b\")") + "\n");
  ebnf("choices of rules that remember",
       "root ::= (a | b)* a " + copies_of(2'000, "(a|b)") + "\na ::= \"a\"\nb ::= \"b\"\n");
  ebnf("Regex, 3,000 times", [] {
    std::string text = "root ::= \"x\"";
    for (int i = 0; i < 3'000; ++i) text += fmt::format(" | Regex(\"[^{}]{{1,9}}a{}\")", i % 10, i);
    return text + "\n";
  }());
}

void add_tags(Forms& forms) {
  const auto tags = [&](std::string name, std::string format) {
    add(forms, GrammarKind::kStructuralTag, "tags: " + std::move(name),
        R"({"type":"structural_tag","format":)" + std::move(format) + "}");
  };
  const auto tag = [](const std::string& begin, const std::string& content,
                      const std::string& end) {
    return fmt::format(R"({{"type":"tag","begin":"{}","content":{},"end":"{}"}})", begin, content,
                       end);
  };
  const std::string any = R"({"type":"any_text"})";
  tags("2,000 tags of 2,000 triggers",
       fmt::format(
           R"({{"type":"triggered_tags","triggers":[{}],"tags":[{}]}})",
           list_of(2'000, [](int i) { return fmt::format(R"("<t{}>")", i); }),
           list_of(2'000, [&](int i) { return tag(fmt::format("<t{}>", i), any, "</t>"); })));
  tags("12,000 triggers",
       fmt::format(R"({{"type":"triggered_tags","triggers":[{}],"tags":[{}]}})",
                   list_of(12'000, [](int i) { return fmt::format(R"("<trig{:05}>")", i); }),
                   tag("<trig00000>", any, "</t>")));
  tags("500 tags with patterns",
       fmt::format(
           R"({{"type":"triggered_tags","triggers":["<"],"tags":[{}]}})", list_of(500, [&](int i) {
             return tag(fmt::format("<{}>", i),
                        fmt::format(R"({{"type":"regex","pattern":"([^<]|<[^/]){{0,30}}x{}"}})", i),
                        "</t>");
           })));
  tags("300 tags with free text and ends of their own",
       fmt::format(
           R"({{"type":"triggered_tags","triggers":["<"],"tags":[{}]}})", list_of(300, [&](int i) {
             return tag(fmt::format("<{}>", i), any, std::string(300, 'e') + fmt::format("{}", i));
           })));
  tags("a trigger of 60,000 bytes",
       fmt::format(R"({{"type":"triggered_tags","triggers":["{0}"],"tags":[{1}]}})",
                   std::string(60'000, '<'), tag(std::string(60'000, '<'), any, "</t>")));
  tags("excludes of 100,000 bytes",
       fmt::format(R"({{"type":"any_text","excludes":[{}]}})",
                   list_of(9'000, [](int i) { return fmt::format(R"("<some mark {}>")", i); })));
  tags("400 schemas",
       fmt::format(R"({{"type":"triggered_tags","triggers":["<"],"tags":[{}]}})",
                   list_of(400, [&](int i) {
                     return tag(fmt::format("<{}>", i),
                                R"({"type":"json_schema","json_schema":)" +
                                    object_of(12,
                                              [&](int k) {
                                                return fmt::format(
                                                    R"({{"type":"string","maxLength":{}}})", i + k);
                                              }) +
                                    "}",
                                "</t>");
                   })));
  tags("repeat in repeat",
       nested(28, R"({"type":"repeat","min":1,"max":1000000,"content":)", any, "}"));
  tags("dispatch in dispatch",
       nested(14, R"({"type":"dispatch","excludes":["x"],"rules":[["<abc>",)", any, "]]}"));
  tags("400 separated tags",
       fmt::format(R"({{"type":"tags_with_separator","separator":",","tags":[{}]}})",
                   list_of(400, [&](int i) { return tag(fmt::format("<{}>", i), any, "</t>"); })));
}

}  // namespace

std::vector<HostileForm> hostile_forms() {
  Forms forms;
  add_wide_schemas(forms);
  add_listed(forms);
  add_strings(forms);
  add_numbers_and_lists(forms);
  add_joined(forms);
  add_expressions(forms);
  add_grammars(forms);
  add_tags(forms);
  add(forms, GrammarKind::kChoice, "choice of 10,000",
      "[" + list_of(10'000, [](int i) { return fmt::format(R"("the choice number {}")", i); }) +
          "]");
  return forms;
}

}  // namespace rudder::constraint
