#include "rudder/dialect/json_scanner.h"

#include <fmt/format.h>

#include <iterator>
#include <utility>

#include "rudder/base/utf8.h"

namespace rudder::dialect {
namespace {

constexpr size_t kMaxDepth = 256;  // of arrays and objects in one another

constexpr bool is_digit(char byte) {
  return byte >= '0' && byte <= '9';
}

constexpr int hex_value(char byte) {
  if (is_digit(byte)) return byte - '0';
  const char lower = static_cast<char>(byte | 0x20);
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

}  // namespace

void JsonScanner::reset() {
  state_ = State::kValue;
  open_.clear();
}

JsonScanner::Step JsonScanner::begin_value(char byte) {
  switch (byte) {
    case '{':
    case '[':
      if (open_.size() == kMaxDepth) return Step::kBad;
      open_.push_back(byte);
      state_ = byte == '{' ? State::kFirstKey : State::kFirstValue;
      return Step::kMore;
    case '"':
      key_ = false;
      state_ = State::kString;
      return Step::kMore;
    case 't':
      literal_ = "rue";
      break;
    case 'f':
      literal_ = "alse";
      break;
    case 'n':
      literal_ = "ull";
      break;
    case '-':
      state_ = State::kMinus;
      return Step::kMore;
    case '0':
      state_ = State::kZero;
      return Step::kMore;
    default:
      if (!is_digit(byte)) return Step::kBad;
      state_ = State::kInteger;
      return Step::kMore;
  }
  state_ = State::kLiteral;
  return Step::kMore;
}

JsonScanner::Step JsonScanner::close(char byte) {
  if (open_.empty() || open_.back() != (byte == '}' ? '{' : '[')) return Step::kBad;
  open_.pop_back();
  return end_value();
}

JsonScanner::Step JsonScanner::in_number(char byte) {
  const bool exponent = byte == 'e' || byte == 'E';
  const bool may_end = state_ == State::kZero || state_ == State::kInteger ||
                       state_ == State::kFraction || state_ == State::kExponent;
  if (is_digit(byte)) {
    switch (state_) {
      case State::kMinus:
        state_ = byte == '0' ? State::kZero : State::kInteger;
        return Step::kMore;
      case State::kZero:
        return Step::kBad;
      case State::kDot:
        state_ = State::kFraction;
        return Step::kMore;
      case State::kExponentSign:
      case State::kExponentStart:
        state_ = State::kExponent;
        return Step::kMore;
      default:
        return Step::kMore;
    }
  }
  if (byte == '.' && (state_ == State::kZero || state_ == State::kInteger)) {
    state_ = State::kDot;
    return Step::kMore;
  }
  if (exponent && may_end && state_ != State::kExponent) {
    state_ = State::kExponentSign;
    return Step::kMore;
  }
  if ((byte == '+' || byte == '-') && state_ == State::kExponentSign) {
    state_ = State::kExponentStart;
    return Step::kMore;
  }
  if (!may_end) return Step::kBad;
  if (end_value() == Step::kDone) return Step::kDoneBefore;
  return push(byte);  // what follows the number inside its array or object
}

JsonScanner::Step JsonScanner::push(char byte) {
  switch (state_) {
    case State::kString:
      if (byte == '\\') {
        state_ = State::kEscape;
      } else if (byte == '"') {
        if (!key_) return end_value();
        state_ = State::kColon;
      }
      return Step::kMore;
    case State::kEscape:
      if (byte == 'u') {
        hex_left_ = 4;
        state_ = State::kHex;
        return Step::kMore;
      }
      state_ = State::kString;
      return std::string_view("\"\\/bfnrt").find(byte) == std::string_view::npos ? Step::kBad
                                                                                 : Step::kMore;
    case State::kHex:
      if (hex_value(byte) < 0) return Step::kBad;
      if (--hex_left_ == 0) state_ = State::kString;
      return Step::kMore;
    case State::kLiteral:
      if (byte != literal_.front()) return Step::kBad;
      literal_.remove_prefix(1);
      return literal_.empty() ? end_value() : Step::kMore;
    case State::kMinus:
    case State::kZero:
    case State::kInteger:
    case State::kDot:
    case State::kFraction:
    case State::kExponentSign:
    case State::kExponentStart:
    case State::kExponent:
      return in_number(byte);
    default:
      break;
  }
  if (is_blank(byte)) return Step::kMore;
  switch (state_) {
    case State::kFirstValue:
    case State::kNextValue:
      return byte == ']' ? close(byte) : begin_value(byte);
    case State::kFirstKey:
    case State::kKey:
      if (byte == '}') return close(byte);
      key_ = true;
      state_ = State::kString;
      return byte == '"' ? Step::kMore : Step::kBad;
    case State::kColon:
      state_ = State::kValue;
      return byte == ':' ? Step::kMore : Step::kBad;
    case State::kComma:
      if (byte != ',') return byte == '}' || byte == ']' ? close(byte) : Step::kBad;
      if (open_.empty()) return Step::kBad;
      state_ = open_.back() == '{' ? State::kKey : State::kNextValue;
      return Step::kMore;
    default:
      return begin_value(byte);
  }
}

JsonScanner::Step JsonCopier::push(char byte, std::string* out) {
  const bool in_string = scanner_.in_string();
  const JsonScanner::Step step = scanner_.push(byte);
  if (step == JsonScanner::Step::kBad) {
    *out += std::exchange(held_, {});
    return step;
  }
  if (in_string) {
    append_string_byte(*out, byte);
    return step;
  }
  if (byte == ',' || (!held_.empty() && is_blank(byte))) {
    held_.push_back(byte);
    return step;
  }
  if (!held_.empty() && (byte == '}' || byte == ']')) held_.erase(0, 1);
  *out += std::exchange(held_, {});
  out->push_back(byte);
  return step;
}

void JsonStringReader::reset() {
  state_ = State::kPlain;
  high_ = 0;
}

void JsonStringReader::end_surrogate(std::string* out) {
  if (high_ == 0) return;
  append_utf8(*out, kReplacementChar);
  high_ = 0;
}

JsonStringReader::Step JsonStringReader::escaped(char byte, std::string* out) {
  constexpr std::string_view kNames = "\"\\/bfnrt";
  constexpr std::string_view kMeant = "\"\\/\b\f\n\r\t";
  if (byte == 'u') {
    state_ = State::kHex;
    hex_left_ = 4;
    code_ = 0;
    return Step::kMore;
  }
  const size_t at = kNames.find(byte);
  if (at == std::string_view::npos) return Step::kBad;
  end_surrogate(out);
  out->push_back(kMeant[at]);
  state_ = State::kPlain;
  return Step::kMore;
}

JsonStringReader::Step JsonStringReader::hex(char byte, std::string* out) {
  const int digit = hex_value(byte);
  if (digit < 0) return Step::kBad;
  code_ = code_ << 4 | static_cast<uint32_t>(digit);
  if (--hex_left_ > 0) return Step::kMore;
  state_ = State::kPlain;
  if (code_ >= 0xDC00 && code_ < 0xE000 && high_ != 0) {
    append_utf8(*out, 0x10000 + ((high_ - 0xD800) << 10) + (code_ - 0xDC00));
    high_ = 0;
    return Step::kMore;
  }
  end_surrogate(out);
  if (code_ >= 0xD800 && code_ < 0xDC00) {
    high_ = code_;
  } else {
    append_utf8(*out, code_ >= 0xDC00 && code_ < 0xE000 ? kReplacementChar : code_);
  }
  return Step::kMore;
}

JsonStringReader::Step JsonStringReader::push(char byte, std::string* out) {
  if (state_ == State::kEscape) return escaped(byte, out);
  if (state_ == State::kHex) return hex(byte, out);
  if (byte == '\\') {
    state_ = State::kEscape;
    return Step::kMore;
  }
  end_surrogate(out);
  if (byte == '"') return Step::kDone;
  out->push_back(byte);
  return Step::kMore;
}

void append_string_byte(std::string& out, char byte) {
  switch (byte) {
    case '\n':
      out += "\\n";
      return;
    case '\t':
      out += "\\t";
      return;
    case '\r':
      out += "\\r";
      return;
    default:
      break;
  }
  if (static_cast<unsigned char>(byte) < 0x20) {
    fmt::format_to(std::back_inserter(out), "\\u{:04x}", static_cast<unsigned>(byte));
  } else {
    out.push_back(byte);
  }
}

}  // namespace rudder::dialect
