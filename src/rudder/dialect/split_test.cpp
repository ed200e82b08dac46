// However an answer is cut into pieces, its deltas joined are the same; and nothing a model may
// write crashes a parser or makes text vanish.
#include <gtest/gtest.h>

#include <random>

#include "rudder/dialect/test_support.h"

namespace rudder::dialect {
namespace {

// Answers of each dialect that a test parses.
#ifdef __SANITIZE_ADDRESS__
constexpr int kAnswers = 250;
#else
constexpr int kAnswers = 2000;
#endif

class AnswerWriter {
 public:
  AnswerWriter(const ToolDialect& tools, uint64_t seed) : tools_(tools), rng_(seed) {}

  // Thoughts, text, calls, in the dialect's form, with marks inside strings; then, mostly, damage.
  std::string write() {
    std::string text;
    if (roll(3) == 0) text += "<think>" + words() + "</think>\n\n";
    const int parts = roll(4);
    for (int i = 0; i <= parts; ++i) text += roll(2) == 0 ? words() : call();
    if (roll(2) == 0) damage(&text);
    return text;
  }

  int roll(int sides) { return static_cast<int>(rng_() % static_cast<uint64_t>(sides)); }

  std::vector<std::string> cut(const std::string& text) {
    std::vector<std::string> pieces;
    const int longest = 1 + roll(12);
    for (size_t at = 0; at < text.size();) {
      const auto length = static_cast<size_t>(roll(longest + 1));
      pieces.push_back(text.substr(at, length));
      at += length;
    }
    return pieces;
  }

 private:
  std::string words() {
    static const std::vector<std::string> kWords = {
        "the sea ", "\n",        " ",        "{",
        "}",        "[",         "<",        "<tool",
        "</think>", "\"",        "[ARGS]",   "`",
        "```",      "tool_code", "\xc3\xa9", "\xf0\x9f\x8c\x8a",
        ", ",       ";",         "<|",       "[TOOL",
        "function", "f(",        ")",        "call:"};
    std::string text;
    for (int i = roll(6); i >= 0; --i) {
      text += kWords[static_cast<size_t>(roll(static_cast<int>(kWords.size())))];
      if (roll(30) == 0) text += tools_.begin;
      if (roll(30) == 0) text += tools_.end;
    }
    return text;
  }

  std::string string() {
    std::string text = "\"";
    for (int i = roll(4); i > 0; --i) {
      switch (roll(7)) {
        case 0:
          text += "\\\"";
          break;
        case 1:
          text += "\\u00e9\\ud83c\\udf0a";
          break;
        case 2:
          text += tools_.end;
          break;
        case 3:
          text += tools_.begin;
          break;
        case 4:
          text += "{[";
          break;
        default:
          text += "ab \xc3\xa9";
      }
    }
    std::erase(text, '\n');
    return text + "\"";
  }

  std::string value(int depth) {
    switch (roll(depth > 3 ? 4 : 6)) {
      case 0:
        return string();
      case 1:
        return std::to_string(roll(2000) - 1000);
      case 2:
        return roll(2) == 0 ? "-1.5e-3" : "null";
      case 3:
        return roll(2) == 0 ? "true" : "false";
      case 4: {
        std::string list = "[";
        for (int i = roll(3); i > 0; --i) list += value(depth + 1) + (i > 1 ? ", " : "");
        return list + "]";
      }
      default:
        return object(depth + 1);
    }
  }

  std::string object(int depth) {
    std::string text = "{";
    for (int i = roll(3); i > 0; --i) {
      text += string() + (roll(2) == 0 ? ": " : ":") + value(depth + 1) + (i > 1 ? ", " : "");
    }
    return text + "}";
  }

  std::string json_call() {
    const std::string name =
        R"("name": )" + std::string(roll(3) == 0 ? "\"f\"" : "\"get_weather\"");
    const std::string arguments = "\"" + std::string(tools_.arguments_key) + "\": " + object(0);
    return roll(4) == 0 ? "{" + arguments + ", " + name + "}" : "{" + name + ", " + arguments + "}";
  }

  std::string headed_call() {
    std::string text(tools_.begin);
    for (int i = roll(3); i >= 0; --i) {
      text += tools_.each_begin;
      if (roll(6) == 0) text += "all\n" + words();
      if (tools_.fenced) text += "function" + std::string(tools_.separator);
      text += roll(2) == 0 ? "f" : "get_weather";
      text += tools_.fenced ? "\n```json\n" : std::string(tools_.separator);
      text += object(0);
      if (tools_.fenced) text += "\n```";
      text += tools_.each_end;
      if (tools_.each_begin.empty()) text += tools_.begin;
    }
    return text + std::string(tools_.end);
  }

  std::string xml_call() {
    const XmlMarks& xml = tools_.xml;
    const std::string line = roll(3) == 0 ? "" : "\n";
    std::string behind_key = ">" + line;
    if (!xml.key_end.empty()) behind_key = std::string(xml.key_end) + line + std::string(xml.value);
    std::string text = xml.call.empty() ? "f" : line + std::string(xml.call) + "f>";
    for (const char* key : {"s", "n"}) {
      text += line + std::string(xml.key) + key + behind_key;
      text += (*key == 's' ? words() : value(0)) + line + std::string(xml.value_end);
    }
    return text + line + std::string(xml.call_end) + line;
  }

  std::string call() {
    const std::string begin(tools_.begin);
    const std::string end(tools_.end);
    switch (tools_.form) {
      case CallForm::kJson:
        return std::string(tools_.begin) + "\n" + json_call() + "\n" + std::string(tools_.end);
      case CallForm::kNamed:
        if (roll(2) == 0) return "[TOOL_CALLS] [" + json_call() + ", " + json_call() + "]";
        return "[TOOL_CALLS]f[ARGS]" + object(0);
      case CallForm::kXml:
        if (roll(3) == 0) return begin + json_call() + end;
        return begin + xml_call() + end;
      case CallForm::kTagged:
        return "<function=f>" + object(0) + "</function>";
      case CallForm::kPythonic:
        return std::string(tools_.begin) + "[f(a=" + value(1) + ", b='x'), get_weather()]" +
               std::string(tools_.end);
      case CallForm::kBraced:
        return std::string(tools_.begin) + "call:f{a:" + std::string(tools_.quote) + "x" +
               std::string(tools_.quote) + ",n:[1,true]}" + std::string(tools_.end);
      case CallForm::kHeaded:
        return headed_call();
      case CallForm::kHarmony:
        return begin + "commentary to=functions.f <|constrain|>json<|message|>" + object(0) + end;
    }
    return "";
  }

  void damage(std::string* text) {
    for (int i = roll(3); i >= 0 && !text->empty(); --i) {
      const auto at = static_cast<size_t>(roll(static_cast<int>(text->size())));
      switch (roll(4)) {
        case 0:
          text->resize(at);
          break;
        case 1:
          text->erase(at, 1);
          break;
        case 2:
          text->insert(at, 1, "{}[]\",:<>\\\n)"[roll(12)]);
          break;
        default:
          text->insert(at, text->substr(text->size() / 2));
      }
    }
  }

  const ToolDialect& tools_;
  std::mt19937_64 rng_;
};

TEST(Split, DoesNotMatter) {
  size_t with_calls = 0;
  for (const ToolDialect& dialect : tool_dialects()) {
    AnswerWriter writer(dialect, 7);
    const ParserSetup setup = setup_of(dialect.name, "qwen3");
    for (int i = 0; i < kAnswers; ++i) {
      const std::string text = writer.write();
      const Parsed whole = parse_pieces(setup, {text});
      const std::string line = whole.line();
      with_calls += whole.calls.empty() ? 0 : 1;
      ASSERT_EQ(parse_line(setup, text), line) << dialect.name << ": " << text;
      for (int again = 0; again < 3; ++again) {
        ASSERT_EQ(parse_pieces(setup, writer.cut(text)).line(), line)
            << dialect.name << ": " << text;
      }
    }
  }
  EXPECT_GT(with_calls, tool_dialects().size() * kAnswers / 4) << "the answers test little";
}

// Without a call nothing is lost but blanks beside marks, and the marks of thoughts.
TEST(Split, TextWithoutCallsIsKept) {
  const auto without_blanks = [](std::string text) {
    std::erase_if(text, [](char byte) { return byte == ' ' || byte == '\n'; });
    return text;
  };
  for (const ToolDialect& dialect : tool_dialects()) {
    if (dialect.form == CallForm::kHarmony) continue;  // marks are no text (harmony_test.cpp)
    AnswerWriter writer(dialect, 8);
    const ParserSetup setup = setup_of(dialect.name);
    int compared = 0;
    for (int i = 0; i < kAnswers; ++i) {
      const std::string text = writer.write();
      if (dialect.prompted && text.find("all\n") != std::string::npos) continue;  // a mark
      const Parsed parsed = parse_pieces(setup, {text});
      if (!parsed.calls.empty()) continue;
      ++compared;
      ASSERT_EQ(without_blanks(parsed.content), without_blanks(text)) << dialect.name;
    }
    EXPECT_GT(compared, kAnswers / 10) << dialect.name;
  }
}

// The work is linear, or near it: an answer of nothing but marks is no trap.
TEST(Split, ManyMarksAreReadInTime) {
  for (const ToolDialect& dialect : tool_dialects()) {
    std::string text;
    while (text.size() < 100'000) {
      text += dialect.begin;
      text += "{\"name\": \"f\", \"x\": [[[[";
    }
    const Parsed parsed = parse_pieces(setup_of(dialect.name), {text});
    EXPECT_LE(parsed.content.size(), text.size());
  }
}

}  // namespace
}  // namespace rudder::dialect
