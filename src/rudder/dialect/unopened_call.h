// UnopenedCall: tells whether a text is a call of a known tool whose first mark the model forgot.
// Its beginning must be that of such a call, byte for byte but blanks; then the mark behind calls
// must come, where the dialect has one. Internal to the room.
#pragma once

#include <cstdint>
#include <string>

#include "rudder/dialect/call_reader.h"

namespace rudder::dialect {

class UnopenedCall {
 public:
  enum class Step : uint8_t {
    kMore,  // not decided yet
    kCall,  // the text so far is a call, or the beginning of one
    kText,  // it is none
  };

  UnopenedCall() = default;
  explicit UnopenedCall(const ToolDialect& dialect) : dialect_(&dialect) {}

  // From the first byte that is no blank on.
  Step push(char byte, const CallSink& sink);

 private:
  // Whether the text begins with a call of a known tool, as far as it goes.
  Step beginning(const CallSink& sink) const;
  Step after_name(std::string_view rest, std::string_view opening, const CallSink& sink) const;

  const ToolDialect* dialect_ = nullptr;
  std::string text_;       // without blanks, until it is known to begin a call
  bool is_begun_ = false;  // it is
  size_t matched_ = 0;     // bytes of the end mark
};

}  // namespace rudder::dialect
