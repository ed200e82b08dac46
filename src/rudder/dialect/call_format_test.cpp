// What a model is made to write is what its parser reads.
#include "rudder/dialect/call_format.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "rudder/dialect/test_support.h"

namespace rudder::dialect {
namespace {

namespace json = boost::json;

// The text that the format allows, where it allows one: of alternatives the first, of repetitions
// one turn, of schemas an object with one member.
std::string shortest(const json::value& format) {
  const json::object& object = format.as_object();
  const std::string_view type = object.at("type").as_string();
  std::string text;
  if (type == "const_string") return std::string(object.at("value").as_string());
  if (type == "json_schema") return R"({"a": 1})";
  if (type == "token") return "[TOKEN]";
  if (type == "or") return shortest(object.at("elements").at(0));
  if (type == "star" || type == "optional") return shortest(object.at("content"));
  if (type == "plus") return shortest(object.at("content")) + shortest(object.at("content"));
  if (type == "tag") {
    return std::string(object.at("begin").as_string()) + "Hm." +
           std::string(object.at("end").as_string());
  }
  for (const json::value& part : object.at("elements").as_array()) text += shortest(part);
  return text;
}

TEST(CallFormat, IsReadByTheDialectsOwnParser) {
  const FindSpecial none = [](std::string_view) { return std::optional<int32_t>(); };
  for (const ToolDialect& dialect : tool_dialects()) {
    for (const bool parallel : {false, true}) {
      const bool is_harmony = dialect.form == CallForm::kHarmony;
      ParserSetup setup = setup_of(dialect.name, is_harmony ? "harmony" : "qwen3");
      const std::vector<CallableTool> tools = {{"f", nullptr}, {"get_weather", nullptr}};
      const std::string text = shortest(call_format(setup, tools, parallel, none).at("format"));
      const bool has_several = parallel && !is_harmony;
      EXPECT_EQ(parse_line(setup, text),
                has_several ? R"(|Hm.|f({"a": 1})|f({"a": 1}))" : R"(|Hm.|f({"a": 1}))")
          << dialect.name << ": " << text;
      setup.reasoning = nullptr;
      const std::string unthinking = shortest(call_format(setup, tools, false, none).at("format"));
      EXPECT_EQ(parse_line(setup, unthinking), R"(||f({"a": 1}))") << dialect.name;
    }
  }
}

TEST(CallFormat, MarksThatAreSpecialTokensAreTokens) {
  const FindSpecial find = [](std::string_view mark) {
    return mark == "[TOOL_CALLS]" ? std::optional<int32_t>(5) : std::nullopt;
  };
  const json::object format = call_format(setup_of("mistral"), {{"f", nullptr}}, false, find);
  EXPECT_EQ(shortest(format.at("format")), R"([TOKEN]f[ARGS]{"a": 1})");
}

// A tool that names no parameters takes none.
TEST(CallFormat, ParametersThatNameNoFieldAreNone) {
  const auto schema_of = [](const char* parameters) {
    const json::value given = json::parse(parameters);
    return arguments_schema({"f", &given});
  };
  EXPECT_EQ(arguments_schema({"f", nullptr}).at("additionalProperties"), false);
  for (const char* empty :
       {"{}", R"({"type":"object"})", R"({"type":"object","properties":{}})",
        R"({"$schema":"x","title":"t","type":"object","properties":{},"required":[],"$defs":{}})",
        R"({"properties":null,"required":null})", R"({"patternProperties":{}})",
        R"({"minProperties":0,"dependentRequired":{}})", R"({"allOf":[]})",
        R"({"type":["object","null"],"properties":{}})", R"({"type":null,"$defs":null})",
        R"({"type":["object"],"properties":null,"additionalProperties":null})",
        R"({"allOf":[{"type":"object","properties":{}},{}]})",
        R"({"anyOf":[{"type":"object","properties":{}},{"title":"t"}]})",
        R"({"$ref":"#/$defs/E","$defs":{"E":{"type":"object","properties":{}}}})",
        R"({"allOf":[{"$ref":"#/definitions/E"}],"definitions":{"E":{"type":"object"}}})"}) {
    const json::object schema = schema_of(empty);
    EXPECT_EQ(schema.at("additionalProperties"), false) << empty;
    EXPECT_EQ(schema.at("type"), "object") << empty;
  }
  // What says something of its fields is left as it is.
  for (const char* other :
       {R"({"type":"object","additionalProperties":true})",
        R"({"properties":{},"additionalProperties":{"type":"string"}})",
        R"({"properties":{"a":{}}})", R"({"required":["a"]})", R"({"minProperties":1})",
        R"({"patternProperties":{"^x":{}}})", R"({"anyOf":[{"required":["a"]}]})",
        R"({"additionalProperties":{}})", R"({"unevaluatedProperties":true})", R"({"not":{}})",
        R"({"allOf":[{"properties":{}},{"properties":{"a":{}}}]})", R"({"$ref":"#/$defs/none"})",
        R"({"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/a"}}})",
        R"({"$ref":"#/$defs/a","$defs":{"a":{"properties":{"b":{}}}}})"}) {
    json::object expected = json::parse(other).as_object();
    expected.emplace("type", "object");
    EXPECT_EQ(schema_of(other), expected) << other;
  }
}

}  // namespace
}  // namespace rudder::dialect
