// CallReader: reads one form of tool calls byte by byte; CallSink receives the calls that it finds.
// Internal to the room: AnswerParser opens a reader after a mark that begins calls, and keeps the
// text that the reader has not accepted yet, because it may turn out not to be a call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "rudder/dialect/dialect.h"

namespace rudder::dialect {

inline constexpr size_t kMaxNameBytes = 256;  // a longer one is no tool's, and no argument's

class CallSink {
 public:
  // Both outlive the sink.
  CallSink(const ParserSetup& setup, uint64_t seed, Delta* delta)
      : setup_(setup), seed_(seed), delta_(delta) {}

  // Announces a call: from here on it counts as one, even if its arguments are broken.
  void begin(std::string_view name);
  // More of its arguments' JSON text.
  void arguments(std::string_view text);
  // The last of its arguments, which turned out to be no JSON: as JSON where they are Python's or
  // lack nothing but brackets at their end, else as they are. `has_ended`: a mark came behind them,
  // so that they are not cut off.
  void broken_arguments(std::string_view rest, bool has_ended = false);

  bool knows(std::string_view name) const;
  // Some known name begins so.
  bool knows_beginning(std::string_view name) const;
  // What the value of this argument may be, as far as the tool's schema says.
  ValueTypes types_of(std::string_view tool, std::string_view argument) const;
  // False where the tool's schema names arguments, and this one is none of them.
  bool may_have(std::string_view tool, std::string_view argument) const;
  int32_t num_calls() const { return num_calls_; }

 private:
  std::string make_id(std::string_view name);

  const ParserSetup& setup_;
  uint64_t seed_;
  Delta* const delta_;
  int32_t num_calls_ = 0;
  std::string told_;  // of the arguments of the last call
};

class CallReader {
 public:
  enum class Step : uint8_t {
    kMore,   // not decided yet
    kTaken,  // the text up to and with this byte is of a call for sure
    kEnd,    // as kTaken, and the calls end here
    kStray,  // what has not been taken, with this byte, is no call
  };

  virtual ~CallReader() = default;
  virtual Step push(char byte, CallSink& sink) = 0;
  // The text is over. True when what has not been taken is text after all, false when it was the
  // beginning of an end that no longer matters, or has been given to the sink now.
  virtual bool finish(CallSink& sink, Ending ending) = 0;
  // Of a kStray, or a finish() that was true: where the calls that were told last end, as a number
  // of bytes, from the text's end back; what is behind them alone is no call. npos: all of it.
  virtual size_t bytes_behind_calls() const { return std::string::npos; }
};

// `bare`: no mark said that a call begins here, so that only a tool's name can. `in_name`: the mark
// was the one before a function's name.
std::unique_ptr<CallReader> make_json_reader(const ToolDialect& dialect, bool bare);
std::unique_ptr<CallReader> make_xml_reader(const ToolDialect& dialect, bool in_name);
std::unique_ptr<CallReader> make_pythonic_reader(const ToolDialect& dialect, bool bare);
std::unique_ptr<CallReader> make_braced_reader(const ToolDialect& dialect);
// `in_call`: the mark was the one before each call, not the one before all.
std::unique_ptr<CallReader> make_headed_reader(const ToolDialect& dialect, bool bare, bool in_call);

}  // namespace rudder::dialect
