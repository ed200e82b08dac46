// What begins a call among the marks that XmlReader reads. Internal to the room.
#pragma once

#include <cstdint>
#include <string_view>

#include "rudder/dialect/call_reader.h"

namespace rudder::dialect {

// A name without the blanks and the quotes around it.
std::string_view bare_name(std::string_view text);

// What a text is that may begin another call.
struct NextCall {
  enum class Is : uint8_t {
    kMaybe,  // not decided yet
    kCall,   // of a known tool, up to and with its name
    kJson,   // of any, up to and with its first bracket
    kText,
  };
  Is is = Is::kMaybe;
  std::string_view
      rest;  // of a call its name, of JSON its bracket, of text what is behind the mark
};

// `begin`: the mark before a function's; empty where the dialect has none.
NextCall next_call(std::string_view text, std::string_view begin, const XmlMarks& xml,
                   const CallSink& sink);

}  // namespace rudder::dialect
