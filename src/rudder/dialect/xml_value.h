// XmlValue: writes the raw text between a parameter's marks as JSON, by the types that the tool's
// schema allows. A text goes out as it comes; other values once they are whole, since they may be
// Python's. Where both may be, the text decides: it is what it reads as. Internal to the room.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rudder/dialect/call_reader.h"
#include "rudder/dialect/json_scanner.h"
#include "rudder/dialect/mark_finder.h"

namespace rudder::dialect {

class XmlValue {
 public:
  void begin(ValueTypes types, CallSink& sink);
  // Whether a line's end at the end of a text is layout, as it is unless told otherwise.
  void set_last_line(bool is_layout) { last_line_is_layout_ = is_layout; }
  // More of the text.
  void push(std::string_view text, CallSink& sink);
  void end(CallSink& sink);

 private:
  enum class Kind : uint8_t { kText, kJson, kEither };

  void push_text(std::string_view text, CallSink& sink);
  // Reads on while the text may be a value that is none of text; else it is text from its start.
  void push_either(std::string_view text, CallSink& sink);
  bool goes_on(char byte);
  void become_text(CallSink& sink);

  Kind kind_ = Kind::kText;
  ValueTypes types_ = kString;
  std::string text_;       // of what is not known to be text
  std::string line_ends_;  // of a text, held back: the last one may be layout
  bool last_line_is_layout_ = true;
  JsonScanner scanner_;
  bool begun_ = false;  // the scanner has read a byte
  bool whole_ = false;  // and a value
};

// XmlObject: arguments that a model wrote as one JSON object in place of parameters.
class XmlObject {
 public:
  enum class Step : uint8_t {
    kMore,
    kDone,    // the object ends with this byte
    kBroken,  // it was no JSON, and ends with mark()
  };

  explicit XmlObject(std::vector<std::string_view> ends) : end_(std::move(ends)) {}

  void begin() {
    object_.reset();
    broken_.reset();
  }
  Step push(char byte, CallSink& sink);
  std::string_view mark() const { return mark_; }
  void finish(CallSink& sink);  // the text is over

 private:
  JsonCopier object_;
  MarkFinder end_;
  std::optional<std::string> broken_;  // from where it is no JSON
  std::string_view mark_;
};

}  // namespace rudder::dialect
