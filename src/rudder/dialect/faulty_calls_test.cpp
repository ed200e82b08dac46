// Every dialect's calls with the faults that models make, drawn: a call stays a call, its other
// arguments stay what they are, and no mark of it is shown; where it is cut off, so are its
// arguments.
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "rudder/dialect/test_support.h"

namespace rudder::dialect {
namespace {

namespace json = boost::json;

#ifdef __SANITIZE_ADDRESS__
constexpr int kCalls = 60;
#else
constexpr int kCalls = 250;
#endif

// A call of f as the dialect writes it: s is a text, n a number.
struct Written {
  std::string opener;
  std::string call;
  std::string closer;
  std::string whole() const { return opener + call + closer; }
};

class CallWriter {
 public:
  CallWriter(const ToolDialect& dialect, uint64_t seed) : dialect_(dialect), rng_(seed) {}

  int roll(int sides) { return static_cast<int>(rng_() % static_cast<uint64_t>(sides)); }

  // Text for a value; some of it is marks of calls.
  std::string text() {
    static const std::vector<std::string> kWords = {"sea", " and ", "é",  "x = y",
                                                    "}",   "]",     ", ", "</b>"};
    const std::vector<std::string> marks = marks_of_values();
    std::string out = "a";
    for (int i = roll(5); i > 0; --i) {
      out += roll(3) == 0 ? marks[static_cast<size_t>(roll(static_cast<int>(marks.size())))]
                          : kWords[static_cast<size_t>(roll(static_cast<int>(kWords.size())))];
    }
    return out + "z";
  }

  std::string mark() {
    const std::vector<std::string> marks = marks_of_values();
    return marks[static_cast<size_t>(roll(static_cast<int>(marks.size())))];
  }

  // An empty `n`: the value is missing.
  Written write(const std::string& s, const std::string& n) {
    const std::string text = json::serialize(json::string_view(s));
    const std::string arguments = roll(2) == 0 ? "{\"s\": " + text + ", \"n\": " + n + "}"
                                               : "{\"n\":" + n + ",\"s\":" + text + "}";
    const std::string object =
        "{\"name\": \"f\", \"" + std::string(dialect_.arguments_key) + "\": " + arguments + "}";
    const std::string begin(dialect_.begin);
    const std::string end(dialect_.end);
    switch (dialect_.form) {
      case CallForm::kJson:
        if (dialect_.list) return {begin, "[" + object + "]", end};
        if (end.empty()) return {begin, object, ""};
        return {begin, "\n" + object + "\n", end};
      case CallForm::kNamed:
        if (dialect_.list) return {begin, " [" + object + "]", ""};
        return {begin, "f[ARGS]" + arguments, ""};
      case CallForm::kXml:
        return {begin, write_xml(s, n), end};
      case CallForm::kTagged:
        return {begin, "f>" + arguments + "</function>", ""};
      case CallForm::kPythonic: {
        const std::string call = "f(s=" + text + ", n=" + n + ")";
        if (dialect_.begin.empty()) return {"", "[" + call + "]", ""};
        return {begin, "\n" + (roll(2) == 0 ? "[" + call + "]" : call) + "\n", end};
      }
      case CallForm::kBraced: {
        const std::string quote(dialect_.quote);
        return {begin, "call:f{s:" + quote + s + quote + ",n:" + n + "}", end};
      }
      case CallForm::kHeaded: {
        const std::string separator(dialect_.separator);
        const std::string header =
            dialect_.fenced ? "function" + separator + "f\n```json\n" : "f" + separator;
        const std::string call = std::string(dialect_.each_begin) + header + arguments +
                                 (dialect_.fenced ? "\n```" : "") + std::string(dialect_.each_end);
        return {begin, call, end};
      }
      case CallForm::kHarmony:
        return {begin, "commentary to=functions.f <|constrain|>json<|message|>" + arguments, end};
    }
    return {};
  }

 private:
  std::string write_xml(const std::string& s, const std::string& n) {
    const XmlMarks& xml = dialect_.xml;
    const std::string line = !xml.in_lines && roll(2) == 0 ? "" : "\n";
    const auto parameter = [&](const std::string& key, const std::string& value) {
      const std::string edge = xml.in_lines ? "\n" : "";
      const std::string quote = xml.in_lines ? "" : "\"";
      const std::string name = xml.key_end.empty()
                                   ? quote + key + quote + ">"
                                   : key + std::string(xml.key_end) + line + std::string(xml.value);
      return std::string(xml.key) + name + edge + value + edge + std::string(xml.value_end) + line;
    };
    const std::string body = parameter("s", s) + parameter("n", n);
    if (xml.call.empty()) return "f" + line + body;
    const std::string name = xml.in_lines ? "f>" : "\"f\">";
    return line + std::string(xml.call) + name + line + body + std::string(xml.call_end) + line;
  }

  std::vector<std::string> marks_of_values() const {
    std::vector<std::string> marks = {"</parameter>", "</function>", "<function=g>", "[ARGS]"};
    if (!dialect_.xml.in_lines) marks.emplace_back(dialect_.xml.value_end);
    if (!dialect_.xml.in_lines && !dialect_.xml.call.empty()) {
      marks.emplace_back(dialect_.xml.call_end);
      marks.push_back(std::string(dialect_.xml.call) + "\"g\">");
    }
    for (const std::string_view mark : {dialect_.begin, dialect_.also_begin, dialect_.end,
                                        dialect_.each_begin, dialect_.each_end}) {
      if (!mark.empty()) marks.emplace_back(mark);
    }
    return marks;
  }

  const ToolDialect& dialect_;
  std::mt19937_64 rng_;
};

json::value arguments_of(const ToolCallDelta& call) {
  boost::system::error_code error;
  return json::parse(call.arguments, error);
}

bool has_mark(const ToolDialect& dialect, const std::string& text) {
  for (const std::string_view mark : marks_of(&dialect, nullptr)) {
    if (text.find(mark) != std::string::npos) return true;
  }
  return false;
}

// One call of f, with these arguments, and nothing shown but `content`.
void expect_call(const ToolDialect& dialect, const std::string& text, const json::value& arguments,
                 const std::string& content = "") {
  const Parsed parsed = parse_pieces(setup_of(dialect.name), {text});
  ASSERT_EQ(parsed.calls.size(), 1u) << dialect.name << ": " << text << "\n" << parsed.line();
  EXPECT_EQ(parsed.calls[0].name, "f") << dialect.name << ": " << text;
  EXPECT_EQ(arguments_of(parsed.calls[0]), arguments) << dialect.name << ": " << text << "\n"
                                                      << parsed.line();
  EXPECT_EQ(parsed.content, content) << dialect.name << ": " << text;
  EXPECT_FALSE(has_mark(dialect, parsed.content)) << parsed.line();
  EXPECT_EQ(parse_line(setup_of(dialect.name), text), parsed.line()) << dialect.name;
}

template <typename Check>
void with_every_dialect(uint64_t seed, const Check& check) {
  for (const ToolDialect& dialect : tool_dialects()) {
    CallWriter writer(dialect, seed);
    for (int i = 0; i < kCalls && !::testing::Test::HasFailure(); ++i) check(dialect, writer);
  }
}

TEST(FaultyCalls, MarksInsideValuesAreText) {
  with_every_dialect(1, [](const ToolDialect& dialect, CallWriter& writer) {
    const std::string s = writer.text();
    expect_call(dialect, writer.write(s, "5").whole(), {{"s", s}, {"n", 5}});
  });
}

TEST(FaultyCalls, AMissingValueIsNull) {
  with_every_dialect(2, [](const ToolDialect& dialect, CallWriter& writer) {
    expect_call(dialect, writer.write("ab", "").whole(), {{"s", "ab"}, {"n", nullptr}});
  });
}

TEST(FaultyCalls, AMarkWrittenTwiceIsOne) {
  with_every_dialect(3, [](const ToolDialect& dialect, CallWriter& writer) {
    const std::string s = writer.text();
    const Written call = writer.write(s, "5");
    const std::string gap = writer.roll(2) == 0 ? "\n" : "";
    expect_call(dialect, call.opener + gap + call.whole(), {{"s", s}, {"n", 5}});
  });
}

TEST(FaultyCalls, AMissingMarkIsAssumed) {
  with_every_dialect(4, [](const ToolDialect& dialect, CallWriter& writer) {
    const Written call = writer.write("ab", "5");
    // Without its mark the form says nothing.
    if (dialect.form == CallForm::kTagged) return;
    if (dialect.form == CallForm::kJson && dialect.end.empty() && !dialect.list && !dialect.bare) {
      return;
    }
    expect_call(dialect, call.call + call.closer, {{"s", "ab"}, {"n", 5}});
  });
}

// The mark behind calls missing, and another call behind it.
TEST(FaultyCalls, AMissingEndIsAssumed) {
  with_every_dialect(5, [](const ToolDialect& dialect, CallWriter& writer) {
    if (dialect.begin.empty()) return;
    const Written call = writer.write("ab", "5");
    const std::string text = call.opener + call.call + call.whole();
    const Parsed parsed = parse_pieces(setup_of(dialect.name), {text});
    ASSERT_EQ(parsed.calls.size(), 2u) << dialect.name << ": " << text << "\n" << parsed.line();
    for (const ToolCallDelta& one : parsed.calls) {
      EXPECT_EQ(arguments_of(one), json::value({{"s", "ab"}, {"n", 5}})) << parsed.line();
    }
    EXPECT_EQ(parsed.content, "") << dialect.name << ": " << text;
  });
}

// The mark behind calls missing or late, and text behind the call.
TEST(FaultyCalls, TextBehindACallIsNoneOfIt) {
  with_every_dialect(7, [](const ToolDialect& dialect, CallWriter& writer) {
    // These end where a message does.
    if (dialect.form == CallForm::kHarmony) return;
    const std::string s = writer.text();
    const Written call = writer.write(s, "5");
    const std::vector<std::string> prose = {"Done, then.", "I looked (it is 5): see a}b, c: d.",
                                            "f is called\n\nand so on"};
    const std::string& text = prose[static_cast<size_t>(writer.roll(3))];
    const std::string gap = writer.roll(2) == 0 ? "\n" : "\n\n";
    const json::value arguments = {{"s", s}, {"n", 5}};
    expect_call(dialect, call.opener + call.call + gap + text, arguments, text);
    // Marks that may be of other text stay where they are.
    if (call.closer.empty() || dialect.begin.starts_with(dialect.end)) return;
    expect_call(dialect, call.opener + call.call + gap + text + "\n" + call.closer, arguments,
                text);
  });
}

// Forms of calls that models were taught elsewhere: the call is read, with all its arguments.
TEST(FaultyCalls, ArgumentsUnderOtherNamesAreArguments) {
  const std::string call = R"(||f({"n": 1}))";
  for (const std::string key : {"arguments", "parameters", "args", "params", "input"}) {
    const std::string object = R"({"name": "f", ")" + key + R"(": {"n": 1}})";
    EXPECT_EQ(parse_line(setup_of("hermes"), "<tool_call>" + object + "</tool_call>"), call) << key;
    EXPECT_EQ(parse_line(setup_of("llama3_json"), object), call) << key;
    EXPECT_EQ(parse_line(setup_of("mistral"), "[TOOL_CALLS][" + object + "]"), call) << key;
  }
  EXPECT_EQ(parse_line(setup_of("llama3_json"), R"({"function": "f", "parameters": {"n": 1}})"),
            call);
  EXPECT_EQ(parse_line(setup_of("gemma4"), "<|tool_call>call:functions.f{n:1}<tool_call|>"), call);
  EXPECT_EQ(
      parse_line(setup_of("qwen3_coder"),
                 "<tool_call>\n<function=\"f\">\n<parameter='n'>\n1\n</parameter>\n"
                 "</function>\n</tool_call>\n<tool_call><function=\"f\"></function></tool_call>"),
      call + "|f({})");
}

// As the API's answers spell a call, name and arguments may stand under "function". A tool's own
// definition, which has parameters there, is no call.
TEST(FaultyCalls, TheFormOfTheApisAnswersIsRead) {
  const std::string call = R"(||f({"n": 1}))";
  for (const std::string& function : std::vector<std::string>{
           R"({"name": "f", "arguments": {"n": 1}})", R"({"arguments": {"n": 1}, "name": "f"})",
           R"({"name": "f", "arguments": "{\"n\": 1}"})"}) {
    for (const std::string& object : std::vector<std::string>{
             R"({"function": )" + function + "}",
             R"({"type": "function", "function": )" + function + "}",
             R"({"function": )" + function + R"(, "type": "function", "id": "call_1"})"}) {
      EXPECT_EQ(parse_line(setup_of("hermes"), "<tool_call>" + object + "</tool_call>"), call)
          << object;
      EXPECT_EQ(parse_line(setup_of("llama3_json"), object), call) << object;
      EXPECT_EQ(parse_line(setup_of("mistral_list"), "[TOOL_CALLS] [" + object + "]"), call)
          << object;
    }
  }
  const ParserSetup hermes = setup_of("hermes");
  EXPECT_EQ(parse_line(hermes, R"(<tool_call>{"function": {"name": "f"}}</tool_call>)"), "||f({})");
  EXPECT_EQ(parse_line(hermes, R"(<tool_call>{"function": {"name": "f", "arguments": {"n": 1}})"
                               "</tool_call>"),
            call);
  const std::string definition =
      R"({"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}})";
  EXPECT_EQ(parse_line(setup_of("llama3_json"), definition), definition + "|");
  const std::string marked = "<tool_call>" + definition + "</tool_call>";
  EXPECT_EQ(parse_line(hermes, marked), marked + "|");
  const std::string twice = R"({"function": {"function": {"name": "f", "arguments": {}}}})";
  EXPECT_EQ(parse_line(setup_of("llama3_json"), twice), twice + "|");
}

TEST(FaultyCalls, CommasTooManyAndQuotesTooFewAreMended) {
  const std::string given = R"({"list": [1, 2, ], "s": "a,}", "n": 1, })";
  const std::string call = R"(||f({"list": [1, 2 ], "s": "a,}", "n": 1 }))";
  const std::string object = R"({"name": "f", "arguments": )" + given + ",}";
  EXPECT_EQ(parse_line(setup_of("hermes"), "<tool_call>\n" + object + "\n</tool_call>"), call);
  EXPECT_EQ(parse_line(setup_of("llama3_json"), object), call);
  EXPECT_EQ(parse_line(setup_of("xlam"), "[" + object + ",]"), call);
  EXPECT_EQ(parse_line(setup_of("mistral"), "[TOOL_CALLS]f[ARGS]" + given), call);
  EXPECT_EQ(parse_line(setup_of("functionary_v3_1"), "<function=f>" + given + "</function>"), call);
  EXPECT_EQ(parse_line(setup_of("functionary_v3_2"), "f\n" + given), call);
  EXPECT_EQ(parse_line(setup_of("qwen3_coder"),
                       "<tool_call><function=f>" + given + "</function></tool_call>"),
            call);
  EXPECT_EQ(parse_line(setup_of("harmony"),
                       "<|channel|>commentary to=functions.f <|constrain|>json<|message|>" + given +
                           "<|call|>"),
            call);
  // Keys without quotes have them put around.
  EXPECT_EQ(parse_line(setup_of("hermes"),
                       R"(<tool_call>{"name": "f", "arguments": {n: 1, s: "x"}}</tool_call>)"),
            R"(||f({"n": 1, "s": "x"}))");
  EXPECT_EQ(parse_line(setup_of("mistral"), R"([TOOL_CALLS]f[ARGS]{"s": "x", n: 1})"),
            R"(||f({"s": "x", "n": 1}))");
  // Where they are none before a bracket they stay where they are.
  EXPECT_EQ(parse_line(setup_of("mistral"), R"([TOOL_CALLS]f[ARGS]{"n": 1, x})"),
            R"(||f({"n": 1, x}))");
}

// Cut anywhere: nothing, or a call whose arguments are not closed, or are all there. Its value may
// have lines that are marks.
TEST(FaultyCalls, ACutCallHasCutArguments) {
  with_every_dialect(6, [](const ToolDialect& dialect, CallWriter& writer) {
    std::string s = "ab c";
    for (int lines = writer.roll(3); lines > 0; --lines) s += "\n" + writer.mark() + "\nab c";
    const Written call = writer.write(s, "512");
    const std::string text = call.whole();
    const std::string cut =
        text.substr(0, static_cast<size_t>(writer.roll(static_cast<int>(text.size()))));
    const Parsed parsed = parse_pieces(setup_of(dialect.name), {cut}, Ending::kCutOff);
    EXPECT_EQ(parse_line(setup_of(dialect.name), cut, Ending::kCutOff), parsed.line())
        << dialect.name;
    if (parsed.calls.empty()) {
      // Only what comes before the arguments.
      EXPECT_EQ(cut.find("ab c"), std::string::npos) << dialect.name << ": " << cut;
      return;
    }
    ASSERT_EQ(parsed.calls.size(), 1u) << dialect.name << ": " << cut;
    EXPECT_EQ(parsed.calls[0].name, "f");
    EXPECT_EQ(parsed.content, "") << dialect.name << ": " << cut;
    boost::system::error_code error;
    const json::value arguments = json::parse(parsed.calls[0].arguments, error);
    if (error) return;
    EXPECT_EQ(arguments, json::value({{"s", s}, {"n", 512}})) << dialect.name << ": " << cut;
  });
}

// A forced call that is cut off, in the middle of a character too: nothing of it is content.
TEST(FaultyCalls, AForcedCallThatIsCutOffShowsNothing) {
  with_every_dialect(7, [](const ToolDialect& dialect, CallWriter& writer) {
    ParserSetup setup = setup_of(dialect.name);
    setup.must_call = true;
    std::string text = writer.write("ab", "5").whole();
    text.resize(static_cast<size_t>(writer.roll(static_cast<int>(text.size()))));
    size_t begin = text.size();
    while (begin > 0 && (static_cast<unsigned char>(text[begin - 1]) & 0xC0U) == 0x80U) --begin;
    const bool is_split = begin > 0 && !text.empty() && text.back() < 0;
    if (is_split) text = text.substr(0, begin - 1) + "\uFFFD";  // as decoders write it
    EXPECT_EQ(parse_pieces(setup, {text}, Ending::kCutOff).content, "")
        << dialect.name << ": " << text;
  });
}

}  // namespace
}  // namespace rudder::dialect
