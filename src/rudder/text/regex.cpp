#include "rudder/text/regex.h"

#include <fmt/format.h>

#include "rudder/base/utf8.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace rudder::text {
namespace {

// Steps of one match attempt before it is given up: far above what a tokenizer's pattern needs on
// its longest run, and under a second of time.
constexpr uint32_t kMatchLimit = 10'000'000;
constexpr size_t kJitStackMax = size_t{1} << 20;

// Match state of one thread, reused over calls.
struct MatchScratch {
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(32 * 1024, kJitStackMax, nullptr);
  MatchScratch() {
    if (context == nullptr) return;
    pcre2_set_match_limit(context, kMatchLimit);
    pcre2_jit_stack_assign(context, nullptr, stack);
  }
  ~MatchScratch() {
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
  }
  MatchScratch(const MatchScratch&) = delete;
  MatchScratch& operator=(const MatchScratch&) = delete;
};

MatchScratch& scratch() {
  thread_local MatchScratch instance;
  return instance;
}

}  // namespace

struct Regex::Code {
  pcre2_code* code = nullptr;
  std::string where;
  Code() = default;
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  ~Code() { pcre2_code_free(code); }
};

Regex::Regex(std::unique_ptr<Code> code) : code_(std::move(code)) {}
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;
Regex::~Regex() = default;

Result<Regex> Regex::compile(std::string_view onig_pattern, std::string_view where) {
  if (find_invalid_utf8(onig_pattern)) {
    return fail(ErrorCode::kCorruptFile, "regex is not valid UTF-8", std::string(where));
  }
  auto translated = translate_onig(onig_pattern);
  if (!translated) {
    Error error = translated.error();
    error.where = where;
    return tl::unexpected<Error>(std::move(error));
  }
  auto code = std::make_unique<Code>();
  code->where = where;
  int error = 0;
  size_t offset = 0;
  code->code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated->data()), translated->size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &offset, nullptr);
  if (code->code == nullptr) {
    char message[128] = {};
    pcre2_get_error_message(error, reinterpret_cast<PCRE2_UCHAR*>(message), sizeof message);
    return fail(
        ErrorCode::kUnsupported,
        fmt::format("regex does not compile: {} (byte {} of {})", message, offset, *translated),
        std::string(where));
  }
  // Without JIT (a hardened kernel) the interpreter gives the same matches, slower.
  pcre2_jit_compile(code->code, PCRE2_JIT_COMPLETE);
  return Regex(std::move(code));
}

Result<void> Regex::for_each_match(std::string_view text,
                                   const std::function<void(size_t, size_t)>& on_match) const {
  MatchScratch& state = scratch();
  if (state.data == nullptr || state.context == nullptr) {
    return fail(ErrorCode::kInternal, "out of memory for regex matching", code_->where);
  }
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  size_t from = 0;
  size_t last_end = static_cast<size_t>(-1);
  while (from <= text.size()) {
    int rc = pcre2_match(code_->code, subject, text.size(), from, PCRE2_NO_UTF_CHECK, state.data,
                         state.context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {
      rc = pcre2_match(code_->code, subject, text.size(), from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                       state.data, state.context);
    }
    if (rc == PCRE2_ERROR_NOMATCH) return {};
    if (rc < 0) {
      return fail(
          ErrorCode::kInvalidArgument,
          fmt::format("the tokenizer's regex gave up on this text at byte {} (PCRE2 {})", from, rc),
          code_->where);
    }
    const size_t* span = pcre2_get_ovector_pointer(state.data);
    const size_t start = span[0], end = span[1];
    if (start == end && end == last_end) {
      from += from < text.size() ? utf8_length(static_cast<unsigned char>(text[from])) : 1;
      continue;
    }
    from = last_end = end;
    on_match(start, end);
  }
  return {};
}

}  // namespace rudder::text
