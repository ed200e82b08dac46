#include "rudder/base/exact_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <boost/json/basic_parser_impl.hpp>
#include <charconv>
#include <cmath>
#include <string>
#include <utility>

namespace rudder {

namespace json = boost::json;

namespace {

constexpr char kNumberMark = '\xFF';  // in no UTF-8, which the parser asks for

bool is_marked(const json::value& value) {
  const json::string* text = value.if_string();
  return text != nullptr && !text->empty() && text->front() == kNumberMark;
}

std::string marked(std::string_view number) {
  return kNumberMark + std::string(number);
}

// The nearest double; an infinity or a zero where there is none.
double nearest_double(std::string_view text, double otherwise) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc()) return number;
  return std::isnan(otherwise) ? 0 : otherwise;
}

// What Boost's parser calls while it reads.
class ExactHandler {
 public:
  static constexpr size_t max_object_size = json::object::max_size();
  static constexpr size_t max_array_size = json::array::max_size();
  static constexpr size_t max_key_size = json::string::max_size();
  static constexpr size_t max_string_size = json::string::max_size();

  using Code = boost::system::error_code;
  using View = json::string_view;

  // `fields`: null: everything is kept.
  explicit ExactHandler(const std::span<const std::string_view>* fields) : fields_(fields) {
    stack_.reset();
  }
  json::value release() { return stack_.release(); }

  bool on_document_begin(Code&) { return true; }
  bool on_document_end(Code&) { return true; }
  bool on_object_begin(Code&) { return ++depth_ > 0; }
  bool on_object_end(size_t size, Code&) {
    --depth_;
    stack_.push_object(size);
    return true;
  }
  bool on_array_begin(Code&) { return ++depth_ > 0; }
  bool on_array_end(size_t size, Code&) {
    --depth_;
    stack_.push_array(size);
    return true;
  }
  bool on_key_part(View part, size_t, Code&) {
    stack_.push_chars(part);
    if (depth_ == 1 && fields_ != nullptr) key_.append(part.data(), part.size());
    return true;
  }
  bool on_key(View part, size_t, Code&) {
    stack_.push_key(part);
    if (depth_ != 1 || fields_ == nullptr) return true;
    key_.append(part.data(), part.size());
    in_field_ = std::find(fields_->begin(), fields_->end(), key_) != fields_->end();
    key_.clear();
    return true;
  }
  bool on_string_part(View part, size_t, Code&) {
    stack_.push_chars(part);
    return true;
  }
  bool on_string(View part, size_t, Code&) {
    stack_.push_string(part);
    return true;
  }
  bool on_number_part(View part, Code&) {
    number_.append(part.data(), part.size());
    return true;
  }
  bool on_int64(int64_t value, View, Code&) {
    number_.clear();
    stack_.push_int64(value);
    return true;
  }
  bool on_uint64(uint64_t value, View part, Code&) {
    if (fields_ != nullptr) {
      number_.clear();
      stack_.push_uint64(value);
    } else {
      keep(part);
    }
    return true;
  }
  bool on_double(double value, View part, Code&) {
    if (fields_ == nullptr) {
      keep(part);
      return true;
    }
    number_.append(part.data(), part.size());
    const double nearest = nearest_double(number_, value);
    const std::optional<Decimal> exact = Decimal::read(number_);
    if (!in_field_ || (exact && exact == Decimal::read(fmt::format("{}", nearest)))) {
      stack_.push_double(nearest);
    } else {
      stack_.push_string(marked(number_));
    }
    number_.clear();
    return true;
  }
  bool on_bool(bool value, Code&) {
    stack_.push_bool(value);
    return true;
  }
  bool on_null(Code&) {
    stack_.push_null();
    return true;
  }
  static bool on_comment_part(View, Code&) { return true; }
  static bool on_comment(View, Code&) { return true; }

 private:
  void keep(View part) {
    number_.append(part.data(), part.size());
    const std::optional<Decimal> number = Decimal::read(number_);
    const std::optional<int64_t> whole = number ? number->to_int64() : std::nullopt;
    if (whole) {
      stack_.push_int64(*whole);
    } else {
      stack_.push_string(marked(number ? number->text() : number_));
    }
    number_.clear();
  }

  json::value_stack stack_;
  const std::span<const std::string_view>* const fields_;
  int depth_ = 0;
  bool in_field_ = false;
  std::string key_;     // of the document itself, as far as it was read
  std::string number_;  // as far as it was read
};

Result<json::value> parse(const std::span<const std::string_view>* fields, std::string_view text,
                          std::string_view what, const JsonLimits& limits) {
  if (text.size() > limits.max_bytes) {
    return fail(ErrorCode::kTooLarge, fmt::format("{} has {} bytes, the limit is {}", what,
                                                  text.size(), limits.max_bytes));
  }
  json::parse_options options;
  options.max_depth = limits.max_depth;
  boost::system::error_code ec;
  json::basic_parser<ExactHandler> parser(options, fields);
  const size_t used = parser.write_some(false, text.data(), text.size(), ec);
  if (!ec && text.find_first_not_of(" \t\r\n", used) != std::string_view::npos) {
    ec = json::error::extra_data;
  }
  if (ec) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{} is not valid JSON near byte {}: {}", what, used, ec.message()));
  }
  return parser.handler().release();
}

}  // namespace

Result<json::value> parse_json_exactly(std::string_view text, std::string_view what,
                                       const JsonLimits& limits) {
  return parse(nullptr, text, what, limits);
}

Result<json::value> parse_json_exactly_in(std::span<const std::string_view> fields,
                                          std::string_view text, std::string_view what,
                                          const JsonLimits& limits) {
  return parse(&fields, text, what, limits);
}

bool is_number(const json::value& value) {
  return value.is_number() || is_marked(value);
}

bool is_string(const json::value& value) {
  return value.is_string() && !is_marked(value);
}

std::optional<Decimal> decimal_of(const json::value& number) {
  if (is_marked(number)) return Decimal::read(std::string_view(number.get_string()).substr(1));
  if (const int64_t* whole = number.if_int64()) return Decimal(*whole);
  return Decimal::read(json::serialize(number));
}

json::value exact_number(const Decimal& number) {
  if (const std::optional<int64_t> whole = number.to_int64()) return *whole;
  return json::value(marked(number.text()));
}

json::value with_doubles(const json::value& value) {
  if (is_marked(value)) {
    const std::string text(std::string_view(value.get_string()).substr(1));
    return std::strtod(text.c_str(), nullptr);
  }
  json::value out = value;
  if (json::array* list = out.if_array()) {
    for (json::value& item : *list) item = with_doubles(item);
  } else if (json::object* object = out.if_object()) {
    for (auto& field : *object) field.value() = with_doubles(field.value());
  }
  return out;
}

std::string with_plain_numbers(std::string text) {
  size_t at = text.find(kNumberMark);
  if (at == std::string::npos) return text;
  std::string out;
  size_t done = 0;
  for (; at != std::string::npos; at = text.find(kNumberMark, done)) {
    out.append(text, done, at - 1 - done);  // up to the quote
    const size_t end = text.find('"', at);
    out.append(text, at + 1, end - at - 1);
    done = end + 1;
  }
  return out.append(text, done);
}

}  // namespace rudder
