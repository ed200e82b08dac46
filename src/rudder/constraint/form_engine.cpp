#include "rudder/constraint/form_engine.h"

#include <algorithm>
#include <utility>

#include "rudder/base/token_mask.h"
#include "rudder/constraint/grammar.h"
#include "rudder/constraint/text_counts.h"
#include "rudder/constraint/translate.h"

namespace rudder::constraint {
namespace {

class FormConstraint final : public Constraint {
 public:
  explicit FormConstraint(Form form) : form_(std::move(form)) {}

  std::unique_ptr<Matcher> start() const override { return std::make_unique<FormMatcher>(form_); }
  Result<bool> can_start(Fuel& fuel) const { return FormMatcher(form_).can_start(fuel); }

 private:
  const Form form_;
};

constexpr size_t kMaxFormBytes = size_t{64} << 20;

bool is_special(std::string_view bytes) {
  return bytes.size() == 5 && bytes[0] == '\xFF';
}

// A number may begin in it that the token does not begin with, or end.
bool has_number_inside(std::string_view bytes) {
  const size_t digit = bytes.find_first_of("-0123456789");
  return digit != std::string_view::npos &&
         bytes.find_first_not_of(kNumberBytes) != std::string_view::npos;
}

}  // namespace

std::string special_token_bytes(int32_t id) {
  std::string bytes = "\xFF";
  for (int shift = 24; shift >= 0; shift -= 8) {
    bytes.push_back(static_cast<char>(static_cast<uint32_t>(id) >> shift));
  }
  return bytes;
}

FormEngine::FormEngine(Vocabulary vocabulary, int64_t memo_bytes)
    : vocabulary_(std::make_shared<FormVocabulary>()),
      memo_(std::make_shared<MaskMemo>(static_cast<size_t>(memo_bytes))) {
  vocabulary_->token_bytes = std::move(vocabulary.token_bytes);
  vocabulary_->size = vocabulary.size;
  vocabulary_->stop_ids = std::move(vocabulary.stop_ids);
  vocabulary_->all.resize(mask_words(vocabulary_->size));
  TokenOrder::Texts texts;
  for (size_t i = 0; i < vocabulary_->token_bytes.size(); ++i) {
    const std::string& bytes = vocabulary_->token_bytes[i];
    const auto id = static_cast<int32_t>(i);
    if (bytes.empty() ||
        std::ranges::find(vocabulary_->stop_ids, id) != vocabulary_->stop_ids.end()) {
      continue;
    }
    set_in_mask(vocabulary_->all, id);
    if (is_special(bytes)) continue;
    texts.emplace_back(bytes, id);
    const auto num_quotes = std::count(bytes.begin(), bytes.end(), '"');
    if (num_quotes > 1) vocabulary_->quoted.push_back(id);
    if (num_quotes == 1 && bytes.back() != '"') vocabulary_->opening.push_back(id);
    if (has_number_inside(bytes)) {
      (num_quotes > 0 ? vocabulary_->quoted_numbers : vocabulary_->numbers).push_back(id);
    }
  }
  std::sort(texts.begin(), texts.end());
  vocabulary_->order = std::make_shared<const TokenOrder>(texts);
  Terminal any;
  any.set = CharSet::all();
  any.any_spelling = true;
  Fuel fuel;
  any_string_ = *tables_.get(fuel, any, vocabulary_->order, vocabulary_->words());
}

Result<ParserGrammar::Terminal> FormEngine::terminal(Fuel& fuel, const Terminal& terminal,
                                                     size_t* bytes) const {
  const std::lock_guard lock(mutex_);
  RUDDER_TRY(auto tables, tables_.get(fuel, terminal, vocabulary_->order, vocabulary_->words()));
  if (tables != any_string_) {
    *bytes += tables->bytes();
    // The automaton is held already.
    const auto made = static_cast<int64_t>(tables->made_bytes() - tables->dfa().bytes());
    if (!fuel.hold(made)) return tl::unexpected(fuel.error());
  }
  size_t num_excluded = 0;
  for (const std::string& value : terminal.excluded) num_excluded += value.size() + 1;
  constexpr size_t kBytesOfNode = 160;  // of ExcludedValues, at the most
  if (!fuel.hold(static_cast<int64_t>(num_excluded * kBytesOfNode)) ||
      !fuel.burn(static_cast<int64_t>(num_excluded) * 10)) {
    return tl::unexpected(fuel.error());
  }
  ParserGrammar::Terminal out = {.tables = std::move(tables),
                                 .excluded = ExcludedValues(terminal.excluded),
                                 .quoted = terminal.quoted,
                                 .unique = terminal.unique,
                                 .is_key = terminal.is_key};
  *bytes += out.excluded.bytes();
  if (terminal.unique && !terminal.pattern.empty()) {
    const ByteAutomaton& automaton = out.tables->dfa().automaton();
    fuel.burn(std::ssize(automaton.next));
    if (!fuel.hold(std::ssize(automaton.boundary) * int64_t{sizeof(int32_t)})) {
      return tl::unexpected(fuel.error());
    }
    out.texts = text_counts(automaton, terminal.quoted);
    *bytes += out.texts.size() * sizeof(int32_t);
    if (always_goes_on(automaton, out.texts)) out.texts.clear();
  }
  if (terminal.pattern.empty()) {
    for (const CharRange& range : terminal.set.ranges()) {
      out.choices += int64_t{range.last} - range.first + 1;
    }
    out.min = terminal.min;
    if (terminal.max != Terminal::kUnbounded) out.max = terminal.max;
  }
  return out;
}

Result<CompiledConstraint> FormEngine::compile(const GrammarSpec& spec) const {
  Fuel fuel;
  return compile(spec, fuel);
}

Result<CompiledConstraint> FormEngine::compile(const GrammarSpec& spec, Fuel& fuel) const {
  Form form;
  form.vocabulary = vocabulary_;
  form.memo = memo_;
  form.number = num_forms_++;
  {
    RuleSet rules(fuel);
    RUDDER_TRY(const RuleSet::Node start, translate(rules, spec));
    RUDDER_TRY(form.grammar.rules, compile_rules(rules, start));
  }
  size_t bytes = form.grammar.rules.bytes();
  const std::vector<Terminal> terminals = std::exchange(form.grammar.rules.terminals, {});
  for (const Terminal& one : terminals) {
    RUDDER_TRY(ParserGrammar::Terminal made, terminal(fuel, one, &bytes));
    form.grammar.terminals.push_back(std::move(made));
    if (bytes > kMaxFormBytes) {
      return fail(ErrorCode::kInvalidArgument, "is too complex: its tables take too much memory");
    }
  }
  form.grammar.find_borders();
  auto constraint = std::make_shared<FormConstraint>(std::move(form));
  RUDDER_TRY(const bool can_start, constraint->can_start(fuel));
  if (!can_start) {
    return fail(ErrorCode::kInvalidArgument,
                "can never be satisfied: no token of the model begins a valid output");
  }
  return CompiledConstraint{.constraint = std::move(constraint), .bytes = bytes};
}

}  // namespace rudder::constraint
