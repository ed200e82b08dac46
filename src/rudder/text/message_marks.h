// Message marks: how it is found out which part of a rendered chat prompt shows which message. The
// contents are put between characters that no text contains, the template is rendered again, and
// the answer counts only when the marked prompt without its marks is the prompt. Internal to the
// room; see ChatPrompt::find_messages.
#pragma once

#include <array>
#include <boost/json/fwd.hpp>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "rudder/base/result.h"

namespace rudder::text {

// The names that templates have for an assistant's thoughts. Where a message has several, the first
// counts.
inline constexpr std::array<std::string_view, 3> kThoughtNames = {"reasoning_content", "reasoning",
                                                                  "thinking"};

// A stretch of a rendered prompt, in bytes, and the message whose text it is.
struct MessageSpan {
  int32_t message = 0;
  bool is_reasoning = false;  // of an assistant's message: its thoughts, not its answer
  size_t begin = 0;
  size_t end = 0;
};

class MessageMarks {
 public:
  // Marks the contents of `messages` in place: strings, text parts, an assistant's
  // thoughts under each of their names, and the two sides of "</think>" inside an assistant's
  // content. Blanks at either end stay outside, so that a template may trim them. kUnsupported when
  // a message has characters of the plane that the marks are from.
  Result<void> add(boost::json::array& messages);

  // The spans of the messages in `prompt`, ascending. `marked` is the render of the marked
  // messages; it may go on after `prompt` ends. kUnsupported when the template looks into contents
  // or changes them, so that the two renders differ.
  Result<std::vector<MessageSpan>> find(std::string_view marked, std::string_view prompt) const;

 private:
  struct Mark {
    int32_t message = 0;
    bool is_reasoning = false;
  };
  Result<void> mark(std::string_view text, const Mark& mark, std::string& out);
  Result<std::string> mark_answer(std::string_view text, int32_t message);

  std::vector<Mark> marks_;  // the i-th has the i-th pair of characters
};

}  // namespace rudder::text
