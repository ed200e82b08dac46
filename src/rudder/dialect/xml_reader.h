// XmlReader: reads calls as Qwen3-Coder, MiniMax M2 and GLM 4.5 write them (xml_reader.cpp).
// Internal to the room.
#pragma once

#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "rudder/dialect/call_reader.h"
#include "rudder/dialect/mark_finder.h"
#include "rudder/dialect/xml_heads.h"
#include "rudder/dialect/xml_marks.h"
#include "rudder/dialect/xml_value.h"

namespace rudder::dialect::internal {

class XmlReader final : public CallReader {
 public:
  XmlReader(const ToolDialect& dialect, bool in_name)
      : dialect_(dialect),
        state_(in_name ? State::kName : State::kStart),
        name_(dialect),
        key_(dialect.xml),
        value_marks_({dialect_.xml.value_end, dialect_.xml.key, dialect_.xml.call_end,
                      dialect_.xml.call, dialect.end}),
        object_({dialect_.xml.call_end, dialect.end}),
        behind_marks_({dialect_.xml.value_end, dialect_.xml.key, dialect_.xml.call_end,
                       dialect_.xml.call, begin(), dialect.end}) {
    if (in_name) begin_name(false);
  }

  Step push(char byte, CallSink& sink) override;
  bool finish(CallSink& sink, Ending ending) override;

 private:
  enum class State : uint8_t {
    kStart,
    kJson,
    kName,
    kBetween,  // a parameter or the function's end must come
    kTag,
    kKey,
    kValueStart,
    kValue,
    kEnd,       // behind a mark that may end the value
    kNextKey,   // behind a parameter's mark in a value, which may be text
    kNextCall,  // behind the mark before a call, which may be text
    kBehind,    // in text behind ends of a call, which may still be text of the value
    kObject,    // arguments as JSON
    kAfter,
  };

  Step start(char byte, CallSink& sink);
  Step name(char byte, CallSink& sink);
  Step tag(char byte, CallSink& sink);
  Step key(char byte, CallSink& sink);
  void open_key(CallSink& sink);
  Step value(char byte, CallSink& sink);
  void open_end(std::string_view mark);
  Step end(char byte, CallSink& sink);
  bool may_have_ended() const;
  bool is_over() const;
  Step to_behind(const std::string& text);
  Step end_mark(CallSink& sink);
  Step next_key(char byte, CallSink& sink);
  Step open_next_call(std::string_view mark, CallSink& sink);
  Step in_next_call(CallSink& sink);
  Step behind(char byte, CallSink& sink);
  Step object(char byte, CallSink& sink);
  Step after(char byte);
  bool goes_on(std::initializer_list<std::string_view> marks) const;
  void say(std::string_view text, CallSink& sink);
  void was_text(CallSink& sink);
  void close(CallSink& sink) {
    if (!has_object_) sink.arguments(keys_.empty() ? "{}" : "}");
  }
  void end_call(CallSink& sink) {
    if (!ends_.starts_with(dialect_.xml.value_end)) value_.set_last_line(true);
    value_.end(sink);
    close(sink);
  }
  // Whether what may be the value's end may be the call's too.
  bool has_ended() const {
    if (has_text_behind_) return true;
    return dialect_.end.empty() ? last_end_ == dialect_.xml.call_end : last_end_ == dialect_.end;
  }
  void begin_key() {
    key_.begin();
    state_ = State::kKey;
  }
  void begin_name(bool in_mark) {
    name_.begin(in_mark);
    has_object_ = false;
    state_ = State::kName;
  }
  // The mark before a function's own; empty where there is none.
  std::string_view begin() const {
    return dialect_.begin == dialect_.xml.call ? std::string_view() : dialect_.begin;
  }

  const ToolDialect& dialect_;
  State state_;
  std::unique_ptr<CallReader> json_;
  XmlName name_;
  XmlKey key_;
  std::string tag_;
  std::vector<std::string> keys_;  // of the call
  XmlValue value_;
  MarkFinder value_marks_;
  XmlObject object_;
  bool has_object_ = false;  // the arguments came as one object

  // Of what may end a value, or be text of it: from the first mark on.
  std::string ends_;
  std::string_view last_end_;     // the mark at hand
  bool own_lines_ = false;        // each of the marks began a line
  bool closed_ = false;           // the function's end is among them
  bool has_text_behind_ = false;  // the end mark is missing, or late: text came before it
  bool line_begins_ = false;      // a line has begun since the mark at hand, or in the value's end
  bool has_opener_ = false;       // the value has a function's mark as text
  std::string next_;              // of what may be another call
  MarkFinder behind_marks_;
};

}  // namespace rudder::dialect::internal
