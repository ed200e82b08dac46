#include "rudder/dialect/xml_marks.h"

#include "rudder/dialect/json_scanner.h"

namespace rudder::dialect {

std::string_view bare_name(std::string_view text) {
  text = trimmed(text);
  const bool is_quoted = text.size() > 2 && (text.front() == '"' || text.front() == '\'') &&
                         text.back() == text.front();
  return is_quoted ? text.substr(1, text.size() - 2) : text;
}

namespace {

std::string_view unquoted_begin(std::string_view name) {
  if (name.starts_with('"') || name.starts_with('\'')) name.remove_prefix(1);
  return name;
}

}  // namespace

NextCall next_call(std::string_view text, std::string_view begin, const XmlMarks& xml,
                   const CallSink& sink) {
  using Is = NextCall::Is;
  constexpr size_t kMaxBytes = 2 * kMaxNameBytes;
  if (text.size() > kMaxBytes) return {Is::kText, {}};
  bool is_marked = false;
  while (true) {
    while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
    if (begin.empty() || !text.starts_with(begin)) break;
    text.remove_prefix(begin.size());
    is_marked = true;
  }
  if (begin.starts_with(text) || (!xml.call.empty() && xml.call.starts_with(text))) return {};
  if (is_marked && text.front() == '{') return {Is::kJson, text};
  const bool is_name = xml.call.empty() ? is_marked : text.starts_with(xml.call);
  if (!is_name) return {Is::kText, text};
  const std::string_view behind = text.substr(xml.call.size());
  const size_t end = behind.find_first_of(xml.call.empty() ? "\n<" : ">");
  const std::string_view name = bare_name(behind.substr(0, end));
  if (end != std::string_view::npos && sink.knows(name)) return {Is::kCall, name};
  if (end == std::string_view::npos && sink.knows_beginning(unquoted_begin(name))) return {};
  return {Is::kText, behind};
}

}  // namespace rudder::dialect
