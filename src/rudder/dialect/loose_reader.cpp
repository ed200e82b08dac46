// Calls as Python writes them, one after another or in a list. Each is kept until it is complete
// and sent as a whole. Brackets that a model forgets or writes twice are mended.
#include <cctype>
#include <optional>
#include <string>
#include <utility>

#include "rudder/dialect/call_reader.h"
#include "rudder/dialect/json_scanner.h"
#include "rudder/dialect/loose_literals.h"

namespace rudder::dialect {
namespace {

class PythonicReader final : public CallReader {
 public:
  PythonicReader(const ToolDialect& dialect, bool bare) : dialect_(dialect), bare_(bare) {}

  Step push(char byte, CallSink& sink) override;
  bool finish(CallSink& sink, Ending ending) override;

 private:
  enum class State : uint8_t { kStart, kJson, kItem, kCall, kNext, kNextMark };

  Step call(char byte, CallSink& sink);
  Step tell(std::string_view source, CallSink& sink);
  Step next(char byte);
  Step next_mark(char byte);
  bool follow(char byte);
  void close(char byte);
  bool ends_unclosed(char byte);
  std::string_view end() const { return bare_ ? std::string_view() : dialect_.end; }

  const ToolDialect& dialect_;
  const bool bare_;
  State state_ = State::kStart;
  std::unique_ptr<CallReader> json_;
  std::string source_;  // of the call that is not complete
  std::string open_;    // its open brackets
  char quote_ = 0;      // of the string it is in
  bool escaped_ = false;
  bool in_list_ = false;
  size_t matched_ = 0;  // bytes of the mark at hand
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
      close(byte);
      return open_.empty();
    default:
      return false;
  }
}

// A bracket closes those inside of it too; one that was never opened closes none.
void PythonicReader::close(char byte) {
  const char opening = byte == ')' ? '(' : byte == ']' ? '[' : '{';
  const size_t found = open_.rfind(opening);
  if (found != std::string::npos) open_.resize(found);
}

// Whether the byte ends the call although its parenthesis is open: as the end of the list, or the
// last byte of the end mark.
bool PythonicReader::ends_unclosed(char byte) {
  if (quote_ != 0 || open_.empty()) return false;
  if (byte == ']') return in_list_ && open_.find('[') == std::string::npos;
  return !end().empty() && source_.ends_with(end());
}

CallReader::Step PythonicReader::call(char byte, CallSink& sink) {
  source_.push_back(byte);
  if (ends_unclosed(byte)) {
    const size_t behind = byte == ']' ? 1 : end().size();
    const std::string source = source_.substr(0, source_.size() - behind) + ")";
    if (tell(source, sink) == Step::kStray) return Step::kStray;
    if (byte != ']') return Step::kEnd;
    return next(byte);
  }
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
  return tell(source_, sink);
}

CallReader::Step PythonicReader::tell(std::string_view source, CallSink& sink) {
  const std::optional<LooseCall> parsed = parse_python_call(source);
  if (!parsed) return Step::kStray;
  sink.begin(parsed->name);
  sink.arguments(parsed->arguments);
  source_.clear();
  open_.clear();
  state_ = State::kNext;
  return Step::kTaken;
}

// Closing brackets too many are passed over: models miscount them.
CallReader::Step PythonicReader::next(char byte) {
  if (matched_ == 0) {
    if (is_blank(byte)) return Step::kTaken;
    if (byte == ',' || byte == ';' || byte == ')' || byte == '}') return Step::kTaken;
    if (byte == ']') {
      if (!in_list_) return Step::kTaken;
      in_list_ = false;
      return end().empty() ? Step::kEnd : Step::kTaken;
    }
  }
  if (!end().empty() && byte == end()[matched_]) {
    if (++matched_ < end().size()) return Step::kMore;
    // The mark before calls may begin like the one behind them.
    if (!dialect_.begin.starts_with(end())) return Step::kEnd;
    state_ = State::kNextMark;
    return Step::kTaken;
  }
  if (matched_ > 0) return Step::kStray;
  state_ = State::kCall;
  return Step::kMore;
}

CallReader::Step PythonicReader::next_mark(char byte) {
  if (byte != dialect_.begin[matched_]) return Step::kStray;
  if (++matched_ < dialect_.begin.size()) return Step::kMore;
  matched_ = 0;
  state_ = State::kStart;
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
    case State::kNextMark:
      return next_mark(byte);
  }
  return Step::kStray;
}

bool PythonicReader::finish(CallSink& sink, Ending ending) {
  if (state_ == State::kJson) return json_->finish(sink, ending);
  if (state_ == State::kCall && !open_.empty()) {  // cut off: so are the arguments
    const std::optional<LooseCall> parsed = parse_python_call(source_, true);
    if (!parsed) return true;
    sink.begin(parsed->name);
    sink.arguments(parsed->arguments);
    return false;
  }
  return state_ != State::kNext && state_ != State::kNextMark;
}

}  // namespace

std::unique_ptr<CallReader> make_pythonic_reader(const ToolDialect& dialect, bool bare) {
  return std::make_unique<PythonicReader>(dialect, bare);
}

}  // namespace rudder::dialect
