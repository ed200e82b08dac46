// JsonScanner, JsonCopier and JsonStringReader: read JSON byte by byte as a model writes it, to
// find where a value ends and whether it is valid, without storing it. Internal to the room.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace rudder::dialect {

constexpr bool is_blank(char byte) {
  return byte == ' ' || byte == '\n' || byte == '\t' || byte == '\r';
}

// Without the blanks at its ends.
constexpr std::string_view trimmed(std::string_view text) {
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  return text;
}

// Follows one value by RFC 8259, with two exceptions: strings may contain raw control characters,
// where models put line breaks, and a comma may stand before a closing bracket. JsonCopier mends
// both.
class JsonScanner {
 public:
  enum class Step : uint8_t {
    kMore,
    kDone,        // the value ends with this byte
    kDoneBefore,  // a number ended before this byte, which is not of it
    kBad,         // no JSON; the scanner is not to be used further
  };

  Step push(char byte);
  bool in_string() const { return state_ == State::kString || state_ == State::kEscape; }
  void reset();

 private:
  enum class State : uint8_t {
    kValue,       // a value must come
    kNextValue,   // a value, behind a comma of an array
    kFirstValue,  // a value or the end of the array
    kFirstKey,    // a key or the end of the object
    kKey,         // likewise of an object
    kColon,
    kComma,  // a comma or the end of the innermost array or object
    kString,
    kEscape,
    kHex,
    kMinus,
    kZero,
    kInteger,
    kDot,
    kFraction,
    kExponentSign,
    kExponentStart,
    kExponent,
    kLiteral,
  };

  Step begin_value(char byte);
  Step close(char byte);
  Step in_number(char byte);
  Step end_value() {
    state_ = State::kComma;
    return open_.empty() ? Step::kDone : Step::kMore;
  }

  State state_ = State::kValue;
  std::string open_;          // the brackets that are open
  bool key_ = false;          // the string is a key
  int hex_left_ = 0;          // digits of \uXXXX to come
  std::string_view literal_;  // what is left of true, false, null
};

// Copies one value as it comes, byte by byte, as JSON.
class JsonCopier {
 public:
  // Appends to `out` what is certain to be of the value; where it is none, what was held back.
  JsonScanner::Step push(char byte, std::string* out);
  bool in_string() const { return scanner_.in_string(); }
  void reset() {
    scanner_.reset();
    held_.clear();
  }

 private:
  JsonScanner scanner_;
  std::string held_;  // a comma and the blanks behind it: a bracket may close there
};

// Decodes a JSON string, from the byte after its opening quote.
class JsonStringReader {
 public:
  enum class Step : uint8_t { kMore, kDone, kBad };

  // Appends to `out` what the byte made certain.
  Step push(char byte, std::string* out);
  void reset();

 private:
  Step escaped(char byte, std::string* out);
  Step hex(char byte, std::string* out);
  void end_surrogate(std::string* out);  // a first half that no second one followed

  enum class State : uint8_t { kPlain, kEscape, kHex };
  State state_ = State::kPlain;
  int hex_left_ = 0;
  uint32_t code_ = 0;
  uint32_t high_ = 0;  // the first half of a surrogate pair, or 0
};

// Appends the byte as a JSON string spells it: itself, or an escape where it may not be raw. The
// caller handles quotes and backslashes.
void append_string_byte(std::string& out, char byte);

}  // namespace rudder::dialect
