// OutputParser: separates a model's text into content, reasoning and tool calls, as its dialect
// writes them. Each choice has one, on its connection's I/O thread. The joined deltas are the same
// for every way to cut the text into pushes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace rudder::dialect {

// A piece of one call. The first delta of a call has its id and name; the arguments of all its
// deltas, joined, are the JSON text of its arguments.
struct ToolCallDelta {
  int32_t index = 0;  // of the call in the answer
  std::string id;
  std::string name;
  std::string arguments;
};

struct Delta {
  std::string content;
  std::string reasoning;
  std::vector<ToolCallDelta> tool_calls;

  bool empty() const { return content.empty() && reasoning.empty() && tool_calls.empty(); }
  // What came after it; pieces of one call become one.
  void append(Delta&& more);
};

// How an answer ends: the model ended it, or it was cut off where it stood.
enum class Ending : uint8_t { kWhole, kCutOff };

class OutputParser {
 public:
  virtual ~OutputParser() = default;

  // Returns what is certain after this text; holds back bytes that may begin a mark.
  virtual Delta push(std::string_view text) = 0;
  // Returns the bytes held back at the end of the answer. Malformed calls become content; nothing
  // is lost.
  virtual Delta finish(Ending ending) = 0;
  // Whether the next text belongs to the thoughts, as far as is known.
  virtual bool thinking() const = 0;
};

}  // namespace rudder::dialect
