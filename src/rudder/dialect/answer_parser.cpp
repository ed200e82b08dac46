// Parses an answer: thoughts first, then text with calls in it. It works byte by byte and depends
// on the bytes alone, so the cuts of the text cannot matter.
#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "rudder/dialect/call_reader.h"
#include "rudder/dialect/json_scanner.h"
#include "rudder/dialect/mark_finder.h"

namespace rudder::dialect {
namespace {

// Text without the blanks at its ends that touch a mark: they are layout, not content. Between two
// pieces of text that a mark parts, the blanks before it stay, or else those behind it, or else one
// newline stands: the pieces do not become one word.
class TrimmedText {
 public:
  explicit TrimmedText(std::string* out) : out_(out) {}

  void push(char byte) {
    if (is_blank(byte)) {
      blanks_.push_back(byte);
      return;
    }
    if (after_mark_) {
      if (gap_.empty()) gap_ = blanks_.empty() ? "\n" : blanks_;
      if (any_) *out_ += gap_;
    } else {
      *out_ += blanks_;
    }
    blanks_.clear();
    gap_.clear();
    after_mark_ = false;
    any_ = true;
    out_->push_back(byte);
  }
  void push(std::string_view text) {
    for (const char byte : text) push(byte);
  }
  void mark() {
    if (gap_.empty()) gap_ = blanks_;
    blanks_.clear();
    after_mark_ = true;
  }
  void finish() {
    if (!after_mark_) *out_ += blanks_;
    blanks_.clear();
  }

 private:
  std::string* const out_;
  std::string blanks_;  // may turn out to stand before a mark
  std::string gap_;     // the blanks beside the marks since the last text
  bool after_mark_ = false;
  bool any_ = false;  // text so far
};

// Thoughts and text, and the calls in them. A call ends the thoughts that were not closed: models
// forget to.
class TextSplitter {
 public:
  TextSplitter(const ParserSetup& setup, uint64_t seed, Delta* delta)
      : dialect_(setup.calls),
        must_call_(setup.must_call),
        sink_(setup, seed, delta),
        thoughts_(&delta->reasoning),
        content_(&delta->content),
        may_be_bare_(dialect_ != nullptr && dialect_->bare) {
    if (setup.reasoning != nullptr) end_of_thoughts_ = setup.reasoning->end;
    std::vector<std::string_view> marks;
    if (dialect_ != nullptr) marks = {dialect_->begin, dialect_->also_begin};
    marks_ = MarkFinder(marks);
    marks.push_back(end_of_thoughts_);
    marks_in_thoughts_ = MarkFinder(std::move(marks));
    thoughts_.mark();
  }

  void push(char byte);
  void finish();
  void begin_thoughts() { thinking_ = true; }
  bool thinking() const { return thinking_; }

 private:
  // What a byte leaves to be read again, from the front on.
  std::string step(char byte);
  bool begins_bare_call(char byte);
  void found(std::string_view mark);
  void open(std::string_view mark);
  std::string in_call(char byte);
  void end_thoughts(bool by_call);
  void finish_call();
  TrimmedText& text() { return thinking_ ? thoughts_ : content_; }

  const ToolDialect* const dialect_;  // null: calls are text
  std::string_view end_of_thoughts_;
  const bool must_call_;
  CallSink sink_;
  TrimmedText thoughts_;
  TrimmedText content_;
  MarkFinder marks_{{}};
  MarkFinder marks_in_thoughts_{{}};
  std::unique_ptr<CallReader> reader_;
  std::string scratch_;
  std::string kept_;       // what the reader has not taken, its mark in front
  size_t mark_bytes_ = 0;  // of the mark in kept_
  bool taken_ = false;     // the reader has taken something
  bool may_be_bare_;       // nothing but blanks so far
  bool thinking_ = false;
  bool cut_thoughts_ = false;  // a call ended the thoughts; their own end may come yet
};

void TextSplitter::push(char byte) {
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

bool TextSplitter::begins_bare_call(char byte) {
  if (thinking_ || !may_be_bare_ || is_blank(byte)) return false;
  may_be_bare_ = false;
  if (byte != '[' && (byte != '{' || dialect_->form != CallForm::kJson)) return false;
  reader_ = dialect_->form == CallForm::kPythonic ? make_pythonic_reader(*dialect_, true)
                                                  : make_json_reader(*dialect_, true);
  kept_.clear();
  mark_bytes_ = 0;
  taken_ = false;
  return true;
}

std::string TextSplitter::step(char byte) {
  if (reader_ || begins_bare_call(byte)) return in_call(byte);
  scratch_.clear();
  MarkFinder& marks = thinking_ || cut_thoughts_ ? marks_in_thoughts_ : marks_;
  const std::string_view mark = marks.push(byte, &scratch_);
  text().push(scratch_);
  if (!mark.empty()) found(mark);
  return {};
}

void TextSplitter::found(std::string_view mark) {
  if (!end_of_thoughts_.empty() && mark == end_of_thoughts_) {
    end_thoughts(false);
  } else {
    open(mark);
  }
}

void TextSplitter::end_thoughts(bool by_call) {
  text().mark();
  cut_thoughts_ = by_call && thinking_;
  thinking_ = false;
  content_.mark();
  if (by_call) may_be_bare_ = false;
}

void TextSplitter::open(std::string_view mark) {
  kept_ = mark;
  mark_bytes_ = mark.size();
  taken_ = false;
  switch (dialect_->form) {
    case CallForm::kJson:
    case CallForm::kNamed:
      reader_ = make_json_reader(*dialect_, false);
      break;
    case CallForm::kXml:
      reader_ = make_xml_reader(*dialect_, mark == dialect_->also_begin);
      break;
    case CallForm::kPythonic:
      reader_ = make_pythonic_reader(*dialect_, false);
      break;
    case CallForm::kBraced:
      reader_ = make_braced_reader(*dialect_);
      break;
  }
}

std::string TextSplitter::in_call(char byte) {
  kept_.push_back(byte);
  const CallReader::Step step = reader_->push(byte, sink_);
  if (step == CallReader::Step::kMore) return {};
  if (step != CallReader::Step::kStray) {
    if (thinking_) end_thoughts(true);
    content_.mark();
    taken_ = true;
    kept_.clear();
    if (step == CallReader::Step::kEnd) reader_.reset();
    return {};
  }
  reader_.reset();
  std::string again = std::exchange(kept_, {});
  if (!taken_) {
    // No call follows: the mark, or the first byte of a bare call, is text.
    const size_t as_text = std::max<size_t>(mark_bytes_, 1);
    text().push(std::string_view(again).substr(0, as_text));
    again.erase(0, as_text);
  }
  return again;
}

void TextSplitter::finish_call() {
  const int32_t calls_before = sink_.num_calls();
  const bool is_text = reader_->finish(sink_);
  reader_.reset();
  if (taken_ || sink_.num_calls() > calls_before) {
    if (thinking_) end_thoughts(true);
    content_.mark();
  }
  if (!is_text) return;
  const std::string kept = std::exchange(kept_, {});
  if (!thinking_) {
    if (!must_call_) content_.push(kept);
    return;
  }
  // The thoughts may have ended in what seemed to be a call.
  const size_t end = kept.find(end_of_thoughts_, mark_bytes_);
  thoughts_.push(std::string_view(kept).substr(0, end));
  if (end == std::string::npos) return;
  end_thoughts(false);
  for (const char byte : kept.substr(end + end_of_thoughts_.size())) push(byte);
  if (reader_) finish_call();
}

void TextSplitter::finish() {
  if (reader_) finish_call();
  if (thinking_ || !must_call_) {
    text().push(marks_in_thoughts_.take_held());
    text().push(marks_.take_held());
  }
  thoughts_.finish();
  content_.finish();
}

// The mark that opens the thoughts, then the rest.
class AnswerParser final : public OutputParser {
 public:
  AnswerParser(const ParserSetup& setup, uint64_t seed)
      : reasoning_(setup.reasoning), must_call_(setup.must_call), text_(setup, seed, &delta_) {
    if (reasoning_ == nullptr) return;
    at_start_ = true;
    if (setup.in_reasoning || reasoning_->always) text_.begin_thoughts();
  }

  Delta push(std::string_view text) override {
    delta_ = Delta();
    for (const char byte : text) step(byte);
    return std::move(delta_);
  }

  Delta finish() override {
    delta_ = Delta();
    if (!must_call_) end_start();
    text_.finish();
    return std::move(delta_);
  }

  bool thinking() const override { return text_.thinking(); }

 private:
  void step(char byte);
  void end_start();

  const ReasoningDialect* const reasoning_;
  const bool must_call_;
  Delta delta_;
  TextSplitter text_;
  bool at_start_ = false;  // the mark that opens the thoughts may come, even where they are open
  std::string kept_;       // blanks, and what may be that mark
};

void AnswerParser::step(char byte) {
  if (!at_start_) return text_.push(byte);
  kept_.push_back(byte);
  const size_t blanks = kept_.find_first_not_of(" \n\t\r");
  if (blanks == std::string::npos) return;
  const std::string_view begun = std::string_view(kept_).substr(blanks);
  if (begun == reasoning_->begin) {
    kept_.clear();
    at_start_ = false;
    text_.begin_thoughts();
  } else if (!reasoning_->begin.starts_with(begun)) {
    end_start();
  }
}

// No mark opens the thoughts: the bytes kept so far are the beginning of the text.
void AnswerParser::end_start() {
  at_start_ = false;
  for (const char byte : std::exchange(kept_, {})) text_.push(byte);
}

}  // namespace

std::unique_ptr<OutputParser> make_parser(const ParserSetup& setup, uint64_t seed) {
  return std::make_unique<AnswerParser>(setup, seed);
}

}  // namespace rudder::dialect
