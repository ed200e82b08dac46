// Calls as Qwen3-Coder writes them:
//   <function=name> <parameter=key> value </parameter> ... </function>
// or in the same form with other marks, as MiniMax M2; or with the name alone, as GLM 4.5:
//   name <arg_key>key</arg_key> <arg_value>value</arg_value> ...
// or as JSON, which models of these families mix in, whole or as the arguments of a function.
// Values are raw text; the tool's schema decides their JSON type (xml_value.h). A mark that the
// model forgets is assumed where the next mark comes. A value may contain the same marks as text:
// code has such words. A mark ends it if what follows is what follows a value, and where that is
// not certain, if no later mark does.
#include "rudder/dialect/xml_reader.h"

#include <algorithm>
#include <string>
#include <utility>

#include "rudder/base/json.h"
#include "rudder/dialect/json_scanner.h"

namespace rudder::dialect {
namespace internal {

CallReader::Step XmlReader::start(char byte, CallSink& sink) {
  if (is_blank(byte)) return Step::kMore;
  if (byte == '{' || byte == '[') {
    json_ = make_json_reader(dialect_, false);
    state_ = State::kJson;
    return json_->push(byte, sink);
  }
  begin_name(true);
  return name(byte, sink);
}

CallReader::Step XmlReader::name(char byte, CallSink& sink) {
  const XmlName::Step step = name_.push(byte);
  if (step == XmlName::Step::kMore) return Step::kMore;
  if (step == XmlName::Step::kStray) return Step::kStray;
  sink.begin(name_.text());
  keys_.clear();
  state_ = State::kBetween;
  if (step == XmlName::Step::kKey) begin_key();
  if (step == XmlName::Step::kObject) return push(byte, sink);
  if (step != XmlName::Step::kEnd) return Step::kTaken;
  close(sink);
  return Step::kEnd;
}

// Whether what stands in tag_ may become one of the marks.
bool XmlReader::goes_on(std::initializer_list<std::string_view> marks) const {
  return std::ranges::any_of(
      marks, [&](std::string_view mark) { return !mark.empty() && mark.starts_with(tag_); });
}

CallReader::Step XmlReader::tag(char byte, CallSink& sink) {
  tag_.push_back(byte);
  if (tag_ == dialect_.xml.call_end) {
    close(sink);
    tag_.clear();
    state_ = State::kAfter;
    return Step::kTaken;
  }
  if (tag_ == dialect_.xml.key && !has_object_) {
    begin_key();
    return Step::kTaken;
  }
  if (tag_ == dialect_.xml.value_end) {  // once too often
    state_ = State::kBetween;
    return Step::kTaken;
  }
  if (tag_ != dialect_.end && tag_ != dialect_.xml.call &&
      goes_on({dialect_.xml.call_end, dialect_.xml.key, dialect_.xml.value_end, dialect_.xml.call,
               dialect_.end})) {
    return Step::kMore;
  }
  close(sink);  // the call ends without saying so
  if (tag_ == dialect_.end) return Step::kEnd;
  if (tag_ != dialect_.xml.call) return Step::kStray;
  begin_name(false);
  return Step::kMore;
}

CallReader::Step XmlReader::key(char byte, CallSink& sink) {
  const XmlKey::Step step = key_.push(byte);
  if (step == XmlKey::Step::kMore) return Step::kTaken;
  open_key(sink);
  state_ = step == XmlKey::Step::kWhole ? State::kValueStart : State::kValue;
  if (step != XmlKey::Step::kNoMark) return Step::kTaken;
  for (const char again : key_.rest()) value(again, sink);
  return Step::kTaken;
}

void XmlReader::open_key(CallSink& sink) {
  std::string text = keys_.empty() ? "{" : ", ";
  keys_.emplace_back(key_.text());
  append_json_string(text, keys_.back());
  text += ": ";
  sink.arguments(text);
  value_.begin(sink.types_of(name_.text(), keys_.back()), sink);
  line_begins_ = true;
  has_opener_ = false;
}

void XmlReader::say(std::string_view text, CallSink& sink) {
  if (!text.empty()) line_begins_ = text.back() == '\n';
  value_.push(text, sink);
}

// The marks since the value were text of it.
void XmlReader::was_text(CallSink& sink) {
  say(std::exchange(ends_, {}), sink);
  state_ = State::kValue;
}

CallReader::Step XmlReader::value(char byte, CallSink& sink) {
  std::string text;
  const std::string_view mark = value_marks_.push(byte, &text);
  say(text, sink);
  if (mark.empty()) return Step::kTaken;
  if (mark == dialect_.xml.call) {
    has_opener_ = true;
    say(mark, sink);
    return Step::kTaken;
  }
  ends_.clear();
  open_end(mark);
  if (mark == dialect_.xml.key) {
    key_.begin();
    state_ = State::kNextKey;
  }
  return Step::kTaken;
}

// A mark that may be the first behind the value.
void XmlReader::open_end(std::string_view mark) {
  ends_ += mark;
  last_end_ = mark;
  own_lines_ = line_begins_;
  has_text_behind_ = false;
  closed_ = mark == (dialect_.xml.call_end.empty() ? dialect_.end : dialect_.xml.call_end);
  line_begins_ = false;
  tag_.clear();
  state_ = State::kEnd;
}

CallReader::Step XmlReader::end(char byte, CallSink& sink) {
  const bool all_ended = has_ended();
  ends_.push_back(byte);
  if (tag_.empty() && is_blank(byte)) {
    line_begins_ = line_begins_ || byte == '\n';
    return all_ended ? Step::kMore : Step::kTaken;
  }
  tag_.push_back(byte);
  const auto is = [&](std::string_view mark) { return !mark.empty() && tag_ == mark; };
  const bool in_call = last_end_ == dialect_.xml.value_end;
  if (is(dialect_.xml.value_end) || is(dialect_.xml.call_end) || is(dialect_.xml.call) ||
      is(begin()) || (is(dialect_.end) && !all_ended) || (is(dialect_.xml.key) && in_call)) {
    return end_mark(sink);
  }
  const bool may_go_on =
      goes_on({dialect_.xml.value_end, dialect_.xml.call_end, dialect_.xml.call, begin()}) ||
      (!all_ended && goes_on({dialect_.end})) || (in_call && goes_on({dialect_.xml.key}));
  if (may_go_on) return all_ended ? Step::kMore : Step::kTaken;
  if (all_ended || may_have_ended()) {
    has_text_behind_ = true;
    return to_behind(std::exchange(tag_, {}));
  }
  const std::string again = std::exchange(tag_, {});  // less than a mark
  ends_.resize(ends_.size() - again.size());
  was_text(sink);
  for (const char one : again) value(one, sink);
  return Step::kTaken;
}

// Whether the call may end where text follows, though its end mark does not: behind the ends of a
// value and of the function, or behind one of them on a line of its own; where calls have no end of
// their own, on the line behind that of the value.
bool XmlReader::may_have_ended() const {
  const bool is_closed = closed_ || (dialect_.xml.call_end.empty() && line_begins_);
  return own_lines_ || (is_closed && ends_.starts_with(dialect_.xml.value_end));
}

// Whether two ends of the call have come, the function's among them.
bool XmlReader::is_over() const {
  const bool has_both = !dialect_.xml.call_end.empty() && last_end_ == dialect_.end;
  return closed_ && (has_both || ends_.starts_with(dialect_.xml.value_end));
}

// `text`, the last of ends_, is behind the ends of a call.
CallReader::Step XmlReader::to_behind(const std::string& text) {
  state_ = State::kBehind;
  std::string none;
  behind_marks_.take_held();
  for (const char byte : text) behind_marks_.push(byte, &none);
  return Step::kMore;
}

// tag_ is a mark, behind others or blanks.
CallReader::Step XmlReader::end_mark(CallSink& sink) {
  const std::string mark = std::exchange(tag_, {});
  const bool all_ended = has_ended();
  if (mark == dialect_.xml.call || mark == begin()) return open_next_call(mark, sink);
  if (mark == dialect_.xml.key) {
    value_.end(sink);
    begin_key();
    return Step::kTaken;
  }
  if ((mark == dialect_.xml.value_end && last_end_ != dialect_.xml.value_end) ||
      (mark == dialect_.xml.call_end && all_ended)) {
    // No call goes on so: what was before it is text.
    ends_.resize(ends_.size() - mark.size());
    was_text(sink);
    open_end(mark == dialect_.xml.value_end ? dialect_.xml.value_end : dialect_.xml.call_end);
    return Step::kTaken;
  }
  own_lines_ = own_lines_ && line_begins_;
  line_begins_ = false;
  if (mark == dialect_.xml.value_end) return Step::kTaken;  // once too often
  if (mark == dialect_.xml.call_end) {
    last_end_ = dialect_.xml.call_end;
    closed_ = true;
    return Step::kTaken;
  }
  last_end_ = dialect_.end;
  closed_ = closed_ || dialect_.xml.call_end.empty();
  if (!own_lines_ || !closed_ || has_opener_) return Step::kTaken;
  end_call(sink);
  return Step::kEnd;
}

// Behind a parameter's mark in a value: the next parameter, or text.
CallReader::Step XmlReader::next_key(char byte, CallSink& sink) {
  const bool is_long = key_.raw().size() >= kMaxNameBytes;
  const XmlKey::Step step = is_long ? XmlKey::Step::kNoMark : key_.push(byte);
  if (step == XmlKey::Step::kMore) return Step::kTaken;
  const std::string_view key = key_.text();
  const bool is_next =
      step != XmlKey::Step::kNoMark && !key.empty() && key.find('<') == std::string_view::npos &&
      sink.may_have(name_.text(), key) && std::ranges::find(keys_, key) == keys_.end();
  if (!is_next) {
    std::string text = key_.raw();
    if (is_long) text.push_back(byte);
    ends_.assign(dialect_.xml.key);
    was_text(sink);
    for (const char again : text) value(again, sink);
    return Step::kTaken;
  }
  value_.set_last_line(true);
  value_.end(sink);
  open_key(sink);
  state_ = step == XmlKey::Step::kLine ? State::kValue : State::kValueStart;
  return Step::kTaken;
}

CallReader::Step XmlReader::open_next_call(std::string_view mark, CallSink& sink) {
  next_ = mark;
  state_ = State::kNextCall;
  return in_next_call(sink);
}

// Another call begins where a tool's name follows, or JSON; else the mark is text.
CallReader::Step XmlReader::in_next_call(CallSink& sink) {
  const NextCall next = next_call(next_, begin(), dialect_.xml, sink);
  if (next.is == NextCall::Is::kMaybe) return has_ended() ? Step::kMore : Step::kTaken;
  const std::string rest(next.rest);
  if (next.is == NextCall::Is::kText) {
    if (has_ended()) return to_behind(rest);
    ends_.resize(ends_.size() - rest.size());
    was_text(sink);
    for (const char again : rest) value(again, sink);
    return Step::kTaken;
  }
  end_call(sink);
  if (has_ended()) return Step::kStray;  // the answer goes on with it
  begin_name(false);
  if (next.is == NextCall::Is::kJson) {
    json_ = make_json_reader(dialect_, false);
    state_ = State::kJson;
    json_->push(rest.front(), sink);
    return Step::kTaken;
  }
  for (const char again : rest) name(again, sink);
  name(next_.back(), sink);
  return Step::kTaken;
}

// Text behind the ends of a call: it is the answer's, unless a later mark ends the value.
CallReader::Step XmlReader::behind(char byte, CallSink& sink) {
  ends_.push_back(byte);
  std::string none;
  const std::string_view mark = behind_marks_.push(byte, &none);
  if (mark.empty()) return Step::kMore;
  if (mark == dialect_.xml.call || mark == begin()) return open_next_call(mark, sink);
  if (mark == dialect_.end) return Step::kMore;  // late, or once too often
  ends_.resize(ends_.size() - mark.size());
  was_text(sink);
  for (const char again : mark) value(again, sink);
  return Step::kTaken;
}

CallReader::Step XmlReader::object(char byte, CallSink& sink) {
  switch (object_.push(byte, sink)) {
    case XmlObject::Step::kMore:
      break;
    case XmlObject::Step::kDone:
      state_ = State::kBetween;
      break;
    case XmlObject::Step::kBroken:
      tag_.clear();
      state_ = State::kAfter;
      if (object_.mark() == dialect_.end) return Step::kEnd;
  }
  return Step::kTaken;
}

// Ends too many are passed over: models miscount them.
CallReader::Step XmlReader::after(char byte) {
  if (tag_.empty() && is_blank(byte)) return Step::kTaken;
  tag_.push_back(byte);
  if (!dialect_.end.empty() && tag_ == dialect_.end) return Step::kEnd;
  if (tag_ == dialect_.xml.call) {
    begin_name(false);
    return Step::kMore;
  }
  if (tag_ == dialect_.xml.call_end || tag_ == dialect_.xml.value_end) {
    tag_.clear();
    return Step::kTaken;
  }
  const bool may_go_on =
      goes_on({dialect_.end, dialect_.xml.call, dialect_.xml.call_end, dialect_.xml.value_end});
  return may_go_on ? Step::kMore : Step::kStray;
}

CallReader::Step XmlReader::push(char byte, CallSink& sink) {
  switch (state_) {
    case State::kStart:
      return start(byte, sink);
    case State::kJson:
      return json_->push(byte, sink);
    case State::kName:
      return name(byte, sink);
    case State::kBetween:
      if (is_blank(byte)) return Step::kTaken;
      if (byte == '{' && keys_.empty() && !has_object_) {
        has_object_ = true;
        object_.begin();
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
      line_begins_ = byte == '\n';
      value_.set_last_line(dialect_.xml.in_lines || line_begins_);
      return byte == '\n' ? Step::kTaken : value(byte, sink);
    case State::kValue:
      return value(byte, sink);
    case State::kEnd:
      return end(byte, sink);
    case State::kNextKey:
      return next_key(byte, sink);
    case State::kNextCall:
      ends_.push_back(byte);
      next_.push_back(byte);
      return in_next_call(sink);
    case State::kBehind:
      return behind(byte, sink);
    case State::kObject:
      return object(byte, sink);
    case State::kAfter:
      return after(byte);
  }
  return Step::kStray;
}

bool XmlReader::finish(CallSink& sink, Ending ending) {
  switch (state_) {
    case State::kJson:
      return json_->finish(sink, ending);
    case State::kBetween:
    case State::kTag:
      if (ending == Ending::kWhole) close(sink);
      return false;
    case State::kEnd:
    case State::kNextCall:
    case State::kBehind:
      if (ending == Ending::kCutOff && !is_over()) {
        // Text behind marks is the value's, which had no end yet.
        if (has_text_behind_) say(ends_, sink);
        return false;
      }
      end_call(sink);
      return has_ended();  // what is behind it
    case State::kNextKey:
      if (ending == Ending::kWhole) value_.end(sink);
      return false;
    case State::kObject:
      object_.finish(sink);
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

}  // namespace internal

std::unique_ptr<CallReader> make_xml_reader(const ToolDialect& dialect, bool in_name) {
  return std::make_unique<internal::XmlReader>(dialect, in_name);
}

}  // namespace rudder::dialect
