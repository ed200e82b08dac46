// What each dialect's answers are parsed to: whole, cut off, malformed.
#include <gtest/gtest.h>

#include "rudder/dialect/test_support.h"

namespace rudder::dialect {
namespace {

struct Case {
  const char* text;
  const char* line;  // content|reasoning|name(arguments)...
};

void expect_all(const ParserSetup& setup, const std::vector<Case>& cases) {
  for (const Case& one : cases) EXPECT_EQ(parse_line(setup, one.text), one.line) << one.text;
}

TEST(AnswerParser, Hermes) {
  expect_all(
      setup_of("hermes"),
      {
          {"Hello.\n", "Hello.\n|"},
          {R"(<tool_call>
{"name": "f", "arguments": {"a": [1, {"b":"}"}],  "n":1.5e3}}
</tool_call>)",
           R"(||f({"a": [1, {"b":"}"}],  "n":1.5e3}))"},
          {"Let me see.\n\n<tool_call>{\"arguments\": {\"a\": 1}, \"name\": \"f\"}</tool_call>\n"
           "<tool_call>{\"name\": \"g\", \"arguments\": {}}</tool_call>\nDone. ",
           "Let me see.\n\nDone. ||f({\"a\": 1})|g({})"},
          {R"(<tool_call>{"name": "f"}</tool_call>)", "||f({})"},
          {R"(<tool_call>{"name": "f", "arguments": null}</tool_call>)", "||f({})"},
          {R"(<tool_call>{"id": 7, "name": "f", "arguments": "{\"a\": \"\u00e9\\n\"}"}</tool_call>)",
           "||f({\"a\": \"\xc3\xa9\\n\"})"},
          {R"(<tool_call>{"name": "f", "arguments": ""}</tool_call>)", "||f({})"},
          {R"(<tool_call>{"name": "f", "arguments": {"s": "</tool_call> <tool_call> \" \\"}}</tool_call>)",
           R"(||f({"s": "</tool_call> <tool_call> \" \\"}))"},
          // A line break inside a string, which JSON does not allow and models write.
          {"<tool_call>{\"name\": \"f\", \"arguments\": {\"s\": \"a\nb\"}}</tool_call>",
           R"(||f({"s": "a\nb"}))"},
          // One brace too few, one too many.
          {R"(<tool_call>{"name": "f", "arguments": {"a": 1}</tool_call>x)", R"(x||f({"a": 1}))"},
          {R"(<tool_call>{"name": "f", "arguments": {"a": 1}}}</tool_call>x)", R"(x||f({"a": 1}))"},
          {"<tool_call>{\"name\": \"f\", \"arguments\": {}}\n{\"name\": \"g\", \"arguments\": {}}"
           "</tool_call>",
           "||f({})|g({})"},
      });
}

TEST(AnswerParser, HermesCutOff) {
  const std::string text = R"(<tool_call>{"name": "f", "arguments": {"a": "b"}}</tool_call>)";
  const std::string arguments = R"({"a": "b"})";
  const size_t begin = text.find(arguments);
  for (size_t length = 0; length <= text.size(); ++length) {
    const std::string cut = text.substr(0, length);
    const std::string line =
        length <= begin
            ? cut + "|"
            : "||f(" + cut.substr(begin, std::min(arguments.size(), length - begin)) + ")";
    EXPECT_EQ(parse_line(setup_of("hermes"), cut), line);
  }
}

TEST(AnswerParser, WhatIsNoCallIsContent) {
  for (const char* text : {
           "<tool_call>",
           "<tool_call",
           "a < b <tool_cal> c",
           "<tool_call>none</tool_call>",
           R"(<tool_call>{"name": 7, "arguments": {}}</tool_call>)",
           R"(<tool_call>{"name": "", "arguments": {}}</tool_call>)",
           R"(<tool_call>{"arguments": {"a": 1}}</tool_call>)",
           R"(<tool_call>{"name": "f", "arguments": [1]}</tool_call>)",
           R"(<tool_call>{"name": "f" "arguments": {}}</tool_call>)",
           R"(<tool_call>[]</tool_call>)",
           R"(<tool_call>{}</tool_call>)",
       }) {
    EXPECT_EQ(parse_line(setup_of("hermes"), text), std::string(text) + "|");
  }
  // The mark that began nothing does not hide the one after it; written twice it is one.
  EXPECT_EQ(parse_line(setup_of("hermes"),
                       R"(<tool_call><tool_call>{"name": "f", "arguments": {}}</tool_call>)"),
            "||f({})");
  EXPECT_EQ(
      parse_line(setup_of("hermes"), R"(<tool_call>{"name": <tool_call>{"name": "f"}</tool_call>)"),
      R"(<tool_call>{"name":||f({}))");
}

// A call that has been told cannot be taken back: what is broken about it stays in its arguments.
TEST(AnswerParser, BrokenArgumentsStayArguments) {
  expect_all(
      setup_of("hermes"),
      {
          {R"(<tool_call>{"name": "f", "arguments": {"a": 1,,}}</tool_call>x)",
           R"(x||f({"a": 1,,}}))"},
          {R"(<tool_call>{"name": "f", "arguments": {a: 1}} </tool)", R"(||f({a: 1}} </tool))"},
          {R"(<tool_call>{"name": "f", "arguments": "a\q"}</tool_call>)", R"(||f(aq"}))"},
      });
}

TEST(AnswerParser, Llama3) {
  expect_all(
      setup_of("llama3_json"),
      {
          {R"({"name": "f", "parameters": {"a": 1}})", R"(||f({"a": 1}))"},
          {R"(<|python_tag|>{"name": "f", "parameters": {"a": 1}}; {"name": "g", "parameters": {}})",
           R"(||f({"a": 1})|g({}))"},
          {"\n{\"type\": \"function\", \"name\": \"f\", \"parameters\": {}}\n"
           "{\"name\": \"get_weather\", \"parameters\": {}};",
           "||f({})|get_weather({})"},
          {R"([{"name": "f", "parameters": {}}, {"name": "f", "parameters": {}}])",
           "||f({})|f({})"},
          // Without a mark, only a tool that was offered is called.
          {R"({"name": "Ann", "parameters": {"a": 1}})",
           R"({"name": "Ann", "parameters": {"a": 1}}|)"},
          {R"({"answer": 42})", R"({"answer": 42}|)"},
          {R"(Say {"name": "f", "parameters": {}})", R"(Say {"name": "f", "parameters": {}}|)"},
          {R"({"name": "f", "parameters": {}} and more)", "and more||f({})"},
          {R"(<|python_tag|>print(1))", "<|python_tag|>print(1)|"},
      });
}

TEST(AnswerParser, Mistral) {
  expect_all(
      setup_of("mistral"),
      {
          {R"([TOOL_CALLS] [{"name": "f", "arguments": {"a": "]"}}, {"name": "g", "arguments": {}}])",
           R"(||f({"a": "]"})|g({}))"},
          {R"([TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[ARGS]{})", R"(||f({"a": 1})|g({}))"},
          {R"([TOOL_CALLS]f{"a": 1})", R"(||f({"a": 1}))"},
          {R"(Hm.[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{"a": {}} )", R"(Hm.||f({"a": {}}))"},
          {"[TOOL_CALLS]f[ARG]{}", "[TOOL_CALLS]f[ARG]{}|"},
          {"[TOOL_CALLS]f[ARGS]", "[TOOL_CALLS]f[ARGS]|"},
          {"[TOOL_CALLS] [1]", "[TOOL_CALLS] [1]|"},
          {R"([TOOL_CALLS]f[ARGS]{"a": tru)", R"(||f({"a": tru))"},
      });
}

TEST(AnswerParser, QwenCoder) {
  expect_all(
      setup_of("qwen3_coder"),
      {
          {"<tool_call>\n<function=f>\n<parameter=s>\n a \"b\"\n\\c\n\n</parameter>\n"
           "<parameter=n>\n 12 \n</parameter>\n<parameter=list>\n[1, \"x\"]\n</parameter>\n"
           "</function>\n</tool_call>",
           R"(||f({"s": " a \"b\"\n\\c\n", "n": 12, "list": [1, "x"]}))"},
          {"Well.\n<function=f>\n</function>\n</tool_call>\n", "Well.||f({})"},
          {"<tool_call><function=f><parameter=n>True</parameter><parameter=list>oh no</parameter>"
           "</function><function=get_weather></function></tool_call>",
           R"(||f({"n": true, "list": "oh no"})|get_weather({}))"},
          {R"(<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>)", R"(||f({"a": 1}))"},
          {"<tool_call><func>", "<tool_call><func>|"},
          {"<tool_call><function=f><parameter=s>a < b </par", R"-(||f({"s": "a < b ))-"},
          // Behind a mark that ends a value comes another mark: else it was text of the value.
          {"<tool_call><function=f><parameter=s>a</parameter> oops",
           R"(||f({"s": "a</parameter> oops))"},
      });
}

TEST(AnswerParser, Pythonic) {
  expect_all(
      setup_of("pythonic"),
      {
          {R"([f(a=1, s='it\'s', t=True, l=[1, 'x', None], d={'k': (1, -2.5)}), get_weather()])",
           R"(||f({"a": 1, "s": "it's", "t": true, "l": [1, "x", null], "d": {"k": [1, -2.5]}})|get_weather({}))"},
          {R"([{"name": "f", "arguments": {"a": 1}}])", R"(||f({"a": 1}))"},
          {R"([{"name": "Ann"}])", R"([{"name": "Ann"}]|)"},
          {"[1, 2]", "[1, 2]|"},
          {"[unknown(a=1)]", "[unknown(a=1)]|"},
          {"[f(1)]", "[f(1)]|"},
          {"[f(a=1), f(b=)] x", "x||f({\"a\": 1})|f({\"b\": null})"},
          {"f(a=1)", "f(a=1)|"},
          {"[f(a=1", "||f({\"a\": 1)"},
      });
}

TEST(AnswerParser, Gemma) {
  expect_all(
      setup_of("gemma"),
      {
          {"```tool_code\nprint(f(a=\"b)\", n=3))\n```", R"-(||f({"a": "b)", "n": 3}))-"},
          {"I call:\n```tool_code\n[f(n=1), g(n=2)]\n```\nthen",
           "I call:\nthen||f({\"n\": 1})|g({\"n\": 2})"},
          {"```tool_code\n{\"name\": \"f\", \"parameters\": {\"a\": 1}}\n```", R"(||f({"a": 1}))"},
          {"```tool_code\nimport os\n```", "```tool_code\nimport os\n```|"},
          {"```python\nf(a=1)\n```", "```python\nf(a=1)\n```|"},
      });
  expect_all(setup_of("functiongemma"),
             {
                 {"<start_function_call>call:f{a:<escape>x, {y}<escape>,n:-1.5,l:[true,null]}"
                  "<end_function_call>",
                  R"(||f({"a": "x, {y}", "n": -1.5, "l": [true, null]}))"},
                 {"<start_function_call>call:f{}", "||f({})"},
                 {"<start_function_call>{\"name\": \"f\"}<end_function_call>", "||f({})"},
                 {"<start_function_call>call:f{a:b}<end_function_call>", "||f({\"a\": \"b\"})"},
             });
  expect_all(setup_of("gemma4", "gemma4"),
             {{"<|channel>thought\nHm.\n<channel|><|tool_call>call:f{a:<|\"|>x<|\"|>}<tool_call|>",
               R"(|Hm.|f({"a": "x"}))"}});
}

// Gemma writes keys without quotes, whatever they hold.
TEST(AnswerParser, GemmasKeysAreAnyText) {
  const ParserSetup setup = setup_of("gemma4");
  const auto parsed = [&](std::string_view arguments) {
    return parse_line(setup, "<|tool_call>call:f" + std::string(arguments) + "<tool_call|>");
  };
  EXPECT_EQ(
      parsed("{o:{src/main.py:<|\"|>x, y: z<|\"|>,a b:-1,application/json:true,@id:[1]}}"),
      R"(||f({"o": {"src/main.py": "x, y: z", "a b": -1, "application/json": true, "@id": [1]}}))");
  EXPECT_EQ(parsed("{a b:1}"), R"(||f({"a b": 1}))");
  EXPECT_EQ(parsed("{s:say hi, then go: now,n:1}"),
            R"(||f({"s": "say hi, then go: now", "n": 1}))");
  EXPECT_EQ(parsed("{s<|\"|>v: w<|\"|>,n:1}"), R"(||f({"s": "v: w", "n": 1}))")
      << "without a colon";
}

// A colon of the value is none of the key: of a time, of an address, and where what is in front of
// it is no argument of the tool but begins with one.
TEST(AnswerParser, GemmasCallsMayBeWrittenAsOthersWriteThem) {
  const ParserSetup setup = setup_of("gemma4");
  const auto read = [&](const std::string& call) {
    return parse_line(setup, "<|tool_call>" + call + "<tool_call|>");
  };
  const std::string quote = R"(<|"|>)";
  for (const std::string call :
       {"call:f(n:1)", "call:f(n=1)", "f(n:1)", "f(n = 1)", "CALL:f{n:1}", "Call:f{n:1}",
        "Call: f {n: 1}", "CALL f{n:1}", "call:f:{n:1}", "call:f({n:1})", "call:f({\"n\": 1})",
        "call:f(n:1", "call:f( n : 1 ))", "call:{\"name\": \"f\", \"arguments\": {\"n\": 1}}"}) {
    const std::string line = read(call);
    EXPECT_TRUE(line == "||f({\"n\": 1})") << call << " -> " << line;
  }
  EXPECT_EQ(read("call:f(s:" + quote + "a) b" + quote + ", n:2)"), R"(||f({"s": "a) b", "n": 2}))");
  EXPECT_EQ(read("call:f(s:see (a, b) there, n:2)"), R"(||f({"s": "see (a, b) there", "n": 2}))");
  EXPECT_EQ(read("call:f(list:[1,2], s:x)"), R"(||f({"list": [1, 2], "s": "x"}))");
  EXPECT_EQ(read("call:f()"), "||f({})");
  EXPECT_EQ(read("call:f(n:1)CALL:get_weather(days:2)"),
            R"(||f({"n": 1})|get_weather({"days": 2}))");
  EXPECT_EQ(parse_line(setup, "<|tool_call>call:f(n:"), "||f({\"n\": )");
  EXPECT_EQ(parse_line(setup, "CALL:f{n:1}<tool_call|>"), R"(||f({"n": 1}))");
  EXPECT_EQ(parse_line(setup, "f(n:1)<tool_call|>"), R"(||f({"n": 1}))");
  // What is no call by these forms is content, whole.
  for (const std::string text : {"call:f (see below)", "call:f(1, 2)", "I will call f now.",
                                 "f (the function)", "recall:f{n:1}", "Calling f(n:1) now."}) {
    EXPECT_EQ(read(text), "<|tool_call>" + text + "<tool_call|>|") << text;
  }
}

TEST(AnswerParser, TextBehindGemmasCallsIsContent) {
  const ParserSetup setup = setup_of("gemma4");
  EXPECT_EQ(parse_line(setup, "<|tool_call>call:f{n:1} I call it. <tool_call|> Bye"),
            R"(I call it. Bye||f({"n": 1}))");
  EXPECT_EQ(parse_line(setup, "<|tool_call>call:f{n:1}\nI call it."), R"(I call it.||f({"n": 1}))");
  EXPECT_EQ(
      parse_line(
          setup,
          "Hi. <|tool_call>call:f{n:1} and\n<|tool_call>call:get_weather{days:2}<tool_call|>"),
      R"(Hi. and||f({"n": 1})|get_weather({"days": 2}))");
  EXPECT_EQ(parse_line(setup, "<|tool_call>call:f{n:1}call:f{n:2} then <tool_c"),
            R"(then <tool_c||f({"n": 1})|f({"n": 2}))");
}

TEST(AnswerParser, TextBehindAQwenCallIsContent) {
  const ParserSetup setup = setup_of("qwen3_coder");
  const std::string begin = "<tool_call>\n<function=f>\n<parameter=s>\na\n</parameter>\n";
  const std::string call = R"(||f({"s": "a"}))";
  EXPECT_EQ(parse_line(setup, begin + "</function>\nI did it."), "I did it." + call);
  EXPECT_EQ(parse_line(setup, begin + "I did it."), "I did it." + call);
  EXPECT_EQ(parse_line(setup, begin + "</function>\nI did it.\n</tool_call>\nBye"),
            "I did it.\nBye" + call);
  EXPECT_EQ(
      parse_line(setup, "<tool_call><function=f><parameter=s>a</parameter></function> I did it."),
      "I did it." + call);
  EXPECT_EQ(
      parse_line(
          setup,
          begin +
              "</function>\nAnd <tool_call>\n<function=get_weather>\n</function>\n</tool_call>"),
      "And" + call + "|get_weather({})");
  // A later mark shows that it was text of the value.
  EXPECT_EQ(
      parse_line(setup, begin + "</function>\nI did it.\n</parameter>\n</function>\n</tool_call>"),
      R"(||f({"s": "a\n</parameter>\n</function>\nI did it."}))");
}

TEST(AnswerParser, GemmasKeysMayLackTheirColon) {
  const ParserSetup setup = setup_of("gemma4");
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"{time 10:30}", R"({"time": "10:30"})"},
      {"{n:2,time 9:05:07,at:10:30}", R"({"n": 2, "time": "9:05:07", "at": "10:30"})"},
      {"{from 9:00,to 17:30 sharp}", R"({"from": "9:00", "to": "17:30 sharp"})"},
      {"{date 2024-01-01 10:30}", R"({"date": "2024-01-01 10:30"})"},
      {"{o:{a b:2,t 9:05}}", R"({"o": {"a b": 2, "t": "9:05"}})"},
      {"{url https://a.b/c,n:1}", R"({"url": "https://a.b/c", "n": 1})"},
      {"{s say: it}", R"({"s": "say: it"})"},
      {"{s say it}", R"({"s": "say it"})"},
      {"{n 5,s C:\\x}", R"({"n": 5, "s": "C:\\x"})"},
      {"{10:30}", R"({"10": 30})"},
      {"{n:1,,s:a}", R"({"n": 1, "s": "a"})"},
  };
  for (const auto& [written, arguments] : cases) {
    EXPECT_EQ(parse_line(setup, "<|tool_call>call:f" + written + "<tool_call|>"),
              "||f(" + arguments + ")");
  }
  EXPECT_EQ(parse_line(setup, "<|tool_call>call:call:f{n:1}<tool_call|>"), R"(||f({"n": 1}))");
}

TEST(AnswerParser, OthersAreData) {
  expect_all(setup_of("phi4_mini_json"),
             {{R"(<|tool_call|>[{"name": "f", "arguments": {"a": 1}}]<|/tool_call|>)",
               R"(||f({"a": 1}))"}});
  expect_all(setup_of("olmo3"),
             {{"<function_calls>\nf(a=1)\nget_weather(days=2)\n</function_calls>",
               R"(||f({"a": 1})|get_weather({"days": 2}))"}});
}

TEST(AnswerParser, Thoughts) {
  expect_all(setup_of("", "qwen3"),
             {
                 {"<think>\nHm, <thin\n</think>\n\nYes. \n", "Yes. \n|Hm, <thin"},
                 {"\n<think></think>Yes", "Yes|"},
                 {" Yes <think>no</think>", " Yes <think>no</think>|"},
                 {"<think>Hm </thi", "|Hm </thi"},
                 {"<thi", "<thi|"},
                 {"", "|"},
             });
  ParserSetup opened = setup_of("hermes", "qwen3");
  opened.in_reasoning = true;
  expect_all(opened, {
                         {"\nHm.\n</think>\n\nYes", "Yes|Hm."},
                         {"<think>Hm.</think>Yes", "Yes|Hm."},
                         {"Hm <tool_call>", "|Hm <tool_call>"},
                         {"Hm <tool_call>{\"name\": \"f\"}</tool_call>", "|Hm|f({})"},
                         {"Hm</think>\n<tool_call>{\"name\": \"f\"}</tool_call>", "|Hm|f({})"},
                     });
  expect_all(setup_of("", "deepseek_r1"), {{"Hm.</think>Yes", "Yes|Hm."}, {"Yes", "|Yes"}});
  expect_all(setup_of("mistral", "mistral"),
             {{"[THINK]Hm[/THINK]Yes[TOOL_CALLS]f[ARGS]{}", "Yes|Hm|f({})"}});
  expect_all(setup_of("llama3_json", "qwen3"),
             {{"<think>Hm</think>\n{\"name\": \"f\", \"parameters\": {}}", "|Hm|f({})"}});
}

TEST(AnswerParser, SaysWhetherItThinks) {
  const ParserSetup setup = setup_of("", "qwen3");
  const auto parser = make_parser(setup, 1);
  EXPECT_FALSE(parser->thinking());
  parser->push("<think>");
  EXPECT_TRUE(parser->thinking());
  parser->push("a</think");
  EXPECT_TRUE(parser->thinking());
  parser->push(">");
  EXPECT_FALSE(parser->thinking());
}

TEST(AnswerParser, CallsPastTheLimitArePassedOver) {
  ParserSetup setup = setup_of("mistral");
  setup.max_calls = 1;
  EXPECT_EQ(parse_line(setup, "[TOOL_CALLS]f[ARGS]{}[TOOL_CALLS]g[ARGS]{}"), "||f({})");
}

TEST(AnswerParser, IdsAreOfTheFamilysStyleAndDiffer) {
  const std::string two = "[TOOL_CALLS]f[ARGS]{}[TOOL_CALLS]g[ARGS]{}";
  const Parsed mistral = parse_pieces(setup_of("mistral"), {two});
  ASSERT_EQ(mistral.calls.size(), 2u);
  EXPECT_EQ(mistral.calls[0].id.size(), 9u);
  EXPECT_TRUE(std::all_of(mistral.calls[0].id.begin(), mistral.calls[0].id.end(),
                          [](unsigned char ch) { return std::isalnum(ch) != 0; }));
  EXPECT_NE(mistral.calls[0].id, mistral.calls[1].id);
  const Parsed hermes =
      parse_pieces(setup_of("hermes"), {"<tool_call>{\"name\": \"f\"}</tool_call>"});
  ASSERT_EQ(hermes.calls.size(), 1u);
  EXPECT_TRUE(hermes.calls[0].id.starts_with("chatcmpl-tool-"));
  EXPECT_EQ(hermes.calls[0].id.size(), 14u + 32u);
}

// Arguments are told as they come, not when the call is complete.
TEST(AnswerParser, ArgumentsStream) {
  const ParserSetup setup = setup_of("hermes");
  const auto parser = make_parser(setup, 1);
  Delta delta = parser->push("<tool_call>{\"name\": \"f\", \"arguments\": {\"a\"");
  ASSERT_EQ(delta.tool_calls.size(), 1u);
  EXPECT_EQ(delta.tool_calls[0].name, "f");
  EXPECT_EQ(delta.tool_calls[0].arguments, "{\"a\"");
  delta = parser->push(": 12");
  ASSERT_EQ(delta.tool_calls.size(), 1u);
  EXPECT_EQ(delta.tool_calls[0].index, 0);
  EXPECT_EQ(delta.tool_calls[0].name, "");
  EXPECT_EQ(delta.tool_calls[0].arguments, ": 12");
}

}  // namespace
}  // namespace rudder::dialect
