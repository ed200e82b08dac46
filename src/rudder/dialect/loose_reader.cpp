// Reads calls whose arguments are not JSON: keeps each call until it is complete, then sends it as
// a whole. Python calls, one after another or in a list, and Gemma's braces.
#include <cctype>
#include <optional>
#include <string>
#include <utility>

#include "rudder/dialect/call_reader.h"
#include "rudder/dialect/json_scanner.h"
#include "rudder/dialect/loose_literals.h"
#include "rudder/dialect/mark_finder.h"

namespace rudder::dialect {
namespace {

void tell(const LooseCall& call, CallSink& sink) {
  sink.begin(call.name);
  sink.arguments(call.arguments);
}

class PythonicReader final : public CallReader {
 public:
  PythonicReader(const ToolDialect& dialect, bool bare) : dialect_(dialect), bare_(bare) {}

  Step push(char byte, CallSink& sink) override;
  bool finish(CallSink& sink) override;

 private:
  enum class State : uint8_t { kStart, kJson, kItem, kCall, kNext };

  Step call(char byte, CallSink& sink);
  Step next(char byte);
  bool follow(char byte);

  const ToolDialect& dialect_;
  const bool bare_;
  State state_ = State::kStart;
  std::unique_ptr<CallReader> json_;
  std::string source_;  // of the call that is not complete
  std::string open_;    // its open brackets
  char quote_ = 0;      // of the string it is in
  bool escaped_ = false;
  bool in_list_ = false;
  bool any_ = false;  // a call was sent
  size_t matched_ = 0;
};

// True when the byte closes the call's parenthesis.
bool PythonicReader::follow(char byte) {
  if (quote_ != 0) {
    if (escaped_) {
      escaped_ = false;
    } else if (byte == '\\') {
      escaped_ = true;
    } else if (byte == quote_) {
      quote_ = 0;
    }
    return false;
  }
  switch (byte) {
    case '"':
    case '\'':
      quote_ = byte;
      return false;
    case '(':
    case '[':
    case '{':
      open_.push_back(byte);
      return false;
    case ')':
    case ']':
    case '}':
      if (!open_.empty()) open_.pop_back();
      return open_.empty();
    default:
      return false;
  }
}

CallReader::Step PythonicReader::call(char byte, CallSink& sink) {
  source_.push_back(byte);
  if (!follow(byte)) {
    // Up to the parenthesis there is a name and nothing else.
    const bool in_name = open_.empty() && quote_ == 0;
    const auto code = static_cast<unsigned char>(byte);
    if (in_name && code < 0x80 && std::string_view("_.-").find(byte) == std::string_view::npos &&
        std::isalnum(code) == 0) {
      return Step::kStray;
    }
    const bool begun = open_.size() == 1 && byte == '(' && source_.find('(') + 1 == source_.size();
    if (begun && bare_ && !sink.knows(std::string_view(source_).substr(0, source_.size() - 1))) {
      return Step::kStray;
    }
    return quote_ != 0 && open_.empty() ? Step::kStray : Step::kMore;
  }
  const std::optional<LooseCall> parsed = parse_python_call(source_);
  if (!parsed) return Step::kStray;
  tell(*parsed, sink);
  any_ = true;
  source_.clear();
  state_ = State::kNext;
  return Step::kTaken;
}

CallReader::Step PythonicReader::next(char byte) {
  if (matched_ == 0) {
    if (is_blank(byte)) return Step::kTaken;
    if (byte == ',' || byte == ';') return Step::kTaken;
    if (in_list_ && byte == ']') {
      in_list_ = false;
      return dialect_.end.empty() || bare_ ? Step::kEnd : Step::kTaken;
    }
  }
  const std::string_view end = bare_ ? std::string_view() : dialect_.end;
  if (!end.empty() && byte == end[matched_]) {
    return ++matched_ == end.size() ? Step::kEnd : Step::kMore;
  }
  if (matched_ > 0) return Step::kStray;
  state_ = State::kCall;
  return Step::kMore;
}

CallReader::Step PythonicReader::push(char byte, CallSink& sink) {
  switch (state_) {
    case State::kStart:
      if (is_blank(byte)) return Step::kMore;
      if (byte == '[') {
        in_list_ = true;
        state_ = State::kItem;
        return Step::kMore;
      }
      [[fallthrough]];
    case State::kItem:
      if (is_blank(byte)) return Step::kMore;
      if (byte == '{') {
        json_ = make_json_reader(dialect_, bare_);
        state_ = State::kJson;
        if (in_list_) json_->push('[', sink);
        return json_->push(byte, sink);
      }
      state_ = State::kCall;
      return call(byte, sink);
    case State::kJson:
      return json_->push(byte, sink);
    case State::kCall:
      return call(byte, sink);
    case State::kNext: {
      const Step step = next(byte);
      return state_ == State::kCall ? call(byte, sink) : step;
    }
  }
  return Step::kStray;
}

bool PythonicReader::finish(CallSink& sink) {
  if (state_ == State::kJson) return json_->finish(sink);
  return state_ != State::kNext;
}

class BracedReader final : public CallReader {
 public:
  explicit BracedReader(const ToolDialect& dialect) : dialect_(dialect), end_({dialect.end}) {}

  Step push(char byte, CallSink& sink) override {
    if (json_) return json_->push(byte, sink);
    if (byte == '{' && source_.find_first_not_of(" \n") == std::string::npos) {
      json_ = make_json_reader(dialect_, false);
      return json_->push(byte, sink);
    }
    if (end_.push(byte, &source_).empty()) return Step::kMore;
    const std::optional<LooseCall> parsed = parse_braced_call(source_, dialect_.quote);
    if (!parsed) return Step::kStray;
    tell(*parsed, sink);
    return Step::kEnd;
  }

  // The end mark is often the token that ends the answer, whose text is left out.
  bool finish(CallSink& sink) override {
    if (json_) return json_->finish(sink);
    const std::optional<LooseCall> parsed = parse_braced_call(source_, dialect_.quote);
    if (!parsed) return true;
    tell(*parsed, sink);
    return false;
  }

 private:
  const ToolDialect& dialect_;
  MarkFinder end_;
  std::unique_ptr<CallReader> json_;  // of a call that is written as JSON even so
  std::string source_;
};

}  // namespace

std::unique_ptr<CallReader> make_pythonic_reader(const ToolDialect& dialect, bool bare) {
  return std::make_unique<PythonicReader>(dialect, bare);
}

std::unique_ptr<CallReader> make_braced_reader(const ToolDialect& dialect) {
  return std::make_unique<BracedReader>(dialect);
}

}  // namespace rudder::dialect
