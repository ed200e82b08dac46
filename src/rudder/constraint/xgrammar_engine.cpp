#include "rudder/constraint/xgrammar_engine.h"

#include <dlpack/dlpack.h>
#include <fmt/format.h>
#include <xgrammar/xgrammar.h>

#include <algorithm>
#include <ctime>
#include <exception>
#include <string_view>
#include <utility>

namespace rudder::constraint {
namespace {

// The library's own bound is 10,000 frames, more than a thread's stack holds.
constexpr int kMaxRecursion = 1000;

// An ambiguous grammar ("(x+x+)+y") makes each token dearer than the one before, and the engine
// waits for it. A choice may take so much of its thread's own time beyond what a token needs, in
// all.
constexpr double kQuickSeconds = 0.005;
constexpr double kMaxSlowSeconds = 2;

double thread_seconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

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

class XgrammarMatcher final : public Matcher {
 public:
  XgrammarMatcher(const xgrammar::CompiledGrammar& grammar, size_t words,
                  const std::vector<int32_t>& stop_ids)
      : matcher_(grammar), stop_ids_(stop_ids), mask_(words) {}

  Result<void> restrict(std::span<uint32_t> words) override {
    RUDDER_TRY(const bool any, fill());
    // A grammar may ask for bytes that no token spells: the choice can only stop there.
    if (!any) allow_stop_only();
    const size_t count = std::min(words.size(), mask_.size());
    for (size_t i = 0; i < count; ++i) words[i] &= static_cast<uint32_t>(mask_[i]);
    std::fill(words.begin() + static_cast<std::ptrdiff_t>(count), words.end(), 0u);
    return {};
  }

  Result<void> advance(int32_t token) override {
    const double start = thread_seconds();
    try {
      const bool accepted = matcher_.AcceptToken(token);
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
    if (matcher_.IsTerminated()) {
      std::fill(mask_.begin(), mask_.end(), 0);
      return false;
    }
    int64_t shape = static_cast<int64_t>(mask_.size());
    DLTensor tensor = {.data = mask_.data(),
                       .device = {kDLCPU, 0},
                       .ndim = 1,
                       .dtype = xgrammar::GetBitmaskDLType(),
                       .shape = &shape,
                       .strides = nullptr,
                       .byte_offset = 0};
    const double start = thread_seconds();
    try {
      if (!matcher_.FillNextTokenBitmask(&tensor)) std::fill(mask_.begin(), mask_.end(), -1);
      RUDDER_TRY_VOID(charge(start));
    } catch (const std::exception& exception) {
      return fail(ErrorCode::kInternal, reason(exception));
    }
    return std::any_of(mask_.begin(), mask_.end(), [](int32_t word) { return word != 0; });
  }

 private:
  // An Error when the slow calls have taken too long together.
  Result<void> charge(double start) {
    slow_seconds_ += std::max(0.0, thread_seconds() - start - kQuickSeconds);
    if (slow_seconds_ <= kMaxSlowSeconds) return {};
    return fail(ErrorCode::kInvalidArgument,
                "the grammar is too ambiguous: the places that the output may be at grow "
                "without bound");
  }
  void allow_stop_only() {
    for (const int32_t id : stop_ids_) {
      mask_[static_cast<size_t>(id) / 32] |= static_cast<int32_t>(1u << (id % 32));
    }
  }

  xgrammar::GrammarMatcher matcher_;
  const std::vector<int32_t> stop_ids_;
  std::vector<int32_t> mask_;
  double slow_seconds_ = 0;
};

class XgrammarConstraint final : public Constraint {
 public:
  XgrammarConstraint(xgrammar::CompiledGrammar grammar, size_t words)
      : grammar_(std::move(grammar)),
        stop_ids_(grammar_.GetTokenizerInfo().GetStopTokenIds()),
        words_(words) {}

  // False for a grammar that never ends, and for one that the vocabulary cannot spell.
  Result<bool> can_start() const { return XgrammarMatcher(grammar_, words_, stop_ids_).fill(); }

  std::unique_ptr<Matcher> start() const override {
    return std::make_unique<XgrammarMatcher>(grammar_, words_, stop_ids_);
  }

 private:
  const xgrammar::CompiledGrammar grammar_;
  const std::vector<int32_t> stop_ids_;
  const size_t words_;
};

}  // namespace

struct XgrammarEngine::Impl {
  Impl(const Vocabulary& vocabulary, int64_t rule_cache_bytes)
      : words(mask_words(vocabulary.size)),
        tokens(vocabulary.token_bytes, xgrammar::VocabType::RAW, vocabulary.size,
               vocabulary.stop_ids),
        compiler(tokens, 1, true, rule_cache_bytes) {}

  template <typename Compile>
  Result<CompiledConstraint> compile(const Compile& call) {
    try {
      xgrammar::CompiledGrammar grammar = call(compiler);
      const size_t bytes = grammar.MemorySizeBytes();
      auto constraint = std::make_shared<XgrammarConstraint>(std::move(grammar), words);
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

  const size_t words;
  const xgrammar::TokenizerInfo tokens;
  xgrammar::GrammarCompiler compiler;
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
                                                               int64_t rule_cache_bytes) {
  try {
    xgrammar::SetMaxRecursionDepth(kMaxRecursion);
    auto impl = std::make_unique<Impl>(vocabulary, rule_cache_bytes);
    return std::unique_ptr<XgrammarEngine>(new XgrammarEngine(std::move(impl)));
  } catch (const std::exception& exception) {
    return fail(ErrorCode::kInternal,
                fmt::format("the vocabulary cannot be used for grammars: {}", reason(exception)));
  }
}

Result<CompiledConstraint> XgrammarEngine::compile_ebnf(const std::string& grammar) const {
  return impl_->compile([&](xgrammar::GrammarCompiler& compiler) {
    return compiler.CompileGrammar(grammar, "root");
  });
}

Result<CompiledConstraint> XgrammarEngine::compile_structural_tag(const std::string& tag) const {
  return impl_->compile(
      [&](xgrammar::GrammarCompiler& compiler) { return compiler.CompileStructuralTag(tag); });
}

}  // namespace rudder::constraint
