#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "rudder/dialect/test_support.h"

namespace rudder::dialect {
namespace {

namespace json = boost::json;

std::string file_text(const std::string& path) {
  std::ifstream file(RUDDER_SOURCE_DIR "/" + path);
  EXPECT_TRUE(file) << path;
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string family_source(const std::string& family) {
  return file_text("tools/template_diff/families/" + family + ".jinja");
}

json::array rows_of(const std::string& name) {
  return json::parse(file_text("src/rudder/dialect/" + name)).as_array();
}

std::string member_text(const json::object& row, std::string_view key) {
  return std::string(row.at(key).as_string());
}

std::string detected(std::string_view chat_template) {
  const ToolDialect* tools = detect_tool_dialect(chat_template);
  const ReasoningDialect* reasoning = detect_reasoning_dialect(chat_template);
  return std::string(tools != nullptr ? tools->name : "-") + " " +
         std::string(reasoning != nullptr ? reasoning->name : "-");
}

TEST(Dialects, AreDetectedFromTemplates) {
  EXPECT_EQ(detected("{{ '<|im_start|>' + message.role }}"), "- -");
  EXPECT_EQ(
      detected("<tool_call>{\"name\": ..., \"arguments\": ...}</tool_call> '<think>' '</think>'"),
      "hermes qwen3");
  EXPECT_EQ(detected("<tool_call>\\n<function=example>"), "qwen3_coder -");
  EXPECT_EQ(detected("<|start_header_id|>{\"name\": function name, \"parameters\": dictionary}"),
            "llama3_json -");
  EXPECT_EQ(detected("'[TOOL_CALLS] [' ... '[AVAILABLE_TOOLS]'"), "mistral_list -");
  EXPECT_EQ(detected("'[TOOL_CALLS]' + name + '[ARGS]' [THINK]"), "mistral mistral");
  EXPECT_EQ(detected("<start_of_turn>model"), "gemma -");
  EXPECT_EQ(detected("<start_of_turn>model <start_function_call>"), "functiongemma -");
}

// A mark that several families have does not decide alone.
TEST(Dialects, AreNotDetectedFromAStrayMark) {
  const std::string granite = "'<|start_of_role|>assistant<|end_of_role|>' ";
  EXPECT_EQ(detected(granite + "respond only with <|tool_call|> followed by a JSON list"),
            "granite -");
  EXPECT_EQ(detected(granite + "'<tool_call>[' + {\"arguments\": ...} + ']'"), "granite -");
  EXPECT_EQ(detected(granite + "<tool_call>\\n{\"name\", \"arguments\"}\\n</tool_call>"),
            "hermes -");
  EXPECT_EQ(detected("<tool_call>{name}\\n<arg_key>k</arg_key> tool_call.arguments </tool_call>"),
            "glm45 -");
  EXPECT_EQ(detected("<seed:tool_call>\\n<function=f> <tool_call> arguments"), "seed_oss -");
  EXPECT_EQ(detected("<seed:think>\\n</seed:think> <seed:tool_call>\\n<function=f>"),
            "seed_oss seed_oss");
  EXPECT_EQ(detected("the prompt of Python is >>>, all the time"), "- -");
  EXPECT_EQ(detected("never write <tool_call>"), "- -");
  EXPECT_EQ(detected("<|tool_call|>[{\"name\", \"arguments\"}]<|/tool_call|>"), "phi4_mini_json -");
}

// written_calls.json: of each template the dialect that it shows, what its model writes, and what
// the reader of that dialect makes of it.
TEST(Dialects, WhatATemplatesModelWritesIsRead) {
  std::set<std::string> covered;
  for (const json::value& item : rows_of("written_calls.json")) {
    const json::object& row = item.as_object();
    const std::string source = row.contains("family") ? family_source(member_text(row, "family"))
                                                      : member_text(row, "source");
    ASSERT_FALSE(source.empty()) << item;
    EXPECT_EQ(detected(source), member_text(row, "shows")) << item;
    ParserSetup setup = setup_of("");
    setup.calls = detect_tool_dialect(source);
    setup.reasoning = detect_reasoning_dialect(source);
    if (setup.calls != nullptr) covered.emplace(setup.calls->name);
    if (setup.calls == nullptr && setup.reasoning == nullptr) continue;
    EXPECT_EQ(parse_line(setup, member_text(row, "text")), member_text(row, "returned")) << item;
  }
  for (const ToolDialect& dialect : tool_dialects()) {
    EXPECT_TRUE(covered.contains(std::string(dialect.name))) << dialect.name;
  }
}

// Families whose calls no reader here takes are told as such, and what they write is content,
// whole, though a part of it looks like another family's call.
TEST(Dialects, CallsThatNoReaderTakesAreContent) {
  const std::vector<std::pair<std::string, std::string>> rows = {
      // MiniCPM 3
      {"<|tool_call_start|>\\n```python\\nfunc1(params_name=params_value)\\n```\\n<|tool_call_end|"
       ">",
       "<|tool_call_start|>\n```python\nf(n=1)\n```\n<|tool_call_end|>"},
      // DeepSeek 3.2
      {"<｜DSML｜function_calls>\\n<｜DSML｜invoke name=\"$TOOL_NAME\">",
       "<｜DSML｜function_calls>\n<｜DSML｜invoke "
       "name=\"f\">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>"},
      // LongCat
      {"<longcat_tool_call>{name}\\n<longcat_arg_key>k</longcat_arg_key> tool_call.arguments",
       "<longcat_tool_call>f\n<longcat_arg_key>n</longcat_arg_key>\n</longcat_tool_call>"},
      // InternLM 2.5
      {"<|action_start|><|plugin|>",
       "<|action_start|><|plugin|>{\"name\": \"f\", \"parameters\": {}}<|action_end|>"},
      {"<function_calls>\\n<invoke name=\"$NAME\">",
       "<function_calls>\n<invoke name=\"f\">\n</invoke>\n</function_calls>"},
      {"<function name=\"example\"><param name=\"key\">value</param></function>",
       "<function name=\"f\"><param name=\"n\">1</param></function>"},
  };
  for (const auto& [source, text] : rows) {
    EXPECT_EQ(detected(source), "- -") << source;
    EXPECT_EQ(parse_line(setup_of(""), text), text + "|") << source;
  }
}

TEST(Dialects, AreFoundByNameAndAlias) {
  for (const ToolDialect& one : tool_dialects()) {
    EXPECT_EQ(find_tool_dialect(one.name).value(), &one);
  }
  for (const ReasoningDialect& one : reasoning_dialects()) {
    EXPECT_EQ(find_reasoning_dialect(one.name).value(), &one);
  }
  EXPECT_EQ(find_tool_dialect("qwen25").value()->name, "hermes");
  const auto unknown = find_tool_dialect("nonesuch");
  ASSERT_FALSE(unknown);
  EXPECT_NE(unknown.error().message.find("hermes"), std::string::npos);
}

TEST(Dialects, ThePromptTellsWhetherThoughtsAreOpen) {
  const ReasoningDialect& think = **find_reasoning_dialect("qwen3");
  EXPECT_EQ(reasoning_after(think, "<|im_start|>assistant\n<think>\n"), PromptEnd::kOpen);
  EXPECT_EQ(reasoning_after(think, "<|im_start|>assistant\n<think>\n\n</think>\n\n"),
            PromptEnd::kClosed);
  EXPECT_EQ(reasoning_after(think, "<|im_start|>assistant\n"), PromptEnd::kNeither);
  EXPECT_EQ(reasoning_after(think, " "), PromptEnd::kNeither);
}

}  // namespace
}  // namespace rudder::dialect
