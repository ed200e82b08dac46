// Calls as Gemma writes them, each between its marks: kept until the end mark
// and sent as a whole. The end mark inside a string is text of the string, if
// the string goes on behind it.
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rudder/dialect/braced_literals.h"
#include "rudder/dialect/call_reader.h"
#include "rudder/dialect/json_scanner.h"
#include "rudder/dialect/mark_finder.h"

namespace rudder::dialect {
namespace {

class BracedReader final : public CallReader {
 public:
  explicit BracedReader(const ToolDialect& dialect)
      : dialect_(dialect), marks_({dialect.quote, dialect.end, dialect.begin}) {}

  Step push(char byte, CallSink& sink) override;
  bool finish(CallSink& sink, Ending ending) override;
  size_t bytes_behind_calls() const override { return behind_; }

 private:
  Step quote();
  Step end(CallSink& sink);
  Step next_call(CallSink& sink);
  Step in_next_call(char byte, CallSink& sink);
  BracedCalls calls_of(std::string_view source, bool is_cut, const CallSink& sink) const;
  bool tell(std::string_view source, bool is_cut, CallSink& sink);
  bool tell_all(size_t mark_bytes, CallSink& sink);
  void tell_taken(size_t end, CallSink& sink);
  bool is_json(char byte) const;

  const ToolDialect& dialect_;
  MarkFinder marks_;
  std::unique_ptr<CallReader> json_;  // of a call that is written as JSON even so
  std::string source_;
  bool in_string_ = false;
  std::optional<size_t> end_in_string_;  // where the call ends if its string has no end
  size_t taken_ = 0;                     // of source_: the last of them
  std::optional<std::string> next_;      // behind the mark of another call, if it is one
  size_t behind_ = std::string::npos;    // as bytes_behind_calls()
};

BracedCalls BracedReader::calls_of(std::string_view source, bool is_cut,
                                   const CallSink& sink) const {
  return parse_braced_calls(source, dialect_.quote, is_cut, sink);
}

bool BracedReader::tell(std::string_view source, bool is_cut, CallSink& sink) {
  const BracedCalls found = calls_of(source, is_cut, sink);
  for (const LooseCall& call : found.calls) {
    sink.begin(call.name);
    sink.arguments(call.arguments);
  }
  behind_ = found.calls.empty() || found.behind.empty() ? std::string::npos : found.behind.size();
  return !found.calls.empty();
}

// In front of a mark of `mark_bytes`. What was taken for a call whose string had no end is that
// call, if the string went on and nothing came of it.
bool BracedReader::tell_all(size_t mark_bytes, CallSink& sink) {
  if (tell(source_, false, sink)) {
    if (behind_ != std::string::npos) behind_ += mark_bytes;
    return true;
  }
  if (taken_ > 0) tell_taken(taken_, sink);
  return false;
}

void BracedReader::tell_taken(size_t end, CallSink& sink) {
  const std::string_view source = std::string_view(source_).substr(0, end);
  if (!tell(source, false, sink)) tell(source, true, sink);
  behind_ = std::string::npos;  // it has been taken
}

// Behind the mark, or "call:" too.
bool BracedReader::is_json(char byte) const {
  if (byte != '{') return false;
  const std::string_view begun = trimmed(source_);
  return begun.empty() || is_call_mark(begun);
}

CallReader::Step BracedReader::push(char byte, CallSink& sink) {
  if (json_) return json_->push(byte, sink);
  if (next_) return in_next_call(byte, sink);
  if (is_json(byte)) {
    json_ = make_json_reader(dialect_, false);
    return json_->push(byte, sink);
  }
  const std::string_view mark = marks_.push(byte, &source_);
  if (mark.empty()) return Step::kMore;
  if (mark == dialect_.quote) return quote();
  return mark == dialect_.end ? end(sink) : next_call(sink);
}

CallReader::Step BracedReader::quote() {
  source_ += dialect_.quote;
  in_string_ = !in_string_;
  const bool went_on = end_in_string_.has_value();
  end_in_string_.reset();
  return went_on ? Step::kTaken : Step::kMore;
}

CallReader::Step BracedReader::end(CallSink& sink) {
  if (!in_string_) {
    const bool is_end = tell_all(dialect_.end.size(), sink) && behind_ == std::string::npos;
    return is_end ? Step::kEnd : Step::kStray;
  }
  const bool is_first = !end_in_string_;
  if (is_first && calls_of(source_, true, sink).calls.empty()) {
    if (taken_ > 0) tell_taken(taken_, sink);
    return Step::kStray;
  }
  if (is_first) end_in_string_ = taken_ = source_.size();
  source_ += dialect_.end;
  return is_first ? Step::kTaken : Step::kMore;
}

// The mark of another call: in a string it is text, if the string goes on.
CallReader::Step BracedReader::next_call(CallSink& sink) {
  if (in_string_) {
    if (end_in_string_) {
      next_.emplace();
    } else {
      source_ += dialect_.begin;
    }
    return Step::kMore;
  }
  if (!tell_all(dialect_.begin.size(), sink) || behind_ != std::string::npos) return Step::kStray;
  source_.clear();
  taken_ = 0;
  return Step::kTaken;
}

CallReader::Step BracedReader::in_next_call(char byte, CallSink& sink) {
  *next_ += byte;
  const std::string_view begun = trimmed(*next_);
  if (is_call_mark(begun)) {
    tell_taken(*end_in_string_, sink);
    return Step::kStray;  // what is behind the end is the answer's again
  }
  if (begins_call_mark(begun)) return Step::kMore;
  source_ += dialect_.begin;
  Step step = Step::kMore;
  const std::string bytes = *std::exchange(next_, std::nullopt);
  for (const char again : bytes) step = push(again, sink);
  return step;
}

// The end mark is often the token that ends the answer, whose text is left out.
bool BracedReader::finish(CallSink& sink, Ending ending) {
  if (json_) return json_->finish(sink, ending);
  if (end_in_string_ && ending == Ending::kWhole) {
    tell_taken(*end_in_string_, sink);
    return true;  // what is behind it
  }
  const bool is_call = tell(source_, true, sink);  // what may begin a mark is of no call
  if (!is_call && taken_ > 0) tell_taken(taken_, sink);
  if (behind_ == std::string::npos) return !is_call;
  behind_ += marks_.take_held().size();
  return true;
}

}  // namespace

std::unique_ptr<CallReader> make_braced_reader(const ToolDialect& dialect) {
  return std::make_unique<BracedReader>(dialect);
}

}  // namespace rudder::dialect
