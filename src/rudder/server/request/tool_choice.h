// Reads a chat request's `tool_choice`: whether the model may, must or must not call a tool, and
// which tools it may call. Runs on the tokenise pool.
#pragma once

#include <cstddef>
#include <cstdint>
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

// Of a request with these tools; one without `tool_choice` is free to call those it has. Errors
// stay in `reader`.
ToolChoice read_tool_choice(FieldReader& reader, const std::vector<dialect::Tool>& tools);

}  // namespace rudder::server
