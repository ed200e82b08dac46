// ChatTemplate: Jinja2 as chat templates use it, parsed once at load and rendered for each request,
// with the environment Hugging Face gives them (trim_blocks, lstrip_blocks, loop controls,
// raise_exception, strftime_now, tojson, generation blocks). It reaches no host object, file or
// import. Every render is bounded in steps, depth, memory and output. docs/contracts/text.md says
// what is left out.
// Parsed by the loader, rendered by the tokenise pool. Immutable: safe from any thread.
#pragma once

#include <boost/json/fwd.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "rudder/base/result.h"

namespace rudder::text {

struct RenderLimits {
  uint64_t max_steps = 2'000'000;              // nodes evaluated, loop turns, bytes copied / 64
  size_t max_output_bytes = size_t{16} << 20;  // of the rendered text
  size_t max_memory_bytes = size_t{32} << 20;  // of values at a time; twice that with scratch
  int max_depth = 64;                          // macro calls inside one another
};

inline constexpr size_t kMaxSourceBytes = size_t{1} << 20;  // of a template's source

class ChatTemplate {
 public:
  // kUnsupported (names the construct), kInvalidArgument (syntax, with the line in `where`),
  // kCorruptFile (not UTF-8) or kTooLarge.
  static Result<ChatTemplate> parse(std::string_view source);
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  // `context` is the global scope. kInvalidArgument for raise_exception (its message) and for
  // errors of the template on this input; kTooLarge when a limit is passed, naming it;
  // kUnsupported for what Python would render and we do not. `now` is what strftime_now shows, in
  // UTC.
  Result<std::string> render(
      const boost::json::object& context, const RenderLimits& limits = {},
      std::chrono::system_clock::time_point now = std::chrono::system_clock::now()) const;

  // True if some loop of the template runs over a message's `content`; otherwise it wants a string.
  // What the loop is for, and for whose messages, is another question (content_parts.h).
  bool loops_over_content() const;
  // True if the template has this word as a string or as the name of an attribute: a role that it
  // compares with ("developer"), a field that it reads ("thinking").
  bool knows_word(std::string_view word) const;
  // True if the template reads this global ("tools", "enable_thinking").
  bool reads_global(std::string_view name) const;

 private:
  struct Impl;
  explicit ChatTemplate(std::unique_ptr<const Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

}  // namespace rudder::text
