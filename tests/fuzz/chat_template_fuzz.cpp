// A template renders within its limits, the same text each time, or ends with an error.
#include <boost/json.hpp>

#include "require.h"
#include "rudder/base/json.h"
#include "rudder/base/utf8.h"
#include "rudder/text/chat_template.h"

namespace rudder::fuzz {
namespace {

using text::ChatTemplate;
using text::RenderLimits;

constexpr RenderLimits kRenderLimits = {.max_steps = 20'000,
                                        .max_output_bytes = size_t{64} << 10,
                                        .max_memory_bytes = size_t{1} << 20,
                                        .max_depth = 64};

// A conversation with each role, a call, and tools.
const boost::json::object& conversation() {
  static const boost::json::object context = parse_json(R"json({
    "messages": [
      {"role": "system", "content": "Be brief."},
      {"role": "user", "content": [{"type": "text", "text": "Weather in Orl\u00e9ans?"}]},
      {"role": "assistant", "content": null, "reasoning_content": "look it up", "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "look", "arguments": {"a": 1.5}}}]},
      {"role": "tool", "tool_call_id": "c1", "content": "{\"t\": 20}"},
      {"role": "user", "content": " thanks <|im_end|> "}],
    "tools": [{"type": "function", "function": {"name": "look", "description": "d",
      "parameters": {"type": "object", "properties": {"a": {"type": "number"}}}}}],
    "add_generation_prompt": true, "bos_token": "<s>", "eos_token": "</s>", "enable_thinking": false
  })json",
                                                        "context")
                                                 ->as_object();
  return context;
}

}  // namespace

void fuzz_chat_template(std::string_view input) {
  const CpuBound bound(10);
  const auto parsed = ChatTemplate::parse(input);
  if (!parsed) {
    return require_error(parsed.error(), {ErrorCode::kUnsupported, ErrorCode::kInvalidArgument,
                                          ErrorCode::kCorruptFile, ErrorCode::kTooLarge});
  }
  const std::chrono::system_clock::time_point now{std::chrono::seconds(1'700'000'000)};
  const auto rendered = parsed->render(conversation(), kRenderLimits, now);
  const auto again = parsed->render(conversation(), kRenderLimits, now);
  RUDDER_CHECK(rendered.has_value() == again.has_value());
  if (!rendered) {
    return require_error(rendered.error(), {ErrorCode::kUnsupported, ErrorCode::kInvalidArgument,
                                            ErrorCode::kTooLarge});
  }
  RUDDER_CHECK(*rendered == *again, "two renders differ");
  RUDDER_CHECK(rendered->size() <= kRenderLimits.max_output_bytes, "{} bytes", rendered->size());
  RUDDER_CHECK(!find_invalid_utf8(*rendered), "the text is not UTF-8");
}

}  // namespace rudder::fuzz
