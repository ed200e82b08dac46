#include "rudder/constraint/xgrammar_engine.h"

#include <dlpack/dlpack.h>
#include <fmt/format.h>
#include <xgrammar/xgrammar.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <string_view>
#include <utility>

#include "rudder/base/cpu_time.h"
#include "rudder/constraint/terminal.h"
#include "rudder/constraint/terminal_parser.h"

namespace rudder::constraint {
namespace {

// The library's own bound is 10,000 frames, more than a thread's stack holds.
constexpr int kMaxRecursion = 1000;
constexpr int32_t kMaxTerminals = 1024;  // of one grammar, different ones

// An ambiguous grammar ("(x+x+)+y") makes each token dearer than the one before, and the engine
// waits for it. A choice may take so much of its thread's own time beyond what a token needs, in
// all.
constexpr double kQuickSeconds = 0.005;
constexpr double kMaxSlowSeconds = 2;

// "[12:00:00] /path/file.cc:31: EBNF parser error at line 1, column 5: ..." without what is ours.
std::string reason(const std::exception& exception) {
  std::string_view text = exception.what();
  if (const size_t at = text.find(".cc:"); at != std::string_view::npos) {
    const size_t colon = text.find(": ", at + 4);
    if (colon != std::string_view::npos) text.remove_prefix(colon + 2);
  }
  if (text.starts_with("Check failed: ")) {
    const size_t at = text.find("is false: ");
    if (at != std::string_view::npos) text.remove_prefix(at + 10);
  }
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.remove_suffix(1);
  constexpr size_t kMaxReason = 300;
  return std::string(text.substr(0, kMaxReason));
}

// A place in a grammar, by the library's parser or by ours. May throw what the library throws.
class Place {
 public:
  virtual ~Place() = default;
  // Into a mask of no tokens; stop tokens where the grammar may end.
  virtual void fill(std::vector<int32_t>& mask) = 0;
  virtual bool accept(int32_t token) = 0;
};

class LibraryPlace final : public Place {
 public:
  explicit LibraryPlace(const xgrammar::CompiledGrammar& grammar) : matcher_(grammar) {}

  void fill(std::vector<int32_t>& mask) override {
    if (matcher_.IsTerminated()) return;
    int64_t shape = static_cast<int64_t>(mask.size());
    DLTensor tensor = {.data = mask.data(),
                       .device = {kDLCPU, 0},
                       .ndim = 1,
                       .dtype = xgrammar::GetBitmaskDLType(),
                       .shape = &shape,
                       .strides = nullptr,
                       .byte_offset = 0};
    if (!matcher_.FillNextTokenBitmask(&tensor)) std::fill(mask.begin(), mask.end(), -1);
  }
  bool accept(int32_t token) override { return matcher_.AcceptToken(token); }

 private:
  xgrammar::GrammarMatcher matcher_;
};

void set_bit(std::vector<int32_t>& mask, int32_t id) {
  mask[static_cast<size_t>(id) / 32] |= static_cast<int32_t>(1u << (id % 32));
}

class TerminalPlace final : public Place {
 public:
  TerminalPlace(const TerminalGrammar& grammar, const std::vector<int32_t>& stop_ids)
      : parser_(grammar), stop_ids_(stop_ids) {}

  void fill(std::vector<int32_t>& mask) override {
    parser_.fill({reinterpret_cast<uint32_t*>(mask.data()), mask.size()});
    if (!parser_.may_end()) return;
    for (const int32_t id : stop_ids_) set_bit(mask, id);
  }
  bool accept(int32_t token) override { return parser_.accept(token); }

 private:
  TerminalParser parser_;
  const std::vector<int32_t>& stop_ids_;
};

class XgrammarMatcher final : public Matcher {
 public:
  XgrammarMatcher(std::unique_ptr<Place> place, size_t words, const std::vector<int32_t>& stop_ids)
      : place_(std::move(place)), stop_ids_(stop_ids), mask_(words) {}

  Result<void> restrict(std::span<uint32_t> words) override {
    RUDDER_TRY(const bool any, fill());
    // A grammar may ask for bytes that no token spells: the choice can only stop there.
    if (!any) {
      for (const int32_t id : stop_ids_) set_bit(mask_, id);
    }
    const size_t count = std::min(words.size(), mask_.size());
    for (size_t i = 0; i < count; ++i) words[i] &= static_cast<uint32_t>(mask_[i]);
    std::fill(words.begin() + static_cast<std::ptrdiff_t>(count), words.end(), 0u);
    return {};
  }

  Result<void> advance(int32_t token) override {
    const double start = thread_cpu_seconds();
    try {
      const bool accepted = place_->accept(token);
      RUDDER_TRY_VOID(charge(start));
      if (accepted) return {};
      return fail(ErrorCode::kInternal,
                  fmt::format("a grammar refused token {}, which its mask had allowed", token));
    } catch (const std::exception& exception) {
      return fail(ErrorCode::kInternal, reason(exception));
    }
  }

  // Writes mask_; false when no token may come next.
  Result<bool> fill() {
    std::fill(mask_.begin(), mask_.end(), 0);
    const double start = thread_cpu_seconds();
    try {
      place_->fill(mask_);
      RUDDER_TRY_VOID(charge(start));
    } catch (const std::exception& exception) {
      return fail(ErrorCode::kInternal, reason(exception));
    }
    return std::any_of(mask_.begin(), mask_.end(), [](int32_t word) { return word != 0; });
  }

 private:
  // An Error when the slow calls have taken too long together.
  Result<void> charge(double start) {
    slow_seconds_ += std::max(0.0, thread_cpu_seconds() - start - kQuickSeconds);
    if (slow_seconds_ <= kMaxSlowSeconds) return {};
    return fail(ErrorCode::kInvalidArgument,
                "the grammar is too ambiguous: the places that the output may be at grow "
                "without bound");
  }

  const std::unique_ptr<Place> place_;
  const std::vector<int32_t>& stop_ids_;  // the constraint's
  std::vector<int32_t> mask_;
  double slow_seconds_ = 0;
};

class XgrammarConstraint final : public Constraint {
 public:
  XgrammarConstraint(xgrammar::CompiledGrammar grammar, size_t words)
      : grammar_(std::move(grammar)),
        stop_ids_(grammar_.GetTokenizerInfo().GetStopTokenIds()),
        words_(words) {}
  XgrammarConstraint(std::unique_ptr<const TerminalGrammar> grammar, size_t words)
      : XgrammarConstraint(grammar->compiled, words) {
    with_terminals_ = std::move(grammar);
  }

  // False for a grammar that never ends, and for one that the vocabulary cannot spell.
  Result<bool> can_start() const { return XgrammarMatcher(place(), words_, stop_ids_).fill(); }

  std::unique_ptr<Matcher> start() const override {
    return std::make_unique<XgrammarMatcher>(place(), words_, stop_ids_);
  }

 private:
  std::unique_ptr<Place> place() const {
    if (with_terminals_ == nullptr) return std::make_unique<LibraryPlace>(grammar_);
    return std::make_unique<TerminalPlace>(*with_terminals_, stop_ids_);
  }

  const xgrammar::CompiledGrammar grammar_;
  std::unique_ptr<const TerminalGrammar> with_terminals_;  // null: it has none
  const std::vector<int32_t> stop_ids_;
  const size_t words_;
};

}  // namespace

struct XgrammarEngine::Impl {
  Impl(const Vocabulary& vocabulary, int64_t rule_cache_bytes, int64_t memo_bytes)
      : first_terminal(static_cast<int32_t>(mask_words(vocabulary.size)) * 32),
        words(mask_words(first_terminal + kMaxTerminals)),
        tokens(vocabulary.token_bytes, xgrammar::VocabType::RAW, first_terminal + kMaxTerminals,
               vocabulary.stop_ids),
        compiler(tokens, 1, true, rule_cache_bytes),
        order(std::make_shared<const TokenOrder>(tokens.GetSortedDecodedVocab())),
        memo(std::make_shared<MaskMemo>(static_cast<size_t>(memo_bytes))) {
    // The strings of every schema have it.
    Terminal any;
    any.set = CharSet::all();
    any.any_spelling = true;
    Fuel fuel;
    any_string = *tables.get(fuel, any, order, words);
  }

  // The bytes of what is not shared by all are added to `bytes`.
  Result<std::vector<TerminalGrammar::Use>> use(const std::vector<Terminal>& terminals,
                                                size_t* bytes) {
    std::vector<TerminalGrammar::Use> uses;
    Fuel fuel;
    for (const Terminal& terminal : terminals) {
      const std::lock_guard lock(mutex);
      RUDDER_TRY(auto known, tables.get(fuel, terminal, order, words));
      if (known != any_string) *bytes += known->bytes();
      TerminalGrammar::Use one = {.tables = std::move(known),
                                  .excluded = ExcludedValues(terminal.excluded)};
      if (terminal.pattern.empty()) {
        one.min = terminal.min;
        if (terminal.max != Terminal::kUnbounded) one.max = terminal.max;
      }
      uses.push_back(std::move(one));
    }
    return uses;
  }

  // `text` names terminals by their descriptions.
  template <typename Compile>
  Result<CompiledConstraint> compile(const std::string& text, const Compile& call) {
    std::vector<Terminal> terminals;
    const std::string grammar_text = take_terminals(text, first_terminal, &terminals);
    if (std::cmp_greater(terminals.size(), kMaxTerminals)) {
      return fail(
          ErrorCode::kInvalidArgument,
          fmt::format("is too complex: it has more than {} kinds of strings", kMaxTerminals));
    }
    try {
      xgrammar::CompiledGrammar grammar = call(compiler, grammar_text);
      size_t bytes = grammar.MemorySizeBytes();
      std::shared_ptr<XgrammarConstraint> constraint;
      if (terminals.empty()) {
        constraint = std::make_shared<XgrammarConstraint>(std::move(grammar), words);
      } else {
        RUDDER_TRY(std::vector<TerminalGrammar::Use> uses, use(terminals, &bytes));
        auto whole = std::make_unique<TerminalGrammar>(grammar, std::move(uses), first_terminal,
                                                       order, memo, num_forms++);
        if (whole->has_budgets) {
          return fail(ErrorCode::kInvalidArgument,
                      "has a rule with a budget, which is not supported beside schemas");
        }
        constraint = std::make_shared<XgrammarConstraint>(std::move(whole), words);
      }
      RUDDER_TRY(const bool can_start, constraint->can_start());
      if (!can_start) {
        return fail(ErrorCode::kInvalidArgument,
                    "can never be satisfied: no token of the model begins a valid output");
      }
      return CompiledConstraint{.constraint = std::move(constraint), .bytes = bytes};
    } catch (const std::exception& exception) {
      return fail(ErrorCode::kInvalidArgument, reason(exception));
    }
  }

  const int32_t first_terminal;  // ids behind the vocabulary's stand for terminals
  const size_t words;            // of masks, those ids included
  const xgrammar::TokenizerInfo tokens;
  xgrammar::GrammarCompiler compiler;
  const std::shared_ptr<const TokenOrder> order;
  const std::shared_ptr<MaskMemo> memo;
  std::atomic<uint64_t> num_forms = 0;
  std::mutex mutex;
  TerminalTableCache tables;
  std::shared_ptr<const TerminalTables> any_string;
};

std::string special_token_bytes(int32_t id) {
  std::string bytes = "\xFF";
  for (int shift = 24; shift >= 0; shift -= 8) {
    bytes.push_back(static_cast<char>(static_cast<uint32_t>(id) >> shift));
  }
  return bytes;
}

XgrammarEngine::XgrammarEngine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
XgrammarEngine::~XgrammarEngine() = default;

Result<std::unique_ptr<XgrammarEngine>> XgrammarEngine::create(const Vocabulary& vocabulary,
                                                               int64_t rule_cache_bytes,
                                                               int64_t memo_bytes) {
  try {
    xgrammar::SetMaxRecursionDepth(kMaxRecursion);
    auto impl = std::make_unique<Impl>(vocabulary, rule_cache_bytes, memo_bytes);
    return std::unique_ptr<XgrammarEngine>(new XgrammarEngine(std::move(impl)));
  } catch (const std::exception& exception) {
    return fail(ErrorCode::kInternal,
                fmt::format("the vocabulary cannot be used for grammars: {}", reason(exception)));
  }
}

Result<CompiledConstraint> XgrammarEngine::compile_ebnf(const std::string& grammar) const {
  return impl_->compile(grammar, [](xgrammar::GrammarCompiler& compiler, const std::string& text) {
    return compiler.CompileGrammar(text, "root");
  });
}

Result<CompiledConstraint> XgrammarEngine::compile_structural_tag(const std::string& tag) const {
  return impl_->compile(tag, [](xgrammar::GrammarCompiler& compiler, const std::string& text) {
    return compiler.CompileStructuralTag(text);
  });
}

MaskMemo::Stats XgrammarEngine::memo_stats() const {
  return impl_->memo->stats();
}

}  // namespace rudder::constraint
