// Reads an answer in Harmony byte by byte: the cuts of the text cannot matter. Models forget marks,
// write them in any order, or write none: no text is lost by that.
#include <algorithm>
#include <string>
#include <utility>

#include "rudder/dialect/call_reader.h"
#include "rudder/dialect/harmony.h"
#include "rudder/dialect/json_scanner.h"
#include "rudder/dialect/mark_finder.h"

namespace rudder::dialect::harmony {
namespace {

constexpr std::string_view kAnalysis = "analysis";
constexpr std::array kChannels = {kAnalysis, std::string_view("commentary"),
                                  std::string_view("final")};
constexpr std::array<std::string_view, 5> kRoles = {"assistant", "user", "system", "developer",
                                                    "tool"};
constexpr std::array<std::string_view, 2> kTypes = {"json", "code"};
constexpr std::string_view kTo = "to=";
constexpr std::string_view kFunctions = "functions.";
constexpr size_t kMaxHarmonyHeaderBytes = 2 * kMaxNameBytes;

// The words that a header has outside its marks: a role, a channel, a recipient, a type, each of
// them or none.
struct Words {
  std::string_view channel = {};
  std::string_view recipient = {};
  std::string_view rest = {};  // behind them
  bool may_go_on = false;      // nothing is behind them, and the last one may be cut
};

class WordReader {
 public:
  explicit WordReader(std::string_view text) : text_(text) {}

  Words read() {
    Words out;
    if (take_one_of(kRoles).empty()) skip_function();
    out.channel = take_one_of(kChannels);
    out.recipient = take_recipient();
    if (out.channel.empty()) out.channel = take_one_of(kChannels);
    take_one_of(kTypes);
    skip_blanks();
    out.rest = text_;
    out.may_go_on = out.rest.empty() || begins_word(out.rest);
    return out;
  }

 private:
  void skip_blanks() {
    while (!text_.empty() && is_blank(text_.front())) text_.remove_prefix(1);
  }
  // A whole word; the end of the text ends one.
  template <typename List>
  std::string_view take_one_of(const List& words) {
    skip_blanks();
    for (const std::string_view word : words) {
      if (!text_.starts_with(word)) continue;
      if (text_.size() > word.size() && !is_blank(text_[word.size()])) continue;
      text_.remove_prefix(word.size());
      return word;
    }
    return {};
  }
  std::string_view take_recipient() {
    skip_blanks();
    if (!text_.starts_with(kTo)) return {};
    text_.remove_prefix(kTo.size());
    return take_word();
  }
  // The author of a result.
  void skip_function() {
    if (text_.starts_with(kFunctions)) take_word();
  }
  std::string_view take_word() {
    size_t end = 0;
    while (end < text_.size() && !is_blank(text_[end])) ++end;
    const std::string_view out = text_.substr(0, end);
    text_.remove_prefix(end);
    return out;
  }
  static bool begins_word(std::string_view text) {
    const auto begins = [&](std::string_view word) { return word.starts_with(text); };
    return begins(kTo) || begins(kFunctions) || std::ranges::any_of(kRoles, begins) ||
           std::ranges::any_of(kChannels, begins) || std::ranges::any_of(kTypes, begins);
  }

  std::string_view text_;
};

// Text of several messages: where neither side has a blank, a newline keeps their words apart.
class MessageText {
 public:
  explicit MessageText(std::string* out) : out_(out) {}

  void push(char byte) {
    if (at_begin_ && last_ != '\0' && !is_blank(last_) && !is_blank(byte)) out_->push_back('\n');
    at_begin_ = false;
    last_ = byte;
    out_->push_back(byte);
  }
  void next_message() { at_begin_ = true; }

 private:
  std::string* const out_;
  bool at_begin_ = true;
  char last_ = '\0';  // of all text so far
};

// The arguments of a call.
class CallText {
 public:
  explicit CallText(CallSink& sink) : sink_(sink) {}

  void begin(std::string_view name) {
    sink_.begin(name);
    arguments_.reset();
    broken_.clear();
    state_ = State::kBegin;
  }
  // Marks are text there.
  bool in_string() const { return state_ == State::kJson && arguments_.in_string(); }
  bool is_done() const { return state_ == State::kDone; }
  // False: the arguments were over before it, it is no part of the call.
  bool push(char byte) {
    if (state_ == State::kDone) return is_blank(byte) || byte == '}' || byte == ']';
    if (state_ == State::kBegin) {
      if (is_blank(byte)) return true;
      state_ = byte == '{' ? State::kJson : State::kBroken;
    }
    if (state_ == State::kJson) {
      std::string text;
      const JsonScanner::Step step = arguments_.push(byte, &text);
      sink_.arguments(text);
      if (step != JsonScanner::Step::kBad) {
        if (step == JsonScanner::Step::kDone) state_ = State::kDone;
        return true;
      }
      state_ = State::kBroken;
    }
    broken_.push_back(byte);
    return true;
  }
  void finish(bool has_ended) {
    if (state_ == State::kBegin && has_ended) return sink_.arguments("{}");
    if (state_ == State::kBroken || (state_ == State::kJson && has_ended)) {
      sink_.broken_arguments(std::exchange(broken_, {}), has_ended);
    }
  }

 private:
  enum class State : uint8_t { kBegin, kJson, kBroken, kDone };

  CallSink& sink_;
  JsonCopier arguments_;
  std::string broken_;
  State state_ = State::kBegin;
};

class HarmonyParser final : public OutputParser {
 public:
  HarmonyParser(const ParserSetup& setup, uint64_t seed)
      : setup_(setup),
        sink_(setup, seed, &delta_),
        call_(sink_),
        thoughts_(&delta_.reasoning),
        content_(&delta_.content) {
    for (const char byte : setup.opening) step(byte);
    if (target_ == Target::kCall) target_ = Target::kContent;  // nobody was told of it
    delta_ = Delta();
  }

  Delta push(std::string_view text) override {
    delta_ = Delta();
    for (const char byte : text) step(byte);
    return std::move(delta_);
  }

  Delta finish(Ending /*ending*/) override {
    delta_ = Delta();
    // The beginning of a mark, where one may stand; else text.
    const std::string held = marks_.take_held();
    const bool is_mark = setup_.must_call || state_ == State::kHeader ||
                         (state_ == State::kBody && target_ == Target::kCall && call_.is_done());
    for (size_t i = 0; i < held.size() && !is_mark; ++i) take(held[i]);
    switch (state_) {
      case State::kOutside:
        flush_outside();
        break;
      case State::kHeader:
        leave_header(true);
        break;
      case State::kBody:
        end_body(false);
        break;
      case State::kLoose:
        break;
    }
    return std::move(delta_);
  }

  bool thinking() const override { return state_ == State::kBody && target_ == Target::kThoughts; }

 private:
  enum class State : uint8_t {
    kOutside,  // of messages: words of a header may stand there, without the mark before one
    kLoose,    // of messages, in text
    kHeader,
    kBody,
  };
  enum class Target : uint8_t { kContent, kThoughts, kCall };

  void step(char byte);
  void take(char byte);
  void found(std::string_view mark);
  void open_header();
  void read_words(bool at_end);
  void leave_header(bool at_end);
  void settle_target();
  void begin_body();
  void end_body(bool has_ended);
  void flush_outside();
  void put(char byte) { (target_ == Target::kThoughts ? thoughts_ : content_).push(byte); }
  bool is_call() const;
  std::string_view function_name() const;

  const ParserSetup& setup_;
  Delta delta_;
  CallSink sink_;
  CallText call_;
  MessageText thoughts_;
  MessageText content_;
  MarkFinder marks_{{kMarks.begin(), kMarks.end()}};
  std::string scratch_;
  State state_ = State::kOutside;
  std::string outside_;  // words that may be of a header
  // Of a header: the text behind its last mark, what the texts so far said.
  std::string words_;
  size_t header_bytes_ = 0;
  std::string channel_;
  std::string recipient_;
  std::string text_;  // what is of no header
  Target target_ = Target::kContent;
};

void HarmonyParser::step(char byte) {
  scratch_.clear();
  const std::string_view mark = marks_.push(byte, &scratch_);
  for (const char known : std::exchange(scratch_, {})) take(known);
  if (mark.empty()) return;
  if (state_ == State::kBody && target_ == Target::kCall && call_.in_string()) {
    for (const char known : mark) take(known);
  } else {
    found(mark);
  }
}

void HarmonyParser::take(char byte) {
  switch (state_) {
    case State::kOutside:
      outside_.push_back(byte);
      if (outside_.size() > kMaxHarmonyHeaderBytes || !WordReader(outside_).read().may_go_on) {
        flush_outside();
      }
      return;
    case State::kLoose:
      return content_.push(byte);
    case State::kHeader:
      words_.push_back(byte);
      if (++header_bytes_ > kMaxHarmonyHeaderBytes) leave_header(false);
      return;
    case State::kBody:
      if (target_ != Target::kCall) return put(byte);
      if (call_.push(byte)) return;
      end_body(true);
      content_.push(byte);
      state_ = State::kLoose;
      return;
  }
}

void HarmonyParser::found(std::string_view mark) {
  const bool ends = mark == kEnd || mark == kCall || mark == kReturn;
  switch (state_) {
    case State::kBody:
      if (mark == kMessage || mark == kConstrain) return;  // of no meaning there
      end_body(true);
      break;
    case State::kHeader:
      if (ends || mark == kStart) leave_header(false);
      break;
    case State::kOutside:
      if (ends || mark == kStart) flush_outside();
      break;
    case State::kLoose:
      break;
  }
  if (ends) {
    content_.next_message();
    thoughts_.next_message();
    state_ = State::kOutside;
    return;
  }
  if (state_ != State::kHeader || mark == kStart) open_header();
  if (mark == kStart) return;
  read_words(false);
  if (mark == kMessage) begin_body();
}

// The words that came without a mark are of it.
void HarmonyParser::open_header() {
  state_ = State::kHeader;
  words_ = std::exchange(outside_, {});
  header_bytes_ = words_.size();
  channel_.clear();
  recipient_.clear();
  text_.clear();
  content_.next_message();
  thoughts_.next_message();
}

// What stands behind the last mark: of several channels the last counts. A single short word may be
// a channel or a type that is not known; at the end of the answer a word may be cut.
void HarmonyParser::read_words(bool at_end) {
  const std::string text = std::exchange(words_, {});
  const Words words = WordReader(text).read();
  if (!words.channel.empty()) channel_ = words.channel;
  if (!words.recipient.empty()) recipient_ = words.recipient;
  constexpr size_t kMaxWordBytes = 32;
  const bool is_word =
      words.rest.size() <= kMaxWordBytes && std::ranges::none_of(words.rest, is_blank);
  if (is_word && (!at_end || words.may_go_on)) return;
  text_ += words.rest;
}

std::string_view HarmonyParser::function_name() const {
  std::string_view name = recipient_;
  if (name.starts_with(kFunctions)) name.remove_prefix(kFunctions.size());
  return name;
}

// To a function, or to a tool of the request by its bare name. Tools that are built into models are
// nobody's here.
bool HarmonyParser::is_call() const {
  const std::string_view name = function_name();
  if (setup_.calls == nullptr || name.empty() || name.size() > kMaxNameBytes) return false;
  return recipient_.starts_with(kFunctions) || sink_.knows(name);
}

void HarmonyParser::settle_target() {
  const bool thinks = channel_ == kAnalysis && setup_.reasoning != nullptr;
  target_ = thinks ? Target::kThoughts : Target::kContent;
  for (const char byte : std::exchange(text_, {})) put(byte);
}

void HarmonyParser::begin_body() {
  state_ = State::kBody;
  settle_target();
  if (!is_call()) return;
  target_ = Target::kCall;
  call_.begin(function_name());
}

void HarmonyParser::end_body(bool has_ended) {
  if (target_ == Target::kCall) call_.finish(has_ended);
  target_ = Target::kContent;
  content_.next_message();
  thoughts_.next_message();
}

// No message follows: what is of no header is text, in the channel that it names.
void HarmonyParser::leave_header(bool at_end) {
  read_words(at_end);
  settle_target();
  state_ = State::kBody;
}

// Words that no header followed.
void HarmonyParser::flush_outside() {
  const std::string text = std::exchange(outside_, {});
  state_ = State::kLoose;
  if (trimmed(text).empty()) {
    state_ = State::kOutside;
    return;
  }
  for (const char byte : text) content_.push(byte);
}

}  // namespace

std::unique_ptr<OutputParser> make_parser(const ParserSetup& setup, uint64_t seed) {
  return std::make_unique<HarmonyParser>(setup, seed);
}

std::string_view opening_of(std::string_view prompt) {
  const size_t at = prompt.rfind(kStart);
  if (at == std::string_view::npos) return {};
  std::string_view rest = prompt.substr(at + kStart.size());
  constexpr std::string_view kAssistant = "assistant";
  if (!rest.starts_with(kAssistant)) return {};
  rest.remove_prefix(kAssistant.size());
  return rest;
}

}  // namespace rudder::dialect::harmony
