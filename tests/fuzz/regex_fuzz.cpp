// An expression that compiles lets through texts that PCRE2 matches with it: as a whole output, and
// as the pattern of a JSON string.
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <boost/json.hpp>

#include "form_run.h"
#include "rudder/base/json.h"
#include "rudder/base/utf8.h"

namespace rudder::fuzz {
namespace {

using constraint::GrammarKind;

// What PCRE2 says of a text; nothing where it does not take the expression, reads it otherwise than
// ECMA-262 does, or gives up.
class PcreOracle {
 public:
  explicit PcreOracle(std::string_view pattern) {
    // Classes by name and by collation are letters in ECMA-262, \v is one character there.
    for (const char* other : {"[:", "[.", "[=", "\\v"}) {
      if (pattern.find(other) != std::string_view::npos) return;
    }
    int error = 0;
    PCRE2_SIZE at = 0;
    code_ =
        pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                      PCRE2_UTF | PCRE2_ALT_BSUX | PCRE2_DOLLAR_ENDONLY | PCRE2_ALLOW_EMPTY_CLASS,
                      &error, &at, nullptr);
    if (code_ != nullptr) data_ = pcre2_match_data_create_from_pattern(code_, nullptr);
    context_ = pcre2_match_context_create(nullptr);
    pcre2_set_match_limit(context_, 100'000);
    pcre2_set_heap_limit(context_, 20'000);
  }
  ~PcreOracle() {
    pcre2_match_context_free(context_);
    pcre2_match_data_free(data_);
    pcre2_code_free(code_);
  }
  PcreOracle(const PcreOracle&) = delete;
  PcreOracle& operator=(const PcreOracle&) = delete;

  std::optional<bool> matches(std::string_view text, bool whole) const {
    if (code_ == nullptr) return std::nullopt;
    const uint32_t options = whole ? PCRE2_ANCHORED | PCRE2_ENDANCHORED : 0;
    const int found = pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), 0,
                                  options, data_, context_);
    if (found >= 0) return true;
    if (found == PCRE2_ERROR_NOMATCH) return false;
    return std::nullopt;
  }

 private:
  pcre2_code* code_ = nullptr;
  pcre2_match_data* data_ = nullptr;
  pcre2_match_context* context_ = nullptr;
};

void require_outputs(const FormRun& form, const PcreOracle& oracle, bool quoted,
                     std::mt19937_64& choices) {
  for (int i = 0; i < 3; ++i) {
    const auto output = form.walk(choices);
    if (!output) continue;
    RUDDER_CHECK(form.accepts(*output) != false, "{:?} is refused byte by byte", *output);
    std::string text = *output;
    if (quoted) {
      const auto value = parse_json(text, "output");
      RUDDER_CHECK(value.has_value() && value->is_string(), "{:?} is no JSON string", text);
      text = value->get_string();
    }
    RUDDER_CHECK(!find_invalid_utf8(text), "{:?} is not UTF-8", text);
    RUDDER_CHECK(oracle.matches(text, !quoted) != false, "{:?} does not match", text);
  }
}

}  // namespace

void fuzz_regex(std::string_view input) {
  if (find_invalid_utf8(input)) return;
  auto choices = choices_of(input);
  const PcreOracle oracle(input);
  if (const auto form = FormRun::compile({GrammarKind::kRegex, std::string(input)})) {
    require_outputs(*form, oracle, false, choices);
  }
  const boost::json::object schema = {{"type", "string"}, {"pattern", input}};
  if (const auto form = FormRun::compile({GrammarKind::kJsonSchema, to_json_text(schema)})) {
    require_outputs(*form, oracle, true, choices);
  }
}

}  // namespace rudder::fuzz
