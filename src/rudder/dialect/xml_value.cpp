#include "rudder/dialect/xml_value.h"

#include <optional>
#include <utility>

#include <boost/json.hpp>

#include "rudder/base/json.h"
#include "rudder/dialect/loose_literals.h"

namespace rudder::dialect {
namespace {

// JSON where the text is JSON or what Python calls the same; nothing is null; else a string.
std::string json_of(std::string_view text) {
  const std::string_view value = trimmed(text);
  if (value.empty()) return "null";
  if (parse_json(value, "value")) return std::string(value);
  if (std::optional<std::string> json = parse_python_value(value)) return *std::move(json);
  std::string out;
  append_json_string(out, value);
  return out;
}

// The type of a JSON value that begins with this byte.
ValueTypes type_of(char byte) {
  switch (byte) {
    case '{':
      return kObject;
    case '[':
      return kList;
    case '"':
      return kString;
    case 't':
    case 'f':
      return kBoolean;
    case 'n':
      return kNull;
    default:
      return kNumber;  // or nothing, which the scanner finds out
  }
}

}  // namespace

void XmlValue::begin(ValueTypes types, CallSink& sink) {
  types_ = types;
  kind_ = (types & kString) == 0 ? Kind::kJson : types == kString ? Kind::kText : Kind::kEither;
  text_.clear();
  line_ends_.clear();
  last_line_is_layout_ = true;
  scanner_.reset();
  begun_ = whole_ = false;
  if (kind_ == Kind::kText) sink.arguments("\"");
}

void XmlValue::push(std::string_view text, CallSink& sink) {
  switch (kind_) {
    case Kind::kText:
      return push_text(text, sink);
    case Kind::kJson:
      text_ += text;
      return;
    case Kind::kEither:
      return push_either(text, sink);
  }
}

void XmlValue::push_text(std::string_view text, CallSink& sink) {
  std::string out;
  for (const char byte : text) {
    if (byte == '\n') {
      line_ends_.push_back(byte);
      continue;
    }
    for (size_t i = 0; i < line_ends_.size(); ++i) out += "\\n";
    line_ends_.clear();
    if (byte == '"' || byte == '\\') out.push_back('\\');
    append_string_byte(out, byte);
  }
  sink.arguments(out);
}

bool XmlValue::goes_on(char byte) {
  if ((!begun_ || whole_) && is_blank(byte)) return true;
  if (whole_) return false;
  if (!begun_ && (byte == '"' || (types_ & type_of(byte)) == 0)) return false;
  begun_ = true;
  const JsonScanner::Step step = scanner_.push(byte);
  whole_ = step == JsonScanner::Step::kDone ||
           (step == JsonScanner::Step::kDoneBefore && is_blank(byte));
  return whole_ || step == JsonScanner::Step::kMore;
}

void XmlValue::push_either(std::string_view text, CallSink& sink) {
  for (size_t i = 0; i < text.size(); ++i) {
    text_.push_back(text[i]);
    if (goes_on(text[i])) continue;
    become_text(sink);
    return push_text(text.substr(i + 1), sink);
  }
}

void XmlValue::become_text(CallSink& sink) {
  kind_ = Kind::kText;
  sink.arguments("\"");
  push_text(std::exchange(text_, {}), sink);
}

void XmlValue::end(CallSink& sink) {
  if (kind_ == Kind::kEither) {
    goes_on(' ');  // ends a number
    if (whole_ && parse_json(trimmed(text_), "value")) return sink.arguments(trimmed(text_));
    become_text(sink);
  }
  if (kind_ == Kind::kJson) return sink.arguments(json_of(text_));
  std::string out;
  for (size_t i = last_line_is_layout_ ? 1 : 0; i < line_ends_.size(); ++i) out += "\\n";
  sink.arguments(out + '"');
}

XmlObject::Step XmlObject::push(char byte, CallSink& sink) {
  if (!broken_) {
    std::string text;
    const JsonScanner::Step step = object_.push(byte, &text);
    sink.arguments(text);
    if (step != JsonScanner::Step::kBad) {
      return step == JsonScanner::Step::kDone ? Step::kDone : Step::kMore;
    }
    broken_.emplace();
  }
  mark_ = end_.push(byte, &*broken_);
  if (mark_.empty()) return Step::kMore;
  sink.broken_arguments(*broken_, true);
  return Step::kBroken;
}

void XmlObject::finish(CallSink& sink) {
  if (broken_) sink.broken_arguments(*broken_ + end_.take_held());
}

}  // namespace rudder::dialect
