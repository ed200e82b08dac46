// XmlName and XmlKey: how a call and its parameters begin, as XmlReader reads them: behind marks
// that end with '>', or between marks (XmlMarks). Internal to the room.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "rudder/dialect/call_reader.h"

namespace rudder::dialect {

// From the mark before a function's name to where it is sure that this is one.
class XmlName {
 public:
  enum class Step : uint8_t {
    kMore,
    kStray,
    kName,    // the name is whole
    kKey,     // and with it a parameter's mark
    kObject,  // and with it the bracket of arguments as JSON
    kEnd,     // and with it the mark behind calls
  };

  explicit XmlName(const ToolDialect& dialect) : dialect_(dialect) {}

  void begin(bool in_mark);
  Step push(char byte);
  const std::string& text() const { return name_; }

 private:
  enum class Part : uint8_t { kMark, kName, kBehind };

  Step mark(char byte);
  Step name(char byte);
  // A name without a mark before it ends with its line, or where a mark begins.
  Step name_alone(char byte);
  // Only what follows such a name says that it is one.
  Step behind(char byte);

  const ToolDialect& dialect_;
  Part part_ = Part::kMark;
  std::string tag_;
  std::string name_;
};

// From behind a parameter's mark to its value.
class XmlKey {
 public:
  enum class Step : uint8_t {
    kMore,
    kWhole,   // the value begins behind this byte
    kLine,    // likewise: the key's mark ends with its line, unsaid
    kNoMark,  // the value begins with rest(): the mark before it is missing
  };

  explicit XmlKey(const XmlMarks& xml) : xml_(xml) {}

  void begin();
  Step push(char byte);
  std::string_view text() const { return text_; }  // of a key that is whole
  const std::string& raw() const { return raw_; }  // what has come
  const std::string& rest() const { return rest_; }

 private:
  Step up_to_bracket(char byte);

  const XmlMarks& xml_;
  std::string raw_;
  std::string text_;
  std::string rest_;
  bool has_ended_ = false;  // the value's mark must come
};

}  // namespace rudder::dialect
