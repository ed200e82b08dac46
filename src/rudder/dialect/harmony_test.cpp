// Answers in Harmony: what openai-harmony reads of them (harmony_messages.json), and that nothing a
// model may write is lost.
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <fstream>
#include <random>
#include <set>
#include <sstream>

#include "rudder/dialect/call_format.h"
#include "rudder/dialect/harmony.h"
#include "rudder/dialect/test_support.h"

namespace rudder::dialect {
namespace {

namespace json = boost::json;

ParserSetup harmony_setup() {
  return setup_of("harmony", "harmony");
}

TEST(Harmony, IsReadAsItsOwnPackageReadsIt) {
  std::ifstream file(RUDDER_SOURCE_DIR "/src/rudder/dialect/harmony_messages.json");
  std::stringstream text;
  text << file.rdbuf();
  const json::array rows = json::parse(text.str()).as_array();
  ASSERT_GE(rows.size(), 100u);
  for (const json::value& item : rows) {
    const json::object& row = item.as_object();
    std::string wanted = json::value_to<std::string>(row.at("content")) + "|" +
                         json::value_to<std::string>(row.at("reasoning"));
    for (const json::value& call : row.at("calls").as_array()) {
      wanted += "|" + json::value_to<std::string>(call.at("name")) + "(" +
                json::value_to<std::string>(call.at("arguments")) + ")";
    }
    EXPECT_EQ(parse_line(harmony_setup(), json::value_to<std::string>(row.at("text"))), wanted)
        << item;
  }
}

TEST(Harmony, MarksMayBeMissingOrTwice) {
  const std::vector<std::pair<std::string, std::string>> kRows = {
      {"Hello there", "Hello there|"},
      {"as you like", "as you like|"},
      {"", "|"},
      {"<|message|>Hi", "Hi|"},
      {"<|channel|>final Hi all<|end|>", "Hi all|"},
      {"<|channel|>analysis<|message|>hm<|channel|>final<|message|>Hi", "Hi|hm"},
      {"<|channel|>analysis<|message|>hm<|end|>assistant<|channel|>final<|message|>Hi", "Hi|hm"},
      {"<|channel|>analysis<|message|>hm<|end|><|start|>user<|message|>no", "no|hm"},
      {"<|channel|>analysis<|message|>hm", "|hm"},
      {"<|channel|>analysis<|message|>hm<|end|>and on", "and on|hm"},
      {"<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|chan", "|hm"},
      {"<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>fin", "|hm"},
      {"<|channel|>thoughts<|message|>Hi", "Hi|"},
      {"<|channel|>final<|channel|>final<|message|>Hi<|return|>", "Hi|"},
      {"<|channel|>commentary to=browser.search<|message|>{\"q\": 1}<|call|>", "{\"q\": 1}|"},
      {"<|channel|>analysis to=python code<|message|>1 + 1<|call|>", "|1 + 1"},
      {"<|channel|>commentary to=f json<|message|>{}<|call|>", "||f({})"},
      {"<|channel|>commentary to=functions.other<|message|><|call|>", "||other({})"},
      {"<|channel|>commentary to=functions.f<|message|>{\"n\": 1<|call|>", "||f({\"n\": 1})"},
      {"<|channel|>commentary to=functions.f<|message|>{\"n\": 1} so<|call|>", "so||f({\"n\": 1})"},
      {"<|start|>functions.f to=assistant<|channel|>commentary<|message|>5<|end|>", "5|"},
      {"<|call|><|end|><|return|><|constrain|>", "|"},
  };
  for (const auto& [text, wanted] : kRows) {
    EXPECT_EQ(parse_line(harmony_setup(), text), wanted) << text;
  }
}

TEST(Harmony, WhatIsNotToldApartIsText) {
  const std::string text =
      "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary "
      "to=functions.f<|message|>{}<|call|>";
  ParserSetup setup;
  setup.harmony = true;
  EXPECT_EQ(parse_line(setup, text), "hm\n{}|");
  setup.reasoning = *find_reasoning_dialect("openai_gptoss");
  EXPECT_EQ(parse_line(setup, text), "{}|hm");
  EXPECT_EQ(parse_line(setup_of("openai"), text), "hm||f({})");
}

// Words drawn into any order of marks are all somewhere in the answer.
TEST(Harmony, NoTextIsLost) {
  std::mt19937_64 rng(5);
  const auto roll = [&](size_t sides) { return static_cast<size_t>(rng() % sides); };
  const std::vector<std::string> kHeaderWords = {
      "assistant",       "analysis",   "commentary", "final",
      " to=functions.f", " to=python", "json",       "<|channel|>final",
      "<|message|>{\"",  "}",          "\n",         "<|"};
  size_t with_calls = 0;
  for (int answer = 0; answer < 4000; ++answer) {
    std::string text;
    std::vector<std::string> words;
    for (size_t i = roll(12); i > 0; --i) {
      switch (roll(4)) {
        case 0:
          words.push_back("w" + std::to_string(answer) + "x" + std::to_string(i));
          text += " " + words.back() + " and";
          break;
        case 1:
          text += kHeaderWords[roll(kHeaderWords.size())];
          break;
        default:
          text += harmony::kMarks[roll(harmony::kMarks.size())];
      }
    }
    text.resize(text.size() - (roll(3) == 0 ? 0 : roll(text.size() / 8 + 1)));
    const Parsed parsed = parse_pieces(harmony_setup(), {text});
    const std::string line = parsed.line();
    with_calls += parsed.calls.empty() ? 0 : 1;
    ASSERT_EQ(parse_line(harmony_setup(), text), line) << text;
    for (const std::string& word : words) {
      if (text.find(word + " and") == std::string::npos) continue;  // cut off
      ASSERT_NE(line.find(word), std::string::npos) << text << "\n" << line;
    }
  }
  EXPECT_GT(with_calls, 20u);
}

TEST(Harmony, ThePromptMayHaveBegunTheMessage) {
  const std::string before = "<|start|>user<|message|>Q <|start|>assistant x<|end|>";
  EXPECT_EQ(opening_of(before + "<|start|>assistant"), "");
  EXPECT_EQ(opening_of("no such prompt"), "");
  ParserSetup setup = harmony_setup();
  setup.opening = opening_of(before + "<|start|>assistant<|channel|>analysis<|message|>We ");
  EXPECT_EQ(setup.opening, "<|channel|>analysis<|message|>We ");
  EXPECT_TRUE(make_parser(setup, 1)->thinking());
  EXPECT_EQ(parse_line(setup, "see.<|end|><|start|>assistant<|channel|>final<|message|>Hi"),
            "Hi|see.");
}

TEST(Harmony, ItsEndsAreThoseOfAnswers) {
  const ToolDialect* const calls = *find_tool_dialect("harmony");
  EXPECT_EQ(ends_of(calls, nullptr), (std::vector<std::string_view>{"<|call|>", "<|return|>"}));
  EXPECT_TRUE(ends_of(*find_tool_dialect("hermes"), nullptr).empty());
  const std::vector<std::string_view> marks = marks_of(calls, nullptr);
  EXPECT_EQ(std::set<std::string_view>(marks.begin(), marks.end()),
            (std::set<std::string_view>{"<|start|>", "<|channel|>", "<|constrain|>", "<|message|>",
                                        "<|end|>", "<|call|>", "<|return|>"}));
}

TEST(Harmony, AGrammarHasTheHeadersOfItsLastMessage) {
  const FindSpecial none = [](std::string_view) { return std::optional<int32_t>(); };
  const std::string schema = R"({"type":"json_schema","json_schema":{"type":"object"}})";
  const json::object content = json::parse(schema).as_object();
  ParserSetup setup = harmony_setup();
  std::string text = json::serialize(format_after_thoughts(setup, content, none));
  EXPECT_NE(text.find(R"("value":"analysis")"), std::string::npos) << text;
  EXPECT_NE(text.find(R"("value":"final")"), std::string::npos) << text;
  setup.opening = "<|channel|>final<|message|>";
  text = json::serialize(format_after_thoughts(setup, content, none));
  EXPECT_EQ(text.find("final"), std::string::npos) << text;
}

}  // namespace
}  // namespace rudder::dialect
