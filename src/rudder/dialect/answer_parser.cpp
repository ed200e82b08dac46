// Parses an answer: thoughts first, then text with calls in it. It works byte by byte and depends
// on the bytes alone, so the cuts of the text cannot matter.
#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "rudder/base/check.h"
#include "rudder/dialect/call_reader.h"
#include "rudder/dialect/harmony.h"
#include "rudder/dialect/json_scanner.h"
#include "rudder/dialect/mark_finder.h"
#include "rudder/dialect/unopened_call.h"

namespace rudder::dialect {
namespace {

// Text without the blanks at its ends that touch a mark: they are layout, not content. Between two
// pieces of text that a mark parts, the blanks before it stay, or else those behind it, or else one
// newline stands: the pieces do not become one word.
class TrimmedText {
 public:
  // Null: what is written is lost.
  explicit TrimmedText(std::string* out) : out_(out) {}

  void push(char byte) {
    if (out_ == nullptr) return;
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
    if (!after_mark_ && out_ != nullptr) *out_ += blanks_;
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
// forget to. They also forget the mark before a call, or write it twice.
class TextSplitter {
 public:
  TextSplitter(const ParserSetup& setup, uint64_t seed, Delta* delta)
      : dialect_(setup.calls),
        must_call_(setup.must_call),
        sink_(setup, seed, delta),
        thoughts_(&delta->reasoning),
        content_(must_call_ && dialect_ != nullptr ? nullptr : &delta->content),
        may_be_bare_(dialect_ != nullptr && (dialect_->bare || dialect_->prompted)),
        takes_unopened_(dialect_ != nullptr && !dialect_->bare && !setup.is_held && !must_call_ &&
                        dialect_->form != CallForm::kHeaded),
        may_be_unopened_(takes_unopened_) {
    if (setup.reasoning != nullptr) end_of_thoughts_ = setup.reasoning->end;
    std::vector<std::string_view> marks = {end_of_thoughts_};
    if (dialect_ != nullptr) {
      marks.insert(marks.end(), {dialect_->begin, dialect_->also_begin, dialect_->each_begin,
                                 dialect_->each_end});
      // An end that another mark begins with would be taken for it.
      if (!dialect_->begin.starts_with(dialect_->end)) marks.push_back(dialect_->end);
    }
    marks_ = MarkFinder(std::move(marks));
    thoughts_.mark();
  }

  void push(char byte);
  void finish(Ending ending);
  void begin_thoughts() { thinking_ = true; }
  bool thinking() const { return thinking_; }

 private:
  // What a byte leaves to be read again, from the front on.
  std::string step(char byte);
  bool begins_bare_call(char byte);
  bool begins_unopened_call(char byte);
  std::string in_unopened_call(char byte);
  void found(std::string_view mark);
  void open(std::string_view mark);
  std::string in_call(char byte);
  bool opens_again(char byte);
  std::string read_call(char byte);
  void end_thoughts(bool by_call);
  void drop_calls(size_t behind);
  void finish_call(Ending ending);
  TrimmedText& text() { return thinking_ ? thoughts_ : content_; }

  const ToolDialect* const dialect_;  // null: calls are text
  std::string_view end_of_thoughts_;
  const bool must_call_;
  CallSink sink_;
  TrimmedText thoughts_;
  TrimmedText content_;
  MarkFinder marks_{{}};
  std::unique_ptr<CallReader> reader_;
  std::string scratch_;
  std::string kept_;           // what the reader has not taken, its mark in front
  size_t mark_bytes_ = 0;      // of the mark in kept_
  bool taken_ = false;         // the reader has taken something
  bool may_be_bare_;           // nothing but blanks so far
  const bool takes_unopened_;  // calls whose first mark is missing
  bool may_be_unopened_;       // nothing but blanks so far, or since a call
  std::string unopened_;       // what may be such a call
  UnopenedCall unopened_call_ = {};
  std::string opener_;      // behind the mark before a call, what may be that mark again
  bool broke_off_ = false;  // the last call's end mark may come yet, behind what is no call
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
  if (dialect_->prompted) {
    if (dialect_->begin.starts_with(byte)) return false;
    reader_ = make_headed_reader(*dialect_, true, true);
  } else if (byte == '[' || (byte == '{' && dialect_->form == CallForm::kJson)) {
    reader_ = dialect_->form == CallForm::kPythonic ? make_pythonic_reader(*dialect_, true)
                                                    : make_json_reader(*dialect_, true);
  } else {
    return false;
  }
  kept_.clear();
  mark_bytes_ = 0;
  taken_ = false;
  return true;
}

bool TextSplitter::begins_unopened_call(char byte) {
  if (thinking_ || !may_be_unopened_ || is_blank(byte)) return false;
  may_be_unopened_ = false;
  unopened_call_ = UnopenedCall(*dialect_);
  return true;
}

// What begins like a call of a tool is one, without its mark, if the mark behind calls follows, or
// the dialect has none.
std::string TextSplitter::in_unopened_call(char byte) {
  unopened_.push_back(byte);
  const UnopenedCall::Step step = unopened_call_.push(byte, sink_);
  if (step == UnopenedCall::Step::kMore) return {};
  std::string again = std::exchange(unopened_, {});
  if (step == UnopenedCall::Step::kCall) {
    open(dialect_->begin);
    kept_.clear();
    mark_bytes_ = 0;
  }
  return again;
}

std::string TextSplitter::step(char byte) {
  if (reader_ || begins_bare_call(byte)) return in_call(byte);
  if (!unopened_.empty() || begins_unopened_call(byte)) return in_unopened_call(byte);
  scratch_.clear();
  const std::string_view mark = marks_.push(byte, &scratch_);
  text().push(scratch_);
  if (!mark.empty()) found(mark);
  return {};
}

void TextSplitter::found(std::string_view mark) {
  if (mark == end_of_thoughts_) {
    if (thinking_ || cut_thoughts_) return end_thoughts(false);
    text().push(mark);
  } else if (mark == dialect_->end || mark == dialect_->each_end) {
    if (!broke_off_) return text().push(mark);
    broke_off_ = mark == dialect_->each_end;
    text().mark();
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
  broke_off_ = false;
  switch (dialect_->form) {
    case CallForm::kJson:
    case CallForm::kNamed:
      reader_ = make_json_reader(*dialect_, false);
      break;
    case CallForm::kXml:
      reader_ = make_xml_reader(*dialect_, mark == dialect_->also_begin);
      break;
    case CallForm::kTagged:
      reader_ = make_xml_reader(*dialect_, true);
      break;
    case CallForm::kPythonic:
      reader_ = make_pythonic_reader(*dialect_, false);
      break;
    case CallForm::kBraced:
      reader_ = make_braced_reader(*dialect_);
      break;
    case CallForm::kHeaded:
      reader_ = make_headed_reader(*dialect_, false, mark == dialect_->each_begin);
      break;
    case CallForm::kHarmony:
      RUDDER_CHECK(false, "harmony::make_parser reads these");
  }
}

// The mark before a call once more, with nothing but blanks between the two.
bool TextSplitter::opens_again(char byte) {
  if (taken_ || mark_bytes_ == 0) return false;
  if (opener_.empty()) {
    if (byte != dialect_->begin.front()) return false;
    const auto behind = kept_.begin() + static_cast<std::ptrdiff_t>(mark_bytes_);
    if (!std::all_of(behind, kept_.end(), is_blank)) return false;
  }
  return dialect_->begin.substr(opener_.size()).starts_with(byte);
}

std::string TextSplitter::in_call(char byte) {
  if (opens_again(byte)) {
    opener_.push_back(byte);
    if (opener_ != dialect_->begin) return {};
    const std::string marks = kept_ + std::exchange(opener_, {});
    open(dialect_->begin);
    kept_ = marks;  // text, if no call follows
    mark_bytes_ = marks.size();
    return {};
  }
  if (opener_.empty()) return read_call(byte);
  // The reader gets what it was not: all of it, byte by byte.
  std::string bytes = std::exchange(opener_, {}) + byte;
  for (size_t i = 0; i < bytes.size(); ++i) {
    std::string again = read_call(bytes[i]);
    if (reader_) continue;
    return again + bytes.substr(i + 1);
  }
  return {};
}

std::string TextSplitter::read_call(char byte) {
  kept_.push_back(byte);
  const CallReader::Step step = reader_->push(byte, sink_);
  if (step == CallReader::Step::kMore) return {};
  if (step != CallReader::Step::kStray) {
    if (thinking_) end_thoughts(true);
    content_.mark();
    taken_ = true;
    kept_.clear();
    if (step != CallReader::Step::kEnd) return {};
    reader_.reset();
    may_be_unopened_ = takes_unopened_;
    return {};
  }
  drop_calls(reader_->bytes_behind_calls());
  reader_.reset();
  broke_off_ = taken_;
  std::string again = std::exchange(kept_, {});
  if (!taken_) {
    // No call follows: the mark, or the first byte of a bare call, is text.
    const size_t as_text = std::max<size_t>(mark_bytes_, 1);
    text().push(std::string_view(again).substr(0, as_text));
    again.erase(0, as_text);
  }
  return again;
}

// Of the text that the reader has not taken, all but the last `behind` bytes are calls.
void TextSplitter::drop_calls(size_t behind) {
  if (behind == std::string::npos) return;
  if (thinking_) end_thoughts(true);
  content_.mark();
  taken_ = true;
  kept_.erase(0, kept_.size() - std::min(behind, kept_.size()));
}

void TextSplitter::finish_call(Ending ending) {
  const std::string bytes = std::exchange(opener_, {});
  for (size_t i = 0; i < bytes.size(); ++i) {
    const std::string again = read_call(bytes[i]);
    if (reader_) continue;
    for (const char byte : again + bytes.substr(i + 1)) push(byte);
    if (reader_) finish_call(ending);  // of fewer bytes
    return;
  }
  const int32_t calls_before = sink_.num_calls();
  const bool is_text = reader_->finish(sink_, ending);
  if (is_text) drop_calls(reader_->bytes_behind_calls());
  reader_.reset();
  if (taken_ || sink_.num_calls() > calls_before) {
    if (thinking_) end_thoughts(true);
    content_.mark();
  }
  if (!is_text) return;
  const std::string kept = std::exchange(kept_, {});
  if (!thinking_) {
    if (!taken_) return content_.push(kept);
    // Behind calls: marks too many are no text there.
    broke_off_ = true;
    for (const char byte : kept) push(byte);
    if (reader_) finish_call(ending);  // of fewer bytes
    return;
  }
  // The thoughts may have ended in what seemed to be a call.
  const size_t end = kept.find(end_of_thoughts_, mark_bytes_);
  thoughts_.push(std::string_view(kept).substr(0, end));
  if (end == std::string::npos) return;
  end_thoughts(false);
  for (const char byte : kept.substr(end + end_of_thoughts_.size())) push(byte);
  if (reader_) finish_call(ending);
}

void TextSplitter::finish(Ending ending) {
  if (reader_) finish_call(ending);
  for (const char byte : std::exchange(unopened_, {})) push(byte);
  if (reader_) finish_call(ending);
  text().push(marks_.take_held());
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

  Delta finish(Ending ending) override {
    delta_ = Delta();
    if (!must_call_) end_start();
    text_.finish(ending);
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
  if (setup.harmony || is_harmony(setup.calls, setup.reasoning)) {
    return harmony::make_parser(setup, seed);
  }
  return std::make_unique<AnswerParser>(setup, seed);
}

}  // namespace rudder::dialect
