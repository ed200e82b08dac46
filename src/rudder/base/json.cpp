#include "rudder/base/json.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <cmath>

#include "rudder/base/exact_json.h"

namespace rudder {
namespace {

// Boost reads a zero with an exponent beyond doubles ("0e999") as 0 times infinity, which is no
// number. No other text is read so.
void mend_zeros(boost::json::value& value) {
  if (double* number = value.if_double()) {
    if (std::isnan(*number)) *number = 0;
  } else if (boost::json::array* list = value.if_array()) {
    for (boost::json::value& item : *list) mend_zeros(item);
  } else if (boost::json::object* object = value.if_object()) {
    for (auto& field : *object) mend_zeros(field.value());
  }
}

}  // namespace

Result<boost::json::value> parse_json(std::string_view text, std::string_view what,
                                      const JsonLimits& limits) {
  if (text.size() > limits.max_bytes) {
    return fail(ErrorCode::kTooLarge, fmt::format("{} has {} bytes, the limit is {}", what,
                                                  text.size(), limits.max_bytes));
  }
  boost::json::parse_options options;
  options.max_depth = limits.max_depth;
  boost::system::error_code ec;
  boost::json::stream_parser parser({}, options);
  const size_t used = parser.write_some(text.data(), text.size(), ec);
  if (!ec && used < text.size()) {
    const size_t rest = text.find_first_not_of(" \t\r\n", used);
    if (rest != std::string_view::npos) ec = boost::json::error::extra_data;
  }
  if (!ec) parser.finish(ec);
  if (ec) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{} is not valid JSON near byte {}: {}", what, used, ec.message()));
  }
  boost::json::value value = parser.release();
  mend_zeros(value);
  return value;
}

namespace {

// Boost writes a number beyond doubles, which it reads as an infinity, as this word.
constexpr std::string_view kInfinity = "Infinity";
constexpr std::string_view kBeyondDoubles = "1e999";

// The text with every infinity outside of strings as a number that is read as one.
std::string without_infinity(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  bool in_string = false;
  for (size_t at = 0; at < text.size(); ++at) {
    if (!in_string && text.substr(at).starts_with(kInfinity)) {
      out += kBeyondDoubles;
      at += kInfinity.size() - 1;
      continue;
    }
    if (in_string && text[at] == '\\')
      out.push_back(text[at++]);
    else if (text[at] == '"')
      in_string = !in_string;
    out.push_back(text[at]);
  }
  return out;
}

}  // namespace

std::string to_json_text(const boost::json::value& value) {
  std::string text = with_plain_numbers(boost::json::serialize(value));
  return text.find(kInfinity) == std::string::npos ? text : without_infinity(text);
}

void append_json_string(std::string& out, std::string_view text) {
  static constexpr char kHex[] = "0123456789abcdef";
  out.push_back('"');
  for (const char ch : text) {
    const auto byte = static_cast<unsigned char>(ch);
    switch (ch) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      default:
        if (byte < 0x20) {
          out += "\\u00";
          out.push_back(kHex[byte >> 4]);
          out.push_back(kHex[byte & 15]);
        } else {
          out.push_back(ch);
        }
    }
  }
  out.push_back('"');
}

}  // namespace rudder
