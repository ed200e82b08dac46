#include "rudder/dialect/unopened_call.h"

#include <string_view>

#include "rudder/dialect/braced_literals.h"
#include "rudder/dialect/json_scanner.h"

namespace rudder::dialect {

UnopenedCall::Step UnopenedCall::push(char byte, const CallSink& sink) {
  const std::string_view end = dialect_->end;
  if (!is_begun_) {
    if (!is_blank(byte)) text_.push_back(byte);
    const Step step = beginning(sink);
    if (step != Step::kCall || end.empty()) return step;
    is_begun_ = true;
    return Step::kMore;
  }
  // A mark begins with a byte that it has nowhere else, or with several of them.
  if (byte == end[matched_]) {
    ++matched_;
  } else {
    matched_ = byte == end.front() ? 1 : 0;
  }
  return matched_ == end.size() ? Step::kCall : Step::kMore;
}

// `rest` begins with a name, behind which `opening` must come.
UnopenedCall::Step UnopenedCall::after_name(std::string_view rest, std::string_view opening,
                                            const CallSink& sink) const {
  const size_t length = rest.find(opening.front());
  if (length == std::string_view::npos) {
    return sink.knows_beginning(rest) ? Step::kMore : Step::kText;
  }
  if (!sink.knows(rest.substr(0, length))) return Step::kText;
  const std::string_view behind = rest.substr(length);
  if (behind.starts_with(opening)) return Step::kCall;
  return opening.starts_with(behind) ? Step::kMore : Step::kText;
}

UnopenedCall::Step UnopenedCall::beginning(const CallSink& sink) const {
  constexpr std::string_view kJsonName = "{\"name\":\"";
  std::string_view text = text_;
  const bool is_list = text.starts_with('[');
  const bool may_be_json = is_list || text.starts_with('{');
  if (is_list) text.remove_prefix(1);
  if (text.empty()) return Step::kMore;
  if (may_be_json && text.starts_with('{')) {
    if (dialect_->form == CallForm::kTagged) return Step::kText;
    if (dialect_->end.empty() && !(dialect_->list && is_list)) return Step::kText;
    if (kJsonName.starts_with(text)) return Step::kMore;
    if (!text.starts_with(kJsonName)) return Step::kText;
    return after_name(text.substr(kJsonName.size()), "\"", sink);
  }
  switch (dialect_->form) {
    case CallForm::kNamed:
      return dialect_->list || is_list ? Step::kText : after_name(text, "[ARGS]", sink);
    case CallForm::kPythonic:
      return after_name(text, "(", sink);
    case CallForm::kXml:
      return dialect_->xml.call.empty() ? after_name(text, dialect_->xml.key, sink) : Step::kText;
    case CallForm::kBraced:
      if (is_list) return Step::kText;
      if (begins_call_mark(text)) return Step::kMore;
      if (begins_call_mark(text.substr(0, kCallMark.size()))) text.remove_prefix(kCallMark.size());
      return after_name(text, text.find('(') < text.find('{') ? "(" : "{", sink);
    default:
      return Step::kText;
  }
}

}  // namespace rudder::dialect
