// Shared by the tests of this room: parses an answer and joins its deltas.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "rudder/dialect/dialect.h"

namespace rudder::dialect {

struct Parsed {
  std::string content;
  std::string reasoning;
  std::vector<ToolCallDelta> calls;

  void add(const Delta& delta) {
    content += delta.content;
    reasoning += delta.reasoning;
    for (const ToolCallDelta& call : delta.tool_calls) {
      if (static_cast<size_t>(call.index) == calls.size()) {
        calls.push_back(call);
      } else {
        calls.at(static_cast<size_t>(call.index)).arguments += call.arguments;
      }
    }
  }
  // One line, for comparisons: content|reasoning|name(arguments)...
  std::string line() const {
    std::string out = content + "|" + reasoning;
    for (const ToolCallDelta& call : calls) out += "|" + call.name + "(" + call.arguments + ")";
    return out;
  }
};

inline Parsed parse_pieces(const ParserSetup& setup, const std::vector<std::string>& pieces,
                           Ending ending = Ending::kWhole) {
  Parsed parsed;
  const auto parser = make_parser(setup, 1);
  for (const std::string& piece : pieces) parsed.add(parser->push(piece));
  parsed.add(parser->finish(ending));
  return parsed;
}

inline ParserSetup setup_of(std::string_view calls, std::string_view reasoning = "") {
  ParserSetup setup;
  if (!calls.empty()) setup.calls = *find_tool_dialect(calls);
  if (!reasoning.empty()) setup.reasoning = *find_reasoning_dialect(reasoning);
  setup.tools = {{"f", {{"n", kNumber}, {"list", kList}, {"s", kString}}},
                 {"get_weather", {{"days", kNumber}}}};
  return setup;
}

// Of the text whole, and byte by byte: they must be the same.
inline std::string parse_line(const ParserSetup& setup, std::string_view text,
                              Ending ending = Ending::kWhole) {
  std::vector<std::string> bytes;
  for (const char byte : text) bytes.emplace_back(1, byte);
  const std::string whole = parse_pieces(setup, {std::string(text)}, ending).line();
  const std::string pieces = parse_pieces(setup, bytes, ending).line();
  return whole == pieces ? whole : whole + " BUT BYTE BY BYTE " + pieces;
}

}  // namespace rudder::dialect
