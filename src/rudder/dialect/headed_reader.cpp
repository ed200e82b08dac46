// Calls with the name in a header before the arguments, as Functionary 3.2, DeepSeek and Kimi write
// them:
//   >>>name\n{...}
//   BEGIN EACH_BEGIN name SEPARATOR {...} EACH_END ... END
// DeepSeek's before 3.1 name the kind of call in front of the separator, and put the arguments in a
// block of code; both forms are read for each family that has a separator of its own. A mark that
// the model forgets is assumed where the next one comes.
#include <algorithm>
#include <string>
#include <utility>

#include "rudder/dialect/call_reader.h"
#include "rudder/dialect/json_scanner.h"
#include "rudder/dialect/mark_finder.h"

namespace rudder::dialect {
namespace {

constexpr std::string_view kFence = "```";
constexpr std::string_view kForAll = "all";
constexpr size_t kMaxHeaderBytes = 2 * kMaxNameBytes;

bool is_header_name_byte(char byte) {
  return (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') ||
         (byte >= '0' && byte <= '9') || byte == '_' || byte == '-' || byte == '.' || byte == ':';
}

// What stands between the mark before a call and the brace of its arguments.
struct Header {
  enum class Is : uint8_t {
    kMaybe,  // may become one
    kWhole,
    kText,  // of the answer
  };
  Is is = Is::kMaybe;
  std::string_view name = {};
  bool has_separator = false;
};

class HeaderParser {
 public:
  HeaderParser(std::string_view text, const ToolDialect& dialect)
      : text_(text), dialect_(dialect) {}

  Header parse() {
    Header header;
    skip_blanks();
    header.name = take_name();
    if (header.name.empty()) return text_.empty() ? header : Header{.is = Header::Is::kText};
    if (!take_separator(&header)) return header;
    if (header.has_separator && !dialect_.prompted) {
      skip_blanks();
      const std::string_view second = take_name();
      if (!second.empty()) header.name = second;  // the first one was the kind of call
    }
    skip_blanks();
    if (!text_.empty() && !dialect_.prompted) take_fence();
    header.is = text_.empty() ? Header::Is::kWhole : Header::Is::kText;
    if (is_partial_) header.is = Header::Is::kMaybe;
    return header;
  }

 private:
  void skip_blanks() {
    while (!text_.empty() && is_blank(text_.front())) text_.remove_prefix(1);
  }

  std::string_view take_name() {
    const auto end = std::ranges::find_if_not(text_, is_header_name_byte);
    const std::string_view name = text_.substr(0, static_cast<size_t>(end - text_.begin()));
    text_.remove_prefix(name.size());
    return name;
  }

  // False where the text ends in the middle of it.
  bool take_separator(Header* header) {
    const std::string_view separator = dialect_.separator;
    if (!is_blank(separator.front())) skip_blanks();
    size_t blanks = 0;  // before a separator that is a blank too
    while (blanks < text_.size() && text_[blanks] == ' ') ++blanks;
    const std::string_view behind = text_.substr(blanks);
    if (behind.starts_with(separator)) {
      text_ = behind.substr(separator.size());
      header->has_separator = true;
    } else if (!behind.empty() && separator.starts_with(behind)) {
      return false;
    }
    return true;
  }

  // ```json, or as much of it as there is.
  void take_fence() {
    constexpr std::string_view kJsonFence = "```json";
    if (kJsonFence.starts_with(text_)) {
      is_partial_ = !text_.starts_with(kFence);
      text_ = {};
      return;
    }
    for (const std::string_view fence : {kJsonFence, kFence}) {
      if (!text_.starts_with(fence)) continue;
      text_.remove_prefix(fence.size());
      return skip_blanks();
    }
  }

  std::string_view text_;
  const ToolDialect& dialect_;
  bool is_partial_ = false;
};

class HeadedReader final : public CallReader {
 public:
  HeadedReader(const ToolDialect& dialect, bool bare, bool in_call)
      : dialect_(dialect),
        bare_(bare),
        state_(in_call || dialect.each_begin.empty() ? State::kHeader : State::kOpening),
        ends_({dialect.each_end, dialect.end, dialect.each_begin, dialect.begin}) {}

  Step push(char byte, CallSink& sink) override;
  bool finish(CallSink& sink, Ending ending) override;

 private:
  enum class State : uint8_t {
    kOpening,  // behind the mark before all calls
    kHeader,
    kArguments,
    kBroken,  // arguments that are no JSON, up to the next mark
    kAfter,
  };

  Step header(char byte, CallSink& sink);
  Step without_arguments(CallSink& sink);
  bool may_end_here() const;
  Step begin_arguments(CallSink& sink);
  Step arguments(char byte, CallSink& sink);
  Step broken(char byte, CallSink& sink);
  Step after(char byte);
  // Whether `tag_` is one of the marks; `may_go_on`: it may become one.
  bool is(std::string_view mark) const { return !mark.empty() && tag_ == mark; }
  bool may_be(std::string_view mark) const { return !mark.empty() && mark.starts_with(tag_); }
  Step end_of_one() {
    tag_.clear();
    state_ = State::kAfter;
    return dialect_.end.empty() ? Step::kEnd : Step::kTaken;
  }
  void open_header() {
    tag_.clear();
    header_.clear();
    state_ = State::kHeader;
  }

  const ToolDialect& dialect_;
  const bool bare_;
  State state_;
  std::string header_;
  std::string tag_;
  JsonCopier arguments_;
  MarkFinder ends_;
  std::string broken_;
};

// A name with what the family puts around it (functions.name:0).
std::string_view plain_name(std::string_view name, const ToolDialect& dialect) {
  if (dialect.ids != IdStyle::kKimi) return name;
  constexpr std::string_view kPrefix = "functions.";
  if (name.starts_with(kPrefix)) name.remove_prefix(kPrefix.size());
  const size_t colon = name.rfind(':');
  if (colon != std::string_view::npos &&
      name.find_first_not_of("0123456789", colon + 1) == std::string_view::npos) {
    name = name.substr(0, colon);
  }
  return name;
}

CallReader::Step HeadedReader::begin_arguments(CallSink& sink) {
  const Header header = HeaderParser(header_, dialect_).parse();
  const std::string name(plain_name(header.name, dialect_));
  if (header.is != Header::Is::kWhole || name.empty()) return Step::kStray;
  if ((bare_ || !header.has_separator) && !sink.knows(name)) return Step::kStray;
  sink.begin(name);
  arguments_.reset();
  state_ = State::kArguments;
  return arguments('{', sink);
}

// A mark behind a name: the call has none.
CallReader::Step HeadedReader::without_arguments(CallSink& sink) {
  const Header header = HeaderParser(header_, dialect_).parse();
  const std::string name(plain_name(header.name, dialect_));
  if (header.is != Header::Is::kWhole || name.empty()) return Step::kStray;
  sink.begin(name);
  sink.arguments("{}");
  return end_of_one();
}

CallReader::Step HeadedReader::header(char byte, CallSink& sink) {
  if (byte == '{') return begin_arguments(sink);
  header_.push_back(byte);
  const std::string_view text = trimmed(header_);
  const std::string_view each_begin = dialect_.each_begin;
  if (!each_begin.empty() && each_begin.starts_with(text)) {
    if (text == each_begin) header_.clear();  // the mark once more
    return Step::kMore;
  }
  if (!dialect_.each_end.empty() && text.ends_with(dialect_.each_end)) {
    header_ = text.substr(0, text.size() - dialect_.each_end.size());
    return without_arguments(sink);
  }
  if (may_end_here()) return Step::kMore;
  if (header_.size() > kMaxHeaderBytes ||
      HeaderParser(header_, dialect_).parse().is == Header::Is::kText) {
    return Step::kStray;
  }
  // What follows the word for everybody is text.
  return dialect_.prompted && text == kForAll && byte == '\n' ? Step::kEnd : Step::kMore;
}

// Whether the mark behind a call may have begun, so that the call has no arguments.
bool HeadedReader::may_end_here() const {
  const std::string_view end = dialect_.each_end;
  const size_t begin = end.empty() ? std::string::npos : header_.rfind(end.front());
  if (begin == std::string::npos || !end.starts_with(std::string_view(header_).substr(begin))) {
    return false;
  }
  const std::string_view before = std::string_view(header_).substr(0, begin);
  return HeaderParser(before, dialect_).parse().is == Header::Is::kWhole;
}

CallReader::Step HeadedReader::arguments(char byte, CallSink& sink) {
  std::string text;
  const JsonScanner::Step step = arguments_.push(byte, &text);
  sink.arguments(text);
  if (step == JsonScanner::Step::kBad) {
    state_ = State::kBroken;
    return broken(byte, sink);
  }
  if (step == JsonScanner::Step::kDone) {
    tag_.clear();
    state_ = State::kAfter;
  }
  return Step::kTaken;
}

CallReader::Step HeadedReader::broken(char byte, CallSink& sink) {
  const std::string_view mark = ends_.push(byte, &broken_);
  if (mark.empty()) return ends_.holds() ? Step::kMore : Step::kTaken;
  const std::string_view text = trimmed(broken_);
  if (text.ends_with(kFence)) broken_ = std::string(text.substr(0, text.size() - kFence.size()));
  sink.broken_arguments(std::exchange(broken_, {}), true);
  if (mark == dialect_.each_end) return end_of_one();
  return mark == dialect_.end ? Step::kEnd : Step::kStray;
}

// Between and after calls. Closing brackets too many are passed over: models miscount them.
CallReader::Step HeadedReader::after(char byte) {
  if (tag_.empty() && (is_blank(byte) || byte == '}' || byte == ']')) {
    return is_blank(byte) ? Step::kTaken : Step::kMore;
  }
  tag_.push_back(byte);
  if (is(dialect_.each_end)) return end_of_one();
  if (is(dialect_.end)) return Step::kEnd;
  if (is(dialect_.each_begin) || (dialect_.each_begin.empty() && is(dialect_.begin))) {
    open_header();
    return Step::kMore;
  }
  if (is(dialect_.begin) || (!dialect_.prompted && is(kFence))) {
    tag_.clear();
    return Step::kTaken;
  }
  const bool may_go_on = may_be(dialect_.each_end) || may_be(dialect_.end) ||
                         may_be(dialect_.each_begin) || may_be(dialect_.begin) ||
                         (!dialect_.prompted && may_be(kFence));
  return may_go_on ? Step::kMore : Step::kStray;
}

CallReader::Step HeadedReader::push(char byte, CallSink& sink) {
  switch (state_) {
    case State::kOpening:
      if (tag_.empty() && is_blank(byte)) return Step::kMore;
      tag_.push_back(byte);
      if (!may_be(dialect_.each_begin)) return Step::kStray;
      if (is(dialect_.each_begin)) open_header();
      return Step::kMore;
    case State::kHeader:
      return header(byte, sink);
    case State::kArguments:
      return arguments(byte, sink);
    case State::kBroken:
      return broken(byte, sink);
    case State::kAfter:
      return after(byte);
  }
  return Step::kStray;
}

bool HeadedReader::finish(CallSink& sink, Ending /*ending*/) {
  if (state_ == State::kBroken) sink.broken_arguments(broken_ + ends_.take_held());
  return state_ == State::kOpening || state_ == State::kHeader;
}

}  // namespace

std::unique_ptr<CallReader> make_headed_reader(const ToolDialect& dialect, bool bare,
                                               bool in_call) {
  return std::make_unique<HeadedReader>(dialect, bare, in_call);
}

}  // namespace rudder::dialect
