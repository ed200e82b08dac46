#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "rudder/dialect/dialect.h"

namespace rudder::dialect {
namespace {

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
            "- -");
  EXPECT_EQ(detected("<seed:tool_call>\\n<function=f> <tool_call> arguments"), "- -");
  EXPECT_EQ(detected("never write <tool_call>"), "- -");
  EXPECT_EQ(detected("<|tool_call|>[{\"name\", \"arguments\"}]<|/tool_call|>"), "phi4_mini_json -");
}

TEST(Dialects, OfFamilies) {
  const auto of = [](const std::string& family) {
    std::ifstream file(RUDDER_SOURCE_DIR "/tools/template_diff/families/" + family + ".jinja");
    EXPECT_TRUE(file) << family;
    std::stringstream text;
    text << file.rdbuf();
    return detected(text.str());
  };
  EXPECT_EQ(of("hermes"), "hermes -");
  EXPECT_EQ(of("llama32"), "llama3_json -");
  EXPECT_EQ(of("mistral_v3"), "mistral_list -");
  EXPECT_EQ(of("tekken"), "mistral -");
  EXPECT_EQ(of("phi4_mini"), "phi4_mini_json -");
  EXPECT_EQ(of("qwen3_coder"), "qwen3_coder -");
  EXPECT_EQ(of("gemma3_tools"), "gemma -");
  EXPECT_EQ(of("granite"), "granite -");
  EXPECT_EQ(of("glm4"), "- qwen3");
  EXPECT_EQ(of("deepseek_r1"), "- qwen3");
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
