// Calls as JSON: {"name": "f", "arguments": {...}}, the form of the API's answers in which both
// stand under "function", and the form of newer Mistral models in which the name stands before its
// arguments: f[ARGS]{...}.
#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "rudder/dialect/call_reader.h"
#include "rudder/dialect/json_scanner.h"
#include "rudder/dialect/mark_finder.h"

namespace rudder::dialect {
namespace {

// One object that is a call, from the byte after its brace. Its arguments go out as they come, once
// the name is known.
class CallObject {
 public:
  enum class Step : uint8_t { kMore, kDone, kBad };

  explicit CallObject(bool must_know) : must_know_(must_know) {}

  Step push(char byte, CallSink& sink);
  bool announced() const { return announced_; }
  bool in_arguments() const {
    return state_ == State::kArguments || state_ == State::kArgumentsText;
  }

 private:
  enum class State : uint8_t {
    kFirstKey,
    kNextKey,
    kKey,
    kColon,
    kValue,
    kName,
    kArguments,
    kArgumentsText,  // arguments written as a string of JSON
    kOther,
    kComma,
  };

  Step begin_value(char byte, CallSink& sink);
  Step arguments_text(char byte, CallSink& sink);
  Step other(char byte, CallSink& sink);
  Step close(CallSink& sink);
  bool announce(CallSink& sink);
  void emit(std::string_view text, CallSink& sink);

  bool must_know_;
  State state_ = State::kFirstKey;
  JsonScanner scanner_;  // of other values
  JsonCopier arguments_;
  JsonStringReader string_;
  std::string key_;
  std::string name_;
  std::string kept_;  // arguments before the name is known
  std::string scratch_;
  bool nested_ = false;  // in the object under "function"
  bool has_name_ = false;
  bool has_arguments_ = false;
  bool announced_ = false;
  bool emitted_ = false;  // anything of the arguments
};

bool CallObject::announce(CallSink& sink) {
  if (announced_) return true;
  if (name_.empty() || (must_know_ && !sink.knows(name_))) return false;
  announced_ = true;
  sink.begin(name_);
  sink.arguments(std::exchange(kept_, {}));
  return true;
}

void CallObject::emit(std::string_view text, CallSink& sink) {
  if (text.empty()) return;
  emitted_ = true;
  if (announced_) {
    sink.arguments(text);
  } else {
    kept_ += text;
  }
}

CallObject::Step CallObject::begin_value(char byte, CallSink& sink) {
  if (is_blank(byte)) return Step::kMore;
  scanner_.reset();
  string_.reset();
  constexpr std::array<std::string_view, 5> kArgumentKeys = {"arguments", "parameters", "args",
                                                             "params", "input"};
  const bool arguments = std::ranges::find(kArgumentKeys, key_) != kArgumentKeys.end();
  const bool is_name = key_ == "name" || (key_ == "function" && byte == '"');
  if (is_name && !has_name_) {
    state_ = State::kName;
    return byte == '"' ? Step::kMore : Step::kBad;
  }
  if (key_ == "function" && byte == '{' && !nested_ && !has_name_) {
    nested_ = true;
    state_ = State::kFirstKey;
    return Step::kMore;
  }
  if (nested_ && key_ == "parameters") return Step::kBad;  // a tool's definition, and no call
  const bool none = byte == 'n';                           // null
  if (!arguments || has_arguments_ || none) {
    state_ = State::kOther;
    return other(byte, sink);
  }
  if (byte != '{' && byte != '"') return Step::kBad;
  has_arguments_ = true;
  if (has_name_ && !announce(sink)) return Step::kBad;
  state_ = byte == '{' ? State::kArguments : State::kArgumentsText;
  if (byte == '{') {
    arguments_.reset();
    return push(byte, sink);
  }
  return Step::kMore;
}

CallObject::Step CallObject::arguments_text(char byte, CallSink& sink) {
  scratch_.clear();
  const JsonStringReader::Step step = string_.push(byte, &scratch_);
  if (step == JsonStringReader::Step::kBad) return Step::kBad;
  emit(scratch_, sink);
  if (step == JsonStringReader::Step::kMore) return Step::kMore;
  if (!emitted_) emit("{}", sink);
  state_ = State::kComma;
  return Step::kMore;
}

CallObject::Step CallObject::other(char byte, CallSink& sink) {
  switch (scanner_.push(byte)) {
    case JsonScanner::Step::kMore:
      return Step::kMore;
    case JsonScanner::Step::kDone:
      state_ = State::kComma;
      return Step::kMore;
    case JsonScanner::Step::kDoneBefore:
      state_ = State::kComma;
      return push(byte, sink);
    case JsonScanner::Step::kBad:
      break;
  }
  return Step::kBad;
}

CallObject::Step CallObject::close(CallSink& sink) {
  if (std::exchange(nested_, false)) {
    state_ = State::kComma;
    return Step::kMore;
  }
  if (!has_name_ || !announce(sink)) return Step::kBad;
  if (!emitted_) emit("{}", sink);
  return Step::kDone;
}

CallObject::Step CallObject::push(char byte, CallSink& sink) {
  switch (state_) {
    case State::kFirstKey:
    case State::kNextKey:
      if (is_blank(byte)) return Step::kMore;
      if (byte == '}' && state_ == State::kNextKey) return close(sink);
      if (byte != '"') return Step::kBad;
      key_.clear();
      string_.reset();
      state_ = State::kKey;
      return Step::kMore;
    case State::kKey: {
      const JsonStringReader::Step step = string_.push(byte, &key_);
      if (step == JsonStringReader::Step::kDone) state_ = State::kColon;
      return step == JsonStringReader::Step::kBad ? Step::kBad : Step::kMore;
    }
    case State::kColon:
      if (is_blank(byte)) return Step::kMore;
      state_ = State::kValue;
      return byte == ':' ? Step::kMore : Step::kBad;
    case State::kValue:
      return begin_value(byte, sink);
    case State::kName: {
      const JsonStringReader::Step step = string_.push(byte, &name_);
      if (step == JsonStringReader::Step::kMore && name_.size() <= kMaxNameBytes) {
        return Step::kMore;
      }
      if (step != JsonStringReader::Step::kDone) return Step::kBad;
      has_name_ = true;
      state_ = State::kComma;
      return has_arguments_ && !announce(sink) ? Step::kBad : Step::kMore;
    }
    case State::kArguments: {
      scratch_.clear();
      const JsonScanner::Step step = arguments_.push(byte, &scratch_);
      emit(scratch_, sink);
      if (step == JsonScanner::Step::kBad) return Step::kBad;
      if (step == JsonScanner::Step::kDone) state_ = State::kComma;
      return Step::kMore;
    }
    case State::kArgumentsText:
      return arguments_text(byte, sink);
    case State::kOther:
      return other(byte, sink);
    case State::kComma:
      if (is_blank(byte)) return Step::kMore;
      if (byte == '}') return close(sink);
      state_ = State::kNextKey;
      return byte == ',' ? Step::kMore : Step::kBad;
  }
  return Step::kBad;
}

class JsonReader final : public CallReader {
 public:
  JsonReader(const ToolDialect& dialect, bool bare)
      : dialect_(dialect), bare_(bare), object_(bare), end_({dialect.end, dialect.begin}) {}

  Step push(char byte, CallSink& sink) override;
  bool finish(CallSink& sink, Ending ending) override;

 private:
  enum class State : uint8_t {
    kStart,
    kItem,  // an object must come
    kObject,
    kNext,  // in a list, after an object
    kAfter,
    kName,
    kTag,     // [ARGS] or [CALL_ID] after a name
    kCallId,  // the model's own id, which the client does not get
    kNamedArguments,
    kInNamedArguments,
    kBroken,  // arguments that are no JSON, up to the end mark
  };

  Step start(char byte);
  Step item(char byte);
  Step in_object(char byte, CallSink& sink);
  Step after(char byte);
  Step in_name(char byte, CallSink& sink);
  Step in_tag(char byte);
  Step begin_named(char byte, CallSink& sink);
  Step named_arguments(char byte, CallSink& sink);
  Step broken(char byte, CallSink& sink);
  void open_object() {
    object_ = CallObject(bare_);
    state_ = State::kObject;
  }

  const ToolDialect& dialect_;
  const bool bare_;
  State state_ = State::kStart;
  CallObject object_;
  MarkFinder end_;  // of calls whose arguments are broken: their end mark, or the next call's
  JsonCopier arguments_;
  std::string name_;
  std::string tag_;
  std::string broken_;  // of the arguments, from where they are no JSON
  size_t matched_ = 0;  // bytes of the end mark
  bool in_list_ = false;
  bool any_ = false;  // call that is whole
};

CallReader::Step JsonReader::start(char byte) {
  if (is_blank(byte)) return Step::kMore;
  if (byte == '[') {
    in_list_ = true;
    state_ = State::kItem;
    return Step::kMore;
  }
  if (dialect_.form != CallForm::kNamed || byte == '{') return item(byte);
  name_.push_back(byte);
  state_ = State::kName;
  return Step::kMore;
}

CallReader::Step JsonReader::item(char byte) {
  if (is_blank(byte)) return Step::kMore;
  if (byte == ']' && in_list_ && any_) {  // behind a comma too many
    state_ = State::kAfter;
    return Step::kTaken;
  }
  if (byte != '{') return Step::kStray;
  open_object();
  return Step::kMore;
}

CallReader::Step JsonReader::in_object(char byte, CallSink& sink) {
  const CallObject::Step step = object_.push(byte, sink);
  if (step == CallObject::Step::kMore) return object_.announced() ? Step::kTaken : Step::kMore;
  const bool broken_arguments = object_.in_arguments();
  if (step == CallObject::Step::kBad) {
    if (!object_.announced()) return Step::kStray;
    if (broken_arguments) {
      state_ = State::kBroken;
      return broken(byte, sink);
    }
  }
  any_ = true;
  state_ = in_list_ ? State::kNext : State::kAfter;
  if (step == CallObject::Step::kDone) return Step::kTaken;
  return after(byte);  // the call is whole, its closing brace alone is missing
}

// Between and after calls. Closing brackets too many are passed over: models miscount them.
CallReader::Step JsonReader::after(char byte) {
  if (matched_ == 0) {
    if (is_blank(byte)) return Step::kTaken;
    if (byte == ',' || byte == ';') {
      state_ = State::kItem;
      return Step::kMore;
    }
    if (byte == '{') {
      open_object();
      return Step::kMore;
    }
    if (state_ == State::kNext && byte == ']') {
      state_ = State::kAfter;
      return Step::kTaken;
    }
  }
  const std::string_view end = dialect_.end;
  if (end.empty()) return Step::kStray;
  if (byte == end[matched_]) return ++matched_ == end.size() ? Step::kEnd : Step::kMore;
  return matched_ == 0 && (byte == '}' || byte == ']') ? Step::kMore : Step::kStray;
}

CallReader::Step JsonReader::in_name(char byte, CallSink& sink) {
  if (byte == '{') return begin_named(byte, sink);
  if (byte == '[') {
    tag_ = byte;
    state_ = State::kTag;
    return Step::kMore;
  }
  if (is_blank(byte) || byte == ']' || name_.size() == kMaxNameBytes) return Step::kStray;
  name_.push_back(byte);
  return Step::kMore;
}

CallReader::Step JsonReader::in_tag(char byte) {
  constexpr std::string_view kArguments = "[ARGS]";
  constexpr std::string_view kCallId = "[CALL_ID]";
  tag_.push_back(byte);
  if (tag_ == kArguments) {
    state_ = State::kNamedArguments;
  } else if (tag_ == kCallId) {
    state_ = State::kCallId;
  } else if (!kArguments.starts_with(tag_) && !kCallId.starts_with(tag_)) {
    return Step::kStray;
  }
  return Step::kMore;
}

CallReader::Step JsonReader::begin_named(char byte, CallSink& sink) {
  if (is_blank(byte)) return Step::kMore;
  if (byte != '{') return Step::kStray;
  sink.begin(std::exchange(name_, {}));
  arguments_.reset();
  state_ = State::kInNamedArguments;
  return named_arguments(byte, sink);
}

CallReader::Step JsonReader::named_arguments(char byte, CallSink& sink) {
  std::string text;
  const JsonScanner::Step step = arguments_.push(byte, &text);
  sink.arguments(text);
  if (step == JsonScanner::Step::kBad) {
    state_ = State::kBroken;
    return broken(byte, sink);
  }
  if (step == JsonScanner::Step::kDone) {
    any_ = true;
    state_ = State::kAfter;
  }
  return Step::kTaken;
}

CallReader::Step JsonReader::broken(char byte, CallSink& sink) {
  const std::string_view mark = end_.push(byte, &broken_);
  if (mark.empty()) return end_.holds() ? Step::kMore : Step::kTaken;
  sink.broken_arguments(broken_, true);
  return mark == dialect_.end ? Step::kEnd : Step::kStray;
}

CallReader::Step JsonReader::push(char byte, CallSink& sink) {
  switch (state_) {
    case State::kStart:
      return start(byte);
    case State::kItem:
      return item(byte);
    case State::kObject:
      return in_object(byte, sink);
    case State::kNext:
    case State::kAfter:
      return after(byte);
    case State::kName:
      return in_name(byte, sink);
    case State::kTag:
      return in_tag(byte);
    case State::kCallId:
      if (byte != '[') return Step::kMore;
      tag_ = byte;
      state_ = State::kTag;
      return Step::kMore;
    case State::kNamedArguments:
      return begin_named(byte, sink);
    case State::kInNamedArguments:
      return named_arguments(byte, sink);
    case State::kBroken:
      return broken(byte, sink);
  }
  return Step::kStray;
}

bool JsonReader::finish(CallSink& sink, Ending /*ending*/) {
  switch (state_) {
    case State::kObject:
      return !object_.announced();
    case State::kNext:
    case State::kAfter:
    case State::kInNamedArguments:
      return false;
    case State::kItem:
      return !any_;  // else a comma too many
    case State::kBroken:
      sink.broken_arguments(broken_ + end_.take_held());
      return false;
    default:
      return true;
  }
}

}  // namespace

std::unique_ptr<CallReader> make_json_reader(const ToolDialect& dialect, bool bare) {
  return std::make_unique<JsonReader>(dialect, bare);
}

}  // namespace rudder::dialect
