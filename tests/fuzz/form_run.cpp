#include "form_run.h"

#include <vector>

namespace rudder::fuzz {
namespace {

using constraint::FormChecker;
using constraint::kCheckerStop;

constexpr size_t kMaxWalk = 100;  // tokens

std::optional<std::vector<uint32_t>> mask_of(constraint::Matcher& matcher) {
  std::vector<uint32_t> words(mask_words(FormChecker::vocabulary().size), ~uint32_t{0});
  const Result<void> restricted = matcher.restrict(words);
  if (restricted) return words;
  require_error(restricted.error(), {ErrorCode::kInvalidArgument});
  return std::nullopt;
}

bool advanced(constraint::Matcher& matcher, int32_t token) {
  const Result<void> result = matcher.advance(token);
  if (!result) require_error(result.error(), {ErrorCode::kInvalidArgument});
  return result.has_value();
}

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

std::optional<std::string> FormRun::walk(std::mt19937_64& choices, bool may_stick) const {
  const auto& vocabulary = FormChecker::vocabulary();
  const auto matcher = constraint_->start();
  std::string text;
  for (size_t step = 0; step < kMaxWalk; ++step) {
    const auto words = mask_of(*matcher);
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
    if (!advanced(*matcher, token)) return std::nullopt;
  }
  return std::nullopt;
}

std::optional<bool> FormRun::accepts(std::string_view text) const {
  const auto matcher = constraint_->start();
  for (const char byte : text) {
    const auto words = mask_of(*matcher);
    if (!words) return std::nullopt;
    const auto token = static_cast<int32_t>(static_cast<unsigned char>(byte));
    if (!FormChecker::has(*words, token)) return false;
    if (!advanced(*matcher, token)) return std::nullopt;
  }
  const auto words = mask_of(*matcher);
  if (!words) return std::nullopt;
  return FormChecker::has(*words, kCheckerStop);
}

}  // namespace rudder::fuzz
