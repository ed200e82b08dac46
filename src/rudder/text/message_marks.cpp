#include "rudder/text/message_marks.h"

#include <boost/json.hpp>
#include <optional>

#include "rudder/base/utf8.h"

namespace rudder::text {
namespace {

namespace json = boost::json;

// Plane 15, for private use: 32,767 pairs of an opening and a closing character.
constexpr char32_t kFirstMark = 0xF0000;
constexpr size_t kMaxMarks = 0x7FFF;
constexpr size_t kMarkBytes = 4;

// The number of the mark at text[at], or none.
std::optional<uint32_t> mark_at(std::string_view text, size_t at) {
  if (text.size() - at < kMarkBytes) return std::nullopt;
  const auto byte = [&](size_t i) {
    return static_cast<uint32_t>(static_cast<uint8_t>(text[at + i]));
  };
  if (byte(0) != 0xF3 || byte(1) < 0xB0) return std::nullopt;
  const uint32_t c = ((byte(0) & 7U) << 18U) | ((byte(1) & 63U) << 12U) | ((byte(2) & 63U) << 6U) |
                     (byte(3) & 63U);
  return c - kFirstMark;
}

bool has_marks(std::string_view text) {
  for (size_t at = text.find('\xF3'); at != std::string_view::npos;
       at = text.find('\xF3', at + 1)) {
    if (mark_at(text, at)) return true;
  }
  return false;
}

tl::unexpected<Error> unknown(std::string message) {
  return fail(ErrorCode::kUnsupported, std::move(message), "messages");
}

}  // namespace

Result<void> MessageMarks::mark(std::string_view text, const Mark& mark, std::string& out) {
  constexpr std::string_view kBlanks = " \t\n\v\f\r";
  const size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) {
    out += text;
    return {};
  }
  const size_t end = text.find_last_not_of(kBlanks) + 1;
  if (has_marks(text)) return unknown("a message has characters of a plane for private use");
  if (marks_.size() == kMaxMarks) return unknown("too many messages to tell their roles apart");
  const auto opening = static_cast<char32_t>(kFirstMark + 2 * marks_.size());
  marks_.push_back(mark);
  out += text.substr(0, begin);
  append_utf8(out, opening);
  out += text.substr(begin, end - begin);
  append_utf8(out, opening + 1);
  out += text.substr(end);
  return {};
}

// "<think>thoughts</think>answer", or "thoughts</think>answer" where the template wrote the tag.
Result<std::string> MessageMarks::mark_answer(std::string_view text, int32_t message) {
  constexpr std::string_view kOpen = "<think>";
  constexpr std::string_view kClose = "</think>";
  std::string out;
  const size_t close = text.find(kClose);
  if (close == std::string_view::npos) {
    RUDDER_TRY_VOID(mark(text, {message, false}, out));
    return out;
  }
  const size_t open = text.substr(0, close).find(kOpen);
  const size_t thoughts = open == std::string_view::npos ? 0 : open + kOpen.size();
  out += text.substr(0, thoughts);
  RUDDER_TRY_VOID(mark(text.substr(thoughts, close - thoughts), {message, true}, out));
  out += kClose;
  RUDDER_TRY_VOID(mark(text.substr(close + kClose.size()), {message, false}, out));
  return out;
}

Result<void> MessageMarks::add(json::array& messages) {
  for (size_t i = 0; i < messages.size(); ++i) {
    json::object& message = messages[i].get_object();
    const auto index = static_cast<int32_t>(i);
    const bool is_answer = message.at("role").get_string() == "assistant";
    const auto replace = [&](json::value& value, bool is_reasoning) -> Result<void> {
      const std::string_view text = value.get_string();
      std::string marked;
      if (is_answer && !is_reasoning) {
        RUDDER_TRY(marked, mark_answer(text, index));
      } else {
        RUDDER_TRY_VOID(mark(text, {index, is_reasoning}, marked));
      }
      value = marked;
      return {};
    };
    if (json::value* content = message.if_contains("content")) {
      if (content->is_string()) RUDDER_TRY_VOID(replace(*content, false));
      if (content->is_array()) {
        for (json::value& part : content->get_array()) {
          RUDDER_TRY_VOID(replace(part.get_object().at("text"), false));
        }
      }
    }
    for (const std::string_view name : kThoughtNames) {
      json::value* thoughts = message.if_contains(name);
      if (thoughts != nullptr && thoughts->is_string()) RUDDER_TRY_VOID(replace(*thoughts, true));
    }
  }
  return {};
}

Result<std::vector<MessageSpan>> MessageMarks::find(std::string_view marked,
                                                    std::string_view prompt) const {
  const auto differs = [] {
    return unknown("the chat template changes what messages say, so that roles cannot be told");
  };
  std::vector<MessageSpan> spans;
  std::optional<uint32_t> open;  // the mark that was opened and not closed
  size_t at = 0;                 // in the prompt
  size_t begin = 0;
  for (size_t i = 0; i < marked.size();) {
    const std::optional<uint32_t> mark = mark_at(marked, i);
    if (!mark) {
      if (at < prompt.size() && marked[i] != prompt[at]) return differs();
      ++at;
      ++i;
      continue;
    }
    i += kMarkBytes;
    if (*mark % 2 == 0 ? open.has_value() : open != *mark - 1) return differs();
    if (*mark % 2 == 0) {
      open = mark;
      begin = at;
      continue;
    }
    open.reset();
    if (*mark / 2 >= marks_.size()) return differs();
    const Mark& of = marks_[*mark / 2];
    const size_t end = std::min(at, prompt.size());
    if (begin < end) spans.push_back({of.message, of.is_reasoning, begin, end});
  }
  if (open || at < prompt.size()) return differs();
  return spans;
}

}  // namespace rudder::text
