// The parser of an answer: thoughts first, then text with calls in it. Each part goes on byte by
// byte and decides by the bytes alone, so how the text is cut cannot matter.
#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "rudder/dialect/call_reader.h"
#include "rudder/dialect/json_scanner.h"
#include "rudder/dialect/mark_finder.h"

namespace rudder::dialect {
namespace {

// Text without the blanks at its ends that touch a mark: they are layout, not content.
class TrimmedText {
 public:
  explicit TrimmedText(std::string* out) : out_(out) {}

  void push(char byte) {
    if (!is_blank(byte)) {
      *out_ += std::exchange(blanks_, {});
      out_->push_back(byte);
      after_mark_ = false;
    } else if (!after_mark_) {
      blanks_.push_back(byte);
    }
  }
  void push(std::string_view text) {
    for (const char byte : text) push(byte);
  }
  void mark() {
    blanks_.clear();
    after_mark_ = true;
  }
  void finish() { *out_ += std::exchange(blanks_, {}); }

 private:
  std::string* const out_;
  std::string blanks_;  // may turn out to stand before a mark
  bool after_mark_ = false;
};

// Text and the calls in it.
class CallSplitter {
 public:
  CallSplitter(const ParserSetup& setup, uint64_t seed, Delta* delta)
      : dialect_(*setup.calls),
        sink_(setup, seed, delta),
        text_(&delta->content),
        marks_({dialect_.begin, dialect_.also_begin}),
        may_be_bare_(dialect_.bare) {}

  void push(char byte);
  void finish();
  void after_thoughts() { text_.mark(); }

 private:
  // What a byte leaves to be read again, from the front on.
  std::string step(char byte);
  void open(std::string_view mark);
  std::string in_call(char byte);

  const ToolDialect& dialect_;
  CallSink sink_;
  TrimmedText text_;
  MarkFinder marks_;
  std::unique_ptr<CallReader> reader_;
  std::string scratch_;
  std::string kept_;       // what the reader has not taken, its mark in front
  size_t mark_bytes_ = 0;  // of the mark in kept_
  bool taken_ = false;     // the reader has taken something
  bool may_be_bare_;       // nothing but blanks so far
};

void CallSplitter::push(char byte) {
  std::string again = step(byte);
  // What is read again is shorter each time: a mark that began nothing is not read twice.
  while (!again.empty()) {
    std::string rest;
    for (size_t i = 0; i < again.size(); ++i) {
      rest = step(again[i]);
      if (rest.empty()) continue;
      rest += std::string_view(again).substr(i + 1);
      break;
    }
    again = std::move(rest);
  }
}

std::string CallSplitter::step(char byte) {
  if (reader_) return in_call(byte);
  if (may_be_bare_ && !is_blank(byte)) {
    may_be_bare_ = false;
    const bool opens = byte == '[' || (byte == '{' && dialect_.form == CallForm::kJson);
    if (opens) {
      reader_ = dialect_.form == CallForm::kPythonic ? make_pythonic_reader(dialect_, true)
                                                     : make_json_reader(dialect_, true);
      kept_.clear();
      mark_bytes_ = 0;
      taken_ = false;
      return in_call(byte);
    }
  }
  scratch_.clear();
  const std::string_view mark = marks_.push(byte, &scratch_);
  text_.push(scratch_);
  if (!mark.empty()) open(mark);
  return {};
}

void CallSplitter::open(std::string_view mark) {
  kept_ = mark;
  mark_bytes_ = mark.size();
  taken_ = false;
  switch (dialect_.form) {
    case CallForm::kJson:
    case CallForm::kNamed:
      reader_ = make_json_reader(dialect_, false);
      break;
    case CallForm::kXml:
      reader_ = make_xml_reader(dialect_, mark == dialect_.also_begin);
      break;
    case CallForm::kPythonic:
      reader_ = make_pythonic_reader(dialect_, false);
      break;
    case CallForm::kBraced:
      reader_ = make_braced_reader(dialect_);
      break;
  }
}

std::string CallSplitter::in_call(char byte) {
  kept_.push_back(byte);
  switch (reader_->push(byte, sink_)) {
    case CallReader::Step::kMore:
      return {};
    case CallReader::Step::kTaken:
      if (!std::exchange(taken_, true)) text_.mark();
      kept_.clear();
      return {};
    case CallReader::Step::kEnd:
      text_.mark();
      kept_.clear();
      reader_.reset();
      return {};
    case CallReader::Step::kStray:
      break;
  }
  reader_.reset();
  std::string again = std::exchange(kept_, {});
  if (!taken_) {
    // The mark began nothing: it is text, and so is what a bare call would have begun with.
    const size_t as_text = std::max<size_t>(mark_bytes_, 1);
    text_.push(std::string_view(again).substr(0, as_text));
    again.erase(0, as_text);
  }
  return again;
}

void CallSplitter::finish() {
  if (reader_ && reader_->finish(sink_)) {
    text_.push(kept_);
  } else if (reader_) {
    text_.mark();
  }
  text_.push(marks_.take_held());
  text_.finish();
}

class AnswerParser final : public OutputParser {
 public:
  AnswerParser(const ParserSetup& setup, uint64_t seed)
      : reasoning_(setup.reasoning),
        thoughts_(&delta_.reasoning),
        end_({reasoning_ != nullptr ? reasoning_->end : ""}) {
    if (setup.calls != nullptr) calls_.emplace(setup, seed, &delta_);
    if (reasoning_ == nullptr) return;
    state_ = setup.in_reasoning || reasoning_->always ? State::kInThoughts : State::kStart;
    thoughts_.mark();
  }

  Delta push(std::string_view text) override {
    delta_ = Delta();
    for (const char byte : text) step(byte);
    return std::move(delta_);
  }

  Delta finish() override {
    delta_ = Delta();
    end_start();
    if (state_ == State::kThoughts) thoughts_.push(end_.take_held());
    thoughts_.finish();
    if (calls_) calls_->finish();
    return std::move(delta_);
  }

  bool thinking() const override {
    return state_ == State::kInThoughts || state_ == State::kThoughts;
  }

 private:
  enum class State : uint8_t {
    kStart,       // thoughts may begin, with their mark
    kInThoughts,  // they have begun; their mark may come even so
    kThoughts,
    kAnswer,
  };

  void step(char byte);
  void start(char byte);
  void end_start();
  void answer(char byte);

  const ReasoningDialect* const reasoning_;
  Delta delta_;
  TrimmedText thoughts_;
  MarkFinder end_;  // of the thoughts
  std::optional<CallSplitter> calls_;
  State state_ = State::kAnswer;
  std::string kept_;  // blanks, and what may be the mark that opens thoughts
  bool after_thoughts_ = false;
};

void AnswerParser::start(char byte) {
  kept_.push_back(byte);
  const size_t blanks = kept_.find_first_not_of(" \n\t\r");
  if (blanks == std::string::npos) return;
  const std::string_view begun = std::string_view(kept_).substr(blanks);
  if (begun == reasoning_->begin) {
    kept_.clear();
    state_ = State::kThoughts;
  } else if (!reasoning_->begin.starts_with(begun)) {
    end_start();
  }
}

// No mark opens the thoughts: what was kept is the beginning of what is there without one.
void AnswerParser::end_start() {
  if (state_ != State::kStart && state_ != State::kInThoughts) return;
  state_ = state_ == State::kStart ? State::kAnswer : State::kThoughts;
  for (const char byte : std::exchange(kept_, {})) step(byte);
}

void AnswerParser::step(char byte) {
  switch (state_) {
    case State::kStart:
    case State::kInThoughts:
      return start(byte);
    case State::kThoughts: {
      std::string text;
      const bool ended = !end_.push(byte, &text).empty();
      thoughts_.push(text);
      if (!ended) return;
      thoughts_.mark();
      after_thoughts_ = true;
      if (calls_) calls_->after_thoughts();
      state_ = State::kAnswer;
      return;
    }
    case State::kAnswer:
      return answer(byte);
  }
}

void AnswerParser::answer(char byte) {
  if (calls_) return calls_->push(byte);
  if (after_thoughts_ && is_blank(byte)) return;
  after_thoughts_ = false;
  delta_.content.push_back(byte);
}

}  // namespace

std::unique_ptr<OutputParser> make_parser(const ParserSetup& setup, uint64_t seed) {
  return std::make_unique<AnswerParser>(setup, seed);
}

}  // namespace rudder::dialect
