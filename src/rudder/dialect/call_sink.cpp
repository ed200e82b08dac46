#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "rudder/base/json.h"
#include "rudder/dialect/call_reader.h"
#include "rudder/dialect/json_scanner.h"
#include "rudder/dialect/loose_literals.h"

namespace rudder::dialect {
namespace {

// SplitMix64 (Steele, Lea, Flood, 2014): ids tell calls apart, they guard nothing.
uint64_t next_random(uint64_t& state) {
  state += 0x9E3779B97F4A7C15;
  uint64_t mixed = state;
  mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9;
  mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB;
  return mixed ^ mixed >> 31;
}

// The brackets that make JSON of a text; none where it lacks something else, or nothing.
std::string missing_brackets(const std::string& text) {
  std::string open;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char byte = text[i];
    if (in_string) {
      if (byte == '\\') ++i;
      in_string = byte != '"';
    } else if (byte == '"') {
      in_string = true;
    } else if (byte == '{' || byte == '[') {
      open.push_back(byte == '{' ? '}' : ']');
    } else if (byte == '}' || byte == ']') {
      if (open.empty() || open.back() != byte) return {};
      open.pop_back();
    }
  }
  std::reverse(open.begin(), open.end());
  return open.empty() || !parse_json(text + open, "arguments") ? std::string() : open;
}

}  // namespace

void Delta::append(Delta&& more) {
  content += more.content;
  reasoning += more.reasoning;
  for (ToolCallDelta& call : more.tool_calls) {
    if (!tool_calls.empty() && tool_calls.back().index == call.index) {
      tool_calls.back().arguments += call.arguments;
    } else {
      tool_calls.push_back(std::move(call));
    }
  }
}

std::string CallSink::make_id(std::string_view name) {
  if (setup_.calls->ids == IdStyle::kKimi) {
    return fmt::format("functions.{}:{}", name, num_calls_ - 1);
  }
  if (setup_.calls->ids == IdStyle::kOpenAi) {
    const uint64_t high = next_random(seed_);
    return fmt::format("chatcmpl-tool-{:016x}{:016x}", high, next_random(seed_));
  }
  constexpr std::string_view kLetters =
      "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  constexpr size_t kMistralLength = 9;
  std::string id;
  uint64_t random = next_random(seed_);
  while (id.size() < kMistralLength) {
    id.push_back(kLetters[random % kLetters.size()]);
    random /= kLetters.size();
  }
  return id;
}

void CallSink::begin(std::string_view name) {
  constexpr std::string_view kNamespace =
      "functions.";  // of Kimi K2 and Harmony; others write it too
  if (name.starts_with(kNamespace) && !knows(name) && knows(name.substr(kNamespace.size()))) {
    name.remove_prefix(kNamespace.size());
  }
  told_.clear();
  if (num_calls_++ >= setup_.max_calls) return;
  ToolCallDelta call;
  call.index = num_calls_ - 1;
  call.id = make_id(name);
  call.name = name;
  delta_->tool_calls.push_back(std::move(call));
}

void CallSink::arguments(std::string_view text) {
  if (text.empty() || num_calls_ > setup_.max_calls) return;
  std::vector<ToolCallDelta>& calls = delta_->tool_calls;
  if (calls.empty() || calls.back().index != num_calls_ - 1) {
    calls.emplace_back().index = num_calls_ - 1;
  }
  calls.back().arguments += text;
  told_ += text;
}

void CallSink::broken_arguments(std::string_view rest, bool has_ended) {
  if (has_ended) {
    const std::string_view text = trimmed(rest);
    const std::string brackets = missing_brackets(told_ + std::string(text));
    if (!brackets.empty()) {
      arguments(text);
      return arguments(brackets);
    }
  }
  const std::optional<std::string> json = parse_python_object(told_ + std::string(rest));
  const bool goes_on = json && json->starts_with(told_);  // what has been told stays told
  arguments(goes_on ? std::string_view(*json).substr(told_.size()) : rest);
}

bool CallSink::knows(std::string_view name) const {
  return std::any_of(setup_.tools.begin(), setup_.tools.end(),
                     [&](const Tool& tool) { return tool.name == name; });
}

bool CallSink::knows_beginning(std::string_view name) const {
  return std::ranges::any_of(setup_.tools,
                             [&](const Tool& tool) { return tool.name.starts_with(name); });
}

ValueTypes CallSink::types_of(std::string_view tool, std::string_view argument) const {
  const auto known = std::ranges::find(setup_.tools, tool, &Tool::name);
  if (known == setup_.tools.end()) return kString;
  const auto found = std::ranges::find(known->arguments, argument, &Argument::name);
  return found == known->arguments.end() ? known->other_arguments : found->types;
}

bool CallSink::may_have(std::string_view tool, std::string_view argument) const {
  const auto known = std::ranges::find(setup_.tools, tool, &Tool::name);
  if (known == setup_.tools.end() || known->arguments.empty()) return true;
  return std::ranges::find(known->arguments, argument, &Argument::name) != known->arguments.end();
}

}  // namespace rudder::dialect
