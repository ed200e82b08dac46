// Calls as Qwen3-Coder writes them:
//   <function=name> <parameter=key> value </parameter> ... </function>
// or as JSON, which models of the same family mix in. Values are raw text; what they are in JSON is
// told by the tool's schema.
#include <string>
#include <utility>

#include <boost/json.hpp>

#include "rudder/base/json.h"
#include "rudder/dialect/call_reader.h"
#include "rudder/dialect/json_scanner.h"
#include "rudder/dialect/mark_finder.h"

namespace rudder::dialect {
namespace {

constexpr std::string_view kFunctionOpen = "<function=";
constexpr std::string_view kParameterOpen = "<parameter=";
constexpr std::string_view kParameterClose = "</parameter>";
constexpr std::string_view kFunctionClose = "</function>";

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  return text;
}

// JSON where the text is JSON or what Python calls the same; else a string.
std::string json_of(std::string_view text) {
  const std::string_view value = trimmed(text);
  if (value == "True") return "true";
  if (value == "False") return "false";
  if (value == "None") return "null";
  if (parse_json(value, "value")) return std::string(value);
  std::string out;
  append_json_string(out, value);
  return out;
}

class XmlReader final : public CallReader {
 public:
  XmlReader(const ToolDialect& dialect, bool in_name)
      : dialect_(dialect), state_(in_name ? State::kName : State::kStart) {}

  Step push(char byte, CallSink& sink) override;
  bool finish(CallSink& sink) override;

 private:
  enum class State : uint8_t {
    kStart,
    kJson,
    kFunction,  // in the mark before a name
    kName,
    kBetween,  // a parameter or the function's end must come
    kTag,
    kKey,
    kValueStart,
    kValue,
    kAfter,
  };

  Step start(char byte, CallSink& sink);
  Step function_mark(char byte);
  Step name(char byte, CallSink& sink);
  Step tag(char byte, CallSink& sink);
  Step key(char byte, CallSink& sink);
  Step value(char byte, CallSink& sink);
  Step after(char byte);
  void say(std::string_view text, CallSink& sink);
  void end_value(CallSink& sink);
  void close(CallSink& sink) { sink.arguments(num_values_ == 0 ? "{}" : "}"); }

  const ToolDialect& dialect_;
  State state_;
  std::unique_ptr<CallReader> json_;
  std::string name_;
  std::string tag_;
  std::string key_;
  std::string value_;      // of an argument that is no text
  std::string line_ends_;  // of a text, held back: the last one is layout
  MarkFinder value_end_{{kParameterClose}};
  bool is_text_ = false;
  int32_t num_values_ = 0;
};

CallReader::Step XmlReader::start(char byte, CallSink& sink) {
  if (is_blank(byte)) return Step::kMore;
  if (byte == '{' || byte == '[') {
    json_ = make_json_reader(dialect_, false);
    state_ = State::kJson;
    return json_->push(byte, sink);
  }
  tag_.clear();
  state_ = State::kFunction;
  return function_mark(byte);
}

CallReader::Step XmlReader::function_mark(char byte) {
  tag_.push_back(byte);
  if (!kFunctionOpen.starts_with(tag_)) return Step::kStray;
  if (tag_ == kFunctionOpen) {
    name_.clear();
    state_ = State::kName;
  }
  return Step::kMore;
}

CallReader::Step XmlReader::name(char byte, CallSink& sink) {
  if (byte != '>') {
    if (byte == '<' || byte == '\n' || name_.size() == kMaxNameBytes) return Step::kStray;
    name_.push_back(byte);
    return Step::kMore;
  }
  name_ = std::string(trimmed(name_));
  if (name_.empty()) return Step::kStray;
  sink.begin(name_);
  num_values_ = 0;
  state_ = State::kBetween;
  return Step::kTaken;
}

CallReader::Step XmlReader::tag(char byte, CallSink& sink) {
  tag_.push_back(byte);
  if (tag_ == kFunctionClose) {
    close(sink);
    tag_.clear();
    state_ = State::kAfter;
    return Step::kTaken;
  }
  if (tag_ == kParameterOpen) {
    key_.clear();
    state_ = State::kKey;
    return Step::kTaken;
  }
  if (kFunctionClose.starts_with(tag_) || kParameterOpen.starts_with(tag_)) return Step::kMore;
  close(sink);  // the call ends without saying so
  return Step::kStray;
}

CallReader::Step XmlReader::key(char byte, CallSink& sink) {
  if (byte != '>') {
    if (key_.size() < kMaxNameBytes) key_.push_back(byte);
    return Step::kTaken;
  }
  const std::string_view key = trimmed(key_);
  std::string text = num_values_++ == 0 ? "{" : ", ";
  append_json_string(text, key);
  text += ": ";
  is_text_ = sink.takes_text(name_, key);
  if (is_text_) text.push_back('"');
  sink.arguments(text);
  value_.clear();
  line_ends_.clear();
  state_ = State::kValueStart;
  return Step::kTaken;
}

void XmlReader::say(std::string_view text, CallSink& sink) {
  if (!is_text_) {
    value_ += text;
    return;
  }
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

void XmlReader::end_value(CallSink& sink) {
  if (!is_text_) return sink.arguments(json_of(value_));
  std::string out;
  for (size_t i = 1; i < line_ends_.size(); ++i) out += "\\n";
  sink.arguments(out + '"');
}

CallReader::Step XmlReader::value(char byte, CallSink& sink) {
  std::string text;
  const bool ended = !value_end_.push(byte, &text).empty();
  say(text, sink);
  if (ended) {
    end_value(sink);
    tag_.clear();
    state_ = State::kBetween;
  }
  return Step::kTaken;
}

CallReader::Step XmlReader::after(char byte) {
  if (tag_.empty() && is_blank(byte)) return Step::kTaken;
  tag_.push_back(byte);
  if (tag_ == dialect_.end) return Step::kEnd;
  if (tag_ == kFunctionOpen) {
    name_.clear();
    state_ = State::kName;
    return Step::kMore;
  }
  const bool may_go_on = dialect_.end.starts_with(tag_) || kFunctionOpen.starts_with(tag_);
  return may_go_on ? Step::kMore : Step::kStray;
}

CallReader::Step XmlReader::push(char byte, CallSink& sink) {
  switch (state_) {
    case State::kStart:
      return start(byte, sink);
    case State::kJson:
      return json_->push(byte, sink);
    case State::kFunction:
      return function_mark(byte);
    case State::kName:
      return name(byte, sink);
    case State::kBetween:
      if (is_blank(byte)) return Step::kTaken;
      tag_.clear();
      state_ = State::kTag;
      return tag(byte, sink);
    case State::kTag:
      return tag(byte, sink);
    case State::kKey:
      return key(byte, sink);
    case State::kValueStart:
      state_ = State::kValue;
      return byte == '\n' ? Step::kTaken : value(byte, sink);
    case State::kValue:
      return value(byte, sink);
    case State::kAfter:
      return after(byte);
  }
  return Step::kStray;
}

bool XmlReader::finish(CallSink& sink) {
  switch (state_) {
    case State::kJson:
      return json_->finish(sink);
    case State::kBetween:
    case State::kTag:
      close(sink);
      return false;
    case State::kKey:
    case State::kValueStart:
    case State::kValue:  // cut off: so are the arguments
    case State::kAfter:
      return false;
    default:
      return true;
  }
}

}  // namespace

std::unique_ptr<CallReader> make_xml_reader(const ToolDialect& dialect, bool in_name) {
  return std::make_unique<XmlReader>(dialect, in_name);
}

}  // namespace rudder::dialect
