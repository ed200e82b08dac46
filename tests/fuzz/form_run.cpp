#include "form_run.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "rudder/constraint/form_matcher.h"

namespace rudder::fuzz {
namespace {

using constraint::FormChecker;
using constraint::kCheckerStop;

constexpr size_t kMaxWalk = 100;  // tokens

bool closes(std::string_view token) {
  return token.empty() || token == "\"" || token == "}" || token == "]" || token == ")";
}

}  // namespace

Result<FormRun> FormRun::compile(const constraint::GrammarSpec& spec) {
  const CpuBound bound(10);
  constraint::Fuel fuel(kWork, kBytes);
  auto compiled = FormChecker::engine().compile(spec, fuel);
  if (!compiled) {
    require_error(compiled.error(), {ErrorCode::kInvalidArgument, ErrorCode::kUnsupported});
    return tl::unexpected(compiled.error());
  }
  RUDDER_CHECK(compiled->bytes <= size_t{kBytes}, "the form holds {} bytes", compiled->bytes);
  return FormRun(std::move(compiled->constraint));
}

// A matcher, and what it takes of the run's steps: masks and tokens are nothing once it gave up, or
// the steps are used up.
class FormRun::Try {
 public:
  explicit Try(const FormRun& run) : steps_(*run.steps_), matcher_(run.constraint_->start()) {
    form_ = dynamic_cast<constraint::FormMatcher*>(matcher_.get());
    RUDDER_CHECK(form_ != nullptr, "a form whose work nobody counts");
    form_->bound_dear_steps(left());
  }

  std::optional<std::vector<uint32_t>> mask() {
    if (left() == 0) return std::nullopt;
    std::vector<uint32_t> words(mask_words(FormChecker::vocabulary().size), ~uint32_t{0});
    if (!took(matcher_->restrict(words))) return std::nullopt;
    return words;
  }
  bool advance(int32_t token) { return left() > 0 && took(matcher_->advance(token)); }

 private:
  uint64_t left() const { return kSteps - std::min(kSteps, steps_); }
  bool took(const Result<void>& result) {
    steps_ += form_->steps() - std::exchange(counted_, form_->steps());
    if (!result) require_error(result.error(), {ErrorCode::kInvalidArgument});
    return result.has_value();
  }

  uint64_t& steps_;
  const std::unique_ptr<constraint::Matcher> matcher_;
  constraint::FormMatcher* form_ = nullptr;
  uint64_t counted_ = 0;
};

std::optional<std::string> FormRun::walk(std::mt19937_64& choices, bool may_stick) const {
  const auto& vocabulary = FormChecker::vocabulary();
  Try one(*this);
  std::string text;
  for (size_t step = 0; step < kMaxWalk; ++step) {
    const auto words = one.mask();
    if (!words) return std::nullopt;
    std::vector<int32_t> tokens;
    std::vector<int32_t> closing;
    for (int32_t token = 0; token < vocabulary.size; ++token) {
      if (!FormChecker::has(*words, token)) continue;
      tokens.push_back(token);
      if (closes(vocabulary.token_bytes[static_cast<size_t>(token)])) closing.push_back(token);
    }
    RUDDER_CHECK(may_stick || !tokens.empty(), "nothing may come behind {:?}", text);
    if (tokens.empty()) return std::nullopt;
    // Endings become likelier, so that one comes.
    const auto& from = !closing.empty() && choices() % kMaxWalk < 10 + step ? closing : tokens;
    const int32_t token = from[choices() % from.size()];
    if (token == kCheckerStop) return text;
    text += vocabulary.token_bytes[static_cast<size_t>(token)];
    if (!one.advance(token)) return std::nullopt;
  }
  return std::nullopt;
}

std::optional<bool> FormRun::accepts(std::string_view text) const {
  Try one(*this);
  for (const char byte : text) {
    const auto words = one.mask();
    if (!words) return std::nullopt;
    const auto token = static_cast<int32_t>(static_cast<unsigned char>(byte));
    if (!FormChecker::has(*words, token)) return false;
    if (!one.advance(token)) return std::nullopt;
  }
  const auto words = one.mask();
  if (!words) return std::nullopt;
  return FormChecker::has(*words, kCheckerStop);
}

}  // namespace rudder::fuzz
