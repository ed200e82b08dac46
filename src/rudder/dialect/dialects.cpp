// The table of dialects. What a family's marks are comes from its chat template and its model card.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "rudder/dialect/dialect.h"
#include "rudder/dialect/harmony.h"

namespace rudder::dialect {
namespace {

// Words of a template that identify its family. The first trace of the table whose words all occur
// wins; a single mark may occur in another family's template too.
struct Trace {
  std::array<std::string_view, 2> words;
  std::string_view name;  // empty: calls of a form that no reader here takes
};

struct Alias {
  std::string_view alias;
  std::string_view name;
};

// In the order in which detection asks for them: the more special ones first.
constexpr std::array kTools = {
    ToolDialect{.name = "hermes", .begin = "<tool_call>", .end = "</tool_call>"},
    ToolDialect{.name = "qwen3_coder",
                .form = CallForm::kXml,
                .begin = "<tool_call>",
                .also_begin = "<function=",
                .end = "</tool_call>"},
    ToolDialect{.name = "seed_oss",
                .form = CallForm::kXml,
                .begin = "<seed:tool_call>",
                .also_begin = "<function=",
                .end = "</seed:tool_call>"},
    ToolDialect{.name = "glm45",
                .form = CallForm::kXml,
                .begin = "<tool_call>",
                .end = "</tool_call>",
                .xml = {.call = "",
                        .call_end = "",
                        .key = "<arg_key>",
                        .key_end = "</arg_key>",
                        .value = "<arg_value>",
                        .value_end = "</arg_value>",
                        .in_lines = false}},
    ToolDialect{.name = "minimax_m2",
                .form = CallForm::kXml,
                .begin = "<minimax:tool_call>",
                .also_begin = "<invoke name=",
                .end = "</minimax:tool_call>",
                .xml = {.call = "<invoke name=",
                        .call_end = "</invoke>",
                        .key = "<parameter name=",
                        .in_lines = false}},
    ToolDialect{.name = "functionary_v3_1", .form = CallForm::kTagged, .begin = "<function="},
    ToolDialect{.name = "functionary_v3_2",
                .form = CallForm::kHeaded,
                .begin = ">>>",
                .separator = "\n",
                .prompted = true},
    // DeepSeek's before version 3.1, R1 and its distilled models among them.
    ToolDialect{.name = "deepseek_v3",
                .form = CallForm::kHeaded,
                .begin = "<｜tool▁calls▁begin｜>",
                .end = "<｜tool▁calls▁end｜>",
                .each_begin = "<｜tool▁call▁begin｜>",
                .each_end = "<｜tool▁call▁end｜>",
                .separator = "<｜tool▁sep｜>",
                .fenced = true},
    ToolDialect{.name = "deepseek_v31",
                .form = CallForm::kHeaded,
                .begin = "<｜tool▁calls▁begin｜>",
                .end = "<｜tool▁calls▁end｜>",
                .each_begin = "<｜tool▁call▁begin｜>",
                .each_end = "<｜tool▁call▁end｜>",
                .separator = "<｜tool▁sep｜>"},
    ToolDialect{.name = "kimi_k2",
                .form = CallForm::kHeaded,
                .begin = "<|tool_calls_section_begin|>",
                .end = "<|tool_calls_section_end|>",
                .each_begin = "<|tool_call_begin|>",
                .each_end = "<|tool_call_end|>",
                .separator = "<|tool_call_argument_begin|>",
                .ids = IdStyle::kKimi},
    ToolDialect{.name = "llama3_json",
                .begin = "<|python_tag|>",
                .bare = true,
                .arguments_key = "parameters"},
    ToolDialect{.name = "pythonic", .form = CallForm::kPythonic, .bare = true, .list = true},
    ToolDialect{.name = "xlam", .bare = true, .list = true},
    ToolDialect{.name = "mistral",
                .form = CallForm::kNamed,
                .begin = "[TOOL_CALLS]",
                .ids = IdStyle::kMistral},
    // Mistral's before the eleventh version of its tokenizer, where calls are one list of JSON.
    ToolDialect{.name = "mistral_list",
                .form = CallForm::kNamed,
                .begin = "[TOOL_CALLS]",
                .list = true,
                .ids = IdStyle::kMistral},
    ToolDialect{
        .name = "gemma", .form = CallForm::kPythonic, .begin = "```tool_code", .end = "```"},
    ToolDialect{.name = "functiongemma",
                .form = CallForm::kBraced,
                .begin = "<start_function_call>",
                .end = "<end_function_call>",
                .quote = "<escape>"},
    ToolDialect{.name = "gemma4",
                .form = CallForm::kBraced,
                .begin = "<|tool_call>",
                .end = "<tool_call|>",
                .quote = "<|\"|>"},
    ToolDialect{.name = "phi4_mini_json",
                .begin = "<|tool_call|>",
                .also_begin = "functools",
                .end = "<|/tool_call|>",
                .list = true},
    ToolDialect{
        .name = "granite", .begin = "<|tool_call|>", .also_begin = "<tool_call>", .list = true},
    ToolDialect{.name = "nemotron",
                .form = CallForm::kPythonic,
                .begin = "<TOOLCALL>",
                .end = "</TOOLCALL>",
                .list = true},
    ToolDialect{.name = "lfm2",
                .form = CallForm::kPythonic,
                .begin = "<|tool_call_start|>",
                .end = "<|tool_call_end|>",
                .list = true},
    ToolDialect{.name = "jamba", .begin = "<tool_calls>", .end = "</tool_calls>", .list = true},
    ToolDialect{.name = "olmo3",
                .form = CallForm::kPythonic,
                .begin = "<function_calls>",
                .end = "</function_calls>"},
    ToolDialect{.name = "harmony",
                .form = CallForm::kHarmony,
                .begin = harmony::kChannel,
                .end = harmony::kCall},
};

constexpr std::array kReasoning = {
    ReasoningDialect{.name = "qwen3", .begin = "<think>", .end = "</think>"},
    ReasoningDialect{.name = "deepseek_r1", .begin = "<think>", .end = "</think>", .always = true},
    ReasoningDialect{.name = "mistral", .begin = "[THINK]", .end = "[/THINK]"},
    ReasoningDialect{.name = "gemma4", .begin = "<|channel>thought", .end = "<channel|>"},
    ReasoningDialect{.name = "seed_oss", .begin = "<seed:think>", .end = "</seed:think>"},
    ReasoningDialect{.name = "harmony",
                     .begin = "<|channel|>analysis<|message|>",
                     .end = harmony::kEnd,
                     .harmony = true},
};

constexpr std::array kToolTraces = {
    Trace{{"<|channel|>", "<|message|>"}, "harmony"},
    Trace{{"<tool_call>", "<arg_key>"}, "glm45"},
    Trace{{"<minimax:tool_call>"}, "minimax_m2"},
    Trace{{"<|reserved_special_token_249|>"}, ""},  // Functionary 2.5
    Trace{{"<seed:tool_call>", "<function="}, "seed_oss"},
    Trace{{">>>all"}, "functionary_v3_2"},
    Trace{{">>>${recipient}"}, "functionary_v3_2"},
    Trace{{"<｜tool▁calls▁begin｜>", "```json"}, "deepseek_v3"},
    Trace{{"<｜tool▁calls▁begin｜>"}, "deepseek_v31"},
    Trace{{"<|tool_calls_section_begin|>"}, "kimi_k2"},
    Trace{{"<TOOLCALL>"}, "nemotron"},
    Trace{{"<|tool_call_start|>", "```python"}, ""},  // MiniCPM 3
    Trace{{"<|tool_call_start|>"}, "lfm2"},
    Trace{{"<|tool_list_start|>"}, "lfm2"},
    // ToolACE, and what vLLM brings for Llama 3.2, Llama 4 and Gemma 3.
    Trace{{"[func_name1("}, "pythonic"},
    Trace{{"<function=", "<tool_call>"}, "qwen3_coder"},
    Trace{{"<function=", "</function>"}, "functionary_v3_1"},
    Trace{{"<|start_of_role|>", "</tool_call>"}, "hermes"},  // Granite 4
    Trace{{"<|start_of_role|>"}, "granite"},
    Trace{{"<tool_call>", "arguments"}, "hermes"},
    Trace{{"[ARGS]", "[TOOL_CALLS]"}, "mistral"},
    Trace{{"[TOOL_CALLS]"}, "mistral_list"},
    Trace{{"<start_function_call>"}, "functiongemma"},
    Trace{{"<|tool_call>"}, "gemma4"},
    Trace{{"<|tool_call|>"}, "phi4_mini_json"},
    Trace{{"<function_calls>", "<invoke name="}, ""},  // XML, as several hosted models write it
    Trace{{"<function_calls>"}, "olmo3"},
    Trace{{"<|/tool|>"}, "phi4_mini_json"},
    Trace{{"functools["}, "phi4_mini_json"},  // Firefunction 2
    Trace{{"<tool_calls>"}, "jamba"},
    Trace{{"\"tool_call_name\"", "JSON array"}, "xlam"},
    Trace{{"<|start_header_id|>"}, "llama3_json"},
    Trace{{"<|header_start|>"}, "llama3_json"},  // Llama 4
    Trace{{"<|python_tag|>"}, "llama3_json"},
    Trace{{"<start_of_turn>"}, "gemma"},
};

constexpr std::array kReasoningTraces = {
    Trace{{"<|channel|>", "<|message|>"}, "harmony"},
    Trace{{"</think>"}, "qwen3"},
    Trace{{"[THINK]"}, "mistral"},
    Trace{{"<|channel>"}, "gemma4"},
    Trace{{"<seed:think>"}, "seed_oss"},
};

constexpr std::array kAliases = {
    Alias{"functionary_v3", "functionary_v3_2"},
    Alias{"hunyuan_a13b", "jamba"},
    Alias{"glm47", "glm45"},
    Alias{"glm4_moe", "glm45"},
    Alias{"qwen", "hermes"},
    Alias{"qwen25", "hermes"},
    Alias{"qwen3", "hermes"},
    Alias{"qwen3_xml", "qwen3_coder"},
    Alias{"llama3", "llama3_json"},
    Alias{"llama4_json", "llama3_json"},
    Alias{"llama4_pythonic", "pythonic"},
    Alias{"gemma3", "gemma"},
    Alias{"openai", "harmony"},
    Alias{"openai_gptoss", "harmony"},
    Alias{"gpt-oss", "harmony"},
    Alias{"glm45", "qwen3"},
    Alias{"glm47", "qwen3"},
    Alias{"minimax_m2", "qwen3"},
    Alias{"deepseek-r1", "deepseek_r1"},
    Alias{"qwen3-thinking", "deepseek_r1"},
};

template <typename Entry>
Result<const Entry*> find_by_name(std::span<const Entry> entries, std::string_view name,
                                  std::string_view flag) {
  std::string names;
  for (const Entry& entry : entries) {
    if (entry.name == name) return &entry;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", entry.name);
  }
  for (const Alias& alias : kAliases) {
    if (alias.alias != name) continue;
    for (const Entry& entry : entries) {
      if (entry.name == alias.name) return &entry;
    }
  }
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("{} '{}' is not known; there are {}", flag, name, names),
              std::string(flag));
}

template <typename Entry>
const Entry* detect(std::span<const Entry> entries, std::span<const Trace> traces,
                    std::string_view chat_template) {
  for (const Trace& trace : traces) {
    const bool has_all = std::ranges::all_of(trace.words, [&](std::string_view word) {
      return chat_template.find(word) != std::string_view::npos;
    });
    if (!has_all) continue;
    const auto entry = std::ranges::find(entries, trace.name, &Entry::name);
    return entry == entries.end() ? nullptr : &*entry;
  }
  return nullptr;
}

}  // namespace

std::span<const ToolDialect> tool_dialects() {
  return kTools;
}

std::span<const ReasoningDialect> reasoning_dialects() {
  return kReasoning;
}

Result<const ToolDialect*> find_tool_dialect(std::string_view name) {
  return find_by_name(tool_dialects(), name, "tool-call-parser");
}

Result<const ReasoningDialect*> find_reasoning_dialect(std::string_view name) {
  return find_by_name(reasoning_dialects(), name, "reasoning-parser");
}

const ToolDialect* detect_tool_dialect(std::string_view chat_template) {
  return detect(tool_dialects(), kToolTraces, chat_template);
}

const ReasoningDialect* detect_reasoning_dialect(std::string_view chat_template) {
  return detect(reasoning_dialects(), kReasoningTraces, chat_template);
}

std::vector<std::string_view> marks_of(const ToolDialect* tools,
                                       const ReasoningDialect* reasoning) {
  std::vector<std::string_view> marks;
  if (tools != nullptr) {
    marks = {tools->begin,      tools->also_begin, tools->end,      tools->quote,
             tools->each_begin, tools->each_end,   tools->separator};
    std::erase(marks, "\n");  // separates, but shows nothing
    // Those of functions and parameters are no whole tokens, as they end behind a name.
    if (!tools->xml.key_end.empty()) {
      marks.insert(marks.end(),
                   {tools->xml.key, tools->xml.key_end, tools->xml.value, tools->xml.value_end});
    }
    if (tools->form == CallForm::kNamed) marks.insert(marks.end(), {"[ARGS]", "[CALL_ID]"});
  }
  if (reasoning != nullptr) marks.insert(marks.end(), {reasoning->begin, reasoning->end});
  if (is_harmony(tools, reasoning)) marks = {harmony::kMarks.begin(), harmony::kMarks.end()};
  std::erase(marks, "");
  return marks;
}

std::vector<std::string_view> ends_of(const ToolDialect* tools, const ReasoningDialect* reasoning) {
  if (!is_harmony(tools, reasoning)) return {};
  return {harmony::kCall, harmony::kReturn};
}

bool is_harmony(const ToolDialect* tools, const ReasoningDialect* reasoning) {
  return (tools != nullptr && tools->form == CallForm::kHarmony) ||
         (reasoning != nullptr && reasoning->harmony);
}

std::string_view opening_of(std::string_view prompt) {
  return harmony::opening_of(prompt);
}

PromptEnd reasoning_after(const ReasoningDialect& reasoning, std::string_view prompt) {
  const std::string_view text = prompt.substr(0, prompt.find_last_not_of(" \n\t\r") + 1);
  if (text.ends_with(reasoning.begin)) return PromptEnd::kOpen;
  return text.ends_with(reasoning.end) ? PromptEnd::kClosed : PromptEnd::kNeither;
}

}  // namespace rudder::dialect
