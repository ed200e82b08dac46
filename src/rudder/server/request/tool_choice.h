// Reads a chat request's `tool_choice`: whether the model may, must or must not call a tool, and
// which tools it may call. Runs on the tokenise pool.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rudder/dialect/dialect.h"
#include "rudder/server/request/field_reader.h"

namespace rudder::server {

inline constexpr size_t kMaxToolNameBytes = 256;

struct ToolChoice {
  enum class Mode : uint8_t { kNone, kAuto, kRequired };

  Mode mode = Mode::kNone;
  std::vector<std::string> allowed;  // these tools alone may be called; empty: every tool
  bool is_single = false;            // one call, however many may come otherwise

  bool may_call(std::string_view tool) const;
};

// How an API writes the choice of a tool.
struct ChoiceForm {
  std::span<const std::string_view> types;  // of tools
  std::string_view
      list_field;  // the object that has the list of allowed ones; "": the choice itself
  std::string_view name_field;  // of a tool, for errors
  // The name of the function that this object chooses. An error stays in `choice`.
  std::string (*read_name)(FieldReader& choice);
};

// `tool_choice` in chat's words, of a request with these tools; one without it is free to call
// those it has. Errors stay in `reader`.
ToolChoice read_tool_choice(FieldReader& reader, const std::vector<dialect::Tool>& tools,
                            const ChoiceForm& form);
// The same in chat's form.
ToolChoice read_tool_choice(FieldReader& reader, const std::vector<dialect::Tool>& tools);

bool has_tool(const std::vector<dialect::Tool>& tools, std::string_view name);

}  // namespace rudder::server
