// Calls as Qwen3-Coder writes them:
//   <function=name> <parameter=key> value </parameter> ... </function>
// or as JSON, which models of the same family mix in, whole or as the arguments of a function.
// Values are raw text; the tool's schema decides their JSON type. A mark that the model forgets is
// assumed where the next mark comes.
#include <optional>
#include <string>
#include <utility>

#include <boost/json.hpp>

#include "rudder/base/json.h"
#include "rudder/dialect/call_reader.h"
#include "rudder/dialect/json_scanner.h"
#include "rudder/dialect/loose_literals.h"
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
  if (parse_json(value, "value")) return std::string(value);
  if (std::optional<std::string> json = parse_python_value(value)) return *std::move(json);
  std::string out;
  append_json_string(out, value);
  return out;
}

class XmlReader final : public CallReader {
 public:
  XmlReader(const ToolDialect& dialect, bool in_name)
      : dialect_(dialect),
        state_(in_name ? State::kName : State::kStart),
        value_end_({kParameterClose, kParameterOpen, kFunctionClose, dialect.end}),
        object_end_({kFunctionClose, dialect.end}) {}

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
    kValueOrAfter,  // behind a function's end inside a value, which may be text
    kObject,        // arguments as JSON
    kBrokenObject,  // and no JSON after all
    kAfter,
  };

  Step start(char byte, CallSink& sink);
  Step function_mark(char byte);
  Step name(char byte, CallSink& sink);
  Step tag(char byte, CallSink& sink);
  Step key(char byte, CallSink& sink);
  Step value(char byte, CallSink& sink);
  Step value_or_after(char byte, CallSink& sink);
  Step object(char byte, CallSink& sink);
  Step broken_object(char byte, CallSink& sink);
  Step after(char byte);
  void say(std::string_view text, CallSink& sink);
  void end_value(CallSink& sink);
  void close(CallSink& sink) {
    if (!has_object_) sink.arguments(num_values_ == 0 ? "{}" : "}");
  }
  void begin_name() {
    name_.clear();
    has_object_ = false;
    state_ = State::kName;
  }

  const ToolDialect& dialect_;
  State state_;
  std::unique_ptr<CallReader> json_;
  std::string name_;
  std::string tag_;
  std::string key_;
  std::string value_;      // of an argument that is no text
  std::string line_ends_;  // of a text, held back: the last one is layout
  MarkFinder value_end_;
  MarkFinder object_end_;
  JsonScanner scanner_;
  std::string broken_;       // of an object, from where it is no JSON
  bool has_object_ = false;  // the arguments came as one object
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
  if (tag_ == kFunctionOpen) begin_name();
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
  if (tag_ == kParameterOpen && !has_object_) {
    key_.clear();
    state_ = State::kKey;
    return Step::kTaken;
  }
  if (tag_ == kParameterClose) {  // once too often
    state_ = State::kBetween;
    return Step::kTaken;
  }
  for (const std::string_view mark :
       {kFunctionClose, kParameterOpen, kParameterClose, kFunctionOpen, dialect_.end}) {
    if (mark.starts_with(tag_) && mark != tag_) return Step::kMore;
  }
  close(sink);  // the call ends without saying so
  if (tag_ == dialect_.end) return Step::kEnd;
  if (tag_ != kFunctionOpen) return Step::kStray;
  begin_name();
  return Step::kMore;
}

CallReader::Step XmlReader::key(char byte, CallSink& sink) {
  const std::string_view key = trimmed(key_);
  const bool ends_unsaid = byte == '\n' && !key.empty();
  if (byte != '>' && !ends_unsaid) {
    if (key_.size() < kMaxNameBytes) key_.push_back(byte);
    return Step::kTaken;
  }
  std::string text = num_values_++ == 0 ? "{" : ", ";
  append_json_string(text, key);
  text += ": ";
  is_text_ = sink.takes_text(name_, key);
  if (is_text_) text.push_back('"');
  sink.arguments(text);
  value_.clear();
  line_ends_.clear();
  state_ = ends_unsaid ? State::kValue : State::kValueStart;
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
  const std::string_view mark = value_end_.push(byte, &text);
  say(text, sink);
  if (mark.empty()) return Step::kTaken;
  if (mark == kFunctionClose) {
    tag_.clear();
    state_ = State::kValueOrAfter;
    return Step::kTaken;
  }
  end_value(sink);
  if (mark == dialect_.end) {
    close(sink);
    return Step::kEnd;
  }
  key_.clear();
  state_ = mark == kParameterOpen ? State::kKey : State::kBetween;
  return Step::kTaken;
}

// The end of a function inside a value ends both if the next call, the end of all calls or the end
// of the answer follows. Else it is text of the value: code has such words.
CallReader::Step XmlReader::value_or_after(char byte, CallSink& sink) {
  tag_.push_back(byte);
  const std::string_view behind = trimmed(tag_);
  if (behind.empty()) return Step::kTaken;
  if (behind == kFunctionOpen || behind == dialect_.end) {
    end_value(sink);
    close(sink);
    if (behind == dialect_.end) return Step::kEnd;
    begin_name();
    return Step::kTaken;
  }
  if (kFunctionOpen.starts_with(behind) || dialect_.end.starts_with(behind)) return Step::kTaken;
  say(kFunctionClose, sink);
  state_ = State::kValue;
  // Less than a mark, and so nothing that ends the value.
  for (const char again : std::exchange(tag_, {})) value(again, sink);
  return Step::kTaken;
}

CallReader::Step XmlReader::object(char byte, CallSink& sink) {
  std::string text;
  if (scanner_.in_string()) {
    append_string_byte(text, byte);
  } else {
    text.push_back(byte);
  }
  const JsonScanner::Step step = scanner_.push(byte);
  if (step == JsonScanner::Step::kBad) {
    state_ = State::kBrokenObject;
    broken_.clear();
    return broken_object(byte, sink);
  }
  sink.arguments(text);
  if (step == JsonScanner::Step::kDone) state_ = State::kBetween;
  return Step::kTaken;
}

CallReader::Step XmlReader::broken_object(char byte, CallSink& sink) {
  const std::string_view mark = object_end_.push(byte, &broken_);
  if (mark.empty()) return Step::kTaken;
  sink.broken_arguments(broken_);
  tag_.clear();
  state_ = State::kAfter;
  return mark == dialect_.end ? Step::kEnd : Step::kTaken;
}

CallReader::Step XmlReader::after(char byte) {
  if (tag_.empty() && is_blank(byte)) return Step::kTaken;
  tag_.push_back(byte);
  if (tag_ == dialect_.end) return Step::kEnd;
  if (tag_ == kFunctionOpen) {
    begin_name();
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
      if (byte == '{' && num_values_ == 0 && !has_object_) {
        has_object_ = true;
        scanner_.reset();
        state_ = State::kObject;
        return object(byte, sink);
      }
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
    case State::kValueOrAfter:
      return value_or_after(byte, sink);
    case State::kObject:
      return object(byte, sink);
    case State::kBrokenObject:
      return broken_object(byte, sink);
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
    case State::kValueOrAfter:
      end_value(sink);
      close(sink);
      return false;
    case State::kBrokenObject:
      sink.broken_arguments(broken_ + object_end_.take_held());
      return false;
    case State::kObject:
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
