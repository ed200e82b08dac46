// Regex: the Oniguruma patterns of tokenizer.json, translated to PCRE2 (JIT, Unicode) where the two
// dialects differ; a construct that cannot be translated is refused by name. Used by the
// normalizers and pre-tokenizers. Immutable after compile; matching is safe from any thread.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "rudder/base/result.h"

namespace rudder::text {

// The PCRE2 (UTF | UCP) spelling of an Oniguruma pattern in its Ruby syntax. kUnsupported names the
// construct. Differences handled: \s \w \h \d \v, possessive intervals, \p names and their Unicode
// version, scripts, nested classes, posix brackets, line anchors, inline m.
Result<std::string> translate_onig(std::string_view pattern);

class Regex {
 public:
  // `where` is put into errors. kUnsupported if the pattern cannot be translated or compiled,
  // kCorruptFile if it is not UTF-8.
  static Result<Regex> compile(std::string_view onig_pattern, std::string_view where);
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;
  ~Regex();

  // Calls `on_match(start, end)` for each match from left to right, without overlap; an empty match
  // directly after the last one is skipped. `text` is valid UTF-8. kInvalidArgument if the match
  // limit is passed.
  Result<void> for_each_match(std::string_view text,
                              const std::function<void(size_t, size_t)>& on_match) const;

 private:
  struct Code;
  explicit Regex(std::unique_ptr<Code> code);
  std::unique_ptr<Code> code_;
};

}  // namespace rudder::text
