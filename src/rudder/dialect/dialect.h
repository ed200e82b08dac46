// Tables of how model families write thoughts and tool calls, and functions that find the entry for
// a model. A dialect is a form of calls with its marks; each form has one
// small parser. Constants; any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/dialect/output_parser.h"

namespace rudder::dialect {

enum class CallForm : uint8_t {
  kJson,      // {"name": ..., "arguments": {...}}, one, a list, or several after one another
  kNamed,     // name[ARGS]{...}, or what kJson takes
  kXml,       // <function=name><parameter=key>value</parameter></function>, with these marks or
              // others (XmlMarks), or what kJson takes
  kPythonic,  // [name(key=value), ...]
  kBraced,    // call:name{key:value,...}
  kTagged,    // <function=name>{...}</function>, or what kXml takes
  kHeaded,    // a name, a separator, {...}, with marks around each call and around all of them
  kHarmony,   // a message to a function (harmony.h)
};

enum class IdStyle : uint8_t {
  kOpenAi,   // chatcmpl-tool-<32 hexadecimal digits>
  kMistral,  // 9 letters and digits, as its templates demand
  kKimi,     // functions.name:index, which its template shows the model again
};

// kXml: the marks inside of those around a call.
struct XmlMarks {
  std::string_view call =
      "<function=";  // a name and '>' follow; empty: the name alone stands there
  std::string_view call_end = "</function>";  // empty: the mark behind calls is the call's too
  std::string_view key = "<parameter=";       // a key and '>' follow, or `key_end` and `value`
  std::string_view key_end = {};
  std::string_view value = {};
  std::string_view value_end = "</parameter>";
  bool in_lines = true;  // a text's first and last line's end are layout, else both or none
};

struct ToolDialect {
  std::string_view name = {};  // as --tool-call-parser has it
  CallForm form = CallForm::kJson;
  std::string_view begin = {};       // the mark before calls
  std::string_view also_begin = {};  // another one, not part of the call's own text either
  std::string_view end = {};         // the mark after them; may be empty
  bool bare = false;                 // an answer may begin with a call, without a mark
  bool list = false;                 // calls stand in one list, not each between its own marks
  std::string_view arguments_key = "arguments";  // as the model is to write it
  std::string_view quote = {};                   // kBraced: the mark on both sides of a string
  // kHeaded: the marks around each call, inside of `begin` and `end`, and what is behind a name.
  std::string_view each_begin = {};
  std::string_view each_end = {};
  std::string_view separator = {};
  bool fenced = false;    // kHeaded: a kind before the separator, arguments in a block of code
  bool prompted = false;  // kHeaded: the prompt ends with `begin`; "all" is no name, but says text
  IdStyle ids = IdStyle::kOpenAi;
  XmlMarks xml = {};
};

struct ReasoningDialect {
  std::string_view name = {};  // as --reasoning-parser has it
  std::string_view begin = {};
  std::string_view end = {};
  bool always = false;   // an answer begins with thoughts, whether it says so or not
  bool harmony = false;  // they are messages among others (harmony.h)
};

std::span<const ToolDialect> tool_dialects();
std::span<const ReasoningDialect> reasoning_dialects();

// By name or alias. kInvalidArgument with the known names.
Result<const ToolDialect*> find_tool_dialect(std::string_view name);
Result<const ReasoningDialect*> find_reasoning_dialect(std::string_view name);

// What a chat template's source shows of the family it is of; null where it shows none whose calls
// can be read.
const ToolDialect* detect_tool_dialect(std::string_view chat_template);
const ReasoningDialect* detect_reasoning_dialect(std::string_view chat_template);

// The strings that a tokenizer may have as special tokens and that must be in the text for it to be
// parsed.
std::vector<std::string_view> marks_of(const ToolDialect* tools, const ReasoningDialect* reasoning);

// Special tokens that end an answer of the dialect, whatever the checkpoint says.
std::vector<std::string_view> ends_of(const ToolDialect* tools, const ReasoningDialect* reasoning);

// How a prompt ends: with the mark that opens thoughts, with the one that closes them, or with
// other text.
enum class PromptEnd : uint8_t { kNeither, kOpen, kClosed };
PromptEnd reasoning_after(const ReasoningDialect& reasoning, std::string_view prompt);

// Types of values, as bits: which of them an argument may have. Forms that write strings without
// quotes need it.
using ValueTypes = uint8_t;
inline constexpr ValueTypes kString = 1;
inline constexpr ValueTypes kNumber = 2;
inline constexpr ValueTypes kBoolean = 4;
inline constexpr ValueTypes kNull = 8;
inline constexpr ValueTypes kList = 16;
inline constexpr ValueTypes kObject = 32;

struct Argument {
  std::string name;
  ValueTypes types = kString;
};

// A tool that the client offers.
struct Tool {
  std::string name;
  std::vector<Argument> arguments = {};  // that its schema names
  ValueTypes other_arguments = kString;  // those that it does not name
};

// How the answers of one request are to be parsed.
struct ParserSetup {
  const ToolDialect* calls = nullptr;           // null: calls are text
  const ReasoningDialect* reasoning = nullptr;  // null: thoughts are text
  bool in_reasoning = false;                    // the prompt ends inside the thoughts
  bool harmony = false;  // the answer is messages, whether or not these are told apart
  std::string opening;   // of the answer's first message, as the prompt has it
  std::vector<Tool> tools;
  bool is_held = false;  // a grammar has its calls: none is without its first mark
  // The answer is held to calls: what begins as one is one, even cut short, and nothing is content.
  bool must_call = false;
  int32_t max_calls = INT32_MAX;  // those after it are passed over
};

// Whether answers are messages in channels.
bool is_harmony(const ToolDialect* tools, const ReasoningDialect* reasoning);
// What the prompt has of the answer, for a setup of such a dialect.
std::string_view opening_of(std::string_view prompt);

// `seed` makes the ids of the calls; `setup` must outlive the parser.
std::unique_ptr<OutputParser> make_parser(const ParserSetup& setup, uint64_t seed);

}  // namespace rudder::dialect
