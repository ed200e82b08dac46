#include "bench/constraint_cases.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "rudder/dialect/call_format.h"

namespace rudder::apps {
namespace {

using constraint::GrammarKind;

// English of at least `length` bytes, cut there.
std::string prose(size_t length) {
  constexpr std::string_view kText =
      "The committee met on Tuesday to review the proposal, and after a long discussion it was "
      "agreed that further measurements are needed before any decision can be taken. ";
  std::string out;
  while (out.size() < length) out += kText;
  out.resize(length);
  return out;
}

std::string quoted(const std::string& text) {
  return '"' + text + '"';
}

ConstraintCase schema(std::string name, std::string text, std::vector<std::string> outputs) {
  return {std::move(name),
          {.kind = GrammarKind::kJsonSchema, .text = std::move(text)},
          std::move(outputs)};
}

ConstraintCase regex(std::string name, std::string text, std::vector<std::string> outputs) {
  return {
      std::move(name), {.kind = GrammarKind::kRegex, .text = std::move(text)}, std::move(outputs)};
}

// What a chat with a strict tool is held to, in the dialect of Hermes and Qwen.
std::string text_or_strict_call() {
  const boost::json::value parameters = {
      {"type", "object"},
      {"properties",
       {{"city", {{"type", "string"}, {"maxLength", 80}}},
        {"days", {{"type", "integer"}, {"minimum", 1}, {"maximum", 14}}}}},
      {"required", {"city", "days"}},
      {"additionalProperties", false}};
  dialect::ParserSetup setup;
  setup.calls = dialect::tool_dialects().data();
  return boost::json::serialize(
      dialect::text_or_calls_format(setup, {{"forecast", &parameters, true}}, true,
                                    [](std::string_view) { return std::nullopt; }));
}

void add_strings(std::vector<ConstraintCase>& cases) {
  cases.push_back(schema("string", R"({"type":"string"})", {quoted(prose(400))}));
  for (const size_t most : {20, 100, 1000}) {
    cases.push_back(schema(fmt::format("string, maxLength {}", most),
                           fmt::format(R"({{"type":"string","maxLength":{}}})", most),
                           {quoted(prose(most)), quoted(prose(most / 2))}));
  }
  cases.push_back(schema("string, 200 to 500",
                         R"({"type":"string","minLength":200,"maxLength":500})",
                         {quoted(prose(200)), quoted(prose(500))}));
  cases.push_back(schema("pattern ^[a-z]{3,40}$", R"({"type":"string","pattern":"^[a-z]{3,40}$"})",
                         {"\"measurements\"", "\"abc\""}));
  cases.push_back(schema("pattern ^[A-Z]{2}-[0-9]{4,10}$",
                         R"({"type":"string","pattern":"^[A-Z]{2}-[0-9]{4,10}$"})",
                         {"\"AB-12345678\"", "\"XY-1234\""}));
  cases.push_back(schema("pattern ^[A-Z][a-z ,]{0,200}\\.$",
                         R"({"type":"string","pattern":"^[A-Z][a-z ,]{0,200}\\.$"})",
                         {quoted("The committee met to review the proposal, and agreed.")}));
  cases.push_back(schema("pattern, a word somewhere", R"({"type":"string","pattern":"need"})",
                         {quoted(prose(200))}));
  const std::pair<const char*, const char*> formats[] = {
      {"date-time", "\"2024-02-29T12:30:05.250+01:00\""},
      {"uuid", "\"123e4567-e89b-12d3-a456-426614174000\""},
      {"ipv4", "\"192.168.200.17\""},
      {"ipv6", "\"2001:db8::8a2e:370:7334\""},
      {"email", "\"first.last@mail.example.com\""},
      {"uri", "\"https://www.example.com/a/path?query=1#part\""}};
  for (const auto& [format, output] : formats) {
    cases.push_back(schema(fmt::format("format {}", format),
                           fmt::format(R"({{"type":"string","format":"{}"}})", format), {output}));
  }
}

void add_numbers(std::vector<ConstraintCase>& cases) {
  cases.push_back(schema("integer, 0 to 150", R"({"type":"integer","minimum":0,"maximum":150})",
                         {"42", "150"}));
  cases.push_back(schema("integer, -5000 to 1234567",
                         R"({"type":"integer","minimum":-5000,"maximum":1234567})",
                         {"1234567", "-4999", "987654"}));
  cases.push_back(schema("number, 0 to 1", R"({"type":"number","minimum":0,"maximum":1})",
                         {"0.123456789", "1"}));
  cases.push_back(
      schema("integer, multipleOf 5", R"({"type":"integer","multipleOf":5})", {"12345", "-100"}));
}

void add_containers(std::vector<ConstraintCase>& cases) {
  const auto numbers = [](int count) {
    std::string list = "[1";
    for (int i = 2; i <= count; ++i) list += fmt::format(", {}", i * 37);
    return list + "]";
  };
  cases.push_back(schema(
      "array of 5 to 50 integers",
      R"({"type":"array","items":{"type":"integer"},"minItems":5,"maxItems":50})", {numbers(40)}));
  cases.push_back(schema("array of at most 500 integers",
                         R"({"type":"array","items":{"type":"integer"},"maxItems":500})",
                         {numbers(150)}));
  cases.push_back(
      schema("array of at most 10 strings of at most 60",
             R"({"type":"array","items":{"type":"string","maxLength":60},"maxItems":10})",
             {fmt::format("[\"{0}\", \"{0}\", \"{0}\"]", prose(50))}));
  cases.push_back(schema("array of at most 500 objects",
                         R"({"type":"array","maxItems":500,"items":{"type":"object","properties":
{"id":{"type":"integer"},"name":{"type":"string","maxLength":40}},"required":["id","name"]}})",
                         {R"([{"id": 1, "name": "first"}, {"id": 2, "name": "the second one"}])"}));
  cases.push_back(
      schema("object of a person", R"({"type":"object","properties":{
"name":{"type":"string","minLength":1,"maxLength":100},"age":{"type":"integer","minimum":0,"maximum":150},
"email":{"type":"string","format":"email"},"nickname":{"anyOf":[{"type":"string","maxLength":30},{"type":"null"}]},
"tags":{"type":"array","items":{"type":"string","maxLength":20},"maxItems":5},
"address":{"type":"object","properties":{"street":{"type":"string"},"zip":{"type":"string","pattern":"^[0-9]{5}$"}},
"required":["street","zip"],"additionalProperties":false}},
"required":["name","age","email","nickname","tags","address"],"additionalProperties":false})",
             {R"({"name": "Ada Lovelace", "age": 36, "email": "ada@example.org", "nickname": null,
 "tags": ["mathematics", "engines"], "address": {"street": "12 St James's Square", "zip": "12345"}})"}));
  cases.push_back(
      schema("object with other properties",
             R"({"type":"object","properties":{"id":{"type":"integer"}},"required":["id"],
"additionalProperties":{"type":"string","maxLength":50}})",
             {R"({"id": 7, "colour": "green", "remark": "nothing to add"})"}));
  cases.push_back(schema("one of two objects", R"({"oneOf":[
{"type":"object","properties":{"kind":{"const":"text"},"body":{"type":"string","maxLength":200}},"required":["kind","body"]},
{"type":"object","properties":{"kind":{"const":"link"},"url":{"type":"string","maxLength":100}},"required":["kind","url"]}]})",
                         {fmt::format(R"({{"kind": "text", "body": "{}"}})", prose(150)),
                          R"({"kind": "link", "url": "https://example.com/a"})"}));
  cases.push_back(schema("known words or any text", R"({"type":"array","items":
{"anyOf":[{"enum":["red","green","blue"]},{"type":"string","maxLength":20}]}})",
                         {R"(["red", "green", "turquoise", "blue", "red", "yellow"])"}));
  cases.push_back(schema(
      "tree", R"({"$ref":"#/$defs/node","$defs":{"node":{"type":"object","properties":
{"name":{"type":"string","maxLength":30},"children":{"type":"array","items":{"$ref":"#/$defs/node"}}},
"required":["name","children"]}}})",
      {R"({"name": "a", "children": [{"name": "left", "children": []}, {"name": "b", "children": []}]})"}));
  std::string words;
  for (int i = 0; i < 200; ++i) words += fmt::format("{}\"value number {}\"", i > 0 ? "," : "", i);
  cases.push_back(
      schema("enum of 200", fmt::format(R"({{"enum":[{}]}})", words), {"\"value number 117\""}));
  cases.push_back({"json_object",
                   {.kind = GrammarKind::kJsonObject, .text = ""},
                   {R"({"name": "Ada", "list": [1, 2.5, true, null], "deep": {"more": "text"}})"}});
}

void add_texts(std::vector<ConstraintCase>& cases) {
  cases.push_back(regex("regex ^[a-z]{3,40}$", "^[a-z]{3,40}$", {"measurements", "abc"}));
  cases.push_back(regex("regex [^\\n]{1,300}", "[^\\n]{1,300}", {prose(280)}));
  cases.push_back(regex("regex of a phone number",
                        "\\+?[0-9]{1,3} \\([0-9]{3}\\) [0-9]{3}-[0-9]{4}", {"+49 (301) 555-0147"}));
  cases.push_back(regex("regex of steps", "(?:[0-9]+\\. [^\\n]{5,200}\\n){1,10}",
                        {"1. " + prose(60) + "\n2. " + prose(90) + "\n"}));
  std::string list = "[";
  for (int i = 0; i < 100; ++i) list += fmt::format("{}\"option {}\"", i > 0 ? "," : "", i);
  cases.push_back(
      {"choice of 100", {.kind = GrammarKind::kChoice, .text = list + "]"}, {"option 42"}});
  cases.push_back({"EBNF of sums",
                   {.kind = GrammarKind::kEbnf,
                    .text = "root ::= term (\" \" [-+] \" \" term)*\n"
                            "term ::= [0-9]+ | \"(\" root \")\""},
                   {"12 + (34 - 5) + 678"}});
  cases.push_back(
      {"structural tag of a call",
       {.kind = GrammarKind::kStructuralTag,
        .text = R"({"type":"structural_tag","format":{"type":"triggered_tags","triggers":["<call>"],
"tags":[{"type":"tag","begin":"<call>","end":"</call>","content":{"type":"json_schema","json_schema":
{"type":"object","properties":{"city":{"type":"string","maxLength":80},"days":{"type":"integer","minimum":1,"maximum":14}},
"required":["city","days"],"additionalProperties":false}}}]}})",
        .space = constraint::JsonSpace::kCompact},
       {R"(Let me see. <call>{"city": "Reykjavik", "days": 3}</call>)"}});
  cases.push_back({"text or calls of a strict tool",
                   {.kind = GrammarKind::kStructuralTag,
                    .text = text_or_strict_call(),
                    .space = constraint::JsonSpace::kCompact},
                   {prose(200),
                    "Let me see.\n<tool_call>\n{\"name\": \"forecast\", \"arguments\": "
                    "{\"city\": \"Reykjavik\", \"days\": 3}}\n</tool_call>"}});
}

}  // namespace

std::vector<ConstraintCase> constraint_cases() {
  std::vector<ConstraintCase> cases;
  add_strings(cases);
  add_numbers(cases);
  add_containers(cases);
  add_texts(cases);
  return cases;
}

}  // namespace rudder::apps
