// Which types arguments may have, by the schemas that clients send, and what the reader of raw
// values makes of them.
#include "rudder/server/request/argument_types.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "rudder/base/json.h"

namespace rudder::server {
namespace {

namespace json = boost::json;

constexpr std::string_view kDefs =
    R"("$defs":{"N":{"type":"integer"},"L":{"type":"array","items":{"$ref":"#/$defs/N"}},)"
    R"("S":{"type":"string"},"O":{"properties":{"a":{}}},"E":{"enum":[1,2,null]},)"
    R"("R":{"$ref":"#/$defs/R"},"A~/B":{"type":"number"},"T":{"$ref":"#/$defs/N"}})";

// The arguments that a call with the value `text` for `x` has.
std::string value_of(const json::object& parameters, std::string_view text) {
  dialect::Tool tool = {.name = "f"};
  read_argument_types(parameters, &tool);
  dialect::ParserSetup setup;
  setup.calls = *dialect::find_tool_dialect("qwen3_coder");
  setup.tools = {tool};
  const auto parser = dialect::make_parser(setup, 1);
  dialect::Delta delta = parser->push(fmt::format(
      "<tool_call>\n<function=f>\n<parameter=x>\n{}\n</parameter>\n</function>\n</tool_call>",
      text));
  delta.append(parser->finish(dialect::Ending::kWhole));
  EXPECT_EQ(delta.tool_calls.size(), 1u);
  const std::string& arguments = delta.tool_calls.at(0).arguments;
  EXPECT_TRUE(arguments.starts_with("{\"x\": ") && arguments.ends_with('}')) << arguments;
  return arguments.substr(6, arguments.size() - 7);
}

json::object with_x(std::string_view schema) {
  return parse_json(fmt::format(R"({{"type":"object",{},"properties":{{"x":{}}}}})", kDefs, schema),
                    "test")
      ->as_object();
}

TEST(ArgumentTypes, ReferencesPartsAndAlternativesAreFollowed) {
  struct Case {
    std::string_view schema;
    std::string_view text;
    std::string_view value;
  };
  const Case cases[] = {
      {R"({"$ref":"#/$defs/N"})", "5", "5"},
      {R"({"$ref":"#/$defs/T"})", "5", "5"},
      {R"({"$ref":"#/$defs/A~0~1B"})", "5.5", "5.5"},
      {R"({"$ref":"#/%24defs/N"})", "5", "5"},
      {R"({"$ref":"#/$defs/L"})", "[1, 2]", "[1, 2]"},
      {R"({"$ref":"#/$defs/O"})", "{'a': True}", "{\"a\": true}"},
      {R"({"$ref":"#/$defs/S"})", "5", "\"5\""},
      {R"({"$ref":"#/$defs/E"})", "2", "2"},
      {R"({"$ref":"#"})", "{}", "{}"},
      {R"({"allOf":[{"$ref":"#/$defs/N"}],"description":"n"})", "5", "5"},
      {R"({"anyOf":[{"allOf":[{"$ref":"#/$defs/T"}]},{"type":"null"}],"default":null})", "5", "5"},
      {R"({"oneOf":[{"$ref":"#/$defs/E"},{"$ref":"#/$defs/S"}]})", "2", "2"},
      {R"({"oneOf":[{"$ref":"#/$defs/E"},{"$ref":"#/$defs/S"}]})", "two", "\"two\""},
      {R"({"allOf":[{},{"type":["string","integer"]},{"type":["integer","null"]}]})", "5", "5"},
      {R"({"anyOf":[{"$ref":"#/$defs/N"},{"type":"null"}]})", "null", "null"},
      {R"({"anyOf":[{"$ref":"#/$defs/N"},{"type":"null"}]})", "None", "null"},
      {R"({"oneOf":[{"$ref":"#/$defs/L"},{"$ref":"#/$defs/O"}]})", "[1]", "[1]"},
      {R"({"anyOf":[{"type":"string"},{"type":"null"}]})", "null", "null"},
      {R"({"anyOf":[{"type":"string"},{"type":"null"}]})", "nullable", "\"nullable\""},
      {R"({"anyOf":[{"type":"string"},{"$ref":"#/$defs/L"}]})", "[1, 2]", "[1, 2]"},
      {R"({"anyOf":[{"type":"string"},{"$ref":"#/$defs/L"}]})", "[1, 2", "\"[1, 2\""},
      {R"({"anyOf":[{"type":"string"},{"$ref":"#/$defs/L"}]})", "[1] and", "\"[1] and\""},
      {R"({"anyOf":[{"type":"string"},{"$ref":"#/$defs/L"}]})", "5", "\"5\""},
      {R"({"type":["string","integer"]})", "5", "5"},
      {R"({"type":["string","integer"]})", "5 km", "\"5 km\""},
      {R"({"type":["string","integer"]})", "05", "\"05\""},
      {R"({"type":"string","nullable":true})", "null", "null"},
      {R"({"type":"integer","nullable":true})", "null", "null"},
      {R"({"type":"integer"})", "", "null"},
      {R"({"type":"string"})", "", "\"\""},
      {R"({"const":7})", "7", "7"},
      {R"({"enum":["a","b"]})", "7", "\"7\""},
      {R"({"minimum":0})", "7", "7"},
      {R"({"items":{}})", "[]", "[]"},
      // What the schema does not say is text.
      {R"({})", "5", "\"5\""},
      {R"(true)", "5", "\"5\""},
      {R"({"$ref":"#/$defs/R"})", "5", "\"5\""},
      {R"({"$ref":"#/nowhere"})", "5", "\"5\""},
      {R"({"$ref":"https://example.org/schema"})", "5", "\"5\""},
  };
  for (const Case& one : cases) {
    EXPECT_EQ(value_of(with_x(one.schema), one.text), one.value) << one.schema << ' ' << one.text;
  }
}

TEST(ArgumentTypes, PropertiesMayBeElsewhere) {
  for (
      const char* parameters :
      {R"({"$ref":"#/$defs/P","$defs":{"P":{"properties":{"x":{"type":"integer"}}}}})",
       R"({"allOf":[{"properties":{"y":{}}},{"properties":{"x":{"type":"integer"}}}]})",
       R"({"anyOf":[{"properties":{"y":{}}},{"properties":{"x":{"type":"integer"}}}]})",
       R"({"type":"object","additionalProperties":{"type":"integer"}})",
       R"({"type":"object","unevaluatedProperties":{"type":"integer"}})",
       R"({"patternProperties":{"^x$":{"type":"integer"},"^y":{"type":"boolean"}}})",
       R"({"if":{"properties":{"y":{}}},"then":{"properties":{"x":{"type":"integer"}}}})",
       R"({"if":{"properties":{"y":{}}},"else":{"properties":{"x":{"type":"integer"}}}})",
       R"({"dependentSchemas":{"y":{"properties":{"x":{"type":"integer"}}}}})",
       R"({"$defs":{"N":{"$anchor":"n","type":"integer"}},"properties":{"x":{"$ref":"#n"}}})",
       R"({"$defs":{"N":{"$id":"n.json","type":"integer"}},"properties":{"x":{"$ref":"n.json"}}})",
       R"({"definitions":{"N":{"type":"integer"}},"properties":{"x":{"$ref":"#/definitions/N"}}})"}) {
    EXPECT_EQ(value_of(parse_json(parameters, "test")->as_object(), "5"), "5") << parameters;
  }
}

// References that fan out are followed once each.
TEST(ArgumentTypes, TheWorkIsLinear) {
  std::string defs;
  for (int i = 0; i < 30; ++i) {
    defs += fmt::format(R"("D{}":{{"anyOf":[{{"$ref":"#/$defs/D{}"}},{{"$ref":"#/$defs/D{}"}}]}},)",
                        i, i + 1, i + 1);
  }
  const std::string parameters = fmt::format(
      R"({{"$defs":{{{}"D30":{{"type":"integer"}}}},"properties":{{"x":{{"$ref":"#/$defs/D0"}}}}}})",
      defs);
  EXPECT_EQ(value_of(parse_json(parameters, "test")->as_object(), "5"), "5");
}

}  // namespace
}  // namespace rudder::server
